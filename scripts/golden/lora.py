"""Golden adapters: PEFT's LoRA over the models of models.py, in fp32, written to tests/golden/lora.bin.

Each case takes its base (config, weights, tokens, targets) from tests/golden/model_BASE.bin. In lora.bin, the names
of its arrays begin with "CASE." (the base's name is the case's up to the first "-"):

    rslora        i64  1: alpha / sqrt(r) in place of alpha / r
    alpha.MODULE  f64  of each module with an adapter; its rank is the first size of its lora_A
    weight.TENSOR f32  adapters at the beginning; B is not zero, so that A has a gradient
    grad.TENSOR   f32  of the mean loss, of all that is trained
    logits, token_loss, loss, bf16_error   as in model_BASE.bin
    step_loss     f64  [20] mean loss before each step of AdamW, all steps with the same rows
    step_norm     f64  [20] global norm of the gradients before clipping
    final.TENSOR  f32  all that is trained, after the last step
    optimizer     f64  lr, beta1, beta2, eps, weight_decay, clip

As in models.py, gradients and losses must agree with those of double precision. Dropout is 0.

Run: python scripts/golden/lora.py (needs torch, transformers, peft, numpy)
"""

import copy
import os

import numpy as np
import peft
import torch

import goldenfile
import models

OUT = os.path.join(models.OUT, "lora.bin")
STEPS, LR, BETAS, EPS, DECAY, CLIP = 20, 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CASES = {
    # Grouped heads; every map of the layers.
    "llama-all": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    # q and v only, so that k lies between two maps with adapters; biases, tied, a window.
    "qwen2-qv_rslora": dict(r=5, lora_alpha=7, use_rslora=True, target_modules=["q_proj", "v_proj"]),
    # Ranks and scales differ within q, k, v and within gate, up; the head has an adapter; norms of q and k.
    "qwen3-patterns": dict(
        r=3, lora_alpha=6, target_modules=LINEAR + ["lm_head"],
        rank_pattern={"k_proj": 1, "layers.1.mlp.down_proj": 6},
        alpha_pattern={"v_proj": 5, "up_proj": 2, "lm_head": 4}),
    # A tied head with an adapter of its own.
    "qwen3_tied-head": dict(r=2, lora_alpha=3, target_modules=["o_proj", "down_proj", "lm_head"]),
    # The head is trained beside the adapters; biases on every map.
    "llama_bias-save": dict(r=2, lora_alpha=4, target_modules=["gate_proj", "up_proj", "k_proj"],
                            modules_to_save=["lm_head"]),
}


def read(path):
    """The arrays of a golden file."""
    dtypes = {short: name for name, short in goldenfile.DTYPES.items()}
    with open(path, "rb") as file:
        data = file.read()
    head, data = data[:data.index(b"\n\n")], data[data.index(b"\n\n") + 2:]
    arrays = {}
    for line in head.decode().split("\n")[1:]:
        name, dtype, dims, offset = line.split()
        shape = [int(d) for d in dims.split("x")]
        arrays[name] = np.frombuffer(data, dtypes[dtype], int(np.prod(shape)), int(offset)).reshape(shape)
    return arrays


def make_base(name):
    family, options = models.CASES[name]
    base = models.make_model(family, options, 0)
    arrays = read(os.path.join(models.OUT, f"model_{name}.bin"))
    with torch.no_grad():
        for tensor, p in base.named_parameters():
            p.copy_(torch.tensor(arrays[f"weight.{tensor}"]))
    starts = sorted(set(arrays["row_start"].tolist())) + [len(arrays["tokens"])]
    tokens, targets = arrays["tokens"].astype(np.int64), arrays["targets"].astype(np.int64)
    return base, [(tokens[a:b], targets[a:b]) for a, b in zip(starts, starts[1:])]


def make_model(name, options, seed):
    base, rows = make_base(name)
    torch.manual_seed(seed)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            if "lora_B" in tensor:
                p.copy_(0.1 * torch.randn_like(p))
    return model, rows


def trained(model):
    """What is trained, under the names of PEFT's files; of the base's tensors, under the base's names."""
    names = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            saved = ".modules_to_save.default" in name
            name = name.replace(".default", "").replace(".modules_to_save", "")
            names[name.removeprefix("base_model.model.") if saved else name] = p
    return names


def alphas(model):
    return {f"alpha.{name.removeprefix('base_model.model.')}": np.array([float(m.lora_alpha["default"])])
            for name, m in model.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}


def train(model, rows):
    matrices = list(trained(model).values())
    optimizer = torch.optim.AdamW(matrices, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(models.run(model, rows)[2].item())
        norms.append(torch.nn.utils.clip_grad_norm_(matrices, CLIP).item())
        optimizer.step()
    return np.array(losses), np.array(norms)


def run_as(model, rows, dtype):
    other = copy.deepcopy(model).to(dtype)
    other.zero_grad()
    _, token_loss, _ = models.run(other, rows)
    return [p.grad for p in trained(other).values()], token_loss


def golden_case(case, options, seed):
    model, rows = make_model(case.split("-")[0], options, seed)
    assert all(p.dim() == 2 for p in trained(model).values())  # so that weight decay applies to all
    logits, token_loss, loss = models.run(model, rows)
    named = trained(model)
    grads = [p.grad for p in named.values()]
    exact, _ = run_as(model, rows, torch.float64)
    worst = max(models.error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (case, worst)
    bf16, bf16_loss = run_as(model, rows, torch.bfloat16)
    arrays = {"rslora": np.array([int(options.get("use_rslora", False))]),
              "optimizer": np.array([LR, *BETAS, EPS, DECAY, CLIP])} | alphas(model)
    arrays |= {f"weight.{n}": p.detach().clone() for n, p in named.items() if "lora_" in n}
    arrays |= {f"grad.{n}": p.grad.clone() for n, p in named.items()}
    arrays |= {"logits": logits, "token_loss": token_loss, "loss": np.array([loss.item()]),
               "bf16_error": np.array([models.error(models.flat(bf16), models.flat(grads)),
                                       models.error(bf16_loss, token_loss)])}
    exact_losses, _ = train(copy.deepcopy(model).double(), rows)
    losses, norms = train(model, rows)
    drift = np.abs(losses - exact_losses).max()
    assert drift < 2e-6, (case, drift)
    assert 0 < (norms > CLIP).sum(), (case, norms)
    arrays |= {"step_loss": losses, "step_norm": norms}
    arrays |= {f"final.{n}": p.detach().clone() for n, p in trained(model).items()}
    print(f"{case}: {len(named)} tensors, gradients fp32 against fp64 {worst:.1e}, loss {losses[0]:.4f} -> "
          f"{losses[-1]:.4f} (fp32 against fp64 {drift:.1e}), norms {norms.min():.2f}..{norms.max():.2f}")
    return {f"{case}.{n}": a for n, a in arrays.items()}


def main():
    torch.set_num_threads(1)
    arrays = {}
    for i, (case, options) in enumerate(CASES.items()):
        arrays |= golden_case(case, options, 300 + i)
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
