"""--tokens-per-step auto:MIN..MAX: what a run chooses, records and takes over when it resumes. Several ranks choose the
same step."""

import json
import os
import re
import socket
import subprocess

import program

USAGE, BUDGET = 2, 4
BOUNDS = ["--tokens-per-step", "auto:128..2k"]
STEPS = [128, 256, 512, 1024, 2048]
NEAR = 0.98  # of the best rate


class StepTest(program.ProgramTest):
    def command(self, out, *words):
        """A run of 10 steps; the micro-batch is fixed, so that the bits depend on the step alone."""
        place = ["--out", self.path(out)] if out else ["--no-save"]
        return ["--model", "tiny-test", "--init", "random", "--data", self.rows, "--device", "cpu", "--threads", "1",
                "--seq-len", "128", "--micro-batch", "1", "--steps", "10", "--gpu-mem", "32M", "--host-mem", "32M", *place, *words]

    def chosen(self, result):
        return int(re.search(r"  tokens  ([\d,]+) a step, chosen from 128 to 2,048: ", result.err)[1].replace(",", ""))


class Runs(StepTest):
    def test_the_choice_is_the_fewest_tokens_near_the_best_rate(self):
        result = self.succeed(*self.command("run", *BOUNDS))
        tokens = self.chosen(result)
        start = self.log("run")[0]
        choice = start["step_choice"]
        self.assertEqual([one["tokens"] for one in choice], STEPS)
        self.assertEqual([one["tokens"] for one in choice if one["chosen"]], [tokens])
        best = max(one["tokens_per_s"] for one in choice)
        self.assertEqual(next(one["tokens"] for one in choice if one["tokens_per_s"] >= NEAR * best), tokens)
        # The plan is the one that the choice predicted.
        rate = next(one["tokens_per_s"] for one in choice if one["chosen"])
        self.assertAlmostEqual(start["prediction"]["tokens_per_s"] / rate, 1, delta=1e-6)
        with open(self.path("run/run.json")) as file:
            record = json.load(file)
        self.assertEqual((record["tokens-per-step"], record["sources"]["tokens-per-step"]), (tokens, "program"))
        # The number alone gives the same bits.
        self.succeed(*self.command("number", "--tokens-per-step", tokens, "--no-forecast"))
        self.assertEqual(program.read_bytes(self.path("run/model.safetensors")),
                         program.read_bytes(self.path("number/model.safetensors")))
        self.assertIn("already finished", self.succeed(*self.command("run", *BOUNDS)).err)

    def test_what_does_not_fit_drops_out(self):
        small = ["--gpu-mem", "3M", "--host-mem", "3M", "--rounds", "1", "--steps", "1", "--eval-fraction", "0"]
        result = self.succeed(*self.command(None, *small, "--tokens-per-step", "auto:128..4k"))
        self.assertRegex(result.err, r"  tokens  [\d,]+ a step, chosen from 128 to 4,096: .*, 4,096 does not fit\n")
        self.fail_with(BUDGET, "What helps: --gpu-mem", *self.command(None, "--gpu-mem", "1M", "--quiet", *BOUNDS))

    def test_epochs_and_warm_up_limit_a_step(self):
        words = self.command("dry", "--dry-run", *BOUNDS)
        at = words.index("--steps")
        del words[at:at + 2]  # 59 sequences make 8 steps of 1024 tokens, and 4 of 2048
        self.assertIn("chosen from 128 to 1,024: ", self.succeed(*words, "--epochs", "1", "--warmup", "8").err)
        self.fail_with(USAGE, "--warmup 60 is longer than the run's 59 steps", *words, "--epochs", "1", "--warmup", "60", "--quiet")

    def test_a_resumed_run_takes_the_number_of_its_checkpoint(self):
        save = ["--save-every", "4", "--keep", "9"]
        self.succeed(*self.command("first", *save, "--tokens-per-step", "512", "--no-forecast"))
        earlier = ["--resume", self.path("first/checkpoints/step-00000004")]
        result = self.succeed(*self.command("on", *earlier, *BOUNDS))
        self.assertIn("taken from the checkpoint: --tokens-per-step 512\n", result.err)
        self.assertNotIn("chosen from", result.err)
        self.assertEqual(program.read_bytes(self.path("on/model.safetensors")),
                         program.read_bytes(self.path("first/model.safetensors")))
        for bounds, now in (("auto:128..256", "auto:128..256"), ("auto:1k..2k", "auto:1024..2048")):
            self.fail_with(USAGE, f" was made with --tokens-per-step 512, you gave {now}. Use the", *self.command(
                "other", *earlier, "--tokens-per-step", bounds, "--quiet"))
        self.assertFalse(os.path.exists(self.path("other/log.jsonl")))

    def test_a_choice_that_cannot_be_made(self):
        for phrase, *words in (("needs the forecast", "--no-forecast"),
                               ("contradict each other", "--deterministic", "world"),
                               ("is less than one sequence", "--tokens-per-step", "auto:16..100"),
                               ("no step of whole sequences (128 tokens each) lies within", "--tokens-per-step", "auto:130..250"),
                               ("at least one micro-batch) lies within", "--micro-batch", "17"),
                               ("must be a whole number", "--tokens-per-step", "auto:2k..128")):
            self.fail_with(USAGE, phrase, *self.command(None, "--quiet", *BOUNDS, *words))


class Ranks(StepTest):
    def run_ranks(self, *words, own):
        """Starts two ranks by hand, as torchrun does. own: words of each rank."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        processes = []
        for rank in range(2):
            env = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0,
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": f"test-{port}"}
            processes.append(subprocess.Popen([program.PROGRAM, *self.command(None, *words, *own[rank])],
                                              env=os.environ | {name: str(value) for name, value in env.items()},
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        ends = [(process, *process.communicate(timeout=120)) for process in processes]
        return [program.Result(subprocess.CompletedProcess([], process.returncode, *texts)) for process, *texts in ends]

    def loss(self, result):
        return re.findall(r"step 10/10 loss ([\d.]+)", result.err)

    def test_all_ranks_take_one_step(self):
        result = self.succeed(*self.command(None, "--gpus", "2", *BOUNDS))
        self.assertEqual(result.err.count("chosen from"), 1, result.err)
        same = self.succeed(*self.command(None, "--gpus", "2", "--no-forecast", "--tokens-per-step", str(self.chosen(result))))
        self.assertEqual(len(self.loss(same)), 1, same.err)
        self.assertEqual(self.loss(result), self.loss(same))

    def test_the_step_fits_on_every_rank(self):
        small = ["--gpu-mem", "3M", "--host-mem", "3M"]
        first, second = self.run_ranks("--eval-fraction", "0", "--rounds", "1", "--tokens-per-step", "auto:128..8k", own=[[], small])
        self.assertEqual((first.code, second.code), (0, 0), first.err + second.err)
        self.assertRegex(first.err, r"  tokens  [\d,]+ a step, chosen from 128 to .*, [\d,]+ does not fit\n")

    def test_ranks_with_other_bounds_are_refused(self):
        for other, said in (("auto:128..1k", "auto:128..1024"), ("512", "512")):
            results = self.run_ranks(own=[BOUNDS, ["--tokens-per-step", other]])
            self.assertIn(USAGE, [result.code for result in results])
            for result in results:
                self.assertIn(f"--tokens-per-step differs: rank 0 has auto:128..2048, rank 1 has {said}", result.err)


if __name__ == "__main__":
    program.main()
