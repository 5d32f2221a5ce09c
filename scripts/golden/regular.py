#!/usr/bin/env python3
"""Golden vectors of the regularisers, by transformers and PyTorch in float64: tests/golden/regular.bin.

    smoothed, steady, both    rows of logits: the loss of each, and the gradient of the sum times 0.125, with label smoothing
                              (LabelSmoother of transformers), with the z-loss (PaLM, section 5), and with both and a softcap
    balance                   logits of the routers of two layers: load_balancing_loss_func of transformers, and its gradients
                              times the coefficient
    neftune                   embeddings of rows, and the same with the noise of NEFTune, whose random numbers are the program's

And models of models.py and t5.py with regularisers. Their names begin with "BASE-regular.":

    regular                   f64  alpha of NEFTune, label smoothing, weight of the z-loss, coefficient of the balancing loss
    grad.TENSOR, token_loss, loss, bf16_error   as in model_BASE.bin; token_loss includes all regularisers

transformers computes all of them but the z-loss. Its hook of NEFTune is told to draw the program's numbers, for a batch of
one row. The balancing loss is that of all rows, which are one micro-batch of the program.

Run: python scripts/golden/regular.py (needs torch, numpy, transformers)
"""

import copy
import os

import numpy as np
import torch
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.trainer_pt_utils import LabelSmoother

import goldenfile
import lora
import models
import t5

torch.manual_seed(36)
arrays = {}


def smoothed_loss(logits, target, epsilon):
    """The loss of one row, as the Trainer computes it: it predicts the labels of the next place."""
    if target < 0:
        return logits.sum() * 0
    two = torch.stack([logits, logits])[None]
    return LabelSmoother(epsilon)({"logits": two}, torch.tensor([[0, target]]), shift_labels=True)


def losses():
    rows, vocab = 6, 37
    targets = [5, 36, 0, 11, -100, 7]
    for case, epsilon, z_weight, cap in (("smoothed", 0.1, 0, 0), ("steady", 0, 0.01, 0), ("both", 0.3, 0.002, 2.5)):
        logits = torch.randn(rows, vocab) * 4 + torch.tensor([0.0, 10, -30, 500, 0, 1])[:, None] * (cap == 0)
        arrays[f"{case}.logits"] = logits.float()
        logits = logits.double().requires_grad_()
        seen = cap * torch.tanh(logits / cap) if cap else logits
        loss = torch.stack([smoothed_loss(x, t, epsilon) + (t >= 0) * z_weight * torch.logsumexp(x, -1) ** 2
                            for x, t in zip(seen, targets)])
        (grad,) = torch.autograd.grad(loss.sum() * 0.125, logits)
        arrays.update({f"{case}.targets": torch.tensor(targets, dtype=torch.int32), f"{case}.loss": loss.float(),
                       f"{case}.numbers": torch.tensor([cap, epsilon, z_weight]), f"{case}.grad": grad.float()})


def balance():
    n, experts, top, coefficient = 70, 5, 2, 0.7
    layers = torch.randn(2, n, experts)
    arrays.update({"balance.logits": layers.clone(), "balance.numbers": torch.tensor([top, coefficient])})
    layers = layers.double().requires_grad_()
    loss = load_balancing_loss_func(tuple(layers), experts, top)
    (grad,) = torch.autograd.grad(loss * coefficient, layers)
    arrays.update({"balance.loss": (loss * coefficient).float()[None], "balance.grad": grad.float()})


def neftune():
    """The paper's magnitude, alpha / sqrt(tokens * cols), row by row."""
    tokens, cols, alpha, seed, stream = [3, 1, 5], 21, 5.0, 77, 1234567
    x = torch.randn(sum(tokens), cols).bfloat16().float()
    noise = torch.tensor(lora.words(lora.noise(seed, stream), np.arange(x.numel(), dtype=np.uint64)).astype(np.uint32).view(np.int32).reshape(x.shape)) / 2.0**31
    size = torch.cat([torch.full((n, 1), alpha / (n * cols) ** 0.5) for n in tokens])
    starts = np.cumsum([0] + tokens[:-1])
    arrays.update({"neftune.x": x, "neftune.out": (x.double() + size.double() * noise.double()).float(),
                   "neftune.row_start": torch.tensor(np.repeat(starts, tokens).astype(np.int32)),
                   "neftune.alpha": torch.tensor([alpha]),
                   "neftune.key": torch.tensor([seed, stream], dtype=torch.int32)})


# Of models: alpha, smoothing, z-loss, balance.
CASES = {
    # Experts in the first and the last of three layers.
    "qwen3_moe": (0, 0.1, 0.01, 0.5),
    "mixtral": (5, 0, 0, 0.05),
    # The embedding is scaled after the noise, and before it, with a softcap of the logits; a norm behind it.
    "granite": (3, 0, 0.02, 0),
    "gemma2": (8, 0.2, 0.01, 0),
    "bloom": (5, 0.1, 0, 0),
    "t5": (0, 0.15, 0.005, 0),
}
USE_NEFTUNE = 10  # OT_RANDOM_NEFTUNE of src/base/random.h
OF_MICRO = lora.stream(lora.USE_DROPOUT, 1, 0)  # of step 1 and its first micro-batch


