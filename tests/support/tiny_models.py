"""Tiny models of each family that llama.cpp has, as directories of random values. Uses the standard library only.

scripts/golden/gguf_converted.py gives the same directories to llama.cpp's converter, so what follows fixes golden values:
keys of config.json, names and order of tensors, random numbers.
"""

import json
import math
import os
import random
import struct

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 259,
         "max_position_embeddings": 256, "bos_token_id": 256, "eos_token_id": 257, "torch_dtype": "float32"}
GROUPED = {**SIZES, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
FALCON = {**{key: value for key, value in SIZES.items() if key != "intermediate_size"}, "model_type": "falcon",
          "architectures": ["FalconForCausalLM"], "bias": False, "layer_norm_epsilon": 1e-5, "ffn_hidden_size": 256}
MOE = {**GROUPED, "tie_word_embeddings": False}
# YaRN ends its blend at pair 1.99999 of a head of 16: llama.cpp rounds this number up, and config.json says not to.
GPT_OSS = {**MOE, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "intermediate_size": 64, "head_dim": 16,
           "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
           "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False,
                               "rope_theta": 10765.0}}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 96, "num_heads": 3,
      "vocab_size": 259, "n_positions": 512, "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 16,
      "relative_attention_max_distance": 128, "decoder_start_token_id": 0, "pad_token_id": 0, "torch_dtype": "float32"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# Each config has all keys that llama.cpp's converter needs.
