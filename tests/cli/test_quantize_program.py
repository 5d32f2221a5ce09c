"""The built program quantizes models: every format, read back by a decoder of this file's own, and what is refused."""

import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import time
import zlib

import expert_models
import program
from program import PROGRAM, read_bytes, sql_rows, write_rows
from test_family_program import ROWS, write_model
from test_pairs_program import CASES, Golden

USAGE, INPUT, INTERRUPT = 2, 3, 8
FORMATS = {"gptq:4": ["--group-size", "32"], "gptq:3": ["--group-size", "32", "--symmetric", "no"],
           "gptq:2": ["--group-size", "none", "--act-order", "--symmetric", "no"],
           "gptq:8": ["--group-size", "32", "--act-order"], "nf4": [], "nf4-double": [], "int8": []}
SHORT = ["--seq-len", "128", "--calibration-rows", "16", "--eval-fraction", "20%"]
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I8": 1, "U8": 1}


# ---- a decoder of safetensors, GPTQ and bitsandbytes, by the words of the formats ----

def single(value):
    """Rounded to fp32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def read_tensors(path):
    """{name: (dtype, shape, numbers, or bytes of U8)}"""
    data, start, header = program.read_safetensors(path)
    tensors = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        assert begin % SIZES[about["dtype"]] == 0, f"{name} is not aligned"
        raw = data[start + begin:start + end]
        kind = {"F32": "f", "F16": "e", "I32": "I", "I8": "b", "U8": "B"}[about["dtype"]]
        tensors[name] = (about["dtype"], about["shape"], struct.unpack(f"<{len(raw) // SIZES[about['dtype']]}{kind}", raw))
    return tensors


def bits_of(words, bits, n):
    stream = sum(word << (32 * i) for i, word in enumerate(words))
    return [stream >> (bits * i) & (1 << bits) - 1 for i in range(n)]


def decode_gptq(parts, config):
    bits, (_, (words, rows), packed) = config["bits"], parts["qweight"]
    groups, scales = parts["scales"][1][0], parts["scales"][2]
    index, line = parts["g_idx"][2], parts["qzeros"][1][1]
    cols = len(index)
    less = 1 if config["checkpoint_format"] == "gptq" else 0
    zeros = [[(zero + less) % (1 << bits) for zero in bits_of(parts["qzeros"][2][g * line:(g + 1) * line], bits, rows)]
             for g in range(groups)]
    out = []
    for row in range(rows):
        codes = bits_of(packed[row::rows], bits, cols)
        out += [scales[index[c] * rows + row] * (codes[c] - zeros[index[c]][row]) for c in range(cols)]
    return [rows, cols], out


def decode_nf4(parts):
    state = json.loads(bytes(parts["weight.quant_state.bitsandbytes__nf4"][2]))
    scales, table = parts["weight.absmax"][2], parts["weight.quant_map"][2]
    if "nested_offset" in state:
        tables, groups = parts["weight.nested_quant_map"][2], parts["weight.nested_absmax"][2]
        offset = single(state["nested_offset"])
        scales = [single(single(tables[code] * groups[i // 256]) + offset) for i, code in enumerate(scales)]
    codes = [half for byte in parts["weight"][2] for half in (byte >> 4, byte & 15)]
    return state["shape"], [single(table[code] * scales[i // 64]) for i, code in enumerate(codes)]


def decode_int8(parts):
    (rows, cols), codes, scales, step = parts["weight"][1], parts["weight"][2], parts["SCB"][2], single(1 / 127)
    return [rows, cols], [single(single(code * scales[i // cols]) * step) for i, code in enumerate(codes)]


def decode(folder, out):
    """Writes the model as plain fp32 into the folder `out`."""
    shutil.copytree(folder, out)
    with open(os.path.join(out, "config.json")) as file:
        config = json.load(file)
    how = config.pop("quantization_config")
    modules, plain = {}, {}
    for name, tensor in read_tensors(os.path.join(folder, "model.safetensors")).items():
        module = re.match(r"(.*(?:_proj|[.]w[123]|Attention[.][qkvo]|[.]wi(?:_[01])?))[.](.*)", name)
        if module:
            modules.setdefault(module[1], {})[module[2]] = tensor
        else:
            plain[name] = tensor[1], tensor[2]
    for module, parts in modules.items():
        plain[module + ".weight"] = (decode_gptq(parts, how) if how["quant_method"] == "gptq"
                                     else decode_int8(parts) if "SCB" in parts else decode_nf4(parts))
    header, data = {}, b""
    for name, (shape, values) in plain.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(os.path.join(out, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(out, "config.json"), "w") as file:
        json.dump(config, file)
    return how


class Quantize(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls(), "base", "--steps", "30", "--dtype", "fp32")

    def quantize(self, out, to, *words):
        return self.succeed("quantize", self.path("base"), "--to", to, "--data", self.rows, "--out", self.path(out),
                            *SHORT, *words)

    def loss(self, model):
        return self.succeed("eval", self.path(model), "--data", self.rows, "--seq-len", "128", "--dtype", "fp32", "--json").json()["loss"]

    def test_every_format_has_the_values_that_its_tensors_say(self):
        base = self.loss("base")
        for to, words in FORMATS.items():
            name = to.replace(":", "")
            said = self.quantize(name, to, *words, "--dtype", "fp32", "--json").json()
            config = decode(self.path(name), self.path(name + "-plain"))
            self.assertEqual(self.loss(name), self.loss(name + "-plain"), to)
            self.assertEqual([len(layer["errors"]) for layer in said["layers"]], [7, 7])
            errors = [error for layer in said["layers"] for error in layer["errors"].values()]
            most = {"gptq:8": 0.01, "int8": 0.02, "gptq:2": 1}.get(to, 0.25)
            self.assertTrue(all(0 < error < most for error in errors), f"{to}: {errors}")
            self.assertLess(abs(self.loss(name) - base), 1 if to == "gptq:2" else 0.1, to)
            self.assertAlmostEqual(sum(stage["seconds"] for stage in said["stages"].values()), said["seconds"], delta=1e-3)
            if to.startswith("gptq"):
                with open(self.path(name + "/quantize_config.json")) as file:
                    self.assertEqual(json.load(file), config)
                self.assertEqual(config["checkpoint_format"], "gptq_v2" if "no" in words else "gptq")
            else:
                self.assertFalse(os.path.exists(self.path(name + "/quantize_config.json")))

    def test_bits_do_not_depend_on_threads_and_memory(self):
        one = ["--group-size", "32", "--act-order", "--threads", "1"]
        self.quantize("one", "gptq:4", *one)
        self.quantize("three", "gptq:4", *one[:-1], "3", "--max-shard-size", "1M")
        self.assertEqual(read_bytes(self.path("one/model.safetensors")), read_bytes(self.path("three/model.safetensors")))

    def test_perplexities_are_those_of_eval(self):
        write_rows(self.path("held.jsonl"), sql_rows(20))
        held = ["--eval-data", self.path("held.jsonl"), "--dtype", "fp32", "--json"]
        said = self.succeed("quantize", self.path("base"), "--to", "gptq:4", "--group-size", "32", "--data", self.rows,
                            "--out", self.path("p"), "--seq-len", "128", "--calibration-rows", "64", *held).json()
        for model, key in (("base", "perplexity_before"), ("p", "perplexity_after")):
            result = self.succeed("eval", self.path(model), "--data", self.path("held.jsonl"), "--seq-len", "128",
                                  "--dtype", "fp32", "--json").json()
            self.assertEqual(result["trained_tokens"], said["trained_tokens"])
            self.assertAlmostEqual(result["perplexity"], said[key], delta=1e-5 * said[key])  # other sums of the same losses

    def test_a_quantized_model_is_a_base(self):
        self.quantize("q", "gptq:4", "--group-size", "32")
        self.succeed("verify", self.path("q"))
        self.succeed("--model", self.path("q"), "--data", self.rows, "--steps", "2", "--seq-len", "128", "--tokens-per-step", "512",
                     "--no-forecast", "--out", self.path("trained"))
        with open(self.path("trained/config.json")) as file:
            self.assertNotIn("quantization_config", json.load(file))
        self.loss("trained")

    def test_bitsandbytes_needs_no_rows(self):
        said = self.succeed("quantize", self.path("base"), "--to", "nf4", "--out", self.path("bare"), "--json").json()
        self.assertNotIn("perplexity_before", said)
        self.assertEqual(len(said["layers"]), 2)

    def test_a_stop_leaves_the_output_as_it_was(self):
        self.quantize("kept", "int8")
        before = {name: read_bytes(self.path("kept/" + name)) for name in os.listdir(self.path("kept"))}
        rows = write_rows(self.path("many.jsonl"), sql_rows(4000))
        words = [PROGRAM, "quantize", self.path("base"), "--to", "gptq:4", "--group-size", "32", "--data", rows, "--out",
                 self.path("kept"), "--seq-len", "128", "--calibration-rows", "2000"]
        running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in running.stderr:
            if line.startswith(b"memory"):
                break
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        running.communicate()
        self.assertEqual(running.returncode, INTERRUPT)
        self.assertEqual(before, {name: read_bytes(self.path("kept/" + name)) for name in os.listdir(self.path("kept"))})
        self.assertFalse(os.path.exists(self.path("kept.partial")))

    def test_wrong_options_are_refused(self):
        base, out = ["quantize", self.path("base")], ["--out", self.path("none")]
        gptq = [*base, "--to", "gptq:4", "--data", self.rows, *out]
        for code, phrase, words in (
                (USAGE, "quantize needs --to", [*base, *out]), (USAGE, "quantize needs --out", [*base, "--to", "nf4"]),
                (USAGE, "quantize needs --data", [*base, "--to", "gptq:4", *out]),
                (USAGE, "quantize needs --model", ["quantize", "--to", "nf4", *out]),
                (USAGE, "--to", [*base, "--to", "gptq:5", *out]),
                (USAGE, "--act-order has an effect with --to gptq:BITS only", [*base, "--to", "nf4", "--act-order", *out]),
                (USAGE, "--group-size has an effect with --to gptq:BITS only", [*base, "--to", "mxfp4", "--group-size", "64", *out]),
                (INPUT, "--to mxfp4 is the format of gpt_oss, and this is a llama; see --to gptq:4", [*base, "--to", "mxfp4", *out]),
                (USAGE, "--seq-len has no effect without --data", [*base, "--to", "nf4", "--seq-len", "64", *out]),
                (USAGE, "--group-size 100", [*gptq, "--group-size", "100"]), (USAGE, "--damping", [*gptq, "--damping", "2"]),
                (INPUT, "q_proj.weight has 64 columns, which is not a multiple of the group size 128", gptq),
                (INPUT, "none-such", ["quantize", self.path("none-such"), "--to", "nf4", *out])):
            self.fail_with(code, phrase, *words, "--quiet")
        self.assertFalse(os.path.exists(self.path("none")))


class Experts(program.ProgramTest):
    """Mixtures of experts, against GPTQ in fp64 over transformers' forward (scripts/golden/gptq_experts.py)."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        letters = expert_models.TOKENS
        write_rows(cls.path("rows.jsonl"), [{"text": "".join(letters[i] for i in row)} for row in expert_models.rows()])
        cls.golden = program.read_golden("gptq_experts.bin")
        for name in expert_models.MODELS:
            expert_models.write_model(cls.path(name), name)

    def quantize(self, name, out, *words):
        return self.succeed("quantize", self.path(name), "--to", *expert_models.METHODS[name], "--data", self.rows, "--no-eos",
                            "--seq-len", "32", "--calibration-rows", "64", "--eval-fraction", "0", "--eval-data", self.rows,
                            "--out", self.path(out), "--json", *words)

    def numbers(self, name, form):
        shape, data = self.golden[name]
        return struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data)

    def test_errors_and_losses_are_those_of_fp64(self):
        """mixtral takes two passes over its experts. The sweep is in fp32 and some weights lie between two codes
        (tests/quantize/test_gptq.c). Such a weight changes an error by less than 1 %. But it changes the loss by a third of what
        quantizing does, and which code it gets depends on the CPU. So the loss afterwards is compared with the result's own."""
        for name in expert_models.MODELS:
            said = self.quantize(name, name + "-q", "--dtype", "fp32").json()
            self.assertEqual([layer.get("rounded_experts", 0) for layer in said["layers"]], list(self.numbers(name + ".rounded", "q")))
            for i, layer in enumerate(said["layers"]):
                for matrix, error in layer["errors"].items():
                    want = self.numbers(f"{name}.error.{i}.{matrix}", "d")[0]
                    self.assertAlmostEqual(error, want, delta=0.01 * want, msg=f"{name}: {matrix} of layer {i}")
                self.assertEqual(len(layer["errors"]), 7)
            before = self.numbers(name + ".loss", "d")[0]
            self.assertAlmostEqual(math.log(said["perplexity_before"]), before, delta=2e-6)
            self.check_codes(name)
            decode(self.path(name + "-q"), self.path(name + "-plain"))
            losses = [self.succeed("eval", self.path(name + end), "--data", self.rows, "--no-eos", "--seq-len", "32", "--dtype",
                                   "fp32", "--json").json()["loss"] for end in ("-q", "-plain")]
            self.assertEqual(*losses)
            self.assertAlmostEqual(math.log(said["perplexity_after"]), losses[0], delta=2e-6)
            self.assertNotAlmostEqual(before, losses[0], delta=1e-3)

    def check_codes(self, name):
        """At least 97 % of the codes are those of fp64; of experts that are rounded to nearest, all."""
        tensors = read_tensors(self.path(name + "-q/model.safetensors"))
        bits, prefix = int(expert_models.METHODS[name][0][-1]), name + ".codes."
        names = [key[len(prefix):] for key in self.golden if key.startswith(prefix)]
        rounded = 0
        for matrix in names:
            (rows, cols), want = self.golden[prefix + matrix]
            _, (_, file_rows), words = tensors[f"model.layers.{matrix}.qweight"]
            self.assertEqual(file_rows, rows)
            codes = [bits_of(words[row::rows], bits, cols) for row in range(rows)]
            equal = sum(code == want[row * cols + i] for row in range(rows) for i, code in enumerate(codes[row]))
            self.assertGreaterEqual(equal, 0.97 * rows * cols, f"{name}: {matrix}")
            rounded += equal == rows * cols
        self.assertGreaterEqual(rounded, 3 * sum(self.numbers(name + ".rounded", "q")))
        self.assertGreaterEqual(len(names), 3)

    def test_what_is_plain_and_what_is_said(self):
        said = self.quantize("qwen3_moe", "said")
        with open(self.path("said/quantize_config.json")) as file:
            self.assertEqual(json.load(file)["meta"]["fallback"], {"strategy": "rtn", "threshold": "0.5%", "smooth": None})
        self.assertEqual((said.json()["experts"], said.json()["rounded_experts"]), (40, 2))
        header = program.read_safetensors(self.path("said/model.safetensors"))[2]
        self.assertEqual([name for name in header if ".mlp.gate." in name], ["model.layers.0.mlp.gate.weight"])
        self.assertIn("model.layers.0.mlp.experts.39.down_proj.qweight", header)
        self.assertFalse([name for name in header if ".experts." in name and name.endswith(".weight")])
        words = ["--to", "gptq:4", "--group-size", "32", "--data", self.rows, "--no-eos", "--seq-len", "32", "--out"]
        told = self.succeed("quantize", self.path("qwen3_moe"), *words, self.path("told"))
        self.assertIn("of 40 experts rounded to nearest: each gets less than 0.5 % of the calibration rows", told.out)

    def test_bits_do_not_depend_on_threads(self):
        for name in expert_models.MODELS:
            self.quantize(name, name + "-one", "--threads", "1")
            self.quantize(name, name + "-three", "--threads", "3")
            self.assertEqual(read_bytes(self.path(name + "-one/model.safetensors")),
                             read_bytes(self.path(name + "-three/model.safetensors")))


