"""Golden models: tiny random models of each family, by transformers in fp32, written to tests/golden/model_CASE.bin.

Each file holds one case:

    config_json   u8   config.json, as transformers writes it
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

Run: python scripts/golden/models.py [CASE...] (needs torch, transformers, numpy)
"""

import copy
import json
import os
import sys

import numpy as np
import torch
import transformers

import goldenfile

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden")
ROW_TOKENS = (11, 5, 9)
# Without a padding token: transformers gives its row of the embedding no gradient, even where it stands in a text.
COMMON = dict(vocab_size=44, pad_token_id=None, num_hidden_layers=2, max_position_embeddings=64, initializer_range=0.18,
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
    # Matrices as [in, out], learned positions, plain MLP. Three heads.
    "gpt2": ("gpt2", dict(n_embd=24, n_inner=40, n_head=3, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                          attn_pdrop=0.0)),
    # ALiBi of a number of heads that is no power of two; q, k and v of each head together; a norm behind the embedding.
    "bloom": ("bloom", dict(hidden_size=24, n_head=3)),
    # Attention beside the MLP, seven heads of q for one of k and v, one norm.
    "falcon": ("falcon", dict(hidden_size=28, num_attention_heads=7)),
    # The newer form: groups of heads, and a norm for each side.
    "falcon_two": ("falcon", dict(hidden_size=32, num_attention_heads=4, num_kv_heads=2, ffn_hidden_size=44,
                                  new_decoder_architecture=True)),
    # The older form: ALiBi, scaled as attention is; one side after the other; biases. transformers' eager attention
    # adds ALiBi twice here (modeling_falcon.py: in the mask, and in FalconAttention), so the case uses its default.
    "falcon_alibi": ("falcon", dict(hidden_size=24, num_attention_heads=3, multi_query=False, parallel_attn=False,
                                    alibi=True, bias=True, attn_implementation="sdpa")),
    # Pairs of neighbours rotate, in a part of a head; four groups of q, v, k; a bias of the head.
    "codegen": ("codegen", dict(n_embd=32, n_head=4, rotary_dim=6, n_inner=36, n_positions=64, resid_pdrop=0.0,
                                embd_pdrop=0.0, attn_pdrop=0.0)),
    # q, k, v and gate, up as one matrix; a part of a head rotates; all rows are longer than the original length.
    "phi3": ("phi3", dict(
        hidden_size=32, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2, bos_token_id=1,
        eos_token_id=2, partial_rotary_factor=0.75, original_max_position_embeddings=4, sliding_window=6,
        rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                             short_factor=[1.0, 1.25, 2.0], long_factor=[1.5, 3.0, 7.0]))),
    # 1 + weight, a scaled embedding, heads of another width, one head of k and v.
    "gemma": ("gemma", dict(hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=1,
                            head_dim=12)),
    # Norms around, caps that matter, a window in every second layer.
    "gemma2": ("gemma2", dict(hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=8, sliding_window=4, query_pre_attn_scalar=5, attn_logit_softcapping=2.0,
                              final_logit_softcapping=3.0)),
    # Norms of q and k; layers with a window have a rope of their own.
    "gemma3": ("gemma3_text", dict(
        hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=3,
        sliding_window=4, query_pre_attn_scalar=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    # Norms behind attention and MLP alone; norms of all of q, all of k.
    "olmo2": ("olmo2", dict(hidden_size=32, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2,
                            attention_bias=True)),
    # The same with windows; YaRN in the layers without.
    "olmo3": ("olmo3", dict(
        hidden_size=32, intermediate_size=36, num_attention_heads=4, num_key_value_heads=4, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=5000.0),
                             full_attention=dict(rope_type="yarn", rope_theta=5000.0, factor=4.0, attention_factor=1.3,
                                                 beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=16)))),
    # The second of three layers does not rotate.
    "smollm3": ("smollm3", dict(hidden_size=32, intermediate_size=36, num_attention_heads=4, num_key_value_heads=1,
                                num_hidden_layers=3, no_rope_layers=[1, 0, 1], bos_token_id=1,
                                eos_token_id=2)),
    # A window in the first layer alone.
    "ministral": ("ministral", dict(hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2,
                                    head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
    # q grows with the position; YaRN with magnitudes.
    "ministral3": ("ministral3", dict(
        hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=16.0, original_max_position_embeddings=4,
                             beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.5, llama_4_scaling_beta=0.3))),
    # Multipliers of the embedding, of what layers add, of attention and of the logits.
    "granite": ("granite", dict(hidden_size=24, intermediate_size=36, num_attention_heads=4, num_key_value_heads=2,
                                embedding_multiplier=3.0, residual_multiplier=0.375, attention_multiplier=0.2,
                                logits_scaling=2.5, tie_word_embeddings=True)),
    # Experts in every layer, whose weights sum to one.
    "mixtral": ("mixtral", dict(hidden_size=24, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2,
                                num_local_experts=5, num_experts_per_tok=2)),
    # More experts, whose weights are those of the softmax over all; the second of three layers has an MLP.
    "qwen3_moe": ("qwen3_moe", dict(
        hidden_size=24, intermediate_size=36, moe_intermediate_size=12, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_hidden_layers=3, num_experts=18, num_experts_per_tok=3, mlp_only_layers=[1])),
    # Sinks, biases everywhere, yarn, a window in the first of two layers, and a limit that inputs reach.
    "gpt_oss": ("gpt_oss", dict(
        hidden_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_local_experts=4, num_experts_per_tok=2, sliding_window=5, swiglu_limit=2.5,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=16))),
}

