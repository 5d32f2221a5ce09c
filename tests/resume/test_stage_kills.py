"""Three stages (--shard stages), one of which is killed or stopped in each phase of a run: while the ranks find each other,
while weights are read, in forward, backward, an update, an evaluation, a save, and at the end. All ranks end within a
bound and with the exit code of a lost rank, the last checkpoint is intact, and the same command goes on with the bits of
one rank.

A run that is not disturbed shows which system calls a rank makes, in order (faults.c). A phase is one of these calls."""

import os
import random
import re
import shutil
import sys
import time
import unittest

import program
import tiny_models
from resumable import FAULTS, SLOW, ResumableTest, preload

COMM_FAILED = 11
RANKS, STEPS, EVERY = 3, 8, 2
KILLS = int(os.environ.get("OT_TEST_KILLS", "1000" if SLOW else "4"))
KILL_BOUND, STOP_BOUND = 20, 60  # seconds; a rank is lost after 30 s of silence
PHASES = ("rendezvous", "weights", "forward", "backward", "update", "evaluation", "save", "end")


class StageKills(ResumableTest):
    words = ["--no-forecast", "--seq-len", "128", "--tokens-per-step", "512", "--threads", "1", "--micro-batch", "1", "--steps",
             str(STEPS), "--eval-every", str(EVERY), "--device", "cpu", "--comm-timeout", "45s"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.held = program.write_rows(cls.path("held.jsonl"), [{"text": row["answer"]} for row in program.sql_rows(3)])
        made = program.run("train", *program.SMALL, "--data", cls.rows, "--out", cls.path("made"), "--steps", "1", "--no-forecast")
        assert made.code == 0, made.err
        tiny_models.write_model(cls.path("model"), tiny_models.MODELS["smollm3"])  # 4 layers; the head is tied
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(cls.path("made"), name), cls.path("model"))
        cls.calls = {}

    def command(self, out, *more, save=str(EVERY)):
        own = ["--model", self.path("model"), "--eval-data", self.held]
        if "--gpus" not in more:
            own += ["--gpus", str(RANKS), "--shard", "stages", "--home", "state=nvme", "--nvme", self.disks[0], "--io-engine", "pool"]
        return super().command(out, *own, *more, save=save)

    def faults(self, rank, *words):
        return preload(*words) | {"OT_TEST_FAULT_RANK": str(rank)}

    def calls_of(self, rank):
        """[(call, path)] of a rank in a run that is not disturbed."""
        if rank not in self.calls:
            log = self.path(f"calls-{rank}")
            self.succeed(*self.command("undisturbed"), env=self.faults(rank, None, "", log))
            self.check_equal("undisturbed", self.whole("--gpus", "1"))
            self.check_tidy("undisturbed")
            self.clear("undisturbed")
            with open(log) as file:
                self.calls[rank] = [line.split(maxsplit=1) for line in file]
        return self.calls[rank]

    def exchanges_by_phase(self, rank):
        """{phase: the number of the rank's exchange in it}: in the evaluation after step 6, and in step 7. The evaluation
        before step 1 has the first exchanges of more than a few bytes. No step has exchanges of this size."""
        sizes = [int(path) for call, path in self.calls_of(rank) if call == "exchange"]
        evaluation = next(size for size in sizes if size > 16)
        marks = [i for i, size in enumerate(sizes) if size == evaluation]
        groups = STEPS // EVERY + 1
        self.assertEqual(len(marks) % groups, 0, sizes)
        each = len(marks) // groups
        after_6 = marks[3 * each:4 * each]
        step = (marks[4 * each] - after_6[-1] - 1) // EVERY  # exchanges of a step: forward, then backward
        self.assertEqual(marks[each] - marks[each - 1] - 1, step * EVERY, sizes)
        first = after_6[-1] + 1
        return {"evaluation": after_6[0] + 1, "forward": first + 1 + step // 4, "backward": first + 1 + step * 3 // 4}

    def place(self, rank, phase):
        """The call in which the fault happens: WHERE:N, and its path (faults.c)."""
        if phase == "rendezvous":
            return "connect:1", ""
        if phase == "weights":
            return "read:1", "model/model.safetensors"
        if phase == "update":  # tiles are written after each step
            writes = [i for i, (call, path) in enumerate(self.calls_of(rank)) if call == "write" and path.endswith(".store\n")]
            return f"write:{len(writes) * 7 // STEPS}", ".store"
        if phase == "save":  # of the second checkpoint: each evaluation here is the best one, so its weights are saved too
            return "fsync:4", f"state-{rank}.bin" if rank else "state.bin"
        if phase == "end":
            return ("unlink:1", ".store") if rank else ("open:1", "/model.safetensors")
        return f"exchange:{self.exchanges_by_phase(rank)[phase]}", ""

    def begin(self, out, action, rank, phase):
        where, path = self.place(rank, phase)
        return time.monotonic(), self.start(out, env=self.faults(rank, f"{action}:{where}", path))

    def await_end(self, begun, process, rank, phase, bound):
        label = f"rank {rank} in phase {phase}"
        _, err = process.communicate(timeout=120)
        err = err.decode()
        self.assertLess(time.monotonic() - begun, bound, label)
        self.assertEqual(process.returncode, COMM_FAILED, f"{label}: {err}")
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        stopped = [line for line in errors if "stopped before step 1" in line]  # the others, by their parent
        self.assertEqual(len(errors) - (len(stopped) if phase == "rendezvous" else 0), 1, f"{label}: {err}")
        self.assertRegex(errors[-1], rf"\brank {rank}\b", label)

    def check_rest(self, out, rank, phase):
        label = f"rank {rank} in phase {phase}"
        logged = self.logged(out, "step")
        steps = {"rendezvous": (0, 0), "weights": (0, 0), "end": (STEPS, STEPS)}.get(phase, (3, 7))
        self.assertTrue(steps[0] <= max(logged, default=0) <= steps[1], f"{label}: {logged}")
        self.assertEqual(bool(self.checkpoints(out)), steps[0] > 0, label)  # a save waits for the one before
        self.verify(out)
        self.go_on(out, label=label)
        self.check_equal(out, self.whole("--gpus", "1"), label)
        self.check_tidy(out, label)

    def test_a_killed_stage(self):
        seed = int(os.environ.get("OT_TEST_SEED", random.randrange(1 << 32)))
        draw = random.Random(seed)
        phases = draw.sample(PHASES, min(KILLS, len(PHASES)))
        cases = [(draw.randrange(RANKS), phase) for phase in phases]
        if KILLS > len(PHASES):
            cases = [(rank, phase) for rank in range(RANKS) for phase in PHASES]
        print(f"OT_TEST_SEED={seed}: {cases}", file=sys.stderr)
        for rank, phase in cases:
            self.clear("disturbed")
            begun, process = self.begin("disturbed", "kill", rank, phase)
            self.await_end(begun, process, rank, phase, KILL_BOUND)
            self.check_rest("disturbed", rank, phase)

    @unittest.skipUnless(SLOW, "OT_TEST_SLOW=1 stops ranks; test_ranks_end.py has the stop of a stage in a step")
    def test_a_stopped_stage(self):
        """The runs of a rank wait for the end of the silence at the same time."""
        for rank in range(RANKS):
            runs = [(phase, *self.begin(f"disturbed/{phase}", "stop", rank, phase)) for phase in PHASES]
            for phase, begun, process in runs:
                self.await_end(begun, process, rank, phase, STOP_BOUND)
            for phase in PHASES:
                self.check_rest(f"disturbed/{phase}", rank, phase)
            self.clear("disturbed")


if __name__ == "__main__":
    if not FAULTS:
        sys.exit("OT_TEST_FAULTS names no library")
    program.main()
