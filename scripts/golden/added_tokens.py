"""Golden cases of the added tokens that the files beside a tokenizer.json have, by transformers, written to
tests/golden/tokenizers/completed.json.

Each case has the files, the added tokens that transformers' tokenizer ends with, and the ids of a text that has them
all. The tokenizers are those of the folder.

Run: python scripts/golden/added_tokens.py (needs transformers)
"""

import json
import pathlib
import shutil
import tempfile

import transformers

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/tokenizers"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def token(content, **flags):
    return dict(dict.fromkeys(FLAGS, False), content=content, **flags)


def number(*tokens, start=5000):
    return {str(start - 7 * i): t for i, t in enumerate(tokens)}


CASES = {
    "nothing": ("gpt2.json", {"tokenizer_config.json": {}}),
    "new special token": ("gpt2.json", {"tokenizer_config.json": {"added_tokens_decoder": number(
        token("<sql>", special=True))}}),
    "numbers give the order alone": ("gpt2.json", {"tokenizer_config.json": {"added_tokens_decoder": number(
        token("<c>", special=True), token("<b>"), token("<a>", normalized=True))}}),
    "settings of a known token": ("llama3.json", {"tokenizer_config.json": {"added_tokens_decoder": {
        "0": token("<|begin_of_text|>", lstrip=True)}}}),
    "a token of the vocabulary": ("gpt2.json", {"tokenizer_config.json": {"added_tokens_decoder": number(
        token("e"), token("<x>", rstrip=True))}}),
    "a token of a Unigram vocabulary": ("t5.json", {"tokenizer_config.json": {"added_tokens_decoder": number(
        token("e"), token("<x>", single_word=True))}}),
    "names": ("gpt2.json", {"tokenizer_config.json": {
        "bos_token": "<|endoftext|>", "pad_token": "[PAD]", "mask_token": token("[MASK]", lstrip=True, __type="AddedToken"),
        "additional_special_tokens": ["<one>", token("<two>", rstrip=True, __type="AddedToken")]}}),
    "a name makes a new token special": ("gpt2.json", {"tokenizer_config.json": {
        "pad_token": "<p>", "extra_special_tokens": ["<q>"],
        "added_tokens_decoder": number(token("<p>", normalized=True), token("<q>", normalized=True))}}),
    "older files": ("gpt2.json", {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "pad_token": "[OLD]"},
        "special_tokens_map.json": {"pad_token": "[PAD]", "additional_special_tokens": ["<one>"]},
        "added_tokens.json": {"<b>": 9001, "<a>": 9000, "[PAD]": 9002}}),
    "older files beside the decoder": ("gpt2.json", {
        "tokenizer_config.json": {"added_tokens_decoder": number(token("<x>"))},
        "special_tokens_map.json": {"pad_token": "[PAD]"}, "added_tokens.json": {"<a>": 9000}}),
}


def main():
    out = {}
    for name, (tokenizer, files) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(FOLDER / tokenizer, f"{folder}/tokenizer.json")
            for file, content in files.items():
                given = dict(content, tokenizer_class="PreTrainedTokenizerFast") if file == "tokenizer_config.json" else content
                pathlib.Path(folder, file).write_text(json.dumps(given))
            made = transformers.AutoTokenizer.from_pretrained(folder)
        added = {i: {"content": t.content, **{k: getattr(t, k) for k in FLAGS}}
                 for i, t in sorted(made.added_tokens_decoder.items())}
        text = "the end " + " ".join(t["content"] for t in added.values()) + " the e x<sql>y<x>z"
        out[name] = {"tokenizer": tokenizer, "files": files, "added": added, "text": text,
                     "ids": made(text, add_special_tokens=False)["input_ids"]}
        print(name, [(i, t["content"]) for i, t in added.items()][-6:])
    (FOLDER / "completed.json").write_text(json.dumps(out, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
