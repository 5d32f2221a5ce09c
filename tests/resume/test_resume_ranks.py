"""Several ranks save checkpoints together, on CPUs. With --deterministic world the run goes on with another number of
ranks and ends with the bits of an uninterrupted run. A rank that is killed, or that cannot write, costs no more than
the checkpoint under way."""

import glob
import json
import os
import random
import re
import signal
import sys
import time

import program
from program import STOPPED, read_bytes
from resumable import FAULTS, SLOW, ResumableTest, preload

STEPS = 8


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return [int(word) for word in file.read().split()]


class RanksTest(ResumableTest):
    """The evaluation rows have no prompt, so no run answers one at its end: that would take longer than its steps. The
    runs of test_ranks_result.py do."""
    words = ["--no-forecast", *program.SMALL, "--micro-batch", "1", "--steps", str(STEPS), "--eval-every", "4",
             "--device", "cpu", "--deterministic", "world", "--comm-timeout", "60s"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.held = program.write_rows(cls.path("held.jsonl"), [{"text": row["answer"]} for row in program.sql_rows(3)])

    def command(self, out, *more, save="2"):
        if not SLOW and "--eval-data" not in more:
            more = (*more, "--eval-data", self.held)
        if "--gpus" in more:
            return super().command(out, *more, save=save)
        return super().command(out, "--gpus", "4", *more, save=save)


class Numbers(RanksTest):
    def test_4_then_2_then_1_then_8_ranks(self):
        whole = self.whole("--gpus", "1")
        begun = []
        for shard in ("full", "state", "none"):
            self.succeed(*self.command("first", "--keep", "9", "--shard", shard, "--resume", "never"))
            self.check_equal("first", whole, shard)
            step, before = 2, "first"
            for ranks in ("2", "1", "8" if SLOW or shard == "full" else "4"):
                out = f"with-{ranks}"
                path = self.path(f"{before}/checkpoints/step-{step:08}")
                more = ["--gpus", ranks, "--keep", "9"] + ([] if ranks == "1" else ["--shard", shard])
                more += ["--share-weights", "yes"] if (ranks, shard) == ("2", "full") else []
                self.succeed("verify", path)
                self.clear(out)
                self.succeed(*self.command(out, *more, "--resume", path))
                rest = [record for record in self.records(whole) if record["step"] > step]
                self.assertEqual(self.records(out), rest, (shard, ranks))
                self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")),
                                 read_bytes(self.path(f"{whole}/model.safetensors")), (shard, ranks))
                begun.append(step)
                step, before = step + 2, out
            self.clear("first")
        self.assertEqual(begun, [2, 4, 6] * 3)

    def test_a_warning_where_the_number_of_ranks_counts(self):
        plain = [word for word in self.words if word not in ("--deterministic", "world")]
        command = ["train", *plain, "--data", self.rows, "--save-every", "4"]
        self.succeed(*command, "--gpus", "2", "--out", self.path("two"), "--keep", "9")
        path = self.path("two/checkpoints/step-00000004")
        self.assertEqual(json.loads(read_bytes(path + "/checkpoint.json"))["run"]["ranks"], 2)
        on = self.succeed(*command, "--out", self.path("on"), "--resume", path)
        self.assertIn("was computed by 2 ranks, and 1 goes on", on.err)
        self.assertEqual(json.loads(read_bytes(self.path("two/run.json")))["shard"], "full")
        for more in ([], ["--gpus", "2", "--shard", "stages"]):
            refused = program.run(*command, *more, "--out", self.path("exact"), "--resume", path, "--exact")
            self.assertEqual(refused.code, 2, refused.err)
            self.assertIn("--exact resumes only with as many ranks", refused.err)

    def test_stages_have_the_bits_of_one_rank(self):
        plain = [word for word in self.words if word not in ("--deterministic", "world")]
        command = ["train", *plain, "--data", self.rows, "--eval-data", self.held, "--save-every", "4"]
        for out, more in (("one-rank", []), ("stages", ["--gpus", "2", "--shard", "stages", "--keep", "9"])):
            self.succeed(*command, *more, "--out", self.path(out))
        self.check_equal("stages", "one-rank")
        path = self.path("stages/checkpoints/step-00000004")
        for out, more in (("from-stages", []), ("in-stages", ["--gpus", "2"])):  # --shard auto keeps the bits
            on = self.succeed(*command, *more, "--out", self.path(out), "--resume", path, "--exact")
            self.assertNotIn("was computed by", on.err)
            self.assertEqual("shard   stages: they keep the bits" in on.err, bool(more), on.err)
            self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")),
                             read_bytes(self.path("one-rank/model.safetensors")))
        self.assertEqual(json.loads(read_bytes(self.path("in-stages/run.json")))["shard"], "stages")
        refused = program.run(*command, "--gpus", "8", "--shard", "stages", "--out", self.path("many"))
        self.assertEqual(refused.code, 2, refused.err)
        self.assertIn("too few for a stage on each of 8 ranks; use --shard full, or fewer ranks", refused.err)

    def test_replicas_keep_their_bits(self):
        """Two pipelines of two ranks go on as such with --shard auto, and as two ranks."""
        plain = [word for word in self.words if word not in ("--deterministic", "world")]
        command = ["train", *plain, "--data", self.rows, "--eval-data", self.held, "--save-every", "4"]
        self.succeed(*command, "--gpus", "4", "--shard", "stages", "--stages", "2", "--keep", "9", "--out", self.path("both"))
        path = self.path("both/checkpoints/step-00000004")
        for out, ranks in ("on-four", "4"), ("on-two", "2"):
            on = self.succeed(*command, "--gpus", ranks, "--out", self.path(out), "--resume", path, "--exact")
            self.assertEqual("shard   stages: 2 replicas keep the bits" in on.err, ranks == "4", on.err)
            self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")), read_bytes(self.path("both/model.safetensors")))
        record = json.loads(read_bytes(self.path("on-four/run.json")))
        self.assertEqual((record["shard"], record["stages"]), ("stages", 2))

    def test_two_pipelines_then_one_rank_then_four(self):
        whole, pipelines = self.whole("--gpus", "1"), ["--gpus", "4", "--shard", "stages", "--stages", "2"]
        begun, before = 0, []
        for step, ranks in (0, pipelines), (2, ["--gpus", "1"]), (4, pipelines), (6, ["--gpus", "4", "--shard", "full"]):
            out = f"after-{step}"
            self.succeed(*self.command(out, *ranks, "--keep", "9", *before))
            path = self.path(f"{out}/checkpoints/step-{step + 2:08}")
            self.succeed("verify", path)
            before = ["--resume", path]
            rest = [record for record in self.records(whole) if record["step"] > step or step == 0]
            self.assertEqual(self.records(out), rest, step)
            self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")), read_bytes(self.path(f"{whole}/model.safetensors")))
            begun += 1
        record = json.loads(read_bytes(self.path("after-0/checkpoints/step-00000002/checkpoint.json")))
        self.assertEqual((begun, record["run"]["ranks"]), (4, 2))  # two replicas, whose sums are added up

    def test_the_store_of_every_rank_is_referred_to(self):
        whole, nvme = self.whole("--gpus", "1"), self.places["nvme"]
        self.succeed(*self.command("nvme", *nvme, "--keep", "9"))
        self.check_equal("nvme", whole)
        path = self.path("nvme/checkpoints/step-00000004")
        self.assertLessEqual({f"nvme-{rank}-0.store" for rank in (1, 2, 3)}, set(os.listdir(path)))
        self.succeed("verify", path)
        self.succeed(*self.command("memory", "--gpus", "2", "--resume", path))
        self.assertEqual(read_bytes(self.path("memory/model.safetensors")),
                         read_bytes(self.path(f"{whole}/model.safetensors")))