MODELS = {
    "llama_bias": {**GROUPED, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": True,
                   "mlp_bias": True, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 3, "n_head": 4, "n_ctx": 256,
             "n_positions": 256, "vocab_size": 259, "layer_norm_epsilon": 1e-5, "bos_token_id": 256, "eos_token_id": 257,
             "torch_dtype": "float32"},
    "bloom": {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 96, "n_layer": 3, "n_head": 6,
              "num_attention_heads": 6, "vocab_size": 259, "layer_norm_epsilon": 1e-5, "bos_token_id": 256,
              "eos_token_id": 257, "seq_length": 256, "torch_dtype": "float32"},
    "falcon": {**FALCON, "multi_query": True, "num_kv_heads": 1, "parallel_attn": True},
    "falcon_two": {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True},
    "phi": {**GROUPED, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64, "sliding_window": None,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.05, 1.25, 1.5, 2.0, 3.0],
                             "long_factor": [1.5, 1.6, 2.0, 3.0, 7.0, 8.0]}},
    "gemma": {**GROUPED, "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "num_key_value_heads": 1, "head_dim": 32,
              "tie_word_embeddings": True},
    "gemma2": {**GROUPED, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16,
               "query_pre_attn_scalar": 16, "sliding_window": 16, "attn_logit_softcapping": 5.0,
               "final_logit_softcapping": 7.0, "tie_word_embeddings": True},
    "gemma3": {**GROUPED, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 32,
               "query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 6, "rope_theta": 1e6,
               "rope_local_base_freq": 5000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
               "tie_word_embeddings": True},
    "olmo2": {**GROUPED, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "tie_word_embeddings": False},
    "olmo3": {**GROUPED, "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "sliding_window": 16, "rope_theta": 5e5,
              "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_scaling": YARN,
              "tie_word_embeddings": False},
    "smollm3": {**GROUPED, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 4,
                "rope_theta": 2e6, "tie_word_embeddings": True},
    "ministral3": {**GROUPED, "model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"], "head_dim": 32,
                   "rope_parameters": {**YARN, "rope_theta": 1e4, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0,
                                       "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}},
    "granite": {**GROUPED, "model_type": "granite", "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0,
                "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 2.5, "tie_word_embeddings": True},
    "mixtral": {**MOE, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
                "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6},
    "qwen3_moe": {**MOE, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 32, "num_experts": 6,
                  "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1,
                  "mlp_only_layers": []},
    "gpt_oss": GPT_OSS,
    "gpt_oss_mxfp4": {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}},
    "t5": {**T5, "num_layers": 3, "num_decoder_layers": 2, "feed_forward_proj": "relu"},
    "t5_gated": {**T5, "num_layers": 2, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu",
                 "tie_word_embeddings": False},
}


def gpt2_tensors(c):
    hidden, found = c["n_embd"], {"transformer.wte.weight": [c["vocab_size"], c["n_embd"]]}
    found["transformer.wpe.weight"] = [c["n_positions"], hidden]
    for layer in range(c["n_layer"]):
        at = f"transformer.h.{layer}."
        for name, ins, outs in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            found[f"{at}{name}.weight"] = [ins * hidden, outs * hidden]
            found[f"{at}{name}.bias"] = [outs * hidden]
        for name in ("ln_1", "ln_2"):
            found |= layer_norm(at + name, hidden)
    return found | layer_norm("transformer.ln_f", hidden)


def layer_norm(name, width):
    return {f"{name}.weight": [width], f"{name}.bias": [width]}


def bloom_tensors(c):
    """BLOOM and Falcon."""
    hidden, is_bloom = c["hidden_size"], c["model_type"] == "bloom"
    head = hidden // c["num_attention_heads"]
    qkv = 3 * hidden if is_bloom else hidden + 2 * c["num_kv_heads"] * head
    norms = ("ln_attn", "ln_mlp") if c.get("new_decoder_architecture") else ("input_layernorm",)
    norms += ("post_attention_layernorm",) if is_bloom else ()
    found = {"transformer.word_embeddings.weight": [c["vocab_size"], hidden]}
    if is_bloom:
        found |= layer_norm("transformer.word_embeddings_layernorm", hidden)
    for layer in range(c.get("n_layer") or c["num_hidden_layers"]):
        at = f"transformer.h.{layer}."
        for name, rows, cols in (("self_attention.query_key_value", qkv, hidden), ("self_attention.dense", hidden, hidden),
                                 ("mlp.dense_h_to_4h", 4 * hidden, hidden), ("mlp.dense_4h_to_h", hidden, 4 * hidden)):
            found[f"{at}{name}.weight"] = [rows, cols]
            if is_bloom:
                found[f"{at}{name}.bias"] = [rows]
        for name in norms:
            found |= layer_norm(at + name, hidden)
    return found | layer_norm("transformer.ln_f", hidden)


def t5_layer(c, at, cross):
    """A layer of the encoder, or one of the decoder, which has cross attention too."""
    hidden, inner, found = c["d_model"], c["num_heads"] * c["d_kv"], {}
    for i, name in enumerate(["SelfAttention"] + ["EncDecAttention"] * cross):
        maps = {"q": [inner, hidden], "k": [inner, hidden], "v": [inner, hidden], "o": [hidden, inner]}
        found |= {f"{at}layer.{i}.{name}.{part}.weight": shape for part, shape in maps.items()}
        found[f"{at}layer.{i}.layer_norm.weight"] = [hidden]
    at += f"layer.{1 + cross}."
    for name in ("wi_0", "wi_1") if c["feed_forward_proj"].startswith("gated") else ("wi",):
        found[f"{at}DenseReluDense.{name}.weight"] = [c["d_ff"], hidden]
    return found | {f"{at}DenseReluDense.wo.weight": [hidden, c["d_ff"]], f"{at}layer_norm.weight": [hidden]}


def t5_tensors(c):
    hidden, table = c["d_model"], [c["relative_attention_num_buckets"], c["num_heads"]]
    found = {"shared.weight": [c["vocab_size"], hidden]}
    for stack, layers in (("encoder", c["num_layers"]), ("decoder", c["num_decoder_layers"])):
        found[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = table
        for layer in range(layers):
            found |= t5_layer(c, f"{stack}.block.{layer}.", stack == "decoder")
        found[f"{stack}.final_layer_norm.weight"] = [hidden]
    if not c.get("tie_word_embeddings", True):
        found["lm_head.weight"] = [c["vocab_size"], hidden]
    return found


def attention_maps(c):
    """(name, rows, cols) of the matrices of a layer whose names are those of Llama or Phi-3."""
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    head = c.get("head_dim", hidden // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    if c["model_type"] == "phi3":
        return [("self_attn.qkv_proj", q + 2 * kv, hidden), ("self_attn.o_proj", hidden, q),
                ("mlp.gate_up_proj", 2 * ffn, hidden), ("mlp.down_proj", hidden, ffn)]
    found = [("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden), ("self_attn.v_proj", kv, hidden),
             ("self_attn.o_proj", hidden, q)]
    if "num_experts_per_tok" in c:
        return found
    return found + [("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden), ("mlp.down_proj", hidden, ffn)]


def expert_tensors(c, layer):
    """Router and experts of a layer."""
    family, hidden, at = c["model_type"], c["hidden_size"], f"model.layers.{layer}."
    n, ffn = c.get("num_local_experts") or c["num_experts"], c.get("moe_intermediate_size", c["intermediate_size"])
    if family == "gpt_oss":
        at += "mlp."
        found = {f"{at}router.weight": [n, hidden], f"{at}router.bias": [n], f"{at}experts.gate_up_proj_bias": [n, 2 * ffn],
                 f"{at}experts.down_proj_bias": [n, hidden], f"model.layers.{layer}.self_attn.sinks": [c["num_attention_heads"]]}
        for name, rows, cols in (("gate_up_proj", 2 * ffn, hidden), ("down_proj", hidden, ffn)):
            if "quantization_config" in c:
                found |= {f"{at}experts.{name}_blocks": [n, rows, cols // 32, 16], f"{at}experts.{name}_scales": [n, rows, cols // 32]}
            else:
                found[f"{at}experts.{name}"] = [n, cols, rows]
        return found
    at += "block_sparse_moe." if family == "mixtral" else "mlp."
    gate, up, down = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    found = {f"{at}gate.weight": [n, hidden]}
    for expert in range(n):
        for name, rows, cols in ((gate, ffn, hidden), (up, ffn, hidden), (down, hidden, ffn)):
            found[f"{at}experts.{expert}.{name}.weight"] = [rows, cols]
    return found


def layer_norms(c):
    """(name, width) of the norms of a layer."""
    family, hidden = c["model_type"], c["hidden_size"]
    head = c.get("head_dim", hidden // c["num_attention_heads"])
    names = ["post_attention_layernorm"]
    if family not in ("olmo2", "olmo3"):
        names.append("input_layernorm")
    if family in ("gemma2", "gemma3_text"):
        names.append("pre_feedforward_layernorm")
    if family in ("gemma2", "gemma3_text", "olmo2", "olmo3"):
        names.append("post_feedforward_layernorm")
    found = [(name, hidden) for name in names]
    if family in ("qwen3", "qwen3_moe", "gemma3_text"):
        found += [("self_attn.q_norm", head), ("self_attn.k_norm", head)]
    if family in ("olmo2", "olmo3"):
        found += [("self_attn.q_norm", c["num_attention_heads"] * head), ("self_attn.k_norm", c["num_key_value_heads"] * head)]
    return found


def llama_tensors(c):
    hidden = c["hidden_size"]
    found = {"model.embed_tokens.weight": [c["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not c.get("tie_word_embeddings"):
        found["lm_head.weight"] = [c["vocab_size"], hidden]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, cols in attention_maps(c):
            biased = c.get("mlp_bias") if "mlp" in name else c.get("attention_bias") or c["model_type"] == "gpt_oss" or (
                c["model_type"] == "qwen2" and "o_proj" not in name)
            found[f"{at}{name}.weight"] = [rows, cols]
            if biased:
                found[f"{at}{name}.bias"] = [rows]
        for name, width in layer_norms(c):
            found[f"{at}{name}.weight"] = [width]
        if "num_experts_per_tok" in c:
            found |= expert_tensors(c, layer)
    return found


def tensors_of(config):
    """Names and shapes of the tensors that a model has."""
    makers = {"gpt2": gpt2_tensors, "bloom": bloom_tensors, "falcon": bloom_tensors, "t5": t5_tensors}
    return makers.get(config["model_type"], llama_tensors)(config)


def write_safetensors(path, tensors, spread=0.06, gemma=False):
    """Random fp32 values of this spread from a fixed seed; norms near 1, those of Gemma near 0. Codes of MXFP4 and their
    scales are random bytes."""
    rng, header, data = random.Random(5), {}, b""
    for name, shape in tensors.items():
        count, is_bytes = math.prod(shape), name.endswith(("_blocks", "_scales"))
        is_norm = ("norm" in name or ".ln_" in name) and name.endswith(".weight")
        middle, size = (0 if gemma else 1, 0.1) if is_norm else (0, spread)
        if is_bytes:
            raw = bytes(rng.randrange(121, 124) if name.endswith("_scales") else rng.randrange(256) for _ in range(count))
        else:
            raw = struct.pack(f"<{count}f", *(rng.gauss(middle, size) for _ in range(count)))
        header[name] = {"dtype": "U8" if is_bytes else "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_model(folder, config):
    """A directory without a tokenizer. Its weights are large enough for each part of the model to matter."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors_of(config), 0.15,
                      config["model_type"].startswith("gemma"))


ADAPTED = ["mixtral", "qwen3_moe", "gpt_oss"]
GATE_UP_RANK, DOWN_RANK = 4, 3
ADAPTER_CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": GATE_UP_RANK, "lora_alpha": 8, "lora_dropout": 0.0,
                  "bias": "none", "target_modules": ["o_proj"],
                  "target_parameters": ["experts.down_proj", "experts.gate_up_proj"],
                  "rank_pattern": {"experts.down_proj": DOWN_RANK}, "alpha_pattern": {"experts.down_proj": 5}}


def adapter_tensors(c):
    """Names and shapes of adapters of all experts and of o_proj, as PEFT has them."""
    hidden, head = c["hidden_size"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    n, ffn = c.get("num_local_experts") or c["num_experts"], c.get("moe_intermediate_size", c["intermediate_size"])
    found = {}
    for layer in range(c["num_hidden_layers"]):
        for name, ranks, rank, rows, cols in (
                ("self_attn.o_proj", 1, GATE_UP_RANK, hidden, head * c["num_attention_heads"]),
                ("mlp.experts.base_layer", n, GATE_UP_RANK, 2 * ffn, hidden), ("mlp.experts", n, DOWN_RANK, hidden, ffn)):
            at = f"base_model.model.model.layers.{layer}.{name}."
            found |= {at + "lora_A.weight": [ranks * rank, cols], at + "lora_B.weight": [rows, rank * ranks]}
    return found


def write_adapters(folder, config, base):
    """A directory of PEFT, for one of ADAPTED."""
    os.makedirs(folder)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({**ADAPTER_CONFIG, "base_model_name_or_path": base}, file)
    write_safetensors(os.path.join(folder, "adapter_model.safetensors"), adapter_tensors(config), 0.15)
