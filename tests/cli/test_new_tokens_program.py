"""--add-tokens and --add-special-tokens: ids and losses of transformers, what a run writes, resume, ranks, refusals."""

import json
import os
import shutil
import struct
import unittest

import program
import tiny_models

USAGE, INPUT = 2, 3
SEVERAL = ("--gpus", "2", "--device", "cpu")


def read_table(folder, name, item=4):
    """The rows of a tensor."""
    data, start, header = program.read_safetensors(os.path.join(folder, "model.safetensors"))
    begin, end = header[name]["data_offsets"]
    width = header[name]["shape"][-1]
    return [data[at:at + item * width] for at in range(start + begin, start + end, item * width)]


def write_tensors(path, tensors):
    """tensors: {name: (shape, fp32 bytes)}."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def pad(row):
    """bf16 values as fp32."""
    return b"".join(b"\0\0" + row[at:at + 2] for at in range(0, len(row), 2))


def round_f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def mean_row(table, pieces):
    """In fp32, one piece after the other."""
    width = len(table[0]) // 4
    total = (0.0,) * width
    for piece in pieces:
        total = [round_f32(a + b) for a, b in zip(total, struct.unpack(f"<{width}f", table[piece]))]
    return struct.pack(f"<{width}f", *(round_f32(value / len(pieces)) for value in total))


class NewTokens(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(os.path.join(program.GOLDEN, "new_tokens/cases.json"), encoding="utf-8") as file:
            cls.cases = json.load(file)
        for name in ("gemma", "gpt2", "t5"):
            tiny_models.write_model(cls.path(name), tiny_models.MODELS[name])
        shutil.copytree(os.path.join(program.GOLDEN, "peft/base"), cls.path("peft"))
        for name in ("gemma", "gpt2", "t5", "peft"):
            shutil.copy(os.path.join(program.GOLDEN, "tokenizers/byte_level.json"), cls.path(name) + "/tokenizer.json")
            with open(cls.path(name) + "/tokenizer_config.json", "w") as file:
                json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>",
                           "added_tokens_decoder": {"256": {"content": "<|bos|>", "special": True}}}, file)
        cls.pairs = program.write_rows(cls.path("pairs.jsonl"), [{"prompt": "a<sql>b", "completion": "<sql>c"}] * 4)

    def file_of(self, name, tokens):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(token) + "\n" for token in tokens)
        return self.path(name)

    def tune(self, model, out, *words, rows=None, steps="2"):
        return self.succeed("train", "--model", self.path(model), "--data", rows or self.rows, "--seq-len", "128", "--threads", "1",
                            "--tokens-per-step", "256", "--micro-batch", "1", "--steps", steps, "--no-forecast", "--out",
                            self.path(out), *words)

    def test_ids_and_losses_of_transformers(self):
        for title, case in self.cases.items():
            with self.subTest(title):
                rows = program.write_rows(self.path("text.jsonl"), [{"text": case["text"]}])
                self.tune(case["model"], "as-theirs", "--add-tokens", self.file_of("plain", case["plain"]), "--add-special-tokens",
                          self.file_of("special", case["special"]), "--lr", "0", "--steps", "1", "--resume", "never", rows=rows,
                          *("--eval-fraction", "0", "--dtype", "fp32"))
                out = self.path("as-theirs")
                with open(out + "/config.json") as file:
                    self.assertEqual(json.load(file)["vocab_size"], case["vocab"])
                loss = self.succeed("eval", out, "--data", rows, "--dtype", "fp32", "--json").json()["loss"]
                self.assertAlmostEqual(loss, case["loss"], delta=2e-6 * case["loss"])
                told = self.succeed("tokenize", "--model", out, "-p", case["text"], "--json").json()
                self.assertEqual(told, case["ids"])
                with open(out + "/tokenizer.json", encoding="utf-8") as file:
                    added = json.load(file)["added_tokens"]
                with open(out + "/tokenizer_config.json", encoding="utf-8") as file:
                    decoder = json.load(file)["added_tokens_decoder"]
                self.assertEqual({token["content"]: token["id"] for token in added if token["id"] not in (256, 257, 258)},
                                 {token: at for token, at in zip(case["plain"] + case["special"], case["new"]) if at != 257})
                self.assertEqual({token["content"] for token in added if token["special"]},
                                 {"<|bos|>", "<|eos|>", "<|pad|>", *case["special"]})
                self.assertEqual(decoder, {str(token.pop("id")): token for token in added})

    def test_rows_of_every_format(self):
        """From safetensors and GGUF, and of T5. A row that is not trained stays the mean."""
        words = ("--add-tokens", "<sql>,ab", "--freeze")
        self.tune("t5", "t5-out", *words, "embeddings", rows=self.pairs)
        before = read_table(self.path("t5"), "shared.weight")
        self.assertEqual(read_table(self.path("t5-out"), "shared.weight"),
                         before + [mean_row(before, b"<sql>"), mean_row(before, b"ab")])
        self.tune("peft", "peft-out", *words, "embeddings,head")
        self.succeed("export", self.path("peft"), "--gguf", "f32", "--out", self.path("gguf"))
        self.tune(next(f"gguf/{name}" for name in os.listdir(self.path("gguf")) if name.endswith(".gguf")), "gguf-out", *words, "embeddings,head")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            before, after = read_table(self.path("peft"), name), read_table(self.path("peft-out"), name)
            self.assertEqual(after[:259] + after[261:], before[:259] + before[261:], name)
            self.assertEqual(after[259:261], [mean_row(before, b"<sql>"), mean_row(before, b"ab")], name)
            self.assertEqual(read_table(self.path("gguf-out"), name), after, name)

    def test_rows_are_rounded_as_the_file(self):
        """The values of a bf16 model are the upper halves of fp32 values."""
        self.convert("gemma", "half")
        self.tune("half", "half-out", "--add-tokens", '["SELECT "]', "--freeze", "embeddings", "--dtype", "fp32", "--lr", "0",
                  "--eval-data", self.rows)
        last = [event["loss"] for event in self.log("half-out") if event["event"] == "eval"][-1]
        self.assertEqual(self.loss(self.path("half-out"), "--dtype", "fp32"), last)  # the run had the rounded row
        before = [pad(row) for row in read_table(self.path("half"), "model.embed_tokens.weight", 2)]
        row = read_table(self.path("half-out"), "model.embed_tokens.weight", 2)[259]
        exact = struct.unpack("<64I", mean_row(before, b"SELECT "))
        nearest = [(bits + 0x7fff + (bits >> 16 & 1)) >> 16 for bits in exact]
        self.assertEqual(list(struct.unpack("<64H", row)), nearest)
        self.assertTrue(any(bits & 0xffff for bits in exact))

    def convert(self, model, out):
        """Writes the model in bf16, cutting its fp32 values."""
        shutil.copytree(self.path(model), self.path(out))
        data, start, header = program.read_safetensors(self.path(model) + "/model.safetensors")
        values = b"".join(data[at + 2:at + 4] for at in range(start, len(data), 4))
        for about in header.values():
            about.update(dtype="BF16", data_offsets=[at // 2 for at in about["data_offsets"]])
        text = json.dumps(header).encode()
        with open(self.path(out) + "/model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + values)

    def test_a_run_that_stops_and_resumes(self):
        """The file of tokens counts by its content; other tokens are refused."""
        tokens = self.file_of("three", ["<sql>", "ab", "SELECT "])
        words = ("--save-every", "1", "--keep", "9", "--add-special-tokens", "<|x|>", "--rope-scaling", "linear:2")
        whole = self.tune("gemma", "whole", *words, "--add-tokens", tokens, steps="4").err
        self.assertIn("4 new tokens, from id 259 on", whole)
        first = self.path("whole/checkpoints/step-00000002")
        with open(first + "/checkpoint.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["model"]["added_tokens"], ["<sql>", "ab", "SELECT "])
        self.file_of("again", ["<sql>", "ab", "SELECT "])
        self.tune("gemma", "resumed", *words, "--add-tokens", self.path("again"), "--resume", first, steps="4")
        for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
            self.assertEqual(program.read_bytes(self.path("resumed/" + name)), program.read_bytes(self.path("whole/" + name)), name)
        run = ("train", "--model", self.path("gemma"), "--data", self.rows, "--resume", first, "--no-forecast", "--out", self.path("no"))
        self.fail_with(INPUT, "added_tokens is [\"<sql>\", \"ab\", \"SELECT \"] in the checkpoint and [\"<sql>\", \"ab\", \"other\"]",
                       *run, "--add-tokens", "<sql>,ab,other")
        self.succeed("export", first, "--out", self.path("exported"))
        with open(self.path("exported/config.json")) as file:
            self.assertEqual(json.load(file)["vocab_size"], 263)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            self.assertEqual(program.read_bytes(self.path("exported/" + name)), program.read_bytes(self.path("whole/" + name)), name)

    def test_the_bits_do_not_depend_on_homes(self):
        words = ("--add-tokens", '["<sql>", "SELECT "]', "--micro-batch", "1", "--tokens-per-step", "512", "--seq-len", "64")
        for out, model, lora in (("whole", "gpt2", ()), ("tied", "gpt2", ("--lora", "r=2")), ("untied", "peft", ("--lora", "r=2"))):
            name = "adapter_model.safetensors" if lora else "model.safetensors"
            self.tune(model, out + "0", *words, *lora)
            for i, more in enumerate([("--home", "weights=host,state=host", "--slots", "2"), ("--home", "weights=host,state=gpu"),
                                      ("--gpus", "2", "--shard", "stages", "--device", "cpu"), ("--recompute", "all")]):
                self.tune(model, f"{out}{i + 1}", *words, *lora, *more)
                self.assertEqual(program.read_bytes(self.path(f"{out}{i + 1}/{name}")), program.read_bytes(self.path(f"{out}0/{name}")),
                                 (out, more))
            for ranks in "1", "2":
                self.tune(model, f"{out}-{ranks}", *words, *lora, "--gpus", ranks, "--device", "cpu", "--deterministic", "world")
            self.assertEqual(program.read_bytes(self.path(f"{out}-1/{name}")), program.read_bytes(self.path(f"{out}-2/{name}")), out)

    def test_adapters(self):
        """A run with adapters trains the new rows alone. PEFT's names say so, a merge keeps the loss, and a run goes on."""
        for model, tables in (("gemma", ["model.embed_tokens"]), ("peft", ["model.embed_tokens", "lm_head"])):
            out = self.path("lora-" + model)
            words = ("--lora", "r=2", "--add-tokens", "singer,<sql>", "--add-special-tokens", ",".join(f"<|{i}|>" for i in range(5)))
            more = ("--lr", "1e-2", "--save-every", "1", "--keep", "9", "--eval-data", self.rows)
            text = self.tune(model, "lora-" + model, *words, *more).err
            self.assertIn("7 new tokens, from id 259 on · their rows are trained with the adapters", text)
            header = program.read_safetensors(out + "/adapter_model.safetensors")[2]
            self.assertEqual({name: about["shape"][0] for name, about in header.items() if ".lora_" not in name},
                             {f"base_model.model.{name}.token_adapter.trainable_tokens_delta": 7 for name in tables})
            with open(out + "/adapter_config.json") as file:
                config = json.load(file)
            self.assertEqual((config["modules_to_save"], config["trainable_token_indices"]),
                             ([], {name.split(".")[-1]: list(range(259, 266)) for name in tables}))
            told = self.succeed("tokenize", "--tokenizer", out + "/tokenizer.json", "-p", "<sql>singer", "--json").json()
            self.assertEqual(told, [256, 260, 259])
            loss = self.loss("--model", self.path(model), "--adapter", out)
            self.assertEqual([event["loss"] for event in self.log("lora-" + model) if event["event"] == "eval"][-1], loss)
            told = self.succeed("merge", self.path(model), out, "--out", self.path("merged")).out
            self.assertIn("21 adapters", told)
            self.assertNotIn("apart", told)
            self.assertAlmostEqual(self.loss(self.path("merged")), loss, delta=2e-6 * loss)
            shutil.rmtree(self.path("merged"))
            self.tune(model, "resumed-" + model, *words, *more, "--resume", out + "/checkpoints/step-00000001")
            self.succeed("export", out + "/checkpoints/step-00000002", "--out", self.path("exported-" + model))
            for other in ("resumed-", "exported-"):
                for name in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json"):
                    self.assertEqual(program.read_bytes(f"{self.path(other + model)}/{name}"),
                                     program.read_bytes(f"{out}/{name}"), name)
            self.fail_with(INPUT, "token_adapter.trainable_tokens_delta is trained too, and llama.cpp has no adapters of that kind",
                           "export", out, "--gguf", "f32", "--out", self.path("no"))
        text = self.tune("gemma", "lora-known", "--lora", "r=2", "--add-tokens", "a,b").err
        self.assertIn("no new token · 2 of the given ones in the vocabulary already", text)
        self.assertTrue(all(".lora_" in name for name in program.read_safetensors(self.path("lora-known/adapter_model.safetensors"))[2]))
        self.fail_with(USAGE, "merge the adapters first", "train", "--model", self.path("peft"), "--data", self.rows, "--out",
                       self.path("no"), "--adapter", os.path.join(program.GOLDEN, "peft/adapter"), "--add-tokens", "<b>")

    def test_adapters_with_resized_tables(self):
        """PEFT stores the tables of a base that was resized, and copies for a tied head. The rows take their places."""
        self.tune("gemma", "lora-small", "--lora", "r=2", "--add-tokens", "singer", "--lr", "1e-2")
        data, start, header = program.read_safetensors(self.path("lora-small/adapter_model.safetensors"))
        tensors = {name: (about["shape"], data[start + about["data_offsets"][0]:start + about["data_offsets"][1]])
                   for name, about in header.items()}
        table = b"".join(read_table(self.path("gemma"), "model.embed_tokens.weight")) + b"\0\0\x80\x3f" * 64
        for name in ("model.embed_tokens", "lm_head"):
            rows = f"base_model.model.{name}.token_adapter."
            tensors[rows + "base_layer.weight"] = [260, 64], table
            tensors[rows + "trainable_tokens_delta"] = tensors["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"]
        shutil.copytree(self.path("lora-small"), self.path("lora-whole"))
        write_tensors(self.path("lora-whole/adapter_model.safetensors"), tensors)
        loss = self.loss("--model", self.path("gemma"), "--adapter", self.path("lora-small"))
        self.assertEqual(self.loss("--model", self.path("gemma"), "--adapter", self.path("lora-whole")), loss)
        for out in "lora-small", "lora-whole":
            self.succeed("merge", self.path("gemma"), self.path(out), "--out", self.path("merged-" + out))
        self.assertEqual(program.read_bytes(self.path("merged-lora-small/model.safetensors")),
                         program.read_bytes(self.path("merged-lora-whole/model.safetensors")))
        name = "base_model.model.lm_head.token_adapter.trainable_tokens_delta"
        tensors[name] = [1, 64], tensors[name][1][4:] + b"\0\0\0\0"
        write_tensors(self.path("lora-whole/adapter_model.safetensors"), tensors)
        self.fail_with(INPUT, "trainable_tokens_delta differs from", "eval", "--model", self.path("gemma"), "--adapter",
                       self.path("lora-whole"), "--data", self.rows)

    def test_a_head_with_a_bias(self):
        """Its bias grows too. PEFT cannot train rows of such a head alone, so adapters train the tables."""
        golden = program.read_golden("model_codegen.bin")
        config = {key: value for key, value in json.loads(golden["config_json"][1]).items() if not key.endswith("_token_id")}
        os.mkdir(self.path("codegen"))
        write_tensors(self.path("codegen/model.safetensors"), {name[7:]: array for name, array in golden.items()
                                                               if name.startswith("weight.")})
        vocab = {chr(ord("A") + i): i for i in range(config["vocab_size"])}
        for name, value in (("config", config), ("tokenizer", {"model": {"type": "BPE", "vocab": vocab, "merges": []},
                                                               "added_tokens": []})):
            with open(self.path(f"codegen/{name}.json"), "w") as file:
                json.dump(value, file)
        rows = program.write_rows(self.path("letters.jsonl"), [{"text": "ABCDE" * 4}] * 8)
        words = ("--add-tokens", "AB,CAB", "--no-eos", "--eval-fraction", "0", "--seq-len", "16")
        self.tune("codegen", "codegen-out", *words, "--freeze", "embeddings,head", rows=rows)
        for name in ("transformer.wte.weight", "lm_head.weight", "lm_head.bias"):
            before, after = (read_table(self.path(folder), name) for folder in ("codegen", "codegen-out"))
            if name.endswith("bias"):
                before, after = ([table[0][at:at + 4] for at in range(0, len(table[0]), 4)] for table in (before, after))
            self.assertEqual(after, before + [mean_row(before, [0, 1]), mean_row(before, [2, 0, 1])], name)
        text = self.tune("codegen", "codegen-lora", *words, "--lora", "r=2", rows=rows).err
        self.assertIn("embedding and head are trained with the adapters", text)
        header = program.read_safetensors(self.path("codegen-lora/adapter_model.safetensors"))[2]
        self.assertEqual({name for name in header if ".lora_" not in name},
                         {f"base_model.model.{name}" for name in ("transformer.wte.weight", "lm_head.weight", "lm_head.bias")})

    def test_the_steps_of_peft(self):
        """A run that goes on from PEFT's directory has the losses of torch's AdamW, and its rows."""
        with open(os.path.join(program.GOLDEN, "new_tokens/losses.json")) as file:
            golden = json.load(file)
        for name, model in (("untied", "peft"), ("tied", "gemma")):
            case, out = golden[name], "on-" + name
            with open(self.path("peft/tokenizer.json"), encoding="utf-8") as file:
                tokenizer = json.load(file)
            for token in range(259, case["first"] + 3):
                tokenizer["added_tokens"].append({"id": token, "content": f"<{token}>", "special": False, "normalized": False,
                                                  "lstrip": False, "rstrip": False, "single_word": False})
            with open(self.path("more.json"), "w", encoding="utf-8") as file:
                json.dump(tokenizer, file)
            text = "".join(chr(token) if token < 256 else f"<{token}>" for token in case["ids"][1:-1])
            rows = program.write_rows(self.path("row.jsonl"), [{"text": text}])
            self.tune(model, out, "--adapter", os.path.join(program.GOLDEN, "new_tokens", name), "--tokenizer", self.path("more.json"),
                      "--eval-fraction", "0", "--schedule", "constant", "--warmup", "0", "--lr", "1e-2", "--dtype", "fp32",
                      "--tokens-per-step", "128", rows=rows, steps="4")
            losses = [event["loss"] for event in self.log(out) if event["event"] == "step"]
            self.assertEqual(len(losses), 4)
            for ours, theirs in zip(losses, case["losses"]):
                self.assertAlmostEqual(ours, theirs, delta=1e-5 * theirs)
            data, start, header = program.read_safetensors(self.path(out) + "/adapter_model.safetensors")
            begin, end = header["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"]["data_offsets"]
            for ours, theirs in zip(struct.unpack(f"<{(end - begin) // 4}f", data[start + begin:start + end]), case["rows"]):
                self.assertAlmostEqual(ours, theirs, delta=2e-5)

    def loss(self, *words):
        return self.succeed("eval", *words, "--data", self.rows, "--seq-len", "128", "--micro-batch", "1", "--json").json()["loss"]

    def test_plan(self):
        """The plan of a shape counts the rows; a text that is a token already needs none."""
        for model, given, rows in (("gemma", "<sql>,a,b2,\u0100", 2),  # U+0100 has the id 0
                                    ("peft", "<sql>,b2", 0), ("gemma/config.json", "<sql>,a,b2", 3)):
            plans = [self.succeed("plan", "--model", self.path(model), "--gpu", "h100", "--json", "--seq-len", "128", "--tokens-per-step", "512", *words).json()
                     for words in ((), ("--add-tokens", given))]
            self.assertEqual(plans[1]["model"]["parameters"] - plans[0]["model"]["parameters"], rows * 64, model)

    def test_refusals(self):
        def refuse(phrase, *words):
            self.fail_with(INPUT, phrase, "train", "--model", self.path("gemma"), "--data", self.rows, "--out", self.path("none"), *words)

        for content, phrase in ((b"a\nb\n\nc\n", "line 3: the token is empty"), (b"", "the file has no token"),
                                (b"x\n\xff\xfe\n", "line 2: the token is not UTF-8"), (b"ab\xc3\n", "line 1: the token is not UTF-8"),
                                (b"a\n\rb\n", "line 2: the token begins"), (b"a\0b\n", "line 1: the token has a NUL"),
                                (b'"a\\u0000"\n', "line 1: the token has a NUL"), (b'"a\n', None), (b'"a\\q"\n', "no JSON string"),
                                (b"new one\nx2\nnew one\n", "line 3: the token is given twice"), (b" x\n", "line 1: the token begins"),
                                (b"x" * 1025 + b"\n", "line 1: the token is longer"), (b"\n" * 1000000, "line 1: the token is empty"),
                                (b"".join(b"<%d>\n" % i for i in range(1000000)), "line 20001: more than 20000 tokens")):
            with open(self.path("hostile"), "wb") as file:
                file.write(content)
            if phrase:
                refuse(phrase, "--add-tokens", self.path("hostile"))
        for lora, train, phrase in (("targets=q_proj,lm_head", None, "adapter of lm_head: its new tokens are trained by themselves"),
                                    ("targets=q_proj", "embeddings", "train both or none as a whole")):
            self.fail_with(INPUT, phrase, "train", "--model", self.path("peft"), "--data", self.rows, "--out", self.path("none"),
                           "--add-tokens", "<a>", "--lora", lora, *(("--train", train) if train else ()))
        self.fail_with(USAGE, "--lora cannot train new tokens of an encoder-decoder", "train", "--model", self.path("t5"), "--data",
                       self.pairs, "--out", self.path("none"), "--add-tokens", "<a>", "--lora")
        refuse("there is no file nothing.txt", "--add-tokens", "nothing.txt")
        refuse("token 2 of the list: the token is empty", "--add-tokens", "a,,b")
        refuse("--add-special-tokens: token 1 of the list: the token is given twice", "--add-tokens", "<a>", "--add-special-tokens", "<a>")
        for word, phrase in (("--add_tokens", None), ("--resize-vocab", "--add-tokens"), ("--new-special-tokens", "--add-special-tokens"),
                             ("--additional-special-tokens", "--add-special-tokens"), ("--new-tokens", "--add-tokens")):
            if phrase:
                self.fail_with(USAGE, phrase, "train", "--model", self.path("gemma"), "--data", self.rows, word, "x")


main = program.main
if __name__ == "__main__":
    main()
