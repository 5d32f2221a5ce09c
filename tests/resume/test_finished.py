"""A command whose run has finished is started again: nothing is trained, and the result is verified. With --resume
never the old result stays until the new one is complete."""

import json
import os
import shutil
import signal

import program
from program import read_bytes, run, sql_rows, write_rows
from stopping import StoppingTest

FILES = ("model.safetensors", "config.json", "log.jsonl", "run.json", "finished.json")


class Finished(StoppingTest):
    words = [*StoppingTest.words, "--steps", "6", "--eval-fraction", "0"]
    flat = ("--schedule", "constant", "--warmup", "2")

    def contents(self, out):
        return {name: read_bytes(self.path(f"{out}/{name}")) for name in FILES}

    def inodes(self, out):
        return {name: os.stat(self.path(f"{out}/{name}")).st_ino for name in FILES}

    def test_a_second_start_verifies_and_trains_nothing(self):
        for save in ("never", "2"):
            out = f"twice-{save}"
            self.succeed(*self.command(out, "--save-every", save))
            before, inodes = self.contents(out), self.inodes(out)
            result = self.succeed(*self.command(out, "--save-every", save, "--json"))
            self.assertIn(f"already finished: {self.path(out)} · 6 of 6 steps", result.err)
            self.assertIn("verified: ", result.err)
            self.assertIn("to train again: --resume never", result.err)
            events = result.events()
            self.assertEqual(events, [{"event": "already_finished", "time": events[0].get("time"), "out": self.path(out), "steps": 6}])
            self.assertEqual((self.contents(out), self.inodes(out)), (before, inodes))
            self.assertEqual(os.listdir(self.folder).count(out + ".partial"), 0)

    def test_another_run_is_refused(self):
        """Another learning rate, other rows or more steps do not replace the result unless the user asks for it."""
        self.succeed(*self.command("other", *self.flat, "--save-every", "2"))
        before = self.contents("other")
        self.fail_with(2, "--lr 0.003, you gave 0.001. Use the checkpoint's settings, --resume never",
                       *self.command("other", *self.flat, "--lr", "0.001", "--quiet"))
        rows = write_rows(self.path("more.jsonl"), sql_rows(61))
        self.fail_with(3, "61 rows with ", *self.command("other", *self.flat, "--data", rows, "--quiet"))
        line = self.fail_with(2, "this run is finished after 6 steps; if checkpoints are left, use --resume ",
                              *self.command("other", *self.flat, "--steps", "9", "--quiet"))
        self.assertEqual(self.contents("other"), before)
        option = line[line.index("--resume "):].split(" to go on ")[0].split(" ")
        self.succeed(*self.command("other", *self.flat, "--steps", "9", *option))
        self.succeed(*self.command("whole", *self.flat, "--steps", "9"))
        self.check_equal("other", "whole", "step")
        self.assertIn("already finished", self.succeed(*self.command("other", *self.flat, "--steps", "9")).err)

    def test_a_damaged_result_is_not_passed_over(self):
        self.succeed(*self.command("damaged"))
        path = self.path("damaged/model.safetensors")
        os.truncate(path, os.path.getsize(path) - 1)
        self.fail_with(3, "this run is finished, but its result is damaged: ", *self.command("damaged", "--quiet"))
        self.succeed(*self.command("damaged", "--resume", "never"))
        with open(self.path("damaged/finished.json"), "w") as file:
            file.write("{")
        self.fail_with(3, "finished.json", *self.command("damaged", "--quiet"))

    def test_never_keeps_the_old_result_until_the_new_one_is_whole(self):
        self.succeed(*self.command("anew"))
        before = self.contents("anew")
        words = ("--resume", "never", "--seed", "5", "--steps", "400", "--save-every", "3")
        for _ in range(2):  # the second attempt meets what the first has left
            process = self.start("anew", *words)
            self.assertTrue(self.wait_for(process, lambda: self.checkpoints("anew")))
            self.assertIsNotNone(self.end(process, signal.SIGKILL, -9))
            after = self.contents("anew") | {"log.jsonl": read_bytes(self.path("anew/log.old.jsonl"))}
            self.assertEqual(after, before)
            self.succeed("verify", self.path("anew"), "--quiet")
        # The killed run has not finished. So the same command resumes it and does not report the old, finished run.
        again = [word for word in words if word not in ("--resume", "never")]
        result = self.succeed(*self.command("anew", *again, "--steps", "400"))
        self.assertIn("resume  ", result.err)
        self.assertNotEqual(self.contents("anew")["model.safetensors"], before["model.safetensors"])
        self.assertFalse(os.path.exists(self.path("anew/log.old.jsonl")))
        self.assertEqual(json.loads(read_bytes(self.path("anew/finished.json")))["progress"]["step"], 400)

    def test_a_new_run_that_came_to_nothing_leaves_the_old_result(self):
        self.succeed(*self.command("nothing"))
        before = self.contents("nothing")
        process = self.start("nothing", "--resume", "never", "--seed", "5", "--steps", "4000", "--save-every", "never")
        self.assertTrue(self.wait_for(process, lambda: self.logged("nothing", "step", 3)))
        self.assertIsNotNone(self.end(process, signal.SIGKILL, -9))
        self.assertIn("already finished", self.succeed(*self.command("nothing")).err)
        self.assertEqual(self.contents("nothing"), before)
        self.assertFalse(os.path.exists(self.path("nothing/log.old.jsonl")))

    def test_what_is_no_result_of_a_run_is_not_taken_for_one(self):
        """A stopped run and an export are no finished runs."""
        self.stop_after(2, "stopped", "--save-every", "2", "--steps", "2000", number=signal.SIGTERM)
        self.assertFalse(os.path.exists(self.path("stopped/finished.json")))
        self.succeed("export", self.path("stopped"), "--out", self.path("exported"))
        self.assertNotIn("already finished", self.succeed(*self.command("exported")).err)

    def test_a_dry_run_of_a_finished_run_shows_the_plan(self):
        self.succeed(*self.command("dry"))
        result = self.succeed(*self.command("dry", "--dry-run"))
        self.assertIn("this run is finished already; the plan is for --resume never", result.err)
        self.assertIn("\nplan    ", result.err)
        # What the command refuses without --dry-run is refused with it, with the same words.
        self.fail_with(2, "this run is finished after 6 steps", *self.command("dry", "--dry-run", "--steps", "9", "--quiet"))
        for more in (["--lr", "0.5"], [*self.flat]):
            real = self.fail_with(2, "--resume never", *self.command("dry", *more, "--quiet"))
            self.assertEqual(self.fail_with(2, "--resume never", *self.command("dry", "--dry-run", *more, "--quiet")), real)
        self.succeed(*self.command("dry", "--dry-run", "--lr", "0.5", "--resume", "never"))


if __name__ == "__main__":
    program.main()
