"""The built program is stopped by signals and killed at any time, on every kind of plan, and resumed."""

import os
import random
import signal
import subprocess

import program
from program import STOPPED
from resumable import SLOW, ResumableTest

KILLS = int(os.environ.get("OT_TEST_KILLS", "200" if SLOW else "12"))


class Stopped(ResumableTest):
    def test_a_signal_then_the_same_command(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for _ in range(20):  # the run may be over before the signal arrives
                self.clear("a")
                process = self.start("a")
                self.wait_for(process, lambda: self.checkpoints("a"))
                code, err = self.end_by(process, number)
                if code != 0:
                    break
            self.assertEqual(code, STOPPED, err)
            self.assertIn("resume", err)
            self.assertIn(len(self.checkpoints("a")), (1, 2), err)
            self.succeed(*self.command("a"))
            self.check_equal("a", self.whole(), number)
            self.check_counted("a", number)

    def test_a_line_of_the_log_that_was_cut_short(self):
        process = self.start("torn")
        self.wait_for(process, lambda: self.logged("torn", "checkpoint"))
        self.end_by(process, signal.SIGKILL)
        self.assertGreater(self.checkpoints("torn"), [])
        with open(self.path("torn/log.jsonl"), "a") as log:
            log.write('{"event":"step","step":1')
        self.go_on("torn")
        self.check_equal("torn", self.whole())

    def test_kill_9(self):
        draw = random.Random(1)
        outs = ["k"]
        far = self.other_file_system()
        if far:
            outs.append(os.path.join(far, "k"))
        self.whole()
        kills = runs = 0
        while kills < KILLS:
            out, place = draw.choice(outs), draw.choice(list(self.places))
            more = [*self.places[place], "--io-engine", draw.choice(["auto", "pool"])]
            dtype = draw.choice([[], ["--dtype", "bf16"]])
            self.clear(out)
            label = f"kill {kills}: {out} {dtype} {more}"
            killed = True
            while killed:
                killed = self.kill_after(draw.uniform(0, 3 * self.run_seconds), self.start(out, *dtype, *more), label)
                kills += killed
                runs += 1
                if killed:
                    self.verify(out)
            self.check_equal(out, self.whole(*dtype), label)
            self.check_tidy(out, label)
        self.assertGreater(runs, kills)

    def kill_after(self, seconds, process, label):
        """Returns True if the run had not finished by then."""
        try:
            _, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return process.returncode == -signal.SIGKILL
        self.assertEqual(process.returncode, 0, label + err.decode())
        return False


class InFlight(ResumableTest):
    def test_saves_beside_the_steps(self):
        """A checkpoint after every step, with saving threads (which the thread sanitizer watches too)."""
        for i, place in enumerate(("host", "mixed", "nvme")):
            more = [*self.places[place], "--io-engine", ("pool", "auto")[i % 2]]
            self.succeed(*self.command(place, *more, save="1"))
            self.assertEqual(len(self.logged(place, "checkpoint")), 20)
            self.check_equal(place, self.whole(), place)
            self.check_tidy(place, place)


if __name__ == "__main__":
    program.main()
