#!/usr/bin/env python3
"""The gpt-oss of models.py with its experts in MXFP4, as its published files have them: tests/golden/mxfp4_written.bin.

The codes and scales are made here in fp64, by the words of the specification (kernels/weight_format.h). transformers loads
the file on the CPU.

    crc.TENSOR   i32  the CRC-32 of each tensor of codes and scales
    loss         f64  transformers' mean loss over all tokens of the golden rows but the first ones, in fp32

Run: python scripts/golden/mxfp4_written.py (needs torch, transformers 5, accelerate, numpy)
"""

import json
import os
import tempfile
import zlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import goldenfile
import lora
import models

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
PLAIN = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def encode(matrices):
    """[experts, rows, cols] -> codes [experts, rows, cols / 32, 16], scales [experts, rows, cols / 32]."""
    blocks = matrices.double().numpy().reshape(*matrices.shape[:2], -1, 32)
    largest = np.abs(blocks).max(-1)
    scales = np.maximum(0, np.floor(np.log2(np.maximum(largest, 1e-300))) + 127 - 2)
    sizes = np.abs(blocks) * 2.0 ** (127 - scales[..., None])
    distance = np.abs(sizes[..., None] - MAGNITUDES)
    nearest = distance.min(-1)
    ties = distance == nearest[..., None]
    first, last = ties.argmax(-1), 7 - ties[..., ::-1].argmax(-1)
    codes = np.where(first % 2 == 0, first, last) + 8 * np.signbit(blocks)
    return (torch.from_numpy((codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)),
            torch.from_numpy(scales.astype(np.uint8)))


def main():
    base, rows = lora.make_base("gpt_oss")
    tensors, arrays = {}, {}
    for name, value in base.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = value.contiguous()
            continue
        for end, part in zip(("_blocks", "_scales"), encode(value.transpose(1, 2).contiguous())):
            tensors[name + end] = part.contiguous()
            arrays["crc." + name + end] = np.array([zlib.crc32(tensors[name + end].numpy().tobytes())], np.uint32).view(np.int32)
    config = json.loads(models.config_json(base))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": PLAIN}
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    losses = []
    for ids, targets in rows:
        logits = model(torch.tensor(ids[None])).logits[0]
        following = np.append(ids[1:], targets[-1])
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(following), reduction="none"))
    arrays["loss"] = np.array([torch.cat(losses).double().mean().item()])
    print(arrays["loss"])
    goldenfile.write(os.path.join(models.OUT, "mxfp4_written.bin"), arrays)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
