"""Whole runs of encoder-decoders: the golden models of scripts/golden/t5.py as directories of transformers. Needs no torch:
the losses are those of the golden files."""

import os
import shutil

import program
from program import write_rows
from test_family_program import (INPUT, LETTERS, ROWS, TOKENIZER, numbers, read_golden, read_tensors, write_adapters, write_json,
                                 write_model)
import json

USAGE = 2
CASES = ["t5", "t5_gated"]
END = len(LETTERS) - 1  # the last letter is the end token of models that have one


class Golden:
    """A golden model; with a case of t5_lora.bin, the results of adapters over it."""

    def __init__(self, case, of_adapters=None):
        arrays = read_golden(f"model_{case}.bin")
        adapted = read_golden("t5_lora.bin") if of_adapters else {}
        self.base, self.results = case, {name[len(of_adapters) + 1:]: array for name, array in adapted.items()
                                         if name.startswith(of_adapters + ".")}
        self.config = json.loads(arrays["config_json"][1])
        for key in list(self.config):
            if key in ("eos_token_id", "bos_token_id"):
                del self.config[key]
        self.weights = {name[7:]: array for name, array in arrays.items() if name.startswith("weight.")}
        tokens, targets, starts, first, end = (numbers(arrays[name], "i") for name in (
            "tokens", "targets", "row_start", "input_first", "input_end"))
        arrays |= self.results
        self.loss = numbers(arrays["loss"], "d")[0]
        n_inputs = numbers(arrays["n_inputs"], "q")[0]
        shape, data = arrays["logits"]
        self.rows, self.first = [], []
        for begin in sorted(set(starts[n_inputs:])):
            last = max(i for i in range(n_inputs, len(tokens)) if starts[i] == begin)
            self.rows.append((tokens[first[begin]:end[begin]], targets[begin:last + 1]))
            logits = numbers((None, data[begin * shape[1] * 4:(begin + 1) * shape[1] * 4]), "f")
            self.first.append(logits.index(max(logits)))

    def texts(self, names=("input", "target")):
        return [{name: "".join(LETTERS[t] for t in part) for name, part in zip(names, row)} for row in self.rows]


