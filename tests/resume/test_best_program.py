"""Runs that overfit: the best evaluation lies between two checkpoints. Its state is saved when it happens, stays until
a better one is complete, and becomes the result, or the model of export --best. --stop-early ends such runs. Uses the
standard library only."""

import json
import os
import re
import signal
import unittest

import program
from program import STOPPED, read_bytes, sql_rows, write_rows
from resumable import FAULTS, ResumableTest, preload

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
        cls.alone = {}

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

    def check_model(self, folder, steps, *more, name="model.safetensors"):
        """The folder has what a run of that many steps leaves."""
        key = (steps, *more)
        if key not in self.alone:
            self.alone[key] = f"alone-{len(self.alone)}"
            self.run_once(self.alone[key], steps, *more)
        self.assertEqual(read_bytes(self.path(f"{folder}/{name}")), read_bytes(self.path(f"{self.alone[key]}/{name}")))

    def check_kept(self, out, newest, best):
        """OUT has one checkpoint, and the weights of the best evaluation."""
        self.assertEqual([self.checkpoints(out), self.best_states(out)], [[newest], [best]])

    def export(self, out, to, *more):
        return self.succeed("export", self.path(out), *more, "--out", self.path(to))

    def check_exported(self, out, best, *more, name="model.safetensors"):
        self.export(out, f"{out}-best", "--best")
        self.check_model(f"{out}-best", best, *more, name=name)

    def best_line(self, err):
        return re.search(r"best    (\S+ \S+(?: %)?) at step (\d+)(, the result)?; after the last step, (\d+), it is "
                         r"(\S+(?: %)?) · (.*)", err).groups()


