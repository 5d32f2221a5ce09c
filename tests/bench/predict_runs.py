"""Predicted against measured steps of whole runs, over kinds of models and ranks, on the cpu device.

    predict_runs.py PROGRAM DIR [WORD]      DIR: an empty folder on the disk to use; WORD: only cases with it in their name

bench_predict measures the engine with full fine-tuning of Llamas. This script measures the program, as its summary does:
full, LoRA, QLoRA (NF4), DoRA, a mixture of experts, a T5, and two ranks that share all or the state; each with everything
on the device, with weights and state in host memory, and with the state on disk. A case runs twice, and the run with the
faster steps counts, because other programs make a machine slower and never faster.

Prints a line per case: the step predicted, measured, the error, and the error of the prediction that the run makes again
after step 4. Then the median, the 95th percentile and the worst, by kind and of all.
"""
import json
import os
import statistics
import subprocess
import sys

STEPS, ROUNDS, CPU = 12, 2, ["--device", "cpu"]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1376,
         "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2048,
         "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
MOE = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "intermediate_size": 512,
       "num_local_experts": 8, "num_experts_per_tok": 2}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 512, "d_kv": 64, "d_ff": 1024,
      "num_heads": 8, "num_layers": 4, "num_decoder_layers": 4, "vocab_size": 2048, "feed_forward_proj": "gated-gelu",
      "n_positions": 512, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
KINDS = {  # the model, and the options
    "full": (LLAMA, []), "lora": (LLAMA, ["--lora"]), "qlora": (LLAMA, ["--lora", "--base-type", "nf4"]),
    "dora": (LLAMA, ["--lora", "r=16,dora"]), "experts": (MOE, []), "t5": (T5, []),
    "2 ranks, full": (LLAMA, ["--gpus", "2", "--shard", "full"]), "2 ranks, state": (LLAMA, ["--gpus", "2", "--shard", "state"])}
PLACES = {"device": ["--home", "weights=gpu,state=gpu"], "host": ["--home", "weights=host,state=host,activations=host"],
          "disk": ["--home", "weights=host,state=nvme"]}


def train(program, *words):
    done = subprocess.run([program, "train", *words, *CPU], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"predict_runs: {' '.join(words)}: {done.stderr}")
    return done.stdout


def make_model(program, folder, config, rows):
    """A model of random weights, and the tokenizer of the program's own presets."""
    made = folder + "-made"
    train(program, "--model", "tiny-test", "--init", "random", "--data", rows, "--steps", "1", "--seq-len", "128", "--no-forecast",
          "--quiet", "--out", made)
    os.makedirs(folder)
    os.rename(os.path.join(made, "tokenizer.json"), os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    out = folder + "-model"
    train(program, "--model", folder, "--init", "random", "--data", rows, "--steps", "1", "--seq-len", "128", "--no-forecast",
          "--quiet", "--out", out)
    return out


def write_rows(path, pairs):
    text = "The number of rows in this table is what the next query counts, group by group, in ascending order. " * 4
    keys = ("input", "target") if pairs else ("prompt", "completion")
    with open(path, "w") as file:
        for i in range(400):
            file.write(json.dumps(dict(zip(keys, (f"{i} {text}", text[:200])))) + "\n")
    return path


def run(program, model, rows, disk, words):
    """The last event of the faster run's log."""
    best = None
    for _ in range(ROUNDS):
        out = train(program, "--model", model, "--data", rows, "--seq-len", "512", "--tokens-per-step", "4k", "--steps", str(STEPS),
                    "--no-save", "--json", "--quiet", "--nvme", f"{disk}:20G", *words)
        done = json.loads(out.strip().splitlines()[-1])
        if not best or done["measured_step_seconds"] < best["measured_step_seconds"]:
            best = done
    return best


def print_errors(name, errors):
    for word, values in zip(("", " again"), zip(*errors)):
        values = sorted(abs(value) for value in values)
        late = values[min(len(values) - 1, int(0.95 * len(values)))]
        print(f"{name + word:<24} {len(values):3d} cases: median {100 * statistics.median(values):.1f} %, 95th percentile "
              f"{100 * late:.1f} %, worst {100 * values[-1]:.1f} %")


def main():
    program, folder, word = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), (sys.argv + [""])[3]
    os.makedirs(folder, exist_ok=True)
    disk, models, found = os.path.join(folder, "disk"), {}, {}
    os.makedirs(disk)
    for kind, (config, options) in KINDS.items():
        name = config["model_type"]
        for place, homes in PLACES.items():
            case = f"{kind}, {place}"
            if word not in case:
                continue
            if name not in models:
                rows = write_rows(os.path.join(folder, name + ".jsonl"), name == "t5")
                models[name] = make_model(program, os.path.join(folder, name), config, rows), rows
            done = run(program, *models[name], disk, [*options, *homes])
            measured = done["measured_step_seconds"]
            errors = [done[key] / measured - 1 for key in ("predicted_step_seconds", "predicted_again_step_seconds")]
            found.setdefault(kind, []).append(errors)
            print(f"{case:<24} {done['predicted_step_seconds']:8.3f} s predicted {measured:8.3f} s measured {100 * errors[0]:+6.1f} % "
                  f"again {100 * errors[1]:+6.1f} %", flush=True)
    for kind, errors in found.items():
        print_errors(kind, errors)
    print_errors("all", [pair for errors in found.values() for pair in errors])


if __name__ == "__main__":
    main()