class Pairs(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden = {case: Golden(case) for case in CASES}
        for case, golden in cls.golden.items():
            write_model(cls.path(case), golden.config, golden.weights)
            write_rows(cls.path(case + ".jsonl"), golden.texts())
            write_rows(cls.path(case + "8.jsonl"), golden.texts() * 8)
        # With an end token, as real models have one.
        write_model(cls.path("ends"), cls.golden["t5"].config | {"eos_token_id": END}, cls.golden["t5"].weights)
        write_json(cls.path("ends/tokenizer.json"), TOKENIZER | {"added_tokens": [{
            "id": END, "content": LETTERS[END], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}]})

    def loss(self, model, data, *words):
        return self.succeed("eval", self.path(model), "--data", self.path(data), *ROWS, *words, "--json").json()["loss"]

    def tune(self, case, out, *words):
        return self.succeed("train", "--model", self.path(case), "--data", self.path(case + "8.jsonl"), *ROWS,
                            "--tokens-per-step", "64", "--no-forecast", "--eval-fraction", "0", "--out", self.path(out), *words)

    def test_losses_are_those_of_transformers(self):
        for case, golden in self.golden.items():
            self.assertAlmostEqual(self.loss(case, case + ".jsonl"), golden.loss, delta=2e-6, msg=case)
            # The same rows in other words, one in a sequence, packed otherwise.
            write_rows(self.path("other.jsonl"), golden.texts(("prompt", "completion")))
            for words in (["--pack", "no"], ["--seq-len", "46"]):
                loss = self.loss(case, "other.jsonl", *words)
                self.assertAlmostEqual(loss, golden.loss, delta=2e-6, msg=case)

    def test_the_first_generated_token(self):
        for case, golden in self.golden.items():
            for row, first in zip(golden.texts(), golden.first):
                told = self.succeed("generate", self.path(case), "--prompt", row["input"], "--max-new-tokens", "1", "--json").json()
                self.assertEqual(told["ids"], [first], case)
                told = self.succeed("generate", self.path(case), "--row", "--prompt", json.dumps({"input": row["input"]}),
                                    "--max-new-tokens", "1", "--json").json()
                self.assertEqual((told["ids"], told["prompt_tokens"]), ([first], len(row["input"])), case)

    def test_both_parts_end(self):
        """Input and target get the end token: the loss is that of rows that have it written out."""
        rows = self.golden["t5"].texts()
        rows = [row for row in rows if LETTERS[END] not in row["input"] + row["target"]]
        self.assertTrue(rows)
        write_rows(self.path("plain.jsonl"), rows)
        write_rows(self.path("written.jsonl"), [{name: text + LETTERS[END] for name, text in row.items()} for row in rows])
        told = self.succeed("eval", self.path("ends"), "--data", self.path("plain.jsonl"), "--seq-len", "64", "--json").json()
        loss = self.loss("t5", "written.jsonl", "--seq-len", "64")
        self.assertAlmostEqual(told["loss"], loss, delta=2e-6)
        told = self.succeed("generate", self.path("ends"), "--prompt", rows[0]["input"], "--max-new-tokens", "2", "--json").json()
        self.assertEqual(told["prompt_tokens"], len(rows[0]["input"]) + 1)

    def test_a_save_keeps_what_it_did_not_train(self):
        for case, golden in self.golden.items():
            self.tune(case, case + "-same", "--steps", "1", "--lr", "0")
            self.assertEqual(read_tensors(self.path(case + "-same")), golden.weights, case)
            told = json.loads(program.read_bytes(self.path(case + "-same/config.json")))
            self.assertEqual(told | {"dtype": None, "torch_dtype": None}, golden.config | {"dtype": None, "torch_dtype": None})

    def test_names_that_files_of_t5_have(self):
        """The embedding may be that of a stack, or of several; one bias is in files of t5-small, and nothing uses it."""
        golden = self.golden["t5"]
        unused = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight":
                  golden.weights["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]}
        rest = {name: array for name, array in golden.weights.items() if name != "shared.weight"} | unused
        table, names = golden.weights["shared.weight"], ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        for some in (names[:1], names[1:], names, ["shared.weight", *names, "lm_head.weight"]):
            shutil.rmtree(self.path("named"), ignore_errors=True)
            write_model(self.path("named"), golden.config, rest | {name: table for name in some})
            self.assertEqual(self.loss("named", "t5.jsonl"), self.loss("t5", "t5.jsonl"), some)
        shutil.rmtree(self.path("named"))
        write_model(self.path("named"), golden.config, rest | {"shared.weight": table, names[0]: (table[0], bytes(len(table[1])))})
        self.refuse(INPUT, "encoder.embed_tokens.weight differs from shared.weight, but a T5 has one embedding", "eval",
                    self.path("named"), "--data", self.path("t5.jsonl"), *ROWS)

    def test_training_and_going_on(self):
        for case, golden in self.golden.items():
            out, words = case + "-trained", ["--steps", "4", "--lr", "1e-2", "--save-every", "2", "--keep", "9"]
            self.tune(case, out, *words)
            self.assertLess(self.loss(out, case + ".jsonl"), golden.loss - 0.2, case)
            trained = read_tensors(self.path(out))
            self.tune(case, case + "-host", *words, "--home", "weights=host,state=host,activations=host")
            self.assertEqual(read_tensors(self.path(case + "-host")), trained, case)
            self.succeed("verify", self.path(out))
            shutil.rmtree(self.path(out + "/checkpoints/step-00000004"))
            for name in ("checkpoints/complete", "finished.json", "model.safetensors"):
                os.remove(self.path(f"{out}/{name}"))
            self.assertIn("step 2 of 4", self.tune(case, out, *words).err)
            self.assertEqual(read_tensors(self.path(out)), trained, case)

    def test_adapters_of_peft(self):
        for case, base in (("t5-all", "t5"), ("t5_gated-dora", "t5_gated")):
            golden, merged = Golden(base, case), case + "-merged"
            write_adapters(self.path(case), self.path(base), golden, "SEQ_2_SEQ_LM")
            self.assertAlmostEqual(self.loss(case, base + ".jsonl"), golden.loss, delta=2e-6, msg=case)
            self.succeed("merge", self.path(base), self.path(case), "--out", self.path(merged))
            # Each weight of the sum is rounded once, to fp32.
            self.assertAlmostEqual(self.loss(merged, base + ".jsonl"), golden.loss, delta=5e-6, msg=case)
            for row in golden.texts():
                texts = [self.succeed("generate", self.path(model), "--prompt", row["input"], "--max-new-tokens", "4", "--json")
                         .json()["ids"] for model in (case, merged)]
                self.assertEqual(*texts, case)

    def test_adapters_learn_and_go_on(self):
        for i, (case, lora, base) in enumerate([("t5", "r=3", "fp16"), ("t5_gated", "r=2,rslora,targets=q,v,lm_head,r:v=4", "nf4"),
                                                ("t5", "r=2,dora,dropout=0.2,targets=q,EncDecAttention.o,wo", "int8")]):
            out, words = f"lora{i}", ["--lora", lora, "--base-type", base, "--steps", "4", "--lr", "1e-2", "--save-every", "2"]
            self.tune(case, out, *words, "--keep", "9")
            trained, before = read_tensors(self.path(out), "adapter_model.safetensors"), self.loss(case, case + ".jsonl")
            config = json.loads(program.read_bytes(self.path(out + "/adapter_config.json")))
            self.assertEqual(config["task_type"], "SEQ_2_SEQ_LM")
            self.assertLess(self.loss(out, case + ".jsonl", "--base-type", base), before - 0.05, lora)
            self.tune(case, out + "-host", *words, "--home", "weights=host,state=host,activations=host")
            self.assertEqual(read_tensors(self.path(out + "-host"), "adapter_model.safetensors"), trained, lora)
            shutil.rmtree(self.path(out + "/checkpoints/step-00000004"))
            for name in ("checkpoints/complete", "finished.json", "adapter_model.safetensors"):
                os.remove(self.path(f"{out}/{name}"))
            self.assertIn("step 2 of 4", self.tune(case, out, *words, "--keep", "9").err)
            self.assertEqual(read_tensors(self.path(out), "adapter_model.safetensors"), trained, lora)

    def test_the_adapter_of_a_tied_head_is_not_merged(self):
        self.tune("t5", "head", "--lora", "r=2,targets=lm_head", "--steps", "1")
        self.refuse(INPUT, "cannot be merged: no config.json says of a T5", "merge", self.path("t5"), self.path("head"), "--out",
                    self.path("no"))

    def test_what_is_trained(self):
        """The biases of positions and the encoder's last norm are parts of their own."""
        weights = self.golden["t5"].weights
        norms = {name for name in weights if name.endswith("layer_norm.weight")}
        last = {name for name in weights if name.startswith("decoder.block.2.")}
        for i, (words, want) in enumerate([("--train=norms", norms), ("--train=last:1", last),
                                           ("--train=*relative_attention_bias*", {n for n in weights if "relative" in n})]):
            self.tune("t5", f"part{i}", "--steps", "1", "--lr", "1e-2", words)
            after = read_tensors(self.path(f"part{i}"))
            self.assertEqual({name for name, array in weights.items() if after[name] != array}, want, words)

    def test_bench(self):
        """Half of a row's 9 tokens are inputs, and the last micro-batch of a step has fewer rows than the others."""
        words = ["--seq-len", "9", "--tokens-per-step", "27", "--micro-batch", "2", "--mix", "all gpu", "--time-per-point", "20",
                 "--threads", "1", *program.SMALL_MACHINE]
        for case, some in (("t5", []), ("t5_gated", ["--lora", "r=2,targets=q,wo", "--base-type", "nf4"])):
            self.succeed("bench", self.path(case), *words, *some, "--out", self.path(case + "-bench"))
            points = json.loads(program.read_bytes(self.path(case + "-bench/bench.json")))["points"]
            self.assertEqual([(p["status"], p["micro_batches"]) for p in points], [("done", 2)], case)

    def test_random_weights(self):
        told = self.succeed("train", "--model", "t5-small", "--init", "random", "--tokenizer", self.path("t5/tokenizer.json"),
                            "--data", self.path("t5.jsonl"), *ROWS, "--tokens-per-step", "64", "--steps", "1",
                            "--no-forecast", "--eval-fraction", "0", "--out", self.path("new"))
        self.assertIn("60.5 M", told.err)
        self.assertEqual(json.loads(program.read_bytes(self.path("new/config.json")))["num_decoder_layers"], 6)

    def refuse(self, code, phrase, *words):
        told = program.run(*words)
        self.assertEqual(told.code, code, told.err)
        self.assertIn(phrase, told.err)

    def test_what_is_refused(self):
        train = ["train", "--model", self.path("t5"), "--data", self.path("t5.jsonl"), *ROWS, "--out", self.path("no")]
        self.refuse(USAGE, "'shared' is the name of no module that can have an adapter; this model has q, k, v, o, wi and wo in 5 "
                    "layers and lm_head", *train, "--lora", "r=2,targets=shared")
        self.refuse(INPUT, "shared.weight cannot be trained beside adapters", *train, "--lora", "r=2", "--train", "embeddings")
        self.refuse(INPUT, "the tied head of a T5", *train, "--lora", "r=2,dora,targets=lm_head")
        self.refuse(USAGE, "an encoder-decoder has no losses of its input", *train, "--train-on-prompt")
        self.refuse(INPUT, "llama.cpp has no relative_attention_max_distance other than 128", "export", self.path("t5"), "--gguf",
                    "f16", "--out", self.path("no.gguf"))
        self.refuse(USAGE, "an encoder-decoder answers one input", "generate", self.path("t5"), "--chat")
        for rows, phrase in [([{"text": "A"}], "rows of kind 'text' have none"),
                             ([{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}],
                              "chat template")]:
            write_rows(self.path("bad.jsonl"), rows)
            self.refuse(USAGE, phrase, "eval", self.path("t5"), "--data", self.path("bad.jsonl"), *ROWS)
        for key, value, phrase in [("decoder_start_token_id", 3, "decoder_start_token_id is 3"),
                                   ("feed_forward_proj", "gated-tanh", "feed_forward_proj 'gated-tanh'"),
                                   ("is_encoder_decoder", False, "is_encoder_decoder is false"),
                                   ("num_decoder_layers", 0, "num_decoder_layers"),
                                   ("d_kv", 129, "d_kv is 129"),
                                   ("relative_attention_num_buckets", 6, "must be a multiple of 4"),
                                   ("relative_attention_max_distance", 4, "must be more than half of the buckets")]:
            shutil.rmtree(self.path("odd"), ignore_errors=True)
            write_model(self.path("odd"), self.golden["t5"].config | {key: value}, self.golden["t5"].weights)
            self.refuse(INPUT, phrase, "eval", self.path("odd"), "--data", self.path("t5.jsonl"), *ROWS)


if __name__ == "__main__":
    program.main()
