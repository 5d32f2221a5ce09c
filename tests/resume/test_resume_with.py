"""--resume-with: a run goes on with other options. Steps up to the checkpoint stay as they are, later ones have the new
values, and a stop in the changed run costs no bit."""

import glob
import json
import os
import shutil

import program
from program import SMALL, read_bytes, run, sql_rows, write_rows

COSINE_FLOOR = 0.1


class ResumeWith(program.ProgramTest):
    """base/: 20 steps of 4 sequences, with a checkpoint of its end. 60 rows make 15 steps an epoch."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.other = write_rows(cls.path("other.jsonl"), sql_rows(80)[40:])
        result = run(*cls.command("base", "--steps", "20", "--schedule", "constant", "--save-end", "--save-every", "never"))
        assert result.code == 0, result.err
        assert cls.checkpoints("base") == [20], cls.checkpoints("base")

    @classmethod
    def command(cls, out, *more, rows=None, split=False):
        return ["train", "--no-forecast", *SMALL, "--data", rows or cls.rows, "--out", cls.path(out), "--micro-batch", "2",
                *([] if "--eval-fraction" in more or split else ["--eval-fraction", "0"]), *more]

    @classmethod
    def checkpoints(cls, out):
        return sorted(int(path[-8:]) for path in glob.glob(cls.path(f"{out}/checkpoints/step-*")))

    def copy(self, out):
        shutil.rmtree(self.path(out), ignore_errors=True)
        shutil.copytree(self.path("base"), self.path(out))
        return out

    def go_on(self, out, *more, rows=None, split=False):
        return self.succeed(*self.command(out, *more, rows=rows, split=split))

    def steps(self, out, key="step"):
        return [event[key] for event in self.log(out) if event["event"] == "step"]

    def history(self, out):
        return json.loads(read_bytes(self.path(f"{out}/run.json"))).get("history")

    def same_model(self, one, other):
        self.assertEqual(read_bytes(self.path(f"{one}/model.safetensors")), read_bytes(self.path(f"{other}/model.safetensors")))

    def refuse(self, code, phrase, *more, out="base", rows=None):
        return self.fail_with(code, phrase, *self.command(out, "--quiet", *more, rows=rows))

    def test_a_finished_run_gets_longer_with_its_moments(self):
        out = self.copy("longer")
        result = self.go_on(out, "--resume-with", "steps=40")
        self.assertIn("\n        changed from step 21 on: steps 20 -> 40\n", result.err)
        self.go_on("whole", "--steps", "40", "--schedule", "constant")
        self.same_model(out, "whole")  # a constant rate, so the whole run computes the same steps
        self.assertEqual(self.steps(out), list(range(1, 41)))
        self.assertEqual(self.steps(out, "loss"), self.steps("whole", "loss"))
        self.assertEqual(self.history(out), [{"step": 20, "changes": {"steps": ["20", "40"]}}])
        self.assertIsNone(self.history("whole"))
        twice = self.copy("twice")
        config = self.path("twice.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"steps": 24}, file)
        self.go_on(twice, "--config", config, "--resume-with", "steps", "--save-end")
        self.go_on(twice, "--resume-with", "steps=26,clip=2")
        self.assertEqual(self.history(twice), [{"step": 20, "changes": {"steps": ["20", "24"]}},
                                               {"step": 24, "changes": {"steps": ["24", "26"], "clip": ["1.0", "2.0"]}}])
        again = self.go_on(out, "--resume-with", "steps=40")
        self.assertIn("already finished", again.err)
        again = self.succeed("train", "--config", self.path(f"{out}/run.json"), "--out", self.path("again"), "--save-every", "never")
        self.assertIn("40 of 40 steps", again.err)

    def test_another_rate_and_schedule_from_here_on(self):
        out = self.copy("rate")
        self.go_on(out, "--resume-with", "lr=1e-3,schedule=linear", "--steps", "30", "--resume-with=steps,lr=1e-3,schedule=linear")
        rates = self.steps(out, "lr")
        self.assertEqual(rates[:20], self.steps("base", "lr"))
        for step in range(21, 31):  # the rates of a run that had this schedule all along; its warm-up has one step
            self.assertAlmostEqual(rates[step - 1], 1e-3 * (31 - step) / 30, delta=1e-11)
        self.assertNotEqual(rates[20], rates[19])
        self.assertEqual(self.history(out)[0]["changes"], {"steps": ["20", "30"], "lr": ["0.003", "0.001"],
                                                            "schedule": ["constant", "linear"]})

    def test_a_named_warmup_begins_the_schedule_anew(self):
        out = self.copy("anew")
        result = self.go_on(out, "--resume-with", "lr=1e-3,warmup=4,schedule=linear,steps=30")
        self.assertIn("the schedule of learning rates begins anew with step 21\n", result.err)
        rates = self.steps(out, "lr")
        for step in range(1, 11):
            expected = 1e-3 * step / 4 if step < 4 else 1e-3 * (11 - step) / 7
            self.assertAlmostEqual(rates[19 + step], expected, delta=1e-11)

    def test_other_rows_begin_with_a_new_epoch(self):
        whole = self.copy("rows")
        result = self.go_on(whole, "--resume-with", "data,epochs=4", "--save-every", "4", "--keep", "9", rows=self.other)
        self.assertIn("the rows begin anew with step 21, as epoch 3\n", result.err)
        self.assertIn(" · 40 steps, to the end of epoch 4\n", result.err)  # 40 rows: 10 steps an epoch
        epochs = self.steps(whole, "epoch")
        self.assertAlmostEqual(epochs[19], 4 / 3)
        for i, epoch in enumerate(epochs[20:]):
            self.assertAlmostEqual(epoch, 2 + (i + 1) / 10)
        trained = self.steps(whole, "trained_tokens")
        self.assertEqual(sum(trained[20:30]), sum(trained[30:40]))  # both epochs have all rows
        self.assertEqual(self.history(whole)[0]["changes"]["data"], ["60 rows", "40 rows"])
        # Stops behind the change: the same command goes on, and so does one without the option.
        for step, words in (24, ["--resume-with", "data,epochs=4"]), (28, []), (32, ["--resume-with", "data,epochs=4"]):
            out = self.copy(f"stopped-{step}")
            shutil.copytree(self.path(f"{whole}/checkpoints/step-{step:08}"), self.path(f"{out}/checkpoints/step-{step:08}"))
            os.unlink(self.path(f"{out}/checkpoints/complete"))
            result = self.go_on(out, *words, rows=self.other)
            self.assertNotIn("changed from", result.err)
            self.same_model(out, whole)
            self.assertEqual(self.history(out), self.history(whole))

    def test_a_change_has_the_same_bits_everywhere(self):
        whole = self.copy("here")
        change = ["--resume-with", "tokens-per-step=1024,steps=30,weight-decay=0.1,clip=0.5,beta2=0.99"]
        self.go_on(whole, *change)
        other = self.copy("there")
        self.go_on(other, *change, "--home", "host", "--threads", "2", "--save-every", "1")
        self.same_model(whole, other)
        ranks = self.copy("ranks")
        self.go_on(ranks, *change, "--device", "cpu", "--gpus", "2", "--shard", "stages")
        self.same_model(whole, ranks)
        epochs = self.steps(whole, "epoch")  # 8 sequences a step go on where 4 a step stopped: 20 of 60 in epoch 2
        for i, epoch in enumerate(epochs[20:25]):
            self.assertAlmostEqual(epoch, 1 + min(20 + 8 * (i + 1), 60) / 60)
        self.assertAlmostEqual(epochs[25], 2 + 8 / 60)

    def test_evaluations_that_cannot_be_compared_begin_anew(self):
        held = write_rows(self.path("held.jsonl"), sql_rows(84)[80:])
        evals = ["--eval-data", self.other, "--eval-every", "5", "--save-end"]
        self.go_on("evals", "--steps", "10", *evals)
        self.assertTrue(os.path.exists(self.path("evals/checkpoints/best/step-00000005")))
        shutil.copytree(self.path("evals"), self.path("evals-metric"))
        result = self.go_on("evals", "--steps", "20", "--lr", "1e-9", "--resume-with", "eval-data,steps,lr",
                            "--eval-data", held, "--eval-every", "5", "--save-end")
        self.assertIn("evaluations begin anew", result.err)
        self.assertIn("best-before-step-00000010\n", result.err)
        self.assertNotIn("the rows begin anew", result.err)
        events = [event for event in self.log("evals") if event["event"] == "eval"]
        self.assertEqual([event["step"] for event in events], [0, 5, 10, 10, 15, 20])
        self.assertEqual(events[3]["rows"], 4)
        record = json.loads(read_bytes(self.path("evals/finished.json")))
        self.assertAlmostEqual(record["eval"]["first_loss"], events[3]["loss"], delta=1e-7)
        kept = glob.glob(self.path("evals/best-before-step-00000010/step-*"))
        self.assertEqual([path[-8:] for path in kept], ["00000005"])
        self.succeed("export", kept[0], "--out", self.path("exported"))
        result = self.go_on("evals-metric", *evals, "--resume-with", "eval-metric=accuracy,steps=15")
        self.assertIn("evaluations begin anew", result.err)
        # A step later the run is stopped, and goes on: the state before the change is not compared with later ones.
        self.assertEqual(json.loads(read_bytes(self.path("evals-metric/finished.json")))["run"]["evals_first"], 10)

    def test_held_out_rows_that_are_given_now_change_the_rows_too(self):
        self.go_on("split", "--steps", "10", "--save-end", "--eval-fraction", "10%")
        result = self.go_on("split", "--resume-with", f"eval-data={self.other},steps=20", split=True)
        self.assertIn("the rows begin anew with step 11, as epoch 2\n", result.err)
        self.assertIn("60 train / 40 eval rows", result.err)

    def test_what_cannot_be(self):
        self.refuse(2, "train has no option 'learning'; an item is OPTION=VALUE", "--resume-with", "learning=1")
        self.refuse(2, "--resume-with model: --model cannot change in a run that goes on; start a new run from the weights",
                    "--resume-with", "model=tiny-sql")
        self.refuse(2, "--resume-with threads: not needed", "--resume-with", "threads=3")
        self.refuse(2, "--resume-with clip: give its value, clip=VALUE", "--resume-with", "clip")
        self.refuse(2, "name an option, such as lr=1e-5", "--resume-with", ",")
        self.refuse(2, "--resume-with: lr fast: ", "--resume-with", "lr=fast")
        self.refuse(2, "--resume-with has no effect with --resume never", "--resume-with", "lr=1", "--resume", "never")
        self.refuse(2, "all 20 steps of the run are done in ", "--resume-with", "lr=1e-3")
        self.refuse(2, "the run would end after 19 steps, but 20 are done already", "--resume-with", "steps=19")
        self.refuse(2, "--warmup 11 is longer than the run's 10 steps that are left", "--resume-with", "steps=30,warmup=11")
        self.refuse(2, "go on with the new rates from here (--resume-with steps=30)", "--steps", "30",
                    "--schedule", "linear", out=self.linear())
        self.refuse(3, "40 rows with ", "--resume-with", "steps=30", rows=self.other)
        self.refuse(3, "no such run: ", "--resume-with", "lr=1e-3", out="nothing")
        out = self.copy("without")
        shutil.rmtree(self.path(f"{out}/checkpoints"))
        self.refuse(3, "is finished and has kept no checkpoint, so its optimizer's moments are gone", "--resume-with", "steps=30",
                    out=out)

    def linear(self):
        result = run(*self.command("linear", "--steps", "10", "--schedule", "linear", "--save-end", "--save-every", "never"))
        self.assertEqual(result.code, 0, result.err)
        os.unlink(self.path("linear/checkpoints/complete"))
        os.unlink(self.path("linear/finished.json"))
        return "linear"

    def test_a_finished_run_without_its_last_state_says_so(self):
        self.go_on("behind", "--steps", "10", "--save-every", "6")
        result = self.go_on("behind", "--resume-with", "steps=12")
        self.assertIn("ended after step 10, but its newest checkpoint is of step 6: it goes on from there", result.err)
        self.assertEqual(self.steps("behind"), list(range(1, 13)))


if __name__ == "__main__":
    program.main()
