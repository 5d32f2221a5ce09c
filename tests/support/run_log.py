"""Logs of runs that no test has the time to make: a large model on a GPU, with disks. Standard library only."""

import datetime
import fcntl
import json
import math
import os

GIB = 1 << 30
LANES = ("h2d", "compute", "d2h", "comm", "cpu", "nvme_read", "nvme_write")


def lanes(*seconds):
    return dict(zip(LANES, seconds))


def run_event(out, steps, **options):
    """The event "run" of a 7B model on 24 GiB, with disks."""
    options = {"model": "llama-7b", "data": ["sql.jsonl:0.7", "chat.jsonl:0.3"], "out": out, "lr": 1e-05, "seed": 0,
               "pack": True, **options}
    return {"event": "run", "version": "0.1.0", "out": out, "options": options,
            "sources": {"lr": "command line", "model": "command line", "data": "command line", "seed": "default", "pack": "default"},
            "machine": {"device": "NVIDIA GeForce RTX 4090 (24.0 GiB, sm_89)", "cores": 16, "ram_bytes": 64 * GIB,
                        "nvme": [{"dir": "/mnt/a", "may_use_bytes": 200 * GIB, "free_bytes": 400 * GIB}]},
            "model": {"found": "llama-7b", "family": "llama", "parameters": 6738415616, "frozen_parameters": 0,
                      "trained_parameters": 6738415616, "stored": "bf16", "computed": "bf16"},
            "data": {"kind": "sql", "rows": 60000, "train_rows": 59000, "eval_rows": 1000, "tokens": 12000000},
            "plan": {"steps": steps, "weights": {"gpu": 3, "host": 10, "nvme": 21}, "state_tiles": {"gpu": 0, "host": 4, "nvme": 30},
                     "optimizer_tiles": {"gpu": 3, "stream": 0, "cpu": 31}, "gpu_budget_bytes": 23 * GIB,
                     "host_budget_bytes": 50 * GIB, "nvme_budget_bytes": 200 * GIB,
                     "ledger": [{"tier": "gpu", "name": "weights", "bytes": 20 * GIB}, {"tier": "gpu", "name": "rest", "bytes": 2 * GIB},
                                {"tier": "host", "name": "all", "bytes": 44 * GIB}, {"tier": "nvme", "name": "all", "bytes": 81 * GIB}]},
            "prediction": {"step_seconds": 3.2, "whole_seconds": 3.25 * steps,
                           "busy_seconds": lanes(1.28, 2.88, 0.8, 0, 1.92, 2.4, 1.12), "exposed_seconds": lanes(0.1, 0, 0, 0, 0, 0.2, 0),
                           "exposed_host_seconds": 0}}


def step_event(step, steps, loss, seconds=3.25):
    return {"event": "step", "step": step, "epoch": 3 * step / steps, "loss": loss, "grad_norm": 1.25, "clipped_norm": 1,
            "lr": 1e-5, "tokens": 16384, "trained_tokens": 9000, "tokens_per_s": 16384 / seconds, "seconds": seconds,
            "roof_share": 0.62, "gpu_bytes": 22 * GIB, "host_bytes": 44 * GIB, "nvme_read_bytes": 13 * 10**9,
            "nvme_written_bytes": 6_500_000_000}


def eval_event(step, loss):
    return {"event": "eval", "step": step, "loss": loss, "perplexity": math.exp(loss), "accuracy": 0.71, "trained_tokens": 9000,
            "rows": 300, "seconds": 12.3}


def loss_of(step):
    return round(0.4 + 2 / (1 + step / 50), 6)


class Log:
    """OUT/log.jsonl, written as a run writes it, and locked while the object is open."""

    def __init__(self, out, holds=True):
        os.makedirs(out, exist_ok=True)
        self.path = os.path.join(out, "log.jsonl")
        self.file = open(self.path, "w")
        self.clock = datetime.datetime.now(datetime.timezone.utc).timestamp()
        if holds:
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def put(self, *events, text=None):
        for event in events:
            time = datetime.datetime.fromtimestamp(self.clock, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
            self.file.write(json.dumps({"event": event["event"], "time": time, **event}) + "\n")
        self.file.write(text or "")
        self.file.flush()

    def run(self, out, steps, done, evals=20):
        """A run whose last step was two seconds ago."""
        self.clock -= 3.3 * done + 2
        self.put(run_event(out, steps), eval_event(0, 2.5))
        for step in range(1, done + 1):
            self.clock += 3.3
            self.put(step_event(step, steps, loss_of(step)))
            if step % evals == 0:
                self.put(eval_event(step, loss_of(step) + 0.05))
        return self

    def age(self, seconds=10):
        """Makes the file as old as if the run had ended long ago, and gives up its lock."""
        self.close()
        then = datetime.datetime.now().timestamp() - seconds
        os.utime(self.path, (then, then))

    def close(self):
        self.file.close()
