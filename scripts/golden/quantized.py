#!/usr/bin/env python3
"""Quantised checkpoints with the values that they hold: tests/golden/quantized/CASE/, and crc.bin.

bitsandbytes: transformers quantises and saves a small Llama on the CPU; the values are those of bitsandbytes'
dequantize functions in fp32. GPTQ: random codes, zero points, scales and groups are packed here, bit by bit, by the
words of the format; the values are scale (code - zero).
crc.bin: for each case and matrix, the CRC-32 of its fp32 values, row after row.
Run: python scripts/golden/quantized.py (needs torch, numpy, transformers 5, bitsandbytes 0.50, accelerate)
"""

import json
import os
import shutil
import tempfile
import zlib

import bitsandbytes as bnb
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from goldenfile import write

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "tests", "golden", "quantized")
CONFIG = {"hidden_size": 64, "intermediate_size": 288, "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 64}
arrays = {}


def record(case, name, values):
    data = np.ascontiguousarray(values, dtype=np.float32).tobytes()
    arrays[f"{case}.{name}"] = np.array([zlib.crc32(data)], dtype=np.uint32).view(np.int32)


def keep(case, source):
    target = os.path.join(FOLDER, case)
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(source, name), target)


# ---- bitsandbytes ----

def dequantized(module):
    if isinstance(module, bnb.nn.Linear8bitLt):
        return bnb.functional.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    state = module.weight.quant_state
    state.dtype = torch.float32
    return bnb.functional.dequantize_4bit(module.weight.data, state).reshape(state.shape)


def bitsandbytes(case, base, **settings):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, device_map={"": "cpu"},
                                                 quantization_config=BitsAndBytesConfig(**settings))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        keep(case, folder)
    for name, module in model.named_modules():
        if isinstance(module, (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt)):
            record(case, name + ".weight", dequantized(module).detach().numpy())
        elif hasattr(module, "weight"):
            record(case, name + ".weight", module.weight.detach().float().numpy())


# ---- GPTQ ----

def pack(numbers, bits):
    """One stream of bits, low bits first, in 32-bit words."""
    stream = sum(int(number) << (bits * i) for i, number in enumerate(numbers))
    words = (len(numbers) * bits + 31) // 32
    return np.array([stream >> (32 * i) & 0xFFFFFFFF for i in range(words)], dtype=np.uint32).view(np.int32)


def gptq_matrix(random, rows, cols, case, bits, group, true_zeros, sym, act):
    """The tensors of a matrix, and its values."""
    groups = 1 if group < 0 else cols // group
    index = np.arange(cols, dtype=np.int32) * groups // cols
    if act:
        random.shuffle(index)
    scales = (random.random((groups, rows)) / 16 + 1e-3).astype(np.float16)
    codes = random.integers(0, 2 ** bits, (cols, rows))
    zeros = np.full((groups, rows), 2 ** (bits - 1)) if sym else random.integers(0, 2 ** bits, (groups, rows))
    stored = zeros if true_zeros else (zeros - 1) % 2 ** bits
    values = scales.astype(np.float32)[index] * (codes - zeros[index]).astype(np.float32)
    tensors = {"qweight": np.stack([pack(column, bits) for column in codes.T], axis=1),
               "qzeros": np.stack([pack(row, bits) for row in stored]), "scales": scales, "g_idx": index}
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, values.T


def gptq(case, base, bits, group, checkpoint_format=None, sym=True, act=False, with_index=True, zero_bias=False):
    random = np.random.default_rng(bits * 100 + len(case))
    tensors = {}
    for name, value in base.state_dict().items():
        if ".layers." not in name or value.ndim != 2:
            tensors[name] = value.to(torch.float16).numpy()
            record(case, name, tensors[name])
            continue
        module = name.removesuffix(".weight")
        parts, values = gptq_matrix(random, *value.shape, case, bits, group, checkpoint_format == "gptq_v2", sym, act)
        if not with_index:
            del parts["g_idx"]
        if zero_bias:
            parts["bias"] = np.zeros(value.shape[0], dtype=np.float16)
        tensors.update({f"{module}.{part}": tensor for part, tensor in parts.items()})
        record(case, name, values)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act, "sym": sym}
    if checkpoint_format:
        config["checkpoint_format"] = checkpoint_format
    with tempfile.TemporaryDirectory() as folder:
        whole = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16", **CONFIG,
                 "quantization_config": config}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(whole, file, indent=2)
        save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        keep(case, folder)


def main():
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as base:
        model.save_pretrained(base)
        bitsandbytes("nf4", base, load_in_4bit=True, bnb_4bit_quant_type="nf4")
        bitsandbytes("nf4-double", base, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                     bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16)
        bitsandbytes("int8", base, load_in_8bit=True)
    gptq("gptq4", model, 4, 32)
    gptq("gptq4-act", model, 4, 32, "gptq", sym=False, act=True, zero_bias=True)
    gptq("gptq3-v2", model, 3, 32, "gptq_v2", sym=False)
    gptq("gptq3", model, 3, 32, "gptq", sym=False, act=True)
    gptq("gptq2", model, 2, -1, with_index=False)
    gptq("gptq8-v2", model, 8, 32, "gptq_v2", sym=False)
    write(os.path.join(FOLDER, "crc.bin"), arrays)


if __name__ == "__main__":
    main()
