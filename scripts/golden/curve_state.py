"""Golden curves of compact optimizer state: 500 steps of the small Llama of curve.py in fp32, by PyTorch's AdamW and by the
8-bit AdamW of bitsandbytes, the peer that most people use.

Written to tests/golden/curve_state.bin; the model, the rows and the weights before step 1 are those of curve_llama.bin:

    lr                f32  [steps]
    loss.fp32         f64  [2, steps] torch.optim.AdamW, cut into micro-batches of 8 and 4 sequences
    loss.adamw8bit    f64  [2, steps] bitsandbytes.optim.AdamW8bit with 8-bit state for every tensor; the same cuts

Run: python scripts/golden/curve_state.py (needs torch, transformers, numpy, bitsandbytes)
"""

import os

import bitsandbytes
import numpy as np
import torch

import curve
import goldenfile

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/curve_state.bin")
STEPS, CUTS = 500, (8, 4)


def adamw8bit(groups, betas, eps):
    """By default, tensors below 4096 elements would have 32-bit state."""
    return bitsandbytes.optim.AdamW8bit(groups, betas=betas, eps=eps, min_8bit_size=1)


def main():
    torch.set_num_threads(1)
    pool = curve.make_pool()

    def losses(adamw):
        return np.stack([curve.train(pool, cut, torch.float32, torch.float32, steps=STEPS, adamw=adamw) for cut in CUTS])

    arrays = {
        "lr": np.array([curve.learning_rate(s, STEPS) for s in range(STEPS)]),
        "loss.fp32": losses(torch.optim.AdamW),
        "loss.adamw8bit": losses(adamw8bit),
    }
    for name in ("loss.fp32", "loss.adamw8bit"):
        for run in arrays[name]:
            apart = abs(run - arrays["loss.fp32"][0])
            print(f"{name:16s} {run[0]:.4f} -> {run[-50:].mean():.4f}  mean |difference| from fp32 {apart.mean():.2e},",
                  "by tenths:", " ".join(f"{part.mean():.1e}" for part in apart.reshape(10, -1)))
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes, bitsandbytes", bitsandbytes.__version__)


if __name__ == "__main__":
    main()