class Noise:
    """Uniform numbers in place of torch's, for the embedding of the next row."""

    def __init__(self, cols):
        self.cols, self.first = cols, 0
        self.keys = lora.noise(lora.SEED, lora.stream(USE_NEFTUNE, OF_MICRO, 0))

    def hook(self, module, inputs, output):
        rows = output.shape[1]
        index = np.arange(self.first * self.cols, (self.first + rows) * self.cols, dtype=np.uint64)
        numbers = lora.words(self.keys, index).astype(np.uint32).view(np.int32).reshape(output.shape) / 2.0**31
        self.first += rows
        drawn, torch.Tensor.uniform_ = torch.Tensor.uniform_, lambda to, low, high: to.copy_(torch.tensor(numbers) * high)
        try:
            return neftune_post_forward_hook(module, inputs, output)
        finally:
            torch.Tensor.uniform_ = drawn


def forward(model, row):
    """Logits and labels of the row, and its routers' logits."""
    ids, targets = row
    if model.config.is_encoder_decoder:
        return model(input_ids=torch.tensor(ids[None]), labels=torch.tensor(targets[None])).logits[0], targets, ()
    options = {"output_router_logits": True} if hasattr(model.config, "router_aux_loss_coef") else {}
    out = model(input_ids=torch.tensor(ids[None]), **options)
    return out.logits[0], targets, out.router_logits if options else ()


def run(model, rows, numbers):
    """Losses of the tokens and their mean; gradients are left in the model."""
    alpha, smoothing, z_weight, coefficient = numbers
    embedding, noise = model.get_input_embeddings(), Noise(model.config.hidden_size)
    embedding.neftune_noise_alpha = alpha
    hook = embedding.register_forward_hook(noise.hook) if alpha else None
    embedding.train()
    results = [forward(model, row) for row in rows]
    if hook:
        hook.remove()
    losses, routers = [], []
    for logits, targets, router in results:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses += [smoothed_loss(x, int(t), smoothing) + (t >= 0) * z_weight * torch.logsumexp(x, -1) ** 2
                   for x, t in zip(logits, targets)]
        routers.append(router)
    token_loss = torch.stack(losses)
    trained = torch.tensor(np.concatenate([t for _, t, _ in results]) >= 0)
    if coefficient:
        layers = tuple(torch.cat(parts) for parts in zip(*routers))
        experts = getattr(model.config, "num_local_experts", None) or model.config.num_experts
        token_loss = token_loss + trained * coefficient * load_balancing_loss_func(
            layers, experts, model.config.num_experts_per_tok)
    loss = token_loss.sum() / trained.sum()
    loss.backward()
    return token_loss, loss


def run_as(model, rows, numbers, dtype):
    other = copy.deepcopy(model).to(dtype)
    other.zero_grad()
    token_loss, _ = run(other, rows, numbers)
    return [p.grad for p in other.parameters()], token_loss


def make_base(name):
    if name not in t5.CASES:
        return models.CASES[name][0], *lora.make_base(name)
    seed = t5.SEED + list(t5.CASES).index(name)
    return "t5", t5.make_model(name, seed), t5.make_rows(seed)


def model_case(name, numbers):
    family, model, rows = make_base(name)
    gaps, hooks = models.watch_choices(model)
    token_loss, loss = run(model, rows, numbers)
    for hook in hooks:
        hook.remove()
    assert min(gaps) > 0.005, (name, min(gaps))  # rounding chooses no other expert
    grads = [p.grad for p in model.parameters()]
    exact, exact_loss = run_as(model, rows, numbers, torch.float64)
    worst = max(models.error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (name, worst)
    bf16, bf16_loss = run_as(model, rows, numbers, torch.bfloat16)
    bf16_error = [models.error(models.flat(bf16), models.flat(grads)), models.error(bf16_loss, token_loss)]
    inputs = sum(len(i) for i, _ in rows) if family == "t5" else 0
    out = {"regular": np.array(numbers, np.float64), "loss": np.array([loss.item()]), "bf16_error": np.array(bf16_error),
           "token_loss": torch.cat([torch.zeros(inputs), token_loss.float()])}
    for tensor, p in model.named_parameters():
        out |= {f"grad.{n}": part for n, part in models.in_files(family, tensor, p.grad).items()}
    print(f"{name}: loss {loss.item():.4f}, gradients fp32 against fp64 {worst:.1e}, bf16 {bf16_error[0]:.1e}, "
          f"borders between experts {min(gaps):.3f}")
    return {f"{name}-regular.{n}": a for n, a in out.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    losses()
    balance()
    neftune()
    for case, numbers in CASES.items():
        arrays.update(model_case(case, numbers))
    path = os.path.join(models.OUT, "regular.bin")
    goldenfile.write(path, arrays)
    print(os.path.getsize(path), "bytes")
