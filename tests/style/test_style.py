"""Rules of the source tree that a compiler does not check: includes follow the order of folders and make no circle,
and files and lines stay readable.

Usage: test_style.py SOURCE_ROOT
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import unittest

FOLDERS = ["src", "models", "offload", "kernels", "tests"]
# The order of folders: a folder may include headers of itself and of the folders before it. kernels/cuda is compiled
# for the emulator of tests too, so these may include each other. Of src, the kernels, the engine and the models may include
# src/base alone. Tests may include everything.
ORDER = [["src/base"], ["kernels"], ["kernels/cpu", "kernels/cuda tests/emu tests/emu/include tests/fakes"], ["offload"],
         ["offload/comm", "offload/topology", "src/tokenizer"], ["offload/store", "offload/comm/plugins", "src/jinja", "src/hub"], ["models", "offload/plan"],
         ["src/gguf", "src/migrate"],
         ["offload/schedule", "src/files", "src/machine", "src/options"], ["offload/predict"],
         ["offload/engine", "offload/probe"], ["src/data", "src/judge", "src/dashboard", "src/page"], ["src/view"], ["src/checkpoint"], ["src/session"],
         ["src/quantize", "src/train"], ["src/report"], ["src/plan"], ["src/cli"]]
LEVELS = {folder: (level, room) for level, rooms in enumerate(ORDER) for room in rooms for folder in room.split()}
# Folders that may include the headers of the CUDA toolkit, or the emulator's in their place.
CUDA_FOLDERS = ("kernels/cuda/", "tests/emu/", "tests/fakes/")
MOST_COLUMNS, MOST_LINES = 110, 600
# The version of clang-format that .clang-format is for: others break lines elsewhere.
CLANG_FORMAT = "14"
# NAME_state.h is the private header of the module NAME: only the files of the module include it.
PRIVATE = "_state.h"

root = sys.argv.pop(1)


def folder_of(path):
    return os.path.dirname(path)


def may_include(path, name):
    """True if the order of folders lets the file include the header."""
    if path.startswith("tests/"):
        return name.startswith("tests/") or folder_of(name) in LEVELS
    if folder_of(path) not in LEVELS or folder_of(name) not in LEVELS:
        return False
    if name.startswith("src/") and not name.startswith("src/base/") and not path.startswith("src/"):
        return False
    (own, own_room), (other, other_room) = LEVELS[folder_of(path)], LEVELS[folder_of(name)]
    return other < own or own_room == other_room


def module_of(path):
    """A module is a header, its implementation and its private header. Returns their common path without the ending."""
    return path.removesuffix(PRIVATE) if path.endswith(PRIVATE) else os.path.splitext(path)[0]


def may_see(path, name):
    """True if the file may include the header, as far as the header is private. The files of a module have the
    module's name or begin with it. If the folder has the module's name, all its files belong to the module. Tests
    may include private headers too."""
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
    """Modules that include each other: {module: {module, ...}} -> the sorted modules of each circle."""
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
    """Command-line options such as --home in string literals. Comments may name them."""
    tokens = r'"((?:[^"\\\n]|\\.)*)"|\'(?:[^\'\\\n]|\\.)+\'|/\*.*?\*/|//[^\n]*'
    literals = re.findall(tokens, "\n".join(lines), re.DOTALL)
    return [name for text in literals for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)]


def find_broken_strings(lines):
    """Numbers of the lines that hold a short piece in the middle of a string literal, after a full line: what is
    left where a formatter breaks a literal that was broken by hand."""
    piece = re.compile(r'\s*"((?:[^"\\]|\\.)*)"$')
    found = []
    for number, (before, line, after) in enumerate(zip(lines, lines[1:], lines[2:]), 2):
        match = piece.match(line)
        if match and len(match[1]) < 16 and not match[1].endswith("\\n") and re.match(r'\s*"', after) and \
                len(before) > 80 and re.search(r'[^n]"$', before):
            found.append(number)
    return found


def clang_format():
    """The path of clang-format in the version that .clang-format is for, or None."""
    for name in (f"clang-format-{CLANG_FORMAT}", "clang-format"):
        path = shutil.which(name)
        if path and f" version {CLANG_FORMAT}." in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    return None


# Files of others, and those that the build makes, that comments name.
OTHERS_FILES = {"chat_texts.h", "llm.c", "llama2.c", "cuda.h", "nccl.h", "ggml-common.h"}


def files_named(lines):
    """The C files that comments name, as in "the arena (memory.h)"."""
    comments = re.findall(r"/\*.*?\*/|//[^\n]*", "\n".join(lines), re.DOTALL)
    return re.findall(r"(?<![\w./*-])(?:\w+/)*([a-z][a-z0-9_]{3,}\.(?:h|c|cu|cuh|inc))\b(?!\()", "\n".join(comments))


def names_included(lines):
    return re.findall(r'^#include "([^"]+)"', "\n".join(lines), re.MULTILINE)


@functools.cache
def sources():
    """[(path, its lines)], read once for all tests."""
    found = []
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith((".c", ".h", ".inc", ".cpp", ".cu", ".cuh")):
                    path = os.path.relpath(os.path.join(where, name), root)
                    with open(os.path.join(root, path), encoding="utf-8") as file:
                        found.append((path, file.read().split("\n")))
    return found


class Style(unittest.TestCase):
    def check(self, faults_of):
        """faults_of(path, lines) yields one sentence for each fault."""
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

    def test_comments_name_files_that_exist(self):
        known = {os.path.basename(path) for path, _ in sources()} | OTHERS_FILES

        def faults_of(path, lines):
            for name in files_named(lines):
                if name not in known:
                    yield f"a comment names {name}, which is no file"
        self.check(faults_of)

    def test_the_test_sees_names_of_files(self):
        planted = ["/* See plan/saver.h and", " * (gone.c), not x.h. */ call(ring.c); // of norm.cuh", "a = args.h;"]
        self.assertEqual(files_named(planted), ["saver.h", "gone.c", "norm.cuh"])

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
        self.assertTrue(may_see("src/train/saver.c", "src/train/saver_state.h"))
        self.assertTrue(may_see("src/train/saver_space.c", "src/train/saver_state.h"))
        self.assertFalse(may_see("src/train/save.c", "src/train/saver_state.h"))
        self.assertFalse(may_see("src/train/savers.c", "src/train/saver_state.h"))
        self.assertFalse(may_see("src/cli/saver_space.c", "src/train/saver_state.h"))
        self.assertTrue(may_see("offload/store/pins.c", "offload/store/store_state.h"))
        self.assertFalse(may_see("offload/probe/engines.c", "offload/store/store_state.h"))
        self.assertTrue(may_see("tests/train/test_saver.c", "src/train/saver_state.h"))
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
                    yield f"{name} in a string: name the cause (src/base/error.h), and src/options/options.c the option"
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

    def test_strings_are_broken_at_ends_of_lines_alone(self):
        self.check(lambda path, lines: (f"line {number}: a short piece of a string, join it with the next"
                                        for number in find_broken_strings(lines)))

    def test_the_test_sees_broken_strings(self):
        full = '    fail("the budget of the run is smaller than the memory that the plan of this run, which was given, "'
        self.assertEqual(find_broken_strings([full, '         "needs "', '         "at least");']), [2])
        self.assertEqual(find_broken_strings([full, '         "needs");']), [])
        self.assertEqual(find_broken_strings(['    "usage\\n"', '    "first\\n"', '    "second");']), [])

    def test_files_have_the_form_of_clang_format(self):
        if not clang_format():
            self.skipTest(f"clang-format {CLANG_FORMAT} is not installed: the form of C files is not checked")
        paths = [os.path.join(root, path) for path, _ in sources()]
        done = subprocess.run([clang_format(), "--dry-run", "-Werror", *paths], capture_output=True, text=True)
        self.assertEqual(re.findall(r"^(\S+?:\d+):.*clang-format-violations", done.stderr, re.MULTILINE), [])
        self.assertEqual(done.returncode, 0, done.stderr)

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


def has_function(text, name):
    """True if the C source defines the function."""
    return re.search(rf"(?m)^[a-z][^;={{}}()]*\b{name}\([^;{{}}]*\) {{$", text) is not None


class Doors(unittest.TestCase):
    """What the READMEs of folders say about the sources."""

    def read(self, *path):
        with open(os.path.join(root, *path), encoding="utf-8") as file:
            return file.read()

    def test_walks_name_functions_that_exist(self):
        """A step of a walk begins with `file:function`. It may name other functions of that file."""
        walks = []
        for readme in ("src/README.md", "offload/README.md"):
            steps = r"(?:^- `[\w/]+\.c:\w+` .*\n)+"
            walks += re.findall(steps, self.read(readme), re.MULTILINE)
        self.assertEqual(len(walks), 4)
        for walk in walks:
            steps = re.findall(r"^- `(\S+):(\w+)`", walk, re.MULTILINE)
            self.assertGreater(len(steps), 4)
            self.assertLessEqual(len({path for path, _ in steps}), 6, walk)
            for line, (path, name) in zip(walk.splitlines(), steps):
                for function in [name, *re.findall(r"`([a-z]\w*)`", line.split("` ", 1)[1])]:
                    self.assertTrue(has_function(self.read(path), function), f"{path}:{function}")

    def test_folders_of_src_name_their_tests(self):
        rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", self.read("src/README.md"), re.MULTILINE))
        folders = {name for name in os.listdir(os.path.join(root, "src")) if os.path.isdir(os.path.join(root, "src", name))}
        self.assertEqual(set(rows), folders)
        for folder, places in rows.items():
            for place in re.findall(r"`(\S+)`", places):
                self.assertTrue(os.path.exists(os.path.join(root, "tests", place)), f"{folder}: {place}")

    def test_links_lead_to_files(self):
        for folder, _, names in os.walk(root):
            if "README.md" in names and not re.search(r"/(build[^/]*|\.git|subprojects)(/|$)", folder[len(root):]):
                for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", self.read(folder, "README.md")):
                    self.assertTrue(os.path.exists(os.path.join(folder, link)), f"{folder}/README.md: {link}")

    def test_the_test_sees_functions(self):
        text = "static int save(struct loop *l) {\n    return load(l);\n}\nint load(int a,\n         int b) {\n}\nint keep(void);\n"
        self.assertEqual([has_function(text, name) for name in ("save", "load", "keep", "sav")], [True, True, False, False])


if __name__ == "__main__":
    unittest.main()
