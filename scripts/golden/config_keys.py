"""Every key of config.json, absent and null: what transformers makes of it, written to tests/golden/config_keys.json.

Each family has a small model whose config.json says every key that this program reads, with a value that is not the
default. Each key (and each key of rope_parameters) is removed, and set to null, in turn. A case has the facts that
change: those of the configuration, and those of the model that transformers builds (parameters, rope). "refused": the
configuration, the model, or its forward pass fails. An old form of a key is a config of its own.

Run: python scripts/golden/config_keys.py [NAME...] (needs torch, transformers; NAME: of CONFIGS, only these are made anew)
"""

import copy
import json
import logging
import math
import os
import sys

import torch
import transformers

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/config_keys.json")
LENGTHS = (64, 4000)  # tokens of the sequences for which frequencies are taken: below and above the trained lengths
SAMPLES = 8  # of the pairs of a head
RUNS_BELOW = 20_000_000  # parameters of the largest model whose forward pass is tried

ENDS = dict(vocab_size=96, initializer_range=0.03, tie_word_embeddings=True)
LLAMA = dict(ENDS, hidden_size=64, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-3)
UNTIED = dict(tie_word_embeddings=False)
PLAIN = dict(rope_parameters=dict(rope_type="default", rope_theta=7e3))
ACT = dict(hidden_act="gelu")
BIAS = dict(attention_bias=True)
MLP_BIAS = dict(mlp_bias=True)
HEAD = dict(head_dim=32)
WINDOW = dict(sliding_window=24)
TYPES = dict(layer_types=["full_attention", "sliding_attention", "sliding_attention"] * 2)
YARN = dict(rope_type="yarn", rope_theta=7e3, factor=8.0, original_max_position_embeddings=64, attention_factor=1.25,
            beta_fast=16.0, beta_slow=2.0, truncate=False)
MAGNITUDES = dict(rope_type="yarn", rope_theta=7e3, factor=8.0, original_max_position_embeddings=64, mscale=1.5,
                  mscale_all_dim=0.7)
