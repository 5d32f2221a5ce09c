"""The built program under small system limits, and with a library of products that fails."""

import os
import resource
import subprocess

import program
from program import PROGRAM, SMALL, read_bytes

NOBODY = 65534


class LimitsTest(program.ProgramTest):
    def start(self, *words, enter=None, **env):
        done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=60, preexec_fn=enter, env=os.environ | env)
        return done.returncode, done.stderr.decode()

    def train(self, out, *more, **how):
        words = ["train", "--data", self.rows, "--no-forecast", *SMALL, "--steps", "3", "--eval-fraction", "0"]
        words[words.index("--threads") + 1] = "2"
        return self.start(*words, *more, "--out", self.path(out), **how)


class Limits(LimitsTest):
    def test_a_small_stack(self):
        code, err = self.train("whole")
        self.assertEqual(code, 0, err)
        code, err = self.train("small", enter=lambda: resource.setrlimit(resource.RLIMIT_STACK, (512 << 10, 512 << 10)))
        self.assertEqual(code, 0, err)
        self.assertEqual(read_bytes(self.path("small/model.safetensors")), read_bytes(self.path("whole/model.safetensors")))

    def test_a_stack_that_is_too_small(self):
        for size in (112, 128, 508):  # with less, a library ends before main
            for words in (["--version"], ["help"], ["train", "--data", self.rows]):
                code, err = self.start(*words, enter=lambda: resource.setrlimit(resource.RLIMIT_STACK, (size << 10, size << 10)))
                self.assertEqual(code, 4, err)
                self.assertIn(f"ulimit -s {size}: the stack is limited to less than 512 KiB; use ulimit -s 8192", err)

    def test_little_address_space(self):
        """OpenBLAS would start threads before main, and would wait at the end for a thread that could not be
        started."""
        for megabytes in (80, 100, 150):
            code, err = self.start("--version", OPENBLAS_NUM_THREADS="8",
                                   enter=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20,) * 2))
            self.assertEqual((code, err), (0, ""))

    def test_no_more_processes(self):
        def enter():
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            if os.getuid() == 0:  # the limit does not bind root
                os.setgid(NOBODY)
                os.setuid(NOBODY)

        code, err = self.start("--version", enter=enter, OPENBLAS_NUM_THREADS="8")
        self.assertEqual((code, err), (0, ""))
        code, err = self.train("none", enter=enter)
        self.assertIn(code, range(2, 10), err)
        self.assertRegex(err, r"(^|\n)error: [^\n]*\n$")


class OneDnn(LimitsTest):
    def multiply(self, out, wish, *more):
        return self.train(out, *more, LD_LIBRARY_PATH=os.environ["OT_TEST_ONEDNN_FOLDER"], OT_TEST_ONEDNN=wish)

    def test_products_that_fail(self):
        for action in ("throw", "status"):
            for at in (1, 5, 9, 60):  # failures while the library is tried, and in a step
                code, err = self.multiply(f"{action}-{at}", f"{action}:{at}")
                self.assertEqual(code, 6, err)
                self.assertRegex(err, r"\nerror: [^\n]*oneDNN has no memory for a matrix product; [^\n]*\n$|"
                                      r"^error: oneDNN has no memory for a matrix product; [^\n]*\n$")
                self.assertFalse(os.path.exists(self.path(f"{action}-{at}/model.safetensors")))

    def test_one_that_cannot(self):
        code, err = self.multiply("cannot", "none")
        self.assertEqual(code, 0, err)
        self.assertIn("OpenBLAS", err)


if __name__ == "__main__":
    program.main()
