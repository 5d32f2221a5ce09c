"""Runs with adapters: what they train and write, going on from adapters, checkpoints, merge, PEFT's files, refusals."""

import hashlib
import json
import os
import shutil
import struct
import unittest

import program
from program import SMALL, sql_rows, write_rows

USAGE, INPUT = 2, 3
# Made by scripts/golden/peft_adapter.py.
SEARCHES = "these searches take half a minute under a sanitizer, and test plan is there too"
PEFT = os.path.join(os.path.dirname(__file__), "../golden/peft")


def read_tensors(folder, name="adapter_model.safetensors"):
    data, start, header = program.read_safetensors(os.path.join(folder, name))
    return {tensor: (about["dtype"], data[start + about["data_offsets"][0]:start + about["data_offsets"][1]])
            for tensor, about in header.items()}


def write_tensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_gguf(path):
    """The keys and the fp32 tensors of a file."""
    data, at = program.read_bytes(path), 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0]

    def text():
        return take(f"{take('Q')}s").decode()

    assert take("4s") == b"GGUF" and take("I") == 3
    n_tensors, n_keys = take("Q"), take("Q")
    kinds = {4: lambda: take("I"), 6: lambda: take("f"), 8: text}
    keys = {text(): kinds[take("I")]() for _ in range(n_keys)}
    about = {}
    for _ in range(n_tensors):
        name = text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        assert take("I") == 0
        about[name] = (shape, take("Q"))
    at = (at + 31) // 32 * 32
    return keys, {name: (shape, struct.unpack_from(f"<{shape[0] * shape[1]}f", data, at + offset))
                  for name, (shape, offset) in about.items()}


def hash_of(folder):
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        digest.update(program.read_bytes(os.path.join(folder, name)))
    return digest.hexdigest()


