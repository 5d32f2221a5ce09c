"""Golden frequencies of every scaling of rope, by transformers, written to tests/golden/rope.json.

Each case has a config.json, the length of the sequences, the frequency of each pair (fp32), and what multiplies cos
and sin.

Run: python scripts/golden/rope.py (needs torch, transformers)
"""

import json
import os

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = os.path.join(os.path.dirname(__file__), "../../tests/golden/rope.json")
PAIRS = 8
CASES = {
    "linear": (dict(rope_type="linear", rope_theta=1e4, factor=4.0), 64),
    "llama3": (dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=1024), 64),
    "dynamic, short": (dict(rope_type="dynamic", rope_theta=1e4, factor=4.0), 64),
    "dynamic, long": (dict(rope_type="dynamic", rope_theta=1e4, factor=4.0), 10000),
    "yarn": (dict(rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=256), 64),
    "yarn, fractions": (dict(rope_type="yarn", rope_theta=1.5e5, factor=32.0, original_max_position_embeddings=4096,
                             beta_fast=32.0, beta_slow=1.0, truncate=False), 64),
    "yarn, magnitudes": (dict(rope_type="yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=128,
                              beta_fast=16.0, beta_slow=2.0, mscale=1.0, mscale_all_dim=0.7), 64),
    "yarn, factor": (dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=512,
                          attention_factor=1.25), 64),
    "longrope, short": (dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=128,
                             short_factor=[1 + i / 8 for i in range(PAIRS)],
                             long_factor=[1.5 + i for i in range(PAIRS)]), 128),
    "longrope, long": (dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=128, factor=16.0,
                            short_factor=[1 + i / 8 for i in range(PAIRS)],
                            long_factor=[1.5 + i for i in range(PAIRS)]), 129),
    "proportional": (dict(rope_type="proportional", rope_theta=1e4, partial_rotary_factor=0.25, factor=2.0), 64),
}


def golden_case(rope, length):
    config = transformers.LlamaConfig(vocab_size=44, hidden_size=64, intermediate_size=64, num_attention_heads=4,
                                      num_hidden_layers=1, head_dim=2 * PAIRS, max_position_embeddings=2048,
                                      rope_parameters=dict(rope))
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
    kept = {k: v for k, v in config.to_dict().items() if k in (
        "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
        "head_dim", "max_position_embeddings")}
    return {"config": kept | {"rope_parameters": rope}, "length": length,
            "frequencies": [float(f) for f in frequencies], "factor": float(factor)}


def main():
    with open(OUT, "w") as file:
        json.dump({name: golden_case(*case) for name, case in CASES.items()}, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
