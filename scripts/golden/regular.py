#!/usr/bin/env python3
"""Golden vectors of the regularisers, by transformers and PyTorch in float64: tests/golden/regular.bin.

    smoothed, steady, both    rows of logits: the loss of each, and the gradient of the sum times 0.125, with label smoothing
                              (LabelSmoother of transformers), with the z-loss (PaLM, section 5), and with both and a softcap
    balance                   logits of the routers of two layers: load_balancing_loss_func of transformers, and its gradients
                              times the coefficient
    neftune                   embeddings of rows, and the same with the noise of NEFTune, whose random numbers are the program's

And models of models.py and t5.py with regularisers. Their names begin with "BASE-regular.":

    regular                   f64  alpha of NEFTune, label smoothing, weight of the z-loss, coefficient of the balancing loss;
                                   dropout of the embedding, of attention's weights, of what attention and the MLP add
    grad.TENSOR, token_loss, loss, bf16_error   as in model_BASE.bin; token_loss includes all regularisers
    bf16_worst                f64  T5: the largest error of one tensor's gradient

transformers computes all of them but the z-loss. Its hook of NEFTune is told to draw the program's numbers, for a batch of
one row. The balancing loss is that of all rows, which are one micro-batch of the program. Dropout of the config drops the
elements that the program drops (models/dropout.h): a row's calls of dropout come in a known order (SITES).

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


# Of models: alpha, smoothing, z-loss, balance; keys of the config.
CASES = {
    # Experts in the first and the last of three layers.
    "qwen3_moe": ((0, 0.1, 0.01, 0.5), {}),
    "mixtral": ((5, 0, 0, 0.05), {"attention_dropout": 0.2}),
    # The embedding is scaled after the noise, and before it, with softcaps; a norm behind it.
    "granite": ((3, 0, 0.02, 0), {}),
    "gemma2": ((8, 0.2, 0.01, 0), {"attention_dropout": 0.3}),
    "bloom": ((5, 0.1, 0, 0), {"attention_dropout": 0.1, "hidden_dropout": 0.3}),
    "gpt2": ((4, 0, 0, 0), {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3}),
    "codegen": ((0, 0, 0, 0), {"embd_pdrop": 0.3, "attn_pdrop": 0.2, "resid_pdrop": 0.1}),
    "falcon_two": ((0, 0, 0, 0), {"attention_dropout": 0.2, "hidden_dropout": 0.3}),
    "falcon_alibi": ((0, 0, 0, 0), {"attention_dropout": 0.2, "hidden_dropout": 0.1}),
    "phi3": ((0, 0, 0, 0), {"attention_dropout": 0.2, "resid_pdrop": 0.3, "embd_pdrop": 0.1}),
    "t5": ((0, 0.15, 0.005, 0), {"dropout_rate": 0.2}),
    "t5_gated": ((0, 0, 0, 0), {"dropout_rate": 0.1}),
}
# The order of enum ot_drop_site.
EMBED, ENCODER_OUT, HEAD, ATTENTION, CROSS_ATTENTION, O, CROSS_O, MLP, INNER, N_SITES = range(10)
# The sites at which a decoder's layer drops, in the order of the calls. Falcon drops the sum of both branches at once.
SITES = {"gpt2": (ATTENTION, O, MLP), "codegen": (ATTENTION, O, MLP), "bloom": (ATTENTION, O, MLP), "phi3": (ATTENTION, O, MLP),
         "falcon_alibi": (ATTENTION, O, MLP), "falcon_two": (O,), "gemma2": (ATTENTION,), "mixtral": (ATTENTION,)}
USE_REGULAR = 10  # OT_RANDOM_REGULAR of src/base/random.h
OF_MICRO = lora.stream(lora.USE_DROPOUT, 1, 0)  # of step 1 and its first micro-batch


class Noise:
    """Uniform numbers in place of torch's, for the embedding of the next row."""

    def __init__(self, cols):
        self.cols, self.first = cols, 0
        self.keys = lora.noise(lora.SEED, lora.stream(USE_REGULAR, OF_MICRO, 0))

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