class Result(BestTest):
    """What OUT has at the end, and how to get the other state."""
    def test_the_best(self):
        result = self.run_once("run", 60, save="30m")
        best, losses = self.check_overfitted("run"), self.losses("run")
        self.check_kept("run", 60, best)
        self.assertIn("result: best by loss\n", result.err)
        self.assertEqual(self.best_line(result.err), (
            f"eval {losses[best]:.4f}", str(best), ", the result", "60", f"{losses[60]:.4f}",
            f"offload-train export {self.path('run')} --out DIR makes the last model"))
        self.assertIn("you can delete them unless you want the model of the last step", result.err)
        log = self.log("run")
        done = log[-1]
        self.assertEqual([done["best_eval_step"], done["last_eval_step"], done["result_step"], done["steps"]],
                         [best, 60, best, 60])
        self.assertEqual([event["step"] for event in log if event["event"] == "sample"], [best])
        self.assertIn(f"after step {best} of 60, the best evaluation: eval {losses[best]:.4f}",
                      read_bytes(self.path("run/README.md")).decode())
        self.assertEqual(json.loads(read_bytes(self.path("run/run.json")))["result"], "best")
        self.check_model("run", best)
        # The loss of the model is the one that the run measured, and so is its accuracy.
        said = self.succeed("eval", "--model", self.path("run"), "--data", self.other, "--seq-len", "128",
                            "--micro-batch", "16", "--threads", "1", "--device", "cpu", "--json").json()
        event = next(event for event in log if event["event"] == "eval" and event["step"] == best)
        self.assertAlmostEqual(said["loss"], event["loss"], delta=1e-5)
        self.assertEqual(said["accuracy"], event["accuracy"])
        # The other state, and the best one again.
        self.export("run", "last")
        self.check_model("last", 60)
        self.fail_with(3, "the model there is the best already", "export", self.path("run"), "--best", "--out",
                       self.path("x"))
        self.assertNotIn(" step ", self.export("run", "gguf", "--gguf", "f32").out)
        # The same command again, and one that asks for the other state.
        again = self.command("run", *self.evaluated, "--steps", "60", save="30m")
        self.assertIn("already finished", self.succeed(*again).err)
        self.fail_with(2, f"has the model of step {best}; offload-train export {self.path('run')} --out DIR",
                       *again, "--result", "last")

    def test_the_last(self):
        result = self.run_once("last-one", 60, "--result", "last", save="30m")
        best, losses = self.check_overfitted("last-one"), self.losses("last-one")
        self.assertEqual([self.checkpoints("last-one"), self.best_states("last-one")], [[], [best]])
        self.assertRegex(result.err, "kept: 1 and the best, [0-9.]+ KiB · reserved: ")
        self.assertIn("result: last\n", result.err)
        way = f"offload-train export {self.path('last-one')} --best --out DIR"
        self.assertEqual(self.best_line(result.err)[1:], (str(best), None, "60", f"{losses[60]:.4f}", way))
        self.assertIn("once you have exported the best", result.err)
        done = self.log("last-one")[-1]
        self.assertEqual([done["best_eval_step"], done["best_checkpoint_step"], done["last_eval_step"]],
                         [best, best, 60])
        self.assertEqual([done["best_eval"], done["last_eval"]], [losses[best], losses[60]])
        # Only an evaluation that is better than all before it is saved.
        saved = [event["step"] for event in self.log("last-one") if event["event"] == "best"]
        self.assertEqual(saved, [step for step in losses if all(losses[step] < losses[b] for b in losses if b < step)])
        self.check_model("last-one", 60)
        self.check_exported("last-one", best)
        self.fail_with(2, "--best --out DIR", *self.command("last-one", *self.evaluated, "--steps", "60", "--result",
                                                            "best"))

    def test_one_that_is_better_at_its_end(self):
        result = self.run_once("better", 2 * EVERY, save="30m")
        self.assertNotIn("best    ", result.err)
        self.assertEqual([self.checkpoints("better"), self.best_states("better")], [[], [EVERY]])
        self.fail_with(3, "the model there is the best already", "export", self.path("better"), "--best", "--out",
                       self.path("x"))
        self.export("better", "better-gguf", "--best", "--gguf", "f32")
        self.fail_with(3, "is already an exported model", "export", self.path("better"), "--out", self.path("x"))
        self.check_model("better", 2 * EVERY)

    def test_over_stops_and_later_checkpoints(self):
        """Also a run that ended just before its result was written: it resumes after its last step."""
        self.run_once("long", 40, "--result", "last", save="23")
        best = self.best_of("long")
        self.check_kept("long", 23, best)
        self.run_once("long", 60, "--result", "last", "--resume", self.path("long/checkpoints"), save="20")
        self.check_kept("long", 60, best)
        os.remove(self.path("long/finished.json"))
        os.remove(self.path("long/checkpoints/complete"))
        self.assertIn("at step %d, the result" % best, self.run_once("long", 60, "--result", "best", save="20").err)
        self.check_model("long", best)

    def test_a_stopped_run_names_it(self):
        process = self.start("stopped", *self.evaluated, "--steps", "100000", save="30m")
        self.wait_for(process, lambda: 40 in self.losses("stopped") if self.logged("stopped", "step") else False)
        code, err = self.end_by(process, signal.SIGTERM)
        self.assertEqual(code, STOPPED, err)
        self.assertIn(f"at step {self.best_of('stopped')}", re.search("best    eval .*", err)[0])
        best, newest = self.best_of("stopped"), self.checkpoints("stopped")[-1]
        self.check_kept("stopped", newest, best)
        # Its two states, and what cannot be done with the best one.
        self.check_exported("stopped", best)
        self.check_model("stopped-best", best)
        folder = self.path(f"stopped/checkpoints/best/step-{best:08}")
        self.assertIn(", the weights alone, made ", self.succeed("verify", folder).out)
        said = self.succeed("verify", self.path("stopped")).out
        self.assertIn(f"step {newest} of", said)
        self.assertIn(f"step {best} of", said)
        self.fail_with(3, f"{folder}: has the weights of an evaluated state without the optimizer's moments",
                       *self.command("stopped", *self.evaluated, "--steps", "100000", "--resume", folder, save="30m"))

    def test_adapters(self):
        self.run_once("base", 30)
        more = ["--lora", "r=4", "--lr", "1e-1"]
        at = self.words.index("--init")
        words, type(self).words = self.words, ["--model", self.path("base"), *self.words[:1], *self.words[at + 2:]]
        self.addCleanup(setattr, type(self), "words", words)
        self.run_once("lora", 60, *more, save="30m")
        best = self.best_of("lora")
        self.assertLess(best, 60)
        self.check_kept("lora", 60, best)
        folder = self.path(f"lora/checkpoints/best/step-{best:08}")
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        adapters = os.path.getsize(self.path("lora/adapter_model.safetensors"))
        self.assertLess(size, 3 * adapters)  # adapters alone, without their moments
        self.check_model("lora", best, *more, name="adapter_model.safetensors")
        self.export("lora", "lora-last")
        self.check_model("lora-last", 60, *more, name="adapter_model.safetensors")

    def test_frozen_parts_and_nvme(self):
        """Frozen norms, and the other weights and their state on NVMe, to which checkpoints refer."""
        more = ["--freeze", "norms", "--dtype", "bf16"]
        result = self.run_once("nvme", 60, *more, *self.places["nvme"], save="30m")
        best, size = self.best_of("nvme"), "[0-9.]+ [KMG]iB"
        self.assertRegex(result.err, rf"\ncheckpoint \S+/step-00000060: ({size} written \({size}/s\), )?{size} referred "
                                     r"to on NVMe, in ")
        self.assertRegex(result.err, rf"\nbest state \S+/best/step-{best:08}: {size} written \({size}/s\), in ")
        self.assertLess(best, 60)
        self.check_kept("nvme", 60, best)
        self.check_model("nvme", best, *more)
        self.export("nvme", "nvme-last")
        self.check_model("nvme-last", 60, *more)

    def test_several_ranks(self):
        """Also with checkpoints that lie in a directory of each rank's own."""
        for shard in ("full", "none"):
            out = f"ranks-{shard}"
            more = ["--gpus", "2", "--shard", shard]
            self.run_once(out, 60, *more, save="30m")
            best = self.check_overfitted(out)
            self.check_kept(out, 60, best)
            self.check_model(out, best, *more)

    def test_the_last_state_cannot_be_saved(self):
        """Then the result is the last state, and the best one stays a checkpoint."""
        process = self.start("full", *self.evaluated, "--steps", "60", save="30m")
        folder = self.path("full/checkpoints")
        self.wait_for(process, lambda: self.best_states("full"))
        with open(os.path.join(folder, "step-00000060.partial"), "w", encoding="ascii"):
            pass  # stands in the way
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        err, best = err.decode(), self.best_of("full")
        self.assertIn("could not save the checkpoint of step 60", err)
        self.assertIn(f"the result is the state of the last step, not the best one, of step {best}", err)
        self.assertIn(f"offload-train export {self.path('full')} --best --out DIR", err)
        self.check_model("full", 60)
        self.check_exported("full", best)


    @unittest.skipUnless(FAULTS, "needs the library of faults")
    def test_the_model_cannot_be_written(self):
        """The last state has a checkpoint then, so the same command goes back to the best one again."""
        for more in ([], ["--gpus", "2"]):
            out = f"unwritten-{len(more)}"
            command = self.command(out, *self.evaluated, "--steps", "60", *more, save="30m")
            result = program.run(*command, env=preload("enospc:any:1+", "model.safetensors"))
            self.assertEqual(result.code, 5, result.err)
            self.assertIn(f"the last checkpoint is {self.path(out)}/checkpoints/step-00000060; the same command",
                          result.err)
            self.succeed(*command)
            best = self.log(out)[-1]["result_step"]
            self.check_kept(out, 60, best)
            self.check_model(out, best, *more)

    def test_a_damaged_best_state(self):
        self.run_once("hurt", 60, "--result", "last", save="20")
        best = self.best_of("hurt")
        for name in "finished.json", "checkpoints/complete":
            os.remove(self.path(f"hurt/{name}"))
        path = self.path(f"hurt/checkpoints/best/step-{best:08}/state.bin")
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(b"damage!!")
        words = self.command("hurt", *self.evaluated, "--steps", "60", save="20")
        result = program.run(*words, "--result", "best")
        self.assertEqual(result.code, 3, result.err)
        self.assertIn("error: the best state cannot be loaded (--result last makes the model of the last step)", result.err)
        self.assertIn(f"the last checkpoint is {self.path('hurt')}/checkpoints/step-00000060", result.err)
        self.succeed(*words, "--result", "last")
        self.check_model("hurt", 60)


