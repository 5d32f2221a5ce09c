"""Golden runs of families: 20 steps of torch.optim.AdamW on models of models.py, written to tests/golden/steps.bin.

Each case takes its model (config, weights, tokens, targets) from tests/golden/model_CASE.bin, and trains it in fp32:
all tensors but the biases of fused q, k and v. Softmax does not see the bias of k, so its gradient is rounding errors
alone, and AdamW makes steps of full length from them. In steps.bin, the names of its arrays begin with "CASE-steps.":

    step_loss, step_norm, final.TENSOR, optimizer   as in lora.py

There is a case for each kind of block. As in lora.py, the losses must agree with those of double precision. The learning
rates of cases with experts are such that no token is near the border between two experts, so rounding chooses none.

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
LR, RATES = 1e-3, {"mixtral": 8e-4, "qwen3_moe": 5e-4}
CASES = ["gpt2", "bloom", "falcon_two", "codegen", "gemma2", "olmo3", "mixtral", "qwen3_moe", "gpt_oss"]


def golden_run(case):
    model, rows = lora.make_base(case)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.endswith(("query_key_value.bias", "c_attn.bias")))
    lr = RATES.get(case, LR)
    exact_losses, _ = lora.train(copy.deepcopy(model).double(), rows, lr)
    gaps, _ = models.watch_choices(model)
    losses, norms = lora.train(model, rows, lr)
    drift = np.abs(losses - exact_losses).max()
    assert drift < 2e-6, (case, drift)
    assert 0 < (norms > lora.CLIP).sum(), (case, norms)
    assert min(gaps) > 1e-4, (case, min(gaps))
    print(f"{case}: loss {losses[0]:.4f} -> {losses[-1]:.4f} (fp32 against fp64 {drift:.1e}), "
          f"norms {norms.min():.2f}..{norms.max():.2f}, borders between experts {min(gaps):.1e}")
    out = {"optimizer": np.array([lr, *lora.BETAS, lora.EPS, lora.DECAY, lora.CLIP]),
           "step_loss": losses, "step_norm": norms}
    for name, p in lora.trained(model).items():
        out |= {f"final.{n}": part.detach().clone() for n, part in models.in_files(models.CASES[case][0], name, p).items()}
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
