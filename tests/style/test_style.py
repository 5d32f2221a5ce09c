"""The rules of the source tree that a compiler does not know: includes go one way and in no circle, files and
lines stay readable.

Usage: test_style.py SOURCE_ROOT
"""

import os
import re
import sys
import unittest

FOLDERS = ["src", "models", "offload", "kernels", "tests"]
# Who may include whom: a folder includes those before it, and itself. kernels/cuda is compiled for the emulator too, so
# these two know each other. Kernels, engine and models know of src its base alone. Tests may include everything.
ORDER = [["src/base"], ["kernels"], ["kernels/cpu", "kernels/cuda kernels/emu kernels/emu/include"], ["offload"],
         ["offload/topology", "src/tokenizer"], ["offload/store"], ["models", "offload/plan"],
         ["offload/schedule", "src/files", "src/machine", "src/options"], ["offload/predict"],
         ["offload/engine", "offload/probe"], ["src/data", "src/manual"], ["src/checkpoint"], ["src/session", "src/verify"], ["src/run"],
         ["src/saving"], ["src/bench", "src/report"], ["src/plan", "src/train"], ["src/cli"]]
LEVELS = {folder: (level, room) for level, rooms in enumerate(ORDER) for room in rooms for folder in room.split()}
# Who may include the headers of the CUDA toolkit, or the emulator's in their place.
CUDA_FOLDERS = ("kernels/cuda/", "kernels/emu/", "tests/emu/")
MOST_COLUMNS, MOST_LINES = 110, 600
# NAME_state.h is the private header of the module NAME: only the files of the module include it.
PRIVATE = "_state.h"

root = sys.argv.pop(1)


def folder_of(path):
    return os.path.dirname(path)


def may_include(path, name):
    """Whether the order of folders lets the file include the header."""
    if path.startswith("tests/"):
        return name.startswith("tests/") or folder_of(name) in LEVELS
    if folder_of(path) not in LEVELS or folder_of(name) not in LEVELS:
        return False
    if name.startswith("src/") and not name.startswith("src/base/") and not path.startswith("src/"):
        return False
    (own, own_room), (other, other_room) = LEVELS[folder_of(path)], LEVELS[folder_of(name)]
    return other < own or own_room == other_room


def module_of(path):
    """A module is a header, its implementation and its private header: their path without the ending."""
    return path.removesuffix(PRIVATE) if path.endswith(PRIVATE) else os.path.splitext(path)[0]


def may_see(path, name):
    """Whether the file may include the header, if that header is private. The files of a module have its
    name or begin with it; where the folder has that name, they are all files of the folder. Tests may too."""
    if not name.endswith(PRIVATE) or path.startswith("tests/"):
        return True
    module, owner, folder = module_of(path), module_of(name), folder_of(name)
    is_named = module == owner or module.startswith(owner + "_")
    return folder_of(path) == folder and (is_named or os.path.basename(folder) == os.path.basename(owner))


def graph_of(names_by_file):
    """{file: names of its includes} -> {module: the other modules that it includes}"""
    modules = {module_of(path): set() for path in names_by_file}
    for path, names in names_by_file.items():
        modules[module_of(path)] |= {module_of(name) for name in names} - {module_of(path)}
    return modules


def find_circles(includes):
    """Modules that include each other: {module: {module, ...}} -> the modules of each circle, sorted."""
    def reached_from(module):
        seen, left = set(), [module]
        while left:
            new = includes.get(left.pop(), set()) - seen
            seen |= new
            left.extend(new)
        return seen
    reached = {module: reached_from(module) for module in includes}
    return sorted({tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
                   for module in includes if module in reached[module]})


def find_option_names(lines):
    """Words such as --home in string literals; comments may have them."""
    tokens = r'"((?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\'|/\*.*?\*/|//[^\n]*'
    literals = re.findall(tokens, "\n".join(lines), re.DOTALL)
    return [name for text in literals for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)]


def names_included(lines):
    return re.findall(r'^#include "([^"]+)"', "\n".join(lines), re.MULTILINE)


def sources():
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith((".c", ".h", ".cpp", ".cu", ".cuh")):
                    path = os.path.relpath(os.path.join(where, name), root)
                    with open(os.path.join(root, path), encoding="utf-8") as file:
                        yield path, file.read().split("\n")


