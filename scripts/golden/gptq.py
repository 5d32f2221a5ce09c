#!/usr/bin/env python3
"""GPTQ by the book (Frantar et al., arXiv 2210.17323, algorithm 1), in fp64: tests/golden/gptq.bin.

A matrix, the mean H of x x^T of random correlated inputs with one input that is always 0, and for each setting the
codes and the error tr((W - Q) H (W - Q)^T). Scales are rounded to fp16, as they are stored.
Run: python scripts/golden/gptq.py (needs numpy)
"""

import os

import numpy as np

from goldenfile import write

ROWS, COLS = 40, 192
SETTINGS = {"4-32-act-sym": (4, 32, True, True), "3-64-asym": (3, 64, False, False), "2-all-act-asym": (2, COLS, True, False),
            "8-128-sym": (8, 128, False, True), "4-32-asym": (4, 32, False, False)}


def find_grids(groups, most, symmetric):
    """Scale and zero point of each row."""
    low, high = np.minimum(0.0, groups.min(axis=1)), np.maximum(0.0, groups.max(axis=1))
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    low, high = np.where(low == high, -1.0, low), np.where(low == high, 1.0, high)
    scale = ((high - low) / most).astype(np.float32).astype(np.float16).astype(np.float64)
    return scale, np.full(len(groups), (most + 1) / 2) if symmetric else np.minimum(np.round(-low / scale), most)


def gptq(weights, hessian, bits, group_size, act_order, symmetric, damping=0.01):
    """The codes and the values. hessian None: each weight becomes the nearest code, in the order of the columns."""
    rows, cols = weights.shape
    most = 2 ** bits - 1
    w, order, upper = weights.astype(np.float64).copy(), np.arange(cols), np.eye(cols)
    if hessian is not None:
        h = hessian.astype(np.float64).copy()
        dead = np.diag(h) == 0
        h[dead, dead] = 1
        w[:, dead] = 0
        order = np.argsort(-np.diag(hessian), kind="stable") if act_order else order
        w, h = w[:, order], h[np.ix_(order, order)]
        h += damping * np.mean(np.diag(h)) * np.eye(cols)
        upper = np.linalg.cholesky(np.linalg.inv(h)).T
    codes, values = np.zeros((rows, cols), np.int32), np.zeros((rows, cols))
    for i in range(cols):
        if i % group_size == 0:
            scale, zero = find_grids(w[:, i:i + group_size], most, symmetric)
        codes[:, i] = np.clip(np.round(w[:, i] / scale) + zero, 0, most)
        values[:, i] = scale * (codes[:, i] - zero)
        w[:, i:] -= np.outer((w[:, i] - values[:, i]) / upper[i, i], upper[i, i:])
    back = np.argsort(order)
    return codes[:, back], values[:, back]


def main():
    random = np.random.default_rng(11)
    mix = random.standard_normal((COLS, COLS)) * (0.1 + random.random(COLS)) ** 3
    inputs = random.standard_normal((700, COLS)) @ mix
    inputs[:, 17] = 0
    hessian = (inputs.T @ inputs / len(inputs)).astype(np.float32)
    weights = (random.standard_normal((ROWS, COLS)) / 16).astype(np.float32)
    weights[3] = 0
    arrays = {"weights": weights, "hessian": hessian}
    for name, setting in SETTINGS.items():
        codes, values = gptq(weights, hessian, *setting)
        lost = weights.astype(np.float64) - values
        arrays[f"{name}.codes"] = codes
        arrays[f"{name}.error"] = np.array([np.trace(lost @ hessian.astype(np.float64) @ lost.T)])
    power = np.trace(weights.astype(np.float64) @ hessian.astype(np.float64) @ weights.T.astype(np.float64))
    arrays["power"] = np.array([power])
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "gptq.bin"), arrays)


if __name__ == "__main__":
    main()
