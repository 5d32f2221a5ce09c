"""--cache: a run with its rows in files is the run with its rows in memory, and the second start reads no row."""

import glob
import os

import program
from program import SMALL, read_bytes, sql_rows, write_rows


class Cache(program.ProgramTest):
    def command(self, out, *more, rows=None):
        return ["train", "--no-forecast", *SMALL, "--micro-batch", "2", "--steps", "6", "--data", rows or self.rows,
                "--out", self.path(out), *more]

    def cached(self, name="rows"):
        return [path for path in glob.glob(self.path(f"{name}/*")) if os.path.isdir(path)]

    def same(self, one, other):
        self.assertEqual(read_bytes(self.path(f"{one}/model.safetensors")), read_bytes(self.path(f"{other}/model.safetensors")))

    def test_the_result_has_the_same_bits(self):
        self.succeed(*self.command("memory"))
        made = self.succeed(*self.command("made", "--cache", self.path("rows")))
        found = self.succeed(*self.command("found", "--cache", self.path("rows")))
        for out in "made", "found":
            self.same("memory", out)
        self.assertEqual(len(self.cached()), 1)
        for result in made, found:
            self.assertIn(f"\n        tokens in {self.path('rows')}: ", result.err)
        self.assertFalse(os.path.exists(self.path("memory.rows")))  # these rows are few
        ranks = self.succeed(*self.command("ranks", "--cache", self.path("shared"), "--device", "cpu", "--gpus", "2",
                                           "--shard", "stages"))
        self.assertEqual(len(self.cached("shared")), 1, ranks.err)
        self.same("memory", "ranks")
        # A run that began with its rows in memory goes on with a cache.
        self.succeed(*self.command("half", "--schedule", "constant", "--warmup", "0", "--save-end", "--save-every", "never"))
        self.succeed(*self.command("half", "--resume-with", "steps=9", "--cache", self.path("rows")))
        self.succeed(*self.command("whole", "--schedule", "constant", "--warmup", "0", "--steps", "9"))
        self.same("half", "whole")

    def test_held_out_rows_and_evaluations(self):
        other = write_rows(self.path("other.jsonl"), sql_rows(70)[60:])
        words = ["--eval-data", other, "--eval-every", "3"]
        self.succeed(*self.command("memory-eval", *words))
        for _ in range(2):
            self.succeed(*self.command("cached-eval", *words, "--cache", self.path("both"), "--resume", "never"))
        self.assertEqual(len(self.cached("both")), 2)
        evals = [[event["loss"] for event in self.log(out) if event["event"] == "eval"] for out in ("memory-eval", "cached-eval")]
        self.assertEqual(*evals)

    def test_a_damaged_row_ends_the_run(self):
        self.succeed(*self.command("first", "--cache", self.path("hurt")))
        path = f"{self.cached('hurt')[0]}/tokens"
        content = bytearray(read_bytes(path))
        content[len(content) // 2] ^= 1
        with open(path, "wb") as file:
            file.write(content)
        line = self.fail_with(3, "/tokens: damaged at row ", *self.command("second", "--quiet", "--cache", self.path("hurt"), "--steps", "40"))
        self.assertIn("remove the file and start again", line)
        os.unlink(path)
        self.succeed(*self.command("third", "--cache", self.path("hurt")))
        self.same("first", "third")

    def test_what_cannot_be_cached(self):
        rows = read_bytes(self.rows)
        result = self.succeed(*self.command("piped", "--cache", self.path("pipe"), rows="-"), stdin=rows)
        self.assertNotIn("\n        tokens in ", result.err)
        self.assertEqual(self.cached("pipe"), [])
        self.succeed(*self.command("dry", "--dry-run", "--cache", self.path("dry-rows")))
        self.assertFalse(os.path.exists(self.path("dry-rows")))
        self.fail_with(5, "cannot make and lock", *self.command("nowhere", "--quiet", "--cache", "/proc/none"))


if __name__ == "__main__":
    program.main()
