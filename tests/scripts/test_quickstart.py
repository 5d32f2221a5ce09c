"""scripts/quickstart in a pod that is taken away: its stop is the program's stop, and the next start goes on, also if the first
is killed at the end of its grace.

Usage: test_quickstart.py PROGRAM
"""

import json
import os
import shutil
import signal
import subprocess
import time

import program
from program import PROGRAM, STOPPED

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


class Quickstart(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        """A tree that is built already: ninja finds the program up to date."""
        super().setUpClass()
        shutil.copytree(f"{ROOT}/scripts", cls.path("scripts"))
        os.makedirs(cls.path("build"))
        shutil.copy(PROGRAM, cls.path("build/offload-train"))
        with open(cls.path("build/build.ninja"), "w", encoding="utf-8") as file:
            file.write("build offload-train: phony\n")

    def start(self):
        return subprocess.Popen([self.path("scripts/quickstart")], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self):
        try:
            with open(self.path("demo/out/log.jsonl"), encoding="utf-8") as file:
                return [event["step"] for event in map(json.loads, file.read().splitlines()) if event["event"] == "step"]
        except (OSError, json.JSONDecodeError):  # not there yet, or a line is not complete
            return []

    def start_until(self, step):
        started = self.start()
        self.addCleanup(started.kill)
        while started.poll() is None and step not in self.steps():
            time.sleep(0.05)
        self.assertIsNone(started.poll(), started.communicate()[1] if started.poll() is not None else "")
        return started

    def test_it_is_taken_away_and_goes_on(self):
        first = self.start_until(20)
        first.send_signal(signal.SIGTERM)  # as a pod does: to the script alone
        self.assertEqual(first.wait(timeout=60), STOPPED, first.communicate()[1])
        saved = self.steps()[-1]
        second = self.start_until(saved + 20)
        second.send_signal(signal.SIGTERM)
        second.kill()  # the end of its grace
        second.wait(timeout=60)
        third = self.start_until(saved + 21)
        self.assertGreaterEqual(min(self.steps()[-3:]), saved)  # it began at a checkpoint, not at step 1
        third.send_signal(signal.SIGTERM)
        self.assertEqual(third.wait(timeout=60), STOPPED)
        self.assertIn("\nresume  ", third.communicate()[1])


if __name__ == "__main__":
    program.main()
