"""--cache: a run with its rows in files is the run with its rows in memory, and the second start reads no row."""

import glob
import math
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

    def order_files(self, name="rows"):
        """The files of the order of rows: those of the caches in the caches of rows."""
        return sorted(path for path in glob.glob(self.path(f"{name}/*/**"), recursive=True)
                      if os.path.isfile(path) and os.path.basename(path) in ("held", "copies", "ranked", "first", "order", "packed"))

    def test_the_order_is_kept(self):
        """A second start finds the order of the rows, also in a later epoch; a mixture is found, too."""
        other = write_rows(self.path("others.jsonl"), sql_rows(90)[60:])
        words = ["--data", f"{self.rows}:0.6", "--data", f"{other}:0.4", "--schedule", "constant", "--warmup", "0"]
        train = ["train", "--no-forecast", *SMALL, "--micro-batch", "2", *words]
        cached = ["--cache", self.path("order")]
        self.succeed(*train, "--steps", "40", "--out", self.path("all-memory"))
        self.succeed(*train, "--steps", "40", "--out", self.path("all-cached"), *cached)
        self.same("all-memory", "all-cached")
        kept = self.order_files("order")
        self.assertEqual([os.path.basename(path) for path in kept].count("order"), 2, kept)  # of training and evaluation
        self.assertIn("copies", [os.path.basename(path) for path in kept])
        lasting = [path for path in kept if not path.endswith(("order", "packed"))]
        times = [os.stat(path).st_mtime_ns for path in lasting]
        steps = math.ceil(1 / next(event["epoch"] for event in self.log("all-cached") if event["event"] == "step"))
        self.succeed(*train, "--steps", f"{steps + 1}", "--out", self.path("parts"), "--save-end", "--save-every", "never", *cached)
        before = {path: os.stat(path).st_mtime_ns for path in self.order_files("order")}
        self.succeed(*train, "--resume-with", f"steps={steps + 2}", "--out", self.path("parts"), "--save-end", "--save-every", "never", *cached)
        self.assertEqual(before, {path: os.stat(path).st_mtime_ns for path in self.order_files("order")})
        self.succeed(*train, "--resume-with", "steps=40", "--out", self.path("parts"), *cached)
        self.same("all-memory", "parts")
        self.assertEqual(times, [os.stat(path).st_mtime_ns for path in lasting])

    def test_a_resumed_run_holds_the_same_rows_out(self):
        """By default at most 5,000 rows are held out, also by a run that is resumed."""
        with open(self.path("many.jsonl"), "w") as file:
            file.write("".join(f'{{"text": "{i % 97}"}}\n' for i in range(251000)))
        words = ["train", "--no-forecast", *SMALL, "--micro-batch", "2", "--data", self.path("many.jsonl"), "--out", self.path("many")]
        self.succeed(*words, "--steps", "1", "--save-end", "--save-every", "never")
        self.succeed(*words, "--resume-with", "steps=2")
        self.assertEqual([event["rows"] for event in self.log("many") if event["event"] == "eval"], [5000] * 3)

    def test_a_damaged_order_ends_the_run(self):
        self.succeed(*self.command("before", "--cache", self.path("broken")))
        path, = [path for path in self.order_files("broken") if path.endswith("/packed") and os.path.getsize(path) > 100]
        content = bytearray(read_bytes(path))
        content[len(content) // 2] ^= 1
        with open(path, "wb") as file:
            file.write(content)
        self.fail_with(3, "/packed: damaged; remove the file and start again",
                       *self.command("after", "--quiet", "--cache", self.path("broken")))
        os.unlink(path)
        self.succeed(*self.command("after", "--cache", self.path("broken")))
        self.same("before", "after")

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
