"""Small inputs on which the program once went wrong (../shared/data/cases), with the results of transformers. Skipped if
the real inputs are absent."""

import os
import sys

import program
from program import SHARED

CPU = ["--device", "cpu", "--threads", "1"]


def case(name):
    return os.path.join(SHARED, "cases", name)


class Cases(program.ProgramTest):
    def check(self, model, rows, loss, tokens, *more):
        result = self.succeed("eval", case(model), "--data", case(rows), "--json", "--dtype", "fp32", *CPU, *more).json()
        self.assertAlmostEqual(result["loss"], loss, delta=2e-6 * loss)
        self.assertEqual(result["trained_tokens"], tokens)

    def test_tokens_of_tokenizer_config_are_added(self):
        self.check("added-tokens-config/model", "added-tokens-config/rows.jsonl", 6.352880, 52)

    def test_a_softcap_of_null_is_none(self):
        self.check("gemma2-null-cap/gemma2-1", "gemma2-null-cap/gemma2-1.jsonl", 20.2821440, 600, "--seq-len", "160")

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
