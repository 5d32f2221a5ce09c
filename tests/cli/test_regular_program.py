"""Regularisers: a run with all of them has the same bits on several placements and stages and after a stop; each changes
training and not the evaluation before it; the plan and run.json show them; wrong values and models are named."""

import json
import os
import shutil

import program
from program import read_bytes, read_golden, write_rows
from test_family_program import LETTERS, TOKENIZER

USAGE = 2
REGULAR = {"--label-smoothing": "0.1", "--z-loss": "0.01", "--neftune": "5", "--router-aux-loss": "0.5"}
ALL = [word for pair in REGULAR.items() for word in pair] + ["--config-dropout"]


class Regular(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for case in ("mixtral", "t5"):
            config = json.loads(read_golden(f"model_{case}.bin")["config_json"][1])
            config = {key: value for key, value in config.items() if not key.endswith("_token_id")}
            config["attention_dropout" if case == "mixtral" else "dropout_rate"] = 0.1 if case == "mixtral" else 0
            os.mkdir(cls.path(case))
            for name, content in (("config.json", config), ("tokenizer.json", TOKENIZER)):
                with open(cls.path(f"{case}/{name}"), "w") as file:
                    json.dump(content, file)
        texts = [{"text": "".join(LETTERS[i * j % 44] for j in range(5, 12 + i % 9))} for i in range(1, 41)]
        cls.rows_of = {"mixtral": write_rows(cls.path("texts.jsonl"), texts),
                       "t5": write_rows(cls.path("pairs.jsonl"), [{"prompt": t["text"], "completion": "AB"} for t in texts])}

    def words(self, out, *words, model="mixtral", steps=4):
        return ("train", "--model", self.path(model), "--init", "random", "--no-forecast", "--seq-len", "32", "--micro-batch",
                "1", "--tokens-per-step", "64", "--threads", "1", "--no-eos", "--device", "cpu", "--steps", str(steps),
                "--data", self.rows_of[model], "--eval-data", self.rows_of[model], "--eval-every", "4", "--out", self.path(out), *words)

    def run_of(self, out, *words):
        """The weights, the losses of the steps and of the evaluations, and what is printed."""
        result = self.succeed(*self.words(out, *words))
        with open(self.path(out + "/log.jsonl")) as file:
            events = [json.loads(line) for line in file]
        return (read_bytes(self.path(out + "/model.safetensors")),
                [(e["step"], e["loss"], e["grad_norm"]) for e in events if e["event"] == "step"],
                [e["loss"] for e in events if e["event"] == "eval"], result.err)

    def test_bits_do_not_depend_on_plan_stages_or_stops(self):
        whole = self.run_of("whole", *ALL, "--save-every", "2", "--keep", "9")
        self.assertIn("regular dropout of the config, label smoothing 0.1, z-loss 0.01, NEFTune 5, balancing loss 0.5", whole[3])
        for name, more in (("host", ["--home", "weights=host,state=host,activations=host", "--recompute", "all", "--rounds", "2"]),
                           ("stages", ["--gpus", "2", "--shard", "stages"]),
                           ("resumed", ["--resume", self.path("whole/checkpoints/step-00000002")])):
            with self.subTest(name):
                other = self.run_of(name, *ALL, *more)
                self.assertEqual(other[0], whole[0])
                self.assertEqual(other[1], whole[1][2:] if name == "resumed" else whole[1])
                self.assertEqual(other[2][-1], whole[2][-1])
        with open(self.path("whole/run.json")) as file:
            record = json.load(file)
        self.assertEqual([record[name[2:]] for name in REGULAR], [0.1, 0.01, 5, "0.5"])
        self.assertIs(record["config-dropout"], True)
        for words in (["--neftune", "4"], ["--label-smoothing", "0"], ["--router-aux-loss", "0.4"], ["--z-loss", "0"]):
            with self.subTest(words):
                result = program.run(*self.words("whole", *ALL, *words, steps=6))
                self.assertEqual(result.code, USAGE, result.err)
                self.assertIn(words[0], result.err.splitlines()[-1])

    def test_each_changes_training_alone(self):
        plain = self.run_of("plain")
        self.assertNotIn("regular", plain[3])
        seen = {plain[0]}
        self.assertIn("dropout 0.1 of config.json is not applied: add --config-dropout", plain[3])
        for name, *value in (*REGULAR.items(), ("--config-dropout",)):
            with self.subTest(name):
                other = self.run_of("one" + name, name, *value)
                seen.add(other[0])
                self.assertNotEqual(other[1][0][1], plain[1][0][1])
                self.assertEqual(other[2][0], plain[2][0])  # before step 1
        self.assertEqual(len(seen), 6)
        # The config says 0.001.
        self.assertEqual(self.run_of("bare", "--router-aux-loss")[:2], self.run_of("said", "--router-aux-loss", "0.001")[:2])

    def test_a_config_may_ask_for_the_balancing_loss(self):
        shutil.copytree(self.path("mixtral"), self.path("asking"))
        with open(self.path("mixtral/config.json")) as file:
            config = json.load(file)
        with open(self.path("asking/config.json"), "w") as file:
            json.dump(config | {"output_router_logits": True}, file)
        self.rows_of["asking"] = self.rows_of["mixtral"]
        result = program.run(*self.words("asking-out", model="asking"))
        self.assertEqual(result.code, USAGE, result.err)
        self.assertIn("add --router-aux-loss, or --router-aux-loss 0 for none", result.err.splitlines()[-1])
        self.succeed(*self.words("asking-out", "--router-aux-loss", "0", model="asking"))
        self.assertEqual(read_bytes(self.path("asking-out/model.safetensors")), self.run_of("unasked")[0])

    def test_faults_are_named(self):
        for phrase, words, model in (
                ("--neftune is not available for an encoder-decoder", ["--neftune", "5"], "t5"),
                ("--router-aux-loss has no effect here: the model has no experts", ["--router-aux-loss"], "t5"),
                ("--config-dropout has no effect here: the model's config has no dropout", ["--config-dropout"], "t5"),
                ("--config-dropout applies the dropouts of config.json", ["--dropout", "0.1"], "mixtral"),
                ("--neftune-noise-alpha; its name here is --neftune", ["--neftune-noise-alpha", "5"], "mixtral"),
                ("its name here is --router-aux-loss", ["--moe_aux_loss_coef", "0.1"], "mixtral"),
                ("--router-aux-loss has no effect here: its coefficient is 0", ["--router-aux-loss", "0"], "mixtral"),
                ("--router-aux-loss is 'nan'; it takes a number from 0 to 1000", ["--router-aux-loss", "nan"], "mixtral"),
                ("--router-aux-loss is '-1'", ["--router-aux-loss=-1"], "mixtral"),
                ("--neftune", ["--neftune", "nan"], "mixtral"), ("--neftune", ["--neftune=-1"], "mixtral"),
                ("--neftune", ["--neftune", "1e9"], "mixtral"), ("--z-loss", ["--z-loss", "inf"], "mixtral"),
                ("--label-smoothing", ["--label-smoothing", "1"], "mixtral"),
                ("--label-smoothing is 0.6, and at most 0.5 with --objective dpo",
                 ["--objective", "dpo", "--label-smoothing", "0.6"], "mixtral"),
                ("--z-loss has no effect with --objective dpo; it is for sft", ["--objective", "dpo", "--z-loss", "0.1"], "mixtral")):
            with self.subTest(words):
                result = program.run(*self.words("faults", *words, model=model))
                self.assertEqual(result.code, USAGE, result.err)
                self.assertIn(phrase, result.err.splitlines()[-1])


if __name__ == "__main__":
    program.main()
