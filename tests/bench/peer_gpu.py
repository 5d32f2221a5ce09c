#!/usr/bin/env python3
"""PyTorch on the same GPU, as the peer of scripts/gpu-report: SDPA on the probe's attention shapes, then training
steps of a Llama of TinyLlama-1.1B's shape.

    peer_gpu.py [--out FILE] [--probe probe.json] [--tokens 16384] [--seconds 240]
    peer_gpu.py --device cpu --tiny       small sizes, to try this file without a GPU

Every result is written as a line of JSON to FILE (default peers.jsonl) as soon as it is known.

Attention is causal; forward, and backward alone. FLOPs are counted as the probe counts them: 2 n^2 hidden
forward, 2.5 times as many backward. If a backend refuses a shape, the line gives the reason.

Training: a step is tokens/sequence sequences in equal micro-batches with gradient accumulation, cross-entropy
over all tokens, clip_grad_norm_ 1.0, and torch.optim.AdamW (fused on a GPU). Weights, gradients and both moments
are bf16 without an fp32 master, so the peer keeps 8 bytes a parameter where offload-train keeps 16, and it
accumulates gradients in bf16. Backward recomputes the layers only with --recompute. The largest micro-batch that
fits counts.
"""

import argparse
import json
import re
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
SHAPES = {"tinyllama-1.1b": {"layers": 22, "hidden": 2048, "ffn": 5632, "heads": 32, "kv_heads": 4, "vocab": 32000},
          "tiny-test": {"layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 2, "vocab": 384}}


class Peer:
    def __init__(self, options):
        self.device, self.out = options.device, open(options.out, "w", encoding="utf-8")
        self.deadline = time.monotonic() + options.seconds

    def put(self, **line):
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()
        print(" · ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in
                         line.items()), flush=True)

    def sync(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def time(self, call, seconds=0.3):
        """The median time of single calls, after two warm-up calls."""
        times = []
        for _ in range(2):
            call()
        end = time.monotonic() + seconds
        while len(times) < 3 or (time.monotonic() < end and len(times) < 50):
            self.sync()
            start = time.perf_counter()
            call()
            self.sync()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def out_of_time(self):
        return time.monotonic() > self.deadline


# ---- attention ----

def probe_shapes(path, tiny):
    """Returns [(tokens, head dimension)] and the hidden size from the probe, or the probe's defaults on a GPU."""
    if path:
        with open(path, encoding="utf-8") as file:
            names = [row["name"] for row in json.load(file)["rows"]]
        hidden = next(int(m[1]) for name in names if (m := re.match(r"o y \d+x(\d+)x", name)))
        return [(int(m[1]), int(m[2])) for name in names if (m := re.match(r"forward (\d+) tokens, head (\d+)", name))], hidden
    return ([(64, 32)], 64) if tiny else ([(4096, 128), (1024, 128), (16384, 128), (4096, 64)], 4096)


def measure_attention(peer, tokens, head, hidden, backend):
    q, k, v, dout = (torch.randn(1, hidden // head, tokens, head, device=peer.device, dtype=torch.bfloat16) for _ in range(4))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    work = 2.0 * tokens * tokens * hidden
    with sdpa_kernel(BACKENDS[backend]):
        def forward():
            with torch.no_grad():
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        seconds = peer.time(forward)
        peer.put(kind="attention", name=f"forward {tokens} tokens, head {head}", backend=backend, seconds=seconds,
                 flops_per_s=work / seconds)
        result = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        seconds = peer.time(lambda: torch.autograd.grad(result, (q, k, v), dout, retain_graph=True))
        peer.put(kind="attention", name=f"backward {tokens} tokens, head {head}", backend=backend, seconds=seconds,
                 flops_per_s=2.5 * work / seconds)


def run_attention(peer, options):
    shapes, hidden = probe_shapes(options.probe, options.tiny)
    for tokens, head in shapes:
        for backend in ("flash", "cudnn") if peer.device != "cpu" else ("math", "flash"):
            if peer.out_of_time():
                return
            try:
                measure_attention(peer, tokens, head, hidden, backend)
            except RuntimeError as error: # the backend has no kernel for this shape, or memory is short
                peer.put(kind="attention", name=f"{tokens} tokens, head {head}", backend=backend,
                         reason=str(error).split("\n")[0])


# ---- training ----

class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        head = s["hidden"] // s["heads"]
        self.heads, self.kv_heads, self.head = s["heads"], s["kv_heads"], head
        self.qkv = nn.Linear(s["hidden"], (s["heads"] + 2 * s["kv_heads"]) * head, bias=False)
        self.o = nn.Linear(s["hidden"], s["hidden"], bias=False)
        self.gate_up = nn.Linear(s["hidden"], 2 * s["ffn"], bias=False)
        self.down = nn.Linear(s["ffn"], s["hidden"], bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(s["hidden"], eps=1e-5), nn.RMSNorm(s["hidden"], eps=1e-5)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x, cos, sin):
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(
            [self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head], dim=-1)
        q = self.rotate(q.view(batch, tokens, self.heads, self.head).transpose(1, 2), cos, sin)
        k = self.rotate(k.view(batch, tokens, self.kv_heads, self.head).transpose(1, 2), cos, sin)
        v = v.view(batch, tokens, self.kv_heads, self.head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, s, sequence, recompute):
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(s["vocab"], s["hidden"])
        self.layers = nn.ModuleList(Layer(s) for _ in range(s["layers"]))
        self.norm = nn.RMSNorm(s["hidden"], eps=1e-5)
        self.head = nn.Linear(s["hidden"], s["vocab"], bias=False)
        half = s["hidden"] // s["heads"] // 2
        angle = torch.outer(torch.arange(sequence).float(), 1e4 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = (checkpoint(layer, x, self.cos, self.sin, use_reentrant=False) if self.recompute
                 else layer(x, self.cos, self.sin))
        return self.head(self.norm(x))


def make_step(peer, model, optimizer, tokens, micro):
    def step():
        for at in range(0, len(tokens), micro):
            part = tokens[at:at + micro]
            logits = model(part)[:, :-1].flatten(0, 1)
            loss = F.cross_entropy(logits.float(), part[:, 1:].flatten(), reduction="sum") / (tokens.numel() - len(tokens))
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def run_training(peer, options):
    name, sequence = ("tiny-test", 16) if options.tiny else ("tinyllama-1.1b", 2048)
    shape = SHAPES[name]
    torch.manual_seed(1)
    with torch.device(peer.device):
        model = Llama(shape, sequence, options.recompute).to(torch.bfloat16).train()
        tokens = torch.randint(shape["vocab"], (max(options.tokens // sequence, 1), sequence))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    common = {"kind": "training", "model": name, "tokens_per_step": tokens.numel(), "params":
              sum(p.numel() for p in model.parameters()), "recompute": options.recompute,
              "state": "bf16 weights, gradients, m and v; no fp32 master"}
    micro = min(len(tokens), 8)
    while micro and not peer.out_of_time():
        try:
            seconds = peer.time(make_step(peer, model, optimizer, tokens, micro), 5 if not options.tiny else 0.1)
            peer.put(**common, micro_batch=micro, seconds=seconds, tokens_per_s=tokens.numel() / seconds)
            return
        except torch.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            micro //= 2
    peer.put(**common, reason="the time was up" if micro else "it does not fit")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--out", default="peers.jsonl")
    parser.add_argument("--probe", help="the output of offload-train probe --json, for its shapes")
    parser.add_argument("--tokens", type=int, default=16384, help="of a training step")
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        sys.exit("peer_gpu.py: PyTorch sees no GPU here; --device cpu --tiny tries the file without one")
    peer = Peer(options)
    peer.put(kind="torch", version=torch.__version__,
             device=torch.cuda.get_device_name() if peer.device != "cpu" else "cpu")
    run_attention(peer, options)
    if not peer.out_of_time():
        run_training(peer, options)


if __name__ == "__main__":
    main()
