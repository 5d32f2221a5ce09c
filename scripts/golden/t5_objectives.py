"""Golden runs of objectives that compare answers on an encoder-decoder: tests/golden/t5_objectives.json.

The model is the T5 of tests/support/tiny_models.py, a row is a prompt and two answers as bytes, each ended by EOS. STEPS steps of
torch.optim.AdamW on all rows at once, in fp32, with the formulas of kernels/ops_compare.h (of TRL, which has no
encoder-decoders); the reference is the model before step 1. For each objective: the loss and the margin of the rewards before
each step.

Run: python scripts/golden/t5_objectives.py (needs torch, transformers)
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

ROWS = [("list names", "SELECT name", "SELECT age FROM x"), ("how many?", "SELECT count(*)", "none"), ("oldest", "SELECT max(age)", "age")]
BETA, LR, STEPS, EOS = 0.3, 2e-4, 4, 257


def log_probability(model, prompt, answer):
    """The sum over the answer's tokens, and their number."""
    ids = torch.tensor([[*answer.encode(), EOS]])
    logits = model(input_ids=torch.tensor([[*prompt.encode(), EOS]]), labels=ids).logits[0]
    return -torch.nn.functional.cross_entropy(logits, ids[0], reduction="sum"), ids.shape[1]


def all_of(model):
    return [[log_probability(model, prompt, answer) for answer in answers] for prompt, *answers in ROWS]


def loss_of(objective, pairs, reference):
    losses, margins = [], []
    for ((chosen, n), (rejected, m)), ((r0, _), (r1, _)) in zip(pairs, reference):
        if objective == "dpo":
            rewards = BETA * (chosen - r0), BETA * (rejected - r1)
            loss = -torch.nn.functional.logsigmoid(rewards[0] - rewards[1])
        else:
            means = chosen / n, rejected / m
            rewards = BETA * means[0], BETA * means[1]
            odds = (means[0] - means[1]) - (torch.log1p(-means[0].exp()) - torch.log1p(-means[1].exp()))
            loss = -means[0] - BETA * torch.nn.functional.logsigmoid(odds)
        losses.append(loss)
        margins.append(rewards[0] - rewards[1])
    return torch.stack(losses).mean(), torch.stack(margins).mean().item()


def run(objective):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        tiny_models.write_model(path, tiny_models.MODELS["t5_gated"])
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        reference = all_of(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": other, "weight_decay": 0.0}], lr=LR,
                                  betas=(0.9, 0.95), eps=1e-8)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, margin = loss_of(objective, all_of(model), reference)
        loss.backward()
        steps.append([loss.item(), margin])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return steps


def main():
    out = {"rows": ROWS, "beta": BETA, "lr": LR, "dpo": run("dpo"), "orpo": run("orpo")}
    with open(ROOT / "tests/golden/t5_objectives.json", "w", encoding="utf-8") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