LLAMA3 = dict(rope_type="llama3", rope_theta=7e3, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
QWEN = dict(use_sliding_window=True, max_window_layers=3)


def longrope(pairs, **more):
    return dict(rope_type="longrope", rope_theta=7e3, short_factor=[1 + i / 8 for i in range(pairs)],
                long_factor=[1.5 + i for i in range(pairs)], **more)


GPT2 = dict(ENDS, **UNTIED, n_embd=64, n_layer=2, n_head=4, n_inner=48, n_positions=512, layer_norm_epsilon=1e-3,
            activation_function="relu")
GEMMA2 = dict(LLAMA, **HEAD, **BIAS, **WINDOW, **TYPES, **UNTIED, hidden_activation="silu", query_pre_attn_scalar=100,
              attn_logit_softcapping=20.0, final_logit_softcapping=10.0, use_bidirectional_attention=False)
EXPERTS = dict(num_experts_per_tok=3, output_router_logits=False)
T5 = dict(vocab_size=96, d_model=64, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4,
          relative_attention_num_buckets=16, relative_attention_max_distance=64, layer_norm_epsilon=1e-3,
          feed_forward_proj="gated-silu", is_encoder_decoder=True, decoder_start_token_id=0)
FALCON = dict(ENDS, **UNTIED, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=4,
              ffn_hidden_size=48, max_position_embeddings=512, layer_norm_epsilon=1e-3, activation="relu", **PLAIN,
              bias=True, alibi=False, multi_query=False, parallel_attn=False, new_decoder_architecture=False,
              apply_residual_connection_post_layernorm=False)
OWN_ROPES = dict(full_attention=dict(rope_type="default", rope_theta=7e3),
                 sliding_attention=dict(rope_type="default", rope_theta=6e3))

CONFIGS = {
    "llama": ("llama", dict(LLAMA, **HEAD, **ACT, **BIAS, **MLP_BIAS, **PLAIN)),
    "llama, old keys": ("llama", dict(LLAMA, rope_theta=7e3, rope_scaling=dict(type="linear", factor=4.0))),
    "llama, llama3": ("llama", dict(LLAMA, rope_parameters=LLAMA3)),
    "llama, yarn": ("llama", dict(LLAMA, rope_parameters=YARN)),
    "llama, yarn, magnitudes": ("llama", dict(LLAMA, rope_parameters=MAGNITUDES)),
    "llama, longrope": ("llama", dict(LLAMA, rope_parameters=longrope(
        8, factor=8.0, original_max_position_embeddings=64, attention_factor=1.25))),
    "llama, lengths inside and outside": ("llama", dict(LLAMA, original_max_position_embeddings=128, rope_parameters=YARN)),
    "llama, dynamic": ("llama", dict(LLAMA, rope_parameters=dict(rope_type="dynamic", rope_theta=7e3, factor=4.0))),
    "mistral": ("mistral", dict(LLAMA, **HEAD, **ACT, **PLAIN, **WINDOW)),
    "qwen2": ("qwen2", dict(LLAMA, **ACT, **PLAIN, **WINDOW, **QWEN)),
    "qwen2, types": ("qwen2", dict(LLAMA, **WINDOW, **QWEN, **TYPES)),
    "qwen3": ("qwen3", dict(LLAMA, **HEAD, **ACT, **BIAS, **PLAIN, **WINDOW, **QWEN)),
    "qwen3, 30 layers": ("qwen3", dict(LLAMA, **HEAD, **WINDOW, **QWEN, num_hidden_layers=30)),
    "gpt2": ("gpt2", dict(GPT2, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
                          add_cross_attention=False)),
    "bloom": ("bloom", dict(ENDS, **UNTIED, hidden_size=64, n_layer=2, n_head=4, layer_norm_epsilon=1e-3,
                            apply_residual_connection_post_layernorm=False)),
    "falcon": ("falcon", FALCON),
    "falcon, one key head": ("falcon", dict(FALCON, multi_query=True, parallel_attn=True)),
    "falcon, alibi": ("falcon", dict(FALCON, alibi=True)),
    "falcon, new": ("falcon", dict(FALCON, new_decoder_architecture=True, parallel_attn=True, num_kv_heads=2, num_ln_in_parallel_attn=1)),
    "codegen": ("codegen", dict(GPT2, n_embd=128, n_head=4, rotary_dim=16)),
    "phi3": ("phi3", dict(LLAMA, **ACT, **WINDOW, original_max_position_embeddings=64,
                          rope_parameters=dict(rope_type="default", rope_theta=7e3, partial_rotary_factor=0.5))),
    "phi3, longrope": ("phi3", dict(LLAMA, original_max_position_embeddings=64, rope_parameters=longrope(8))),
    "phi3, length inside": ("phi3", dict(LLAMA, max_position_embeddings=16384, rope_parameters=longrope(
        8, original_max_position_embeddings=64))),
    "phi3, long": ("phi3", dict(LLAMA, max_position_embeddings=16384, original_max_position_embeddings=64,
                                rope_theta=7e3, rope_scaling=longrope(8))),
    "gemma": ("gemma", dict(LLAMA, **HEAD, **BIAS, **UNTIED, hidden_act="silu", **PLAIN,
                            use_bidirectional_attention=False)),
    "gemma2": ("gemma2", dict(GEMMA2, **PLAIN)),
    "gemma3": ("gemma3_text", dict(GEMMA2, rope_parameters=OWN_ROPES)),
    "gemma3, old keys": ("gemma3_text", dict(LLAMA, **HEAD, **WINDOW, sliding_window_pattern=3, rope_theta=7e3,
                                             rope_local_base_freq=6e3, rope_scaling=dict(rope_type="linear", factor=8.0))),
    "olmo2": ("olmo2", dict(LLAMA, **ACT, **BIAS, **PLAIN)),
    "olmo3": ("olmo3", dict(LLAMA, **ACT, **BIAS, **WINDOW, **TYPES, rope_parameters=OWN_ROPES)),
    "olmo3, old keys": ("olmo3", dict(LLAMA, **WINDOW, rope_theta=7e3, rope_scaling=YARN)),
    "smollm3": ("smollm3", dict(LLAMA, **UNTIED, **ACT, **BIAS, **MLP_BIAS, **PLAIN, **WINDOW, use_sliding_window=True,
                                no_rope_layers=[1, 0, 1, 1, 0, 1])),
    "smollm3, interval": ("smollm3", dict(LLAMA, **WINDOW, use_sliding_window=True, no_rope_layer_interval=3)),
    "ministral": ("ministral", dict(LLAMA, **HEAD, **ACT, **PLAIN, **WINDOW, **TYPES)),
    "ministral3": ("ministral3", dict(LLAMA, **HEAD, **ACT, **WINDOW, rope_parameters=dict(
        MAGNITUDES, llama_4_scaling_beta=0.2))),
    "granite": ("granite", dict(LLAMA, **ACT, **PLAIN, embedding_multiplier=3.0, residual_multiplier=0.5,
                                attention_multiplier=0.25, logits_scaling=4.0)),
    "granite, biases": ("granite", dict(LLAMA, **BIAS, **MLP_BIAS)),
    "mixtral": ("mixtral", dict(LLAMA, **HEAD, **ACT, **PLAIN, **WINDOW, **EXPERTS, num_local_experts=5,
                                router_jitter_noise=0.0)),
    "qwen3_moe": ("qwen3_moe", dict(LLAMA, **HEAD, **ACT, **BIAS, **PLAIN, **WINDOW, **EXPERTS, num_experts=5,
                                    use_sliding_window=True, moe_intermediate_size=24, norm_topk_prob=True,
                                    decoder_sparse_step=2, mlp_only_layers=[3])),
    "qwen3_moe, every third": ("qwen3_moe", dict(LLAMA, num_experts=5, num_experts_per_tok=2, decoder_sparse_step=3,
                                                 moe_intermediate_size=24)),
    "gpt_oss": ("gpt_oss", dict(LLAMA, **HEAD, **UNTIED, hidden_act="silu", attention_bias=False, **WINDOW, **TYPES,
                                **EXPERTS, num_local_experts=5, swiglu_limit=5.0, swiglu_alpha=1.5,
                                rope_parameters=YARN)),
    "t5": ("t5", dict(T5, tie_word_embeddings=False)),
    "t5, tied": ("t5", dict(T5, tie_word_embeddings=True, scale_decoder_outputs=False)),
}
# These have a number of key heads by default that does not divide 4 heads. Only the case without the key is of interest.
MANY_HEADS = dict(LLAMA, hidden_size=256, num_attention_heads=32, head_dim=8)
NEEDED = {"ministral3": dict(rope_parameters=dict(MAGNITUDES, llama_4_scaling_beta=0.2)), "gpt_oss": dict(rope_parameters=YARN)}
CONFIGS |= {f"{family}, 32 heads": (family, MANY_HEADS | NEEDED.get(family, {}))
            for family in ("mistral", "qwen2", "qwen3", "gemma", "ministral", "ministral3", "mixtral", "gpt_oss")}
ONLY_KEYS = {name: ["num_key_value_heads"] for name in CONFIGS if name.endswith(", 32 heads")}
# A window of this family is that of all layers, whatever layer_types says.
ALL_SLIDE = ("mistral", "phi3", "mixtral", "qwen3_moe", "ministral3")
ACTS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu"}


def first(config, *names):
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)


