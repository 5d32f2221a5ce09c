"""Runs that overfit: the best evaluation lies between two checkpoints. Its state is saved when it happens, stays until
a better one is complete, and export --best makes the model of it. Uses the standard library only."""

import json
import os
import re
import signal

import program
from program import STOPPED, read_bytes, sql_rows, write_rows
from resumable import ResumableTest

EVERY = 5
ANIMALS = ("dog", "cat", "bird", "fish")


class BestTest(ResumableTest):
    # The loss of two rows falls, and that of rows with other words soon rises far above its start.
    words = ["--no-forecast", "--model", "tiny-test", "--init", "random", "--seq-len", "128", "--tokens-per-step", "512",
             "--threads", "1", "--device", "cpu", "--micro-batch", "2", "--lr", "3e-2", "--schedule", "constant",
             "--warmup", "2", "--eval-every", str(EVERY)]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.path("few.jsonl"), sql_rows(2))
        other = [{"question": f"How many {name}s are {name}?", "context": f"CREATE TABLE {name} (x INT)",
                  "answer": f"SELECT count(x) FROM {name} WHERE x > {i}"} for i, name in enumerate(ANIMALS * 3)]
        cls.other = write_rows(cls.path("other.jsonl"), other)
        cls.evaluated = ["--eval-data", cls.other]

    def run_once(self, out, steps, *more, save="never"):
        return self.succeed(*self.command(out, *self.evaluated, "--steps", steps, *more, save=save))

    def losses(self, out):
        """The evaluations after step 1."""
        return {event["step"]: event["loss"] for event in self.log(out) if event["event"] == "eval" and event["step"]}

    def best_of(self, out):
        losses = self.losses(out)
        return min(losses, key=losses.get)

    def check_overfitted(self, out):
        """Returns the step of the best evaluation, which is far better than the last one."""
        losses, best = self.losses(out), self.best_of(out)
        self.assertTrue(EVERY < best < max(losses) - EVERY, losses)
        self.assertLess(losses[best] + 0.5, losses[max(losses)])
        return best

    def check_exported(self, out, best, name="model.safetensors", *more):
        """--best exports what a run of that many steps leaves."""
        self.run_once(f"{out}-alone", best, *more)
        self.succeed("export", self.path(out), "--best", "--out", self.path(f"{out}-best"))
        self.assertEqual(read_bytes(self.path(f"{out}-best/{name}")), read_bytes(self.path(f"{out}-alone/{name}")))


