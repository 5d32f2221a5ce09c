"""The program on real models and data: the exact results that the project requires. Skipped if the real inputs are
absent."""

import json
import os
import sys

import program
from program import SHARED


def shared(name):
    return os.path.join(SHARED, name)


def load(name):
    with open(shared(name)) as file:
        return json.load(file)


class Stories(program.ProgramTest):
    def test_stories260k_says_what_llama2c_says(self):
        expected = load("models/stories260k/expected.json")
        count = str(len(expected["greedy_from_bos_ids"]) - 1)
        words = ["generate", shared("models/stories260k"), "-p", "", "--json", "--max-new-tokens", count]
        for more in ([], ["--gpu-mem", "2M"], ["--dtype", "fp32", "--threads", "1"]):
            event = self.succeed(*words, *more).json()
            self.assertEqual([1] + event["ids"], expected["greedy_from_bos_ids"])
        text = self.succeed("generate", shared("models/stories260k"), "-p", "", "--max-new-tokens", "300").out
        self.assertTrue(text.startswith(expected["greedy_text"]))

    def test_its_loss_on_that_text(self):
        expected = load("models/stories260k/expected.json")
        rows = program.write_rows(self.path("story.jsonl"), [{"text": expected["greedy_text"]}])
        words = ["eval", shared("models/stories260k"), "--data", rows, "--no-eos", "--json"]
        result = self.succeed(*words).json()
        losses = expected["loss_over_those_ids"]["per_position"]
        n = result["trained_tokens"]
        ids = self.succeed("tokenize", shared("models/stories260k"), "-p", expected["greedy_text"], "--json").json()
        self.assertEqual(ids, expected["greedy_from_bos_ids"][:n + 1])
        self.assertAlmostEqual(result["loss"], sum(losses[:n]) / n, delta=1e-4)

    def test_llama2_tokenizer_on_sql(self):
        golden = load("tokenizers/llama2/golden-sql.json")["ids"]
        with open(shared("sql/sql.jsonl")) as file:
            rows = [json.loads(line) for line, _ in zip(file, golden)]
        for i, field in enumerate(("question", "context", "answer")):
            lines = "\n".join(row[field] for row in rows)
            out = self.succeed("tokenize", "--tokenizer", shared("tokenizers/llama2/tokenizer.json"), "--json",
                               "--no-special", stdin=lines.encode()).out
            self.assertEqual([json.loads(line) for line in out.splitlines()], [ids[i] for ids in golden])


class Quantized(program.ProgramTest):
    def test_the_perplexity_of_stories_stays(self):
        """Rows are texts that the model itself wrote. Codes of 8 bits lose next to nothing; a model of
        656K parameters loses some per cent with 4 bits."""
        model = shared("models/story-llama")
        names = ["Lily", "Tom", "Anna", "Ben", "Mia", "Max", "Sara", "Tim", "Lucy", "Sam"]
        prompts = [f"{start} {name}" for name in names for start in ("One day,", "Once upon a time", "The dog saw", "Mom told")]
        texts = self.succeed("generate", model, "--json", "--temperature", "0.8", "--max-new-tokens", "120",
                             stdin="\n".join(prompts).encode()).events()
        rows = program.write_rows(self.path("stories.jsonl"), [{"text": prompt + text["text"]}
                                                               for prompt, text in zip(prompts, texts)])
        for to, most in (("gptq:8", 1.002), ("gptq:4", 1.15)):
            said = self.succeed("quantize", model, "--to", to, "--data", rows, "--seq-len", "128", "--eval-fraction", "30%",
                                "--out", self.path(to.replace(":", "")), "--json").json()
            self.assertLess(said["perplexity_before"], 40)
            self.assertLess(said["perplexity_after"], most * said["perplexity_before"])


class Sql(program.ProgramTest):
    def test_it_learns_sql_under_a_budget(self):
        with open(shared("sql/sql-eval.jsonl")) as file:
            held_out = program.write_rows(self.path("held.jsonl"), [json.loads(line) for line, _ in zip(file, range(100))])
        self.succeed("--model", shared("models/story-llama"), "--data", shared("sql/sql.jsonl"), "--gpu-mem", "64M",
                     "--seq-len", "256", "--tokens-per-step", "2Ki", "--steps", "40", "--eval-fraction", "0",
                     "--out", self.path("sql-out"))
        before = self.succeed("eval", shared("models/story-llama"), "--data", held_out, "--json").json()
        after = self.succeed("eval", self.path("sql-out"), "--data", held_out, "--json").json()
        self.assertEqual(set(after), {"loss", "perplexity", "accuracy", "trained_tokens", "rows"})
        self.assertEqual((after["rows"], after["trained_tokens"]), (100, before["trained_tokens"]))
        self.assertLess(after["loss"], 0.5 * before["loss"])
        text = self.succeed("generate", "--model", self.path("sql-out"), "-p", "CREATE TABLE", "--max-new-tokens", "8")
        self.assertTrue(text.out.strip())


if __name__ == "__main__":
    if not os.path.isdir(SHARED):
        sys.stderr.write(f"SKIP: the real inputs {SHARED} are absent\n")
        sys.exit(77)
    program.main()
