"""The built program stopped in every way there is, and going on: what it ends with is, to the bit, what a run that
nobody stopped ends with, and no step's record is there twice."""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import program
from program import PROGRAM, SMALL, read_bytes, run

SLOW = bool(os.environ.get("OT_TEST_SLOW"))
STEPS = 20


class ResumeTest(program.ProgramTest):
    # 59 rows that are trained on make 15 steps: the run crosses an epoch's border.
    words = ["--no-forecast", *SMALL, "--steps", str(STEPS), "--micro-batch", "2", "--eval-every", "5"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.disk = cls.path("disk")
        os.mkdir(cls.disk)
        cls.whole = cls.path("whole")
        result = run(*cls.command("whole"))
        assert result.code == 0, result.err

    @classmethod
    def command(cls, out, *more, steps=None):
        words = ["train", *cls.words, "--data", cls.rows, "--out", cls.path(out), "--save-every", "2", *more]
        if steps:
            words += ["--steps", str(steps)]
        return [str(word) for word in words]

    def checkpoints(self, out):
        return sorted(os.path.basename(path) for path in glob.glob(self.path(f"{out}/checkpoints/step-*")))

    def records(self, out):
        """Of steps and evaluations: everything in them that does not depend on the clock or the machine."""
        exact = ("event", "step", "epoch", "loss", "grad_norm", "clipped_norm", "lr", "tokens", "perplexity", "rows")
        return [{key: event[key] for key in exact if key in event} for event in self.log(out)
                if event["event"] in ("step", "eval")]

    def check_equal(self, out, label=""):
        self.assertEqual(self.records(out), self.records("whole"), label)
        self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")),
                         read_bytes(self.path("whole/model.safetensors")), label)

    def start(self, out, *more):
        return subprocess.Popen([PROGRAM, *self.command(out, *more)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def wait_for(self, process, seen, seconds=60):
        end = time.time() + seconds
        while not seen() and process.poll() is None and time.time() < end:
            time.sleep(0.002)


class Stopped(ResumeTest):
    def test_a_signal_then_the_same_command(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            shutil.rmtree(self.path("a"), ignore_errors=True)
            process = self.start("a")
            self.wait_for(process, lambda: self.checkpoints("a"))
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn(b"resume", err)
            self.assertIn(len(self.checkpoints("a")), (1, 2), err)
            self.succeed(*self.command("a"))
            self.check_equal("a", number)

    def test_kill_9(self):
        draw = random.Random(1)
        kills = 200 if SLOW else 12
        done, tries = 0, 0
        while done < kills:
            shutil.rmtree(self.path("k"), ignore_errors=True)
            place = draw.choice([[], ["--home", "host"], ["--home", "state=nvme,weights=nvme", "--nvme", self.disk]])
            while True:
                process = self.start("k", *place)
                tries += 1
                try:
                    _, err = process.communicate(timeout=draw.uniform(0.02, 0.6))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    done += 1
                    continue
                self.assertEqual(process.returncode, 0, err.decode())
                break
            self.check_equal("k", f"{done} kills")
        self.assertGreater(tries, done)


if __name__ == "__main__":
    program.main()
