#!/usr/bin/env python3
"""Golden vectors of MXFP4 (kernels/weight_format.h): tests/golden/mxfp4.bin. torchao encodes, and transformers decodes.

decode: a block for each scale 0..254, whose 16 bytes of codes follow from its number, as transformers decodes it for
gpt-oss. encode: inputs that a formula makes (weights.py, the test), and `special`: blocks of zeros, numbers around the
places where a code changes, and largest numbers of all kinds, with torchao's scales and codes.
Run: python scripts/golden/mxfp4.py (needs torch, transformers 5, torchao 0.18)
"""

import os

import numpy as np
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from goldenfile import write

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
arrays = {}


def as_words(tensor):
    """The bytes of a tensor as int32, padded with zeros."""
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return np.frombuffer(data + b"\0" * (-len(data) % 4), dtype=np.int32)


def formula(n):
    """weight_formula of tests/kernels/weight_fixture.h: numbers in [-1, 1) times a power of two for each 64."""
    i = np.arange(n, dtype=np.uint64)

    def mix(x):
        x = (x * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
        x ^= x >> np.uint64(15)
        x = (x * np.uint64(0x85EBCA77)) & np.uint64(0xFFFFFFFF)
        return x ^ (x >> np.uint64(13))
    value = (mix(i) >> np.uint64(8)).astype(np.float64) - 2 ** 23
    power = (mix(i // np.uint64(64) + np.uint64(12345)) % np.uint64(7)).astype(np.float64) - 29
    return torch.from_numpy((value * 2.0 ** power).astype(np.float32))


def decoded():
    scales = torch.arange(255, dtype=torch.uint8)
    blocks = ((torch.arange(255)[:, None] * 16 + torch.arange(16)) % 256).to(torch.uint8)
    for name, dtype in TYPES.items():
        # One expert of one column: [1, 1, 255, 16] decodes to [1, 255 * 32, 1].
        values = convert_moe_packed_tensors(blocks[None, None], scales[None, None], dtype=dtype).flatten()
        arrays[f"decode.{name}"] = as_words(values)
    # bf16 has every number of MXFP4, so fp32 needs no words of its own.
    both = (torch.from_numpy(arrays[f"decode.{name}"].view(np.uint8).copy()).view(TYPES[name]).float()
            for name in ("f32", "bf16"))
    assert torch.equal(*both)
    del arrays["decode.f32"]


def encoded(case, x):
    scales, codes = to_mx(x.reshape(1, -1), torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.FLOOR)
    arrays[f"{case}.scales"] = as_words(scales.view(torch.uint8))
    arrays[f"{case}.codes"] = as_words(codes.view(torch.uint8))


def special():
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    around = torch.cat([middles, torch.nextafter(middles, torch.tensor(9.0)), torch.nextafter(middles, torch.tensor(0.0))])
    rows = [torch.zeros(32), -torch.zeros(32)]
    for largest in 4, 5, 6, 7, 7.999999, -7:
        for scale in 1.0, 2.0 ** -123, 2.0 ** 125:
            row = torch.cat([torch.tensor([largest]), around, -middles, -torch.zeros(3)])
            rows.append(row * scale)
    rows.append(formula(32) * 2.0 ** 127)
    rows.append(torch.full((32,), torch.finfo(torch.float32).max))
    return torch.cat(rows)


def main():
    decoded()
    x = formula(64 * 48)
    encoded("encode.f32", x)
    encoded("encode.bf16", x.bfloat16())
    arrays["special.x"] = special()
    encoded("special", special())
    # What the header says of a scale of 0: torchao multiplies by 2^126, so its codes decode to half of the numbers.
    scales, codes = to_mx(torch.full((1, 32), 2.0 ** -125), torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.FLOOR)
    assert scales.view(torch.uint8).item() == 0 and (codes.view(torch.uint8) == 0x44).all(), (scales, codes)
    write(os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden", "mxfp4.bin"), arrays)


if __name__ == "__main__":
    main()
