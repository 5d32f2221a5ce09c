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
        with open(os.path.join(program.GOLDEN, "new_tokens.json"), encoding="utf-8") as file:
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
        self.tune("half", "half-out", "--add-tokens", '["SELECT "]', "--freeze", "embeddings", "--dtype", "fp32")
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
        words = ("--save-every", "1", "--keep", "9", "--add-special-tokens", "<|x|>")
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
        self.assertEqual(program.read_bytes(self.path("exported/tokenizer.json")), program.read_bytes(self.path("whole/tokenizer.json")))

    def test_the_bits_do_not_depend_on_homes(self):
        words = ("--add-tokens", '["<sql>", "SELECT "]')
        self.tune("gpt2", "homes0", *words)
        for i, more in enumerate([("--home", "weights=host,state=host", "--slots", "2"),
                                  ("--gpus", "2", "--shard", "stages", "--device", "cpu")]):
            self.tune("gpt2", f"homes{i + 1}", *words, *more)
            self.assertEqual(program.read_bytes(self.path(f"homes{i + 1}/model.safetensors")),
                             program.read_bytes(self.path("homes0/model.safetensors")), more)

    def test_adapters(self):
        """A run with adapters trains the tables as a whole, and PEFT's names say so. A merge keeps the loss."""
        tables = {"gemma": ["model.embed_tokens"], "peft": ["model.embed_tokens", "lm_head"]}
        for model, names in tables.items():
            out = self.path("lora-" + model)
            words = ("--lora", "r=2", "--add-tokens", "singer,<sql>", "--add-special-tokens", ",".join(f"<|{i}|>" for i in range(5)))
            text = self.tune(model, "lora-" + model, *words, "--lr", "1e-2").err
            self.assertIn("7 new tokens, from id 259 on · embedding and head are trained with the adapters", text)
            data, start, header = program.read_safetensors(out + "/adapter_model.safetensors")
            for name in names:
                self.assertEqual(header[f"base_model.model.{name}.weight"]["shape"][0], 266)
            if model == "gemma":  # PEFT stores a shared table under both names
                begin, end = header["base_model.model.lm_head.weight"]["data_offsets"]
                first, last = header["base_model.model.model.embed_tokens.weight"]["data_offsets"]
                self.assertEqual(data[start + begin:start + end], data[start + first:start + last])
            with open(out + "/adapter_config.json") as file:
                self.assertEqual(json.load(file)["modules_to_save"], names)
            told = self.succeed("tokenize", "--tokenizer", out + "/tokenizer.json", "-p", "<sql>singer", "--json").json()
            self.assertEqual(told, [256, 260, 259])
            loss = self.loss("--model", self.path(model), "--adapter", out)
            self.succeed("merge", self.path(model), out, "--out", self.path("merged"))
            self.assertAlmostEqual(self.loss(self.path("merged")), loss, delta=1e-5)
            shutil.rmtree(self.path("merged"))
        self.fail_with(USAGE, "merge the adapters first", "train", "--model", self.path("peft"), "--data", self.rows, "--out",
                       self.path("no"), "--adapter", os.path.join(program.GOLDEN, "peft/adapter"), "--add-tokens", "<b>")

    def loss(self, *words):
        return self.succeed("eval", *words, "--data", self.rows, "--seq-len", "128", "--json").json()["loss"]

    def test_plan(self):
        """The plan of a shape counts the rows; a text that is a token already needs none."""
        for model, given, rows in (("gemma", "<sql>,a,b2", 2), ("peft", "<sql>,b2", 0), ("gemma/config.json", "<sql>,a,b2", 3)):
            plans = [self.succeed("plan", "--model", self.path(model), "--gpu", "h100", "--json", "--seq-len", "128", "--tokens-per-step", "512", *words).json()
                     for words in ((), ("--add-tokens", given))]
            self.assertEqual(plans[1]["model"]["parameters"] - plans[0]["model"]["parameters"], rows * 64, model)

    def test_refusals(self):
        def refuse(phrase, *words):
            self.fail_with(INPUT, phrase, "train", "--model", self.path("gemma"), "--data", self.rows, "--out", self.path("none"), *words)

        for content, phrase in ((b"a\nb\n\nc\n", "line 3: the token is empty"), (b"", "the file has no token"),
                                (b"x\n\xff\xfe\n", "line 2: the token is not UTF-8"), (b"a\0b\n", "line 1: the token has a NUL"),
                                (b'"a\\u0000"\n', "line 1: the token has a NUL"), (b'"a\n', None), (b'"a\\q"\n', "no JSON string"),
                                (b"new one\nx2\nnew one\n", "line 3: the token is given twice"), (b" x\n", "line 1: the token begins"),
                                (b"x" * 1025 + b"\n", "line 1: the token is longer"), (b"\n" * 1000000, "line 1: the token is empty"),
                                (b"".join(b"<%d>\n" % i for i in range(1000000)), "line 20001: more than 20000 tokens")):
            with open(self.path("hostile"), "wb") as file:
                file.write(content)
            if phrase:
                refuse(phrase, "--add-tokens", self.path("hostile"))
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
