"""The built program with a model directory whose tokenizer is a SentencePiece model: training, evaluation, generation, the
saved result, export to GGUF, --tokenizer; and directories whose tokenizer is in a format that is not supported."""

import json
import os
import shutil
import struct

import program
from program import sql_rows, write_rows

INPUT = 3
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/tokenizers")
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 256,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 624,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "bos_token_id": 1,
          "eos_token_id": 2}


def gguf_scores(path):
    """The array tokenizer.ggml.scores: f32 values after its key, kind (array of f32) and length."""
    data = program.read_bytes(path)
    at = data.index(b"tokenizer.ggml.scores") + len("tokenizer.ggml.scores")
    kind, item, n = struct.unpack_from("<IIQ", data, at)
    assert (kind, item) == (9, 6)
    return struct.unpack_from(f"<{n}f", data, at + 16)


class SentencePiece(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.path("rows.jsonl"), sql_rows(40))
        cls.make("base")
        done = program.run("train", "--model", cls.path("base"), "--init", "random", "--data", cls.rows, "--out",
                           cls.path("made"), "--steps", "2", "--seq-len", "128", "--tokens-per-step", "512", "--threads", "1",
                           "--dtype", "fp32", "--no-forecast")
        assert done.code == 0, done.err
        cls.log = done.err + done.out

    @classmethod
    def make(cls, name, model="llama_bpe.model", file="tokenizer.model", **config):
        os.mkdir(cls.path(name))
        for key, value in {"config": CONFIG, "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
                                                                  "eos_token": "</s>", "chat_template": "x", **config}}.items():
            with open(os.path.join(cls.path(name), f"{key}.json"), "w") as out:
                json.dump(value, out)
        if model:
            shutil.copy(os.path.join(GOLDEN, model), os.path.join(cls.path(name), file))
        return cls.path(name)

    def result(self, command, model, *words):
        return self.succeed(command, model, "--dtype", "fp32", "--threads", "1", "--json", *words).json()

    def test_the_result_has_the_files_of_the_base(self):
        names = os.listdir(self.path("made"))
        self.assertIn("tokenizer.model", names)
        self.assertNotIn("tokenizer.json", names)
        for name in ("tokenizer.model", "tokenizer_config.json"):
            self.assertEqual(program.read_bytes(self.path("made/" + name)), program.read_bytes(self.path("base/" + name)))
        self.assertIn(self.path("base/tokenizer.model"), self.log)

    def test_the_result_generates_and_verifies(self):
        self.assertIn("ids", self.result("generate", self.path("made"), "-p", "SELECT", "--max-new-tokens", "4"))
        self.assertIn("ok\n", self.succeed("verify", self.path("made")).out)

    def test_gguf_has_the_same_loss_and_the_exact_scores(self):
        done = self.succeed("export", self.path("made"), "--gguf", "f32", "--out", self.path("gguf"), "--json").json()
        file = os.path.join(self.path("gguf"), done["file"])
        self.assertEqual(self.result("eval", file, "--data", self.rows, "--seq-len", "128")["loss"],
                         self.result("eval", self.path("made"), "--data", self.rows, "--seq-len", "128")["loss"])
        scores = gguf_scores(file)
        self.assertEqual(len(scores), 624)
        # SentencePiece gives the n-th merged piece the score -n; here 261 pieces come before the first one.
        self.assertEqual(scores[261:620], tuple(261.0 - i for i in range(261, 620)))

    def test_tokenize_gives_the_golden_ids(self):
        with open(os.path.join(GOLDEN, "sp_bare.expected.json")) as file:
            want = json.load(file)
        with open(os.path.join(GOLDEN, "texts.json")) as file:
            texts = json.load(file)["texts"]
        at = [i for i, text in enumerate(texts) if isinstance(text, str) and text and "\n" not in text and "\r" not in text and
              "\0" not in text and text.isprintable()][:30]
        lines = "".join(texts[i] + "\n" for i in at).encode()
        for words in (["--tokenizer", os.path.join(GOLDEN, "llama_bpe.model")], ["--model", self.path("base")]):
            done = self.succeed("tokenize", *words, "--json", "--threads", "1", stdin=lines)
            self.assertEqual(done.events(), [want["before"] + want["texts"][i]["ids"] for i in at])

    def test_a_result_with_another_tokenizer_has_its_tokenizer_json(self):
        self.succeed("train", "--model", self.path("base"), "--init", "random", "--tokenizer",
                     os.path.join(GOLDEN, "llama_bpe.model"), "--data", self.rows, "--out", self.path("other"), "--steps", "1",
                     "--seq-len", "128", "--tokens-per-step", "512", "--threads", "1", "--no-forecast")
        with open(self.path("other/tokenizer.json")) as file:
            self.assertEqual(json.load(file)["model"]["type"], "BPE")

    def refuse(self, folder, *words):
        done = program.run("tokenize", "--model", folder, stdin=b"text\n")
        self.assertEqual(done.code, INPUT, done.err)
        for word in words:
            self.assertIn(word, done.err)
        return done.err

    def test_other_formats_are_refused_with_the_cure(self):
        cases = {"tiktoken": ("tokenizer.model", b"IQ== 0\nIg== 1\n", "tokenizer.model is a vocabulary of tiktoken"),
                 "tekken": ("tekken.json", b"{}", "has Mistral's tekken.json"),
                 "damaged": ("tokenizer.model", b"xyz", "not a SentencePiece model"),
                 "vocab": ("vocab.json", b"{}", "has vocab.json but no tokenizer.json")}
        for name, (file, data, words) in cases.items():
            folder = self.make(name, model=None)
            with open(os.path.join(folder, file), "wb") as out:
                out.write(data)
            text = self.refuse(folder, words, "--tokenizer FILE")
            self.assertEqual(text.count(folder), 1, text)

    def test_contradictions_name_the_model(self):
        self.refuse(self.make("contradiction", added_tokens_decoder={"5": {"content": "zzz"}}), "contradiction/tokenizer.model",
                    "token 'zzz' has the id 5")


if __name__ == "__main__":
    program.main()
