"""Runs with compact optimizer state: the same bits in every placement and after a resume, smaller checkpoints and plans,
and a clear sentence wherever a run changes the format."""

import json
import os
import shutil

import program
from program import SMALL, read_bytes, run


class CompactState(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.mkdir(cls.path("disk"))
        for state in ("fp32", "16bit", "8bit"):
            result = run(*cls.command(state, "--state", state))
            assert result.code == 0, result.err

    @classmethod
    def command(cls, out, *more):
        return ["train", "--no-forecast", *SMALL, "--data", cls.rows, "--out", cls.path(out), "--steps", "8", "--schedule",
                "constant", "--warmup", "2", "--dtype", "bf16", "--micro-batch", "2", "--save-every", "4", "--keep", "3", *more]

    def model(self, out):
        return read_bytes(self.path(f"{out}/model.safetensors"))

    def interrupted(self, name, out):
        """A copy of a finished run, as if it had been stopped after step 4."""
        shutil.copytree(self.path(name), self.path(out))
        shutil.rmtree(self.path(f"{out}/checkpoints/step-00000008"))
        os.unlink(self.path(f"{out}/checkpoints/complete"))

    def test_formats_differ_a_little(self):
        losses = {state: [event["loss"] for event in self.log(state) if event["event"] == "step"]
                  for state in ("fp32", "16bit", "8bit")}
        for state in ("16bit", "8bit"):
            self.assertNotEqual(self.model(state), self.model("fp32"))
            # the rounding of the means moves an update by some percent, and the loss of a step by far less
            for got, want in zip(losses[state], losses["fp32"]):
                self.assertLess(abs(got - want), 0.02 * want)

    def test_placements_have_the_same_bits(self):
        for state in ("16bit", "8bit"):
            for name, words in {"host": ["--home", "host", "--optimizer-engine", "stream:0.5,cpu:0.5"],
                                "nvme": ["--home", "state=nvme,weights=nvme", "--nvme", self.path("disk")]}.items():
                self.succeed(*self.command(name + state, "--state", state, *words))
                self.assertEqual(self.model(name + state), self.model(state))

    def test_a_resume_has_the_same_bits(self):
        for state in ("16bit", "8bit"):
            self.interrupted(state, "again" + state)
            result = self.succeed(*self.command("again" + state, "--home", "host"))  # --state is that of the checkpoint
            self.assertIn(f"--state {state}", result.err)
            self.assertIn(f"state   {state}: AdamW's means take ", result.err)
            self.assertEqual(self.model("again" + state), self.model(state))

    def test_checkpoints_are_smaller_and_valid(self):
        sizes = {}
        for state in ("fp32", "16bit", "8bit"):
            folder = self.path(f"{state}/checkpoints/step-00000004")
            sizes[state] = os.path.getsize(os.path.join(folder, "state.bin"))
            result = self.succeed("verify", folder)
            self.assertEqual(f"state in {state}" in result.out + result.err, state != "fp32")
        self.assertAlmostEqual(sizes["16bit"] / sizes["fp32"], 8 / 12, delta=0.01)
        self.assertAlmostEqual(sizes["8bit"] / sizes["fp32"], 6.125 / 12, delta=0.01)

    def test_a_resume_may_convert_and_says_so(self):
        for was, now in (("fp32", "8bit"), ("8bit", "fp32"), ("16bit", "8bit")):
            out = f"{was}-to-{now}"
            self.interrupted(was, out)
            self.fail_with(2, "--exact resumes only with the same format", *self.command(out, "--quiet", "--state", now, "--exact"))
            result = self.succeed(*self.command(out, "--state", now))
            self.assertIn(f"has its optimizer state in {was}, which is converted to {now}: from now on, losses and weights "
                          f"differ from those of a run that keeps {was}", result.err)
            self.assertNotEqual(self.model(out), self.model(was))
            record = json.loads(read_bytes(self.path(f"{out}/checkpoints/step-00000008/checkpoint.json")))
            self.assertEqual(record["options"].get("state", "fp32"), now)

    def test_a_plan_is_smaller(self):
        words = ["plan", "--model", "llama-7b", "--gpu", "rtx4090", "--ram", "96G", "--nvme", self.path("disk") + ":400G"]
        plans = {state: self.succeed(*words, "--state", state).out for state in ("fp32", "8bit")}
        self.assertNotIn("        state   ", plans["fp32"])
        self.assertIn("        state   8bit: AdamW's means take 2.1 bytes a parameter instead of 8", plans["8bit"])
        self.assertIn("a checkpoint takes 75.3 GiB", plans["fp32"])
        self.assertIn("a checkpoint takes 38.4 GiB", plans["8bit"])


if __name__ == "__main__":
    program.main()
