#!/usr/bin/env python3
"""Golden vectors of the ops (kernels/ops.h), forward and backward, by PyTorch in float64: tests/golden/ops.bin.

Inputs lie on the bf16 grid, so that the same file serves the fp32 and the bf16 ops. Results are stored as fp32: one
rounding of the float64 value. Run: python scripts/golden/ops.py (needs torch, numpy, transformers)
"""

import os

import torch
import torch.nn.functional as F

from goldenfile import write

torch.manual_seed(2)
arrays = {}


def inputs(case, **shapes):
    """Random float64 leaves on the bf16 grid, recorded under CASE.NAME."""
    tensors = []
    for name, shape in shapes.items():
        value = torch.randn(shape).bfloat16().double()
        arrays[f"{case}.{name}"] = value.float()
        tensors.append(value.requires_grad_())
    return tensors


def constant(case, name, value):
    arrays[f"{case}.{name}"] = value
    return value


def results(case, **tensors):
    for name, value in tensors.items():
        arrays[f"{case}.{name}"] = value.detach().float()


def backward(case, out, leaves, dout_name="dout"):
    """Back-propagates a random gradient; leaves: {name of the gradient: leaf}."""
    dout = torch.randn(out.shape).bfloat16().double()
    arrays[f"{case}.{dout_name}"] = dout.float()
    grads = torch.autograd.grad(out, list(leaves.values()), dout)
    results(case, **dict(zip(leaves, grads)))


def gemm():
    for case, m, n, k in (("gemm", 7, 13, 19),):
        a, b, bias, c = inputs(case, a=(m, k), b=(k, n), bias=(n,), c=(m, n))
        results(case, product=a @ b, with_bias=a @ b + bias, accumulated=c + a @ b)


def embed():
    (table,) = inputs("embed", table=(11, 20))
    tokens = torch.tensor([3, 0, 10, 3, 3, 7, 0], dtype=torch.int32)
    constant("embed", "tokens", tokens)
    out = F.embedding(tokens.long(), table)
    results("embed", out=out)
    backward("embed", out, {"dtable": table})


def norm():
    """Either norm."""
    for case, kind, rows, cols in (("norm.rms", "rms", 5, 21), ("norm.layer", "layer", 5, 21)):
        x, weight, bias = inputs(case, x=(rows, cols), weight=(cols,), bias=(cols,))
        eps = 1e-5
        if kind == "rms":
            rstd = torch.rsqrt((x * x).mean(-1) + eps)
            y = x * rstd[:, None] * weight
            leaves = {"dx": x, "dweight": weight}
        else:
            mean = x.mean(-1)
            rstd = torch.rsqrt(((x - mean[:, None]) ** 2).mean(-1) + eps)
            y = F.layer_norm(x, (cols,), weight, bias, eps)
            leaves = {"dx": x, "dweight": weight, "dbias": bias}
            results(case, mean=mean)
        results(case, y=y, rstd=rstd)
        backward(case, y, leaves, "dy")


