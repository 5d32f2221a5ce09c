"""Golden models: tiny random models of each family, by transformers in fp32, written to tests/golden/model_CASE.bin.

Each file holds one case:

    config        i64  family, layers, hidden, ffn, heads, kv_heads, head_dim, vocab, max_position, window,
                       window_first_layer, act, rope_scaling, qkv_bias, out_bias, mlp_bias, qk_norm, tied
                       (family, act and rope_scaling are the enums of models/model.h and kernels/ops.h)
    config_real   f64  norm_eps, rope_theta, rope_factor, low_freq_factor, high_freq_factor, original_max_position
    weight.TENSOR f32  under its Hugging Face name
    grad.TENSOR   f32  of the mean loss
    tokens, targets, position, row_start   i32 [n]  three rows, packed; fields as in kernels/ops.h
    logits        f32  [n, vocab]
    token_loss    f32  [n], 0 where the target is < 0
    loss          f64  mean over the trained tokens
    bf16_error    f64  relative errors of the same model run in bf16 by torch, against the above: of all gradients
                       as one vector, of the token losses as one vector

Each row is run as a sequence of its own, so that a packed run that equals it keeps its rows apart. The same model with
double-precision weights must agree with every fp32 gradient to 5e-6 (relative, whole tensors): what is left of a test's
2e-5 is the tested program's own rounding.

Run: python scripts/golden/models.py (needs torch, transformers, numpy)
"""

import copy
import os

import numpy as np
import torch
import transformers

import goldenfile

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden")
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "relu"]
ROPE = ["default", "linear", "llama3"]
ROW_TOKENS = (11, 5, 9)
COMMON = dict(vocab_size=44, num_hidden_layers=2, max_position_embeddings=64, initializer_range=0.18,
              attn_implementation="eager")

CASES = {
    # Grouped heads; nothing else out of the ordinary.
    "llama": ("llama", dict(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2)),
    # Wavelengths of 8 pairs on both sides of the borders 16 and 32, and between them. Tied.
    "llama3": ("llama", dict(
        hidden_size=32, intermediate_size=36, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        max_position_embeddings=256, rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=2.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64))),
    # Every bias that a config.json can ask for, another activation, three layers.
    "llama_bias": ("llama", dict(
        hidden_size=24, intermediate_size=28, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=3,
        attention_bias=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh",
        rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=4.0))),
    # A window shorter than the rows; head_dim is not hidden / heads.
    "mistral": ("mistral", dict(hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2,
                                head_dim=8, sliding_window=4)),
    # Biases; the window holds in the second layer only. Tied.
    "qwen2": ("qwen2", dict(
        hidden_size=28, intermediate_size=36, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=4, max_window_layers=1,
        rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    # Norms on q and k; head_dim is not hidden / heads.
    "qwen3": ("qwen3", dict(
        hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        attention_bias=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3_tied": ("qwen3", dict(hidden_size=32, intermediate_size=36, num_attention_heads=3, num_key_value_heads=1,
                                 head_dim=8, tie_word_embeddings=True)),
}


def make_model(family, options, seed):
    config = transformers.AutoConfig.for_model(family, **(COMMON | options))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():  # norms away from one and biases from zero, so that one that is ignored shows
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.2 * torch.randn_like(p))
    return model


def make_rows(vocab, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for n in ROW_TOKENS:
        ids = rng.integers(0, vocab, n + 1)
        targets = ids[1:].copy()
        targets[:int(rng.integers(0, 4))] = -1
        rows.append((ids[:-1], targets))
    return rows


def config_arrays(family, c):
    rope = c.rope_parameters
    windowed = getattr(c, "sliding_window", None)
    first = c.layer_types.index("sliding_attention") if windowed and family.startswith("qwen") else 0
    attention_bias = bool(getattr(c, "attention_bias", False))
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return {
        "config": np.array([
            FAMILIES.index(family), c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads,
            c.num_key_value_heads, head_dim, c.vocab_size, c.max_position_embeddings, windowed or 0, first,
            ACTIVATIONS.index(c.hidden_act), ROPE.index(rope["rope_type"]), attention_bias or family == "qwen2",
            attention_bias, bool(getattr(c, "mlp_bias", False)), family == "qwen3", c.tie_word_embeddings],
            dtype=np.int64),
        "config_real": np.array([
            c.rms_norm_eps, rope["rope_theta"], rope.get("factor", 0), rope.get("low_freq_factor", 0),
            rope.get("high_freq_factor", 0), rope.get("original_max_position_embeddings", 0)], dtype=np.float64),
    }


def row_arrays(rows):
    starts = np.cumsum([0] + [len(ids) for ids, _ in rows])
    return {
        "tokens": np.concatenate([ids for ids, _ in rows]).astype(np.int32),
        "targets": np.concatenate([t for _, t in rows]).astype(np.int32),
        "position": np.concatenate([np.arange(len(ids)) for ids, _ in rows]).astype(np.int32),
        "row_start": np.concatenate([np.full(len(ids), s) for (ids, _), s in zip(rows, starts)]).astype(np.int32),
    }


def run(model, rows):
    """Logits, token losses and mean loss; gradients are left in the model."""
    trained = sum(int((t >= 0).sum()) for _, t in rows)
    logits = torch.cat([model(input_ids=torch.tensor(ids[None])).logits[0] for ids, _ in rows])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # the loss of bf16 logits is fp32 everywhere
    targets = torch.tensor(np.concatenate([t for _, t in rows]))
    token_loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
    loss = token_loss.sum() / trained
    loss.backward()
    return logits, token_loss, loss


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def run_as(model, rows, dtype):
    """The same run in another dtype: its gradients and token losses."""
    other = copy.deepcopy(model).to(dtype)
    other.zero_grad()
    _, token_loss, _ = run(other, rows)
    return [p.grad for p in other.parameters()], token_loss


def flat(tensors):
    return torch.cat([t.double().flatten() for t in tensors])


def golden_case(name, seed):
    family, options = CASES[name]
    model = make_model(family, options, seed)
    rows = make_rows(model.config.vocab_size, seed)
    logits, token_loss, loss = run(model, rows)
    grads = [p.grad for p in model.parameters()]
    exact, _ = run_as(model, rows, torch.float64)
    worst = max(error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (name, worst)
    bf16, bf16_loss = run_as(model, rows, torch.bfloat16)
    bf16_error = [error(flat(bf16), flat(grads)), error(bf16_loss, token_loss)]
    arrays = config_arrays(family, model.config) | row_arrays(rows)
    arrays |= {f"weight.{n}": p for n, p in model.named_parameters()}
    arrays |= {f"grad.{n}": p.grad for n, p in model.named_parameters()}
    arrays |= {"logits": logits, "token_loss": token_loss, "loss": np.array([loss.item()]),
               "bf16_error": np.array(bf16_error)}
    path = os.path.join(OUT, f"model_{name}.bin")
    goldenfile.write(path, arrays)
    print(f"{name}: loss {loss.item():.4f}, gradients fp32 against fp64 {worst:.1e}, "
          f"bf16 against fp32 {bf16_error[0]:.1e}, {os.path.getsize(path)} bytes")
    return os.path.getsize(path)


def main():
    torch.set_num_threads(1)
    total = sum(golden_case(name, 100 + i) for i, name in enumerate(CASES))
    assert total < 1 << 20, total
    print(total, "bytes")


if __name__ == "__main__":
    main()
