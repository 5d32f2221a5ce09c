"""offload-train plan: models that are not on this machine, under the names that people give them, and their rows."""

import json
import os
import re
import shutil

import plan_test
import program

INPUT = 3
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/tokenizers/byte_level.json")


class Models(plan_test.PlanTest):
    def test_models_from_a_config_alone(self):
        self.train("model", "--steps", "1")
        os.mkdir(self.path("bare"))
        config = program.read_bytes(self.path("model/config.json"))
        with open(self.path("bare/config.json"), "wb") as file:
            file.write(config)
        sizes = {self.answer("plan", "--model", model, "--gpu", "rtx3060")["model"]["parameters"]
                 for model in ("tiny-test", self.path("bare"), self.path("bare/config.json"))}
        self.assertEqual(sizes, {123200})

    def test_rows_are_counted_as_in_a_run(self):
        rows = self.path("rows.jsonl")
        with open(rows, "w") as file:
            for i in range(300):
                file.write(json.dumps({"question": f"How many {i}?", "context": "CREATE TABLE t (a INT)", "answer": "SELECT " + "a, " * (i % 9) + "1"}) + "\n")
        words = ["--model", "tiny-sql", "--data", rows, "--seq-len", "128", "--epochs", "2"]
        planned = self.succeed("plan", *words, "--device", "cpu", "--gpu-mem", "64M", "--host-mem", "64M", "--json").json()["run"]
        run = self.succeed(*words, "--init", "random", "--dry-run", "--no-forecast", "--device", "cpu")
        steps = int(re.search(r"= ([\d,]+) steps", run.out + run.err)[1].replace(",", ""))
        self.assertEqual(planned["steps"], steps)
        self.assertEqual(planned["rows"], 294)  # 2 % are held out for evaluation
        self.assertEqual((planned["evals"], planned["saves"]), (3, 0))  # before step 1 and after each epoch
        words += ["--device", "cpu", "--gpu-mem", "64M", "--host-mem", "64M", "--eval-every", "1"]
        text = self.succeed("plan", *words).out
        often = self.succeed("plan", *words, "--json").json()
        run, step = often["run"], often["prediction"]["step_seconds"]
        self.assertEqual(run["evals"], steps + 1)
        self.assertGreater(min(run["eval_seconds"], run["sample_seconds"], run["result_seconds"]), 0)
        self.assertAlmostEqual(run["seconds"], steps * step + run["evals"] * run["eval_seconds"] + run["sample_seconds"] + run["result_seconds"], delta=1e-6)
        self.assertRegex(text, rf"\nrun     {steps} steps · .*, with {steps + 1} evaluations of \S+")

    def test_no_more_rows_are_held_out_of_large_data(self):
        rows = self.path("many.jsonl")
        with open(rows, "w") as file:
            file.write("".join(json.dumps({"text": f"{i % 97}"}) + "\n" for i in range(251000)))
        words = ["--model", "tiny-sql", "--gpu", "h200", "--data", rows, "--epochs", "1", "--tokens-per-step", "2M"]
        for more, trained in ([], 246000), (["--eval-fraction", "2%"], 245980):
            self.assertEqual(self.answer("plan", *words, *more)["run"]["rows"], trained)

    def test_tokens_are_estimated_without_the_tokenizer(self):
        """By the bytes of the rows: so many a token as tokenizers of this size have. The answer says so."""
        rows = self.path("rows.jsonl")
        with open(rows, "w") as file:
            for i in range(300):
                file.write(json.dumps({"prompt": f"How many lie in drawer {i % 90 + 10}? ", "completion": "x" * 170}) + "\n")
        words = ["--gpu", "h200", "--data", rows, "--epochs", "1", "--tokens-per-step", "2k"]
        exact = self.answer("plan", "--model", "tiny-sql", "--seq-len", "512", *words)["run"]
        self.assertNotIn("assumed_bytes_per_token", exact)
        for model, per_token in (("llama-7b", 3.0), ("Qwen/Qwen3-8B", 3.7), ("gpt2", 3.5), ("meta-llama/Llama-2-7b-chat-hf", 3.0)):
            text, answer = self.plan("plan", "--model", model, *words)
            run = answer["run"]
            self.assertEqual((run["rows"], run["assumed_bytes_per_token"]), (294, per_token))
            self.assertAlmostEqual(run["row_tokens"] * per_token / exact["row_tokens"], 1, delta=0.01)
            self.assertIn(f"The model's tokenizer is not here. Its tokens are estimated, at {per_token} bytes a token; --tokenizer FILE", text)
        counted = self.answer("plan", "--model", "llama-7b", "--tokenizer", TOKENIZER, *words)["run"]
        self.assertNotIn("assumed_bytes_per_token", counted)
        self.train("whole", "--steps", "1")
        self.assertNotIn("assumed_bytes_per_token", self.answer("plan", "--model", self.path("whole"), "--seq-len", "128", *words)["run"])
        os.makedirs(self.path("alone"))
        shutil.copy(self.path("whole/config.json"), self.path("alone/config.json"))
        for model in ("alone", "alone/config.json"):  # its 384 tokens are about bytes
            self.assertEqual(self.answer("plan", "--model", self.path(model), "--seq-len", "128", *words)["run"]["assumed_bytes_per_token"], 1)

    def test_models_by_the_names_that_people_give_them(self):
        for name, preset in (("meta-llama/Meta-Llama-3-8B", "llama-3-8b"), ("Qwen/Qwen3-8B", "qwen3-8b"), ("Llama-3.1-8B", "llama-3.1-8b"),
                             ("llama13b", "llama-13b"), ("unsloth/Llama-3.1-8B-Instruct", "llama-3.1-8b")):
            words = ["--gpu", "b200", "--tokens-per-step", "8k"]
            text, answer = self.plan("plan", "--model", name, *words)
            self.assertIn(f"model   {name} (preset {preset}) · ", text)
            answer.pop("options"), answer["model"].pop("name")
            want = self.answer("plan", "--model", preset, *words)
            want.pop("options"), want["model"].pop("name")
            self.assertEqual(answer, want)
        self.fail_with(INPUT, "'hf download some/model config.json'", "plan", "--model", "some/model", "--gpu", "h200")


if __name__ == "__main__":
    program.main()
