"""Whole runs over pytorch_model.bin: a model saved so gives the same bits as the same model saved as safetensors. Needs no
torch: tests/support/torch_files.py writes the files."""

import os
import shutil
import struct

import program
import torch_files
from program import read_bytes, write_rows
from test_family_program import (INPUT, ROWS, TOKENIZER, Golden, read_tensors, write_adapters, write_json, write_model,
                                 write_safetensors)

CASES = ["bloom", "falcon", "codegen"]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}  # as GGUF can name it
KINDS = {"bloom": "F32", "falcon": "BF16", "codegen": "F16"}


def converted(array, kind):
    """A tensor of a golden model in this dtype. bf16 cuts the fraction off."""
    shape, data = array
    if kind == "BF16":
        data = b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
    if kind == "F16":
        values = struct.unpack(f"<{len(data) // 4}f", data)
        data = struct.pack(f"<{len(values)}e", *values)
    return shape, data


def write_torch(folder, tensors, kind, shards):
    """Takes the place of the folder's safetensors, as save_pretrained(safe_serialization=False) writes it."""
    os.remove(os.path.join(folder, "model.safetensors"))
    names, places = list(tensors), {}
    for i in range(shards):
        part = "pytorch_model.bin" if shards == 1 else f"pytorch_model-{i + 1:05}-of-{shards:05}.bin"
        with open(os.path.join(folder, part), "wb") as file:
            file.write(torch_files.torch_file({name: (kind, *tensors[name]) for name in names[i::shards]}))
        places.update({name: part for name in names[i::shards]})
    if shards > 1:
        write_json(os.path.join(folder, "pytorch_model.bin.index.json"), {"metadata": {}, "weight_map": places})


class Torch(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden = {case: Golden(case) for case in CASES}
        for i, (case, golden) in enumerate(cls.golden.items()):
            tensors = {name: converted(array, KINDS[case]) for name, array in golden.weights.items()}
            write_model(cls.path(case), golden.config, golden.weights)
            write_safetensors(cls.path(case + "/model.safetensors"), tensors, KINDS[case])
            if golden.head():
                tensors["lm_head.weight"] = tensors[golden.head()]  # one storage, as transformers writes it
            shutil.copytree(cls.path(case), cls.path(case + "-torch"))
            write_torch(cls.path(case + "-torch"), tensors, KINDS[case], shards=1 + i)
            write_rows(cls.path(case + ".jsonl"), golden.texts() * 8)

    def loss(self, model, case):
        return self.succeed("eval", self.path(model), "--data", self.path(case + ".jsonl"), *ROWS, "--json").json()["loss"]

    def tune(self, model, case, out, *words):
        self.succeed("train", "--model", self.path(model), "--data", self.path(case + ".jsonl"), *ROWS, "--tokens-per-step", "64",
                     "--no-forecast", "--eval-fraction", "0", "--steps", "2", "--lr", "1e-2", "--out", self.path(out), *words)
        return [(event["loss"], event["grad_norm"]) for event in self.log(out) if event["event"] == "step"]

    def test_the_same_bits_as_safetensors(self):
        for case in CASES:
            names = case, case + "-torch"
            losses = [self.loss(name, case) for name in names]
            self.assertEqual(losses[1], losses[0], case)
            if KINDS[case] == "F32":
                self.assertAlmostEqual(losses[1], self.golden[case].loss(), delta=2e-6)
            steps = [self.tune(name, case, name + "-out") for name in names]
            self.assertEqual(len(steps[0]), 2)
            self.assertEqual(steps[1], steps[0], case)
            self.assertEqual(read_tensors(self.path(names[1] + "-out")), read_tensors(self.path(names[0] + "-out")), case)
            self.assertFalse([name for name in os.listdir(self.path(names[1] + "-out")) if name.endswith(".bin")])
            told = [self.succeed("generate", self.path(name), "--prompt", "ABC", "--max-new-tokens", "3", "--json").json()["ids"]
                    for name in names]
            self.assertEqual(told[1], told[0], case)
            self.succeed("verify", self.path(names[1]))

    def test_export_and_merge(self):
        files, merged = [], []
        write_adapters(self.path("adapters"), self.path("bloom"), Golden("bloom-qkv"))
        for end in ("", "-torch"):
            bare, out, base = (self.path(word + end) for word in ("bare", "gguf", "bloom"))
            shutil.copytree(self.path("falcon" + end), bare)
            write_json(os.path.join(bare, "tokenizer.json"), TOKENIZER | {"pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL})
            done = self.succeed("export", bare, "--gguf", "f32", "--out", out, "--json").json()
            files.append(read_bytes(os.path.join(out, done["file"])))
            self.succeed("merge", base, "--adapter", self.path("adapters"), "--out", self.path("merged" + end))
            merged.append(read_tensors(self.path("merged" + end)))
        # The names of the models are at the start of the files. At the end are the tensors.
        size = os.path.getsize(self.path("falcon/model.safetensors"))
        self.assertEqual(files[1][-size:], files[0][-size:])
        self.assertEqual(merged[1], merged[0])

    def test_adapters_over_it_go_on(self):
        """The fingerprint of the base weights is the same, so either form of the base continues the run."""
        words = "--lora", "--save-every", "1"
        whole = self.tune("bloom", "bloom", "whole", *words)
        self.assertEqual(self.tune("bloom-torch", "bloom", "lora", *words), whole)
        shutil.rmtree(self.path("lora/checkpoints/step-00000002"))
        for name in ("checkpoints/complete", "finished.json", "adapter_model.safetensors"):
            os.remove(self.path(f"lora/{name}"))
        self.assertEqual(self.tune("bloom-torch", "bloom", "lora", *words), whole)

    def test_adapters_in_such_a_file(self):
        golden = Golden("bloom-qkv")
        write_adapters(self.path("qkv"), self.path("bloom-torch"), golden)
        want = self.loss("qkv", "bloom")
        self.assertNotEqual(want, self.loss("bloom", "bloom"))
        tensors = {name: ("F32", *array) for name, array in read_tensors(self.path("qkv"), "adapter_model.safetensors").items()}
        os.remove(self.path("qkv/adapter_model.safetensors"))
        with open(self.path("qkv/adapter_model.bin"), "wb") as file:
            file.write(torch_files.torch_file(tensors))
        self.assertEqual(self.loss("qkv", "bloom"), want)

    def test_code_is_refused(self):
        shutil.copytree(self.path("bloom-torch"), self.path("evil"))
        data, proof = read_bytes(self.path("evil/pytorch_model.bin")), self.path("proof")
        word = f"touch {proof}"
        pickle = b"\x80\x02cos\nsystem\n" + torch_files.text(word) + b"\x85R."
        with open(self.path("evil/pytorch_model.bin"), "wb") as file:
            file.write(torch_files.archive_of(pickle, {}))
        for words in (["verify"], ["eval", "--data", self.path("bloom.jsonl")]):
            result = program.run(words[0], self.path("evil"), *words[1:])
            self.assertIn("pytorch_model.bin: data.pkl, byte 2: names os.system", result.err + result.out)
            self.assertEqual(result.code, INPUT)
        self.assertFalse(os.path.exists(proof))
        with open(self.path("evil/pytorch_model.bin"), "wb") as file:
            file.write(data[:-100])
        self.fail_with(INPUT, "pytorch_model.bin: does not end with the directory of a zip", "eval", self.path("evil"), "--data",
                       self.path("bloom.jsonl"))


if __name__ == "__main__":
    program.main()