class Lora(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.path("rows.jsonl"), sql_rows(40))
        done = program.run("train", *SMALL, "--data", cls.rows, "--out", cls.path("base"), "--steps", "2", "--no-forecast")
        assert done.code == 0, done.err
        cls.base = cls.path("base")
        for name in os.listdir(cls.base):  # a plain model, without records of its run
            if name in ("run.json", "log.jsonl", "finished.json", "checkpoints"):
                path = os.path.join(cls.base, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def tune(self, out, *words, model="base", steps="4"):
        return self.succeed("train", "--model", self.path(model), "--data", self.rows, "--seq-len", "128", "--threads", "1",
                            "--tokens-per-step", "512", "--steps", steps, "--no-forecast", "--out", self.path(out), *words)

    def loss(self, *words):
        """The micro-batch is given, because the last digits of a sum depend on it."""
        return self.succeed("eval", *words, "--data", self.rows, "--seq-len", "128", "--micro-batch", "4", "--json").json()["loss"]

    def test_adapters_are_trained_and_the_base_stays(self):
        before = hash_of(self.base)
        text = self.tune("plain", "--lora", "r=4,targets=q_proj,down_proj", "--lr", "1e-2").err
        self.assertEqual(hash_of(self.base), before)
        self.assertIn("plan    adapters · AdamW", text)
        self.assertIn("adapters for PEFT, ", text)
        self.assertIn("offload-train merge", text)
        names = set(os.listdir(self.path("plain")))
        self.assertLessEqual({"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md", "run.json"}, names)
        self.assertFalse({"config.json", "model.safetensors"} & names)
        tensors = read_tensors(self.path("plain"))
        self.assertEqual(set(tensors), {f"base_model.model.model.layers.{layer}.{module}.lora_{matrix}.weight"
                                        for layer in (0, 1) for module in ("self_attn.q_proj", "mlp.down_proj")
                                        for matrix in "AB"})
        self.assertEqual({dtype for dtype, _ in tensors.values()}, {"F32"})
        self.assertTrue(all(any(values) for _, values in tensors.values()))  # B is zero before the first step
        with open(self.path("plain/adapter_config.json")) as file:
            config = json.load(file)
        self.assertEqual((config["r"], config["lora_alpha"], config["target_modules"], config["base_model_name_or_path"]),
                         (4, 8, ["q_proj", "down_proj"], os.path.realpath(self.base)))
        self.assertIn("library_name: peft", program.read_bytes(self.path("plain/README.md")).decode())
        evals = [event["loss"] for event in self.log("plain") if event["event"] == "eval"]
        self.assertLess(evals[-1], evals[0])

    def test_a_run_begins_with_the_function_of_its_base(self):
        rows = ("--eval-data", self.rows)
        self.tune("begin", "--lora", "--steps", "1", "--micro-batch", "4", *rows)
        first = next(event["loss"] for event in self.log("begin") if event["event"] == "eval")
        self.assertEqual(first, self.loss(self.base))
        last = [event["loss"] for event in self.log("begin") if event["event"] == "eval"][-1]
        alone = self.loss(self.path("begin"))
        self.assertEqual(last, alone)
        self.assertEqual(self.loss("--model", self.base, "--adapter", self.path("begin")), alone)

    def test_the_bits_do_not_depend_on_homes(self):
        words = ("--lora", "r=3,dropout=0.2,targets=all-linear,lm_head", "--train", "norms")
        self.tune("homes0", *words)
        for i, home in enumerate(["weights=host,state=host", "weights=host,state=gpu"]):
            self.tune(f"homes{i + 1}", *words, "--home", home, "--slots", "2")
            self.assertEqual(read_tensors(self.path(f"homes{i + 1}")), read_tensors(self.path("homes0")), home)

    def test_checkpoints(self):
        words = ("--lora", "r=4,dropout=0.1", "--save-every", "2", "--keep", "9", "--train", "norms")
        self.tune("saved", *words)
        checkpoint = self.path("saved/checkpoints/step-00000004")
        slabs = {slab["name"]: slab for slab in self.succeed("verify", checkpoint, "--json").json()["checkpoint"]["slabs"]}
        self.assertEqual((slabs["layer.0.frozen"]["state"], slabs["layer.0"]["state"]), ("frozen", "ok"))
        self.succeed("export", checkpoint, "--out", self.path("exported"))
        self.assertEqual(read_tensors(self.path("exported")), read_tensors(self.path("saved")))
        shutil.copytree(self.path("saved"), self.path("again"))
        shutil.rmtree(self.path("again/checkpoints/step-00000004"))
        for name in ("checkpoints/complete", "finished.json", "adapter_model.safetensors"):
            os.remove(self.path(f"again/{name}"))
        self.assertIn("step 2 of 4", self.tune("again").err)  # the options come from the checkpoint
        self.assertEqual(read_tensors(self.path("again")), read_tensors(self.path("saved")))

    def test_dora_and_embeddings_go_on(self):
        """Files have the magnitude of each row and a transposed matrix; runs have other forms of both."""
        for i, lora in enumerate(["r=4,dora,dropout=0.1,targets=q_proj,down_proj,lm_head", "r=4,targets=embed_tokens,up_proj"]):
            self.tune(f"form{i}", "--lora", lora, "--lr", "1e-2", "--save-every", "2")
            begun = self.loss(self.path(f"form{i}"))
            self.tune(f"on{i}", "--steps", "1", "--eval-data", self.rows, model=f"form{i}")
            first = next(event["loss"] for event in self.log(f"on{i}") if event["event"] == "eval")
            self.assertAlmostEqual(first, begun, delta=1e-6 if i == 0 else 0)  # the magnitude is rounded in the file
            with open(self.path(f"on{i}/adapter_config.json")) as file:
                config = json.load(file)
            self.assertEqual((config["use_dora"], config["lora_dropout"]), (i == 0, 0.1 if i == 0 else 0))
            self.succeed("merge", self.path(f"form{i}"), "--out", self.path(f"sum{i}"))
            self.assertAlmostEqual(self.loss(self.path(f"sum{i}")), begun, delta=2e-6)
            shutil.copytree(self.path(f"form{i}"), self.path(f"run{i}"))
            os.remove(self.path(f"run{i}/adapter_config.json"))
            self.succeed("export", self.path(f"run{i}"), "--out", self.path(f"made{i}"))
            self.assertEqual(read_tensors(self.path(f"made{i}")), read_tensors(self.path(f"form{i}")))
            told = program.run("export", self.path(f"form{i}"), "--gguf", "f16", "--out", self.path("none"))
            self.assertIn("offload-train merge", told.err)

    def test_magnitudes_over_a_quantised_base(self):
        """A magnitude begins as the norm of the row that the run computes with: the decoded one."""
        words = ("--lora", "r=2,dora,targets=q_proj,down_proj", "--lr", "0", "--steps", "1")

        def magnitudes(out, *more, model="base"):
            self.tune(out, *words, *more, model=model)
            return {name: values for name, values in read_tensors(self.path(out)).items() if "magnitude" in name}

        plain = magnitudes("exact")
        self.assertEqual(len(plain), 4)
        for kind in ("nf4", "nf4-double", "int8"):
            self.succeed("quantize", self.base, "--to", kind, "--out", self.path(f"stored-{kind}"))
            stored = magnitudes(f"from-{kind}", model=f"stored-{kind}")
            self.assertNotEqual(stored, plain)
            self.assertEqual(magnitudes(f"as-{kind}", "--base-type", kind), stored)
            # A run that goes on takes them back.
            self.tune(f"on-{kind}", "--base-type", kind, "--lr", "0", "--steps", "1", model=f"as-{kind}")
            again = read_tensors(self.path(f"on-{kind}"))
            for name, (_, values) in stored.items():
                for a, b in zip(struct.unpack(f"<{len(values) // 4}f", values), struct.unpack(f"<{len(values) // 4}f", again[name][1])):
                    self.assertAlmostEqual(a, b, delta=1e-6 * a)

    def test_going_on_from_adapters(self):
        self.tune("first", "--lora", "r=4,targets=q_proj", "--train", "norms")
        begun = self.loss(self.path("first"))
        text = self.tune("second", model="first").err
        self.assertIn("(adapters of ", text)
        self.tune("third", "--adapter", self.path("first"), "--lora", "r=4,targets=q_proj,dropout=0.5")
        for out in ("second", "third"):
            with open(self.path(f"{out}/run.json")) as file:
                run = json.load(file)
            self.assertIn("model.norm.weight", run["train"])
            self.assertEqual(set(read_tensors(self.path(out))), set(read_tensors(self.path("first"))))
        self.tune("length", "--steps", "1", "--micro-batch", "4", "--eval-data", self.rows, model="first")
        self.assertEqual(next(event["loss"] for event in self.log("length") if event["event"] == "eval"), begun)
        with open(self.path("second/adapter_config.json")) as file:
            self.assertEqual(json.load(file)["base_model_name_or_path"], os.path.realpath(self.base))
        # run.json is a config of the same run.
        self.succeed("train", "--config", self.path("second/run.json"), "--out", self.path("repeated"))
        self.assertEqual(read_tensors(self.path("repeated")), read_tensors(self.path("second")))

    def test_a_stopped_run_that_went_on_needs_no_adapters(self):
        self.tune("origin", "--lora", "r=4,targets=q_proj")
        self.tune("went", "--save-every", "2", "--keep", "9", "--adapter", self.path("origin"))
        want = read_tensors(self.path("went"))
        shutil.rmtree(self.path("went/checkpoints/step-00000004"))
        for name in ("checkpoints/complete", "finished.json", "adapter_model.safetensors"):
            os.remove(self.path(f"went/{name}"))
        shutil.rmtree(self.path("origin"))
        self.tune("went")
        self.assertEqual(read_tensors(self.path("went")), want)

    def test_merged_is_unmerged(self):
        self.tune("loose", "--lora", "r=4,alpha=16,rslora,r:down_proj=2", "--lr", "1e-2", "--train", "norms")
        told = self.succeed("merge", self.path("loose"), "--out", self.path("merged"), "--json").json()
        self.assertEqual(told["adapters"], 14)
        self.assertAlmostEqual(self.loss(self.path("merged")), self.loss(self.path("loose")), delta=2e-6)  # fp32 sums
        self.assertNotAlmostEqual(self.loss(self.path("merged")), self.loss(self.base), delta=1e-3)
        self.succeed("merge", self.base, self.path("loose"), "--out", self.path("merged2"))
        self.assertEqual(read_tensors(self.path("merged2"), "model.safetensors"),
                         read_tensors(self.path("merged"), "model.safetensors"))
        # What has no adapter is the base's, or the trained tensor, to the bit.
        merged, base = read_tensors(self.path("merged"), "model.safetensors"), read_tensors(self.base, "model.safetensors")
        loose = read_tensors(self.path("loose"))
        self.assertEqual(merged["lm_head.weight"], base["lm_head.weight"])
        self.assertEqual(merged["model.norm.weight"], loose["base_model.model.model.norm.weight"])
        card = program.read_bytes(self.path("merged/README.md")).decode()
        self.assertIn("# merged", card)
        self.assertIn("merged into the weights", card)
        # Rows are written as in the run that made the adapters.
        self.assertEqual(program.read_bytes(self.path("merged/run.json")), program.read_bytes(self.path("loose/run.json")))

    def test_rows_that_threads_share_are_merged_once(self):
        """Threads merge chunks of 32768 values. The second chunk of this matrix [64, 524] begins within a
        row, and ends within one more row."""
        shutil.copytree(self.base, self.path("wide"))
        os.remove(self.path("wide/model.safetensors"))
        with open(self.path("wide/config.json")) as file:
            config = json.load(file)
        with open(self.path("wide/config.json"), "w") as file:
            json.dump(dict(config, intermediate_size=524), file)
        self.tune("wider", "--init", "random", "--lr", "1e-5", model="wide")
        self.tune("of-wider", "--lora", "r=4,targets=down_proj", "--lr", "1e-1", model="wider")
        self.succeed("merge", self.path("of-wider"), "--threads", "2", "--out", self.path("merged-wider"))
        self.assertAlmostEqual(self.loss(self.path("merged-wider")), self.loss(self.path("of-wider")), delta=2e-6)

    def test_a_tied_head_is_merged_apart(self):
        tied = self.path("tied")
        shutil.copytree(self.base, tied)
        with open(os.path.join(tied, "config.json")) as file:
            config = json.load(file)
        with open(os.path.join(tied, "config.json"), "w") as file:
            json.dump(dict(config, tie_word_embeddings=True), file)
        tensors = read_tensors(self.base, "model.safetensors")
        del tensors["lm_head.weight"]
        header, data = {}, b""
        for name, (dtype, values) in tensors.items():
            shape = [len(values) // 4] if "norm" in name else [len(values) // 4 // 64, 64]
            shape = [64, 128] if "down_proj" in name else shape
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        with open(os.path.join(tied, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        for target in ("lm_head", "embed_tokens"):
            self.tune(f"of-{target}", "--lora", f"r=4,targets=q_proj,{target}", "--lr", "1e-2", model="tied")
            told = self.succeed("merge", self.path(f"of-{target}"), "--out", self.path(f"apart-{target}")).out
            self.assertIn("head and embedding apart now", told)
            with open(self.path(f"apart-{target}/config.json")) as file:
                self.assertFalse(json.load(file)["tie_word_embeddings"])
            self.assertAlmostEqual(self.loss(self.path(f"apart-{target}")), self.loss(self.path(f"of-{target}")), delta=2e-6)
            merged = read_tensors(self.path(f"apart-{target}"), "model.safetensors")
            same = "model.embed_tokens.weight" if target == "lm_head" else "lm_head.weight"
            self.assertEqual(merged[same], tensors["model.embed_tokens.weight"])

    def test_files_of_peft(self):
        with open(os.path.join(PEFT, "loss.json")) as file:
            want = json.load(file)
        rows = write_rows(self.path("text.jsonl"), [{"text": want["text"]}])
        base = os.path.join(PEFT, "base")
        tokenizer = ["--tokenizer", os.path.join(self.base, "tokenizer.json")]
        cases = [("base", [base, *tokenizer], want["base"])]
        for name in ("adapter", "dora", "embedding"):
            adapter, merged = os.path.join(PEFT, name), self.path(f"of-peft-{name}")
            self.succeed("merge", base, adapter, *tokenizer, "--out", merged)
            cases += [(name, [base, "--adapter", adapter, *tokenizer], want[name][0]), (f"{name}, merged", [merged], want[name][1])]
        for name, words, loss in cases:
            got = self.succeed("eval", *words, "--data", rows, "--no-eos", "--json").json()["loss"]
            self.assertAlmostEqual(got, loss, delta=1e-5, msg=name)
        told = program.run("eval", adapter, *tokenizer, "--data", rows)
        self.assertEqual(told.code, INPUT)
        self.assertIn("base_model_name_or_path is missing; give the base with --model", told.err)

    def test_gguf_files_of_adapters(self):
        """llama.cpp computes alpha / rank * B A, with the rows of q and k in its own order."""
        self.tune("gg", "--lora", "r=4,alpha=6,rslora,targets=q_proj,v_proj,r:v_proj=2", "--lr", "1e-2", "--save-every", "2")
        told = self.succeed("export", self.path("gg"), "--gguf", "f32", "--out", self.path("gg-out"), "--json").json()
        keys, tensors = read_gguf(os.path.join(self.path("gg-out"), told["file"]))
        self.assertEqual((keys["general.architecture"], keys["general.type"], keys["adapter.type"], keys["adapter.lora.alpha"]),
                         ("llama", "adapter", "lora", 6))
        self.assertEqual(len(tensors), 2 * 2 * 2)
        stored = {name: struct.unpack(f"<{len(values) // 4}f", values) for name, (_, values) in read_tensors(self.path("gg")).items()}
        for layer in (0, 1):
            for module, name, rank in (("q_proj", "attn_q", 4), ("v_proj", "attn_v", 2)):
                a, b = (stored[f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{m}.weight"] for m in "AB")
                shape, got = tensors[f"blk.{layer}.{name}.weight.lora_a"]
                self.assertEqual((shape, got), ([rank, 64], a))
                shape, got = tensors[f"blk.{layer}.{name}.weight.lora_b"]
                self.assertEqual(shape, [len(b) // rank, rank])
                factor = rank**0.5  # 6 / sqrt(rank) in place of 6 / rank
                for row in range(shape[0]):
                    half, head = 8, row // 16 * 16  # heads of 16: row 8 p + j of Hugging Face is row 2 j + p
                    to = head + 2 * (row % 16 % half) + row % 16 // half if module == "q_proj" else row
                    for i in range(rank):
                        self.assertAlmostEqual(got[to * rank + i], factor * b[row * rank + i], delta=1e-7)
        # The newest checkpoint of a run.
        shutil.copytree(self.path("gg"), self.path("gg-run"))
        os.remove(self.path("gg-run/adapter_config.json"))
        self.succeed("export", self.path("gg-run"), "--gguf", "f32", "--out", self.path("gg-run-out"))
        self.assertEqual(read_gguf(os.path.join(self.path("gg-run-out"), "gg-run-F32.gguf"))[1], tensors)
        for words, code, phrase in [(["--gguf", "q4_k_m"], USAGE, "adapters can be f32, f16, bf16 or q8_0"),
                                    (["--gguf", "f16", "--modelfile"], USAGE, "merge them first")]:
            told = program.run("export", self.path("gg"), "--out", self.path("none"), *words)
            self.assertEqual(told.code, code, told.err)
            self.assertIn(phrase, told.err)
        self.tune("gg-norms", "--lora", "r=4,targets=q_proj", "--train", "norms", "--steps", "1")
        told = program.run("export", self.path("gg-norms"), "--out", self.path("none"))
        self.assertIn("is already an exported model, or adapters", told.err)
        told = program.run("export", self.path("gg-norms"), "--gguf", "f16", "--out", self.path("none"))
        self.assertIn("input_layernorm.weight is trained too, and llama.cpp has no adapters of that kind", told.err)

    def test_adapters_are_verified(self):
        self.tune("sound", "--lora", "r=4,targets=q_proj", "--steps", "1")
        told = self.succeed("verify", self.path("sound"), "--json").json()
        self.assertTrue(told["ok"])
        path = self.path("sound/adapter_model.safetensors")
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\xc0\x7f")
        told = program.run("verify", self.path("sound"))
        self.assertEqual(told.code, INPUT)
        self.assertIn("nan", told.out + told.err)

    @unittest.skipIf("OT_TEST_BRIEF" in os.environ, SEARCHES)
    def test_plans(self):
        words = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--gpu-mem", "1500M", "--json"]
        whole, part = self.succeed(*words).json(), self.succeed(*words, "--lora", "r=16").json()
        layer = 2 * (2048 + 2048) + 2 * (2048 + 256) + 3 * (2048 + 5632)
        self.assertEqual(part["model"]["trained_parameters"], 22 * 16 * layer)
        self.assertLess(part["prediction"]["step_seconds"], 0.75 * whole["prediction"]["step_seconds"])

    @unittest.skipIf("OT_TEST_BRIEF" in os.environ, SEARCHES)
    def test_plans_of_experts(self):
        """Each of 32 experts has an A and a B, for gate and up together and for down."""
        words = ["plan", "--model", "gpt-oss-20b", "--gpu", "rtx4090", "--ram", "64G", "--base-type", "mxfp4", "--json"]
        plain = self.succeed(*words, "--lora", "r=16").json()
        told = self.succeed(*words, "--lora", "r=16,targets=all-linear,experts.gate_up_proj,experts.down_proj").json()
        attention = 24 * 16 * ((2880 + 4096) * 2 + (2880 + 512) * 2)
        self.assertEqual(plain["model"]["trained_parameters"], attention)
        self.assertEqual(told["model"]["trained_parameters"], attention + 24 * 32 * 16 * ((2880 + 2 * 2880) + (2880 + 2880)))
        self.assertGreater(told["prediction"]["step_seconds"], plain["prediction"]["step_seconds"])

    def test_damaged_adapters(self):
        self.tune("good", "--lora", "r=4,targets=q_proj", "--steps", "1")

        def told(change, phrase, code=INPUT):
            shutil.copytree(self.path("good"), self.path("bad"))
            change(self.path("bad"))
            for words in (["eval", "--data", self.rows], ["train", "--data", self.rows, "--out", self.path("none"), "--dry-run"],
                          ["merge", "--out", self.path("none")]):
                done = program.run(words[0], "--model", self.base, "--adapter", self.path("bad"), *words[1:])
                self.assertEqual(done.code, code, done.err)
                self.assertIn(phrase, done.err)
                self.assertFalse(os.path.exists(self.path("none")))
            shutil.rmtree(self.path("bad"))

        def edit(folder, **members):
            path = os.path.join(folder, "adapter_config.json")
            with open(path) as file:
                config = json.load(file)
            config.update(members)
            with open(path, "w") as file:
                json.dump(config, file)

        def cut(folder):
            path = os.path.join(folder, "adapter_model.safetensors")
            os.truncate(path, os.path.getsize(path) - 4)

        def spoil(folder):
            with open(os.path.join(folder, "adapter_model.safetensors"), "r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"\0\0\xc0\x7f")

        told(lambda folder: edit(folder, r=5), "has the shape [4, 64], but by config.json it should be [5, 64]")
        told(lambda folder: edit(folder, target_modules=["q_proj", "v_proj"]), "v_proj.lora_A.weight is missing")
        told(lambda folder: edit(folder, target_modules=["v_proj"]), "is missing from the weights")
        told(lambda folder: edit(folder, layers_to_transform=[0]), "is not part of what its adapter_config.json describes")
        told(lambda folder: edit(folder, peft_type="VERA"), "only adapters of type LORA")
        told(cut, "adapter_model.safetensors")
        told(lambda folder: os.remove(os.path.join(folder, "adapter_model.safetensors")), "adapter_model.safetensors")
        told(lambda folder: os.remove(os.path.join(folder, "adapter_config.json")), "has no adapter_config.json")
        shutil.copytree(self.path("good"), self.path("bad"))
        spoil(self.path("bad"))
        for words in (["eval", "--data", self.rows], ["merge", "--out", self.path("none")]):
            done = program.run(words[0], "--model", self.base, "--adapter", self.path("bad"), *words[1:])
            self.assertEqual(done.code, INPUT, done.err)
            self.assertIn("nan", done.err)

    def change_json(self, path, change):
        with open(path) as file:
            tree = json.load(file)
        change(tree)
        with open(path, "w") as file:
            json.dump(tree, file)

    def change_tensors(self, path, change):
        data, start, header = program.read_safetensors(path)
        tensors = {name: (about["dtype"], about["shape"], data[start + about["data_offsets"][0]:start + about["data_offsets"][1]])
                   for name, about in header.items()}
        change(tensors)
        write_tensors(path, tensors)

    def resized_tables(self):
        """The embedding and the head of the base, with more rows."""
        tables = {}
        self.change_tensors(shutil.copy(os.path.join(self.base, "model.safetensors"), self.path("copy")), tables.update)
        grown = {}
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            dtype, (rows, cols), values = tables[name]
            self.assertEqual(dtype, "F32")
            more = struct.pack(f"<{3 * cols}f", *((i % 7 - 3) / 8 for i in range(3 * cols)))
            grown[name] = (dtype, [rows + 3, cols], values + more)
        return rows, grown

    def test_adapters_over_a_base_with_more_tokens(self):
        """PEFT then stores the embedding and the head: as base layers, or plainly if they have no adapters."""
        self.tune("narrow", "--lora", "r=4,targets=q_proj,o_proj", "--lr", "1e-2")
        vocab, tables = self.resized_tables()
        model, tokenizer = self.path("resized"), lambda folder: os.path.join(self.path(folder), "tokenizer.json")
        shutil.copytree(self.base, model)
        self.change_tensors(os.path.join(model, "model.safetensors"), lambda tensors: tensors.update(tables))
        self.change_json(os.path.join(model, "config.json"), lambda config: config.update(vocab_size=vocab + 3))
        add = lambda tree: tree["added_tokens"].append(
            {"id": vocab, "content": "SELECT", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": False})
        self.change_json(tokenizer("resized"), add)
        want = self.loss(model, "--adapter", self.path("narrow"))
        self.assertNotEqual(want, self.loss(self.path("narrow")))
        self.succeed("merge", model, self.path("narrow"), "--out", self.path("merged"))
        for kind, end in (("wide-layers", ".base_layer.weight"), ("wide-plain", ".weight")):
            wide, out = self.path(kind), self.path(kind + "-merged")
            shutil.copytree(self.path("narrow"), wide)
            self.change_json(tokenizer(kind), add)
            weights = os.path.join(wide, "adapter_model.safetensors")
            self.change_tensors(weights, lambda tensors: tensors.update(
                {"base_model.model." + name.replace(".weight", end): table for name, table in tables.items()}))
            self.assertEqual(self.loss(self.base, "--adapter", wide), want)
            self.succeed("merge", self.base, wide, "--out", out)
            for name in ("model.safetensors", "tokenizer.json"):
                self.assertEqual(program.read_bytes(os.path.join(out, name)),
                                 program.read_bytes(os.path.join(self.path("merged"), name)))
            self.assertEqual(self.loss(out), self.loss(self.path("merged")))
            self.succeed("verify", wide)
            self.fail_with(INPUT, "merge these adapters first", "train", "--model", self.base, "--adapter", wide, "--data",
                           self.rows, "--out", self.path("none"), "--dry-run")
            self.change_tensors(weights, lambda tensors: tensors.pop("base_model.model.lm_head" + end))
            self.fail_with(INPUT, f"another number of tokens than {vocab}, and does not hold both", "eval", self.base,
                           "--adapter", wide, "--data", self.rows)

    def test_training_over_adapters_with_another_base_layer(self):
        """The adapters that training saves hold no base layer, so theirs must be the base's."""
        self.tune("based", "--lora", "r=4,targets=q_proj", "--steps", "1")
        _, tables = self.resized_tables()
        dtype, (rows, cols), values = tables["lm_head.weight"]
        weights = os.path.join(self.path("based"), "adapter_model.safetensors")
        words = ["train", "--model", self.base, "--adapter", self.path("based"), "--data", self.rows, "--out", self.path("none"),
                 "--dry-run", "--no-forecast", "--seq-len", "128"]
        table = values[:4 * (rows - 3) * cols]
        for changed in (False, True):
            table = table if not changed else table[:-4] + struct.pack("<f", 1)
            self.change_tensors(weights, lambda tensors: tensors.update(
                {"base_model.model.lm_head.base_layer.weight": (dtype, [rows - 3, cols], table)}))
            if changed:
                self.fail_with(INPUT, "lm_head.base_layer.weight differs from lm_head.weight, but adapters are saved "
                               "without it; merge these adapters first", *words)
            else:
                self.succeed(*words)

    def test_refused_words(self):
        self.tune("adapters", "--lora", "r=4,targets=q_proj", "--steps", "1")
        train = ["train", "--data", self.rows, "--out", self.path("none"), "--dry-run", "--quiet", "--model"]
        for words, code, phrase in [
                ([*train, self.base, "--lora", "r=x"], USAGE, "'r=x': a rank is a whole number"),
                ([*train, self.base, "--lora", "targets=c_attn"], USAGE, "'c_attn' is the name of no module"),
                ([*train, self.base, "--lora", "dora,targets=embed_tokens"], INPUT, "an embedding cannot have DoRA"),
                ([*train, self.base, "--lora-r", "8"], USAGE, "its name here is --lora"),
                ([*train, self.base, "--adapter", self.path("adapters"), "--lora", "r=8"], USAGE, "contradict each other"),
                ([*train, self.path("adapters"), "--adapter", self.base], USAGE, "is a directory of adapters, so --adapter"),
                ([*train, self.base, "--adapter", self.base], INPUT, "has no adapter_config.json"),
                ([*train[:-1], "--model", "tiny-test", "--init", "random", "--lora"], USAGE, "no other run has"),
                ([*train, "tiny-test", "--init", "random", "--adapter", self.path("adapters")], USAGE, "--init random has none"),
                (["merge", self.base, "--out", self.path("none")], USAGE, "merge needs adapters"),
                (["merge", self.path("adapters")], USAGE, "merge needs --out"),
                (["merge", self.base, self.path("adapters"), "more", "--out", self.path("none")], USAGE, "unexpected argument 'more'"),
                (["merge", self.base, self.path("adapters"), "--out", self.base], INPUT, "is the base of the adapters"),
                (["merge", self.path("adapters"), "--out", self.path("adapters")], INPUT, "is the directory of the adapters"),
                (["train", "--model", self.base, "--data", self.rows, "--lora", "--out", self.base, "--steps", "1", "--no-forecast"],
                 INPUT, "is the base of the adapters")]:
            told = program.run(*words)
            self.assertEqual(told.code, code, (words, told.err))
            self.assertIn(phrase, told.err)
        shutil.move(self.base, self.path("moved"))
        told = program.run("eval", self.path("adapters"), "--data", self.rows)
        shutil.move(self.path("moved"), self.base)
        self.assertEqual(told.code, INPUT, told.err)
        self.assertIn("if it is elsewhere, give it with --model and this directory with --adapter", told.err)


if __name__ == "__main__":
    program.main()
