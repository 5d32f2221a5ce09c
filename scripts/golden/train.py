"""Golden run: 20 steps of torch.optim.AdamW on a tiny Llama, written to tests/golden/train_llama.bin.

Two runs, "untied" and "tied", fp32, attention "eager", each in arrays whose names begin with the run's name:

    RUN.config        i64  layers, hidden, ffn, heads, kv_heads, head_dim, vocab, max_position
    RUN.config_real   f64  norm_eps, rope_theta
    RUN.optimizer     f64  beta1, beta2, eps, weight_decay, clip
    RUN.init.TENSOR   f32  weights before step 1, under their Hugging Face names
    RUN.final.TENSOR  f32  weights after the last step
    RUN.lr            f32  [steps]
    RUN.loss          f64  [steps] mean loss over the step's trained tokens, before the update
    RUN.grad_norm     f64  [steps] global norm before clipping
    RUN.trained       i64  [steps] targets >= 0 in the step
    RUN.micro_tokens  i64  [steps, 3] tokens of each micro-batch
    RUN.tokens, RUN.targets, RUN.position, RUN.row_start   i32  all micro-batches end to end, fields as in kernels/ops.h
                      (row_start and position count from the micro-batch's first token and the row's first token)

A step is three micro-batches with different numbers of trained tokens; its loss is the sum of all token losses divided
by the step's trained tokens. Weight decay is applied to matrices (the embedding included), not to norms. torch clips by
clip / (norm + 1e-6). Each row is run as a sequence of its own. The same runs in double precision must agree with the
fp32 losses to 2e-6: what is left of a test's 1e-5 is the tested program's own rounding.

Run: python scripts/golden/train.py (needs torch, transformers, numpy)
"""

import os

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import goldenfile

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/train_llama.bin")
STEPS, MICRO, WARMUP, PEAK_LR = 20, 3, 5, 1e-2
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
VOCAB = 48


def make_model(tied):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=tied, initializer_range=0.03, attn_implementation="eager")
    torch.manual_seed(20 + tied)
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():  # norms away from one, so that a weight that is ignored shows
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.2 * torch.randn_like(p))
    return model


def make_rows(rng):
    """Rows of one micro-batch: (tokens, targets), where a prefix, like a prompt, is not trained."""
    rows = []
    for _ in range(int(rng.integers(2, 8))):
        n = int(rng.integers(3, 21))
        # Most tokens follow from the one before, so that there is something to learn.
        ids = [int(rng.integers(VOCAB))]
        while len(ids) < n + 1:
            ids.append((ids[-1] * 5 + 3) % VOCAB if rng.random() < 0.9 else int(rng.integers(VOCAB)))
        masked = int(rng.integers(0, n // 2 + 1))
        targets = [-1] * masked + ids[masked + 1:]
        rows.append((ids[:-1], targets))
    return rows


def make_data(seed):
    rng = np.random.default_rng(seed)
    return [[make_rows(rng) for _ in range(MICRO)] for _ in range(STEPS)]


def rows_loss(model, rows):
    """Sum of the token losses."""
    total = 0
    for ids, targets in rows:
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        total = total + torch.nn.functional.cross_entropy(
            logits, torch.tensor(targets), ignore_index=-1, reduction="sum")
    return total


def learning_rate(step):
    return np.float32(PEAK_LR * min(1.0, (step + 1) / WARMUP) * (1 - 0.04 * max(0, step - WARMUP)))


def train(model, data):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    kept = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": kept, "weight_decay": 0.0}],
        betas=BETAS, eps=EPS)
    losses, norms, counts = [], [], []
    for step, micro_batches in enumerate(data):
        trained = sum(t >= 0 for rows in micro_batches for _, targets in rows for t in targets)
        optimizer.zero_grad()
        loss = 0.0
        for rows in micro_batches:
            part = rows_loss(model, rows) / trained
            part.backward()
            loss += part.item()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        for group in optimizer.param_groups:
            group["lr"] = float(learning_rate(step))
        optimizer.step()
        losses.append(loss)
        counts.append(trained)
    return np.array(losses), np.array(norms), np.array(counts, dtype=np.int64)


def flat_arrays(data):
    fields = {"tokens": [], "targets": [], "position": [], "row_start": []}
    counts = []
    for micro_batches in data:
        for rows in micro_batches:
            start = 0
            for ids, targets in rows:
                fields["tokens"] += ids
                fields["targets"] += targets
                fields["position"] += range(len(ids))
                fields["row_start"] += [start] * len(ids)
                start += len(ids)
            counts.append(start)
    arrays = {name: np.array(values, dtype=np.int32) for name, values in fields.items()}
    arrays["micro_tokens"] = np.array(counts, dtype=np.int64).reshape(STEPS, MICRO)
    return arrays


def state(model, kind):
    return {f"{kind}.{name}": p.detach().clone() for name, p in model.named_parameters()}


def golden_run(tied):
    data = make_data(7 + tied)
    exact = train(make_model(tied).double(), data)
    model = make_model(tied)
    c = model.config
    arrays = {
        "config": np.array([c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads,
                            c.num_key_value_heads, c.head_dim, c.vocab_size, c.max_position_embeddings]),
        "config_real": np.array([c.rms_norm_eps, c.rope_parameters["rope_theta"]]),
        "optimizer": np.array([*BETAS, EPS, DECAY, CLIP]),
        "lr": np.array([learning_rate(s) for s in range(STEPS)]),
    }
    arrays |= state(model, "init")
    losses, norms, counts = train(model, data)
    arrays |= state(model, "final") | flat_arrays(data)
    arrays |= {"loss": losses, "grad_norm": norms, "trained": counts}
    drift = np.abs(losses - exact[0]).max()
    assert drift < 2e-6, drift
    clipped = int((norms > CLIP).sum())
    assert 0 < clipped < STEPS, norms
    print(f"tied={tied}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {clipped} of {STEPS} steps clipped, "
          f"fp32 against fp64 {drift:.1e}, norms {norms.min():.2f}..{norms.max():.2f}")
    return arrays


def main():
    torch.set_num_threads(1)
    runs = {name: golden_run(tied) for name, tied in (("untied", False), ("tied", True))}
    goldenfile.write(OUT, {f"{run}.{name}": a for run, arrays in runs.items() for name, a in arrays.items()})
    print(os.path.getsize(OUT), "bytes")


if __name__ == "__main__":
    main()
