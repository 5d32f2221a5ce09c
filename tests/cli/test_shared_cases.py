"""Small inputs on which the program once went wrong (../shared/data/cases), with the results of transformers. Skipped if
the real inputs are absent."""

import array
import json
import os
import shutil
import struct
import subprocess
import sys

import program
from program import SHARED

CPU = ["--device", "cpu", "--threads", "1"]


def case(name):
    return os.path.join(SHARED, "cases", name)


def scale(path, part, factor):
    """Multiplies the values of a safetensors file's tensors (F32) whose name has `part`."""
    with open(path, "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        for name, tensor in json.loads(file.read(size)).items():
            if part not in name:
                continue
            begin, end = tensor["data_offsets"]
            file.seek(8 + size + begin)
            values = array.array("f", file.read(end - begin))
            file.seek(8 + size + begin)
            file.write(array.array("f", (factor * value for value in values)).tobytes())


class Cases(program.ProgramTest):
    def check(self, model, rows, loss, tokens, *more):
        result = self.succeed("eval", case(model), "--data", case(rows), "--json", "--dtype", "fp32", *CPU, *more).json()
        self.assertAlmostEqual(result["loss"], loss, delta=2e-6 * loss)
        self.assertEqual(result["trained_tokens"], tokens)

    def test_tokens_of_tokenizer_config_are_added(self):
        self.check("added-tokens-config/model", "added-tokens-config/rows.jsonl", 6.352880, 52)

    def test_a_softcap_of_null_is_none(self):
        self.check("gemma2-null-cap/gemma2-1", "gemma2-null-cap/gemma2-1.jsonl", 20.2821440, 600, "--seq-len", "160")

    def test_the_base_layer_of_an_adapted_embedding_is_read(self):
        """PEFT stores it by default; the losses are PEFT's, also with other values in it."""
        adapter, name = self.path("adapter"), "peft-embeddings"
        words = [f"{name}/base", f"{name}/lo-llama-3-emb.jsonl"]
        more = ["--seq-len", "160", "--adapter", adapter]
        shutil.copytree(case(f"{name}/llama-3-emb"), adapter)
        subprocess.run(["chmod", "-R", "u+w", adapter], check=True)
        self.check(*words, 6.60974759, 120, *more)
        scale(os.path.join(adapter, "adapter_model.safetensors"), "base_layer", 1.5)
        self.check(*words, 6.89959733, 120, *more)

    def test_adapters_that_are_not_whole_are_refused(self):
        adapter, name = self.path("partial"), "peft-embeddings"
        config = os.path.join(adapter, "adapter_config.json")
        shutil.copytree(case(f"{name}/llama-3-emb"), adapter)
        subprocess.run(["chmod", "-R", "u+w", adapter], check=True)
        with open(config) as file:
            text = file.read()
        for key, value, said in (("modules_to_save", '["norm"]', "modules_to_save has 'norm'"),
                                 ("task_type", '"SEQ_CLS"', "task_type is 'SEQ_CLS'")):
            with open(config, "w") as file:
                file.write(text.replace(f'"{key}": null', f'"{key}": {value}'))
            self.fail_with(3, said, "eval", case(f"{name}/base"), "--data", case(f"{name}/lo-llama-3-emb.jsonl"),
                           "--adapter", adapter, *CPU)

    def test_a_t5_may_tie_and_not_scale(self):
        rows = program.write_rows(self.path("rows.jsonl"), [{"prompt": "a b c d", "completion": "e f"}, {
            "prompt": "The dog ran.", "completion": "Tom had a big box."}])
        result = self.succeed("eval", case("t5-tied-unscaled/t5v1-1"), "--data", rows, "--no-eos", "--json", "--dtype", "fp32",
                              *CPU).json()
        self.assertAlmostEqual(result["loss"], 9.33193083, delta=2e-5)

    def test_a_token_across_the_border_of_generation_trains(self):
        for i, (loss, tokens) in enumerate([(6.46694613, 16), (6.49784182, 38), (6.34867287, 24)]):
            name = "generation-mark-after-space"
            self.check(f"{name}/inst", f"{name}/tpl-inst-{i}.jsonl", loss, tokens)

    def test_the_saved_template_writes_bos_as_rows_have_it(self):
        """transformers makes the rows' ids of the saved text: the tokenizer adds nothing to it."""
        name = "chat-template-bos"
        for template in ("chatml", "qwen2.5", "zephyr"):
            out = self.path(f"bos-{template}")
            self.succeed("train", "--model", case(f"{name}/model"), "--data", case(f"{name}/rows.jsonl"), "--template",
                         template, "--steps", "1", "--out", out, "--no-forecast", *CPU)
            with open(os.path.join(out, "chat_template.jinja")) as file:
                text = file.read()
            self.assertTrue(-1 < text.find("bos_token") < text.index("{% for"), text)


if __name__ == "__main__":
    if not os.path.isdir(SHARED):
        sys.stderr.write(f"SKIP: the real inputs {SHARED} are absent\n")
        sys.exit(77)
    program.main()
