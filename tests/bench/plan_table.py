#!/usr/bin/env python3
"""Prints what `plan` predicts for some machines and step sizes, as a Markdown table.

    tests/bench/plan_table.py PROGRAM [EARLIER_PROGRAM]

Columns: the earlier program, the program with `--recompute all`, and the program's own choice, in tokens a
second. Then the program's choice with `--state 8bit`. The machines are descriptions of cards: nothing is
measured, and the table depends on the programs alone."""
import re
import subprocess
import sys

MACHINES = [
    ("llama-3.1-8b", "rtx5090, 192 GB", ["--gpu", "rtx5090", "--ram", "192G"]),
    ("llama-7b", "rtx4090, 64 GB, disk", ["--gpu", "rtx4090", "--ram", "64G", "--nvme", "500G"]),
    ("llama-7b", "h100, 120 GB", ["--gpu", "h100", "--ram", "120G"]),
    ("llama-7b", "rtx3060, 32 GB, disk", ["--gpu", "rtx3060", "--ram", "32G", "--nvme", "500G"]),
]
TOKENS = ["8k", "16k", "24k", "28k", "32k", "64k"]


def predict(program, model, machine, tokens, *options):
    """Tokens a second, or None if no plan fits or the program does not know an option."""
    command = [program, "plan", "--quiet", "--model", model, *machine, "--tokens-per-step", tokens, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"([\d,]+) tokens/s", done.stdout)
    return int(found[1].replace(",", "")) if done.returncode == 0 and found else None


def text(value):
    return f"{value:,}" if value else "-"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program, earlier = sys.argv[1], sys.argv[2:]
    print("| model | machine | tokens a step | before | recompute all | now | now / recompute all | `--state 8bit` |")
    print("|---|---|---|---|---|---|---|---|")
    for model, name, machine in MACHINES:
        for tokens in TOKENS:
            before = predict(earlier[0], model, machine, tokens) if earlier else None
            least = predict(program, model, machine, tokens, "--recompute", "all")
            now = predict(program, model, machine, tokens)
            small = predict(program, model, machine, tokens, "--state", "8bit")
            ratio = f"{now / least:.2f}" if now and least else "-"
            print(f"| {model} | {name} | {tokens} | {text(before)} | {text(least)} | {text(now)} | {ratio} | {text(small)} |")


if __name__ == "__main__":
    main()
