#!/usr/bin/env python3
"""The T5s of t5.py in nf4, by transformers and bitsandbytes: tests/golden/t5_quantized.bin.

transformers loads each model with a BitsAndBytesConfig on the CPU, saves it, and loads what it saved. For each CASE:

    CASE.tensors   text   JSON: the CRC-32 of each stored tensor; of the states of the matrices, whose JSON has no one form, null
    CASE.loss      f64    the loss over the golden rows, in fp32

Double quantization and int8 are no golden bytes: bitsandbytes takes the mean of the scales in an order of its own, and its int8
is of weights that transformers has rounded to fp16. Which tensors are stored for them is the same matter as in nf4.

Run: python scripts/golden/t5_quantized.py (needs torch, transformers, accelerate, bitsandbytes, numpy)
"""

import json
import os
import tempfile
import zlib

import numpy as np
import torch
import transformers
from safetensors import safe_open

import goldenfile
import models
import t5

def load(folder, **words):
    return transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, device_map="cpu", **words)


def stored_crcs(folder):
    crcs = {}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        for name in sorted(file.keys()):
            crcs[name] = None if ".quant_state." in name else zlib.crc32(file.get_tensor(name).numpy().tobytes())
    return crcs


def loss(model, rows):
    losses = []
    for inputs, targets in rows:
        logits = model(input_ids=torch.tensor(inputs[None]), labels=torch.tensor(targets[None])).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="none"))
    return torch.cat(losses).double().mean().item()


def main():
    arrays = {}
    how = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    for i, case in enumerate(t5.CASES):
        model, rows = t5.make_model(case, t5.SEED + i), t5.make_rows(t5.SEED + i)
        with tempfile.TemporaryDirectory() as folder:
            plain, saved = os.path.join(folder, "plain"), os.path.join(folder, "saved")
            model.save_pretrained(plain)
            load(plain, quantization_config=how).save_pretrained(saved)
            arrays[f"{case}.tensors"] = json.dumps(stored_crcs(saved))
            arrays[f"{case}.loss"] = np.array([loss(load(saved), rows)])
        print(case, arrays[f"{case}.loss"])
    goldenfile.write(os.path.join(models.OUT, "t5_quantized.bin"), arrays)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