class StopEarly(BestTest):
    def expected_end(self, losses, patience, delta=0):
        """The step after which transformers' EarlyStoppingCallback stops."""
        best, waited = None, 0
        for step, loss in losses.items():
            waited = 0 if best is None or (loss < best and best - loss > delta) else waited + 1
            best = loss if best is None else min(best, loss)
            if waited >= patience:
                return step
        return max(losses)

    def test_ends_where_transformers_does_also_over_a_stop(self):
        self.run_once("whole", 60)
        losses = self.losses("whole")
        best = self.best_of("whole")
        steps = sorted(losses)
        gain = (losses[steps[0]] - losses[steps[1]]) * 1.01  # the second evaluation gains a bit less
        for words, expected in (("3", self.expected_end(losses, 3)), (f"1,{gain}", self.expected_end(losses, 1, gain))):
            with self.subTest(words):
                result = self.run_once(f"early-{words}", 60, "--stop-early", words, save="30m")
                self.assertIn("in a row without a gain", result.err)
                self.assertEqual(max(self.losses(f"early-{words}")), expected)
                self.assertTrue(self.log(f"early-{words}")[-1]["stopped_early"])
                self.assertLess(expected, 60)
        self.assertEqual(expected, steps[1])  # a gain that is too small for DELTA is still the best
        self.check_model(f"early-{words}", steps[1])
        self.assertIn("done    %d of 60 steps" % steps[1], result.err)
        self.check_model("early-3", best)
        early = self.expected_end(losses, 3)
        again = self.command("early-3", *self.evaluated, "--steps", "60", "--stop-early", "3", save="30m")
        self.assertIn(f"{early} of 60 steps", self.succeed(*again).err)
        self.fail_with(2, f"ended it after {early} of 60 steps", *self.command(
            "early-3", *self.evaluated, "--steps", "60", "--stop-early", "9", save="30m"))
        # Patience that is over after the last step has not ended the run early.
        self.assertNotIn("stopped early", self.run_once("exact", early, "--stop-early", "3", save="30m").err)
        # A run that is stopped while its patience runs out, goes on without the option, and so ends the same way.
        last_gain = best + EVERY
        process = self.start("stopped", *self.evaluated, "--steps", "60", "--stop-early", "3", save="1")
        self.wait_for(process, lambda: last_gain in self.logged("stopped", "eval"))
        code, err = self.end_by(process, signal.SIGTERM)
        self.assertEqual(code, STOPPED, err)
        self.run_once("stopped", 60, save="1")
        self.assertEqual(self.losses("stopped"), {step: losses[step] for step in steps if step <= early})
        self.check_model("stopped", best)
        # Patience that was over when the run ended before its result was written.
        os.remove(self.path("stopped/finished.json"))
        os.remove(self.path("stopped/checkpoints/complete"))
        self.assertIn(f"done    {early} of 60", self.run_once("stopped", 60, save="1").err)
        # A longer patience goes on.
        self.run_once("stopped", 60, "--stop-early", "100", "--resume", self.path("stopped/checkpoints"), save="1")
        self.assertEqual(max(self.losses("stopped")), 60)

    def test_by_accuracy(self):
        more = ["--eval-metric", "accuracy", "--stop-early", "4"]
        result = self.run_once("accuracy", 60, *more, save="30m")
        evals = {event["step"]: event for event in self.log("accuracy") if event["event"] == "eval" and event["step"]}
        hits = {step: round(event["accuracy"] * event["trained_tokens"]) for step, event in evals.items()}
        for step, event in evals.items():
            self.assertAlmostEqual(hits[step], event["accuracy"] * event["trained_tokens"], delta=1e-5)
        best = max(hits, key=hits.get)
        self.assertEqual(max(hits), self.expected_end({step: -hit for step, hit in hits.items()}, 4))
        self.assertNotEqual(best, self.best_of("accuracy"))  # the loss would choose another one
        self.assertIn("result: best by accuracy · stops after 4 evaluations in a row", result.err)
        line = self.best_line(result.err)
        self.assertEqual(line[:3], (f"accuracy {100 * evals[best]['accuracy']:.2f} %", str(best), ", the result"))
        self.check_model("accuracy", best)
        self.fail_with(2, "--eval-metric accuracy, you gave loss", *self.command(
            "accuracy", *self.evaluated, "--steps", "60", "--eval-metric", "loss", save="30m"))
        # The counts are the same with other micro-batches and with ranks.
        other = self.run_once("accuracy-ranks", 60, *more, "--gpus", "2", save="30m")
        self.assertEqual([event["accuracy"] for event in self.log("accuracy-ranks") if event["event"] == "eval"],
                         [event["accuracy"] for event in self.log("accuracy") if event["event"] == "eval"], other.err)


