"""offload-train bench, end to end: what it writes, which points it leaves out, how it is stopped."""

import csv
import html.parser
import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

import program
from program import PROGRAM, run

TINY = ["bench", "tiny-test", "--seq-len", "64", "--threads", "1"]
QUICK = ["--time-per-point", "0.2"]


class Page(html.parser.HTMLParser):
    """Collects the text outside pictures and a list of every element. Refuses elements that are not closed."""

    EMPTY = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if "svg" not in self.open and "style" not in self.open:
            self.text += data


class Bench(program.ProgramTest):
    def read(self, out):
        with open(self.path(out + "/bench.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        with open(self.path(out + "/bench.json")) as file:
            return rows, json.load(file)

    def check_same(self, rows, points):
        """Every cell of the CSV is in the JSON, which has on_front in addition."""
        self.assertEqual(len(rows), len(points))
        for row, point in zip(rows, points):
            self.assertEqual(set(point) - set(row), {"on_front"})
            for name, cell in row.items():
                value = point[name]
                if isinstance(value, (int, float)):
                    self.assertEqual(float(cell), value, name)
                else:
                    self.assertEqual(cell, value or "", name)

    def check_measured(self, bench):
        """Points are measured, except for two reasons that a busy machine may give: the planner chooses by measured rates, so two
        points may come to have one plan; and a slow step does not fit into the short time of a point."""
        found = {point["status"] for point in bench["points"]}
        self.assertIn("done", found)
        self.assertLessEqual(found, {"done", "same", "no_time"}, [(p["status"], p["reason"]) for p in bench["points"]])

    def test_a_bench_of_adapters(self):
        result = self.succeed(*TINY, "--tokens-per-step", "256", *QUICK, "--lora", "r=4,targets=q_proj", "--out", self.path("lora"))
        self.assertIn("123 K frozen + 1.02 K trained parameters, random", result.err)
        bench = self.read("lora")[1]
        self.assertEqual((bench["trained_params"], bench["options"]["lora"]), (2 * 4 * (64 + 64), "r=4,targets=q_proj"))
        self.check_measured(bench)

    def test_a_bench_over_a_quantised_base(self):
        words = ["--lora", "r=4,targets=q_proj", "--base-type", "nf4", "--out", self.path("qlora")]
        result = self.succeed(*TINY, "--tokens-per-step", "256", *QUICK, *words)
        self.assertIn("123 K frozen + 1.02 K trained parameters, frozen layers in nf4, random", result.err)
        bench = self.read("qlora")[1]
        self.assertEqual(bench["options"]["base-type"], "nf4")
        self.check_measured(bench)

    def test_a_small_bench(self):
        result = self.succeed(*TINY, "--tokens-per-step", "256,512", *QUICK, "--out", self.path("a"), "--json")
        self.assertEqual(sorted(os.listdir(self.path("a"))), ["bench.csv", "bench.html", "bench.json"])
        rows, bench = self.read("a")
        self.assertEqual(result.json()["points"], bench["points"])
        self.check_same(rows, bench["points"])
        self.assertEqual(bench["model"], "tiny-test")
        self.assertEqual(bench["trained_params"], bench["params"])
        self.assertGreater(bench["flops_per_token"], 6 * bench["params"] / 2)
        self.assertEqual(bench["options"]["tokens-per-step"], "256,512")
        self.assertFalse(bench["interrupted"])
        self.assertEqual(len(rows), 18)
        done = [point for point in bench["points"] if point["status"] == "done"]
        self.check_measured(bench)
        self.assertGreater(len(done), 0)
        for point in done:
            self.assertGreaterEqual(point["steps"], 1)
            self.assertLessEqual(point["fastest_step_seconds"], point["step_seconds"])
            self.assertLessEqual(point["step_seconds"], point["slowest_step_seconds"])
            self.assertAlmostEqual(point["tokens_per_second"] * point["step_seconds"], point["tokens_per_step"],
                                   delta=0.01)
            self.assertLessEqual(point["gpu_peak_bytes"], point["gpu_mem_bytes"])
            self.assertAlmostEqual(point["gpu_peak_bytes"], point["planned_gpu_bytes"],
                                   delta=0.02 * point["planned_gpu_bytes"])
            self.assertGreater(point["process_peak_bytes"], point["gpu_peak_bytes"])
            self.assertGreater(point["busy_compute_seconds"], 0)
            self.assertGreater(point["predicted_step_seconds"], 0)
            self.assertGreater(point["predicted_busy_compute_seconds"], 0)
            self.assertEqual(point["micro_batch"] * point["micro_batches"] * 64, point["tokens_per_step"])
        for tokens in (256, 512):
            here = [point for point in done if point["tokens_per_step"] == tokens]
            front = [point for point in here if point["on_front"]]
            self.assertIn(min(here, key=lambda point: point["step_seconds"]), front)
            self.assertIn(min(point["gpu_peak_bytes"] for point in here), [point["gpu_peak_bytes"] for point in front])
        for words in ("machine ", "model ", "bench   18 points", " 1/18", "tok/s", "ETA", "done "):
            self.assertIn(words, result.err)

    def read_page(self, out):
        text = program.read_bytes(self.path(out + "/bench.html")).decode()
        for image in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
            xml.etree.ElementTree.fromstring(image)
        return Page(text)

    def test_the_page_is_sound_whatever_the_model_is_called(self):
        name = "a<b>&\"'x"
        self.train(name, "--steps", "1")
        self.succeed("bench", self.path(name), "--seq-len", "64", "--tokens-per-step", "64", *QUICK, "--out",
                     self.path("p"), "-q")
        page, (rows, bench) = self.read_page("p"), self.read("p")
        self.assertEqual(bench["model"], self.path(name))
        self.assertIn(self.path(name), page.text)
        done = [row for row in rows if row["status"] == "done"]
        self.assertEqual(len([tag for tag, _ in page.elements if tag == "tr"]), 1 + len(done))
        for row in rows:
            self.assertIn(row["mix"], page.text)
        for _, attributes in page.elements:
            self.assertFalse({"src", "href"} & set(attributes)) # the page loads nothing from other places
        images = [attributes for tag, attributes in page.elements if tag == "svg" and attributes.get("role") == "img"]
        self.assertEqual(len(images), 3)

    def test_what_does_not_fit_is_listed_with_the_reason(self):
        self.succeed(*TINY, "--tokens-per-step", "256", "--gpu-mem", "1M,64M", *QUICK, "--out", self.path("b"), "-q")
        rows, bench = self.read("b")
        self.check_same(rows, bench["points"])
        unfit = [row for row in rows if row["status"] == "unfit"]
        self.assertIn(("all gpu", str(1 << 20)), [(row["mix"], row["gpu_mem_bytes"]) for row in unfit])
        for row in unfit:
            self.assertIn("short by", row["reason"])
            self.assertNotIn("helps", row["reason"])
            self.assertEqual(row["step_seconds"], "")
        self.assertIn("done", [row["status"] for row in rows])

    def test_nvme_is_a_tier_like_the_others(self):
        os.makedirs(self.path("disk"))
        self.succeed(*TINY, "--tokens-per-step", "256", *QUICK, "--nvme", self.path("disk"), "--out",
                     self.path("h"), "-q")
        rows, _ = self.read("h")
        self.assertEqual(os.listdir(self.path("disk")), [])
        by_mix = {row["mix"]: row for row in rows}
        for mix in ("state nvme", "weights+state nvme"):
            self.assertEqual(by_mix[mix]["status"], "done", by_mix[mix]["reason"])
            self.assertGreater(int(by_mix[mix]["nvme_read_bytes_per_step"]), 8 * 123200)
            self.assertGreater(int(by_mix[mix]["nvme_write_bytes_per_step"]), 8 * 123200)
        self.assertEqual(by_mix["all gpu"]["nvme_read_bytes_per_step"], "0")

    def test_equal_plans_run_once(self):
        self.succeed(*TINY, "--tokens-per-step", "256", "--gpu-mem", "64M,65M", *QUICK, "--out", self.path("c"), "-q")
        rows, _ = self.read("c")
        same = [row for row in rows if row["status"] == "same"]
        self.assertTrue(same)
        for row in same:
            self.assertRegex(row["reason"], r"^same plan as point \d+: ")

    def test_no_time_is_a_reason_too(self):
        result = run("bench", "tiny-sql", "--tokens-per-step", "16k", "--threads", "1", "--minutes", "0.01", "--out",
                     self.path("d"), "-q")
        rows, _ = self.read("d")
        if all(row["status"] == "no_time" for row in rows):
            self.assertEqual((result.code, "no point was measured" in result.err), (4, True), result.err)
        else:
            self.assertEqual(result.code, 0, result.err)
        left_out = [row for row in rows if row["status"] == "no_time"]
        self.assertGreater(len(left_out), 4)
        for row in left_out:
            self.assertIn("--minutes", row["reason"])

    def test_ctrl_c_keeps_what_is_measured(self):
        process = subprocess.Popen([PROGRAM, *TINY, "--tokens-per-step", "256", "--minutes", "10", "--time-per-point",
                                    "60", "--out", self.path("e")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.monotonic() + 60
        path = self.path("e/bench.csv")
        while time.monotonic() < end and not (os.path.exists(path) and program.read_bytes(path).count(b"\n") > 2):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, program.STOPPED, err)
        self.assertIn(b"writing what was measured", err)
        rows, bench = self.read("e")
        self.check_same(rows, bench["points"])
        self.assertTrue(bench["interrupted"])
        self.assertEqual(rows[0]["status"], "done")
        self.assertEqual(rows[-1]["status"], "waiting")
        self.assertEqual(rows[-1]["reason"], "the bench was stopped before this point")

    def test_bad_inputs(self):
        self.fail_with(2, "bench needs --model", "bench")
        self.fail_with(3, "no-such-model", "bench", "no-such-model")
        self.fail_with(2, "must be a number from 0.01", *TINY, "--minutes", "0")
        self.fail_with(2, "is less than one sequence (--seq-len 64)", *TINY, "--tokens-per-step", "32")
        self.fail_with(2, "beyond the model's 256 positions", "bench", "tiny-test", "--seq-len", "512")
        self.fail_with(5, "cannot create this directory", *TINY, "--out", "/proc/nowhere/bench")
        write = self.path("file")
        program.write_rows(write, [])
        self.fail_with(5, "cannot create this", *TINY, "--out", write + "/bench")
        os.makedirs(self.path("f"))
        program.write_rows(self.path("f/bench.json"), [])
        self.fail_with(3, "already has a bench.json; choose another directory with --out", *TINY, "--out", self.path("f"))
        self.assertEqual(os.listdir(self.path("f")), ["bench.json"])

    def test_the_default_directory_is_named_after_the_model(self):
        os.makedirs(self.path("g"))
        result = run(*TINY, "--tokens-per-step", "64", "--gpu-mem", "64M", *QUICK, cwd=self.path("g"))
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("bench.csv", os.listdir(self.path("g/out/tiny-test-bench")))


if __name__ == "__main__":
    program.main()