# In files, each expert has matrices of its own: gate, up and down.
EXPERTS = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
           "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj")}


def make_model(family, options, seed):
    options = COMMON | options
    config = transformers.AutoConfig.for_model(family, **options)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=options["attn_implementation"]).float().eval()
    if hasattr(model, "set_experts_implementation"):  # the default has no double precision
        model.set_experts_implementation("eager")
    with torch.no_grad():  # norms away from one and biases from zero, so that one that is ignored shows
        for name, p in model.named_parameters():
            if p.dim() == 1 or name.endswith("_bias"):
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


def in_files(family, name, tensor):
    """A tensor under the names of files."""
    layer, _, rest = name.partition(".mlp.")
    if family not in EXPERTS or rest.split(".")[0] not in ("gate", "experts"):
        return {name: tensor}
    block, gate, up, down = EXPERTS[family]
    if rest == "gate.weight":
        return {f"{layer}.{block}.gate.weight": tensor}
    maps = {"experts.gate_up_proj": (gate, up), "experts.down_proj": (down,)}[rest]
    return {f"{layer}.{block}.experts.{i}.{m}.weight": part
            for i, expert in enumerate(tensor) for m, part in zip(maps, expert.chunk(len(maps)))}


def config_json(model):
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return json.dumps({k: v for k, v in config.items() if v is not None}, indent=0)


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


def watch_choices(model):
    """A list that grows as the model runs, and the hooks that fill it. It has the least difference, for each router and
    row, between the logits of the last expert that a token gets and of the next one."""
    gaps, top = [float("inf")], getattr(model.config, "num_experts_per_tok", 0)

    def look(_, __, output):
        logits = output[0].detach().sort(-1, descending=True).values
        gaps.append((logits[:, top - 1] - logits[:, top]).min().item())
    hooks = [module.register_forward_hook(look) for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    return gaps, hooks


def choice_gap(model, rows):
    """The least of these differences in one run."""
    gaps, hooks = watch_choices(model)
    with torch.no_grad():
        for ids, _ in rows:
            model(input_ids=torch.tensor(ids[None]))
    for hook in hooks:
        hook.remove()
    return min(gaps)


def golden_case(name, seed):
    family, options = CASES[name]
    model = make_model(family, options, seed)
    rows = make_rows(model.config.vocab_size, seed)
    while choice_gap(model, rows) < 0.02:  # rounding to bf16 would choose another expert
        seed += 1000
        model = make_model(family, options, seed)
        rows = make_rows(model.config.vocab_size, seed)
    logits, token_loss, loss = run(model, rows)
    grads = [p.grad for p in model.parameters()]
    exact, _ = run_as(model, rows, torch.float64)
    worst = max(error(g, e) for g, e in zip(grads, exact))
    assert worst < 5e-6, (name, worst)
    bf16, bf16_loss = run_as(model, rows, torch.bfloat16)
    bf16_error = [error(flat(bf16), flat(grads)), error(bf16_loss, token_loss)]
    arrays = {"config_json": config_json(model)} | row_arrays(rows)
    for tensor, p in model.named_parameters():
        arrays |= {f"weight.{n}": part for n, part in in_files(family, tensor, p).items()}
        arrays |= {f"grad.{n}": part for n, part in in_files(family, tensor, p.grad).items()}
    arrays |= {"logits": logits, "token_loss": token_loss, "loss": np.array([loss.item()]),
               "bf16_error": np.array(bf16_error)}
    path = os.path.join(OUT, f"model_{name}.bin")
    goldenfile.write(path, arrays)
    print(f"{name}: loss {loss.item():.4f}, gradients fp32 against fp64 {worst:.1e}, "
          f"bf16 against fp32 {bf16_error[0]:.1e}, {os.path.getsize(path)} bytes")
    return os.path.getsize(path)


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or CASES
    total = sum(golden_case(name, 100 + i) for i, name in enumerate(CASES) if name in wanted)
    assert total < 3 << 20, total
    print(total, "bytes")


if __name__ == "__main__":
    main()