class Asked(RanksTest):
    words = ["5000" if word == str(STEPS) else word for word in RanksTest.words]

    def stop(self, process, out):
        _, err = self.end_by(process, signal.SIGTERM)
        self.assertEqual(process.returncode, STOPPED, err)
        self.verify(out)

    def test_a_signal_asks_for_a_checkpoint(self):
        process = self.start("asked", save="never")
        self.wait_for(process, lambda: len(self.logged("asked", "step")) >= 2)
        self.assertEqual(self.checkpoints("asked"), [])
        process.send_signal(signal.SIGUSR1)
        self.wait_for(process, lambda: self.logged("asked", "checkpoint"))
        self.stop(process, "asked")
        self.assertEqual(len(self.logged("asked", "checkpoint")), 2)  # asked for, and at the end

    def test_rank_0_says_when_the_time_has_come(self):
        process = self.start("timed", "--gpus", "2", save="1s")
        self.wait_for(process, lambda: len(self.logged("timed", "checkpoint")) >= 2)
        self.stop(process, "timed")
        self.assertGreaterEqual(len(self.logged("timed", "checkpoint")), 3)
        self.assertEqual(len(self.checkpoints("timed")), 1)


class Ends(RanksTest):
    def go_on_from(self, out, whole, label=""):
        self.succeed(*self.command(out))
        self.check_equal(out, whole, label)
        self.check_tidy(out, label)

    def check_model(self, out):
        whole = self.whole("--gpus", "1")
        self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")),
                         read_bytes(self.path(f"{whole}/model.safetensors")))

    def wait_for_step(self, process, out, step):
        self.wait_for(process, lambda: len(self.logged(out, "step")) >= step)

    def signal_one(self, rank):
        """Sends SIGTERM to a rank in the middle of a run; rank -1: to their parent. Returns the exit code, and stderr."""
        for _ in range(20):  # a few steps may be over before the signal arrives
            self.clear("stopped")
            process = self.start("stopped", save="never")
            self.wait_for_step(process, "stopped", 2)
            ranks = [process.pid] if rank < 0 else children(process)[rank:]
            if ranks:
                os.kill(ranks[0], signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            if process.returncode:
                break
        return process.returncode, err

    def test_a_signal_to_any_rank_stops_all_with_a_checkpoint(self):
        whole = self.whole("--gpus", "1")
        for rank in range(-1, 4) if SLOW else (-1, 0, 2):
            code, err = self.signal_one(rank)
            self.assertEqual(code, STOPPED, err)
            self.assertEqual(self.checkpoints("stopped"), [len(self.logged("stopped", "step"))])
            self.go_on_from("stopped", whole)

    def test_a_killed_rank_ends_all_and_the_same_command_goes_on(self):
        """At any moment from the start of the processes to the last file: in steps, in saves, between both."""
        whole = self.whole("--gpus", "1")
        begin = time.monotonic()
        self.succeed(*self.command("unkilled", save="1"))
        seconds = time.monotonic() - begin
        seed = int(os.environ.get("OT_TEST_SEED", random.randrange(1 << 32)))
        draw = random.Random(seed)
        for number in range(40 if SLOW else 3):
            self.clear("killed")
            moment = draw.uniform(0, seconds)
            process = self.start("killed", save="1")
            time.sleep(moment)
            victims = children(process) if process.poll() is None else []
            victim = draw.randrange(len(victims)) if victims else None
            label = f"OT_TEST_SEED={seed}, kill {number}: child {victim} after {moment:.3f} of {seconds:.3f} s"
            print(label, file=sys.stderr)
            if victims:
                os.kill(victims[victim], signal.SIGKILL)
            _, err = process.communicate(timeout=60)
            if process.returncode != 0:
                self.assertIn("rank", err.decode(), label)
            self.go_on_from("killed", whole, label)

    def test_a_rank_that_dies_in_a_save(self):
        whole = self.whole("--gpus", "1")
        for name, calls in (("state-2.bin", "fsync:2"), ("state-1.bin", "truncate:2"), ("manifest.bin", "open:2"),
                            ("step-00000004", "rename:1")):
            self.clear("dies")
            process = self.start("dies", env=preload(f"kill:{calls}", name))
            _, err = process.communicate(timeout=60)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("rank", err.decode(), name)
            self.assertIn(2, self.checkpoints("dies"), name)
            self.go_on_from("dies", whole)

    def test_a_full_disk_on_one_rank_costs_one_checkpoint(self):
        whole = self.whole("--gpus", "1")
        for name, calls in (("state-2.bin", "fsync"), ("state-3.bin", "open"), ("manifest.bin", "fsync")):
            self.clear("full")
            result = self.succeed(*self.command("full", "--keep", "9"), env=preload(f"enospc:{calls}:1", name))
            self.assertIn("could not save the checkpoint of step 2: rank", result.err)
            self.assertEqual(self.checkpoints("full"), [4, 6, 8], name)
            self.assertEqual(glob.glob(self.path("full/checkpoints/*.partial")), [])
            self.verify("full")
            self.check_equal("full", whole)

    def test_a_removal_that_fails_once(self):
        """Rank 0 could not remove the checkpoint of step 2. Before the save of step 6 all ranks make place again."""
        whole = self.whole("--gpus", "1")
        env = preload("eio:unlink:1", "/removal/checkpoints/step-00000002/")
        result = self.succeed(*self.command("removal", "--gpus", "2", *self.places["nvme"]), env=env)
        self.assertEqual(len(re.findall("warning: .*step-00000002.*: Input/output error", result.err)), 1, result.err)
        self.assertEqual(self.logged("removal", "checkpoint"), [2, 4, 6, 8])
        self.check_equal("removal", whole)
        self.check_tidy("removal")

    def test_what_all_ranks_can_save_after_an_error(self):
        """Rank 0 cannot write the log, or the model: all ranks save their state before they end."""
        for fault, name in (("enospc:write:4+", "log.jsonl"), ("enospc:any:1+", "model.safetensors")):
            self.clear("error")
            result = program.run(*self.command("error", "--gpus", "2", save="never"), env=preload(fault, name))
            self.assertEqual(result.code, 5, result.err)
            step = self.checkpoints("error")[-1]
            path = self.path(f"error/checkpoints/step-{step:08}")
            self.assertRegex(result.err, f"{name}: .*No space left on device; step {step} is saved; "
                                         f"resume from it with --resume {path}\n$")
            self.succeed(*self.command("error"))
            self.check_model("error")

    def test_a_stop_whose_checkpoint_fails(self):
        for _ in range(20):  # the run may be over before the signal arrives
            self.clear("place")
            process = self.start("place", "--gpus", "2", save="never", env=preload("eio:fsync:1+", "/place/checkpoints/step"))
            self.wait_for_step(process, "place", 2)
            code, err = self.end_by(process, signal.SIGTERM)
            if code:
                break
        self.assertEqual(code, 5, err)
        step = len(self.logged("place", "step"))
        rescued = self.path(f"place.rescued/step-{step:08}")
        self.assertIn(f"Input/output error; step {step} is saved; resume from it with --resume {rescued}", err)
        self.succeed(*self.command("place", "--gpus", "1", "--resume", rescued))
        self.check_model("place")


if __name__ == "__main__":
    if not FAULTS:
        del Ends.test_a_rank_that_dies_in_a_save, Ends.test_a_full_disk_on_one_rank_costs_one_checkpoint
        del Ends.test_a_removal_that_fails_once
        del Ends.test_what_all_ranks_can_save_after_an_error, Ends.test_a_stop_whose_checkpoint_fails
    program.main()
