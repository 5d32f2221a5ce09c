"""Judged answers: eval --generate and train --eval-generate, with --metric execution."""

import json
import sqlite3

import program
from program import write_rows

TABLES = ["singer", "song", "city", "team"]


def rows(n):
    """Rows with conditions, one of which cannot be judged. The model is too small to answer them well."""
    made = [{"question": f"Which {TABLES[i % 4]} has {10 + i % 3} points?",
             "context": f"CREATE TABLE {TABLES[i % 4]} (name TEXT, points INT)",
             "answer": f"SELECT name FROM {TABLES[i % 4]} WHERE points = {10 + i % 3}"} for i in range(n)]
    made[3]["context"] = "CREATE TABLE no (x INT)"
    return made


class Answers(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.answered = write_rows(cls.path("answered.jsonl"), rows(12))
        cls.said = cls.train(cls("test_a_run_judges_its_answers"), "m", "--steps", "150", "--eval-every", "75", "--lr", "0.01",
                             "--eval-data", cls.answered, "--eval-generate", "10", "--metric", "execution", "--eval-metric",
                             "execution", rows=cls.answered)

    def evaluate(self, *words, data=None):
        return self.succeed("eval", self.path("m"), "--data", data or self.answered, "--seq-len", "128", *words)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_a_run_judges_its_answers(self):
        evals = [event for event in self.read("m/log.jsonl") if event["event"] == "eval"]
        self.assertEqual([event["step"] for event in evals], [0, 75, 150])
        self.assertEqual([event["answered"] for event in evals], [10, 10, 10])
        self.assertEqual((evals[0]["exact_match"], evals[0]["equal_results"]), (0, 0))
        best = max(evals[1:], key=lambda event: event["equal_results"])
        self.assertGreater(best["equal_results"], 0)
        self.assertIn("result: best by execution", self.said.err)
        self.assertRegex(self.said.err, r"eval 75/150 loss .* · exact \d.* % · normalised .* · equal results .* %, valid SQL ")
        done = self.read("m/log.jsonl")[-1]
        self.assertEqual((done["best_eval_step"], done["best_execution"]), (best["step"], best["equal_results"]))
        # the result is the model of the best evaluation, or the last one if that is as good; eval judges its answers alike
        best = evals[-1] if evals[-1]["equal_results"] == best["equal_results"] else best
        found = self.evaluate("--generate", "10", "--metric", "execution", "--json").json()
        keys = ["answered", "exact_match", "normalised_match", "valid_sql", "equal_results", "by_kind", "not_judged", "variants"]
        self.assertEqual([found[key] for key in keys], [best[key] for key in keys])
        self.assertEqual(found["not_judged"], 1)
        self.assertEqual(sum(kind["judged"] for kind in found["by_kind"].values()), 9)
        self.assertGreaterEqual(found["variants_told_apart"], 0.9 * found["variants"])

    def test_answers_are_those_of_generate(self):
        """Answers of many rows, in groups, are the texts that each prompt gets alone. --failures has the wrong ones."""
        text = self.evaluate("--generate", "12", "--metric", "execution", "--failures", self.path("wrong.jsonl")).out
        self.assertRegex(text, r"12 answers · exact .* tok/s\n  simple +11 rows · equal results .*\n  1 rows are not judged")
        wrong = {failure["row"]: failure for failure in self.read("wrong.jsonl")}
        self.assertLess(len(wrong), 12)
        right = 0
        for i, row in enumerate(rows(12)):
            alone = self.succeed("generate", self.path("m"), "--row", "--max-new-tokens", "100", "-p",
                                 json.dumps({"question": row["question"], "context": row["context"]})).out[:-1] if i % 3 == 0 else None
            if i + 1 in wrong:
                failure = wrong[i + 1]
                self.assertEqual((failure["answer"], failure["kind"]), (row["answer"], "simple"))
                self.assertIn(row["question"], failure["prompt"])
                self.assertRegex(failure["why"], "^the answer (does not run|has another result): " if i != 3 else
                                 "^the row's own query does not run: SQLite says: no such table")
                if alone is not None:
                    self.assertEqual(alone[:len(failure["generated"])], failure["generated"])
            elif alone is not None:
                self.assertEqual(alone, row["answer"])
                right += 1
        self.assertGreater(len(wrong) + right, 0)

    def test_ranks_judge_alike(self):
        """Stages have the bits of one rank, in their answers too."""
        self.train("ranks", "--steps", "150", "--eval-every", "75", "--lr", "0.01", "--eval-data", self.answered, "--eval-generate",
                   "10", "--metric", "execution", "--gpus", "2", "--device", "cpu", "--shard", "stages", rows=self.answered)
        keys = ("step", "loss", "answered", "exact_match", "normalised_match", "valid_sql", "equal_results", "by_kind")
        evals = [[[event[key] for key in keys] for event in self.read(f"{run}/log.jsonl") if event["event"] == "eval"]
                 for run in ("m", "ranks")]
        self.assertEqual(evals[0], evals[1])

    def test_databases(self):
        folder = self.path("dbs/zoo")
        program.os.makedirs(folder)
        db = sqlite3.connect(folder + "/zoo.sqlite")
        db.executescript("".join(f"CREATE TABLE {table} (name TEXT, points INT); INSERT INTO {table} VALUES ('a', 10), ('b', 11);"
                                 for table in TABLES))
        db.close()
        data = write_rows(self.path("zoo.jsonl"), [{**row, "db_id": "zoo"} for row in rows(6)])
        found = self.evaluate("--generate", "6", "--metric", "execution", "--databases", self.path("dbs"), "--json", data=data).json()
        self.assertEqual((found["answered"], found["not_judged"], found["variants"]), (6, 0, 0))
        other = self.evaluate("--generate", "6", "--metric", "execution", "--databases", self.path("dbs"), "--json").json()
        self.assertEqual((other["not_judged"], other["by_kind"]), (6, {}))
        self.fail_with(2, "--databases /nowhere: there is no such directory", "eval", self.path("m"), "--data", data, "--generate",
                       "6", "--metric", "execution", "--databases", "/nowhere")

    def test_match(self):
        found = self.evaluate("--generate", "100", "--json").json()
        self.assertEqual(found["answered"], 12)
        self.assertNotIn("valid_sql", found)
        self.fail_with(5, "--failures /nowhere/at/all: cannot write there", "eval", self.path("m"), "--data", self.answered,
                       "--generate", "2", "--failures", "/nowhere/at/all")
        texts = write_rows(self.path("texts.jsonl"), [{"text": "to be or not to be"}] * 3)
        self.fail_with(3, "no row of the evaluation has a prompt to answer; --generate needs rows", "eval", self.path("m"),
                       "--data", texts, "--generate", "2")


if __name__ == "__main__":
    program.main()
