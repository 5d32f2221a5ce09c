"""scripts/gpu-report on the cpu device: it needs nothing but the program, bounds its time, and its files say the same."""

import json
import os
import subprocess
import unittest

import program

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "gpu-report")


class GpuReport(program.ProgramTest):
    def report(self, *words, code=0):
        done = subprocess.run([SCRIPT, "--program", program.PROGRAM, "--device", "cpu", *words], capture_output=True,
                              text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_rows_of_what_ran_and_of_what_did_not_fit(self):
        out = self.path("report")
        self.report("--models", "tiny-test", "--tokens", "512", "--budget", "1M", "--seq-len", "128", "--out", out,
                    "--minutes", "5", "--steps", "4", "--data", self.rows)
        with open(os.path.join(out, "report.json")) as file:
            report = json.load(file)
        self.assertGreater(len(report["probe"]["rows"]), 30)
        ran, refused = report["training"]
        self.assertEqual((ran["model"], ran["tokens_per_step"], ran["kind"]), ("tiny-test", 512, "resident"))
        self.assertGreater(ran["tokens_per_s"], 0)
        self.assertGreater(ran["mfu"], 0)
        self.assertLessEqual(sum(ran["exposed_percent"].values()), 100)
        self.assertEqual(refused["exit_code"], 4)
        self.assertEqual(report["not_run"], [])
        with open(os.path.join(out, "report.md")) as file:
            text = file.read()
        self.assertIn(f"| tiny-test | 512 | resident | {ran['tokens_per_s']} | {ran['mfu']} % |", text)
        self.assertIn(report["probe"]["device"], text)
        self.assertRegex(text, r"\| tiny-test \| 512 \| 1M \| - .*needs")
        with open(os.path.join(out, "tiny-test-512-resident.trace.json")) as file:
            self.assertGreater(len(json.load(file)["traceEvents"]), 20)

    def test_when_the_time_is_up_the_rest_is_named(self):
        out = self.path("short")
        self.report("--models", "tiny-test", "--tokens", "512 256", "--seq-len", "128", "--out", out, "--minutes", "0")
        with open(os.path.join(out, "report.json")) as file:
            report = json.load(file)
        self.assertEqual(report["training"], [])
        self.assertEqual(report["not_run"], ["tiny-test-512-resident", "tiny-test-512-24G", "tiny-test-256-resident",
                                             "tiny-test-256-24G"])

    def test_bad_options(self):
        for words, phrase in ((["--minutes", "soon"], "whole number"), (["--steps", "2"], "from 4 on"),
                              (["--what"], "unknown option"), (["--data", "absent.jsonl"], "cannot be read")):
            self.assertIn(phrase, self.report(*words, code=2).stderr)


if __name__ == "__main__":
    program.main()
