"""Rows from anywhere: tables, several files, directories, patterns and standard input train to the same bits as JSON
lines; shares mix sources, resume, and are refused where they have no effect."""

import csv
import json
import os
import shutil

import program
import zstd_frames
from program import SMALL, read_bytes, sql_rows, write_rows

USAGE, INPUT = 2, 3


def write_table(path, rows, delimiter):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)
        table.writeheader()
        table.writerows(rows)
    return path


class Sources(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.list = sql_rows(60)
        cls.list[3]["answer"] = "SELECT \"a, b\"\nFROM t\t-- it's"
        cls.lines = write_rows(cls.path("lines.jsonl"), cls.list)
        os.mkdir(cls.path("dir"))
        cls.first = write_rows(cls.path("dir/1.jsonl"), cls.list[:20])
        cls.second = write_table(cls.path("dir/2.csv"), cls.list[20:], ",")

    def words(self, out, *words, steps=3):
        return ("train", *SMALL, "--no-forecast", "--steps", str(steps), "--out", self.path(out), *words)

    def weights(self, out, *words, steps=3, **more):
        said = self.succeed(*self.words(out, *words, steps=steps), **more).err
        return read_bytes(self.path(out + "/model.safetensors")), said

    def test_all_ways_to_give_the_rows_train_to_the_same_bits(self):
        wanted, _ = self.weights("lines", "--data", self.lines)
        ways = {"csv": ["--data", write_table(self.path("rows.csv"), self.list, ",")],
                "tsv": ["--data", write_table(self.path("rows.tsv"), self.list, "\t")],
                "two": ["--data", self.first, "--data", self.second],
                "dir": ["--data", self.path("dir")],
                "pattern": ["--data", self.path("dir/[12].*")]}
        for name, words in ways.items():
            with self.subTest(name):
                self.assertEqual(self.weights("by-" + name, *words)[0], wanted)
        self.assertEqual(self.weights("input", "--data", "-", stdin=read_bytes(self.lines))[0], wanted)
        _, said = self.weights("by-dir", "--data", self.path("dir"), "--resume", "never")
        self.assertIn("2 files: 1.jsonl, 2.csv", said)

    def test_zstd(self):
        packed = zstd_frames.pack(read_bytes(self.lines))
        cases = [("cut.zst", packed[:-9], "cut.zst: the zstd stream ends too early, after line "),
                 ("bomb.zst", zstd_frames.pack(b'{"text": "') + zstd_frames.run_of(b"a", 2048),
                  "bomb.zst:1: a row of more than 256 MB"),
                 ("whole.zst", packed, None)]
        for name, data, phrase in cases:
            with open(self.path(name), "wb") as file:
                file.write(data)
            result = program.run(*self.words("zst", "--data", self.path(name), "--dry-run"))
            if "this build has no libzstd" in result.err:
                self.skipTest("this build has no libzstd, so .zst is not tested; scripts/install-packages installs it")
            self.assertEqual(result.code, INPUT if phrase else 0, result.err)
            self.assertIn(phrase or "whole.zst · 60 rows (sql)", result.err)

    def test_parquet(self):
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/parquet")
        words = ["--columns", "prompt=question,completion=answer", "--skip-bad", "--data"]
        wanted, _ = self.weights("of-lines", *words, os.path.join(golden, "flat.jsonl"))
        got, said = self.weights("of-parquet", *words, os.path.join(golden, "gzip.parquet"))
        self.assertEqual(got, wanted)
        self.assertIn("gzip.parquet · 90 rows (prompt)", said)
        self.fail_with(INPUT, "a Parquet file in a pipe cannot be read; give it as a file", *self.words("no", *words, "-"),
                       stdin=read_bytes(os.path.join(golden, "gzip.parquet")))

    def test_the_first_rows_without_duplicates(self):
        rows = [{**row, "question": f"{i}. {row['question']}"} for i, row in enumerate(self.list)]
        twice = write_rows(self.path("twice.jsonl"), [rows[0], *rows[:8], *rows[4:30], {"bad": 1}])
        few, rest = (write_rows(self.path(name), some) for name, some in (("few.jsonl", rows[:12]), ("rest.jsonl", rows[40:52])))
        whole = write_rows(self.path("whole.jsonl"), [rows[3], *rows[40:]])
        wanted, _ = self.weights("few", "--data", few, "--data", rest)
        got, said = self.weights("first", "--data", twice, "--data", whole, "--max-rows", "12", "--dedup")
        self.assertEqual(got, wanted)
        self.assertIn("30 rows (sql) · 0 dropped · 0 truncated · 6 duplicates · --max-rows 12 reached", said)
        judge = ("eval", self.path("few"), "--seq-len", "128", "--data")
        self.assertEqual(self.succeed(*judge, twice, "--max-rows", "12", "--dedup").out, self.succeed(*judge, few).out)

    def test_the_paragraphs_of_a_text(self):
        with open(self.path("plays.txt"), "w") as file:
            file.write("\n\n".join(f"FIRST\nIt is {i} o'clock." for i in range(12)))
        words = ["--data", self.path("plays.txt"), "--dry-run"]
        for by, rows in (("paragraph", 12), ("line", 24), ("document", 1)):
            said = self.succeed(*self.words("text", *words, "--text-by", by, "--eval-fraction", "0")).err
            self.assertIn(f"plays.txt · {rows} rows (text)", said)
        self.fail_with(USAGE, "--text-by has no effect: no file", *self.words("text", "--data", self.lines, "--text-by", "line"))

    def test_a_text_is_one_row_in_pieces(self):
        with open(self.path("book.txt"), "w") as file:
            file.write("It was a dark and stormy night. " * 200)
        _, said = self.weights("book", "--data", self.path("book.txt"), "--eval-fraction", "0")
        self.assertIn("book.txt · 1 rows (text) · 0 dropped · 0 truncated · 1 split", said)

    def test_shares_resume_to_the_same_bits(self):
        mix = ["--data", self.first + ":0.8", "--data", self.second + ":0.2", "--save-every", "2",
               "--schedule", "constant", "--warmup", "0"]
        wanted, said = self.weights("whole", *mix, steps=4)
        self.assertRegex(said, r"80\.0 %  \S*1\.jsonl · 4\d rows an epoch, from (\d+) of its \1\n")
        self.assertRegex(said, r"20\.0 %  \S*2\.csv · 1\d rows an epoch, from 1\d of its \d+\n")
        self.weights("cut", *mix, steps=2)
        go_on = "--resume", self.path("cut/checkpoints")
        again, _ = self.weights("cut", *mix, *go_on, steps=4)
        self.assertEqual(again, wanted)
        self.fail_with(INPUT, "1.jsonl and 1 more", *self.words("cut", *go_on, "--data", self.first + ":0.5",
                                                               "--data", self.second + ":0.5", steps=6))
        run = json.loads(read_bytes(self.path("whole/run.json")))
        self.assertEqual(run["data"], [self.first + ":0.8", self.second + ":0.2"])
        config = self.path("config.json")
        with open(config, "w") as file:
            json.dump({"data": run["data"], "save-every": 2, "schedule": "constant", "warmup": 0}, file)
        self.assertEqual(self.weights("config", "--config", config, steps=4)[0], wanted)

    def test_what_has_no_effect_or_cannot_be_is_refused(self):
        one, two = self.first, self.second
        cases = [(["--data", one + ":0.5", "--data", two], USAGE, "2.csv has no share, but another --data has one"),
                 (["--data", one + ":0.5"], USAGE, "a share has no effect with a single --data"),
                 (["--data", one, "--data", two, "--mix-by", "tokens"], USAGE, "--mix-by has no effect without shares"),
                 (["--data", one + ":0", "--data", two + ":1"], USAGE, "a share must be above 0"),
                 (["--data", one, "--data", one], USAGE, "is given twice"),
                 (["--data", self.path("none-*")], INPUT, "no file matches this pattern"),
                 (["--data", "-", "--show-sample"], USAGE, "--show-sample reads its rows again"),
                 (["--data", "-"], INPUT, "-: the file is empty")]
        for words, code, phrase in cases:
            with self.subTest(words=words):
                self.fail_with(code, phrase, *self.words("bad", *words))
                self.assertFalse(os.path.exists(self.path("bad")))
        ranks = program.run(*self.words("bad", "--data", "-", "--gpus", "2", "--device", "cpu"))
        self.assertEqual(ranks.code, USAGE, ranks.err)
        self.assertIn("error: --data -: several ranks cannot share standard input", ranks.err)
        self.weights("model", "--data", one)
        judge = ("eval", self.path("model"), "--seq-len", "128", "--data")
        self.fail_with(USAGE, "no effect on an evaluation", *judge, one + ":1", "--data", two + ":1")
        self.assertEqual(self.succeed(*judge, self.path("dir")).out, self.succeed(*judge, self.lines).out)

    def test_the_default_name_of_out(self):
        for data, name in ((self.path("dir") + "/", "dir"), (self.path("dir/*.jsonl"), "rows"), ("-", "rows")):
            with self.subTest(data):
                self.succeed("train", *SMALL, "--no-forecast", "--steps", "1", "--data", data, cwd=self.folder,
                             stdin=read_bytes(self.lines))
                shutil.rmtree(self.path("out/tiny-test-" + name))


if __name__ == "__main__":
    program.main()
