"""Whole runs over every family: the golden models of scripts/golden/models.py as directories of transformers, and the
golden adapters of scripts/golden/lora.py as directories of PEFT. Needs no torch: the losses follow from golden logits."""

import json
import math
import os
import shutil
import struct
import zlib

import program
from program import GOLDEN, read_bytes, read_golden, write_rows

INPUT = 3
FAMILIES = ["gpt2", "bloom", "falcon", "falcon_two", "falcon_alibi", "codegen", "phi3", "gemma", "gemma2", "gemma3",
            "olmo2", "olmo3", "smollm3", "ministral", "ministral3", "granite", "mixtral", "qwen3_moe", "gpt_oss"]
KINDS = ["gpt2", "bloom", "falcon_two", "codegen", "phi3", "gemma2", "mixtral", "qwen3_moe", "gpt_oss"]  # one of each kind of names and forms
ADAPTERS = ["gpt2-all", "bloom-qkv", "falcon_two-dora", "gemma3-embed", "phi3-all", "mixtral-attention",
            "mixtral-experts", "qwen3_moe-experts", "gpt_oss-experts"]
LETTERS = [chr(ord("A") + i) for i in range(26)] + [chr(ord("a") + i) for i in range(18)]
# Each letter is a token. Without a start and an end token, the losses are those of the golden rows.
TOKENIZER = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
             "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                       "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                       "vocab": {letter: i for i, letter in enumerate(LETTERS)}, "merges": []}}
ROWS = ["--no-eos", "--seq-len", "32", "--threads", "1"]


# ---- golden files, and the directories that are made of them ----

def numbers(array, form):
    return struct.unpack(f"<{len(array[1]) // struct.calcsize(form)}{form}", array[1])


class Golden:
    """A golden model, and the results of a case over it. case: "BASE", or "BASE-WORD" of lora.bin."""
    files = {}

    def __init__(self, case):
        self.base, _, word = case.partition("-")
        self.arrays = self.files.setdefault(self.base, read_golden(f"model_{self.base}.bin"))
        if word and "lora" not in self.files:
            self.files["lora"] = read_golden("lora.bin")
        self.results = self.arrays if not word else {
            name[len(case) + 1:]: array for name, array in self.files["lora"].items() if name.startswith(case + ".")}
        self.config = json.loads(self.arrays["config_json"][1])
        for key in list(self.config):
            if key.endswith("_token_id"):
                del self.config[key]  # outside of the small vocabulary
        self.weights = {name[7:]: array for name, array in self.arrays.items() if name.startswith("weight.")}
        tokens, targets, starts = (numbers(self.arrays[name], "i") for name in ("tokens", "targets", "row_start"))
        begins = sorted(set(starts)) + [len(tokens)]
        self.rows = [[*tokens[a:b], targets[b - 1]] for a, b in zip(begins, begins[1:])]

    def logits(self, at):
        shape, data = self.results["logits"]
        return struct.unpack_from(f"<{shape[1]}f", data, at * shape[1] * 4)

    def loss(self):
        """The mean over all tokens but the rows' first ones."""
        losses, at = [], 0
        for row in self.rows:
            for token in row[1:]:
                logits = self.logits(at)
                most = max(logits)
                losses.append(most + math.log(sum(math.exp(x - most) for x in logits)) - logits[token])
                at += 1
        return sum(losses) / len(losses)

    def texts(self):
        return [{"text": "".join(LETTERS[token] for token in row)} for row in self.rows]

    def head(self):
        """The embedding's name, if the model is tied."""
        ends = ("wte.weight", "word_embeddings.weight", "embed_tokens.weight")
        return None if "lm_head.weight" in self.weights else next(n for n in self.weights if n.endswith(ends))


def write_safetensors(path, tensors, kind="F32"):
    header, data = {}, []
    at = 0
    for name, (shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file)


