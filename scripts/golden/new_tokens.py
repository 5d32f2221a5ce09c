"""Golden cases of tokens that a run adds, by transformers and PEFT: tests/golden/new_tokens.

cases.json: without adapters.
Each case names a model of tests/support/tiny_models.py or the base of tests/golden/peft, with the byte-level tokenizer, and
new tokens, plain and special. It has the ids of a text, the ids of the new tokens, and the mean loss of the text's ids after
BOS, up to EOS, in fp32. The tokenizer adds the tokens (add_tokens), the model is resized (resize_token_embeddings) if it has
fewer rows, and each new row is the mean of the rows of the token's pieces.

untied/ and tied/ are directories of PEFT with trainable_token_indices, over the same models. The rows of tied/ lie behind those
of its base, and PEFT stored copies for the head. losses.json has ids, their losses in 4 steps of AdamW on this one row, and
what these steps leave in the rows of the embedding.

Run: python scripts/golden/new_tokens.py (needs torch, transformers, peft)
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

import peft
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import tiny_models  # noqa: E402

GOLDEN = ROOT / "tests/golden"
OUT = GOLDEN / "new_tokens"
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


ADAPTERS = {"untied": ("peft", 260, {"embed_tokens": [260, 261, 262], "lm_head": [260, 261, 262]}),
            "tied": ("gemma", 259, [259, 260, 261])}
STEPS, LR = 4, 1e-2


def loss_of(model, ids):
    row = torch.tensor([ids])
    return torch.nn.functional.cross_entropy(model(row).logits[0, :-1], row[0, 1:])


def make_adapter(name, base, first, indices, folder):
    """TEXT's ids: bytes, and each new token twice."""
    torch.manual_seed(23)
    model = open_model(base, folder)
    if first + 3 > model.config.vocab_size:
        model.resize_token_embeddings(first + 3, mean_resizing=False)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=3, target_modules=["q_proj"], trainable_token_indices=indices)
    model = peft.get_peft_model(model, config).eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.data.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(OUT / name)
    config = OUT / name / "adapter_config.json" # without the path of the base on this machine
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": None}, indent=2) + "\n")
    os.remove(OUT / name / "README.md")
    ids = [256, *b"ab", first, *b"c", first + 1, first + 2, *b"de", first, first + 2, first + 1, *b"f", 257]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    rows = next(p for n, p in model.named_parameters() if "embed_tokens.token_adapter.trainable_tokens_delta" in n)
    return {"first": first, "ids": ids, "losses": losses, "rows": rows.detach().flatten().tolist()}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    losses = {}
    for name, about in ADAPTERS.items():
        with tempfile.TemporaryDirectory() as folder:
            losses[name] = make_adapter(name, *about, os.path.join(folder, "model"))
    with open(OUT / "losses.json", "w", encoding="utf-8") as file:
        json.dump(losses, file)
        file.write("\n")
    out = {}
    for title, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            out[title] = make_case(*case, os.path.join(folder, "model"))
    with open(OUT / "cases.json", "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