def rope():
    """Hugging Face's rotate_half on the first rotary_dim elements of each head."""
    n, heads, dim, rotary, positions = 5, 3, 12, 8, 40
    (x,) = inputs("rope", x=(n, heads, dim))
    position = constant("rope", "position", torch.tensor([0, 1, 39, 7, 0], dtype=torch.int32))
    angle = torch.arange(positions).double()[:, None] / 10000 ** (torch.arange(0, rotary, 2).double() / rotary)
    cos = constant("rope", "cos", angle.cos().float()).double()[position.long()][:, None]
    sin = constant("rope", "sin", angle.sin().float()).double()[position.long()][:, None]
    head, tail = x[..., :rotary], x[..., rotary:]
    half = torch.cat((-head[..., rotary // 2 :], head[..., : rotary // 2]), -1)
    y = torch.cat((head * torch.cat((cos, cos), -1) + half * torch.cat((sin, sin), -1), tail), -1)
    results("rope", y=y)
    backward("rope", y, {"dx": x}, "dy")


def attention_mask(row_start, n_keys, window):
    """True where query i sees key j."""
    n = len(row_start)
    own = torch.arange(n)[:, None] + n_keys - n
    key = torch.arange(n_keys)[None]
    seen = (key >= torch.tensor(row_start)[:, None]) & (key <= own)
    return seen & (key > own - window) if window else seen


def attention():
    cases = {
        "attention.plain": (9, 9, 2, 2, 8, 0, [0] * 9),
        "attention.grouped": (21, 21, 6, 2, 5, 0, [0] * 4 + [4] * 1 + [5] * 16),
        "attention.window": (18, 18, 2, 1, 8, 5, [0] * 11 + [11] * 7),
        "attention.decode": (3, 20, 4, 2, 8, 0, [0] * 3),
    }
    for case, (n, n_keys, heads, kv_heads, dim, window, row_start) in cases.items():
        q, k, v = inputs(case, q=(n, heads, dim), k=(n_keys, kv_heads, dim), v=(n_keys, kv_heads, dim))
        constant(case, "row_start", torch.tensor(row_start, dtype=torch.int32))
        constant(case, "window", torch.tensor([window], dtype=torch.int32))
        group = heads // kv_heads
        wide_k, wide_v = (t.repeat_interleave(group, 1).transpose(0, 1) for t in (k, v))
        mask = attention_mask(row_start, n_keys, window)
        out = F.scaled_dot_product_attention(q.transpose(0, 1), wide_k, wide_v, attn_mask=mask).transpose(0, 1)
        scores = (q.transpose(0, 1) @ wide_k.transpose(1, 2)) / dim**0.5
        lse = scores.masked_fill(~mask, float("-inf")).logsumexp(-1)
        results(case, out=out, lse=lse)
        backward(case, out, {"dq": q, "dk": k, "dv": v})


def bent_attention():
    """Attention with a softcap (Gemma 2) and with sinks (gpt-oss), in the order of their Hugging Face models: scores,
    softcap, mask; then the sink as one more logit, whose weight is dropped after the softmax."""
    rows = [0] * 9 + [9] * 8 + [17] * 1
    cases = {
        "attention.capped": (18, 18, 4, 2, 8, 0, rows, 1.5, False, 1),
        "attention.sinks": (18, 18, 4, 2, 8, 5, rows, 0, True, 1),
        "attention.capped_sinks": (18, 18, 6, 2, 8, 5, rows, 2.5, True, 1),
        "attention.saturated": (18, 18, 4, 1, 8, 7, rows, 3, True, 16),
        "attention.capped_decode": (3, 20, 4, 2, 8, 0, [0] * 3, 1.5, True, 1),
    }
    for case, (n, n_keys, heads, kv_heads, dim, window, row_start, softcap, sunk, size) in cases.items():
        q, k, v = inputs(case, q=(n, heads, dim), k=(n_keys, kv_heads, dim), v=(n_keys, kv_heads, dim))
        with torch.no_grad():
            q *= size
        arrays[f"{case}.q"] = q.detach().float()
        constant(case, "row_start", torch.tensor(row_start, dtype=torch.int32))
        constant(case, "window", torch.tensor([window], dtype=torch.int32))
        leaves = {"dq": q, "dk": k, "dv": v}
        wide_k, wide_v = (t.repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for t in (k, v))
        scores = (q.transpose(0, 1) @ wide_k.transpose(1, 2)) / dim**0.5
        if softcap:
            constant(case, "softcap", torch.tensor([float(softcap)]))
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(~attention_mask(row_start, n_keys, window), float("-inf"))
        if sunk:
            (sinks,) = inputs(case, sinks=(heads,))
            scores = torch.cat((scores, sinks[:, None, None].expand(heads, n, 1)), -1)
            leaves["dsinks"] = sinks
        out = (scores.softmax(-1)[..., :n_keys] @ wide_v).transpose(0, 1)
        results(case, out=out, lse=scores.logsumexp(-1))
        backward(case, out, leaves)


def t5_buckets(bidirectional, reach):
    """transformers' buckets of the distances -reach to reach (key minus query). 32 buckets; distances from 128 on share
    the last one, so a table up to 128 serves every distance."""
    from transformers.models.t5.modeling_t5 import T5Attention

    bucket = T5Attention._relative_position_bucket
    far = torch.arange(-10000, 10001)
    assert (bucket(far, bidirectional, 32, 128) == bucket(far.clamp(-128, 128), bidirectional, 32, 128)).all()
    return bucket(torch.arange(-reach, reach + 1), bidirectional, 32, 128).int()


def spans():
    """Attention over spans of keys, by the formula of transformers' T5: scores without 1 / sqrt(dim), plus the bias of the
    bucket. A query without keys gives 0."""
    inputs_of = [(0, 6)] * 6 + [(0, 0)] * 3 + [(9, 30)] * 21 + [(5, 5)] * 10
    targets = [(0, 0)] * 4 + [(4, i + 1) for i in range(4, 11)] + [(2, 1)] * 9 + [(20, i + 1) for i in range(20, 41)]
    sources = [(0, 0)] * 2 + [(0, 7)] * 5 + [(7, 8)] * 3 + [(8, 45)] * 6
    cases = {  # n_keys, heads, dim, spans, bidirectional or None, scale
        "spans.encoder": (40, 3, 8, inputs_of, True, 1.0),
        "spans.decoder": (41, 2, 8, targets, False, 1.0),
        "spans.cross": (45, 2, 5, sources, None, 0.5),
        "spans.cache": (50, 2, 8, [(0, 48), (0, 49), (0, 50)], False, 1.0),
    }
    for case, (n_keys, heads, dim, seen, both_ways, scale) in cases.items():
        n = len(seen)
        q, k, v = inputs(case, q=(n, heads, dim), k=(n_keys, heads, dim), v=(n_keys, heads, dim))
        leaves = {"dq": q, "dk": k, "dv": v}
        constant(case, "scale", torch.tensor([scale]))
        first, end = (torch.tensor(side, dtype=torch.int32) for side in zip(*seen))
        constant(case, "key_first", first)
        constant(case, "key_end", end)
        key = torch.arange(n_keys)[None]
        visible = (key >= first[:, None]) & (key < end[:, None])
        scores = scale * (q.transpose(0, 1) @ k.permute(1, 2, 0))
        if both_ways is not None:
            (bias,) = inputs(case, bias=(32, heads))
            leaves["dbias"] = bias
            buckets = constant(case, "bucket_of", t5_buckets(both_ways, 128))
            own = torch.arange(n)[:, None] + n_keys - n
            scores = scores + bias[buckets[key - own + 128].long()].permute(2, 0, 1)
        empty = ~visible.any(-1)
        masked = scores.masked_fill(~visible, float("-inf"))
        weights = masked.masked_fill(empty[:, None], 0).softmax(-1).masked_fill(empty[:, None], 0)
        out = (weights @ v.transpose(0, 1)).transpose(0, 1)
        results(case, out=out, lse=masked.logsumexp(-1).masked_fill(empty, 0))
        backward(case, out, leaves)


def activations():
    acts = {
        "silu": F.silu,
        "gelu_erf": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
    }
    wide = torch.cat((torch.randn(40) * 3, torch.tensor([0.0, -0.0, 1e-3, -30, 30, -100, 100, -9, 9, -5.5])))
    for name, act in acts.items():
        case = f"act.{name}"
        x = wide.bfloat16().double()
        arrays[f"{case}.x"] = x.float()
        x.requires_grad_()
        y = act(x)
        results(case, y=y)
        backward(case, y, {"dx": x}, "dy")
        case = f"glu.{name}"
        gate, up = inputs(case, gate=(3, 18), up=(3, 18))
        out = act(gate) * up
        results(case, out=out)
        backward(case, out, {"dgate": gate, "dup": up})


def cross_entropy():
    """Logits with large offsets; one ignored row; gradient of the sum times 0.125."""
    case, rows, vocab = "cross_entropy", 6, 37
    logits = torch.randn(rows, vocab).double() * 4 + torch.tensor([0.0, 100, -300, 5000, 0, 1]).double()[:, None]
    logits = logits.float().double()
    arrays[f"{case}.logits"] = logits.float()
    targets = constant(case, "targets", torch.tensor([5, 36, 0, 11, -100, 7], dtype=torch.int32))
    logits.requires_grad_()
    loss = F.cross_entropy(logits, targets.long(), reduction="none", ignore_index=-100)
    (grad,) = torch.autograd.grad(loss.sum() * 0.125, logits)
    results(case, loss=loss, grad=grad)


def families():
    """What some families of models add to the ops: Gemma's 1 + weight and capped logits, CodeGen's pairs of neighbours,
    and products that are scaled before they are added."""
    scale = -0.75
    a, b, c = inputs("gemm.scaled", a=(7, 19), b=(19, 13), c=(7, 13))
    constant("gemm.scaled", "scale", torch.tensor([scale]))
    results("gemm.scaled", sum=scale * (a @ b) + c)
    for kind in ("rms", "layer"):
        case = f"norm.{kind}_one"
        x, weight, shift = inputs(case, x=(5, 21), weight=(21,), bias=(21,))
        mean = x.mean(-1) if kind == "layer" else torch.zeros(5).double()
        rstd = torch.rsqrt(((x - mean[:, None]) ** 2).mean(-1) + 1e-5)
        y = (x - mean[:, None]) * rstd[:, None] * (1 + weight) + (shift if kind == "layer" else 0)
        results(case, y=y, rstd=rstd, mean=mean)
        leaves = {"dx": x, "dweight": weight, "dbias": shift}
        backward(case, y, leaves if kind == "layer" else {"dx": x, "dweight": weight}, "dy")
    neighbours()
    capped_logits()


def neighbours():
    """The rotation of transformers' CodeGen: rotate_every_two."""
    n, heads, dim, rotary, positions = 5, 3, 12, 10, 40
    (x,) = inputs("rope.interleaved", x=(n, heads, dim))
    position = constant("rope.interleaved", "position", torch.tensor([0, 1, 39, 7, 0], dtype=torch.int32))
    angle = torch.arange(positions).double()[:, None] / 10000 ** (torch.arange(0, rotary, 2).double() / rotary)
    cos = constant("rope.interleaved", "cos", angle.cos().float()).double()[position.long()][:, None]
    sin = constant("rope.interleaved", "sin", angle.sin().float()).double()[position.long()][:, None]
    head, tail = x[..., :rotary], x[..., rotary:]
    every_two = torch.stack((-head[..., 1::2], head[..., ::2]), -1).flatten(-2)
    y = torch.cat((head * cos.repeat_interleave(2, -1) + every_two * sin.repeat_interleave(2, -1), tail), -1)
    results("rope.interleaved", y=y)
    backward("rope.interleaved", y, {"dx": x}, "dy")


def capped_logits():
    """Logits from far below to far above the cap; one ignored row; gradient of the sum times 0.125."""
    case, rows, vocab, cap = "cross_entropy.capped", 6, 37, 2.5
    spread = torch.tensor([1.0, 4, 0.1, 30, 1, 300])[:, None]
    logits = (torch.randn(rows, vocab) * spread).double()
    arrays[f"{case}.logits"] = logits.float()
    targets = constant(case, "targets", torch.tensor([5, 36, 0, 11, -100, 7], dtype=torch.int32))
    constant(case, "softcap", torch.tensor([cap]))
    logits.requires_grad_()
    capped = cap * torch.tanh(logits / cap)
    loss = F.cross_entropy(capped, targets.long(), reduction="none", ignore_index=-100)
    (grad,) = torch.autograd.grad(loss.sum() * 0.125, logits)
    results(case, capped=capped, loss=loss, grad=grad)


def experts():
    """Mixtures of experts, by the formulas of transformers' Mixtral, Qwen3-MoE and gpt-oss."""
    routers()
    bounded_glu()
    blocks()


def routed(logits, kind, top):
    """Weights and ids of the chosen experts. Logits must differ: torch.topk orders equal ones in its own way."""
    assert all(len(set(row.tolist())) == len(row) for row in logits)
    if kind == "gpt_oss":
        values, ids = logits.topk(top)
        return values.softmax(-1), ids
    weights, ids = logits.softmax(-1).topk(top)
    return (weights / weights.sum(-1, keepdim=True) if kind == "mixtral" else weights), ids


def routers():
    for kind, n, count, top in (("mixtral", 9, 8, 2), ("qwen3_moe", 11, 40, 8), ("gpt_oss", 7, 32, 4)):
        case = f"router.{kind}"
        logits = (torch.stack([torch.randperm(count) for _ in range(n)]) / 8 - count / 16).double()
        arrays[f"{case}.logits"] = logits.float()
        logits.requires_grad_()
        weights, ids = routed(logits, kind, top)
        constant(case, "ids", ids.int())
        results(case, weights=weights)
        backward(case, weights, {"dlogits": logits}, "dweights")


def bounded_glu():
    """gpt-oss' gated unit, with inputs on both sides of the limit."""
    limit, alpha = 7.0, 1.702
    both = (torch.randn(5, 2 * 21) * 6).bfloat16().double()
    arrays["glu.bounded.both"] = both.float()
    both.requires_grad_()
    gate, up = both[..., ::2].clamp(max=limit), both[..., 1::2].clamp(-limit, limit)
    out = (up + 1) * (gate * torch.sigmoid(gate * alpha))
    results("glu.bounded", out=out)
    backward("glu.bounded", out, {"dboth": both})


def blocks():
    """A whole block: Mixtral's weights are [out, in]; gpt-oss' are [in, out], with biases. Expert 3 gets no token."""
    n, hidden, inter, count, top = 13, 12, 10, 5, 2
    for kind in ("mixtral", "gpt_oss"):
        case, turned = f"experts.{kind}", kind == "gpt_oss"
        wide, down = ((hidden, 2 * inter), (inter, hidden)) if turned else ((2 * inter, hidden), (hidden, inter))
        shapes = {"logits": (n, count), "x": (n, hidden), "residual": (n, hidden), "gate_up": (count, *wide), "down": (count, *down)}
        if turned:
            shapes |= {"gate_up_bias": (count, 2 * inter), "down_bias": (count, hidden)}
        leaves = dict(zip(shapes, inputs(case, **shapes)))
        with torch.no_grad():
            leaves["logits"][:, 3] -= 32
            arrays[f"{case}.logits"] = leaves["logits"].detach().float().clone()
        weights, ids = routed(leaves["logits"], kind, top)
        assert not (ids == 3).any()
        y = leaves["residual"]
        for e in range(count):
            token, slot = torch.where(ids == e)
            both = leaves["x"][token] @ (leaves["gate_up"][e] if turned else leaves["gate_up"][e].T)
            if turned:
                both = both + leaves["gate_up_bias"][e]
                gate, up = both[..., ::2].clamp(max=7), both[..., 1::2].clamp(-7, 7)
                out = ((up + 1) * (gate * torch.sigmoid(1.702 * gate))) @ leaves["down"][e] + leaves["down_bias"][e]
            else:
                gate, up = both.chunk(2, -1)
                out = (F.silu(gate) * up) @ leaves["down"][e].T
            y = y.index_add(0, token, out * weights[token, slot, None])
        results(case, y=y)
        backward(case, y, {f"d{name}": leaf for name, leaf in leaves.items() if name != "residual"}, "dy")


def bias():
    (dy,) = inputs("bias", dy=(23, 10))
    results("bias", dbias=dy.sum(0))


for make in (gemm, bias, embed, norm, rope, attention, activations, cross_entropy, bent_attention, families, experts, spans):
    make()
write(os.path.join(os.path.dirname(__file__), "../../tests/golden/ops.bin"), arrays)