def write_model(folder, config, weights, shards=1):
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), config)
    write_json(os.path.join(folder, "tokenizer.json"), TOKENIZER)
    if shards == 1:
        return write_safetensors(os.path.join(folder, "model.safetensors"), weights)
    names, places = list(weights), {}
    for i in range(shards):
        part = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(os.path.join(folder, part), {name: weights[name] for name in names[i::shards]})
        places.update({name: part for name in names[i::shards]})
    write_json(os.path.join(folder, "model.safetensors.index.json"), {"metadata": {}, "weight_map": places})


def write_adapters(folder, base, golden, task="CAUSAL_LM"):
    """As PEFT's save_pretrained has them."""
    os.makedirs(folder)
    modules = {name[6:]: numbers(array, "d")[0] for name, array in golden.results.items() if name.startswith("alpha.")}
    adapters = {name[7:]: array for name, array in golden.results.items() if name.startswith("weight.")}
    saved = {name[6:]: golden.weights[name[6:]] for name in golden.results
             if name.startswith("final.") and not name.startswith("final.base_model.")}
    a = next(shape for name, (shape, _) in adapters.items() if "_A" in name)
    experts = [name for name in modules if ".experts." in name]
    config = {"peft_type": "LORA", "task_type": task, "base_model_name_or_path": base, "r": a[0],
              "lora_alpha": next(iter(modules.values())), "lora_dropout": numbers(golden.results["dropout"], "d")[0],
              "target_modules": sorted({name.split(".")[-1] for name in modules if name not in experts}),
              "modules_to_save": sorted({name.rpartition(".")[0] for name in saved}),
              "use_dora": bool(numbers(golden.results["dora"], "q")[0]),
              "use_rslora": bool(numbers(golden.results["rslora"], "q")[0]), "bias": "none",
              "fan_in_fan_out": golden.base == "gpt2"}
    if experts:  # their alphas and ranks differ from those of other modules
        def rank(name):
            module = "base_model.model." + name.rpartition(".")[0]
            inner = module + ".base_layer.lora_A.weight"
            shape, _ = adapters[inner if name.endswith("gate_up_proj") and inner in adapters else module + ".lora_A.weight"]
            return shape[0] // (golden.config.get("num_local_experts") or golden.config["num_experts"])
        config["target_parameters"] = sorted({".".join(name.split(".")[-2:]) for name in experts})
        config["alpha_pattern"] = modules
        config["rank_pattern"] = {name: rank(name) for name in experts}
        config["r"] = next((shape[0] for name, (shape, _) in adapters.items() if "lora_A" in name and ".experts." not in name), 8)
    write_json(os.path.join(folder, "adapter_config.json"), config)
    write_safetensors(os.path.join(folder, "adapter_model.safetensors"),
                      adapters | {f"base_model.model.{name}": array for name, array in saved.items()})


def read_tensors(folder, name="model.safetensors"):
    data, start, header = program.read_safetensors(os.path.join(folder, name))
    return {tensor: (about["shape"], data[start + about["data_offsets"][0]:start + about["data_offsets"][1]])
            for tensor, about in header.items()}


def bare(name):
    prefix, _, rest = name.partition(".")
    return rest if prefix in ("model", "transformer") else name


