"""Golden curves: 320 steps of a small Llama in fp32 and in bf16 over an fp32 master, by PyTorch.

Written to tests/golden/curve_llama.bin, attention "eager":

    config            i64  layers, hidden, ffn, heads, kv_heads, head_dim, vocab, max_position
    config_real       f64  norm_eps, rope_theta
    optimizer         f64  beta1, beta2, eps, weight_decay, clip
    init.TENSOR       f32  weights before step 1, under their Hugging Face names
    pool              i32  [POOL, SEQUENCE + 1]: inputs are a row's first SEQUENCE tokens, targets its last
    lr                f32  [steps]
    loss.fp32         f64  [4, steps] fp32, cut into micro-batches of 8, 4, 2 and 1 sequences
    loss.fp64         f64  [steps] the same run in double precision: how far fp32 drifts from rounding alone
    loss.bf16         f64  [4, steps] bf16 weights, activations and gradients over an fp32 master; the same cuts
    loss.masterless   f64  [steps] the same, but without a master: after every step the weights are rounded to bf16. The
                           comparison must detect this mistake

Step s (from 0) trains the STEP rows (STEP * s + j) * STRIDE mod POOL, j = 0..STEP-1. A cut changes nothing but the
order in which gradients are summed, so the runs of a dtype differ by rounding alone: they are that dtype's own spread.

The text is a noisy chain of order two: the next token follows, seven times in ten, from the last token and the class
of the one before. That is learnable in some hundred steps and has a floor that no model can pass.

Run: python scripts/golden/curve.py (needs torch, transformers, numpy)
"""

import os

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import goldenfile

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/curve_llama.bin")
STEPS, STEP, SEQUENCE, POOL, STRIDE = 320, 8, 32, 1024, 389
WARMUP, PEAK_LR, LAST_LR = 20, 5e-3, 5e-4
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
VOCAB, CLASSES = 64, 4
CUTS = (8, 4, 2, 1)


def make_model():
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=SEQUENCE, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=False, initializer_range=0.05, attn_implementation="eager")
    torch.manual_seed(30)
    return LlamaForCausalLM(config).float()


def make_pool():
    rng = np.random.default_rng(31)
    follows = rng.integers(VOCAB, size=(CLASSES, VOCAB))
    rows = np.empty((POOL, SEQUENCE + 1), dtype=np.int32)
    for row in rows:
        row[:2] = rng.integers(VOCAB, size=2)
        for i in range(2, SEQUENCE + 1):
            likely = rng.random() < 0.7
            row[i] = follows[row[i - 2] % CLASSES, row[i - 1]] if likely else rng.integers(VOCAB)
    return rows


def learning_rate(step, steps=STEPS):
    if step < WARMUP:
        return np.float32(PEAK_LR * (step + 1) / WARMUP)
    done = (step - WARMUP) / (steps - WARMUP)
    return np.float32(LAST_LR + (PEAK_LR - LAST_LR) * 0.5 * (1 + np.cos(np.pi * done)))


def add_gradients(model, rows, trained, master):
    """Backward of one micro-batch; adds its gradients to the master's in the master's dtype. Returns its loss."""
    tokens = torch.from_numpy(rows).long()
    logits = model(input_ids=tokens[:, :-1]).logits
    wide = logits if logits.dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(
        wide.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1), reduction="sum") / trained
    model.zero_grad()
    loss.backward()
    for p, q in zip(model.parameters(), master):
        gradient = p.grad.to(q.dtype)
        q.grad = gradient.clone() if q.grad is None else q.grad + gradient
    return loss.item()


def train(pool, cut, dtype, master_dtype, lossy=False, steps=STEPS, adamw=torch.optim.AdamW):
    """Losses of a run whose model computes in dtype, with a master copy of its weights in master_dtype. lossy: the master
    keeps no more than the model has. adamw: makes the optimizer, as torch.optim.AdamW does."""
    start = make_model()
    master = [p.detach().to(master_dtype).clone().requires_grad_() for p in start.parameters()]
    model = start.to(dtype)
    optimizer = adamw(
        [{"params": [p for p in master if p.dim() == 2], "weight_decay": DECAY},
         {"params": [p for p in master if p.dim() == 1], "weight_decay": 0.0}], betas=BETAS, eps=EPS)
    losses = []
    for step in range(steps):
        rows = pool[(STEP * step + np.arange(STEP)) * STRIDE % POOL]
        optimizer.zero_grad()
        losses.append(sum(add_gradients(model, rows[i:i + cut], STEP * SEQUENCE, master)
                          for i in range(0, STEP, cut)))
        torch.nn.utils.clip_grad_norm_(master, CLIP)
        for group in optimizer.param_groups:
            group["lr"] = float(learning_rate(step, steps))
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), master):
                p.copy_(q)
                if lossy:
                    q.copy_(p)
    return np.array(losses)


def report(name, curve, base):
    windows = (curve - base).reshape(-1, STEPS // 8)
    print(f"{name:12s} {curve[0]:.4f} -> {curve[-20:].mean():.4f}  mean |difference| from fp32 by eighths:",
          " ".join(f"{abs(w).mean():.1e}" for w in windows), " signed:", " ".join(f"{w.mean():+.1e}" for w in windows))


def main():
    torch.set_num_threads(1)
    pool = make_pool()
    model = make_model()
    c = model.config
    arrays = {
        "config": np.array([c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads,
                            c.num_key_value_heads, c.head_dim, c.vocab_size, c.max_position_embeddings]),
        "config_real": np.array([c.rms_norm_eps, c.rope_parameters["rope_theta"]]),
        "optimizer": np.array([*BETAS, EPS, DECAY, CLIP]),
        "pool": pool,
        "lr": np.array([learning_rate(s) for s in range(STEPS)]),
    }
    arrays |= {f"init.{name}": p.detach().clone() for name, p in model.named_parameters()}
    arrays["loss.fp32"] = np.stack([train(pool, cut, torch.float32, torch.float32) for cut in CUTS])
    arrays["loss.fp64"] = train(pool, STEP, torch.float64, torch.float64)
    arrays["loss.bf16"] = np.stack([train(pool, cut, torch.bfloat16, torch.float32) for cut in CUTS])
    arrays["loss.masterless"] = train(pool, STEP, torch.bfloat16, torch.float32, lossy=True)
    base = arrays["loss.fp32"][0]
    for name in ("fp32", "fp64", "bf16", "masterless"):
        for curve in np.atleast_2d(arrays[f"loss.{name}"]):
            report(name, curve, base)
    goldenfile.write(OUT, arrays)
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
