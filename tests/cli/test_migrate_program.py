"""Settings files of DeepSpeed, transformers, LLaMA-Factory and axolotl: what `migrate` says of each key, that its command line
parses and gives the same plan as the file, which value wins, what is refused; --config in YAML. All files are this test's own."""

import base64
import json
import os
import re
import socket
import subprocess
import shlex
import unittest

import program
from program import sql_rows, write_rows

USAGE, INPUT, IO = 2, 3, 5

ZERO2 = """{
  // ZeRO-2, state in RAM; the commas are as people leave them
  train_batch_size: 32
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "gradient_clipping": 0.5,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "allgather_bucket_size": 5e8, "overlap_comm": true,
  },
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.98], "eps": 1e-7, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 10,
                                                    "warmup_type": "linear", "total_num_steps": 200}},
  "wall_clock_breakdown": false, # ours
  "made_up": 1
}
"""
AUTO = {"optimizer": {"type": "AdamW", "params": {key: "auto" for key in ("lr", "betas", "eps", "weight_decay")}},
        "scheduler": {"type": "WarmupDecayLR", "params": {**{key: "auto" for key in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps",
                                                                                      "total_num_steps")}, "warmup_type": "linear"}},
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
ZERO3_CPU = {**AUTO, "zero_optimization": {
    "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "offload_param": {"device": "cpu", "pin_memory": True},
    "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True}, "steps_per_print": 2000,
             "activation_checkpointing": None}
ZERO3_NVME = {"zero_optimization": {
    "stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "@", "buffer_count": 4, "fast_init": False},
    "offload_param": {"device": "nvme", "nvme_path": "@", "buffer_size": 1e8, "max_in_cpu": 1e9}},
    "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False, "overlap_events": True},
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
ARGS = """
output_dir: OUT
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1e-4    # PyYAML reads a text, and transformers a number
lr_scheduler_type: constant_with_warmup
warmup_ratio: 0.1
weight_decay: 0.05
bf16: yes
eval_strategy: steps
eval_steps: 5
logging_steps: 10
save_steps: 100
save_total_limit: 2
report_to: none
"""
LORA_SFT = """
model_name_or_path: org/a-model
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_alpha: 32
lora_target: q_proj, v_proj
dataset: one, two
dataset_dir: sets
template: llama3
cutoff_len: 1024
max_samples: 50
output_dir: saves/x
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
learning_rate: 1.0e-4
num_train_epochs: 2.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
val_size: 0.1
eval_strategy: steps
eval_steps: 20
"""
LORA_DPO = "stage: dpo\nfinetuning_type: lora\npref_loss: sigmoid\npref_beta: 0.2\ncutoff_len: 512\nper_device_train_batch_size: 2\ndataset: pairs\n" \
           "dataset_dir: sets\nmodel_name_or_path: m\n"
FULL_SFT = "stage: sft\nfinetuning_type: full\ndeepspeed: z3.json\ntemplate: qwen\ncutoff_len: 64\nper_device_train_batch_size: 2\nbf16: true\n" \
           "learning_rate: 1.0e-5\npacking: false\nmodel_name_or_path: m\ndataset: one\ndataset_dir: sets\n"
QLORA_SFT = "stage: sft\nfinetuning_type: lora\nquantization_bit: 4\nquantization_method: bnb\ndouble_quantization: false\nmodel_name_or_path: m\n" \
            "dataset: one\ndataset_dir: sets\n"
AXO_LORA = """
base_model: org/a-model
load_in_8bit: true
load_in_4bit: false
datasets:
  - path: rows.jsonl
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs/lora
adapter: lora
sequence_len: 4096
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
special_tokens:
  pad_token: "<|end|>"
"""
AXO_FULL = "base_model: m\ndatasets: [{path: json, data_files: rows.jsonl, type: chat_template}]\nchat_template: chatml\nsequence_len: 128\n" \
           "micro_batch_size: 4\nlearning_rate: 1e-5\noptimizer: adamw_torch\nlr_scheduler: constant\nmax_steps: 6\ntrain_on_inputs: true\n"
AXO_QLORA = AXO_LORA.replace("load_in_8bit: true", "load_in_8bit: false").replace("load_in_4bit: false", "load_in_4bit: true").replace(
    "adapter: lora", "adapter: qlora")


class Migrate(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.makedirs(cls.path("sets/b"))
        write_rows(cls.path("sets/one.jsonl"), sql_rows(30))
        write_rows(cls.path("sets/pairs.jsonl"), [{"prompt": "2 + 2 =", "good": f" {i}", "rejected": " 5"} for i in range(20)])
        cls.write("sets/dataset_info.json", {
            "one": {"file_name": "one.jsonl"}, "two": {"file_name": "two.jsonl", "columns": {"prompt": "ask", "response": "output"}},
            "pairs": {"file_name": "pairs.jsonl", "ranking": True, "columns": {"prompt": "instruction", "chosen": "good", "rejected": "rejected"}},
            "turns": {"file_name": "turns.json", "formatting": "sharegpt",
                      "columns": {"messages": "talk", "tools": "helpers", "system": "system"}},
            "far": {"hf_hub_url": "org/set"}, "script": {"script_url": "x"}, "seen": {"file_name": "a.json", "columns": {"images": "image"}}})
        cls.write("z2.json", ZERO2)
        cls.write("z3.json", ZERO3_CPU)
        cls.write("sft.yaml", LORA_SFT)
        cls.write("args.yaml", ARGS.replace("OUT", cls.path("out")))
        if "no libyaml" in program.run("migrate", cls.path("args.yaml")).err:
            raise unittest.SkipTest("this build has no libyaml; scripts/install-packages installs it")

    @classmethod
    def write(cls, name, content):
        with open(cls.path(name), "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return cls.path(name)

    def migrate(self, *words, code=0):
        """{key: [what it says]}, and the words of the command line. What migrate prints for people says the same."""
        result = program.run("migrate", *words, "--json", cwd=self.folder)
        self.assertEqual(result.code, code, result.err)
        made, said = result.json(), {}
        for row in made["keys"]:
            said.setdefault(row["key"] + ("" if row["in_file"] else " (default)"), []).append(row["says"])
        if code:
            return said, made["command"]
        plain = program.run("migrate", *words, cwd=self.folder)
        self.assertEqual(plain.code, code)
        lines = plain.out.splitlines()
        self.assertEqual(shlex.split(lines[-1]), ["offload-train", *made["command"]])
        for row in made["keys"]:
            self.assertTrue(any(row["key"] in line and line.endswith(row["says"]) for line in lines), row)
        return said, made["command"]

    def options(self, command):
        """{option: value} of a command line; lists where an option is there more than once."""
        found, at = {}, 0
        while at < len(command):
            name = command[at]
            self.assertTrue(name.startswith("--"), command)
            has_value = at + 1 < len(command) and not command[at + 1].startswith("--")
            found.setdefault(name[2:], []).append(command[at + 1] if has_value else True)
            at += 1 + has_value
        return {name: values[0] if len(values) == 1 else values for name, values in found.items()}

    def test_zero2(self):
        said, command = self.migrate("z2.json")
        self.assertEqual(self.options(command), {
            "model": "MODEL", "data": "FILE", "clip": "0.5", "dtype": "bf16", "shard": "state", "home": "state=host", "lr": "3e-5",
            "beta1": "0.9", "beta2": "0.98", "eps": "1e-7", "weight-decay": "0.1", "schedule": "linear", "warmup": "10", "steps": "200",
            "seq-len": "2048", "tokens-per-step": "65536"})
        self.assertEqual(said["train_batch_size"], ["used as --tokens-per-step 65536; 32 sequences of 2048, whatever the number of GPUs"])
        self.assertEqual(said["made_up"], ["ignored: DeepSpeed has no such key"])
        self.assertIn("ignored: it is about the speed", said["zero_optimization.overlap_comm"][0])
        self.assertEqual(len(said), 24)

    def test_auto_is_what_the_trainer_says(self):
        alone, command = self.migrate("z3.json")
        self.assertEqual(alone["optimizer.params.lr"], ["ignored: auto: the default of --lr"])
        self.assertNotIn("lr", self.options(command))
        args = self.write("auto.json", {"learning_rate": 3e-4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
                                        "adam_beta1": 0.8, "max_grad_norm": 0.7, "warmup_steps": 7, "max_steps": 90, "bf16": True,
                                        "max_length": 256})
        said, command = self.migrate("--deepspeed", "z3.json", "--hf-args", args)
        options = self.options(command)
        wanted = {"lr": "3e-4", "beta1": "0.8", "beta2": "0.999", "weight-decay": "0", "clip": "0.7", "warmup": "7", "steps": "90",
                  "dtype": "bf16", "schedule": "linear", "tokens-per-step": "2048", "seq-len": "256", "shard": "full"}
        self.assertEqual({name: options.get(name) for name in wanted},
                         {**wanted, "lr": options["lr"] if float(options["lr"]) == 3e-4 else None})
        self.assertEqual(options["home"], "state=host,weights=host")
        self.assertEqual(said["optimizer.params.lr"], ["used: auto: --lr, as auto.json says"])
        self.assertEqual(said["scheduler.params.total_num_steps"], ["ignored: the schedule ends with the run"])

    def test_auto_is_resolved_as_transformers_resolves_it(self):
        with open(os.path.join(program.GOLDEN, "migrate.json")) as file:
            cases = json.load(file)["auto"]
        self.assertEqual(len(cases), 3)
        for i, case in enumerate(cases):
            resolved = case["resolved"]
            args, config = self.write(f"args{i}.json", {**case["args"], "max_length": 16}), self.write(f"ds{i}.json", case["config"])
            made = self.options(self.migrate("--deepspeed", config, "--hf-args", args)[1])
            self.assertEqual(int(made["tokens-per-step"]), 16 * resolved["train_batch_size"])
            self.assertEqual(float(made.get("clip", 1)), resolved["gradient_clipping"])
            if "optimizer" not in resolved:
                continue
            params, schedule = resolved["optimizer"]["params"], resolved["scheduler"]["params"]
            self.assertEqual([float(made["lr"]), float(made["weight-decay"])], [params["lr"], params["weight_decay"]])
            self.assertEqual([float(made.get("beta1", 0.9)), float(made["beta2"])], params["betas"])
            self.assertEqual(float(made.get("eps", 1e-8)), params["eps"])
            self.assertEqual(schedule["warmup_max_lr"], params["lr"])
            self.assertEqual(max(1, int(made["warmup"])), schedule["warmup_num_steps"])
            self.assertEqual(made["dtype"], "bf16" if resolved["bf16"]["enabled"] else "fp32")

    def test_sizes_of_a_ds_config_are_those_of_the_trainer(self):
        for config, words in (({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}, None), ({"train_batch_size": 16}, None),
                              ({"train_micro_batch_size_per_gpu": 4, "train_batch_size": "auto"},
                               "train_micro_batch_size_per_gpu is 4, and 2 in args.yaml; set it"),
                              ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, and 8 in args.yaml"),
                              ({"train_batch_size": 24}, "train_batch_size is 24, and 16 in args.yaml with 1 GPU")):
            path = self.write("sizes.json", config)
            said, command = self.migrate("--deepspeed", path, "--hf-args", "args.yaml", code=USAGE if words else 0)
            self.assertEqual(self.options(command)["tokens-per-step"], "32768")
            if words:
                self.assertIn("refused: " + words, said[next(iter(config))][-1])
        self.migrate(self.write("huge.json", {"train_micro_batch_size_per_gpu": 900000000, "gradient_accumulation_steps": 900000000}), code=USAGE)

    def test_gpus_that_count(self):
        """Those of --gpus; else those that a file tells; a size of all GPUs needs none."""
        sizes = {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_len": 64}
        axolotl = {name: self.write(f"{name}.yml", {"base_model": "m", "datasets": [{"path": self.rows}], **sizes, **more}) for name, more in (
            ("one", {}), ("world", {"world_size": 4}), ("ray", {"use_ray": True, "ray_num_workers": 2}))}
        keys = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
        trainer = self.write("n_gpu.json", {**keys, "n_gpu": 3, "max_length": 64})
        factory = self.write("ray.yaml", {"model_name_or_path": "m", "stage": "sft", "dataset": "one", "dataset_dir": self.path("sets"),
                                          "cutoff_len": 64, **keys, "ray_num_workers": 5})
        config = self.write("all.json", {"train_batch_size": 48, "gradient_accumulation_steps": "auto"})
        for words, key, gpus in ((["--axolotl", axolotl["one"]], None, 1), (["--axolotl", axolotl["world"]], "world_size", 4),
                                 (["--axolotl", axolotl["ray"]], "ray_num_workers", 2), (["--hf-args", trainer], "n_gpu", 3),
                                 (["--llamafactory", factory], "ray_num_workers", 5),
                                 (["--hf-args", self.write("plain.json", {**keys, "max_length": 64}), "--deepspeed", config], None, 6)):
            with self.subTest(words=words):
                said, command = self.migrate(*words)
                self.assertEqual(self.options(command)["tokens-per-step"], str(8 * gpus * 64))
                self.assertNotIn("gpus", self.options(command))
                step = said.get("micro_batch_size") or said["per_device_train_batch_size"]
                self.assertIn(f"{8 * gpus} sequences of 64, with {gpus} GPU{'s' * (gpus > 1)}", step[0])
                if key:
                    self.assertEqual(said[key], ["used: the tokens of a step are those of so many GPUs; --gpus starts them"])
                if config in words:
                    continue
                said, command = self.migrate(*words, "--gpus", "7")
                self.assertEqual(self.options(command)["tokens-per-step"], str(8 * 7 * 64))
                if key:
                    self.assertEqual(said[key], ["ignored: --gpus or the launcher says how many GPUs there are"])
        self.assertIn("train_batch_size is 48, and 16 in plain.json with 2 GPUs", self.migrate(
            "--hf-args", self.path("plain.json"), "--deepspeed", config, "--gpus", "2", code=USAGE)[0]["train_batch_size"][0])
        self.fail_with(USAGE, "--gpus 'x' is neither all nor a number", "migrate", "--axolotl", axolotl["one"], "--gpus", "x")
        self.fail_with(USAGE, "--gpus all finds no GPU", "migrate", "--axolotl", axolotl["one"], "--gpus", "all", env={"CUDA_VISIBLE_DEVICES": ""})

    def test_tokens_kept_in_a_folder(self):
        config = self.write("kept.yml", {"base_model": "m", "datasets": [{"path": self.rows}], "dataset_prepared_path": "prepared"})
        self.assertEqual(self.options(self.migrate("--axolotl", config)[1])["cache"], "prepared")
        self.assertNotIn("cache", self.options(self.migrate("--axolotl", self.write("none.yml", {"base_model": "m", "datasets": [{"path": self.rows}],
                                                                                                   "dataset_prepared_path": None}))[1]))
        factory = self.write("kept.yaml", {"model_name_or_path": "m", "stage": "sft", "dataset": "one", "dataset_dir": self.path("sets"),
                                           "tokenized_path": "prepared"})
        self.assertEqual(self.options(self.migrate("--llamafactory", factory)[1])["cache"], "prepared")

    def test_length_and_gpus_are_given_to_migrate(self):
        said, command = self.migrate("args.yaml", "--seq-len", "512", "--gpus", "4")
        options = self.options(command)
        self.assertEqual([options[name] for name in ("seq-len", "gpus", "tokens-per-step")], ["512", "4", str(4 * 16 * 512)])
        self.assertIn("64 sequences of 512, with 4 GPUs", said["gradient_accumulation_steps"][0])
        said, command = self.migrate(self.path("sft.yaml"), "--seq-len", "512")
        self.assertEqual(said["cutoff_len"], ["the command line says --seq-len 512"])
        self.assertEqual([self.options(command)[name] for name in ("seq-len", "tokens-per-step")], ["512", "2048"])

    def test_no_argument_that_transformers_writes_is_refused(self):
        with open(os.path.join(program.GOLDEN, "migrate.json")) as file:
            written = json.load(file)["defaults"][0]
        objectives = {"TrainingArguments": None, "SFTConfig": None, "DPOConfig": "dpo", "KTOConfig": "kto"}
        self.assertEqual(list(written), list(objectives))
        for name, args in written.items():
            said, command = self.migrate(self.write("written.json", args), "--from", "hf")
            self.assertEqual(self.options(command).get("objective"), objectives[name])
            self.assertGreater(len(said), 90)

    def test_disks_and_fp16(self):
        self.write("nvme.json", json.dumps(ZERO3_NVME).replace('"@"', json.dumps("/mnt/a disk")))
        said, command = self.migrate("nvme.json")
        options = self.options(command)
        self.assertEqual([options[name] for name in ("nvme", "home", "dtype", "shard", "tokens-per-step")],
                         ["/mnt/a disk", "state=nvme,weights=nvme", "fp16", "full", "16384"])
        self.assertIn("--io-engine", said["aio.thread_count"][0])

    def test_trainer(self):
        said, command = self.migrate("args.yaml")
        self.assertEqual(self.options(command), {
            "model": "MODEL", "data": "FILE", "out": self.path("out"), "lr": said["learning_rate"][0].split()[-1], "schedule": "constant",
            "warmup": "10%", "weight-decay": "0.05", "dtype": "bf16", "eval-every": "5", "log-every": "10", "save-every": "100",
            "keep": "2", "epochs": "3", "beta2": "0.999", "result": "last", "pack": "no", "seq-len": "2048", "tokens-per-step": "32768"})
        self.assertEqual(float(said["learning_rate"][0].split()[-1]), 1e-4)
        self.assertEqual(said["adam_beta2 (default)"], ["used as --beta2 0.999"])
        said, command = self.migrate(self.write("few.json", {"optim": "adamw_bnb_8bit", "max_steps": 5, "packing": True, "max_length": 64,
                                                             "lr_scheduler_type": "cosine", "eval_strategy": "no", "bf16": None}))
        options = self.options(command)
        self.assertEqual([options[name] for name in ("lr", "state", "steps", "pack", "eval-fraction", "dtype", "tokens-per-step")],
                         ["5e-5", "8bit", "5", "yes", "0", "fp32", "512"])
        self.assertNotIn("epochs", options)
        self.assertIn("10 %", said["lr_scheduler_type"][0])
        self.assertEqual(said["bf16"], ["ignored: null is the same as no key"])

    def test_llamafactory(self):
        said, command = self.migrate("sft.yaml")
        options = self.options(command)
        wanted = {"model": "org/a-model", "data": ["sets/one.jsonl", "sets/two.jsonl"], "columns": "instruction=ask", "template": "llama-3",
                  "seq-len": "1024", "tokens-per-step": "4096", "max-rows": "50", "lora": "r=8,alpha=32,targets=q_proj,v_proj",
                  "eval-fraction": "0.1", "eval-every": "20", "warmup": "10%", "epochs": "2", "schedule": "cosine", "pack": "no",
                  "weight-decay": "0", "result": "last"}
        self.assertEqual({name: options.get(name) for name in wanted}, wanted)
        said, command = self.migrate(self.write("dpo.yaml", LORA_DPO))
        options = self.options(command)
        self.assertEqual([options[name] for name in ("objective", "beta", "seq-len", "tokens-per-step", "columns", "lora", "eval-fraction")],
                         ["dpo", "0.2", "1024", "2048", "chosen=good", "r=8", "0"])
        said, command = self.migrate(self.write("full.yaml", FULL_SFT))
        options = self.options(command)
        self.assertNotIn("lora", options)
        self.assertEqual([options["home"], options["template"]], ["state=host,weights=host", "qwen2.5"])
        self.assertEqual(said["deepspeed"], ["used: its keys follow: z3.json"])
        self.assertIn("full.yaml says", said["gradient_clipping"][0])
        same = self.write("sets/b/dataset_info.json", {"m": {"file_name": "m.json", "formatting": "sharegpt", "columns": {"messages": "messages"}}})
        turns = LORA_SFT.replace("one, two", "m").replace("dataset_dir: sets", "dataset_dir: " + os.path.dirname(same))
        self.assertNotIn("columns", self.options(self.migrate(self.write("same.yaml", turns))[1]))
        turns = LORA_SFT.replace("one, two", "turns").replace("dataset_dir: sets", "dataset_dir: " + self.path("sets"))
        options = self.options(self.migrate(self.write("turns.yaml", turns))[1])
        self.assertEqual([options["data"], options["columns"]], [self.path("sets/turns.json"), "conversations=talk,tools=helpers"])
        os.makedirs(self.path("there"), exist_ok=True)  # names are found beside the file too
        self.write("there/ds.json", {"gradient_clipping": 0.125, "zero_optimization": {"cpu_offload": True,
                                                                                      "offload_optimizer": {"device": "cpu"}}})
        self.write("there/full.yaml", FULL_SFT.replace("z3.json", "ds.json").replace("sets", self.path("sets")))
        options = self.options(self.migrate("there/full.yaml")[1])
        self.assertEqual([options["clip"], options["home"]], ["0.125", "state=host"])
        self.migrate(self.write("gone.yaml", FULL_SFT.replace("z3.json", "gone.json")), code=USAGE)
        options = self.options(self.migrate(self.write("qlora.yaml", QLORA_SFT))[1])
        self.assertEqual([options["base-type"], options["lora"], options["seq-len"]], ["nf4", "r=8", "2048"])

    def test_axolotl(self):
        said, command = self.migrate(self.write("lora.yml", AXO_LORA))
        options = self.options(command)
        wanted = {"model": "org/a-model", "base-type": "int8", "data": "rows.jsonl", "template": "alpaca", "eval-fraction": "0.1",
                  "lora": "r=32,alpha=16,dropout=0.05", "seq-len": "4096", "pack": "yes", "tokens-per-step": "32768", "state": "8bit",
                  "epochs": "4", "lr": "0.0002", "warmup": "10", "eval-every": "epoch"}
        self.assertEqual({name: options.get(name) for name in wanted}, wanted)
        self.assertEqual(said["datasets[0].type"], ["used as --template alpaca"])
        self.assertEqual(self.options(self.migrate(self.write("qlora.yml", AXO_QLORA))[1])["base-type"], "nf4-double")
        more = AXO_LORA.replace("lora_target_linear: true", "lora_target_modules: [q_proj, v_proj]\nplugins: []\nrl_beta: 0.3").replace(
            "path: rows.jsonl", "path: json\n    data_files: [rows.jsonl, more.jsonl]\n    roles_to_train: [assistant]")
        said, command = self.migrate(self.write("more.yml", more))
        options = self.options(command)
        self.assertEqual([options["lora"], options["data"]], ["r=32,alpha=16,dropout=0.05,targets=q_proj,v_proj", ["rows.jsonl", "more.jsonl"]])
        self.assertEqual([said["plugins"], said["rl_beta"], said["datasets[0].roles_to_train"]],
                         [["ignored: the kernels are compiled into the program"], ["ignored: rl is empty"],
                          ["ignored: the assistant's turns train, as here"]])
        options = self.options(self.migrate(self.write("full.yml", AXO_FULL))[1])
        self.assertEqual([options[name] for name in ("template", "steps", "eval-fraction", "train-on-prompt", "tokens-per-step", "pack")],
                         ["chatml", "6", "0", True, "512", "no"])
        self.assertNotIn("lora", options)

    def test_refusals_name_the_key_and_the_way_on(self):
        cases = [({"zero_optimization": {"stage": 2, "stages": 3}}, "zero_optimization.stages", "DeepSpeed has no such key"),
                 ({"zero_optimization": {"stage": 7}}, "zero_optimization.stage", "7 is not a value"),
                 ({"optimizer": {"type": "Lamb", "params": {}}}, "optimizer.type", "the optimizer is AdamW here; remove the block"),
                 ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "optimizer.params.betas", "a list of two numbers"),
                 ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1}}}, "scheduler.type", "use --schedule constant"),
                 ({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4}}},
                  "scheduler.params.warmup_max_lr", "0.0001 contradicts optimizer.params.lr"),
                 ({"amp": {"enabled": True, "opt_level": "O1"}}, "amp.enabled", "use --dtype"),
                 ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled", "bf16 contradicts fp16.enabled"),
                 ({"sparse_attention": {"mode": "fixed", "block": 16}}, "sparse_attention", "remove it"),
                 ({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, "train_batch_size",
                  "7 is not 2 x 2 times"),
                 ({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}, "train_batch_size",
                  "7 is not 2 x 1 times"),
                 ({"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}},
                  "zero_optimization.offload_optimizer.device", "state=nvme contradicts zero_optimization.cpu_offload"),
                 ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps", "DeepSpeed also needs"),
                 ({"train_batch_size": 1.5}, "train_batch_size", "a whole number"),
                 ({"gradient_clipping": -1}, "gradient_clipping", "--clip -1: must be a number from 0"),
                 ({"zero_optimization": {"stage": 0}, "gradient_clipping": -2}, "gradient_clipping", "--clip -2: must be a number from 0"),
                 ({"gradient_clipping": "much"}, "gradient_clipping", "much is not a number"),
                 ({"tensorboard": {"enabled": True, "output_path": "a\x7fb"}}, "tensorboard.output_path", "the value is not a text"),
                 ({"bf16": {"enabled": "yes"}}, "bf16.enabled", "yes is not a value"), ({"bf16": True}, "bf16", "it must be an object"),
                 ({"optimizer.params.lr": 1}, "optimizer.params.lr", "DeepSpeed has no such key"),
                 ({"train_batch_size": 900000000}, "train_batch_size", "more than 1e9 tokens")]
        for i, (config, key, words) in enumerate(cases):
            with self.subTest(config):
                config.setdefault("zero_optimization", {"stage": 0})
                path = self.write(f"bad{i}.json", config)
                said, command = self.migrate(path, "--from", "deepspeed", code=USAGE)
                self.assertRegex(said[key][0], "^refused: .*" + re.escape(words))
                self.assertEqual(len([1 for texts in said.values() for text in texts if text.startswith("refused")]),
                                 3 if words.startswith("7 is not 2") else 1)
                if i % 4 == 0:
                    self.fail_with(USAGE, f"bad{i}.json: ", "train", "--model", "tiny-test", "--data", self.rows, "--deepspeed", path)
        for name, text, key, words in (
                ("a.yaml", "learning_rate: 1.0e-4\nmax_stepz: 5\n", "max_stepz", "this key is not known here"),
                ("b.yaml", "optim: adafactor\nlearning_rate: 1.0e-4\n", "optim", "the optimizer is AdamW here"),
                ("c.yaml", "num_train_epochs: 0.5\nlearning_rate: x\n", "num_train_epochs", "0.5 is not a whole number"),
                ("d.yaml", LORA_SFT.replace("one, two", "one, far"), "dataset", "far: it is on a hub; download its file"),
                ("m.yaml", LORA_SFT.replace("one, two", "script"), "dataset", "script: it is on a hub; download its file"),
                ("e.yaml", LORA_SFT.replace("one, two", "seen"), "dataset", "images"),
                ("f.yaml", LORA_SFT.replace("one, two", "none"), "dataset", "none: dataset_info.json does not have it"),
                ("g.yaml", LORA_SFT.replace("sets", "nowhere"), "dataset", "there is no dataset_info.json"),
                ("h.yaml", LORA_SFT.replace("stage: sft", "stage: ppo"), "stage", "use --objective"),
                ("i.yml", AXO_LORA.replace("rows.jsonl", "org/some-set"), "datasets[0].path", "download the file of the rows"),
                ("j.yml", AXO_LORA.replace("type: alpaca", "type: {format: '{x}'}"), "datasets[0].type", "--prompt-format"),
                ("l.yml", AXO_LORA + "plugins: [a.b]\n", "plugins", "plugins of axolotl do not run here"),
                ("k.yml", AXO_LORA + "rl: grpo\n", "rl", "use --objective")):
            with self.subTest(name):
                said, command = self.migrate(self.write(name, text), code=USAGE)
                self.assertTrue(any(re.match("refused: .*" + re.escape(words), text) for text in said[key]), said[key])

    def test_the_command_line_wins(self):
        run = ("train", *program.SMALL, "--data", self.rows, "--dry-run", "--no-forecast", "--device", "cpu", "--out", self.path("run"))
        said = self.succeed(*run, "--deepspeed", self.path("z2.json"), "--lr", "1e-3", "--dtype", "fp32").err
        self.assertIn("from    z2.json · 10 keys used, 8 ignored, 6 overruled · offload-train migrate shows each\n", said)
        self.assertIn("        optimizer.params.lr: the command line says --lr 0.001\n", said)
        self.assertIn("        train_batch_size: the command line says --tokens-per-step 512\n", said)
        self.assertIn("AdamW 0.001 linear, warm-up 10, clip 0.5", said)
        self.assertIn("computed in fp32", said)
        config = self.write("ours.json", {"schedule": "constant", "lr": 1e-4})
        said = self.succeed(*run, "--deepspeed", self.path("z2.json"), "--config", config, "--lr", "1e-3").err
        self.assertIn("        scheduler.type: --config says --schedule constant\n", said)
        self.assertIn("AdamW 0.001 constant", said)
        said = self.succeed(*run[:-2], "--deepspeed", self.path("z3.json"), "--hf-args", self.path("args.yaml"), "--schedule", "linear").err
        self.assertEqual(re.findall(r"^from    (\S+) ", said, re.M), ["args.yaml", "z3.json"])
        without = [word for word in run if word not in ("--tokens-per-step", "512")]
        said = self.succeed(*without, "--deepspeed", self.path("z2.json")).err
        self.assertRegex(said, r"\n        train_batch_size: used as --tokens-per-step \d+; \d+ sequences of 128, whatever the number of GPUs\n")
        ranks = [word for word in run if word not in ("--tokens-per-step", "512")]
        said = self.succeed(*ranks, "--hf-args", self.path("args.yaml"), "--gpus", "2").err
        self.assertIn("4,096 = 32 x 128 tokens a step", said)
        launcher = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        with socket.create_server(("127.0.0.1", 0)) as free:  # rank 0 listens 1000 ports beside
            launcher["MASTER_PORT"] = str(free.getsockname()[1])
        ranks = [subprocess.Popen([program.PROGRAM, *without, "--hf-args", self.path("args.yaml")], stderr=subprocess.PIPE,
                                  env={**os.environ, **launcher, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]
        said = [rank.communicate()[1].decode() for rank in ranks]
        self.assertIn("4,096 = 32 x 128 tokens a step", said[0])
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
        said = self.succeed(*run, "--hf-args", self.path("args.yaml"), "--eval-fraction", "0").err
        self.assertIn("        eval_steps: the command line says --eval-fraction 0\n", said)
        far = self.write("far.yml", AXO_FULL.replace("json, data_files: rows.jsonl", "org/far"))
        said = self.succeed(*run, "--axolotl", far, "--template", "chatml", "--columns", "question=question").err
        self.assertIn(f"        datasets[0].path: the command line says --data {self.rows}\n", said)
        refused = self.write("lamb.json", {"scheduler": {"type": "OneCycle", "params": {}}})
        self.fail_with(USAGE, "lamb.json: scheduler.type: it is not available; use --schedule", *run, "--deepspeed", refused)
        said = self.succeed(*run, "--deepspeed", refused, "--schedule", "linear").err
        self.assertIn("scheduler.type: the command line says --schedule linear", said)

    def test_the_record_of_a_run_has_what_the_file_became(self):
        args = self.write("short.json", {"max_steps": 2, "learning_rate": 1e-3, "per_device_train_batch_size": 4, "max_length": 64})
        self.succeed("train", "--model", "tiny-test", "--init", "random", "--data", self.rows, "--threads", "1", "--no-forecast",
                     "--out", self.path("made"), "--hf-args", args)
        with open(self.path("made/run.json")) as file:
            run = json.load(file)
        self.assertEqual([run["lr"], run["beta2"], run["steps"], run["tokens-per-step"], run["pack"], run["sources"]["lr"]],
                         [0.001, 0.999, 2, 256, False, "config"])
        self.assertNotIn("hf-args", run)

    def test_base64_and_files_that_are_none(self):
        run = ("train", *program.SMALL, "--data", self.rows, "--dry-run", "--no-forecast", "--device", "cpu", "--out", self.path("run"))
        text = base64.urlsafe_b64encode(json.dumps({"gradient_clipping": 0.25, "x": "\u00ff\u00fe>>>???"}).encode()).decode()
        self.assertIn("clip 0.25", self.succeed(*run, "--deepspeed", text).err)
        self.fail_with(INPUT, "--deepspeed no!file: there is no such file, and it is no base64", *run, "--deepspeed", "no!file")
        self.fail_with(INPUT, "--deepspeed, in base64", *run, "--deepspeed", base64.b64encode(b"[1]").decode())
        self.fail_with(IO, "none.json", *run, "--deepspeed", self.path("none.json"))
        self.fail_with(IO, "none.yaml", *run, "--hf-args", self.path("none.yaml"))
        twice = self.write("twice.json", '{"zero_optimization": {"stage": 1,\n "stage": 2}}')
        self.fail_with(INPUT, "twice.json:2: the key stage is given twice", *run, "--deepspeed", twice)
        self.fail_with(INPUT, "must be an object", "migrate", self.write("list.json", "[1]"))
        self.fail_with(INPUT, "add --from deepspeed", "migrate", self.write("what.json", '{"what": 1}'))
        self.fail_with(USAGE, "--hf-args and --llamafactory contradict", *run, "--hf-args", "a", "--llamafactory", "b")
        self.fail_with(USAGE, "migrate needs --file", "migrate")
        self.fail_with(USAGE, "leave out one of them", "migrate", self.path("z2.json"), "--deepspeed", self.path("z3.json"))
        self.fail_with(USAGE, "works only on the command line", *run, "--config", self.write("c.json", {"deepspeed": "z2.json"}))

    def test_config_in_yaml(self):
        run = ("train", *program.SMALL, "--data", self.rows, "--dry-run", "--no-forecast", "--device", "cpu", "--out", self.path("run"))
        path = self.write("ours.yaml", "lr: 1e-4\nschedule: constant\nwarmup: 3%\npack: no\nsave-every: 30m\nlora: r=4,alpha=8\n"
                                       "share-weights: no\n")
        self.fail_with(USAGE, "--lora saves adapters alone", *run, "--config", path, "--lr", "2e-4")
        path = self.write("plain.yaml", "lr: 1e-4\nschedule: constant\nwarmup: 3%\npack: no\nsave-every: 30m\nshare-weights: no\n")
        said = self.succeed(*run, "--config", path).err
        self.assertIn("AdamW 0.0001 constant", said)
        self.fail_with(USAGE, "lr-rate", *run, "--config", self.write("bad.yaml", "lr-rate: 1\n"))
        self.fail_with(INPUT, "bad.yml:2: the key lr is given twice", *run, "--config", self.write("bad.yml", "lr: 1\nlr: 2\n"))

    def test_the_command_line_of_migrate_makes_the_same_plan(self):
        """Each file as it is, and the command line that migrate prints: the same plan, step by step."""
        small = ["--model", "tiny-test", "--init", "random", "--data", self.rows, "--seq-len", "64", "--device", "cpu", "--threads", "1",
                 "--no-forecast", "--dry-run", "--out", self.path("run"), "--dtype", "fp32", "--steps", "4", "--warmup", "1"]
        own = ("model", "data", "seq-len", "out", "dtype", "steps", "epochs", "warmup", "tokens-per-step", "lora", "base-type")
        self.write("nv.json", json.dumps(ZERO3_NVME).replace('"@"', json.dumps(self.folder)).replace('"fp16": {"enabled": true', '"fp16": {"enabled": false'))
        for option, name in (("--deepspeed", "z2.json"), ("--deepspeed", "z3.json"), ("--deepspeed", "nv.json"), ("--hf-args", "args.yaml"),
                             ("--axolotl", self.write("plan.yml", AXO_FULL))):
            with self.subTest(name):
                _, command = self.migrate(option, name)
                words = [word for key, value in self.options(command).items() if key not in own
                         for word in (["--" + key] if value is True else ["--" + key, value])]
                tokens = ["--tokens-per-step", str(64 * int(self.options(command).get("tokens-per-step", "4096")) //
                                                   int(self.options(command).get("seq-len", "1024")))]
                by_file = self.succeed("train", *small, option, self.path(name), cwd=self.folder).err
                by_words = self.succeed("train", *small, *words, *(tokens if "tokens-per-step" in self.options(command) else []),
                                        cwd=self.folder).err
                cut = re.compile(r"^(from|note|warning:) .*\n(        .*\n)*|, [0-9.]+ GiB free|· free on that disk.*|budget .*", re.M)
                self.assertEqual(cut.sub("", by_file), cut.sub("", by_words))


if __name__ == "__main__":
    program.main()
