"""Two ranks of offload-train over shared memory, beside two processes of PyTorch FSDP over gloo, on the CPU.

    peer_ranks.py PROGRAM [MODEL [DTYPE [ROUNDS [STEPS]]]]     default: 27m, fp32, 3, 5

MODEL is 27m or 110m, DTYPE fp32 or bf16. Both sides train the same Llama from the same weights on the same rows: each
step takes all rows, so their order does not matter and the losses must agree to rounding. Both have one thread a
rank, AdamW with clipping, and the same number of sequences in a forward pass. The peer is transformers'
LlamaForCausalLM under fully_shard (FSDP2), each layer by itself; it runs with reshard_after_forward, which is our
--shard full, and without, which is near our --shard state. bf16 has fp32 masters and fp32 sums on both sides.
torchrun starts both, and the sides take turns. A figure is the median step of the side's best round, without the
first step.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

RANKS, SEQUENCE, SEQUENCES = 2, 512, 4
RATE, DECAY, BETAS, EPSILON = 1e-4, 0.1, (0.9, 0.95), 1e-8
COMMON = {"rms_norm_eps": 1e-5, "max_position_embeddings": SEQUENCE}
MODELS = {
    "27m": {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8,
            "num_key_value_heads": 4, "vocab_size": 4096, "tie_word_embeddings": False},
    "110m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
             "num_key_value_heads": 12, "vocab_size": 32000, "tie_word_embeddings": True},
}
SYMBOLS = [chr(code) for code in range(33, 127)]  # the text of the rows; a token each

# ---- the peer: one rank, started by torchrun ----


def make_model(config):
    import torch
    import transformers

    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(use_cache=False, attn_implementation="sdpa", **COMMON, **config)).float().train()


def shard(model, dtype, reshard):
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if dtype == "bf16" else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=precision, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=precision, reshard_after_forward=reshard)


def train_peer(folder, name, dtype, reshard, steps):
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = make_model(MODELS[name])
    shard(model, dtype, reshard)
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON, fused=True)
    with open(os.path.join(folder, "rows.jsonl")) as file:
        rows = [[SYMBOLS.index(symbol) for symbol in json.loads(line)["text"]] for line in file]
    tokens = torch.tensor(rows[rank::RANKS])
    result = {"losses": [], "seconds": []}
    for _ in range(steps):
        begin = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        result["losses"].append(mean.item() / RANKS)
        result["seconds"].append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps(result))
    torch.distributed.destroy_process_group()


# ---- both sides ----


def write_inputs(folder, name):
    """A model directory, with a tokenizer whose tokens are single symbols, and the rows."""
    vocabulary = {symbol: i for i, symbol in enumerate(SYMBOLS)} | {"Ġ": len(SYMBOLS), "</s>": len(SYMBOLS) + 1}
    tokenizer = {"version": "1.0", "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                 "decoder": {"type": "ByteLevel"},
                 "added_tokens": [{"id": len(SYMBOLS) + 1, "content": "</s>", "special": True, "single_word": False,
                                   "lstrip": False, "rstrip": False, "normalized": False}],
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    make_model(MODELS[name]).save_pretrained(os.path.join(folder, "model"))
    with open(os.path.join(folder, "model/config.json"), "w") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                   "rope_theta": 10000.0, "eos_token_id": len(SYMBOLS) + 1, **COMMON, **MODELS[name]}, file)
    with open(os.path.join(folder, "model/tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
    random.seed(1)
    with open(os.path.join(folder, "rows.jsonl"), "w") as file:
        for _ in range(SEQUENCES):
            file.write(json.dumps({"text": "".join(random.choices(SYMBOLS, k=SEQUENCE))}) + "\n")


def run(*words):
    """Starts the ranks with torchrun. It gives each a session of its own, and so the same share of a busy machine."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, *words]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=dict(os.environ, OMP_NUM_THREADS="1"), check=False)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stderr.decode()}")
    return done.stdout.decode()


def run_peer(folder, name, dtype, reshard, steps):
    return json.loads(run(os.path.abspath(__file__), "--rank", folder, name, dtype, reshard, steps).splitlines()[-1])


def run_ours(program, folder, mode, dtype, steps):
    out = run("--no-python", program, "train", "--model", os.path.join(folder, "model"), "--data",
              os.path.join(folder, "rows.jsonl"), "--eval-fraction", 0, "--no-eos", "--device", "cpu", "--dtype", dtype,
              "--shard", mode, "--threads", 1, "--seq-len", SEQUENCE, "--tokens-per-step", SEQUENCE * SEQUENCES,
              "--micro-batch", SEQUENCES // RANKS, "--steps", steps, "--lr", RATE, "--schedule", "constant",
              "--warmup", 0, "--weight-decay", DECAY, "--beta1", BETAS[0], "--beta2", BETAS[1], "--eps", EPSILON, "--clip", 1,
              "--no-forecast", "--no-save", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    found = [event for event in events if event["event"] == "step"]
    return {"losses": [event["loss"] for event in found], "seconds": [event["seconds"] for event in found]}


def main():
    words = sys.argv[1:] + [None] * 5
    program, name, dtype = words[0], words[1] or "27m", words[2] or "fp32"
    rounds, steps = int(words[3] or 3), int(words[4] or 5)
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(folder, name)
        for _ in range(rounds):
            for side, train in (
                    ("ours, --shard full", lambda: run_ours(program, folder, "full", dtype, steps)),
                    ("FSDP, reshard_after_forward", lambda: run_peer(folder, name, dtype, "yes", steps)),
                    ("ours, --shard state", lambda: run_ours(program, folder, "state", dtype, steps)),
                    ("FSDP, no reshard", lambda: run_peer(folder, name, dtype, "no", steps))):
                result = train()
                result["step"] = statistics.median(result["seconds"][1:])
                print(f"{side:28s} {result['step']:.2f} s a step, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
                if side not in best or result["step"] < best[side]["step"]:
                    best[side] = result
    sides = list(best)
    for side in sides:
        rate = SEQUENCE * SEQUENCES / best[side]["step"]
        print(f"{name} {dtype} {side:28s} {rate:8.0f} tokens/s; losses "
              + " ".join(f"{loss:.5f}" for loss in best[side]["losses"]))
    for ours, peer in zip(sides[::2], sides[1::2]):
        print(f"{name} {dtype} {ours}: {best[peer]['step'] / best[ours]['step']:.2f} of {peer}")


if len(sys.argv) < 2:
    sys.exit(__doc__)
if sys.argv[1] == "--rank":
    train_peer(*sys.argv[2:5], sys.argv[5] == "yes", int(sys.argv[6]))
else:
    main()