class EncoderDecoders(program.ProgramTest):
    """The golden T5s, against what transformers writes of them (scripts/golden/t5_quantized.py)."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.golden = {case: Golden(case) for case in CASES}
        cls.written = program.read_golden("t5_quantized.bin")
        for case, golden in cls.golden.items():
            write_model(cls.path(case), golden.config, golden.weights)
            write_rows(cls.path(case + ".jsonl"), golden.texts())

    def quantize(self, case, to):
        data = ["--data", self.path(case + ".jsonl"), "--eval-data", self.path(case + ".jsonl")]
        return self.succeed("quantize", self.path(case), "--to", to, *data, *ROWS, "--out", self.path(f"{case}-{to}"), "--json").json()

    def loss(self, case, end, *words):
        return self.succeed("eval", self.path(case + end), "--data", self.path(case + ".jsonl"), *ROWS, *words, "--json").json()["loss"]

    def tensors(self, case):
        return json.loads(self.written[case + ".tensors"][1])

    def test_nf4_is_what_transformers_writes(self):
        for case in CASES:
            self.quantize(case, "nf4")
            data, start, header = program.read_safetensors(self.path(case + "-nf4/model.safetensors"))
            crcs = {name: None if ".quant_state." in name else zlib.crc32(data[start + a["data_offsets"][0]:start + a["data_offsets"][1]])
                    for name, a in header.items()}
            self.assertEqual(crcs, self.tensors(case), case)
            # As for plain weights in test_pairs_program.py: sums in other orders.
            want = struct.unpack("<d", self.written[case + ".loss"][1])[0]
            self.assertAlmostEqual(self.loss(case, "-nf4"), want, delta=2e-6)
            # The base type of a run quantises the same matrices: not wo.
            self.assertAlmostEqual(self.loss(case, "", "--base-type", "nf4"), want, delta=2e-6)

    def test_every_format_has_the_values_that_its_tensors_say(self):
        for case, to in (("t5", "nf4-double"), ("t5_gated", "nf4-double"), ("t5", "int8"), ("t5_gated", "int8")):
            said, name = self.quantize(case, to), f"-{to}"
            self.assertEqual([list(layer["errors"]) for layer in said["layers"]],
                             [["q", "k", "v", "o"] + (["wi"] if case == "t5" else ["wi_0", "wi_1"])] * 5)
            header = program.read_safetensors(self.path(f"{case}{name}/model.safetensors"))[2]
            plain = {tensor for tensor, about in header.items() if about["dtype"] == "F32" and not re.search("weight[.]|SCB", tensor)}
            self.assertEqual(plain, {tensor for tensor in self.tensors(case) if tensor in self.golden[case].weights
                                     and tensor.removesuffix("weight") + "weight.absmax" not in self.tensors(case)})
            decode(self.path(case + name), self.path(case + "-plain" + name))
            self.assertEqual(self.loss(case, name), self.loss(case, "-plain" + name), to)
            # The losses of rows alone and in a batch: sums in other orders.
            self.assertAlmostEqual(math.log(said["perplexity_before"]), self.golden[case].loss, delta=2e-6)
            self.assertAlmostEqual(math.log(said["perplexity_after"]), self.loss(case, name), delta=2e-6)
            self.succeed("verify", self.path(case + name))

    def test_rows_are_not_needed(self):
        said = self.succeed("quantize", self.path("t5"), "--to", "nf4", "--out", self.path("bare"), "--json").json()
        self.assertNotIn("perplexity_before", said)
        self.quantize("t5", "nf4")
        self.assertEqual(read_bytes(self.path("bare/model.safetensors")), read_bytes(self.path("t5-nf4/model.safetensors")))

    def test_other_formats_are_refused(self):
        for words in (["gptq:4", "--data", self.path("t5.jsonl"), *ROWS], ["mxfp4"]):
            self.fail_with(INPUT, "a t5 can be quantized with --to nf4, nf4-double or int8", "quantize", self.path("t5"), "--out",
                           self.path("no"), "--quiet", "--to", *words)
        self.assertFalse(os.path.exists(self.path("no")))


if __name__ == "__main__":
    program.main()
