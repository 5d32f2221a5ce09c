"""The rules of the source tree that a compiler does not know: includes go one way, files and lines stay readable.

Usage: test_style.py SOURCE_ROOT
"""

import os
import re
import sys
import unittest

FOLDERS = ["src", "models", "offload", "kernels", "tests"]
# Who may include whom: src -> models -> offload -> kernels -> src/base. Tests may include everything.
LAYERS = [("src/base/", 0), ("kernels/", 1), ("offload/", 2), ("models/", 3), ("src/", 4), ("tests/", 5)]
# Who may include the headers of the CUDA toolkit, or the emulator's in their place.
CUDA_FOLDERS = ("kernels/cuda/", "kernels/emu/", "tests/emu/")
MOST_COLUMNS, MOST_LINES = 110, 600

root = sys.argv.pop(1)


def layer(path):
    return next(level for folder, level in LAYERS if path.startswith(folder))


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
            for name in re.findall(r'^#include "([^"]+)"', "\n".join(lines), re.MULTILINE):
                if not any(name.startswith(folder) for folder, _ in LAYERS):
                    yield f"{name} is not named from the repository's root"
                elif layer(name) > layer(path):
                    yield f"{name} belongs to a layer above"
        self.check(faults_of)

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
