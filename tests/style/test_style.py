"""The rules of the source tree that a compiler does not know: includes go one way, files and lines stay readable.

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
         ["offload/engine", "offload/probe"], ["src/data"], ["src/checkpoint"], ["src/session", "src/verify"], ["src/run"],
         ["src/saving"], ["src/bench", "src/report"], ["src/plan", "src/train"], ["src/cli"]]
LEVELS = {folder: (level, room) for level, rooms in enumerate(ORDER) for room in rooms for folder in room.split()}
# Who may include the headers of the CUDA toolkit, or the emulator's in their place.
CUDA_FOLDERS = ("kernels/cuda/", "kernels/emu/", "tests/emu/")
MOST_COLUMNS, MOST_LINES = 110, 600

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


def find_circles(includes):
    """Files that include each other around a circle: {file: [header, ...]} -> the circles' files, sorted."""
    def reached_from(path):
        seen, left = set(), list(includes.get(path, ()))
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left.extend(includes.get(name, ()))
        return seen
    return sorted(path for path in includes if path in reached_from(path))


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

    def test_no_circle_of_headers(self):
        headers = {path: set(names_included(lines)) for path, lines in sources() if path.endswith((".h", ".cuh"))}
        self.assertGreater(len(headers), 100)
        self.assertEqual(find_circles(headers), [])

    def test_the_test_sees_violations(self):
        self.assertTrue(may_include("offload/plan/plan.c", "offload/store/store.h"))
        self.assertFalse(may_include("offload/store/store.c", "offload/plan/plan.h"))
        self.assertFalse(may_include("offload/predict/trace.h", "src/options/options.h"))
        self.assertFalse(may_include("src/nowhere/new.c", "src/base/error.h"))
        self.assertFalse(may_include("src/report/report.c", "report.h"))
        self.assertEqual(find_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}), ["a", "b", "c"])
        self.assertEqual(find_circles({"a": {"b"}, "b": set()}), [])

    def test_cuda_stays_behind_the_device_interface(self):
        def faults_of(path, lines):
            if not path.startswith(CUDA_FOLDERS):
                for name in re.findall(r'^ *# *include <((?:cuda|cublas|nvtx)[^>]*)>', "\n".join(lines), re.MULTILINE):
                    yield f"includes {name}"
        self.check(faults_of)

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