class Style(unittest.TestCase):
    def check(self, faults_of):
        """faults_of(path, lines) yields sentences."""
        files, faults = 0, []
        for path, lines in sources():
            files += 1
            faults += [f"{path}: {fault}" for fault in faults_of(path, lines)]
        self.assertGreater(files, 200)
        self.assertEqual(faults, [])

    def test_includes_go_one_way(self):
        def faults_of(path, lines):
            for name in names_included(lines):
                if not may_include(path, name):
                    yield f"includes {name}, which is in no folder below {folder_of(path)}"
        self.check(faults_of)

    def test_no_circle_of_modules(self):
        modules = graph_of({path: names_included(lines) for path, lines in sources()})
        self.assertGreater(len(modules), 300)
        self.assertEqual(find_circles(modules), [])

    def test_private_headers_stay_private(self):
        def faults_of(path, lines):
            for name in names_included(lines):
                if not may_see(path, name):
                    yield f"includes {name}, which is private to {module_of(name)}"
        self.check(faults_of)

    def test_the_test_sees_violations(self):
        self.assertTrue(may_include("offload/plan/plan.c", "offload/store/store.h"))
        self.assertFalse(may_include("offload/store/store.c", "offload/plan/plan.h"))
        self.assertFalse(may_include("offload/predict/trace.h", "src/options/options.h"))
        self.assertFalse(may_include("src/nowhere/new.c", "src/base/error.h"))
        self.assertFalse(may_include("src/report/report.c", "report.h"))

    def test_the_test_sees_circles(self):
        def circles(names_by_file):
            return find_circles(graph_of(names_by_file))
        self.assertEqual(circles({"a.h": ["b.h"], "b.h": ["c.h"], "c.cuh": ["a.h"], "c.h": [], "d.h": ["a.h"]}),
                         [("a", "b", "c")])
        self.assertEqual(circles({"a.c": ["a.h", "b.h"], "a.h": [], "b.h": ["a.h"]}), [("a", "b")])
        self.assertEqual(circles({"a.h": [], "b.h": [], "a.c": ["a.h", "b.h"], "b.cpp": ["b.h", "a.h"]}),
                         [("a", "b")])
        self.assertEqual(circles({"a.c": ["b.h"], "a_state.h": [], "b.h": ["a_state.h"]}), [("a", "b")])
        self.assertEqual(circles({"a.h": ["b.h"], "b.h": ["a.h"], "x/a.h": ["x/b.h"], "x/b.cu": ["x/a.h"]}),
                         [("a", "b"), ("x/a", "x/b")])
        self.assertEqual(circles({"a.c": ["a.h", "a_state.h"], "a_state.h": ["a.h"], "a.h": ["b.h"],
                                  "b.c": ["b.h"], "x/b.h": ["a.h"]}), [])

    def test_the_test_sees_private_headers(self):
        self.assertTrue(may_see("src/saving/saver.c", "src/saving/saver_state.h"))
        self.assertTrue(may_see("src/saving/saver_space.c", "src/saving/saver_state.h"))
        self.assertFalse(may_see("src/saving/save.c", "src/saving/saver_state.h"))
        self.assertFalse(may_see("src/saving/savers.c", "src/saving/saver_state.h"))
        self.assertFalse(may_see("src/train/saver_space.c", "src/saving/saver_state.h"))
        self.assertTrue(may_see("offload/store/pins.c", "offload/store/store_state.h"))
        self.assertFalse(may_see("offload/probe/engines.c", "offload/store/store_state.h"))
        self.assertTrue(may_see("tests/saving/test_saver.c", "src/saving/saver_state.h"))
        self.assertTrue(may_see("offload/probe/engines.c", "offload/store/store.h"))

    def test_cuda_stays_behind_the_device_interface(self):
        def faults_of(path, lines):
            if not path.startswith(CUDA_FOLDERS):
                for name in re.findall(r'^ *# *include <((?:cuda|cublas|nvtx)[^>]*)>', "\n".join(lines), re.MULTILINE):
                    yield f"includes {name}"
        self.check(faults_of)

    def test_engine_and_kernels_name_no_option(self):
        def faults_of(path, lines):
            if path.startswith(("kernels/", "offload/", "models/")):
                for name in find_option_names(lines):
                    yield f"{name} in a string: name the cause (src/base/error.h), and src/options/cure.c the option"
        self.check(faults_of)

    def test_the_test_sees_option_names(self):
        planted = ['fail("give more with "', '     "--gpu-mem, or \\"less\\"");', "/* --slots",
                   '"--order" */ x = "a--b"; // "--clip"', "c = '\"'; /* \"--lr */"]
        self.assertEqual(find_option_names(planted), ["--gpu-mem"])

    def test_nothing_is_too_long(self):
        def faults_of(path, lines):
            if len(lines) - 1 > MOST_LINES:
                yield f"{len(lines) - 1} lines"
            for number, line in enumerate(lines, 1):
                if len(line) > MOST_COLUMNS:
                    yield f"line {number} has {len(line)} columns"
        self.check(faults_of)

    def test_headers_say_what_they_are_and_are_guarded(self):
        seen = set()

        def faults_of(path, lines):
            if path.endswith((".h", ".cuh")):
                guards = re.findall(r"^#ifndef (OT_\w+_(?:H|CUH))$", "\n".join(lines), re.MULTILINE)
                if len(guards) != 1 or guards[0] in seen:
                    yield f"include guards {guards}, wanted one that no other header has"
                if not lines[0].startswith("/* "):
                    yield "does not begin by saying what it is"
                seen.update(guards)
        self.check(faults_of)


if __name__ == "__main__":
    unittest.main()
