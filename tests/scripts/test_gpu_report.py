"""scripts/gpu-report on the cpu device: its rows, cases that do not fit, cases that fail, and the end of its time."""

import json
import os
import subprocess
import unittest

import program

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "gpu-report")


class GpuReport(program.ProgramTest):
    def report(self, *words, code=0):
        done = subprocess.run([SCRIPT, "--program", program.PROGRAM, "--device", "cpu", "--rehearse", *words],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def read(self, out):
        with open(os.path.join(out, "report.json")) as file, open(os.path.join(out, "report.md")) as text:
            return json.load(file), text.read()

    def test_rows_of_what_ran(self):
        out = self.path("report")
        self.report("--out", out, "--minutes", "5")
        report, text = self.read(out)
        self.assertGreater(len(report["probe"]["rows"]), 30)
        peak = max(row["flops_per_s"] for row in report["probe"]["rows"] if row["group"] == "gemm")
        self.assertIn("cores ", " ".join(report["facts"]))
        rows = report["training"]
        self.assertEqual([(row["tokens_per_step"], row["mix"]) for row in rows],
                         [(32, "planned"), (32, "state nvme"), (16, "planned"), (16, "state nvme"), (32, "all gpu")])
        for row in rows:
            self.assertIn(row["status"], ("done", "same"))
        done = [row for row in rows if row["status"] == "done"]
        self.assertGreaterEqual(len(done), 3)
        with open(os.path.join(out, "bench-tiny-offloaded", "bench.json")) as file:
            flops = json.load(file)["flops_per_token"]
        for row in done:
            self.assertAlmostEqual(row["mfu_percent"], 100 * row["tokens_per_s"] * flops / peak, delta=0.06)
            self.assertAlmostEqual(row["prediction_off_percent"],
                                   100 * (row["predicted_step_s"] / row["step_s"] - 1), delta=0.2)
            self.assertIn(f"| tiny-test | {row['tokens_per_step']} | {row['gpu_mem_gib']} GiB | {row['mix']} | "
                          f"{row['tokens_per_s']} | {row['mfu_percent']} % |", text)
        for row in report["probe"]["rows"]:
            self.assertIn(f"| {row['group']}: {row['name']} | {1e3 * row['seconds']:.3f} ms |", text)
        self.assertEqual([name for name in report["not_run"] if not name.startswith("peers")], [])
        if not report["not_run"]:
            self.assertIn("## Beside PyTorch", text)
            self.assertEqual(report["peers"][-1]["kind"], "training")
        self.assertIn("has a report already", self.report("--out", out, code=2).stderr)

    def test_what_does_not_fit_and_what_fails_leaves_the_rest(self):
        out, disk = self.path("small"), self.path("disk")
        os.mkdir(disk)
        self.report("--out", out, "--minutes", "5", "--nvme", disk + ":1M")
        report, text = self.read(out)
        self.assertIsNone(report["probe"])
        self.assertRegex(report["not_run"][0], "^probe: exit code 4: .*: a probe needs 8 MiB there")
        self.assertIn("- " + report["not_run"][0], text)
        for row in report["training"]:
            self.assertIsNone(row["mfu_percent"])
            if row["mix"] == "state nvme":
                self.assertEqual((row["status"], row["tokens_per_s"]), ("unfit", None))
                self.assertIn("but the budget is 1.0 MiB", row["reason"])
                self.assertIn(f"| unfit: {row['reason']} |", text)
            else:
                self.assertEqual(row["status"], "done")
        self.assertEqual(os.listdir(disk), [])

    def test_when_the_time_is_up_the_rest_is_named(self):
        out = self.path("short")
        self.report("--out", out, "--minutes", "0")
        report, text = self.read(out)
        self.assertEqual(report["training"], [])
        self.assertEqual(report["not_run"][:3], [f"{name}: the 0 minutes were up" for name in
                                                 ("probe", "tiny-offloaded", "tiny-resident")])
        self.assertIn("- tiny-resident: the 0 minutes were up", text)

    def test_some_parts(self):
        """They have all the time among them. The names of the others are known, and not listed as missing."""
        out = self.path("some")
        self.report("--out", out, "--minutes", "1", "--parts", "tiny-resident")
        report, text = self.read(out)
        self.assertIsNone(report["probe"])
        self.assertEqual([(row["part"], row["mix"]) for row in report["training"]], [("tiny-resident", "all gpu")])
        self.assertEqual(report["not_run"], [])
        self.assertRegex(self.report("--out", self.path("x"), "--parts", "tiny-resident fast", code=2).stderr,
                         "no part 'fast'; its parts: probe tiny-offloaded tiny-resident peers$")

    def test_bad_options(self):
        for words, phrase in ((["--minutes", "soon"], "whole number"), (["--what"], "unknown option"),
                              (["--nvme", "absent"], "is no directory"), (["--out"], "needs a value"),
                              (["--program", "absent", "--out", self.path("x")], "absent is not there")):
            self.assertIn(phrase, self.report(*words, code=2).stderr)


if __name__ == "__main__":
    program.main()
