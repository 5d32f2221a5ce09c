"""The built program with GGUF files: export of each family and type, and training, evaluation and generation from them."""

import glob
import json
import os
import random
import resource
import shutil
import struct
import subprocess

import program
from program import PROGRAM, SMALL, sql_rows, write_rows

USAGE, INPUT, IO = 2, 3, 5
TYPES = ["f32", "f16", "bf16", "q8_0", "q6_k", "q4_k_m", "q4_0"]
BASE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "torch_dtype": "float32"}
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 48},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
}


def tensors_of(family, config):
    """Names and shapes of the tensors that a model of the family has."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // 4)
    found = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for part, heads in (("q", 4), ("k", 2), ("v", 2)):
            found[f"{at}self_attn.{part}_proj.weight"] = [heads * head, hidden]
            if family == "qwen2":
                found[f"{at}self_attn.{part}_proj.bias"] = [heads * head]
            if family == "qwen3" and part != "v":
                found[f"{at}self_attn.{part}_norm.weight"] = [head]
        found[f"{at}self_attn.o_proj.weight"] = [hidden, 4 * head]
        for part in ("gate", "up"):
            found[f"{at}mlp.{part}_proj.weight"] = [ffn, hidden]
        found[f"{at}mlp.down_proj.weight"] = [hidden, ffn]
        for part in ("input", "post_attention"):
            found[f"{at}{part}_layernorm.weight"] = [hidden]
    return found


def write_safetensors(path, tensors):
    """Random fp32 values from a fixed seed; norms near 1."""
    rng, header, data = random.Random(5), {}, b""
    for name, shape in tensors.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        middle, spread = (1, 0.1) if "norm" in name else (0, 0.06)
        raw = struct.pack(f"<{count}f", *(rng.gauss(middle, spread) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Gguf(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_rows(cls.path("rows.jsonl"), sql_rows(40))
        cls.rows = cls.path("rows.jsonl")
        done = program.run("train", *SMALL, "--data", cls.rows, "--out", cls.path("made"), "--steps", "2", "--no-forecast")
        assert done.code == 0, done.err
        for family in FAMILIES:
            cls.make_model(family)

    @classmethod
    def make_model(cls, family):
        """A model with the byte-level tokenizer of the small preset."""
        folder = cls.path(family)
        os.mkdir(folder)
        config = {"model_type": family, **BASE, **FAMILIES[family], "bos_token_id": 256, "eos_token_id": 257}
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(cls.path("made"), name), folder)
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors_of(family, config))

    def export(self, model, kind, *words):
        out = self.path(f"{model}-{kind}")
        done = self.succeed("export", self.path(model), "--gguf", kind, "--out", out, "--json", *words)
        return os.path.join(out, done.json()["file"])

    def loss(self, model):
        return self.succeed("eval", model, "--data", self.rows, "--seq-len", "128", "--dtype", "fp32", "--threads", "1",
                            "--json").json()["loss"]

    def text(self, model):
        return self.succeed("generate", model, "-p", "SELECT", "--max-new-tokens", "12", "--dtype", "fp32", "--threads",
                            "1", "--json").json()["ids"]

    def test_each_family_has_the_same_loss_and_text_as_its_directory(self):
        for family in FAMILIES:
            file = self.export(family, "f32")
            self.assertEqual(self.loss(file), self.loss(self.path(family)), family)
            self.assertEqual(self.text(file), self.text(self.path(family)), family)
            self.assertIn("ok\n", self.succeed("verify", file).out)

    def test_each_type_is_near(self):
        for family in ("llama", "qwen2"):
            exact, sizes = self.loss(self.path(family)), {}
            for kind in TYPES:
                file = self.export(family, kind)
                sizes[kind] = os.path.getsize(file)
                # About ten times what was measured on these random weights, of which 4 bits leave out 7 % to 8 %.
                bound = {"f32": 0, "f16": 1e-3, "bf16": 5e-3, "q8_0": 1e-2, "q6_k": 0.1}.get(kind, 0.3)
                self.assertLessEqual(abs(self.loss(file) - exact), bound, (family, kind))
            self.assertEqual(sorted(sizes.values(), reverse=True), [sizes[kind] for kind in (
                "f32", "f16", "bf16", "q8_0", "q6_k", "q4_k_m", "q4_0")], family)

    def test_a_file_that_is_exported_again_keeps_its_values(self):
        for kind in ("f16", "q8_0"):
            file = self.export("mistral", kind)
            plain = self.succeed("export", file, "--gguf", "f32", "--out", self.path(f"again-{kind}"), "--json").json()
            again = os.path.join(self.path(f"again-{kind}"), plain["file"])
            self.assertEqual(self.loss(again), self.loss(file))
            self.assertEqual(program.read_bytes(self.same_kind(again, kind)), program.read_bytes(file))

    def same_kind(self, file, kind):
        """The file as this type again. Its general.name, which is its file's, must be the first file's."""
        folder = self.path(f"named-{kind}")
        os.mkdir(folder)
        named = os.path.join(folder, "mistral.gguf")
        shutil.copy(file, named)
        out = os.path.join(folder, "out")
        return os.path.join(out, self.succeed("export", named, "--gguf", kind, "--out", out, "--json").json()["file"])

    def test_a_run_from_a_file_resumes_and_leaves_a_directory(self):
        file = self.export("llama", "q8_0")
        words = ["--model", file, "--data", self.rows, "--seq-len", "128", "--tokens-per-step", "512", "--threads", "1",
                 "--no-forecast", "--schedule", "constant", "--warmup", "0"]
        self.succeed("train", *words, "--steps", "4", "--out", self.path("whole"))
        self.succeed("train", *words, "--steps", "2", "--out", self.path("part"), "--save-every", "2")
        self.succeed("train", *words, "--steps", "4", "--out", self.path("part"), "--resume",
                     self.path("part/checkpoints"))
        self.assertEqual(program.read_bytes(self.path("part/model.safetensors")),
                         program.read_bytes(self.path("whole/model.safetensors")))
        names = set(os.listdir(self.path("whole")))
        self.assertLessEqual({"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}, names)
        self.assertNotEqual(self.loss(self.path("whole")), self.loss(file))

    def test_a_checkpoint_is_exported(self):
        self.succeed("train", *SMALL, "--data", self.rows, "--out", self.path("run"), "--steps", "3", "--save-every", "1",
                     "--no-forecast", "--schedule", "constant", "--warmup", "0", "--dtype", "fp32")
        step = sorted(glob.glob(self.path("run/checkpoints/step-*")))[-1]
        done = self.succeed("export", step, "--gguf", "f32", "--out", self.path("run-gguf"), "--json").json()
        self.succeed("export", step, "--out", self.path("run-hf"))
        self.assertEqual(done["checkpoint"], step)
        self.assertEqual(self.loss(os.path.join(self.path("run-gguf"), done["file"])), self.loss(self.path("run-hf")))

    def test_the_modelfile_names_the_file(self):
        file = self.export("qwen3", "q4_0", "--modelfile")
        with open(os.path.join(os.path.dirname(file), "Modelfile")) as modelfile:
            self.assertIn(f"FROM ./{os.path.basename(file)}\n", modelfile.read())

    def test_a_full_disk_leaves_the_earlier_output(self):
        file = self.export("qwen2", "q8_0")
        before, out = program.read_bytes(file), os.path.dirname(file)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
        done = subprocess.run([PROGRAM, "export", self.path("qwen2"), "--gguf", "f16", "--out", out], capture_output=True,
                              preexec_fn=limit)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertEqual(os.listdir(out).count(os.path.basename(file)), 1)
        self.assertEqual(program.read_bytes(file), before)
        self.assertFalse(glob.glob(out + "/*F16*"))

    def test_wrong_files_are_refused(self):
        file = self.export("llama", "f16")
        data = program.read_bytes(file)
        for cut in (0, 3, 24, 1000, len(data) // 2, len(data) - 100):
            bad = self.path("cut.gguf")
            with open(bad, "wb") as out:
                out.write(data[:cut])
            self.assertEqual(program.run("verify", bad).code, INPUT)
            for command in (["generate", bad, "-p", "x"], ["export", bad, "--gguf", "f16", "--out",
                                                                            self.path("never")]):
                self.fail_with(INPUT, "cut.gguf", *command)
        self.assertFalse(os.path.exists(self.path("never")))
        self.fail_with(INPUT, "is already an exported model", "export", file, "--out", self.path("never"))
        self.fail_with(USAGE, "--model has no effect", "export", file, "--gguf", "f16", "--model", "x", "--out",
                       self.path("never"))
        self.fail_with(USAGE, "--modelfile has no effect without --gguf", "export", file, "--modelfile", "--out", "x")


if __name__ == "__main__":
    program.main()
