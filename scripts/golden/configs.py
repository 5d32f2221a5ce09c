"""Known models in full size, written to tests/golden/configs.json: config.json as transformers writes it, with the
exact number of parameters, counted on the meta device (no weights are made).

The keyword arguments are those of each model's config.json on the Hugging Face hub; what they leave out is the default
of transformers' class. A model with the name of a preset (models/preset.c) must have that preset's config.

Run: python scripts/golden/configs.py (needs torch, transformers)
"""

import json
import os

import torch
import transformers

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/configs.json")
YARN8 = dict(rope_type="yarn", rope_theta=500000.0, factor=8.0, original_max_position_embeddings=8192,
             attention_factor=1.2079441541679836, beta_fast=32.0, beta_slow=1.0)

MODELS = {
    "gpt2": ("gpt2", dict()),
    "gpt2-xl": ("gpt2", dict(n_embd=1600, n_layer=48, n_head=25)),
    "bloom-560m": ("bloom", dict(hidden_size=1024, n_layer=24, n_head=16)),
    "bloom-1b1": ("bloom", dict(hidden_size=1536, n_layer=24, n_head=16)),
    "bloom-7b1": ("bloom", dict(hidden_size=4096, n_layer=30, n_head=32)),
    "falcon-7b": ("falcon", dict(num_kv_heads=71)),
    "falcon-40b": ("falcon", dict(hidden_size=8192, num_hidden_layers=60, num_attention_heads=128, num_kv_heads=8,
                                  new_decoder_architecture=True)),
    "falcon-rw-1b": ("falcon", dict(vocab_size=50304, hidden_size=2048, num_hidden_layers=24, num_attention_heads=32,
                                    alibi=True, bias=True, multi_query=False, parallel_attn=False)),
    "codegen-350m": ("codegen", dict(n_embd=1024, n_layer=20, n_head=16, rotary_dim=32, vocab_size=51200)),
    "codegen2-1b": ("codegen", dict(n_embd=2048, n_layer=16, n_head=16, rotary_dim=64, vocab_size=51200, head_dim=128)),
    "phi-3-mini-4k": ("phi3", dict(sliding_window=2047)),
    "phi-4": ("phi3", dict(vocab_size=100352, hidden_size=5120, intermediate_size=17920, num_hidden_layers=40,
                           num_attention_heads=40, num_key_value_heads=10, max_position_embeddings=16384,
                           rope_theta=250000.0)),
    "gemma-2b": ("gemma", dict(hidden_size=2048, intermediate_size=16384, num_hidden_layers=18, num_attention_heads=8,
                               num_key_value_heads=1)),
    "gemma-7b": ("gemma", dict()),
    "gemma-2-2b": ("gemma2", dict()),
    "gemma-2-9b": ("gemma2", dict(hidden_size=3584, intermediate_size=14336, num_hidden_layers=42, num_attention_heads=16,
                                  num_key_value_heads=8)),
    "gemma-2-27b": ("gemma2", dict(hidden_size=4608, intermediate_size=36864, num_hidden_layers=46, num_attention_heads=32,
                                   num_key_value_heads=16, head_dim=128, query_pre_attn_scalar=144)),
    "gemma-3-1b": ("gemma3_text", dict(vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                                       num_attention_heads=4, num_key_value_heads=1, sliding_window=512,
                                       max_position_embeddings=32768)),
    "olmo-2-1b": ("olmo2", dict(vocab_size=100352, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                num_attention_heads=16, max_position_embeddings=4096, rms_norm_eps=1e-6,
                                rope_theta=500000.0)),
    "olmo-2-7b": ("olmo2", dict(vocab_size=100352, max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=500000.0)),
    "olmo-3-7b": ("olmo3", dict(vocab_size=100278, max_position_embeddings=65536, rms_norm_eps=1e-6,
                                rope_parameters=dict(
                                    full_attention=YARN8,
                                    sliding_attention=dict(rope_type="default", rope_theta=500000.0)))),
    "smollm3-3b": ("smollm3", dict(max_position_embeddings=65536)),
    "ministral-8b": ("ministral", dict(vocab_size=131072, intermediate_size=12288, num_hidden_layers=36, head_dim=128,
                                       max_position_embeddings=32768, sliding_window=32768, rms_norm_eps=1e-5,
                                       rope_theta=1e8,
                                       layer_types=["sliding_attention" if i % 4 else "full_attention" for i in range(36)])),
    "ministral-3-8b": ("ministral3", dict()),
    "granite-3.3-2b": ("granite", dict(vocab_size=49159, hidden_size=2048, intermediate_size=8192, num_hidden_layers=40,
                                       num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5,
                                       rope_theta=1e7, embedding_multiplier=12.0, residual_multiplier=0.22,
                                       attention_multiplier=0.015625, logits_scaling=8.0, tie_word_embeddings=True)),
    "granite-3.3-8b": ("granite", dict(vocab_size=49159, intermediate_size=12800, num_hidden_layers=40,
                                       num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5,
                                       rope_theta=1e7, embedding_multiplier=12.0, residual_multiplier=0.22,
                                       attention_multiplier=0.0078125, logits_scaling=16.0, tie_word_embeddings=True)),
    "mixtral-8x7b": ("mixtral", dict(max_position_embeddings=32768, rope_theta=1000000.0)),
    "qwen3-30b-a3b": ("qwen3_moe", dict(num_hidden_layers=48, head_dim=128, max_position_embeddings=40960,
                                        rope_theta=1000000.0, norm_topk_prob=True)),
    "qwen3-235b-a22b": ("qwen3_moe", dict(
        hidden_size=4096, intermediate_size=12288, moe_intermediate_size=1536, num_hidden_layers=94, num_attention_heads=64,
        head_dim=128, max_position_embeddings=40960, rope_theta=1000000.0, norm_topk_prob=True)),
    "t5-small": ("t5", dict()),
    "t5-base": ("t5", dict(d_model=768, d_ff=3072, num_layers=12, num_heads=12)),
    "flan-t5-base": ("t5", dict(d_model=768, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu",
                                tie_word_embeddings=False)),
    # Llama and Qwen under other names.
    "falcon3-7b": ("llama", dict(vocab_size=131072, hidden_size=3072, intermediate_size=23040, num_hidden_layers=28,
                                 num_attention_heads=12, num_key_value_heads=4, head_dim=256, max_position_embeddings=32768,
                                 rope_theta=1000042.0)),
    "deepseek-r1-distill-qwen-7b": ("qwen2", dict(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, max_position_embeddings=131072, use_sliding_window=False, sliding_window=4096)),
    "deepseek-r1-distill-llama-8b": ("llama", dict(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_key_value_heads=8,
        max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=8192))),
    "yi-6b": ("llama", dict(vocab_size=64000, num_key_value_heads=4, max_position_embeddings=4096, rms_norm_eps=1e-5,
                            rope_theta=5000000.0)),
    "vicuna-7b": ("llama", dict(max_position_embeddings=4096, rms_norm_eps=1e-5)),
    "codellama-7b": ("llama", dict(vocab_size=32016, max_position_embeddings=16384, rms_norm_eps=1e-5,
                                   rope_theta=1000000.0)),
}
KEPT = ("vocab_size", "hidden_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "num_kv_heads", "intermediate_size", "ffn_hidden_size", "head_dim",
        "max_position_embeddings", "original_max_position_embeddings", "rotary_dim", "rms_norm_eps", "layer_norm_epsilon",
        "hidden_act", "hidden_activation", "activation_function", "activation", "initializer_range", "tie_word_embeddings",
        "rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "no_rope_layers",
        "attention_bias", "mlp_bias", "bias", "alibi", "multi_query", "parallel_attn", "new_decoder_architecture",
        "num_ln_in_parallel_attn", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
        "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
        "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
        "decoder_sparse_step", "mlp_only_layers",
        "d_model", "d_kv", "d_ff",
        "num_layers", "num_decoder_layers", "num_heads", "relative_attention_num_buckets",
        "relative_attention_max_distance", "feed_forward_proj", "scale_decoder_outputs")


def entry(family, options):
    config = transformers.AutoConfig.for_model(family, **options)
    with torch.device("meta"):
        pairs = config.is_encoder_decoder
        kind = transformers.AutoModelForSeq2SeqLM if pairs else transformers.AutoModelForCausalLM
        model = kind.from_config(config)
    kept = {k: v for k, v in config.to_dict().items() if k in KEPT and (v is not None or k == "sliding_window")}
    n_params = sum(p.numel() for p in model.parameters())
    if pairs and not config.scale_decoder_outputs:  # transformers 5 ties even those heads, until it reads their weights
        n_params += model.lm_head.weight.numel()
    return {"model_type": config.model_type, "architectures": [type(model).__name__], **kept}, n_params


def main():
    models = {}
    for name, (family, options) in MODELS.items():
        config, n_params = entry(family, options)
        models[name] = {"n_params": n_params, "config": config}
        print(f"{name}: {n_params:,}")
    with open(OUT, "w") as file:
        json.dump(models, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
