"""The peer of bench_checkpoint.c: saves the same bytes with torch.save and flushes them, then reads them with
torch.load.

    peer_checkpoint.py [FOLDER [MILLION_PARAMS [ROUNDS]]]     default: the current folder, 350, 2

12 bytes a parameter: both moments in fp32, the weights in bf16, and the 16 bits of the fp32 master that bf16
lacks. Each of them has one tensor for every 16 M parameters. The page cache drops the file before it is read.
Loading uses no mmap, because the values must be in memory, and loads to the CPU. Each figure is the best of the
rounds. Nothing is left in FOLDER.
"""
import os
import sys
import time

import torch

PIECE = 16_000_000


def make_state(params):
    torch.manual_seed(1)

    def words(dtype, n):
        return torch.randint(-2**15, 2**15, (n,), dtype=torch.int16).view(dtype)

    sizes = [min(PIECE, params - first) for first in range(0, params, PIECE)]
    return {f"{kind}.{i}": words(dtype, n * dtype.itemsize // 2)
            for i, n in enumerate(sizes)
            for kind, dtype in (("m", torch.float32), ("v", torch.float32), ("rest", torch.int16),
                                ("weights", torch.bfloat16))}


def save(state, path):
    start = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def load(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    return time.perf_counter() - start


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    params = int(sys.argv[2] if len(sys.argv) > 2 else 350) * 1_000_000
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    path = os.path.join(folder, f"peer-checkpoint-{os.getpid()}")
    state = make_state(params)
    size = sum(tensor.nbytes for tensor in state.values())
    print(f"torch {torch.__version__}, {size * 1e-9:.2f} GB")
    saving = loading = float("inf")
    try:
        for _ in range(rounds):
            if os.path.exists(path):
                os.remove(path)
            saving = min(saving, save(state, path))
            loading = min(loading, load(path))
    finally:
        if os.path.exists(path):
            os.remove(path)
    print(f"save     {size / saving * 1e-9:7.3f} GB/s")
    print(f"restore  {size / loading * 1e-9:7.3f} GB/s")


main()
