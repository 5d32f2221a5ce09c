"""Two models of one shape and one name: a run of one never goes on, or counts as finished, under the command of the
other, and the default --out tells them apart."""

import glob
import json
import os
import re
import shutil

import program
from program import read_bytes

INPUT = 3
WORDS = ["--device", "cpu", "--threads", "1", "--micro-batch", "1", "--no-forecast", "--seq-len", "128", "--tokens-per-step",
         "512", "--eval-fraction", "0", "--schedule", "constant", "--warmup", "1", "--save-every", "2", "--keep", "2", "--quiet"]
KINDS = {"full": [], "lora": ["--lora", "r=4"], "train": ["--train", "last:1"]}


class Bases(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, seed in ("v1", 1), ("v2", 2):
            os.mkdir(cls.path(name))
            done = program.run("train", *program.SMALL, "--data", cls.rows, "--out", cls.path(f"{name}/my-model"), "--seed", seed,
                               "--steps", "1", "--no-forecast")
            assert done.code == 0, done.err

    def words(self, base, *more, steps=4):
        return ["train", "--model", f"{base}/my-model", "--data", "rows.jsonl", "--steps", steps, *WORDS, *more]

    def contents(self, out):
        return {path: read_bytes(path) for path in glob.glob(self.path(f"{out}/**"), recursive=True) if os.path.isfile(path)}

    def refuse(self, out, kind, *more):
        before = self.contents(out)
        phrase = f"{out}" if os.path.exists(self.path(f"{out}/checkpoints/complete")) else "/checkpoints/step-"
        line = self.fail_with(INPUT, phrase, *self.words("v2", "--out", out, *KINDS[kind], *more), cwd=self.folder)
        self.assertRegex(line, "was made from other weights than --model v2/my-model has .fingerprint [0-9a-f]{8}, now ")
        self.assertIn("Give the model with which the run began (--model v1/my-model, as it was then), --resume never, or another "
                      "--out", line)
        self.assertEqual(self.contents(out), before)

    def test_another_base_is_refused(self):
        for kind, words in KINDS.items():
            with self.subTest(kind):
                out = f"of-{kind}"
                self.succeed(*self.words("v1", "--out", out, *words), cwd=self.folder)
                with open(self.path(f"{out}/finished.json")) as file:
                    self.assertIn("sample", json.load(file)["base"])
                self.refuse(out, kind)  # finished
                result = self.path(f"{out}/{'adapter_model' if kind == 'lora' else 'model'}.safetensors")
                whole = read_bytes(result)
                os.unlink(self.path(f"{out}/checkpoints/complete"))
                shutil.rmtree(self.path(f"{out}/checkpoints/step-00000004"))
                self.refuse(out, kind)  # stopped after step 2
                # A copy elsewhere is the same base.
                shutil.copytree(self.path("v1"), self.path("moved"), dirs_exist_ok=True)
                self.succeed(*self.words("moved", "--out", out, *words), cwd=self.folder)
                self.assertEqual(read_bytes(result), whole)
                self.succeed(*self.words("v2", "--out", out, *words, "--resume", "never"), cwd=self.folder)
                self.assertNotEqual(read_bytes(result), whole)

    def test_a_run_that_goes_on_keeps_its_base(self):
        """A checkpoint that a resumed run makes has the fingerprint of the weights with which the run began."""
        self.succeed(*self.words("v1", "--out", "on"), cwd=self.folder)
        os.unlink(self.path("on/checkpoints/complete"))
        self.succeed(*self.words("v1", "--out", "on", steps=6), cwd=self.folder)
        os.unlink(self.path("on/checkpoints/complete"))
        self.refuse("on", "full", "--steps", "8")

    def test_records_of_earlier_versions(self):
        """They have no fingerprint of the base, so any base goes on."""
        self.succeed(*self.words("v1", "--out", "old"), cwd=self.folder)
        path = self.path("old/finished.json")
        with open(path) as file:
            record = json.load(file)
        del record["base"]
        with open(path, "w") as file:
            json.dump(record, file)
        self.succeed(*self.words("v1", "--out", "old"), cwd=self.folder)
        self.succeed(*self.words("v2", "--out", "old"), cwd=self.folder)

    def test_the_base_may_have_another_dtype(self):
        """The fingerprint is one of values, not of bytes: bf16 files, and fp32 files of the same values."""
        words = ["--dtype", "bf16", "--steps", "1", "--no-forecast", "--seed", "3"]
        made = self.succeed("train", *program.SMALL, "--data", self.rows, "--out", self.path("low/my-model"), *words)
        self.assertEqual(made.code, 0)
        data, start, header = program.read_safetensors(self.path("low/my-model/model.safetensors"))
        if {about["dtype"] for about in header.values()} != {"BF16"}:
            self.skipTest("the model is not stored as bf16")
        shutil.copytree(self.path("low"), self.path("high"))
        wide, at = {}, 0
        body = b""
        for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = about["data_offsets"]
            values = b"".join(b"\0\0" + data[i:i + 2] for i in range(start + begin, start + end, 2))
            wide[name] = {"dtype": "F32", "shape": about["shape"], "data_offsets": [at, at + len(values)]}
            at += len(values)
            body += values
        text = json.dumps(wide).encode()
        with open(self.path("high/my-model/model.safetensors"), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + body)
        self.succeed(*self.words("low", "--out", "dtypes", "--dtype", "fp32"), cwd=self.folder)
        self.succeed(*self.words("high", "--out", "dtypes", "--dtype", "fp32"), cwd=self.folder)

    def outputs(self):
        return sorted(os.listdir(self.path("out"))) if os.path.isdir(self.path("out")) else []

    def test_the_default_output_tells_them_apart(self):
        base = "my-model-rows"
        self.succeed(*self.words("v1"), cwd=self.folder)
        self.assertEqual(self.outputs(), [base])
        words = [word for word in self.words("v2") if word != "--quiet"]
        told = self.succeed(*words, cwd=self.folder)
        self.assertRegex(told.err, f"note    out/{base} is the output of another model of this name, so this run has --out "
                         f"out/{base}-[0-9a-f]{{8}}\n")
        self.assertEqual(len(self.outputs()), 2)
        other = self.outputs()[1]
        self.assertTrue(re.fullmatch(base + "-[0-9a-f]{8}", other))
        for name, model in (base, "v1"), (other, "v2"):
            with open(self.path(f"out/{name}/run.json")) as file:
                self.assertEqual(json.load(file)["model"], f"{model}/my-model")
        # Both are found again, wherever the models are, and after the other one is gone.
        shutil.copytree(self.path("v2"), self.path("elsewhere"))
        for model, name in ("v1", base), ("v2", other), ("elsewhere", other):
            words = [word for word in self.words(model) if word != "--quiet"]
            self.assertIn(f"already finished: out/{name} ", self.succeed(*words, cwd=self.folder).err)
        os.rename(self.path(f"out/{base}"), self.path("kept"))
        self.assertIn(f"already finished: out/{other} ", self.succeed(*words, cwd=self.folder).err)
        # A stopped run is found in the same way.
        os.rename(self.path("kept"), self.path(f"out/{base}"))
        for name in base, other:
            os.unlink(self.path(f"out/{name}/checkpoints/complete"))
            os.unlink(self.path(f"out/{name}/finished.json"))
        for model in "v1", "v2":
            self.succeed(*self.words(model), cwd=self.folder)
        self.assertEqual(self.outputs(), [base, other])


if __name__ == "__main__":
    program.main()
