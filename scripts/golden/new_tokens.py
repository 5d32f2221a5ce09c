"""Golden cases of tokens that a run adds, by transformers: tests/golden/new_tokens.json.

Each case names a model of tests/support/tiny_models.py or the base of tests/golden/peft, with the byte-level tokenizer, and
new tokens, plain and special. It has the ids of a text, the ids of the new tokens, and the mean loss of the text's ids after
BOS, up to EOS, in fp32. The tokenizer adds the tokens (add_tokens), the model is resized (resize_token_embeddings) if it has
fewer rows, and each new row is the mean of the rows of the token's pieces.

Run: python scripts/golden/new_tokens.py (needs torch, transformers)
"""

import json
import os
import pathlib
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import tiny_models  # noqa: E402

GOLDEN = ROOT / "tests/golden"
TEXT = "SELECT <sql>name<|x|> FROM singer; SELECT é a"
CASES = {
    "untied, with unused rows": ("peft", ["SELECT ", "<sql>", "a", "é", " FROM"], ["<|x|>", "<|y|>", "<|z|>"]),
    "tied": ("gemma", ["SELECT ", "<sql>", "é"], ["<|x|>"]),
    "gpt2": ("gpt2", ["SELECT"], ["<|eos|>", "<|x|>"]),
}


def open_model(name, folder):
    if name == "peft":
        return transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / "peft/base", dtype=torch.float32)
    tiny_models.write_model(folder, tiny_models.MODELS[name])
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def tables_of(model):
    tables = [model.get_input_embeddings().weight]
    head = model.get_output_embeddings()
    return tables + [t for t in (head.weight, head.bias) if t is not None and t is not tables[0]]


def make_case(name, plain, special, folder):
    model = open_model(name, folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / "tokenizers/byte_level.json"))
    before = len(tokenizer)
    pieces = [tokenizer.encode(token, add_special_tokens=False) for token in plain + special]
    tokenizer.add_tokens(plain)
    tokenizer.add_tokens(special, special_tokens=True)
    new = tokenizer.convert_tokens_to_ids(plain + special)
    if len(tokenizer) > model.config.vocab_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for table in tables_of(model):
            for token, rows in zip(new, pieces):
                if token >= before:
                    total = torch.zeros_like(table[0])
                    for row in rows:
                        total = total + table[row]
                    table[token] = total / len(rows)
        ids = tokenizer.encode(TEXT)
        row = torch.tensor([ids + [257]])
        logits = model(row).logits[0, :-1]
    return {"model": name, "plain": plain, "special": special, "text": TEXT, "new": new, "ids": ids,
            "vocab": model.config.vocab_size, "loss": torch.nn.functional.cross_entropy(logits, row[0, 1:]).item()}


def main():
    out = {}
    for title, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            out[title] = make_case(*case, os.path.join(folder, "model"))
    with open(GOLDEN / "new_tokens.json", "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
