"""Several commands with one output: one of them gets it, and the others are refused before they change anything. The
first one saves its result, whatever the others do."""

import fcntl
import os
import signal
import subprocess
import time

import program
from program import PROGRAM, STOPPED, read_bytes, run
from stopping import StoppingTest

REFUSED = "another process is writing this output; wait for that process, or choose another --out"


class OneOutput(StoppingTest):
    words = [*StoppingTest.words, "--steps", "60", "--eval-fraction", "0"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = run(*cls.command("whole", "--save-every", "20"))
        assert result.code == 0, result.err

    def files(self, out):
        return {os.path.join(at, name) for at, _, names in os.walk(self.path(out)) for name in names}

    def test_second_starts_all_the_time(self):
        process = self.start("storm", "--save-every", "20")
        self.assertTrue(self.wait_for(process, lambda: self.logged("storm", "step", 1)))
        while process.poll() is None:
            second = run(*self.command("storm", "--save-every", "20", "--quiet"))
            if second.code == 0:  # after the first command has finished
                break
            self.assertEqual((second.code, second.err.count("\n")), (3, 1), second.err)
            self.assertIn(REFUSED, second.err)
        err = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 0, err)
        self.check_equal("storm", "whole")

    def lock(self, name):
        lock = os.open(self.path(name), os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def test_a_start_waits_for_a_process_that_is_ending(self):
        """A killed process holds the lock until the system has taken everything from it. Here it is this test."""
        commands = {"OUT": (self.command("ending", "--save-every", "20"), "ending"),
                    "OUT.partial": (self.command("fresh", "--save-every", "20"), "fresh.partial"),
                    "export": (["export", self.path("whole/checkpoints"), "--out", self.path("ended")], "ended")}
        for what, (words, name) in commands.items():
            with self.subTest(what):
                os.mkdir(self.path(name))
                lock = self.lock(name)
                process = subprocess.Popen([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                line = next(line for line in process.stderr if b"locked this directory" in line or b"error: " in line)
                self.assertIn(b"another process has locked this directory; waiting up to 5 s for it to end", line)
                os.close(lock)
                err = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 0, err)

    def test_a_lock_that_stays_is_refused(self):
        os.mkdir(self.path("stays"))
        lock = self.lock("stays")
        self.fail_with(3, REFUSED, *self.command("stays", "--quiet"))
        os.close(lock)

    def test_an_export_into_a_run_that_goes_on(self):
        process = self.start("exported", "--save-every", "20", "--steps", "100000")
        self.assertTrue(self.wait_for(process, lambda: self.checkpoints("exported")))
        process.send_signal(signal.SIGSTOP)  # it keeps its lock and takes no time
        words = ["export", self.path("whole/checkpoints"), "--out", self.path("exported"), "--quiet"]
        self.fail_with(3, REFUSED, *words)
        self.fail_with(3, REFUSED, *self.command("exported", "--resume", "never", "--quiet"))
        process.send_signal(signal.SIGCONT)
        err = self.end(process, signal.SIGTERM, STOPPED)
        self.assertIn("\nresume  ", err)
        self.assertEqual(self.files("exported") & {self.path("exported/model.safetensors")}, set())
        self.succeed("verify", self.path("exported"), "--quiet")

    def test_two_first_starts_at_once(self):
        for _ in range(3):
            words = self.command("both", "--resume", "never", "--save-every", "never")
            processes = [subprocess.Popen([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                         for _ in range(3)]
            results = [(process.communicate(timeout=60)[1].decode(), process.returncode) for process in processes]
            codes = sorted(code for _, code in results)
            # Commands that run one after the other succeed.
            self.assertIn(codes, ([0, 3, 3], [0, 0, 3], [0, 0, 0]), results)
            for err, code in results:
                self.assertTrue(code == 0 or REFUSED in err, err)
            self.assertEqual(read_bytes(self.path("both/model.safetensors")),
                             read_bytes(self.path("whole/model.safetensors")))
            self.assertFalse(os.path.exists(self.path("both.partial")))

    def test_the_last_save_waits(self):
        """The run waits until another process unlocks OUT.partial. An older version of the program may hold that
        lock."""
        process = self.start("waits", "--save-every", "never")
        self.assertTrue(self.wait_for(process, lambda: self.logged("waits", "step", 1)))
        os.mkdir(self.path("waits.partial"))
        other = os.open(self.path("waits.partial"), os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        for line in process.stderr:
            if b"waiting for another process" in line:
                break
        time.sleep(0.3)
        self.assertIsNone(process.poll())
        os.close(other)
        err = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 0, err)
        self.check_equal("waits", "whole")
        self.assertFalse(os.path.exists(self.path("waits.partial")))


if __name__ == "__main__":
    program.main()