class NotKept(BestTest):
    def test_said(self):
        result = self.run_once("never", 60)
        best = self.check_overfitted("never")
        self.assertRegex(result.err, "checkpoints when stopped · .* · kept: 1\n")
        self.assertIn(f"after step {best}, is not kept: --save-every never", result.err)
        self.assertFalse(os.path.exists(self.path("never/checkpoints")))
        self.fail_with(3, "has no checkpoints to find the best of", "export", self.path("never"), "--best", "--out",
                       self.path("x"))
        result = self.succeed("train", *self.words, "--data", self.rows, *self.evaluated, "--steps", "60", "--no-save",
                              "--stop-early", "2")
        self.assertIn("is not kept: --no-save", result.err)
        self.assertIn("stopped early: 2 evaluations", result.err)
        for words, message in ((["--save-every", "never"], "leave out --save-every never"),
                               (["--eval-fraction", "0"], "add --eval-data FILE"),
                               ([], "no rows are held out; add --eval-data FILE")):
            self.fail_with(2, message, "train", *self.words[:-2], "--data", self.rows, "--steps", "9", "--result",
                           "best", *words)

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
        self.check_kept("later", 60, self.best_of("later"))

    def test_the_state_of_a_checkpoint_is_the_best(self):
        """The resumed run evaluates its checkpoint's state, and saves its weights if no later one is better."""
        self.resume("again", "--eval-every", "10")
        best = self.best_of("again")
        self.assertIn(best, (10, 20))
        self.assertIn(10, [event["step"] for event in self.log("again") if event["event"] == "best"])
        record = json.loads(read_bytes(self.path(f"again/checkpoints/best/step-{best:08}/checkpoint.json")))
        self.assertEqual(record["eval"]["last_step"], best)
        self.check_kept("again", 60, best)

    def test_the_checkpoint_of_a_stop_has_the_best_state(self):
        """As if a signal had ended the run between the best evaluation and the save of its weights."""
        self.run_once("whole", 60)
        best = self.check_overfitted("whole")
        self.run_once("right", best, save=str(best))
        for name in "finished.json", "checkpoints/complete":
            os.remove(self.path(f"right/{name}"))
        self.assertEqual([self.checkpoints("right"), best in self.best_states("right")], [[best], False])
        self.run_once("right", 60, save="30m")
        self.assertEqual([event["step"] for event in self.log("right") if event["event"] == "best"][-1], best)
        self.check_kept("right", 60, best)
        self.check_model("right", best)


if __name__ == "__main__":
    program.main()