def rope_facts(config, model):
    kind = next((type(m) for n, m in model.named_modules() if n.endswith("rotary_emb")), None)
    if config.model_type == "codegen":
        return {"rotary": config.rotary_dim}
    if kind is None or getattr(config, "alibi", False):
        return {}
    layered = [kind for kind in ("full_attention", "sliding_attention") if kind in config.rope_parameters]
    facts = {}
    for layer_type in layered or [None]:
        rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
        for length in LENGTHS:
            if rope["rope_type"] == "default":
                frequencies, factor = getattr(kind(config), f"{layer_type}_inv_freq" if layer_type else "inv_freq"), 1
            else:
                init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]]
                frequencies, factor = init(config, "cpu", seq_len=length, layer_type=layer_type)
            n = len(frequencies)
            name = "local" if layer_type == "sliding_attention" else "frequencies"
            facts[f"{name} {length}"] = [round_(frequencies[j * (n - 1) // (SAMPLES - 1)]) for j in range(SAMPLES)]
            facts["attention_factor" if name != "local" else "local_factor"] = round_(factor)
        facts["rotary"] = 2 * n
        if "llama_4_scaling_beta" in rope:
            facts["q_scale"] = [rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"]]
    return facts


def round_(value):
    return float(f"{float(value):.8g}")


def windows(config, n_layers):
    window = getattr(config, "sliding_window", None) or 0
    types = getattr(config, "layer_types", None)
    if config.model_type in ALL_SLIDE or not types:
        return [window if config.model_type in ALL_SLIDE else 0] * n_layers
    return [window if kind == "sliding_attention" else 0 for kind in types]


def module(model, *ends):
    return next((m for n, m in model.named_modules() if n.endswith(ends)), None)


def has_bias(model, *ends):
    found = module(model, *ends)
    return found is not None and getattr(found, "bias", None) is not None


def expert_layers(model, config):
    layers = model.model.layers
    return [int(any(n.endswith(("experts", "gate")) and "gate_proj" not in n for n, _ in layer.named_modules()))
            for layer in layers]


def facts_of(config, model):
    t5 = config.model_type == "t5"
    n_layers = first(config, "num_hidden_layers", "num_layers")
    heads, hidden = first(config, "num_attention_heads"), first(config, "hidden_size")
    facts = dict(hidden=hidden, heads=heads, vocab=config.vocab_size, n_params=sum(p.numel() for p in model.parameters()),
                 tied=bool(config.tie_word_embeddings), layers=n_layers + (config.num_decoder_layers if t5 else 0))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert (head.weight is embedding.weight) == config.tie_word_embeddings
    if t5 and not config.scale_decoder_outputs:  # the file decides: a head in it is read, else the embedding is tied
        del facts["tied"], facts["n_params"]
    norm = next(m for n, m in model.named_modules() if type(m).__name__.endswith("Norm"))
    facts["eps"] = first(norm, "variance_epsilon", "eps")
    facts["act"] = ACTS[first(config, "dense_act_fn", "hidden_activation", "hidden_act", "activation_function",
                              "activation") or "gelu_new"]
    if not t5:
        facts["init_std"] = config.initializer_range
        facts["qkv_bias"] = has_bias(model, "q_proj", "query_key_value", "c_attn", "qkv_proj")
        facts["out_bias"] = has_bias(model, "o_proj", "self_attention.dense", "attn.c_proj", "attn.out_proj")
        facts["mlp_bias"] = has_bias(model, "down_proj", "dense_4h_to_h", "mlp.c_proj", "fc_out")
        facts["windows"] = windows(config, n_layers)
    if not t5 and config.model_type != "bloom":
        facts["max_position"] = first(config, "max_position_embeddings")
    attention = next(m for n, m in model.named_modules() if n.endswith(("self_attn", ".attn", "self_attention")) or
                     n.endswith("SelfAttention"))
    facts["head_dim"] = first(attention, "head_dim", "key_value_proj_dim")
    scale = getattr(attention, "scaling", None)
    facts["scale"] = round_(scale if isinstance(scale, float) else 1 if t5 else facts["head_dim"] ** -0.5)
    facts |= rope_facts(config, model)
    if config.model_type == "falcon":
        facts["residual"] = 2 if config.new_decoder_architecture and config.num_ln_in_parallel_attn != 1 else int(
            bool(config.new_decoder_architecture or config.parallel_attn))
        facts["kv_heads"] = attention.num_kv_heads if config.new_decoder_architecture or not config.multi_query else 1
    else:
        facts["kv_heads"] = getattr(config, "num_key_value_heads", None) or heads
    if config.model_type in ("gemma2", "gemma3_text"):
        facts["caps"] = [config.attn_logit_softcapping or 0, config.final_logit_softcapping or 0]
    if config.model_type == "smollm3":
        facts["rotates"] = [int(bool(r)) for r in config.no_rope_layers]
    if config.model_type == "granite":
        facts["multipliers"] = [config.embedding_multiplier, config.residual_multiplier, config.logits_scaling]
    if config.model_type in ("mixtral", "qwen3_moe", "gpt_oss"):
        facts["experts"] = [config.num_local_experts, config.num_experts_per_tok]
        facts["expert_layers"] = expert_layers(model, config)
    if config.model_type == "qwen3_moe":
        facts["norm_topk"] = bool(config.norm_topk_prob)
    if config.model_type == "gpt_oss":
        experts = module(model, "experts")
        facts["glu"] = [experts.limit, experts.alpha]
    if t5:
        facts["encoder_layers"] = n_layers
        facts["buckets"] = [config.relative_attention_num_buckets, config.relative_attention_max_distance]
        facts["gated"] = bool(config.is_gated_act)
        facts["divisor"] = round_(math.sqrt(hidden)) if config.scale_decoder_outputs else 0
    return facts


def result(family, options):
    """The facts of a config.json; None if transformers refuses it. Whatever stops a model from running is a refusal."""
    pairs = family == "t5"
    kind = transformers.AutoModelForSeq2SeqLM if pairs else transformers.AutoModelForCausalLM
    try:
        config = transformers.AutoConfig.for_model(family, pad_token_id=0, **copy.deepcopy(options))
        with torch.device("meta"):
            model = kind.from_config(config)
        if sum(p.numel() for p in model.parameters()) < RUNS_BELOW:
            ids = torch.arange(1, 9)[None]
            kind.from_config(config)(input_ids=ids, **(dict(labels=ids) if pairs else {}))
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return facts_of(config, model), None


def places(config, path=()):
    """The paths of all keys of a config.json."""
    for key, value in config.items():
        yield path + (key,)
        if isinstance(value, dict):
            yield from places(value, path + (key,))


def changed(config, path, how):
    config = copy.deepcopy(config)
    inside = config
    for key in path[:-1]:
        inside = inside[key]
    if how == "null":
        inside[path[-1]] = None
    else:
        del inside[path[-1]]
    return config


def entry(name):
    family, options = CONFIGS[name]
    base, why = result(family, options)
    assert base, why
    cases = {}
    for path in places(options):
        if path[-1] not in ONLY_KEYS.get(name, path):
            continue
        for how in ("absent", "null"):
            facts, _ = result(family, changed(options, path, how))
            cases[f"{'.'.join(path)} {how}"] = "refused" if facts is None else {
                k: v for k, v in facts.items() if base.get(k) != v} | {k: None for k in base if k not in facts}
    return {"config": {"model_type": family, **options}, "facts": base, "cases": cases}


def main():
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    kept = {}
    if sys.argv[1:]:
        with open(OUT) as file:
            kept = json.load(file)
    with open(OUT, "w") as file:
        file.write("{\n")
        for i, name in enumerate(CONFIGS):
            made = entry(name) if not kept or name in sys.argv[1:] else kept[name]
            print(f"{name}: {len(made['cases'])} cases")
            head = {k: v for k, v in made.items() if k != "cases"}
            cases = ",\n".join(json.dumps(k) + ": " + json.dumps(v) for k, v in made["cases"].items())
            file.write(("," if i else "") + json.dumps(name) + ": " + json.dumps(head)[:-1] + ', "cases": {\n' + cases + "}}\n")
        file.write("}\n")


if __name__ == "__main__":
    main()
