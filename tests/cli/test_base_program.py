"""Runs over a base of --base-type: bits in every home and on several ranks, what is saved, checkpoints, resuming, eval
and generate, refusals, reports."""

import bisect
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import time

import program
from program import SMALL, sql_rows, write_rows

USAGE, INPUT = 2, 3
# The 16 values of NF4 (kernels/weight_format.h).
NF4 = [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1]


def fp32(x):
    """Rounds once: products, sums and quotients of fp32 numbers in double have no second rounding."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


MIDDLES = [fp32(fp32(a + b) / 2) for a, b in zip(NF4, NF4[1:])]


def nf4(values):
    decoded = []
    for first in range(0, len(values), 64):
        block = values[first:first + 64]
        a = max(map(abs, block))
        inverse = fp32(1 / max(a, fp32(1e-38)))
        decoded += [fp32(NF4[bisect.bisect_left(MIDDLES, fp32(x * inverse))] * a) for x in block]
    return decoded


def mxfp4(values):
    decoded = []
    for first in range(0, len(values), 32):
        block = values[first:first + 32]
        a = max(map(abs, block))
        scale = 2.0 ** (math.frexp(a)[1] - 1 - 2) if a else 1
        for x in block:
            size = abs(x) / scale
            step = 0.5 if size < 2 else 1 if size < 4 else 2
            decoded.append(math.copysign(min(round(size / step) * step, 6) * scale, x))  # round: half to even
    return decoded


def int8(values, cols):
    decoded, step = [], fp32(1 / 127)
    for first in range(0, len(values), cols):
        row = values[first:first + cols]
        a = max(map(abs, row))
        k = fp32(fp32(1 / a) * 127)
        decoded += [fp32(fp32(round(fp32(x * k)) * a) * step) for x in row]
    return decoded


def read_tensors(folder, name="model.safetensors"):
    data, start, header = program.read_safetensors(os.path.join(folder, name))
    return {name: data[start + about["data_offsets"][0]:start + about["data_offsets"][1]] for name, about in header.items()}


def is_encoded(name):
    return ".layers." in name and "norm" not in name


def decode_model(folder, decode):
    """Replaces the matrices of the layers of an fp32 model by what decoding them gives."""
    path = os.path.join(folder, "model.safetensors")
    data, start, header = program.read_safetensors(path)
    data = bytearray(data)
    for name, about in header.items():
        if is_encoded(name):
            assert about["dtype"] == "F32", name
            first, end = (start + at for at in about["data_offsets"])
            values = struct.unpack(f"<{(end - first) // 4}f", data[first:end])
            data[first:end] = struct.pack(f"<{len(values)}f", *decode(values, about["shape"][1]))
    with open(path, "wb") as file:
        file.write(data)


class Base(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_rows(cls.path("rows.jsonl"), sql_rows(40))
        cls.rows = cls.path("rows.jsonl")
        done = program.run("train", *SMALL, "--data", cls.rows, "--out", cls.path("base"), "--steps", "2", "--no-forecast")
        assert done.code == 0, done.err

    def words(self, out, base="base", steps="4"):
        return ["train", "--model", self.path(base), "--data", self.rows, "--seq-len", "128", "--threads", "1",
                "--tokens-per-step", "512", "--steps", steps, "--no-forecast", "--out", self.path(out)]

    def tune(self, out, *words, base="base", steps="4"):
        return self.succeed(*self.words(out, base, steps), *words)

    def losses(self, out):
        return [(event["step"], event["loss"], event["grad_norm"]) for event in self.log(out) if event["event"] == "step"]

    def result(self, out):
        return self.losses(out), read_tensors(self.path(out))

    def loss_of(self, model, *words):
        return self.succeed("eval", "--model", self.path(model), "--data", self.rows, "--seq-len", "128", "--threads", "1",
                            "--json", *words).json()["loss"]

    def text_of(self, model, *words):
        """A text that depends on every logit."""
        told = self.succeed("generate", "--model", self.path(model), "-p", "SELECT", "--max-new-tokens", "40", "--temperature",
                            "1", "--seed", "5", "--threads", "1", *words)
        self.assertGreater(len(told.out), 10)
        return told.out

    # ---- bits ----

    def test_the_bits_do_not_depend_on_homes_of_the_base(self):
        os.makedirs(self.path("disk"), exist_ok=True)
        nvme = ["--nvme", self.path("disk") + ":64M"]
        plans = [["--home", "weights=host,state=host", "--slots", "1"], ["--home", "weights=host,state=host", "--slots", "3"],
                 ["--home", "weights=nvme,state=nvme", *nvme], ["--home", "nvme", "--rounds", "2", "--recompute", "all", *nvme]]
        for kind, dtype in ("nf4", "fp32"), ("nf4-double", "bf16"), ("int8", "bf16"), ("mxfp4", "bf16"), ("bf16", "fp32"):
            words = ["--train", "norms", "--base-type", kind, "--dtype", dtype]
            self.tune(f"homes-{kind}", *words)
            for i, plan in enumerate(plans):
                self.tune(f"homes-{kind}-{i}", *words, *plan)
                self.assertEqual(self.result(f"homes-{kind}-{i}"), self.result(f"homes-{kind}"), (kind, plan))

    def test_two_ranks_have_the_bits_of_one(self):
        words = ["--train", "norms", "--base-type", "nf4-double", "--device", "cpu", "--micro-batch", "1",
                 "--deterministic", "world"]
        self.tune("rank-1", *words)
        for mode in "state", "full":
            self.tune(f"rank-2-{mode}", *words, "--gpus", "2", "--shard", mode)
            self.assertEqual(self.result(f"rank-2-{mode}"), self.result("rank-1"), mode)

    def test_a_base_is_its_decoded_weights(self):
        """The same run and evaluation over a plain model that an independent decoder made."""
        for kind, decode in ("nf4", lambda values, cols: nf4(values)), ("mxfp4", lambda values, cols: mxfp4(values)), ("int8", int8):
            shutil.copytree(self.path("base"), self.path(f"decoded-{kind}"))
            decode_model(self.path(f"decoded-{kind}"), decode)
            self.assertEqual(self.loss_of("base", "--base-type", kind), self.loss_of(f"decoded-{kind}"), kind)
            self.assertNotEqual(self.loss_of("base"), self.loss_of(f"decoded-{kind}"), kind)
            self.assertEqual(self.text_of("base", "--base-type", kind), self.text_of(f"decoded-{kind}"), kind)
            self.tune(f"encoded-{kind}-run", "--train", "norms", "--base-type", kind)
            self.tune(f"decoded-{kind}-run", "--train", "norms", base=f"decoded-{kind}")
            self.assertEqual(self.losses(f"encoded-{kind}-run"), self.losses(f"decoded-{kind}-run"), kind)

    # ---- results ----

    def test_results_keep_the_exact_base(self):
        self.tune("kept", "--train", "norms", "--base-type", "nf4", "--lr", "1e-2", "--eval-fraction", "0.1")
        before, after = read_tensors(self.path("base")), read_tensors(self.path("kept"))
        self.assertEqual({name for name in before if before[name] != after[name]}, {name for name in before if "norm" in name})
        with open(self.path("kept/README.md")) as file:
            self.assertIn("matrices of the layers were nf4 during training", file.read())
        # What was trained is the function over the decoded base: evaluating it so gives the run's last loss.
        # The same micro-batch, because a product of other rows may round otherwise.
        micro = ["--micro-batch", "1"]
        words = ["--train", "norms", "--lr", "1e-2", "--base-type", "int8", "--eval-data", self.rows]
        self.tune("kept-eval", *words, *micro)
        last = [event["loss"] for event in self.log("kept-eval") if event["event"] == "eval"][-1]
        self.assertEqual(self.loss_of("kept-eval", "--base-type", "int8", *micro), last)
        self.assertNotEqual(self.loss_of("kept-eval"), last)

    def test_eval_in_each_type(self):
        exact = self.loss_of("base")
        self.assertEqual(self.loss_of("base", "--base-type", "auto"), exact)
        for kind, most in ("bf16", 1e-3), ("fp16", 1e-3), ("int8", 1e-2), ("nf4", 1e-1), ("nf4-double", 1e-1), ("mxfp4", 1e-1):
            loss = self.loss_of("base", "--base-type", kind, "--micro-batch", "1")
            self.assertNotEqual(loss, exact, kind)
            self.assertLess(abs(loss - exact), most, kind)
            os.makedirs(self.path("disk"), exist_ok=True)
            small = ["--micro-batch", "1", "--gpu-mem", "3600K", "--host-mem", "8M", "--nvme", self.path("disk") + ":64M"]
            self.assertEqual(self.loss_of("base", "--base-type", kind, *small), loss)

    def last_eval(self, out):
        return [event["loss"] for event in self.log(out) if event["event"] == "eval"][-1]

    def test_eval_encodes_what_the_run_froze(self):
        """A result's trained matrices stay plain, as they were in the run."""
        words = ["--train", "*.q_proj.*,*.down_proj.*,norms", "--base-type", "nf4", "--lr", "1e-2", "--eval-data", self.rows]
        self.tune("some", *words)
        last = self.last_eval("some")
        self.assertAlmostEqual(self.loss_of("some", "--base-type", "nf4"), last, delta=1e-6)
        alpaca = self.loss_of("some", "--base-type", "nf4", "--template", "alpaca")
        os.rename(self.path("some/run.json"), self.path("some/kept.json"))
        self.assertGreater(abs(self.loss_of("some", "--base-type", "nf4") - last), 1e-4)  # all matrices
        self.assertGreater(abs(self.loss_of("some", "--base-type", "nf4", "--template", "alpaca") - alpaca), 1e-4)
        with open(self.path("some/kept.json")) as file:
            run = json.load(file)
        for train in "nothing", "layers:2", "*", 7:
            with open(self.path("some/run.json"), "w") as file:
                json.dump({**run, "train": train, **({"freeze": "*"} if train == "*" else {})}, file)
            words = ["eval", "--model", self.path("some"), "--data", self.rows, "--base-type", "nf4", "--quiet"]
            if train == 7:
                self.succeed(*words)
            else:
                self.fail_with(INPUT, "some/run.json does not belong to this model: ", *words)
            self.succeed(*words[:-3], "--quiet")

    # ---- adapters ----

    def adapters_of(self, out):
        return read_tensors(self.path(out), "adapter_model.safetensors")

    def test_adapters_over_a_base(self):
        before = program.read_bytes(self.path("base/model.safetensors"))
        words = ["--lora", "r=4,dropout=0.1", "--base-type", "nf4-double", "--lr", "1e-2", "--eval-data", self.rows,
                 "--save-every", "2", "--keep", "9"]
        text = self.tune("qlora", *words).err
        self.assertIn("base    nf4-double: frozen layers take ", text)
        os.makedirs(self.path("disk"), exist_ok=True)
        for i, plan in enumerate([["--home", "weights=host,state=host", "--slots", "1"],
                                  ["--home", "nvme", "--nvme", self.path("disk") + ":64M"]]):
            self.tune(f"qlora-{i}", *words, *plan)
            self.assertEqual(self.adapters_of(f"qlora-{i}"), self.adapters_of("qlora"), plan)
            self.assertEqual(self.losses(f"qlora-{i}"), self.losses("qlora"), plan)
        self.assertEqual(program.read_bytes(self.path("base/model.safetensors")), before)
        self.assertAlmostEqual(self.loss_of("qlora", "--base-type", "nf4-double"), self.last_eval("qlora"), delta=1e-6)
        self.assertGreater(abs(self.loss_of("qlora") - self.last_eval("qlora")), 1e-5)
        self.assertIn("A base that is loaded in nf4-double computes what was trained",
                      program.read_bytes(self.path("qlora/README.md")).decode())
        # From a checkpoint, and from the adapters.
        shutil.rmtree(self.path("qlora-0/checkpoints/step-00000004"))
        for name in ("checkpoints/complete", "finished.json", "adapter_model.safetensors"):
            os.remove(self.path(f"qlora-0/{name}"))
        other = program.run(*self.words("qlora-0"), "--base-type", "nf4", "--quiet")
        self.assertEqual(other.code, USAGE, other.err)
        self.assertIn("--base-type nf4-double, you gave nf4", other.err)
        self.assertIn("step 2 of 4", self.tune("qlora-0").err)
        self.assertEqual(self.adapters_of("qlora-0"), self.adapters_of("qlora"))
        self.tune("further", "--base-type", "int8", "--eval-data", self.rows, "--adapter", self.path("qlora"))
        first = next(event["loss"] for event in self.log("further") if event["event"] == "eval")
        self.assertAlmostEqual(self.loss_of("qlora", "--base-type", "int8"), first, delta=1e-6)
        # A merged model has the exact weights, and the adapters.
        self.succeed("merge", self.path("qlora"), "--out", self.path("merged"))
        self.assertAlmostEqual(self.loss_of("merged"), self.loss_of("qlora"), delta=1e-5)
        self.assertIn("merged into their exact values", program.read_bytes(self.path("merged/README.md")).decode())

    def test_adapters_and_modules_over_a_base(self):
        """Matrices that are trained beside the adapters are plain in the run, and in eval."""
        words = ["--lora", "r=2,targets=o_proj", "--train", "*.down_proj.*,norms", "--base-type", "nf4", "--lr", "1e-2",
                 "--eval-data", self.rows]
        self.tune("modules", *words)
        loss = self.loss_of("modules", "--base-type", "nf4")
        self.assertAlmostEqual(loss, self.last_eval("modules"), delta=1e-6)
        os.remove(self.path("modules/run.json"))
        self.assertEqual(self.loss_of("modules", "--base-type", "nf4"), loss)

    def test_random_weights_are_encoded_too(self):
        words = ["--train", "norms", "--base-type", "nf4", "--steps", "4", "--save-every", "2", "--keep", "9", "--seed", "7"]
        self.train("random", *words)
        self.train("random-host", *words, "--home", "weights=host,state=host")
        self.assertEqual(self.result("random-host"), self.result("random"))
        self.succeed("export", self.path("random/checkpoints/step-00000004"), "--out", self.path("remade"))
        self.assertEqual(read_tensors(self.path("remade")), read_tensors(self.path("random")))
        self.rewind("random-host")
        self.train("random-host", *words, "--resume", "auto")
        self.assertEqual(read_tensors(self.path("random-host")), read_tensors(self.path("random")))

    # ---- checkpoints ----

    def rewind(self, out):
        """Leaves the run as if it had been stopped at step 2."""
        shutil.rmtree(self.path(f"{out}/checkpoints/step-00000004"))
        for name in ("checkpoints/complete", "finished.json", "model.safetensors"):
            os.remove(self.path(f"{out}/{name}"))

    def test_resuming(self):
        words = ["--train", "norms", "--base-type", "nf4", "--save-every", "2", "--keep", "9"]
        self.tune("saved", *words)
        want = read_tensors(self.path("saved"))
        slabs = {slab["name"]: slab for slab in
                 self.succeed("verify", self.path("saved/checkpoints/step-00000004"), "--json").json()["checkpoint"]["slabs"]}
        self.assertEqual((slabs["layer.0.frozen"]["state"], slabs["layer.0.frozen"]["bytes"]), ("frozen", 0))
        self.succeed("export", self.path("saved/checkpoints/step-00000004"), "--out", self.path("exported"))
        self.assertEqual(read_tensors(self.path("exported")), want)
        self.rewind("saved")
        other = program.run(*self.words("saved"), "--base-type", "int8", "--quiet")
        self.assertEqual(other.code, USAGE, other.err)
        self.assertIn("--base-type nf4, you gave int8", other.err)
        self.assertIn("step 2 of 4", self.tune("saved", "--home", "weights=host").err)
        self.assertEqual(read_tensors(self.path("saved")), want)

    def test_a_killed_run_goes_on(self):
        words = ["--train", "norms", "--base-type", "int8", "--save-every", "10", "--keep", "99"]
        self.tune("whole", *words, steps="60")
        process = subprocess.Popen([program.PROGRAM, *self.words("killed", steps="60"), *words], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until and not os.path.exists(
                self.path("killed/checkpoints/step-00000010")):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertTrue(os.path.exists(self.path("killed/checkpoints/step-00000010")))
        self.tune("killed", *words, steps="60")
        self.assertEqual(read_tensors(self.path("killed")), read_tensors(self.path("whole")))

    def test_another_base_is_refused(self):
        words = ["--train", "norms", "--base-type", "nf4", "--save-every", "2", "--keep", "9"]
        self.tune("first", *words)
        self.rewind("first")
        shutil.copytree(self.path("base"), self.path("other"))
        decode_model(self.path("other"), lambda values, cols: [*values[:-1], values[-1] + 1])
        told = program.run(*self.words("first", base="other"), "--quiet")
        self.assertEqual(told.code, INPUT, told.err)
        self.assertIn("was made from other weights than --model", told.err)

    # ---- refusals and reports ----

    def test_refusals_of_base_types(self):
        train = ["train", "--model", self.path("base"), "--data", self.rows, "--out", self.path("none"), "--dry-run", "--quiet"]
        evaluate = ["eval", "--model", self.path("base"), "--data", self.rows]
        plan = ["plan", "--model", "llama-7b", "--gpu", "rtx4090", "--quiet"]
        for words, phrase in [
                ((*train, "--base-type", "nf4"), "nothing is frozen here; add --lora, --train WHAT or --freeze WHAT"),
                ((*plan, "--base-type", "nf4"), "nothing is frozen here"),
                ((*train, "--base-type", "nf4", "--freeze", "embeddings,norms"), "--train and --freeze leave none frozen"),
                ((*train, "--base-type", "bf16", "--dtype", "bf16"), "nothing is frozen here"),
                ((*plan, "--base-type", "fp16", "--train", "norms"), "weights are computed in bf16 here, which is no larger"),
                ((*evaluate, "--base-type", "bf16", "--dtype", "fp16"), "weights are computed in fp16 here"),
                ((*evaluate, "--base-type", "fp4"), "must be one of auto|bf16|fp16|int8|nf4|nf4-double|mxfp4"),
                ((*train, "--load-in-4bit"), "use --base-type nf4 instead"),
                (("bench", "--model", "tiny-test", "--base-type", "nf4", *program.SMALL_MACHINE), "nothing is frozen here")]:
            told = program.run(*words)
            self.assertEqual(told.code, USAGE, (words, told.err))
            self.assertIn(phrase, told.err)

    def test_reports_of_a_base(self):
        text = self.tune("told", "--train", "norms", "--base-type", "nf4").err
        self.assertRegex(text, r"base    nf4: frozen layers take [\d.]+ KiB in place of [\d.]+ KiB in fp32; the run computes with the "
                               "decoded weights")
        # A base in the dtype of the run is plain, and its run is that without the option.
        self.tune("plain", "--train", "norms")
        self.tune("same", "--train", "norms", "--base-type", "bf16", "--dtype", "bf16")
        self.tune("same-plain", "--train", "norms", "--dtype", "bf16")
        self.assertEqual(self.result("same"), self.result("same-plain"))
        self.assertNotEqual(self.losses("told"), self.losses("plain"))

    def test_plans_of_a_base(self):
        words = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--gpu-mem", "1500M", "--train", "norms", "--json"]
        plain, nf4, double = (self.succeed(*words, *more).json() for more in
                              ([], ["--base-type", "nf4"], ["--base-type", "nf4-double"]))
        self.assertEqual((plain["model"]["base_type"], plain["model"]["base_bytes"], nf4["model"]["base_type"]), ("bf16", 0, "nf4"))
        weights = 22 * (2 * 2048 * (2048 + 256) + 3 * 2048 * 5632)
        for told, bits in (nf4, 4.5), (double, 4.127):
            self.assertAlmostEqual(told["model"]["base_bytes"] / (weights * bits / 8), 1, delta=2e-3)
            # Fewer bytes cross the bus. To decode them takes some per cent of a step that computing bounds.
            self.assertLessEqual(told["prediction"]["step_seconds"], 1.05 * plain["prediction"]["step_seconds"])


if __name__ == "__main__":
    program.main()
