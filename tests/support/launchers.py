"""Starts the ranks of a run by hand, each with the environment that a launcher would give it."""

import os
import random
import socket
import subprocess

import program


def free_port():
    """A port below those that the system gives to outgoing connections. Under torchrun, rank 0 listens 1000 ports above."""
    while True:
        port = random.randrange(12000, 31000)
        try:
            for each in (port, port + 1000):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port


def torchrun(rank, ranks, port):
    """The environment that torchrun gives a rank."""
    facts = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0,
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": f"test-{port}"}
    return {name: str(value) for name, value in facts.items()}


def slurm(rank, ranks, port):
    """The environment that srun gives a task."""
    facts = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": ranks, "SLURM_NNODES": 1, "SLURM_NODEID": 0,
             "SLURM_TASKS_PER_NODE": str(ranks), "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": port,
             "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": ranks}
    return {name: str(value) for name, value in facts.items()}


def run_commands(launcher, commands, env=None, timeout=120):
    """Starts one rank with each list of words, and waits for all of them. env: a function that gives more variables to a
    rank. Returns their results."""
    port = free_port()
    processes = []
    for rank, words in enumerate(commands):
        more = {**launcher(rank, len(commands), port), **(env(rank) if env else {})}
        processes.append(subprocess.Popen([program.PROGRAM, *(str(word) for word in words)], env={**os.environ, **more},
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    results = []
    try:
        for rank, process in enumerate(processes):
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as late:
                said = [(result.code, result.err) for result in results]
                raise AssertionError(f"rank {rank} hangs, and said {late.stderr}; the ranks before it: {said}") from late
            results.append(program.Result(subprocess.CompletedProcess([], process.returncode, out, err)))
    finally:
        for process in processes:
            process.kill()
    return results
