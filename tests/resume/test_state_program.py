"""Runs with compact optimizer state, and without fp32 masters: the same bits in every placement and after a resume,
smaller checkpoints and plans, and a clear sentence wherever a run changes the format."""

import json
import os
import shutil

import program
from program import SMALL, read_bytes, run


# Bare: what has the fewest bytes.
FORMATS = {"fp32": [], "16bit": ["--state", "16bit"], "8bit": ["--state", "8bit"],
           "bare": ["--state", "8bit", "--master-weights", "none"]}
COMPACT = ("16bit", "8bit", "bare")


class CompactState(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.mkdir(cls.path("disk"))
        for state, words in FORMATS.items():
            result = run(*cls.command(state, *words))
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
                  for state in FORMATS}
        self.assertEqual(len({self.model(state) for state in FORMATS}), len(FORMATS))
        for state in COMPACT:
            # the rounding of means and weights moves an update by some percent, and the loss of a step by far less
            for got, want in zip(losses[state], losses["fp32"]):
                self.assertLess(abs(got - want), 0.02 * want)

    def test_placements_have_the_same_bits(self):
        for state in COMPACT:
            for name, words in {"host": ["--home", "host", "--optimizer-engine", "stream:0.5,cpu:0.5"],
                                "nvme": ["--home", "state=nvme,weights=nvme", "--nvme", self.path("disk")]}.items():
                self.succeed(*self.command(name + state, *FORMATS[state], *words))
                self.assertEqual(self.model(name + state), self.model(state))

    def test_a_resume_has_the_same_bits(self):
        for state in COMPACT:
            self.interrupted(state, "again" + state)
            result = self.succeed(*self.command("again" + state, "--home", "host"))  # the format is that of the checkpoint
            self.assertIn(" ".join(FORMATS[state]), result.err)
            self.assertIn(f"state   {FORMATS[state][1]}: AdamW's means take ", result.err)
            self.assertEqual("masters none: each update rounds the bf16 weights" in result.err, state == "bare")
            self.assertEqual(self.model("again" + state), self.model(state))

    def test_an_export_has_the_weights_of_the_run(self):
        for state in COMPACT:
            self.succeed("export", self.path(f"{state}/checkpoints/step-00000008"), "--out", self.path("export" + state))
            self.assertEqual(self.model("export" + state), self.model(state))

    def test_state_on_disk_is_saved_by_hard_links(self):
        """A save links the store's files, and writes no state. Later steps do not change what it refers to."""
        for state in ("16bit", "8bit"):
            out = "linked" + state
            words = ["--state", state, "--home", "state=nvme,weights=nvme", "--nvme", self.path("disk")]
            result = self.succeed(*self.command(out, *words))
            self.assertRegex(result.err, r"checkpoint \S+step-00000004: [0-9.]+ [KM]iB referred to on NVMe, in ")
            self.assertRegex(result.err, r"checkpoints every 4 steps · [0-9.]+ [KM]iB each, on NVMe")
            folder = self.path(f"{out}/checkpoints/step-00000004")
            self.assertEqual(os.path.getsize(f"{folder}/state.bin"), 0)
            self.assertEqual(os.stat(f"{folder}/nvme-0.store").st_nlink, 2)  # the other name: step 8
            linked = self.succeed("verify", "--json", folder).json()["checkpoint"]
            copied = self.succeed("verify", "--json", self.path(f"{state}/checkpoints/step-00000004")).json()["checkpoint"]
            for slab in linked["slabs"] + copied["slabs"]:
                del slab["bytes"]  # padded differently
            self.assertEqual(linked["slabs"], copied["slabs"])
            self.interrupted(out, "again" + out)
            self.succeed(*self.command("again" + out, *words))
            self.assertEqual(self.model("again" + out), self.model(state))
            self.interrupted(out, "home" + out)
            self.succeed(*self.command("home" + out, "--home", "host"))
            self.assertEqual(self.model("home" + out), self.model(state))

    def test_checkpoints_are_smaller_and_valid(self):
        sizes = {}
        for state, words in FORMATS.items():
            folder = self.path(f"{state}/checkpoints/step-00000004")
            sizes[state] = os.path.getsize(os.path.join(folder, "state.bin"))
            result = self.succeed("verify", folder)
            self.assertEqual(f"state in {words[1] if words else ''}" in result.out + result.err, state != "fp32")
            self.assertEqual(", without masters" in result.out + result.err, state == "bare")
        self.assertAlmostEqual(sizes["16bit"] / sizes["fp32"], 8 / 12, delta=0.01)
        self.assertAlmostEqual(sizes["8bit"] / sizes["fp32"], 6.125 / 12, delta=0.01)
        self.assertAlmostEqual(sizes["bare"] / sizes["fp32"], 4.125 / 12, delta=0.01)

    def test_a_resume_may_convert_and_says_so(self):
        for was, now in (("fp32", "8bit"), ("8bit", "fp32"), ("16bit", "8bit")):
            out = f"{was}-to-{now}"
            self.interrupted(was, out)
            said = self.fail_with(2, "--exact resumes only with the same format",
                                  *self.command(out, "--quiet", "--state", now, "--exact"))
            self.assertNotIn("--resume", said)  # the checkpoint is intact
            result = self.succeed(*self.command(out, "--state", now))
            self.assertIn(f"has its optimizer state in {was}, which is converted to {now}: from now on, losses and weights "
                          f"differ from those of a run that keeps {was}", result.err)
            self.assertNotEqual(self.model(out), self.model(was))
            record = json.loads(read_bytes(self.path(f"{out}/checkpoints/step-00000008/checkpoint.json")))
            self.assertEqual(record["options"].get("state", "fp32"), now)

    def test_a_resume_may_give_up_and_take_up_masters(self):
        for was, now, words, what in (
                ("8bit", "bare", ["--master-weights", "none"], "fp32 master weights, which this run drops"),
                ("bare", "8bit", ["--master-weights", "fp32"], "no fp32 master weights, so they begin as its bf16 weights")):
            out = f"{was}-to-{now}"
            self.interrupted(was, out)
            self.fail_with(2, "--exact resumes only with the same", *self.command(out, "--quiet", *words, "--exact"))
            result = self.succeed(*self.command(out, *words))
            self.assertIn(f"step-00000004 has {what}", result.err)
            self.assertNotEqual(self.model(out), self.model(was))
            # from the same bf16 weights and means, four steps with and without masters are near each other
            (want,), (got,) = ([event["loss"] for event in self.log(run) if event["event"] == "step" and event["step"] == 5]
                               for run in (was, out))
            self.assertLess(abs(got - want), 0.02 * want)
            self.succeed("verify", self.path(f"{out}/checkpoints/step-00000008"))

    def test_only_bf16_can_do_without_masters(self):
        for dtype in ("fp32", "fp16"):
            words = self.command("refused", "--master-weights", "none")
            words[words.index("bf16")] = dtype
            self.fail_with(2, f"weights are {dtype} here, and only bf16 weights are trained without masters; add --dtype bf16",
                           *words)
            self.assertFalse(os.path.exists(self.path("refused/checkpoints")))

    def test_a_plan_is_smaller(self):
        words = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx4090", "--ram", "32G"]
        plans = {state: self.succeed(*words, *FORMATS[state]).out for state in ("fp32", "8bit", "bare")}
        self.assertNotIn("        state   ", plans["fp32"])
        self.assertIn("        state   8bit: AdamW's means take 2.1 bytes a parameter instead of 8", plans["8bit"])
        self.assertIn("a checkpoint takes 12.3 GiB", plans["fp32"])
        self.assertIn("a checkpoint takes 6.3 GiB", plans["8bit"])
        self.assertNotIn("        masters ", plans["8bit"])
        self.assertIn("        masters none: each update rounds the bf16 weights stochastically", plans["bare"])
        self.assertIn("a checkpoint takes 4.2 GiB", plans["bare"])


if __name__ == "__main__":
    program.main()