def decode_int8(folder):
    """A quantized model's tensors, with plain fp32 in place of int8."""
    tensors = read_tensors(folder)
    for name in [name for name in tensors if name.endswith(".SCB")]:
        weight = name[:-3] + "weight"
        (rows, cols), codes = tensors[weight]
        scales = numbers(tensors.pop(name), "f")
        tensors.pop(name[:-3] + "weight_format", None)
        values = [code * scales[i // cols] / 127 for i, code in enumerate(struct.unpack(f"{rows * cols}b", codes))]
        tensors[weight] = [rows, cols], struct.pack(f"<{rows * cols}f", *values)
    return tensors


# ---- the tests ----

class Families(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden = {case: Golden(case) for case in FAMILIES + ADAPTERS}
        for family in FAMILIES:
            golden = cls.golden[family]
            write_model(cls.path(family), golden.config, golden.weights)
            write_rows(cls.path(family + ".jsonl"), golden.texts())
            write_rows(cls.path(family + "8.jsonl"), golden.texts() * 8)

    def loss(self, family, *words):
        return self.succeed("eval", *words, "--data", self.path(family.partition("-")[0] + ".jsonl"), *ROWS, "--json").json()["loss"]

    def tune(self, family, out, *words, model=None):
        return self.succeed("train", "--model", self.path(model or family), "--data", self.path(family + "8.jsonl"), *ROWS,
                            "--tokens-per-step", "64", "--no-forecast", "--eval-fraction", "0", "--out", self.path(out), *words)

    def test_losses_are_those_of_transformers(self):
        for i, family in enumerate(FAMILIES):
            golden = self.golden[family]
            self.assertAlmostEqual(self.loss(family, self.path(family)), golden.loss(), delta=2e-6, msg=family)
            # Names without a prefix, or with another one; in shards; the head of a tied model beside its embedding.
            weights = {(bare(name) if i % 2 else "model." + bare(name)) if "lm_head" not in name else name: array
                       for name, array in golden.weights.items()}
            if golden.head():
                weights["lm_head.weight"] = golden.weights[golden.head()]
            write_model(self.path(family + "-other"), golden.config, weights, shards=1 + i % 3)
            self.assertEqual(self.loss(family, self.path(family + "-other")), self.loss(family, self.path(family)), family)

    def test_the_first_generated_token(self):
        for family in FAMILIES:
            golden = self.golden[family]
            text = golden.texts()[0]["text"][:-1]
            logits = golden.logits(len(text) - 1)
            told = self.succeed("generate", self.path(family), "--prompt", text, "--max-new-tokens", "1", "--json").json()
            self.assertEqual(told["ids"], [logits.index(max(logits))], family)

    def test_a_save_keeps_what_it_did_not_train(self):
        """Without a learning rate, all values of a fused or transposed matrix come back to the bit."""
        for family in FAMILIES:
            self.tune(family, family + "-same", "--steps", "1", "--lr", "0")
            self.assertEqual(read_tensors(self.path(family + "-same")), self.golden[family].weights, family)

    def test_training_and_going_on(self):
        for family in FAMILIES:
            out, words = family + "-trained", ["--steps", "4", "--lr", "1e-2", "--save-every", "2", "--keep", "9"]
            self.tune(family, out, *words)
            self.assertLess(self.loss(family, self.path(out)), self.golden[family].loss() - 0.2, family)
            steps = [event for event in self.log(out) if event["event"] == "step"]
            self.assertTrue(all(event["grad_norm"] for event in steps), family)
            trained = read_tensors(self.path(out))
            if family in KINDS:
                self.succeed("export", self.path(out + "/checkpoints/step-00000004"), "--out", self.path(family + "-exported"))
                self.assertEqual(read_tensors(self.path(family + "-exported")), trained, family)
                self.succeed("verify", self.path(out))
            shutil.rmtree(self.path(out + "/checkpoints/step-00000004"))
            for name in ("checkpoints/complete", "finished.json", "model.safetensors"):
                os.remove(self.path(f"{out}/{name}"))
            self.assertIn("step 2 of 4", self.tune(family, out, *words).err)
            self.assertEqual(read_tensors(self.path(out)), trained, family)

    def test_what_is_trained(self):
        """The words of --train and --freeze mean the same in each family, whatever its names are."""
        def changed(family, out):
            after = read_tensors(self.path(out))
            return {name for name, array in self.golden[family].weights.items() if after[name] != array}

        for family in ("gpt2", "bloom", "codegen", "olmo2"):
            weights = self.golden[family].weights
            tables = {name for name in weights if name.endswith(("wte.weight", "wpe.weight", "embeddings.weight", "embed_tokens.weight"))}
            norms = {name for name in weights if "norm" in name or ".ln_" in name}
            biases = {name for name in weights if name.endswith(".bias")}
            last = {name for name in weights if ".h.1." in name or ".layers.1." in name}
            head = {name for name in weights if name.startswith("lm_head.")}
            for i, (words, want) in enumerate([
                    ("--train=embeddings,biases", tables | biases), ("--train=norms", norms),
                    ("--freeze=embeddings,norms,layers:0", last - norms | head)]):
                out = f"{family}-part{i}"
                self.tune(family, out, "--steps", "1", "--lr", "1e-2", words)
                self.assertEqual(changed(family, out), want, (family, words))

    # ---- adapters ----

    def test_adapters_of_peft(self):
        for case in ADAPTERS:
            golden = self.golden[case]
            write_adapters(self.path(case), self.path(golden.base), golden)
            self.assertAlmostEqual(self.loss(case, self.path(case)), golden.loss(), delta=2e-6, msg=case)
            self.succeed("merge", self.path(case), "--out", self.path(case + "-merged"))
            self.assertAlmostEqual(self.loss(case, self.path(case + "-merged")), golden.loss(), delta=2e-6, msg=case)
            # A run that goes on with them, and trains nothing, writes them again.
            self.tune(golden.base, case + "-on", "--steps", "1", "--lr", "0", model=case)
            before, after = (read_tensors(self.path(folder), "adapter_model.safetensors") for folder in (case, case + "-on"))
            self.assertEqual(before.keys(), after.keys())
            for name, array in before.items():
                if "magnitude" not in name:
                    self.assertEqual(after[name], array, name)
                for a, b in zip(numbers(array, "f"), numbers(after[name], "f")):
                    self.assertAlmostEqual(a, b, delta=1e-6, msg=name)

    def test_default_adapters(self):
        """--lora alone adapts every linear map of the layers, under the family's names; beside experts, those of attention."""
        maps = {"gpt2": "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj",
                "bloom": "self_attention.query_key_value self_attention.dense mlp.dense_h_to_4h mlp.dense_4h_to_h",
                "codegen": "attn.qkv_proj attn.out_proj mlp.fc_in mlp.fc_out",
                "phi3": "self_attn.qkv_proj self_attn.o_proj mlp.gate_up_proj mlp.down_proj"}
        maps["falcon_two"] = maps["bloom"]
        maps["mixtral"] = maps["qwen3_moe"] = maps["gpt_oss"] = attention = " ".join(f"self_attn.{x}_proj" for x in "qkvo")
        llama = attention + " mlp.gate_proj mlp.up_proj mlp.down_proj"
        for family in KINDS:
            layers = "transformer.h." if "transformer.ln_f.weight" in self.golden[family].weights else "model.layers."
            out, wanted = family + "-lora", maps.get(family, llama).split()
            self.tune(family, out, "--lora", "r=2", "--steps", "2", "--lr", "1e-2")
            names = read_tensors(self.path(out), "adapter_model.safetensors")
            n_layers = self.golden[family].config.get("num_hidden_layers") or self.golden[family].config["n_layer"]
            self.assertEqual(set(names), {f"base_model.model.{layers}{i}.{module}.lora_{matrix}.weight"
                                          for i in range(n_layers) for module in wanted for matrix in "AB"}, family)
            config = json.loads(read_bytes(self.path(out + "/adapter_config.json")))
            self.assertEqual(config["target_modules"], list(dict.fromkeys(name.split(".")[-1] for name in wanted)), family)
            self.assertEqual(config["fan_in_fan_out"], family == "gpt2")
            self.succeed("merge", self.path(out), "--out", self.path(out + "-merged"))
            loss = self.loss(family, self.path(out))
            self.assertAlmostEqual(self.loss(family, self.path(out + "-merged")), loss, delta=2e-6, msg=family)
            self.assertLess(loss, self.golden[family].loss(), family)

    def test_adapters_of_one_kind_of_expert_matrix(self):
        """All layers adapt the same matrix alone. Merging reads those of each layer: the merged model computes the same."""
        for target in "gate_up_proj", "down_proj":
            out = "qwen3_moe-" + target
            self.tune("qwen3_moe", out, "--lora", f"r=2,targets=experts.{target}", "--lr", "1e-1", "--steps", "4")
            loss = self.loss("qwen3_moe", self.path(out))
            self.assertGreater(abs(loss - self.golden["qwen3_moe"].loss()), 0.02, target)
            self.succeed("merge", self.path(out), "--out", self.path(out + "-merged"))
            self.assertAlmostEqual(self.loss("qwen3_moe", self.path(out + "-merged")), loss, delta=2e-6, msg=target)

    def test_adapters_of_experts(self):
        """Training, going on, merging, generating, and the choice of what is fetched."""
        for family, experts in ("mixtral", 5), ("qwen3_moe", 18), ("gpt_oss", 4):
            words = ["--lora", "r=2,targets=q_proj,experts.gate_up_proj,experts.down_proj,r:experts.down_proj=3", "--lr", "1e-2"]
            out, plan = family + "-of-experts", ["--steps", "4", "--save-every", "2", "--keep", "9"]
            self.tune(family, out, *words, *plan)
            tensors = read_tensors(self.path(out), "adapter_model.safetensors")
            module = "base_model.model.model.layers.0.mlp.experts."
            self.assertEqual([tensors[module + name + ".weight"][0][axis] for name, axis in
                              [("base_layer.lora_A", 0), ("base_layer.lora_B", 1), ("lora_A", 0), ("lora_B", 1)]],
                             [2 * experts, 2 * experts, 3 * experts, 3 * experts])
            config = json.loads(read_bytes(self.path(out + "/adapter_config.json")))
            self.assertEqual((config["target_modules"], config["target_parameters"], config["rank_pattern"]),
                             (["q_proj"], ["experts.gate_up_proj", "experts.down_proj"], {"experts.down_proj": 3}))
            loss = self.loss(family, self.path(out))
            self.assertLess(loss, self.golden[family].loss() - 0.1, family)
            self.succeed("merge", self.path(out), "--out", self.path(out + "-merged"))
            self.assertAlmostEqual(self.loss(family, self.path(out + "-merged")), loss, delta=2e-6, msg=family)
            text = self.golden[family].texts()[0]["text"]
            told = [self.succeed("generate", self.path(folder), "--prompt", text, "--max-new-tokens", "3", "--json").json()["ids"]
                    for folder in (out, out + "-merged")]
            self.assertEqual(*told, family)
            for choice in ("used", "all"):
                self.tune(family, f"{out}-{choice}", *words, *program.SMALL_MACHINE, "--steps", "4", "--home", "weights=host",
                          "--fetch-experts", choice)
                self.assertEqual(read_tensors(self.path(f"{out}-{choice}"), "adapter_model.safetensors"), tensors, family)
            checkpoint = self.path(out + "/checkpoints/step-00000004")
            self.succeed("export", checkpoint, "--out", self.path(out + "-exported"))
            self.assertEqual(read_tensors(self.path(out + "-exported"), "adapter_model.safetensors"), tensors, family)
            shutil.rmtree(checkpoint)
            for name in ("checkpoints/complete", "finished.json", "adapter_model.safetensors"):
                os.remove(self.path(f"{out}/{name}"))
            self.assertIn("step 2 of 4", self.tune(family, out, *words, *plan).err)
            self.assertEqual(read_tensors(self.path(out), "adapter_model.safetensors"), tensors, family)

    def test_damaged_adapters_of_experts(self):
        case = "mixtral-experts"
        for i, (change, words) in enumerate([
                (lambda t: t.pop(next(n for n in t if "experts.base_layer.lora_B" in n)), "experts.base_layer.lora_B.weight is missing"),
                (lambda t: t.update({n: ([s[0] - 1, s[1]], d[:-4 * s[1]]) for n, (s, d) in t.items() if "experts.lora_A" in n}),
                 "has the shape [9, 20], but by config.json it should be [10, 20]"),
                (lambda t: t.update({n: (s[::-1], d) for n, (s, d) in t.items() if "experts.lora_B" in n}),
                 "has the shape [10, 24], but by config.json it should be [24, 10]"),
                (lambda t: t.update({n: (s, struct.pack("<f", math.nan) + d[4:]) for n, (s, d) in t.items() if "experts.lora_B" in n}),
                 "holds nan at element 0"),
                (lambda t: t.update({n.replace("experts.lora", "experts.3.lora"): a for n, a in list(t.items())}),
                 "experts.3.lora_A.weight is not part of what its adapter_config.json describes")]):
            folder = self.path(f"damaged{i}")
            write_adapters(folder, self.path("mixtral"), self.golden[case])
            tensors = read_tensors(folder, "adapter_model.safetensors")
            change(tensors)
            write_safetensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
            told = program.run("eval", folder, "--data", self.path("mixtral.jsonl"), *ROWS)
            self.assertEqual(told.code, INPUT, told.out)
            self.assertIn(words, told.err)

    def test_refused_adapters_of_experts(self):
        case = "mixtral-attention"
        golden = self.golden[case]
        for i, (key, value, words) in enumerate([
                ("target_modules", ["q_proj", "w1", "w2", "w3"], "target_modules has 'w1', and in a model with experts only attention"),
                ("target_parameters", ["gate.weight"], "target_parameters has 'gate.weight', and here such adapters can be those"),
                ("target_parameters", "gate_up_proj", "target_parameters must be a list of names"),
                ("target_parameters", ["gate_up_proj"], "model.layers.0.mlp.experts.lora_A.weight is missing")]):
            folder = self.path(f"mixtral-refused{i}")
            write_adapters(folder, self.path("mixtral"), golden)
            path = os.path.join(folder, "adapter_config.json")
            write_json(path, json.loads(read_bytes(path)) | {key: value})
            told = program.run("eval", folder, "--data", self.path("mixtral.jsonl"), *ROWS)
            self.assertEqual(told.code, INPUT)
            self.assertIn(words, told.err)

    # ---- quantized bases ----

    def test_quantized_models(self):
        """A quantized model has the values that its tensors say, in the order of files, and is the base of --base-type."""
        for family in ("gpt2", "bloom", "codegen"):
            golden, out = self.golden[family], family + "-int8"
            self.succeed("quantize", self.path(family), "--to", "int8", "--out", self.path(out))
            tensors = decode_int8(self.path(out))
            if family == "gpt2":  # other programs have linear maps in place of its transposed matrices
                for name, ([rows, cols], raw) in [(n, t) for n, t in tensors.items() if ".h." in n and len(t[0]) == 2]:
                    values = struct.unpack(f"<{rows * cols}f", raw)
                    turned = [values[row * cols + col] for col in range(cols) for row in range(rows)]
                    tensors[name] = [cols, rows], struct.pack(f"<{rows * cols}f", *turned)
            write_model(self.path(out + "-plain"), golden.config, tensors)
            loss = self.loss(family, self.path(out + "-plain"))
            self.assertAlmostEqual(self.loss(family, self.path(out)), loss, delta=2e-6, msg=family)
            self.assertAlmostEqual(self.loss(family, self.path(family), "--base-type", "int8"), loss, delta=2e-6, msg=family)
            self.succeed("quantize", self.path(family), "--to", "nf4", "--out", self.path(family + "-nf4"))
            stored = self.loss(family, self.path(family + "-nf4"))
            self.assertAlmostEqual(self.loss(family, self.path(family), "--base-type", "nf4"), stored, delta=2e-6, msg=family)
            self.assertNotAlmostEqual(stored, golden.loss(), delta=1e-3)
            self.tune(family, family + "-qlora", "--lora", "r=2", "--steps", "2", "--lr", "1e-2", model=family + "-nf4")

    def test_a_base_of_mxfp4_keeps_its_numbers(self):
        """The files of gpt-oss have experts in MXFP4. Stored so on every tier, they compute the bits of decoded ones."""
        shutil.copytree(os.path.join(GOLDEN, "quantized/mxfp4"), self.path("mxfp4"))
        vocab = {letter: i for i, letter in enumerate(LETTERS[:32])}
        write_json(self.path("mxfp4/tokenizer.json"), TOKENIZER | {"model": TOKENIZER["model"] | {"vocab": vocab}})
        texts = [{"text": "".join(LETTERS[i * step % 32] for i in range(20))} for step in (3, 5, 7, 11)]
        write_rows(self.path("mxfp4.jsonl"), texts)
        write_rows(self.path("mxfp48.jsonl"), texts * 8)
        stored, decoded = ["--base-type", "mxfp4", "--dtype", "fp32"], ["--dtype", "fp32"]
        loss = self.loss("mxfp4", self.path("mxfp4"), *decoded)
        self.assertEqual(self.loss("mxfp4", self.path("mxfp4"), *stored), loss)
        self.assertNotEqual(self.loss("mxfp4", self.path("mxfp4"), "--base-type", "nf4", *decoded), loss)
        for out, words in ("mxfp4-stored", stored), ("mxfp4-decoded", decoded):
            self.tune("mxfp4", out, "--lora", "r=2,targets=all-linear,experts.gate_up_proj,experts.down_proj", "--steps", "2",
                      "--lr", "1e-2", *words)
        self.assertEqual(read_tensors(self.path("mxfp4-stored"), "adapter_model.safetensors"),
                         read_tensors(self.path("mxfp4-decoded"), "adapter_model.safetensors"))
        tuned = self.loss("mxfp4", self.path("mxfp4-stored"), *stored)
        self.assertLess(tuned, loss)
        # A merge adds them to the decoded experts, and rounds each sum to bf16, the dtype of the rest of the base.
        self.succeed("merge", self.path("mxfp4-stored"), "--out", self.path("mxfp4-merged"))
        self.assertAlmostEqual(self.loss("mxfp4", self.path("mxfp4-merged"), *decoded), tuned, delta=0.02)

    def test_an_mxfp4_that_is_written_is_what_transformers_reads(self):
        """transformers has read a file with these bytes, and had this loss (scripts/golden/mxfp4_written.py)."""
        golden, out = read_golden("mxfp4_written.bin"), self.path("written")
        said = self.succeed("quantize", self.path("gpt_oss"), "--to", "mxfp4", "--data", self.path("gpt_oss.jsonl"), "--no-eos",
                            "--seq-len", "32", "--eval-fraction", "0", "--eval-data", self.path("gpt_oss.jsonl"), "--dtype", "fp32",
                            "--json", "--out", out).json()
        tensors = read_tensors(out)
        crcs = {name[4:]: numbers(array, "I")[0] for name, array in golden.items() if name.startswith("crc.")}
        self.assertEqual({name: zlib.crc32(tensors[name][1]) for name in crcs}, crcs)
        self.assertEqual({name for name in tensors if "expert" in name and not name.endswith("_bias")}, set(crcs))
        self.assertEqual(tensors["model.layers.1.mlp.experts.down_proj_blocks"][0], [4, 32, 1, 16])
        for name in set(tensors) - set(crcs):
            self.assertEqual(tensors[name][1], self.golden["gpt_oss"].weights[name][1], name)
        loss = numbers(golden["loss"], "d")[0]
        self.assertNotAlmostEqual(loss, self.golden["gpt_oss"].loss(), delta=1e-4)
        self.assertAlmostEqual(math.log(said["perplexity_after"]), loss, delta=2e-6)  # fp32 and other orders of sums
        for words in [], ["--base-type", "mxfp4"]:
            self.assertAlmostEqual(self.loss("gpt_oss", out, *words, "--dtype", "fp32"), loss, delta=2e-6)
        with open(os.path.join(out, "config.json")) as file:
            self.assertEqual(json.load(file)["quantization_config"]["quant_method"], "mxfp4")
        self.succeed("quantize", out, "--to", "mxfp4", "--out", self.path("written-again"))
        self.assertEqual(read_tensors(self.path("written-again")), tensors)

    def test_bitsandbytes_only_where_transformers_reads_it(self):
        """tests/golden/replaced.json says of which families transformers replaces all matrices."""
        with open(os.path.join(GOLDEN, "replaced.json"), encoding="utf-8") as file:
            left = json.load(file)["families"]
        for family in FAMILIES:
            kind = self.golden[family].config["model_type"]
            if family in ("mixtral", "qwen3_moe", "gpt_oss"):
                continue  # their experts are refused
            told = program.run("quantize", self.path(family), "--to", "nf4", "--out", self.path(family + "-replaced"))
            self.assertEqual(told.code, INPUT if left[kind] else 0, told.err)
            self.assertEqual("in no format of bitsandbytes, because their class is its own" in told.err, bool(left[kind]), told.err)
        self.assertIn("falcon", [kind for kind, name in left.items() if name])

    def test_a_family_without_gguf_is_refused_by_name(self):
        told = program.run("export", self.path("codegen"), "--gguf", "f16", "--out", self.path("none.gguf"))
        self.assertEqual(told.code, INPUT)
        self.assertIn("llama.cpp has no models of type codegen", told.err)

    def test_experts_are_refused_by_name(self):
        for family in ("mixtral", "qwen3_moe"):
            for words, reason in [
                    (["quantize", self.path(family), "--to", "nf4"], f"of a {family}, bitsandbytes would leave the experts as they are"),
                    (["quantize", self.path(family), "--to", "mxfp4"], f"--to mxfp4 is the format of gpt_oss, and this is a {family}"),
                    (["quantize", self.path("gpt_oss"), "--to", "gptq:4", "--data", self.path("gpt_oss.jsonl")],
                     "the experts of a gpt_oss in no format of GPTQ")]:
                told = program.run(*words, "--out", self.path("refused"))
                self.assertEqual(told.code, INPUT)
                self.assertIn(reason, told.err)
                self.assertFalse(os.path.exists(self.path("refused")))

    def test_which_experts_are_fetched(self):
        """It changes where bytes go, and no result; a choice that changes nothing is refused."""
        plan, quantised = [*program.SMALL_MACHINE, "--home", "weights=host", "--steps", "3", "--lr", "1e-2"], ["--lora", "r=2", "--base-type"]
        for family, words, file in [("mixtral", [], "model"), ("qwen3_moe", [], "model"), ("gpt_oss", [], "model"),
                                    ("qwen3_moe", [*quantised, "nf4-double"], "adapter_model"),
                                    ("gpt_oss", [*quantised, "mxfp4"], "adapter_model")]:
            results = []
            for choice in ("used", "all"):
                out = f"{family}-{choice}{len(words)}"
                self.tune(family, out, "--fetch-experts", choice, *plan, *words)
                results.append(read_bytes(self.path(f"{out}/{file}.safetensors")))
            self.assertEqual(*results, family)
        for family, words, reason in [
                ("gemma", [], "the model has no experts"),
                ("mixtral", [*plan, "--optimizer-engine", "stream"], "add --optimizer-engine cpu"),
                ("mixtral", [*plan, "--device", "cpu", "--gpus", "2", "--shard", "full", "--share-weights", "no"],
                 "ranks gather whole layers from each other; add --share-weights yes or --shard none")]:
            told = program.run("train", "--model", self.path(family), "--data", self.path(family + ".jsonl"), *ROWS, *words,
                               "--fetch-experts", "used", "--out", self.path("refused"))
            self.assertEqual(told.code, 2)
            self.assertIn(reason, told.err)

    def test_a_base_with_encoded_experts(self):
        """The experts are frozen in NF4 beside adapters: the run learns, and its adapters have the losses that it had."""
        for family in ("mixtral", "qwen3_moe"):
            out, words = family + "-qlora", ["--base-type", "nf4"]
            base = self.loss(family, self.path(family), *words)
            self.assertNotAlmostEqual(base, self.golden[family].loss(), delta=1e-3, msg=family)
            self.tune(family, out, "--lora", "r=2", "--steps", "4", "--lr", "1e-2", *words)
            first = next(event for event in self.log(out) if event["event"] == "step")
            self.assertLess(self.loss(family, self.path(out), *words), base - 0.02, family)
            self.assertGreater(first["grad_norm"], 0, family)


if __name__ == "__main__":
    program.main()
