"""A whole llama-7b (6.74 B parameters, random weights), fully trained on a small machine, beside the floors of a step.

    bench_7b.py PROGRAM DIR [STEPS]      DIR: on a disk with 71 GB free (121 GB: exact state too); 4 steps or more, default: 4

The run has 4 GiB of device memory and 14 GiB of host memory on the cpu device; the rest is on disk. Each row is one run:
compact state (8-bit m and v, no masters), and where the disk has the room, exact state (12 bytes a parameter).

Prints what was planned and used on each tier, the step predicted and measured, and the floors: operations over the rate of
products, and bytes over the rate of the disk. The rates are those of `probe` right before the runs. Then it prints the lanes
of the run itself, which say what computing waited for.
"""
import json
import os
import shutil
import subprocess
import sys

TOKENS, CPU = 1024, ["--device", "cpu", "--dtype", "bf16"]
FORMATS = {"8-bit state": (62, ["--state", "8bit", "--master-weights", "none"]), "exact state": (108, [])}
GIB = 1 << 30


def run(program, *words):
    done = subprocess.run([program, *words, *CPU], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_7b: {' '.join(words)}: {done.stderr}")
    return done


def measure_rates(program, disk):
    """Operations a second of the largest product, and bytes a second that the disk reads and writes at once."""
    rows = json.loads(run(program, "probe", "--nvme", f"{disk}:8G", "--json").stdout)["rows"]
    products = max(row["flops_per_s"] for row in rows if row["group"] == "gemm")
    return products, next(row["bytes_per_s"] for row in rows if row["name"] == "store mixed")


def write_inputs(program, folder):
    """Rows, and the tokenizer of the program's own presets, as llama-7b has none here."""
    rows, made = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "made")
    with open(rows, "w") as file:
        for i in range(600):
            file.write(json.dumps({"prompt": f"{i} " + "a table of rows " * 12, "completion": "the rows of the table " * 8}) + "\n")
    run(program, "train", "--model", "tiny-test", "--init", "random", "--data", rows, "--steps", "1", "--seq-len", "128", "--quiet",
        "--no-forecast", "--out", made)
    return ["--data", rows, "--tokenizer", os.path.join(made, "tokenizer.json")]


def train(program, folder, inputs, gib, words, steps):
    done = run(program, "train", "--model", "llama-7b", "--init", "random", *inputs, "--gpu-mem", "4G", "--host-mem", "14G", "--nvme",
               f"{folder}:{gib}G", "--seq-len", "256", "--tokens-per-step", str(TOKENS), "--steps", str(steps), "--eval-fraction",
               "0", "--no-save", "--json", "--trace", os.path.join(folder, "trace.json"), *words)
    lanes = [line for line in done.stderr.splitlines() if line.startswith(("lanes", " " * 8 + "busy", " " * 8 + "stalled", "moved"))]
    return json.loads(done.stdout.strip().splitlines()[-1]), lanes[-6:]


def print_run(name, done, lanes, rates, steps):
    measured = done["measured_step_seconds"]
    flops = done["flops_per_s"] * done["seconds"] / steps
    disk = (done["nvme_read_bytes"] + done["nvme_written_bytes"]) / steps
    sizes = ", ".join(f"{tier} {done[tier + '_planned_bytes'] / GIB:.1f} / {done[tier + '_used_bytes'] / GIB:.1f}"
                      for tier in ("gpu", "host", "nvme"))
    print(f"{name}: GiB planned / used: {sizes}; peak of the process {done['process_peak_bytes'] / GIB:.1f} GiB")
    print(f"  step      {done['predicted_step_seconds']:7.1f} s predicted, {measured:7.1f} s measured, {TOKENS / measured:.1f} tok/s")
    print(f"  products  {flops / rates[0]:7.1f} s: {flops * 1e-12:.1f} TFLOP at {rates[0] * 1e-9:.0f} GFLOP/s, "
          f"{100 * flops / rates[0] / measured:.0f} % of the measured step")
    print(f"  disk      {disk / rates[1]:7.1f} s: {disk / GIB:.1f} GiB at {rates[1] * 1e-9:.2f} GB/s, "
          f"{100 * disk / rates[1] / measured:.0f} % of the measured step")
    print("\n".join("  " + line for line in lanes), flush=True)


def main():
    program, folder, steps = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int((sys.argv + ["4"] * 3)[3])
    if steps < 4:
        sys.exit("bench_7b: give 4 steps or more: the first three fill the pipeline, and are not timed")
    os.makedirs(folder, exist_ok=True)
    inputs, rates = write_inputs(program, folder), measure_rates(program, folder)
    for name, (gib, words) in FORMATS.items():
        if shutil.disk_usage(folder).free < (gib + 4) * GIB:
            print(f"{name}: skipped: the disk has no room for {gib} GiB")
            continue
        done, lanes = train(program, folder, inputs, gib, words, steps)
        print_run(name, done, lanes, rates, steps)


if __name__ == "__main__":
    main()
