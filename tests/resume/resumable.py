"""Runs that end in many ways and are resumed. The result of each has the same bits as the result of an uninterrupted
run, no record of a step is there twice, and no half-made file stays. Uses the standard library only."""

import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import program
from program import PROGRAM, SMALL, read_bytes, run

SLOW = bool(os.environ.get("OT_TEST_SLOW"))
FAULTS = os.environ.get("OT_TEST_FAULTS", "")  # the library made of faults.c
# The fields of a record that depend neither on the clock nor on the machine.
EXACT = ("event", "step", "epoch", "loss", "grad_norm", "clipped_norm", "lr", "tokens", "perplexity", "accuracy",
         "rows")


def is_checkpoint(path):
    return not path.endswith(".partial") and os.path.exists(os.path.join(path, "manifest.bin"))


class ResumableTest(program.ProgramTest):
    # 59 rows for training make 15 steps, so a run of 20 steps crosses the border of an epoch.
    words = ["--no-forecast", *SMALL, "--micro-batch", "2", "--steps", "20", "--eval-every", "5"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wholes = {}
        cls.disks = [cls.path("disk"), cls.path("other")]
        for disk in cls.disks:
            os.mkdir(disk)
        first, second = ["--nvme", cls.disks[0]], ["--nvme", cls.disks[1] + ":64M"]
        cls.places = {"gpu": ["--home", "gpu"], "host": ["--home", "host"],
                      "nvme": ["--home", "state=nvme,weights=nvme", *first],
                      "two": ["--home", "nvme", *first, *second],
                      "mixed": ["--home", "state=nvme,weights=host", "--optimizer-engine", "stream:0.5,cpu:0.5", *second]}

    @classmethod
    def other_file_system(cls):
        """A folder on another file system, where checkpoints cannot hard-link the store's files; None if there is
        none."""
        memory = "/dev/shm"
        if not os.access(memory, os.W_OK) or os.stat(memory).st_dev == os.stat(cls.folder).st_dev:
            return None
        folder = tempfile.mkdtemp(prefix="offload-train-test-", dir=memory)
        cls.addClassCleanup(shutil.rmtree, folder)
        return folder

    def command(self, out, *more, save="2"):
        return ["train", *self.words, "--data", self.rows, "--out", self.path(out), "--save-every", save, *more]

    def start(self, out, *more, save="2", env=None, stdout=subprocess.DEVNULL):
        return subprocess.Popen([PROGRAM, *self.command(out, *more, save=save)], stdout=stdout, stderr=subprocess.PIPE,
                                env=os.environ | (env or {}))

    def wait_for(self, process, seen, seconds=60):
        end = time.time() + seconds
        while not seen() and process.poll() is None and time.time() < end:
            time.sleep(0.002)

    def clear(self, out):
        for path in glob.glob(self.path(out) + "*"):
            shutil.rmtree(path)

    def checkpoints(self, out):
        """The steps of the complete checkpoints."""
        paths = glob.glob(self.path(f"{out}/checkpoints/step-*"))
        return sorted(int(path[-8:]) for path in paths if is_checkpoint(path))

    def best_states(self, out):
        """The steps of the evaluated states whose weights alone are kept."""
        paths = glob.glob(self.path(f"{out}/checkpoints/best/step-*"))
        return sorted(int(path[-8:]) for path in paths if is_checkpoint(path))

    def verify(self, out):
        """Verifies the newest checkpoint, from which a run resumes; all of them in slow runs."""
        for step in self.checkpoints(out)[0 if SLOW else -1:]:
            self.succeed("verify", self.path(f"{out}/checkpoints/step-{step:08}"))

    def logged(self, out, kind, within=""):
        """The steps of these events in the log of a run. The last line of the log may be cut short. Checkpoints
        count only if their path is inside `within`."""
        path = self.path(f"{out}/log.jsonl")
        lines = read_bytes(path).decode().split("\n") if os.path.exists(path) else [""]
        events = [json.loads(line) for line in lines[:-1]]
        return [event["step"] for event in events if event["event"] == kind and event.get("dir", "").startswith(within)]

    def records(self, out):
        return [{key: event[key] for key in EXACT if key in event} for event in self.log(out)
                if event["event"] in ("step", "eval")]

    def check_counted(self, out, label=""):
        """The trained tokens of a checkpoint are the sum over its steps, each counted once."""
        tokens = {event["step"]: event["tokens"] for event in self.log(out) if event["event"] == "step"}
        for step in self.checkpoints(out):
            record = json.loads(read_bytes(self.path(f"{out}/checkpoints/step-{step:08}/checkpoint.json")))
            self.assertEqual(record["run"]["tokens"], sum(tokens[done] for done in range(1, step + 1)), label)

    def whole(self, *more):
        """An uninterrupted run, in memory. Made once for each set of options."""
        if more not in self.wholes:
            name = f"whole-{len(self.wholes)}"
            began = time.time()
            self.succeed(*self.command(name, *more, save="never"))
            self.wholes[more] = name
            type(self).run_seconds = time.time() - began
        return self.wholes[more]

    def check_equal(self, out, whole, label=""):
        self.assertEqual(self.records(out), self.records(whole), label)
        self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")),
                         read_bytes(self.path(f"{whole}/model.safetensors")), label)

    def check_tidy(self, out, label="", keep=1):
        """After a run that finished: no leftovers."""
        self.assertEqual(glob.glob(self.path(f"{out}.*")), [], label)
        steps = self.checkpoints(out)
        if steps:
            there = {"complete"} | {f"step-{step:08}" for step in steps} | ({"best"} if self.best_states(out) else set())
            self.assertEqual(set(os.listdir(self.path(f"{out}/checkpoints"))), there, label)
            self.assertLessEqual(len(steps), keep, label)
            self.assertLessEqual(len(self.best_states(out)), 1, label)
            self.check_counted(out, label)
        elif not self.best_states(out):
            self.assertFalse(os.path.exists(self.path(f"{out}/checkpoints")))
        for disk in self.disks:
            self.assertEqual(os.listdir(disk), [], label)
        if SLOW:
            self.verify(out)

    def stop_after_a_step(self, process, out):
        """Sends SIGTERM after another step was logged. Returns the exit code and stderr."""
        before = self.logged(out, "step")
        self.wait_for(process, lambda: len(self.logged(out, "step")) > len(before))
        return self.end_by(process, signal.SIGTERM)

    def go_on(self, out, *more, label=""):
        """Runs the same command again, which must resume from the last complete checkpoint. Returns the step of that
        checkpoint."""
        complete = os.path.exists(self.path(f"{out}/checkpoints/complete"))  # then the run begins anew
        before, logged = ([], []) if complete else (self.checkpoints(out), self.logged(out, "checkpoint", self.path(f"{out}/")))
        self.succeed(*self.command(out, *more))
        begun = [event["step"] for event in self.log(out) if event["event"] == "resume"][-1:] or [0]
        self.assertGreaterEqual(begun[0], max(before, default=0), label)
        self.assertGreaterEqual(begun[0], max(logged, default=0), label)
        return begun[0]

    def end_by(self, process, number):
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()


def preload(fault, where, log=None):
    """The environment in which a run meets the fault (faults.c)."""
    env = {"LD_PRELOAD": FAULTS, "OT_TEST_FAULT_IN": where,
           "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
    return env | ({"OT_TEST_FAULT": fault} if fault else {}) | ({"OT_TEST_FAULT_LOG": log} if log else {})
