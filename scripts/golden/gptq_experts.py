#!/usr/bin/env python3
"""GPTQ of whole mixtures of experts in fp64, over transformers' forward: tests/golden/gptq_experts.bin.

The models and rows are those of tests/support/expert_models.py, the arithmetic of a matrix is that of gptq.py. The maps of a
layer are taken in the order of forward, each on the inputs that it has when the earlier ones are quantized. An expert is
calibrated on the tokens that the router sends to it; with less than 0.5 % of all tokens, it is rounded to nearest.

    MODEL.error.LAYER.MAP   f64  sqrt(sum of tr((W - Q) H (W - Q)^T) / sum of tr(W H W^T)), H the sum of x x^T, damped in the
                                 first sum; the sums are over the calibrated experts
    MODEL.rounded           i64  of each layer: the experts that are rounded
    MODEL.codes.MATRIX      u8   of some matrices, and of all that are rounded
    MODEL.loss              f64  mean over the predicted tokens of all rows, before and after

Run: python scripts/golden/gptq_experts.py (needs torch, transformers 5, numpy)
"""

import os
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers

from goldenfile import write
from gptq import gptq

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import expert_models  # noqa: E402

SETTINGS = {"mixtral": (4, 32, False, True), "qwen3_moe": (3, 32, True, False)}
LEAST_SHARE = 0.005
CODES = {"mixtral": ["0.self_attn.q_proj", "0.block_sparse_moe.experts.5.w3", "0.block_sparse_moe.experts.2.w2"],
         "qwen3_moe": ["0.self_attn.o_proj", "0.mlp.experts.7.up_proj", "0.mlp.experts.31.down_proj", "1.mlp.down_proj"]}


class Job:
    def __init__(self, name, model, rows):
        self.name, self.model, self.rows = name, model, rows
        self.tokens = sum(len(row) for row in rows)
        self.sums, self.arrays, self.rounded = {}, {}, []

    def inputs(self, module):
        """What the module gets in a forward of all rows: [tokens, width]."""
        seen = []
        hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].reshape(-1, args[0].shape[-1])))
        for row in self.rows:
            self.model(torch.tensor([row]))
        hook.remove()
        return torch.cat(seen).numpy()

    def loss(self):
        losses = [torch.nn.functional.cross_entropy(self.model(torch.tensor([row])).logits[0, :-1], torch.tensor(row[1:]),
                                                    reduction="sum").item() for row in self.rows]
        return sum(losses) / sum(len(row) - 1 for row in self.rows)

    def quantize(self, layer, matrix, weight, x, calibrated=True):
        """Replaces a matrix. matrix: its name in files, behind the layer's number; x: its inputs."""
        w = weight.detach().numpy().copy()
        hessian = x.T @ x / len(x) if calibrated else None
        codes, values = gptq(w, hessian, *SETTINGS[self.name])
        if calibrated:
            damped = hessian + 0.01 * np.mean(np.diag(hessian)) * np.eye(len(hessian))
            sums = self.sums.setdefault(f"{layer}.{matrix.split('.')[-1]}", [0, 0])
            sums[0] += len(x) * np.trace((w - values) @ damped @ (w - values).T)
            sums[1] += len(x) * np.trace(w @ hessian @ w.T)
        if f"{layer}.{matrix}" in CODES[self.name] or not calibrated:
            self.arrays[f"codes.{layer}.{matrix}"] = codes.astype(np.uint8)
            print(f"{self.name}.{layer}.{matrix}: {len(x)} rows, {'calibrated' if calibrated else 'rounded'}")
        with torch.no_grad():
            weight.copy_(torch.from_numpy(values))


def silu(x):
    return x / (1 + np.exp(-x))


def quantize_experts(job, layer, mlp, names):
    block, (gate, up, down) = names
    x = job.inputs(mlp)
    logits = x @ mlp.gate.weight.numpy().T
    ranked = np.argsort(-logits, axis=1, kind="stable")
    top = mlp.gate.top_k
    margins = np.take_along_axis(logits, ranked, 1)
    least = (margins[:, top - 1] - margins[:, top]).min()
    assert least > 1e-5, least  # fp32 makes the same choices
    taken = [x[(ranked[:, :top] == e).any(axis=1)] for e in range(logits.shape[1])]
    assert sum(map(len, taken)) == top * job.tokens == top * len(x)
    enough = [len(rows) >= LEAST_SHARE * job.tokens for rows in taken]
    job.rounded.append(enough.count(False))
    experts = mlp.experts
    for e, rows in enumerate(taken):
        for name, half in zip((gate, up), experts.gate_up_proj[e].chunk(2)):
            job.quantize(layer, f"{block}.experts.{e}.{name}", half, rows, enough[e])
        g, u = (half.detach().numpy() for half in experts.gate_up_proj[e].chunk(2))
        job.quantize(layer, f"{block}.experts.{e}.{down}", experts.down_proj[e], silu(rows @ g.T) * (rows @ u.T), enough[e])


def quantize_layer(job, config, layer, module):
    attention, mlp = module.self_attn, module.mlp
    x = job.inputs(attention.q_proj)
    for name in "qkv":
        job.quantize(layer, f"self_attn.{name}_proj", getattr(attention, name + "_proj").weight, x)
    job.quantize(layer, "self_attn.o_proj", attention.o_proj.weight, job.inputs(attention.o_proj))
    count, _, block, names = expert_models.experts_of(config, layer)
    if count:
        return quantize_experts(job, layer, mlp, (block, names))
    x = job.inputs(mlp)
    for name in names[:2]:
        job.quantize(layer, f"mlp.{name}", getattr(mlp, name).weight, x)
    job.quantize(layer, f"mlp.{names[2]}", getattr(mlp, names[2]).weight, job.inputs(getattr(mlp, names[2])))
    return job.rounded.append(0)


def quantized(name):
    config = expert_models.MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        expert_models.write_model(os.path.join(folder, name), name)
        model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, name), dtype=torch.float64,
                                                                  attn_implementation="eager").eval()
    model.set_experts_implementation("eager")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    job = Job(name, model, expert_models.rows())
    before = job.loss()
    for layer, module in enumerate(model.model.layers):
        quantize_layer(job, config, layer, module)
    job.arrays |= {f"error.{key}": np.array([np.sqrt(error / power)]) for key, (error, power) in job.sums.items()}
    job.arrays |= {"rounded": np.array(job.rounded), "loss": np.array([before, job.loss()])}
    print(name, job.rounded, job.arrays["loss"], {key: float(np.sqrt(a / b)) for key, (a, b) in job.sums.items()})
    return {f"{name}.{key}": array for key, array in job.arrays.items()}


def main():
    torch.set_grad_enabled(False)
    arrays = {}
    for name in expert_models.MODELS:
        arrays |= quantized(name)
    write(str(ROOT / "tests/golden/gptq_experts.bin"), arrays)


if __name__ == "__main__":
    main()
