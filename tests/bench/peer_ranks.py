"""Ranks of offload-train over shared memory, beside as many processes of PyTorch over gloo, on the CPU.

    peer_ranks.py PROGRAM [MODEL [DTYPE [ROUNDS [STEPS [RANKS]]]]]     default: 27m, fp32, 3, 5, 2

MODEL is 27m or 110m, DTYPE fp32 or bf16, RANKS a divisor of the model's layers. A step has two sequences a rank.
Both sides train the same Llama from the same weights on the same rows: each step takes all rows, so their order does not matter and the losses must agree to rounding. Both have one thread a
rank, AdamW with clipping, and the same number of sequences in a forward pass. The peer is transformers'
LlamaForCausalLM under fully_shard (FSDP2), each layer by itself; it runs with reshard_after_forward, which is our
--shard full, and without, which is near our --shard state. The peer of --shard stages is torch.distributed.pipelining
(1F1B) in fp32, with micro-batches of one sequence on both sides. bf16 has fp32 masters and fp32 sums on both sides.
One process of ours with as many threads as there are ranks stands beside. torchrun starts the ranks, and the sides
take turns. A figure is the median step of the side's best round, without the first step.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

IS_RANK = sys.argv[1:2] in (["--rank"], ["--stage"])  # started by torchrun
RANKS = int(os.environ["WORLD_SIZE"] if IS_RANK else (sys.argv[6:7] or [2])[0])
SEQUENCE, SEQUENCES = 512, 2 * RANKS
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


def make_optimizer(model):
    import torch

    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON, fused=True)


def read_rows(folder):
    with open(os.path.join(folder, "rows.jsonl")) as file:
        return [[SYMBOLS.index(symbol) for symbol in json.loads(line)["text"]] for line in file]


def make_stage(model, rank):
    """The part of the model that a rank owns, as a module from token ids or activations to activations or logits."""
    import torch

    class Stage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layers = model.model.layers
            part = len(layers) // RANKS
            self.embed = model.model.embed_tokens if rank == 0 else None
            self.layers = layers[rank * part:(rank + 1) * part]
            self.norm, self.head = (model.model.norm, model.lm_head) if rank == RANKS - 1 else (None, None)
            self.rotary = model.model.rotary_emb

        def forward(self, x):
            x = self.embed(x) if self.embed is not None else x
            places = self.rotary(x, torch.arange(x.shape[1])[None])
            for layer in self.layers:
                x = layer(x, position_embeddings=places)
                x = x[0] if isinstance(x, tuple) else x
            return self.head(self.norm(x)) if self.head is not None else x

    return Stage()


def train_pipeline(folder, name, steps):
    import torch
    import torch.distributed
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    module = make_stage(make_model(MODELS[name]), rank)
    optimizer = make_optimizer(module)

    def loss_of(logits, targets):
        return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), targets[:, 1:].reshape(-1))

    schedule = Schedule1F1B(PipelineStage(module, rank, RANKS, torch.device("cpu")), SEQUENCES, loss_fn=loss_of)
    tokens = torch.tensor(read_rows(folder))
    result = {"losses": [], "seconds": []}
    for _ in range(steps):
        begin = time.perf_counter()
        losses = []
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=losses)
        squares = sum((p.grad.detach() ** 2).sum() for p in module.parameters())
        torch.distributed.all_reduce(squares)
        scale = torch.clamp(1.0 / (squares.sqrt() + 1e-6), max=1.0)
        for parameter in module.parameters():
            parameter.grad *= scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = torch.tensor(sum(loss.item() for loss in losses) / SEQUENCES)
        torch.distributed.all_reduce(mean)
        result["losses"].append(mean.item())
        result["seconds"].append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps(result))
    torch.distributed.destroy_process_group()


def train_peer(folder, name, dtype, reshard, steps):
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = make_model(MODELS[name])
    shard(model, dtype, reshard)
    optimizer = make_optimizer(model)
    tokens = torch.tensor(read_rows(folder)[rank::RANKS])
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


def run_alone(_, *words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stderr.decode()}")
    return done.stdout.decode()


def run_peer(folder, name, dtype, reshard, steps):
    return json.loads(run(os.path.abspath(__file__), "--rank", folder, name, dtype, reshard, steps).splitlines()[-1])


def run_pipeline(folder, name, steps):
    return json.loads(run(os.path.abspath(__file__), "--stage", folder, name, steps).splitlines()[-1])


def run_ours(program, folder, mode, dtype, steps):
    """mode None: one process with a thread for each rank."""
    start, threads = (run, 1) if mode else (run_alone, RANKS)
    micro = 1 if mode in (None, "stages") else SEQUENCES // RANKS
    shard_words = ["--shard", mode] if mode else []
    out = start("--no-python", program, "train", "--model", os.path.join(folder, "model"), "--data",
              os.path.join(folder, "rows.jsonl"), "--eval-fraction", 0, "--no-eos", "--device", "cpu", "--dtype", dtype,
              *shard_words, "--threads", threads, "--seq-len", SEQUENCE, "--tokens-per-step", SEQUENCE * SEQUENCES,
              "--micro-batch", micro, "--steps", steps, "--lr", RATE, "--schedule", "constant",
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
                    ("FSDP, no reshard", lambda: run_peer(folder, name, dtype, "no", steps)),
                    ("ours, --shard stages", lambda: run_ours(program, folder, "stages", dtype, steps)),
                    ("pipelining, 1F1B", lambda: run_pipeline(folder, name, steps)),
                    ("ours, one process", lambda: run_ours(program, folder, None, dtype, steps))):
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
if sys.argv[1] == "--stage":
    train_pipeline(sys.argv[2], sys.argv[3], int(sys.argv[4]))
elif sys.argv[1] == "--rank":
    train_peer(*sys.argv[2:5], sys.argv[5] == "yes", int(sys.argv[6]))
else:
    main()
