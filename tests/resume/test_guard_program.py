"""Runs with bad numbers end with an error that names the cause, and skipped steps are counted."""

import program
from program import SMALL, run

# A learning rate so high that the results overflow fp16.
WILD = [*SMALL, "--no-forecast", "--dtype", "fp16", "--lr", "1", "--weight-decay", "1", "--epochs", "10"]
# No learning: losses scatter around their mean, so every second step is above it.
STILL = [*SMALL, "--no-forecast", "--lr", "0", "--eval-fraction", "0", "--steps", "60", "--skip-spikes", "0.01"]


class Guard(program.ProgramTest):
    def steps(self, out):
        return [event for event in self.log(out) if event["event"] == "step"]

    def test_a_run_without_finite_losses_ends_with_the_cause(self):
        result = run("train", *WILD, "--data", self.rows, "--out", self.path("wild"), "--eval-fraction", "0",
                     "--max-skips", "4")
        lines = result.err.splitlines()
        self.assertEqual(result.code, 7, result.err)
        self.assertRegex(lines[-1], r"^error: step \d+ was skipped, the last of 4 in a row, because its loss is not "
                         r"finite: \S+ is the first block whose output is not finite \(its weights are\); start over "
                         r"with a lower --lr or with --dtype bf16, or look at rows \d+, \d+, \d+ and \d+ more of .*rows.jsonl$")
        steps = self.steps("wild")
        causes = [step.get("skipped") for step in steps]
        self.assertNotIn(None, causes[-4:])
        self.assertEqual(causes[-1], "loss")
        self.assertIn("overflow", causes)  # before that; it may be one of the last four
        self.assertIn(f"error: step {steps[-1]['step']} ", lines[-1])
        self.assertIn("skipped: loss not finite", lines[-2])

    def test_an_evaluation_that_is_not_finite_ends_with_the_cause(self):
        result = run("train", *WILD, "--data", self.rows, "--no-save", "--max-skips", "1000")
        self.assertEqual(result.code, 7, result.err)
        self.assertRegex(result.err.splitlines()[-1], "^error: the evaluation loss is not a finite number: "
                         r"\S+ is the first block whose output is not finite \(its weights are\); go back")

    def test_skipped_spikes_are_counted(self):
        result = self.succeed("train", *STILL, "--data", self.rows, "--out", self.path("still"), "--max-skips", "1000")
        steps = self.steps("still")
        skipped = [step for step in steps if step.get("skipped") == "spike"]
        self.assertTrue(5 < len(skipped) < 25, skipped)
        self.assertTrue(all(step["spike"] and step["step"] > 32 for step in skipped))
        done = self.log("still")[-1]
        self.assertEqual((done["event"], done["skipped"], done["spikes"]), ("done", len(skipped), len(skipped)))
        self.assertIn(f"guard   skipped {len(skipped)} steps ({len(skipped)} spike) · {len(skipped)} loss spikes",
                      result.err)

    def test_a_row_of_spikes_ends_the_run(self):
        result = run("train", *STILL, "--data", self.rows, "--no-save", "--max-skips", "2", "--quiet")
        self.assertEqual(result.code, 7, result.err)
        self.assertRegex(result.err, r"^error: step \d+ was skipped, the last of 2 in a row, because its loss of [\d.]+ is far "
                         r"above the losses before it: raise --max-skips, start over with a lower --lr or a higher --skip-spikes, or look "
                         r"at rows \d+")

    def test_a_resumed_run_skips_the_same_spikes(self):
        words = ["train", *STILL, "--data", self.rows, "--save-every", "10"]
        self.succeed(*words, "--out", self.path("whole"), "--max-skips", "1000")
        first = run(*words, "--out", self.path("parts"), "--max-skips", "2")
        self.assertEqual(first.code, 7, first.err)
        self.succeed(*words, "--out", self.path("parts"), "--max-skips", "1000")
        keys = ["step", "loss", "grad_norm", "clipped_norm", "skipped", "spike"]
        whole, parts = ([[step.get(key) for key in keys] for step in self.steps(out)] for out in ("whole", "parts"))
        self.assertEqual(whole, parts)


if __name__ == "__main__":
    program.main()
