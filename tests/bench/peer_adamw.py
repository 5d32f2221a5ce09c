"""The peer of bench_adamw.c: the CPU Adam of DeepSpeed, built by its own build with its own flags at the first use.

    peer_adamw.py [MILLION_PARAMS [THREADS [ROUNDS]]]     default: 80, all CPUs, 7

One tensor of fp32 master weights with fp32 moments, updated in AdamW's way. `kernel` is DeepSpeedCPUAdam.step with fp32
gradients: it moves 28 bytes a parameter. `whole` is what ours does in one pass: it begins with bf16 gradients and ends with
bf16 weights, so the gradients are widened before the step and the weights rounded after it, by torch. Each figure is the
best of the rounds.
"""
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # before the import: DeepSpeed then looks for no GPU
threads = int(sys.argv[2]) if len(sys.argv) > 2 else len(os.sched_getaffinity(0))
os.environ["OMP_NUM_THREADS"] = str(threads)

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402

KERNEL_BYTES = 28


def best(rounds, work):
    seconds = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds


def main():
    params = int(sys.argv[1] if len(sys.argv) > 1 else 80) * 1_000_000
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    master = torch.nn.Parameter(torch.randn(params) * 0.02)
    master.grad = torch.empty_like(master)
    gradients = (torch.randn(params) * 1e-3).bfloat16()
    weights = master.detach().bfloat16()
    optimizer = DeepSpeedCPUAdam([master], lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, adamw_mode=True)

    def whole():
        master.grad.copy_(gradients)
        optimizer.step()
        with torch.no_grad():
            weights.copy_(master)

    whole()  # warms up: makes the moments
    kernel, all_of_it = best(rounds, optimizer.step), best(rounds, whole)
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {params * 1e-6:.0f} M parameters, {threads} threads")
    print(f"kernel {params / kernel * 1e-6:8.1f} Mparam/s {params * KERNEL_BYTES / kernel * 1e-9:8.2f} GB/s")
    print(f"whole  {params / all_of_it * 1e-6:8.1f} Mparam/s")


main()
