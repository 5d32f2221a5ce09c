"""Long rows in sections: a run has the same bits on several placements and stages and after a stop, and nearly the losses of
whole rows; a small GPU gets sections by itself, and keeps them, and the keys of a row in groups; what cannot be cut is refused."""

import json
import os
import re
import shutil

import program
from program import SMALL, read_bytes, sql_rows, write_rows

USAGE = 2
ROW = ["--model", "tiny-test", "--init", "random", "--threads", "1", "--device", "cpu", "--no-forecast", "--seq-len", "1024",
       "--rope-scaling", "linear:8", "--tokens-per-step", "2048", "--steps", "4"]
HOST = "weights=host,state=host,activations=host"


class Sections(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.path("rows.jsonl"), sql_rows(400))

    def run_of(self, out, *words):
        """The weights, the losses of the steps and of the evaluations, the record and what is printed."""
        result = self.succeed("train", *ROW, "--data", self.rows, "--eval-fraction", "0.1", "--eval-every", "2", "--out",
                              self.path(out), *words)
        with open(self.path(out + "/log.jsonl")) as file:
            events = [json.loads(line) for line in file]
        with open(self.path(out + "/run.json")) as file:
            record = json.load(file)
        return (read_bytes(self.path(out + "/model.safetensors")), [e["loss"] for e in events if e["event"] == "step"],
                [e["loss"] for e in events if e["event"] == "eval"], record, result.err)

    def test_bits_depend_on_the_sections_alone(self):
        cut = self.run_of("cut", "--row-sections", "4", "--save-every", "2", "--keep", "9")
        self.assertIn("sections each row is 4 micro-batches, of 256 tokens each", cut[4])
        self.assertEqual(cut[3]["row-sections"], 4)
        for name, more in (("host", ["--home", HOST, "--recompute", "all", "--rounds", "2"]),
                           ("stages", ["--gpus", "2", "--shard", "stages"]),
                           ("resumed", ["--home", HOST, "--resume", self.path("cut/checkpoints/step-00000002")])):
            with self.subTest(name):
                other = self.run_of(name, "--row-sections", "4", *more)
                self.assertEqual(other[0], cut[0])
                self.assertEqual(other[1], cut[1][2:] if name == "resumed" else cut[1])
                self.assertEqual(other[2][-1], cut[2][-1])
        whole = self.run_of("whole")
        self.assertEqual(whole[3]["row-sections"], 1)
        self.assertNotIn("sections", whole[4])
        self.assertNotEqual(whole[0], cut[0])
        for a, b in zip(whole[1] + whole[2], cut[1] + cut[2]):  # sums in another order, in four steps
            self.assertAlmostEqual(a, b, delta=1e-4 * a)
        result = program.run("train", *ROW, "--data", self.rows, "--out", self.path("cut"), "--row-sections", "2", "--steps", "6")
        self.assertEqual(result.code, USAGE, result.err)
        self.assertIn("--row-sections 4", result.err.splitlines()[-1])

    def test_a_row_that_does_not_fit_is_cut(self):
        long = ["--seq-len", "8192", "--tokens-per-step", "8192", "--rope-scaling", "linear:64", "--home", HOST,
                "--recompute", "all", "--host-mem", "256M"]
        tight = program.run("train", *ROW, *long, "--data", self.rows, "--out", self.path("none"), "--gpu-mem", "2M",
                            "--row-sections", "1")
        least = float(re.search(r"needs ([0-9.]+) MiB of gpu memory", tight.err).group(1))
        words = ["--gpu-mem", f"{int(least) - 1}M", *long]
        cut = self.run_of("fits", *words, "--steps", "2", "--save-every", "1", "--keep", "9")
        self.assertEqual(cut[3]["row-sections"], 2)
        self.assertIn("sections each row is 2 micro-batches, of 4,096 tokens each", cut[4])
        again = self.run_of("wide", *long, "--gpu-mem", "512M", "--steps", "2", "--resume",
                            self.path("fits/checkpoints/step-00000001"))  # the whole row would fit
        self.assertEqual((again[0], again[1]), (cut[0], cut[1][1:]))
        self.assertEqual(again[3]["row-sections"], 2)
        refused = program.run("train", *ROW, "--data", self.rows, "--out", self.path("none"), *words, "--row-sections", "1")
        self.assertNotEqual(refused.code, 0)
        self.assertIn("leave out --row-sections", refused.err.splitlines()[-1])

    def test_keys_that_do_not_fit_come_in_groups(self):
        """A GPU so small that the keys of a row do not fit it: they are on the host, and the bits are the same."""
        model = self.path("model")
        os.makedirs(model)
        self.succeed("train", *ROW, "--data", self.rows, "--out", self.path("named"), "--steps", "1")
        shutil.copy(self.path("named/tokenizer.json"), model)
        with open(os.path.join(model, "config.json"), "w") as file:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 32,
                       "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 384, "head_dim": 8,
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "float32"}, file)
        words = ["--model", model, "--seq-len", "8192", "--tokens-per-step", "8192", "--home", HOST,
                 "--recompute", "all", "--host-mem", "256M", "--steps", "2", "--row-sections", "2"]
        refused = program.run("train", *ROW, *words, "--data", self.rows, "--out", self.path("none"), "--gpu-mem", "1M")
        least = float(re.search(r"needs ([0-9.]+) MiB of gpu memory", refused.err).group(1))
        small = self.run_of("small", *words, "--gpu-mem", f"{int(least) + 1}M")
        self.assertRegex(small[4], r"sections each row is 2 micro-batches, .*; keys of [12] heads? at a time")
        large = self.run_of("large", *words, "--gpu-mem", "512M")
        self.assertNotIn("heads at a time", large[4])
        self.assertEqual(small[:3], large[:3])

    def test_what_cannot_be_cut_is_refused(self):
        for words, why in ((["--row-sections", "5"], "cannot be 5 sections"), (["--row-sections", "0"], "--row-sections"),
                           (["--row-sections", "2", "--neftune", "5"], "need whole rows"),
                           (["--row-sections", "2", "--micro-batch", "2"], "--row-sections")):
            with self.subTest(words):
                result = program.run("train", *ROW, "--data", self.rows, "--out", self.path("none"), *words)
                self.assertEqual(result.code, USAGE, result.err)
                self.assertIn(why, result.err.splitlines()[-1])


if __name__ == "__main__":
    program.main()
