"""Two ranks in two network namespaces, with a link of 1 Gbit/s and 20 ms between them: --shard stages beside full.

    bench_stages_link.py PROGRAM [LAYERS [WIDTH [TOKENS [STEPS]]]]     default: 12, 512, 512, 5

Trains a Llama with random weights in fp32, in sequences of 128 tokens, on one thread a rank. Prints the median step of
each mode without the first step, and their ratio. Needs the right to make network namespaces (root).
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import slow_link  # noqa: E402

SEQUENCE, VOCABULARY = 128, 4096


def write_model(folder, layers, width):
    """A configuration and a tokenizer whose tokens are bytes; the weights are made at random."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": width,
              "intermediate_size": 4 * width, "num_hidden_layers": layers, "num_attention_heads": width // 64,
              "num_key_value_heads": width // 64, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
              "max_position_embeddings": SEQUENCE, "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": 95}
    symbols = {chr(code): code - 33 for code in range(33, 127)} | {"Ġ": 94, "</s>": 95}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                 "decoder": {"type": "ByteLevel"},
                 "added_tokens": [{"id": 95, "content": "</s>", "special": True, "single_word": False, "lstrip": False,
                                   "rstrip": False, "normalized": False}],
                 "model": {"type": "BPE", "vocab": symbols, "merges": []}}
    for name, value in (("config", config), ("tokenizer", tokenizer)):
        with open(os.path.join(folder, name + ".json"), "w") as file:
            json.dump(value, file)
    with open(os.path.join(folder, "rows.jsonl"), "w") as file:
        for i in range(64):
            file.write(json.dumps({"text": "".join(chr(33 + (i * 7 + k * k) % 94) for k in range(SEQUENCE))}) + "\n")


def train(program, folder, link, mode, tokens, steps):
    ranks = []
    for rank, enter in enumerate(([], link.enter)):
        words = [*enter, program, "train", "--model", folder, "--init", "random", "--data", folder + "/rows.jsonl",
                 "--device", "cpu", "--threads", 1, "--seq-len", SEQUENCE, "--tokens-per-step", tokens, "--micro-batch", 1,
                 "--steps", steps, "--eval-fraction", 0, "--no-save", "--no-forecast", "--json", "--shard", mode,
                 "--nodes", 2, "--gpus", 1, "--master", slow_link.HERE, "--node-rank", rank]
        ranks.append(subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    out = [rank.communicate() for rank in ranks]
    for rank, (_, err) in zip(ranks, out):
        if rank.returncode != 0:
            sys.exit(err.decode())
    events = [json.loads(line) for line in out[0][0].splitlines()]
    return statistics.median([event["seconds"] for event in events if event["event"] == "step"][1:])


def main():
    words = sys.argv[1:] + [None] * 5
    layers, width = int(words[1] or 12), int(words[2] or 512)
    tokens, steps = int(words[3] or 512), int(words[4] or 5)
    link = slow_link.SlowLink()
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_model(folder, layers, width)
            seconds = {mode: train(words[0], folder, link, mode, tokens, steps) for mode in ("full", "stages")}
    finally:
        link.close()
    for mode, step in seconds.items():
        print(f"{layers} layers of width {width}, {tokens} tokens a step, --shard {mode}: {step:.2f} s a step")
    print(f"stages: {seconds['full'] / seconds['stages']:.1f} times full")


if len(sys.argv) < 2:
    sys.exit(__doc__)
main()