class Best(BestTest):
    def test_saved_when_it_happens(self):
        result = self.run_once("run", 60, save="30m")
        best = self.check_overfitted("run")
        losses = self.losses("run")
        self.assertEqual(self.checkpoints("run"), [best])
        self.assertIn("kept: 1 and the best · reserved: ", result.err)
        line = re.search(r"best    eval (\S+) at step (\d+); after the last step, 60, it is (\S+) · (.*)", result.err)
        self.assertEqual(line.groups()[:3], (f"{losses[best]:.4f}", str(best), f"{losses[60]:.4f}"))
        self.assertEqual(line[4], f"offload-train export {self.path('run')} --best --out DIR")
        self.assertIn("once you have exported the best", result.err)
        done = self.log("run")[-1]
        self.assertEqual([done["best_eval_step"], done["best_checkpoint_step"], done["last_eval_step"]], [best, best, 60])
        self.assertEqual([done["best_eval"], done["last_eval"]], [losses[best], losses[60]])
        # Only an evaluation that is better than all before it is saved.
        saved = [event["step"] for event in self.log("run") if event["event"] == "checkpoint"]
        self.assertEqual(saved, [step for step in losses if all(losses[step] < losses[b] for b in losses if b < step)])
        self.check_exported("run", best)

    def test_one_that_is_better_at_its_end(self):
        result = self.run_once("better", 2 * EVERY, save="30m")
        self.assertNotIn("best    ", result.err)
        self.assertEqual(self.checkpoints("better"), [EVERY])
        self.fail_with(3, "the last step was the best", "export", self.path("better"), "--best", "--out", self.path("x"))
        self.succeed("export", self.path("better"), "--best", "--gguf", "f32", "--out", self.path("gguf"))
        self.succeed("export", self.path("better"), "--out", self.path("newest"))

    def test_stays_over_stops_and_later_checkpoints(self):
        self.run_once("long", 40, save="23")
        best = self.best_of("long")
        self.assertEqual(self.checkpoints("long"), [best, 23])
        self.run_once("long", 60, "--resume", self.path("long/checkpoints"), save="23")
        self.assertEqual(self.checkpoints("long"), [best, 46])
        self.check_exported("long", best)

    def test_a_stopped_run_names_it(self):
        process = self.start("stopped", *self.evaluated, "--steps", "100000", save="30m")
        self.wait_for(process, lambda: 40 in self.losses("stopped") if self.logged("stopped", "step") else False)
        code, err = self.end_by(process, signal.SIGTERM)
        self.assertEqual(code, STOPPED, err)
        self.assertIn(f"at step {self.best_of('stopped')}", re.search("best    eval .*", err)[0])
        self.assertIn(self.best_of("stopped"), self.checkpoints("stopped"))

    def test_adapters(self):
        self.run_once("base", 30)
        more = ["--lora", "r=4", "--lr", "1e-1"]
        at = self.words.index("--init")
        words, type(self).words = self.words, ["--model", self.path("base"), *self.words[:1], *self.words[at + 2:]]
        self.addCleanup(setattr, type(self), "words", words)
        self.run_once("lora", 60, *more, save="30m")
        best = self.best_of("lora")
        self.assertLess(best, 60)
        self.assertEqual(self.checkpoints("lora"), [best])
        folder = self.path(f"lora/checkpoints/step-{best:08}")
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        adapters = os.path.getsize(self.path("lora/adapter_model.safetensors"))
        self.assertLess(size, 8 * adapters)  # adapters alone, with their optimizer state
        self.check_exported("lora", best, "adapter_model.safetensors", *more)

    def test_several_ranks(self):
        self.run_once("ranks", 60, "--gpus", "2", "--shard", "full", save="30m")
        best = self.check_overfitted("ranks")
        self.assertEqual(self.checkpoints("ranks"), [best])
        self.succeed("export", self.path("ranks"), "--best", "--out", self.path("ranks-best"))


class NotKept(BestTest):
    def test_said(self):
        result = self.run_once("never", 60)
        best = self.check_overfitted("never")
        self.assertRegex(result.err, "checkpoints when stopped · .* · kept: 1\n")
        self.assertIn(f"after step {best}, is not kept: --save-every never", result.err)
        self.assertFalse(os.path.exists(self.path("never/checkpoints")))
        self.fail_with(3, "has no checkpoints to find the best of", "export", self.path("never"), "--best", "--out",
                       self.path("x"))
        result = self.succeed("train", *self.words, "--data", self.rows, *self.evaluated, "--steps", "60", "--no-save")
        self.assertIn("is not kept: --no-save", result.err)

    def test_without_evaluations(self):
        self.succeed(*self.command("none", "--eval-every", "100", "--steps", "4"))
        os.remove(self.path("none/finished.json"))
        self.fail_with(3, "no checkpoint there is of a step that was evaluated", "export", self.path("none"), "--best",
                       "--out", self.path("x"))


class AddedLater(BestTest):
    """The run's first process evaluates at its ends alone, and leaves a checkpoint of step 10."""

    def resume(self, out, *more):
        self.succeed(*self.command(out, *self.evaluated, "--eval-every", "100", "--steps", "12", save="10"))
        self.assertEqual(self.checkpoints(out), [10])
        self.succeed(*self.command(out, *self.evaluated, "--steps", "60", "--resume", self.path(f"{out}/checkpoints"),
                                   *more, save="30m"))

    def test_a_checkpoint_without_evaluation_is_not_the_best(self):
        self.resume("later", "--eval-every", "4")
        self.assertEqual(self.checkpoints("later"), [self.best_of("later")])

    def test_an_evaluated_checkpoint_is_made_again(self):
        """The resumed run evaluates its checkpoint's state, and that is the best one: its checkpoint gets the loss."""
        self.resume("again", "--eval-every", "10")
        best = self.best_of("again")
        self.assertIn(best, (10, 20))
        self.assertIn(10, [event["step"] for event in self.log("again") if event["event"] == "checkpoint"])
        record = json.loads(read_bytes(self.path(f"again/checkpoints/step-{best:08}/checkpoint.json")))
        self.assertEqual(record["eval"]["last_step"], best)
        self.assertEqual(self.checkpoints("again"), [best])


if __name__ == "__main__":
    program.main()
