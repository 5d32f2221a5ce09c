"""Golden encoder-decoders: tiny random models of T5, by transformers in fp32, written to tests/golden/model_CASE.bin.

The files are those of models.py, with these differences. A row has inputs and targets: `tokens` has the inputs of all
rows, then their targets as the decoder reads them (0, then the labels but the last). The label of each target is in
`targets`, which is -1 for inputs. More arrays:

    n_inputs                 i64 [1]
    input_first, input_end   i32 [n]   the inputs of the token's row

`logits` and `token_loss` are 0 for inputs. Each row is run as a batch of its own.

It also writes tests/golden/t5_steps.bin: 20 steps of these models, as steps.py does.

Run: python scripts/golden/t5.py (needs torch, transformers, peft, numpy)
"""

import copy
import os

import numpy as np
import torch
import transformers

import goldenfile
import lora
import models

# Inputs and labels of each row. Distances on both sides of the border between the exact buckets and the others.
ROWS = ((9, 4), (5, 8), (14, 6))
COMMON = dict(vocab_size=44, d_model=20, num_heads=3, d_kv=8, d_ff=36, num_layers=2, num_decoder_layers=3, dropout_rate=0.0,
              relative_attention_num_buckets=8, relative_attention_max_distance=10, pad_token_id=0,
              decoder_start_token_id=0, initializer_factor=1.0, attn_implementation="eager")
SEED, LR = 340, 1e-3
CASES = {
    # The first T5: relu, the head is the embedding. Heads x d_kv is not the width.
    "t5": dict(feed_forward_proj="relu"),
    # v1.1: a gated MLP, a head of its own.
    "t5_gated": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}


def make_model(name, seed):
    torch.manual_seed(seed)
    config = transformers.T5Config(**(COMMON | CASES[name]))
    model = transformers.T5ForConditionalGeneration(config).float().eval()
    if "tie_word_embeddings" in CASES[name]:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        model.config.tie_word_embeddings = False
    with torch.no_grad():
        for n, p in model.named_parameters():  # scores of magnitude 1, as a trained model has
            std = 0.12 if n.endswith(("Attention.q.weight", "Attention.k.weight")) else 0.2
            p.copy_(std * torch.randn_like(p) + (1 if p.dim() == 1 else 0))
    # transformers gives the padding token's row of the embedding no gradient only if padding_idx is set; it is not.
    assert model.shared.padding_idx is None
    return model


def make_rows(seed):
    rng = np.random.default_rng(seed)
    return [(rng.integers(1, COMMON["vocab_size"], a), rng.integers(1, COMMON["vocab_size"], b)) for a, b in ROWS]


def row_arrays(rows):
    inputs = np.cumsum([0] + [len(i) for i, _ in rows])
    n_inputs = inputs[-1]
    targets = n_inputs + np.cumsum([0] + [len(t) for _, t in rows])
    parts = [(ids, s, inputs[r]) for r, ((ids, _), s) in enumerate(zip(rows, inputs))]
    parts += [(np.concatenate([[0], t[:-1]]), s, inputs[r]) for r, ((_, t), s) in enumerate(zip(rows, targets))]
    ends = np.concatenate([inputs[1:], inputs[1:]])
    full = lambda values: np.concatenate([np.full(len(p[0]), v) for p, v in zip(parts, values)]).astype(np.int32)
    return {
        "tokens": np.concatenate([p[0] for p in parts]).astype(np.int32),
        "targets": np.concatenate([np.full(n_inputs, -1)] + [t for _, t in rows]).astype(np.int32),
        "position": np.concatenate([np.arange(len(p[0])) for p in parts]).astype(np.int32),
        "row_start": full([p[1] for p in parts]),
        "input_first": full([p[2] for p in parts]),
        "input_end": full(ends),
        "n_inputs": np.array([n_inputs], np.int64),
    }


def run(model, rows):
    """Logits and losses of the targets; gradients are left in the model."""
    logits = torch.cat([model(input_ids=torch.tensor(i[None]), labels=torch.tensor(t[None])).logits[0] for i, t in rows])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = torch.tensor(np.concatenate([t for _, t in rows]))
    token_loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    loss = token_loss.mean()
    loss.backward()
    return logits, token_loss, loss


def golden_case(name, seed):
    model, rows = make_model(name, seed), make_rows(seed)
    logits, token_loss, loss = run(model, rows)
    grads = [p.grad for p in model.parameters()]
    exact, _ = models.run_as(model, rows, torch.float64)
    worst = max(models.error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (name, worst)
    bf16, bf16_loss = models.run_as(model, rows, torch.bfloat16)
    bf16_error = [models.error(models.flat(bf16), models.flat(grads)), models.error(bf16_loss, token_loss)]
    arrays = {"config_json": models.config_json(model)} | row_arrays(rows)
    arrays |= {f"weight.{n}": p for n, p in model.named_parameters()}
    arrays |= {f"grad.{n}": p.grad for n, p in model.named_parameters()}
    n_inputs = int(arrays["n_inputs"][0])
    arrays |= {"logits": torch.cat([torch.zeros(n_inputs, logits.shape[1]), logits]),
               "token_loss": torch.cat([torch.zeros(n_inputs), token_loss]), "loss": np.array([loss.item()]),
               "bf16_error": np.array(bf16_error)}
    path = os.path.join(models.OUT, f"model_{name}.bin")
    goldenfile.write(path, arrays)
    print(f"{name}: loss {loss.item():.4f}, gradients fp32 against fp64 {worst:.1e}, "
          f"bf16 against fp32 {bf16_error[0]:.1e}, {os.path.getsize(path)} bytes")


def golden_run(name, seed):
    """As steps.golden_run: the same optimizer, of all tensors."""
    model, rows = make_model(name, seed), make_rows(seed)
    exact, _ = lora.train(copy.deepcopy(model).double(), rows, LR)
    losses, norms = lora.train(model, rows, LR)
    drift = np.abs(losses - exact).max()
    assert drift < 2e-6 and (norms > lora.CLIP).sum() > 0, (name, drift, norms)
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f} (fp32 against fp64 {drift:.1e})")
    out = {"optimizer": np.array([LR, *lora.BETAS, lora.EPS, lora.DECAY, lora.CLIP]),
           "step_loss": losses, "step_norm": norms}
    out |= {f"final.{n}": p.detach().clone() for n, p in model.named_parameters()}
    return {f"{name}-steps.{n}": a for n, a in out.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    models.run = run  # models.run_as and lora.train call it
    lora.drop_rows = lambda *_: None  # there is no dropout
    steps = {}
    for i, name in enumerate(CASES):
        golden_case(name, SEED + i)
        steps |= golden_run(name, SEED + i)
    goldenfile.write(os.path.join(models.OUT, "t5_steps.bin"), steps)
