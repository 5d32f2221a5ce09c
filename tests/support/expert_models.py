"""Tiny mixtures of experts whose matrices GPTQ can store, as directories of random values, and rows for them.

scripts/golden/gptq_experts.py quantizes the same directories on the same rows, so what follows fixes golden values.
Each letter of TOKENS is a token. The rows have few tokens, so that some experts get next to none of them.
"""

import json
import os
import random

import tiny_models

TOKENS = [chr(ord("A") + i) for i in range(26)] + [chr(ord("a") + i) for i in range(22)]
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
         "vocab_size": len(TOKENS), "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float32"}
MODELS = {
    # Experts in every layer; wide, so that their Hessians do not fit into the bytes of a layer.
    "mixtral": {**SIZES, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "intermediate_size": 256,
                "num_local_experts": 6, "num_experts_per_tok": 2, "rope_theta": 1e6},
    # Many experts in the first layer, an MLP in the second one.
    "qwen3_moe": {**SIZES, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "intermediate_size": 96,
                  "moe_intermediate_size": 32, "head_dim": 16, "num_experts": 40, "num_experts_per_tok": 2,
                  "norm_topk_prob": True, "mlp_only_layers": [1], "decoder_sparse_step": 1, "rope_theta": 1e6},
}
# Options of quantize; the last two are not the defaults.
METHODS = {"mixtral": ["gptq:4", "--group-size", "32"],
           "qwen3_moe": ["gptq:3", "--group-size", "32", "--symmetric", "no", "--act-order"]}


def experts_of(config, layer):
    """Their number, their width, and their names: of the block, and of gate, up and down."""
    if config["model_type"] == "mixtral":
        return config["num_local_experts"], config["intermediate_size"], "block_sparse_moe", ("w1", "w3", "w2")
    if layer in config["mlp_only_layers"]:
        return 0, config["intermediate_size"], "mlp", ("gate_proj", "up_proj", "down_proj")
    return config["num_experts"], config["moe_intermediate_size"], "mlp", ("gate_proj", "up_proj", "down_proj")


def mlp_tensors(config, layer):
    hidden, at = config["hidden_size"], f"model.layers.{layer}."
    count, ffn, block, (gate, up, down) = experts_of(config, layer)
    found = {f"{at}{block}.gate.weight": [count, hidden]} if count else {}
    for expert in range(count or 1):
        prefix = f"{at}{block}.experts.{expert}." if count else f"{at}{block}."
        found |= {f"{prefix}{gate}.weight": [ffn, hidden], f"{prefix}{up}.weight": [ffn, hidden],
                  f"{prefix}{down}.weight": [hidden, ffn]}
    return found


def tensors_of(config):
    hidden, kv = config["hidden_size"], config["num_key_value_heads"] * 16
    found = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden],
             "lm_head.weight": [config["vocab_size"], hidden]}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        found |= {f"{at}self_attn.q_proj.weight": [hidden, hidden], f"{at}self_attn.k_proj.weight": [kv, hidden],
                  f"{at}self_attn.v_proj.weight": [kv, hidden], f"{at}self_attn.o_proj.weight": [hidden, hidden],
                  f"{at}input_layernorm.weight": [hidden], f"{at}post_attention_layernorm.weight": [hidden]}
        if config["model_type"] == "qwen3_moe":
            found |= {f"{at}self_attn.{x}_norm.weight": [16] for x in "qk"}
        found |= mlp_tensors(config, layer)
    return found


def rows():
    """Lists of tokens."""
    rng = random.Random(29)
    return [[rng.randrange(len(TOKENS)) for _ in range(rng.randint(9, 31))] for _ in range(24)]


def write_model(folder, name):
    config = MODELS[name]
    os.makedirs(folder)
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "merges": [],
                           "vocab": {letter: i for i, letter in enumerate(TOKENS)}}}
    for file, value in ("config.json", config), ("tokenizer.json", tokenizer):
        with open(os.path.join(folder, file), "w") as out:
            json.dump(value, out)
    tiny_models.write_safetensors(os.path.join(folder, "model.safetensors"), tensors_of(config), 0.15)
