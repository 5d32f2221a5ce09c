"""Runs that train only some tensors: what changes, what is saved, checkpoints, export, resuming, refusals, reports."""

import json
import os
import shutil
import struct

import program
from program import SMALL, sql_rows, write_rows

USAGE, INPUT = 2, 3


def read_tensors(folder):
    data, start, header = program.read_safetensors(os.path.join(folder, "model.safetensors"))
    return {name: data[start + about["data_offsets"][0]:start + about["data_offsets"][1]] for name, about in header.items()}


class Frozen(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_rows(cls.path("rows.jsonl"), sql_rows(40))
        cls.rows = cls.path("rows.jsonl")
        done = program.run("train", *SMALL, "--data", cls.rows, "--out", cls.path("base"), "--steps", "2", "--no-forecast")
        assert done.code == 0, done.err

    def tune(self, out, *words, base="base", steps="4"):
        return self.succeed("train", "--model", self.path(base), "--data", self.rows, "--seq-len", "128", "--threads", "1",
                            "--tokens-per-step", "512", "--steps", steps, "--no-forecast", "--out", self.path(out), *words)

    def changed(self, out, base="base"):
        before, after = read_tensors(self.path(base)), read_tensors(self.path(out))
        self.assertEqual(before.keys(), after.keys())
        return {name for name in before if before[name] != after[name]}

    def test_only_the_selected_tensors_change(self):
        names = set(read_tensors(self.path("base")))
        last = {name for name in names if name.startswith("model.layers.1.")}
        norms = {name for name in names if "norm" in name}
        for i, (words, want) in enumerate([
                (("--train", "last:1"), last),
                (("--train", "last:1", "--freeze", "norms"), last - norms),
                (("--freeze", "embeddings"), {name for name in names if "embed" not in name}),
                (("--train", "*.q_proj.*"), {name for name in names if "q_proj" in name})]):
            self.tune(f"only{i}", *words)
            self.assertEqual(self.changed(f"only{i}"), want, words)

    def test_the_bits_do_not_depend_on_homes(self):
        self.tune("homes0", "--train", "last:1,norms")
        for i, home in enumerate(["weights=host,state=host", "weights=gpu,state=host"]):
            self.tune(f"homes{i + 1}", "--train", "last:1,norms", "--home", home)
            self.assertEqual(self.changed(f"homes{i + 1}", "homes0"), set(), home)

    def test_a_bf16_run_saves_frozen_weights_exactly(self):
        """The device has them in bf16, the base in fp32."""
        self.tune("rounded", "--train", "last:1", "--dtype", "bf16")
        self.assertEqual(self.changed("rounded"), {name for name in read_tensors(self.path("base"))
                                                   if name.startswith("model.layers.1.")})

    def test_checkpoints_have_what_is_trained(self):
        words = ("--train", "last:1", "--save-every", "2", "--keep", "9")
        self.tune("saved", *words)
        checkpoint = self.path("saved/checkpoints/step-00000004")
        whole = self.path("whole/checkpoints/step-00000004")
        self.tune("whole", *words[2:])
        size = os.path.getsize(os.path.join(checkpoint, "state.bin"))
        self.assertLess(size, 0.6 * os.path.getsize(os.path.join(whole, "state.bin")))
        slabs = {slab["name"]: slab for slab in self.succeed("verify", checkpoint, "--json").json()["checkpoint"]["slabs"]}
        self.assertEqual(slabs["layer.0.frozen"]["state"], "frozen")
        self.assertEqual((slabs["layer.0.frozen"]["bytes"], slabs["layer.1"]["state"]), (0, "ok"))
        self.succeed("export", checkpoint, "--out", self.path("exported"))
        self.assertEqual(self.changed("exported", "saved"), set())
        # A run that stopped at step 2 ends with the same bits.
        shutil.copytree(self.path("saved"), self.path("again"))
        shutil.rmtree(self.path("again/checkpoints/step-00000004"))
        for name in ("checkpoints/complete", "finished.json", "model.safetensors"):
            os.remove(self.path(f"again/{name}"))
        self.assertIn("step 2 of 4", self.tune("again").err)
        self.assertEqual(self.changed("again", "saved"), set())

    def test_resuming_needs_the_same_base_and_selection(self):
        self.tune("first", "--train", "last:1", "--save-every", "2", "--keep", "9")
        shutil.rmtree(self.path("first/checkpoints/step-00000004"))
        for name in ("checkpoints/complete", "finished.json"):
            os.remove(self.path(f"first/{name}"))
        shutil.copytree(self.path("base"), self.path("other"))

        def change(at):
            with open(self.path("other/model.safetensors"), "r+b") as file:
                start = 8 + struct.unpack("<Q", file.read(8))[0]
                begin = json.loads(file.read(start - 8))["model.layers.0.mlp.down_proj.weight"]["data_offsets"][0]
                file.seek(start + begin + at)
                byte = file.read(1)
                file.seek(start + begin + at)
                file.write(bytes([byte[0] ^ 1]))

        words = ("train", "--data", self.rows, "--seq-len", "128", "--threads", "1", "--tokens-per-step", "512", "--steps", "4",
                 "--no-forecast", "--out", self.path("first"), "--quiet")
        # The first value is in the sample of the base. Value 2000 is not: the checksum of all frozen values has it.
        for at, phrase in (0, "was made from other weights than --model"), (8000, "the frozen weights are not those that this "
                                                                           "run was trained with"):
            change(at)
            told = program.run(*words, "--model", self.path("other"))
            self.assertEqual(told.code, INPUT, told.err)
            self.assertIn(phrase, told.err)
            change(at)
        told = program.run(*words, "--model", self.path("base"), "--train", "last:2")
        self.assertEqual(told.code, USAGE, told.err)
        self.assertIn("--train last:1, you gave last:2", told.err)

    def test_random_frozen_weights(self):
        """Nothing has them but the seed: an export makes them again."""
        self.train("random", "--train", "last:1", "--steps", "4", "--save-every", "2", "--keep", "9", "--seed", "7")
        self.succeed("export", self.path("random/checkpoints/step-00000004"), "--out", self.path("remade"))
        self.assertEqual(self.changed("remade", "random"), set())

    def test_reports(self):
        text = self.tune("told", "--train", "last:1").err
        self.assertRegex(text, r"[\d.]+ K frozen \+ [\d.]+ K trained parameters")
        self.assertIn("plan    some parameters · AdamW", text)
        with open(self.path("told/README.md")) as file:
            card = file.read()
        self.assertIn(": some parameters, AdamW", card)
        self.assertIn("last:1", card)
        words = ["plan", "--model", "llama-7b", "--gpu", "rtx4090", "--ram", "128G", "--json"]
        whole, part = self.succeed(*words).json(), self.succeed(*words, "--train", "last:4").json()
        self.assertEqual(whole["model"]["trained_parameters"], whole["model"]["parameters"])
        self.assertEqual(part["model"]["trained_parameters"], 4 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096))
        self.assertLess(part["prediction"]["step_seconds"], 0.7 * whole["prediction"]["step_seconds"])
        self.assertLess(part["prediction"]["mfu"], 1)

    def test_refusals(self):
        base = ["train", "--model", self.path("base"), "--data", self.rows, "--out", self.path("none"), "--dry-run", "--quiet"]
        for words, phrase in [
                (("--train", "nothing"), "'nothing' matches no tensor of this model of 2 layers"),
                (("--train", "layers:2"), "'layers:2' matches no tensor"),
                (("--freeze", "*"), "there is nothing to train"),
                (("--freeze-layers", "1"), "its name here is --freeze")]:
            told = program.run(*base, *words)
            self.assertEqual(told.code, USAGE, told.err)
            self.assertIn(phrase, told.err)


if __name__ == "__main__":
    program.main()
