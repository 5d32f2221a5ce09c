"""Helpers for the tests of stopped runs: start a run, wait until it reaches a point, stop it, compare its result.
Uses the standard library only."""

import glob
import json
import os
import shutil
import signal
import subprocess
import time

import program
from program import PROGRAM, SMALL, STOPPED, read_bytes

SLOW = bool(os.environ.get("OT_TEST_SLOW"))
EXACT = ("event", "step", "epoch", "loss", "grad_norm", "clipped_norm", "lr", "tokens", "trained_tokens", "loss_scale",
         "skipped", "perplexity", "accuracy", "rows")


class StoppingTest(program.ProgramTest):
    """Runs of the smallest preset in a folder of the test class, with the same first words."""
    words = ["--no-forecast", *SMALL, "--micro-batch", "2"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.disk = cls.path("disk")
        os.mkdir(cls.disk)

    @classmethod
    def command(cls, out, *more):
        """An option that is given again replaces its earlier value."""
        options = {}
        for word in ("--data", cls.rows, *cls.words, *(str(word) for word in more), "--out", cls.path(out)):
            if word.startswith("--"):
                options[word] = values = []
            else:
                values.append(word)
        return ["train", *(word for name, values in options.items() for word in (name, *values))]

    def start(self, out, *more, **popen):
        popen = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen([PROGRAM, *self.command(out, *more)], **popen)

    def wait_for(self, process, seen, seconds=60):
        """Returns True if the condition held before the process ended."""
        end = time.time() + seconds
        while not seen():
            self.assertLess(time.time(), end, "never seen")
            if process.poll() is not None:
                return seen()
            time.sleep(0.001)
        return True

    def end(self, process, number, code):
        """Stops the run. Returns its stderr, or None if it had ended before."""
        ended = process.poll() is not None
        process.send_signal(number)
        err = process.communicate(timeout=60)[1]
        if ended:
            return None
        err = (err or b"").decode()
        self.assertEqual(process.returncode, code, err)
        return err

    def stop_after(self, step, out, *more, number=signal.SIGKILL):
        """Stops a run as soon as the checkpoint of the step exists. The run never finishes by itself."""
        while True:
            shutil.rmtree(self.path(out), ignore_errors=True)
            process = self.start(out, *more)
            if not self.wait_for(process, lambda: os.path.exists(self.checkpoint(out, step))):
                self.fail(process.communicate()[1])
            err = self.end(process, number, STOPPED if number in (signal.SIGINT, signal.SIGTERM) else -number)
            if err is not None and not os.path.exists(self.path(f"{out}/checkpoints/complete")):
                return err

    def checkpoint(self, out, step):
        return self.path(f"{out}/checkpoints/step-{step:08}")

    def checkpoints(self, out):
        return sorted(int(path[-8:]) for path in glob.glob(self.path(f"{out}/checkpoints/step-????????")))

    def best_states(self, out):
        return sorted(int(path[-8:]) for path in glob.glob(self.path(f"{out}/checkpoints/best/step-????????")))

    def logged(self, out, event, step):
        """True if the log of a run, which may still be writing, has this record already."""
        try:
            with open(self.path(f"{out}/log.jsonl")) as file:
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return False
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return any(record["event"] == event and record["step"] == step for record in records)

    def records(self, out, *events):
        """The fields of records that depend neither on the clock nor on placement."""
        return [{key: event[key] for key in EXACT if key in event} for event in self.log(out)
                if event["event"] in (events or ("step", "eval"))]

    def check_equal(self, out, whole, *events):
        """The model must be equal, and the log must have each record once, in order."""
        self.assertEqual(self.records(out, *events), self.records(whole, *events))
        steps = [event["step"] for event in self.log(out) if event["event"] == "step"]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")),
                         read_bytes(self.path(f"{whole}/model.safetensors")))
