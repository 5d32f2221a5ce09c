"""Golden runs of families: 20 steps of torch.optim.AdamW on models of models.py, written to tests/golden/steps.bin.

Each case takes its model (config, weights, tokens, targets) from tests/golden/model_CASE.bin, and trains it in fp32:
all tensors but the biases of fused q, k and v. Softmax does not see the bias of k, so its gradient is rounding errors
alone, and AdamW makes steps of full length from them. In steps.bin, the names of its arrays begin with "CASE-steps.":

    step_loss, step_norm, final.TENSOR, optimizer   as in lora.py

There is a case for each kind of block. As in lora.py, the losses must agree with those of double precision.

Run: python scripts/golden/steps.py (needs torch, transformers, peft, numpy)
"""

import copy
import os

import numpy as np
import torch

import goldenfile
import lora
import models

OUT = os.path.join(models.OUT, "steps.bin")
LR = 1e-3
CASES = ["gpt2", "bloom", "falcon_two", "codegen", "gemma2", "olmo3"]


def golden_run(case):
    model, rows = lora.make_base(case)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.endswith(("query_key_value.bias", "c_attn.bias")))
    exact_losses, _ = lora.train(copy.deepcopy(model).double(), rows, LR)
    losses, norms = lora.train(model, rows, LR)
    drift = np.abs(losses - exact_losses).max()
    assert drift < 2e-6, (case, drift)
    assert 0 < (norms > lora.CLIP).sum(), (case, norms)
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f} (fp32 against fp64 {drift:.1e}), "
          f"norms {norms.min():.2f}..{norms.max():.2f}")
    out = {"optimizer": np.array([LR, *lora.BETAS, lora.EPS, lora.DECAY, lora.CLIP]),
           "step_loss": losses, "step_norm": norms}
    out |= {f"final.{n}": p.detach().clone() for n, p in lora.trained(model).items()}
    return {f"{case}-steps.{n}": a for n, a in out.items()}


def main():
    torch.set_num_threads(1)
    arrays = {}
    for case in CASES:
        arrays |= golden_run(case)
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