class Drops:
    """In place of torch's dropout, while rows run one after the other."""

    def __init__(self, case, rows, config):
        self.config, self.calls = config, []
        self.layer_sites = SITES.get(case, ())
        self.pairs = config.is_encoder_decoder
        lengths = [(len(a), len(b) if self.pairs else 0) for a, b in rows]
        self.totals = [sum(n[i] for n in lengths) for i in range(2)]
        self.begins = [tuple(sum(n[i] for n in lengths[:r]) for i in range(2)) for r in range(len(rows))]

    def begin_row(self, r):
        assert not self.calls, self.calls
        first, behind = self.begins[r]
        n, n_targets = self.totals
        if not self.pairs:
            own = (n, n, first, first)  # of weights: queries, keys, the row's first ones
            self.calls = [(EMBED, 0, first)] * hasattr(self.config, "embd_pdrop") if "phi3" not in self.config.model_type else []
            for layer in range(self.config.num_hidden_layers):
                self.calls += [(site, layer, own if site == ATTENTION else first) for site in self.layer_sites]
            return
        target = n + behind
        encoder, decoder, cross = (n, n, first, first), (n_targets, n + n_targets, behind, target), (n_targets, n, behind, first)
        self.calls = [(EMBED, 0, first)]
        for layer in range(self.config.num_layers):
            self.calls += [(ATTENTION, layer, encoder), (O, layer, first), (INNER, layer, first), (MLP, layer, first)]
        self.calls += [(ENCODER_OUT, 0, first), (EMBED, 0, target)]
        for layer in range(self.config.num_layers, self.config.num_layers + self.config.num_decoder_layers):
            self.calls += [(ATTENTION, layer, decoder), (O, layer, target), (CROSS_ATTENTION, layer, cross), (CROSS_O, layer, target),
                           (INNER, layer, target), (MLP, layer, target)]
        self.calls += [(HEAD, 0, target)]

    def dropout(self, x, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return x
        site, layer, first = self.calls.pop(0)
        if site in (ATTENTION, CROSS_ATTENTION):
            n, keys, query, key = first
            heads, rows, cols = x.shape[1:]
            index = ((np.arange(heads)[:, None, None] * n + query + np.arange(rows)[:, None]) * keys + key + np.arange(cols))
        else:
            rows, cols = x.shape[1:]
            index = (first + np.arange(rows)[:, None]) * cols + np.arange(cols)
        keys = lora.noise(lora.SEED, lora.stream(USE_REGULAR, OF_MICRO, 1 + layer * N_SITES + site))
        p = float(np.float32(p))
        kept = lora.words(keys, index.astype(np.uint64)) >= int(p * 2**32)
        return x * torch.tensor(np.where(kept, np.float32(1 / (1 - p)), np.float32(0))).to(x.dtype)

    def attention(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
        weights = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            weights = weights.masked_fill(torch.ones(weights.shape[-2:]).triu(1).bool(), -torch.inf)
        weights = weights if attn_mask is None else weights + attn_mask
        return self.dropout(torch.softmax(weights, -1), dropout_p) @ v

    def __enter__(self):
        F = torch.nn.functional
        self.torch = F.dropout, F.scaled_dot_product_attention
        F.dropout, F.scaled_dot_product_attention = self.dropout, self.attention

    def __exit__(self, *_):
        torch.nn.functional.dropout, torch.nn.functional.scaled_dot_product_attention = self.torch
        assert not self.calls or _[0], self.calls


def forward(model, row):
    """Logits and labels of the row, and its routers' logits."""
    ids, targets = row
    if model.config.is_encoder_decoder:
        return model(input_ids=torch.tensor(ids[None]), labels=torch.tensor(targets[None])).logits[0], targets, ()
    options = {"output_router_logits": True} if hasattr(model.config, "router_aux_loss_coef") else {}
    out = model(input_ids=torch.tensor(ids[None]), **options)
    return out.logits[0], targets, out.router_logits if options else ()


def run(model, rows, numbers, case):
    """Losses of the tokens and their mean; gradients are left in the model."""
    alpha, smoothing, z_weight, coefficient = numbers
    embedding, noise = model.get_input_embeddings(), Noise(model.config.hidden_size)
    embedding.neftune_noise_alpha = alpha
    hook = embedding.register_forward_hook(noise.hook) if alpha else None
    drops, results = Drops(case, rows, model.config), []
    model.train(bool(CASES[case][1]))
    embedding.train()
    with drops:
        for r, row in enumerate(rows):
            if CASES[case][1]:
                drops.begin_row(r)
            results.append(forward(model, row))
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


def run_as(model, rows, numbers, case, dtype):
    other = copy.deepcopy(model).to(dtype)
    other.zero_grad()
    token_loss, _ = run(other, rows, numbers, case)
    return [p.grad for p in other.parameters()], token_loss


def make_base(name):
    if name in t5.CASES:
        t5.CASES[name] |= CASES[name][1]
    else:
        models.CASES[name][1].update(CASES[name][1])
    if name not in t5.CASES:
        return models.CASES[name][0], *lora.make_base(name)
    seed = t5.SEED + list(t5.CASES).index(name)
    return "t5", t5.make_model(name, seed), t5.make_rows(seed)


def model_case(name, numbers, config):
    family, model, rows = make_base(name)
    gaps, hooks = models.watch_choices(model)
    token_loss, loss = run(model, rows, numbers, name)
    for hook in hooks:
        hook.remove()
    assert min(gaps) > 0.005, (name, min(gaps))  # rounding chooses no other expert
    grads = [p.grad for p in model.parameters()]
    exact, exact_loss = run_as(model, rows, numbers, name, torch.float64)
    worst = max(models.error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (name, worst)
    bf16, bf16_loss = run_as(model, rows, numbers, name, torch.bfloat16)
    bf16_error = [models.error(models.flat(bf16), models.flat(grads)), models.error(bf16_loss, token_loss)]
    inputs = sum(len(i) for i, _ in rows) if family == "t5" else 0
    rate, attention = config.get("dropout_rate", 0), config.get("attn_pdrop", config.get("attention_dropout", 0))
    branches = config.get("resid_pdrop", config.get("hidden_dropout", rate))
    drops = (config.get("embd_pdrop", rate) if family != "phi3" else 0, 0 if name == "falcon_two" else attention or rate,
             attention if name == "falcon_alibi" else branches, branches)
    out = {"regular": np.array(numbers + drops, np.float64), "loss": np.array([loss.item()]), "bf16_error": np.array(bf16_error),
           "token_loss": torch.cat([torch.zeros(inputs), token_loss.float()])}
    if family == "t5":  # where norms of the encoder have small gradients
        out["bf16_worst"] = np.array([max(models.error(b, g) for b, g in zip(bf16, grads))])
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
    for case, (numbers, config) in CASES.items():
        arrays.update(model_case(case, numbers, config))
    path = os.path.join(models.OUT, "regular.bin")
    goldenfile.write(path, arrays)
    print(os.path.getsize(path), "bytes")
