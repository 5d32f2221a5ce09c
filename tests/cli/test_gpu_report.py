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
        ran, refused, on_disk, planned = report["training"]
        self.assertEqual((ran["model"], ran["tokens_per_step"], ran["kind"]), ("tiny-test", 512, "resident"))
        self.assertGreater(ran["tokens_per_s"], 0)
        self.assertGreater(ran["mfu"], 0)
        self.assertLessEqual(sum(ran["exposed_percent"].values()), 100)
        for row in (refused, on_disk, planned):
            self.assertEqual(row["exit_code"], 4)
        self.assertEqual(report["not_run"], [])
        with open(os.path.join(out, "report.md")) as file:
            text = file.read()
        self.assertIn(f"| tiny-test | 512 | resident | {ran['tokens_per_s']} | {ran['mfu']} % |", text)
        self.assertIn(report["probe"]["device"], text)
        self.assertRegex(text, r"\| tiny-test \| 512 \| 1M \| - .*needs")
        with open(os.path.join(out, "tiny-test-512-resident.trace.json")) as file:
            self.assertGreater(len(json.load(file)["traceEvents"]), 20)

    def test_state_on_disk_and_how_near_the_predictions_are(self):
        out = self.path("disk-report")
        os.mkdir(self.path("disk"))
        self.report("--models", "tiny-test", "--tokens", "512", "--budget", "16M", "--seq-len", "128", "--out", out,
                    "--minutes", "5", "--steps", "5", "--data", self.rows, "--nvme", self.path("disk"))
        with open(os.path.join(out, "report.json")) as file:
            rows = json.load(file)["training"]
        self.assertEqual([row["kind"] for row in rows], ["resident", "16M", "16M-nvme", "16M-planned"])
        for row in rows:
            self.assertGreater(row["predicted_step_s"], 0)
            self.assertGreater(row["measured_step_s"], 0)
            self.assertAlmostEqual(row["prediction_off_percent"],
                                   100 * (row["predicted_step_s"] / row["measured_step_s"] - 1), delta=0.06)
        with open(os.path.join(out, "tiny-test-512-16M-nvme.jsonl")) as file:
            done = [json.loads(line) for line in file][-1]
        self.assertGreater(done["nvme_written_bytes"], 0)
        with open(os.path.join(out, "report.md")) as file:
            text = file.read()
        errors = sorted(abs(row["prediction_off_percent"]) for row in rows)
        self.assertIn(f"{errors[-1]} % at most", text)
        self.assertRegex(text, r"\| tiny-test \| 512 \| 16M-nvme \| \d+\.\d+ \| \d+\.\d+ \| -?\d+\.\d % \|")
        self.assertEqual(os.listdir(self.path("disk")), [])

    def test_when_the_time_is_up_the_rest_is_named(self):
        out = self.path("short")
        self.report("--models", "tiny-test", "--tokens", "512 256", "--seq-len", "128", "--out", out, "--minutes", "0")
        with open(os.path.join(out, "report.json")) as file:
            report = json.load(file)
        self.assertEqual(report["training"], [])
        self.assertEqual(report["not_run"], [f"tiny-test-{tokens}-{kind}" for tokens in (512, 256)
                                             for kind in ("resident", "24G", "24G-nvme", "24G-planned")])

    def test_bad_options(self):
        for words, phrase in ((["--minutes", "soon"], "whole number"), (["--steps", "2"], "from 4 on"),
                              (["--what"], "unknown option"), (["--data", "absent.jsonl"], "cannot be read"),
                              (["--nvme", "absent"], "is no directory")):
            self.assertIn(phrase, self.report(*words, code=2).stderr)


if __name__ == "__main__":
    program.main()
