"""The built program when an allocation fails, in the program, in a library or in libc (no_memory.c), through load,
plan and two steps. Each failure ends with one clear line, or with the same model as without the failure. It never
ends with a crash, a hang or another model."""

import os
import random
import shutil
import subprocess

import program
from program import PROGRAM, SMALL, read_bytes, run

SLOW = bool(os.environ.get("OT_TEST_SLOW"))
NO_MEMORY = os.environ.get("OT_TEST_NO_MEMORY_LIBRARY", "")
# The loader and libgomp end the process themselves, with a line of their own.
THEIRS = ("out of memory", "libgomp: Out of memory", "cannot allocate memory for thread-local data")


class NoMemory(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        words = ["train", "--data", cls.rows, "--no-forecast", "--steps", "2", "--eval-fraction", "0", "--device", "cpu"]
        words += [word for word in SMALL if word not in words]
        made = run(*words, "--out", cls.path("model"))
        assert made.code == 0, made.err
        words[words.index("--model") + 1] = cls.path("model")  # a model directory, so that files are read
        words[words.index("--init"):words.index("--init") + 2] = []
        cls.words = words
        cls.count = cls.path("count")
        code, err = cls.run_with({"OT_TEST_NO_MEMORY_COUNT": cls.count}, "whole")
        assert code == 0, err
        cls.calls = int(read_bytes(cls.count))

    @classmethod
    def run_with(cls, env, out):
        env = os.environ | {"LD_PRELOAD": NO_MEMORY} | env
        done = subprocess.run([PROGRAM, *cls.words, "--out", cls.path(out)], env=env, capture_output=True, timeout=120)
        return done.returncode, done.stderr.decode()

    def check(self, wish):
        """Returns True if the run was made."""
        for name in ["out", "out.partial"]:  # a run that ends while it saves may leave the second
            shutil.rmtree(self.path(name), ignore_errors=True)
        code, err = self.run_with({"OT_TEST_NO_MEMORY": wish}, "out")
        last = err.strip().split("\n")[-1]
        if code == 0:
            self.assertEqual(read_bytes(self.path("out/model.safetensors")), read_bytes(self.path("whole/model.safetensors")),
                             f"allocation {wish}: {err}")
        elif not last.split(": ", 1)[-1].startswith(THEIRS) and not last.startswith(THEIRS):
            self.assertIn(code, range(2, 10), f"allocation {wish}: {err}")
            self.assertTrue(last.startswith("error: "), f"allocation {wish}: {err}")
        return code == 0

    def numbers(self, sample):
        """Tries few of the allocations in which oneDNN generates code, because they are the most frequent."""
        if SLOW:
            return range(1, self.calls + 1)
        draw, early = random.Random(5), min(700, self.calls)
        return sorted(draw.sample(range(1, early + 1), sample) + draw.sample(range(early, self.calls + 1), sample // 3))

    def test_one_fails(self):
        self.assertGreater(self.calls, 500)
        made = sum(self.check(str(number)) for number in self.numbers(40))
        self.assertGreater(made, 0)

    def test_all_fail_from_one_on(self):
        for number in self.numbers(20):
            self.check(f"{number}+")


if __name__ == "__main__":
    program.main()
