#!/usr/bin/env python3
"""Golden vectors of the storage types of frozen weights (kernels/weight_format.h), by bitsandbytes on the CPU:
tests/golden/weights.bin.

Inputs that a formula makes (formula) are not stored: the test has the same formula. Where the CPU's code differs from
that of other devices, the header says which one ours follows; this script asserts each of those differences.
Run: python scripts/golden/weights.py (needs torch, numpy, bitsandbytes 0.50)
"""

import os

import numpy as np
import torch

from goldenfile import write

defaults = {}  # bitsandbytes' kernels for devices without their own, by operator
register = torch.library.register_kernel


def remember(op, device, *rest, **more):
    decorate = register(op, device, *rest, **more)

    def decorated(function):
        if device == "default":
            defaults[op] = function
        return decorate(function)
    return decorated


torch.library.register_kernel = remember
import bitsandbytes.functional as bnb  # noqa: E402

arrays = {}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def as_words(tensor):
    """The bytes of a tensor as int32, padded with zeros."""
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return np.frombuffer(data + b"\0" * (-len(data) % 4), dtype=np.int32)


def formula(n):
    """Numbers in [-1, 1) times a power of two for each 64: exact in fp32."""
    i = np.arange(n, dtype=np.uint64)

    def mix(x):
        x = (x * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
        x ^= x >> np.uint64(15)
        x = (x * np.uint64(0x85EBCA77)) & np.uint64(0xFFFFFFFF)
        return x ^ (x >> np.uint64(13))
    value = (mix(i) >> np.uint64(8)).astype(np.float64) - 2 ** 23
    power = (mix(i // np.uint64(64) + np.uint64(12345)) % np.uint64(7)).astype(np.float64) - 29
    return torch.from_numpy((value * 2.0 ** power).astype(np.float32))


def record(case, **tensors):
    for name, value in tensors.items():
        plain = torch.is_tensor(value) and value.dtype == torch.float32
        arrays[f"{case}.{name}"] = value if plain else as_words(value)


def nf4(case, x, keep_input=True, outputs=("f32",)):
    """A flat matrix; a last block that is shorter is filled with zeros for bitsandbytes, as CUDA has it."""
    n = x.numel()
    padded = torch.nn.functional.pad(x, (0, -n % 64))
    codes, state = bnb.quantize_4bit(padded, blocksize=64, quant_type="nf4")
    if n % 64:
        whole, other = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4")
        assert torch.equal(whole[:n // 64 * 32], codes[:n // 64 * 32]) and torch.equal(other.absmax, state.absmax)
    if keep_input:
        record(case, x=x.float())
    record(case, codes=codes.flatten()[:(n + 1) // 2], absmax=state.absmax)
    for name in outputs:
        state.dtype = TYPES[name]
        record(case, **{name: bnb.dequantize_4bit(codes, state).flatten()[:n]})


def special():
    """Blocks of 64 at the ends of fp32, and values around the places where a code changes."""
    rows = [torch.zeros(64), -torch.zeros(64), formula(64) * 2.0 ** -120, formula(64) * 2.0 ** -140,
            torch.full((64,), 1e-45), formula(64) * 2.0 ** 127 * 1.9, formula(64) * 1e-38 / formula(64).abs().max()]
    table = bnb.get_4bit_type("nf4", device="cpu")
    middles = (table[:-1] + table[1:]) / 2
    for scale in (1.0, 2.0 ** -7, 3.0):
        row = torch.zeros(64)
        row[0] = scale
        row[1:16] = middles * scale
        row[17:32] = torch.nextafter(middles, torch.tensor(2.0)) * scale
        row[33:48] = torch.nextafter(middles, torch.tensor(-2.0)) * scale
        row[48:64] = table * scale
        rows.append(row)
    return torch.cat(rows)


def nested():
    n = 64 * (256 + 77)
    x = formula(n)
    codes, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
    _, plain = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4")
    record("nested", cpu_scales=state.absmax, cpu_groups=state.state2.absmax, map=state.state2.code,
           offset=state.offset.reshape(1), absmax=plain.absmax)
    record("nested", cpu_f32=bnb.dequantize_4bit(codes, state).flatten()[-6000:])
    state.dtype = torch.bfloat16
    record("nested", cpu_bf16=bnb.dequantize_4bit(codes, state))
    # The nearest codes, with an offset that is summed in double. Groups that are whole: the CPU divides in others.
    offset = torch.tensor(plain.absmax.double().mean().item(), dtype=torch.float32)
    assert abs(offset.item() - state.offset.item()) <= 2e-7 * abs(offset.item())
    ours = torch.nn.functional.pad(plain.absmax - offset, (0, -plain.absmax.numel() % 256))
    scales, groups = defaults["bitsandbytes::quantize_blockwise"](ours, state.state2.code, 256)
    record("nested", offset_double=offset.reshape(1), scales=scales[:plain.absmax.numel()], groups=groups)
    check_cpu_scales(state.state2.code)


def check_cpu_scales(table):
    """The CPU's 8-bit codes are those of the scaled numbers rounded to 16 bits: half a step of 2 / 65535 away."""
    x = formula(1 << 16)
    op = torch.ops.bitsandbytes.quantize_blockwise.default
    (cpu, absmax), (nearest, _) = op(x, table, 256), defaults["bitsandbytes::quantize_blockwise"](x, table, 256)
    scaled = x / absmax.repeat_interleave(256)
    worse = (table[cpu.long()] - scaled).abs() - (table[nearest.long()] - scaled).abs()
    print("8-bit scales: the CPU's codes differ in", int((cpu != nearest).sum()), "of", x.numel())
    assert 0 < worse.max() <= 2.1 / 65535, worse.max()


def int8():
    x = formula(40 * 83).reshape(40, 83)
    x[3] = 0
    x[4] *= 2.0 ** -100
    x[5] *= 2.0 ** 127
    x[6] = torch.arange(83) * 0.5 - 20
    x[6, 0] = 127
    x[7] = torch.arange(83) * 0.25 - 10
    x[7, 5] = -63.5
    for name, dtype in TYPES.items():
        part = x if name != "f16" else torch.cat([x[:4], x[6:]])
        codes, absmax, _ = bnb.int8_vectorwise_quant(part.to(dtype))
        codes[absmax == 0] = 0  # 0 * infinity there
        record(f"int8.{name}", codes=codes, absmax=absmax)
        decoded = bnb.int8_vectorwise_dequant(codes, absmax)
        assert decoded.dtype == torch.float32
        record(f"int8.{name}", decoded=decoded if name == "f32" else decoded.to(dtype))
    record("int8", x=x)


def main():
    x = formula(64 * 48)
    nf4("nf4.f32", x, False, TYPES)
    nf4("nf4.bf16", x.bfloat16(), False, ("bf16",))
    nf4("nf4.f16", x.half(), False, ("f16",))
    nf4("special", special())
    for n in (1, 2, 63, 65, 64 * 3 + 17):
        nf4(f"tail.{n}", formula(n), False)
    nested()
    int8()
    # what the header says of blocks that the devices treat differently
    zeros, _ = bnb.quantize_4bit(torch.zeros(64), blocksize=64, quant_type="nf4")
    assert (zeros == 0x77).all()
    path = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden", "weights.bin")
    write(path, arrays)


if __name__ == "__main__":
    main()
