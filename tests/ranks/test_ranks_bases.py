"""Ranks that were given different weights of one model, on two hosts with two revisions of it, say."""

import os
import shutil

import program
from launchers import run_commands, torchrun

USAGE = 2
WORDS = ["train", "--device", "cpu", "--threads", "1", "--micro-batch", "1", "--no-forecast", "--seq-len", "128",
         "--tokens-per-step", "512", "--steps", "2", "--eval-fraction", "0"]
KINDS = {"full": ["--shard", "full"], "state": ["--shard", "state"], "none": ["--shard", "none"],
         "lora": ["--lora", "r=4"], "qlora": ["--lora", "r=4", "--base-type", "nf4", "--dtype", "bf16"],
         "train": ["--train", "last:1"]}


class Bases(program.ProgramTest):
    """a/model and b/model have the same shape; copy/model is a/model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, seed in ("a", 1), ("b", 2):
            os.mkdir(cls.path(name))
            done = program.run("train", *program.SMALL, "--data", cls.rows, "--out", cls.path(f"{name}/model"), "--seed", seed,
                               "--steps", "1", "--no-forecast")
            assert done.code == 0, done.err
        shutil.copytree(cls.path("a"), cls.path("copy"))

    def command(self, base, *words):
        return [*WORDS, "--data", self.rows, "--model", self.path(f"{base}/model"), *words]

    def refuse(self, bases, phrase, *words):
        results = run_commands(torchrun, [self.command(base, *words) for base in bases])
        for result in results:
            self.assertEqual(result.code, USAGE, result.err)
            self.assertIn(phrase, result.err)
            self.assertIn("Copy the model of one host to the others", result.err)
            for base in bases:
                self.assertIn(self.path(f"{base}/model"), result.err)

    def test_two_revisions_are_refused(self):
        for kind, words in KINDS.items():
            with self.subTest(kind):
                self.refuse(["a", "b"], "the weights of --model differ between ranks (a checksum of a sample): rank 1 has "
                            "others than rank 0. rank 0 (host ", "--no-save", *words)

    def test_one_value_that_no_sample_has(self):
        shutil.copytree(self.path("a"), self.path("one"))
        path = self.path("one/model/model.safetensors")
        data, start, header = program.read_safetensors(path)
        begin, end = header["model.embed_tokens.weight"]["data_offsets"]
        changed = bytearray(data)
        at = start + begin + (end - begin) // 5 // 4 * 4
        self.assertNotEqual(changed[at], 77)
        changed[at] = 77  # the lowest bits of a value
        with open(path, "wb") as file:
            file.write(changed)
        for kind, words in KINDS.items():
            with self.subTest(kind):
                self.refuse(["a", "one"], "the weights of --model differ between ranks (a checksum of all values): rank 1",
                            "--no-save", *words)

    def test_three_ranks_with_two_revisions(self):
        results = run_commands(torchrun, [self.command(base, "--no-save") for base in ("b", "a", "copy")])
        for result in results:
            self.assertEqual(result.code, USAGE, result.err)
            self.assertIn("ranks 1 and 2 have others than rank 0", result.err)

    def test_copies_in_other_places_are_the_same(self):
        out = self.path("copies")
        for result in run_commands(torchrun, [self.command(base, "--out", out) for base in ("a", "copy")]):
            self.assertEqual(result.code, 0, result.err)

    def test_a_run_that_resumes(self):
        words = ["--out", self.path("resumes"), "--save-every", "1", "--keep", "2", "--schedule", "constant", "--warmup", "1"]
        for result in run_commands(torchrun, [self.command("a", *words)] * 2):
            self.assertEqual(result.code, 0, result.err)
        os.unlink(self.path("resumes/checkpoints/complete"))
        results = run_commands(torchrun, [self.command(base, *words, "--steps", "4") for base in ("a", "b")])
        self.assertIn("was made from other weights than --model", results[1].err)
        for result in results:
            self.assertNotEqual(result.code, 0)
            self.assertIn("was made from other weights", result.err)


if __name__ == "__main__":
    program.main()
