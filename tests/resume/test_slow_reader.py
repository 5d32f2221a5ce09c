"""Nobody reads the run's output: a terminal stopped by Ctrl-S, a pipe that nobody empties. The run trains to its
end, and a signal saves and stops it."""

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import time

import program
from stopping import StoppingTest

STEPS = 600


class SlowReader(StoppingTest):
    words = [*StoppingTest.words, "--steps", str(STEPS), "--eval-fraction", "0", "--tokens-per-step", "256", "--log-every", "1"]

    def small_pipe(self):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        return reader, writer

    def read_all(self, reader):
        with os.fdopen(reader, "rb") as file:
            return file.read().decode()

    def check_saved(self, process, out):
        """The run must end by itself soon after one signal, with a checkpoint of the last logged step."""
        self.assertIn(process.wait(timeout=30), (0, 10), "the stop did not end the run")
        last = [event["step"] for event in self.log(out) if event["event"] == "step"][-1]
        self.assertLess(last, STEPS)
        self.assertEqual(self.checkpoints(out)[-1], last)

    def test_a_terminal_stopped_by_ctrl_s(self):
        terminal, other = pty.openpty()
        process = self.start("held", "--steps", "100000", stdin=other, stdout=other, stderr=other)
        os.close(other)
        self.addCleanup(process.kill)
        self.assertTrue(self.wait_for(process, lambda: self.logged("held", "step", 1)))
        os.write(terminal, b"\x13")  # the terminal takes no output from here on
        time.sleep(0.3)
        done = self.last_step("held")
        self.assertTrue(self.wait_for(process, lambda: self.last_step("held") >= done + 50))  # the run still trains
        process.send_signal(signal.SIGTERM)
        self.assertIn(process.wait(timeout=30), (0, 10))
        self.assertEqual(self.checkpoints("held")[-1], self.last_step("held"))
        os.close(terminal)

    def last_step(self, out):
        with open(self.path(out + "/log.jsonl")) as file:
            lines = file.read().split("\n")[:-1]  # the run may be writing the last line
        return max((event["step"] for event in map(json.loads, lines) if event["event"] == "step"), default=0)

    def test_a_pipe_that_nobody_reads(self):
        for stream in ("stderr", "stdout"):
            out = "unread-" + stream
            reader, writer = self.small_pipe()
            more = ["--json"] if stream == "stdout" else []
            process = self.start(out, *more, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writer})
            os.close(writer)
            self.addCleanup(process.kill)
            self.assertTrue(self.wait_for(process, lambda: os.path.exists(self.path(out + "/log.jsonl"))))
            self.assertTrue(self.wait_for(process, lambda: self.last_step(out) >= 200))
            process.send_signal(signal.SIGTERM)
            self.check_saved(process, out)
            os.close(reader)

    def test_a_second_signal_ends_it(self):
        reader, writer = self.small_pipe()
        process = self.start("second", "--steps", "100000", "--tokens-per-step", "64Ki", stderr=writer)
        os.close(writer)
        self.addCleanup(process.kill)
        self.assertTrue(self.wait_for(process, lambda: os.path.exists(self.path("second/log.jsonl"))))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=10), 8)
        os.close(reader)

    def test_a_run_ends_and_says_what_it_left_out(self):
        """The reader begins to read when only the last lines of the run are left."""
        reader, writer = self.small_pipe()
        process = self.start("late", stderr=writer)
        os.close(writer)
        self.addCleanup(process.kill)
        self.assertTrue(self.wait_for(process, lambda: os.path.exists(self.path("late/model.safetensors"))))
        err = self.read_all(reader)
        self.assertEqual(process.wait(timeout=30), 0)
        steps = [int(step) for step in re.findall(r"^step +(\d+)/600 ", err, re.M)]
        notes = [int(n) for n in re.findall(r"^note    (\d+) lines of progress are left out here: ", err, re.M)]
        self.assertGreater(len(steps), 40)
        self.assertGreater(len(notes), 0)
        self.assertEqual(len(steps) + sum(notes), STEPS)
        self.assertIn(f"\ndone    {STEPS} of {STEPS} steps", err)
        self.assertEqual(len([event for event in self.log("late") if event["event"] == "step"]), STEPS)

    def test_a_pipe_that_is_never_read_does_not_keep_a_finished_run(self):
        reader, writer = self.small_pipe()
        process = self.start("never", stderr=writer)
        os.close(writer)
        self.addCleanup(process.kill)
        self.assertEqual(process.wait(timeout=120), 0)
        self.assertTrue(os.path.exists(self.path("never/model.safetensors")))
        os.close(reader)

    def test_stdout_that_takes_nothing_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([program.PROGRAM, *self.command("full", "--dry-run", "--json")], stdout=full,
                                    stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(result.returncode, 5)
        self.assertIn(b"error: stdout: cannot write: No space left on device", result.stderr)


if __name__ == "__main__":
    program.main()
