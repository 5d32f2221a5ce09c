"""What several ranks make of a model together, with eval: the bits of one rank, printed once by rank 0."""

import os
import shutil
import signal
import subprocess
import time

import program
import tiny_models
from launchers import run_commands, torchrun

USAGE, STOPPED_AT_ONCE, COMM_FAILED = 2, 8, 11
DEVICE = ["--device", "cpu", "--threads", "1"]
TRAINED = [*DEVICE, "--steps", "40", "--lr", "0.01"]
WAYS = {"auto": "none: each rank has all weights on its device", "none": "none: each rank has all weights on its device",
        "state": "state: each rank has all weights on its device", "stages": "stages: each rank has its layers on its device",
        "full": "full: the ranks stream weights from one copy in RAM",
        "full --share-weights no": "full: each rank has a part of the weights, and gathers the others"}


class Use(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls("test_loss").train("m", *TRAINED)

    def words(self, command, model="m", *words):
        data = {"eval": ["--data", self.rows, "--seq-len", "128", "--micro-batch", "1", "--json"]}[command]
        return [command, self.path(model), *data, *DEVICE, *words]

    def compare(self, command, model, ways, *words):
        """Each way says what one rank says. Returns that."""
        one = self.succeed(*self.words(command, model, *words)).out
        for way, ranks in ways:
            result = self.succeed(*self.words(command, model, *words, "--gpus", ranks, "--shard", *way.split()))
            self.assertEqual(result.out, one, (way, ranks))
            self.assertIn(f"shard   {WAYS[way]}\n", result.err)
        return one

    def test_loss(self):
        self.compare("eval", "m", [(way, 2) for way in WAYS] + [("none", 3), ("full --share-weights no", 3)])

    def test_weights_that_do_not_fit_the_device(self):
        """auto: generation takes stages if they fit, because its passes compute little for the weights that they read."""
        one = self.succeed(*self.words("eval", "m")).json()
        for phrase, more in (("none: each rank streams all weights", ["--gpu-mem", "5000K"]),
                             ("stages: each rank has its layers", ["--gpu-mem", "5200K", "--generate", 3])):
            result = self.succeed(*self.words("eval", "m", "--gpus", 2, *more))
            self.assertEqual({**result.json(), **one}, result.json())
            self.assertIn(f"shard   {phrase}", result.err)

    def test_adapters_and_pairs(self):
        self.train("lora", "--model", self.path("m"), "--init", "files", "--lora", "r=4", *TRAINED)
        self.compare("eval", "lora", [("stages", 2), ("full --share-weights no", 2)])
        tiny_models.write_model(self.path("t5"), tiny_models.MODELS["t5"])
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(self.path("m"), name), self.path("t5"))
        self.compare("eval", "t5", [("stages", 2), ("none", 2)])

    def test_judged_answers(self):
        """All ranks answer; rank 0 judges, and writes the failures."""
        files = []
        for ranks, way in (1, "auto"), (2, "none"), (2, "stages"), (3, "full"), (2, "full --share-weights no"):
            words = ["--generate", "7", "--failures", self.path("wrong.jsonl"), "--gpus", ranks, "--shard", *way.split()]
            found = self.succeed(*self.words("eval", "m", *words)).json()
            del found["generate_seconds"]
            files.append((found, program.read_bytes(self.path("wrong.jsonl"))))
            self.assertEqual(files[-1], files[0], (ranks, way))
        self.assertEqual(files[0][0]["answered"], 7)
        self.assertGreater(len(files[0][1]), 0)
        self.fail_with(5, "cannot write there", *self.words("eval", "m", "--generate", 2, "--failures", "/nowhere/x",
                                                            "--gpus", 2, "--quiet"))

    def test_more_rows_than_a_schedule_has_room_for(self):
        """A pass has one micro-batch, so an evaluation may be longer than any step."""
        rows = program.write_rows(self.path("many.jsonl"), [{"text": "a b c"}] * 4200)
        words = ["eval", self.path("m"), "--data", rows, "--seq-len", "8", "--micro-batch", "1", *DEVICE, "--json"]
        self.assertEqual(self.succeed(*words).json()["rows"], 4200)

    def test_ranks_that_differ(self):
        self.train("other", "--seed", "1", *TRAINED)
        few = program.write_rows(self.path("few.jsonl"), program.sql_rows(59))
        same = self.words("eval", "m")
        for phrase, other in (("the weights of --model differ between ranks", self.words("eval", "other")),
                              ("the evaluation data differs: rank 0 has 60 rows", [few if w == self.rows else w for w in same]),
                              ("--micro-batch differs: rank 0 has 1, rank 1 has 2", [*same, "--micro-batch", 2]),
                              ("--shard differs: rank 0 has auto, rank 1 has full", [*same, "--shard", "full"])):
            for result in run_commands(torchrun, [same, other]):
                self.assertEqual((result.code, result.out), (USAGE, ""), result.err)
                self.assertIn(phrase, result.err.splitlines()[-1])

    def test_refusals(self):
        for phrase, words in (("--gpus '0' is neither all nor a number", ["--gpus", 0]),
                              ("--share-weights yes has no effect with one rank", ["--share-weights", "yes"]),
                              ("contradict each other; use --shard full", ["--share-weights", "yes", "--shard", "none"]),
                              ("--node-rank has no effect without --nodes", ["--node-rank", 1]),
                              ("2 layers, too few for a stage on each of 3", ["--gpus", 3, "--shard", "stages", "--quiet"])):
            self.fail_with(USAGE, phrase, *self.words("eval", "m", *words))

    def test_a_rank_ends_early(self):
        rows = program.write_rows(self.path("long.jsonl"), program.sql_rows(20000))
        words = ["eval", self.path("m"), "--data", rows, "--seq-len", "128", *DEVICE, "--gpus", "2"]
        for victim, number, code, phrase in ((1, signal.SIGKILL, COMM_FAILED, "rank 1 .* is lost: "),
                                             (0, signal.SIGKILL, COMM_FAILED, "rank 0 was killed by signal 9"),
                                             (None, signal.SIGTERM, STOPPED_AT_ONCE, "stopped before the evaluation was done")):
            parent = subprocess.Popen([program.PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for line in parent.stderr:
                if line.startswith(b"shard "):
                    break
            with open(f"/proc/{parent.pid}/task/{parent.pid}/children") as file:
                children = [int(word) for word in file.read().split()]
            os.kill(parent.pid if victim is None else children[victim], number)
            begin = time.monotonic()
            out, err = parent.communicate(timeout=60)
            self.assertEqual((parent.returncode, out), (code, b""), err)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertRegex(err.decode(), f"error: {phrase}")


program.main()
