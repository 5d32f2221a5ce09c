"""offload-train probe: what it measures, and what it keeps for the next run."""

import json
import os

import program

GROUPS = ["copy", "task", "gemm", "attention", "kernel", "memory", "optimizer"]
UNITS = {"gemm": "flops", "attention": "flops", "task": "tasks"}
RATES = ["product_flops_per_s", "attention_flops_per_s", "device_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s",
         "both_ways_bytes_per_s", "triad_bytes_per_s", "adamw_bytes_per_s", "task_seconds"]
SMALL = ["probe", "--device", "cpu", "--gpu-mem", "24M", "--host-mem", "32M", "--threads", "1"]


class Probe(program.ProgramTest):
    def probe(self, *words, cache="cache", **more):
        return self.succeed(*SMALL, *words, env={"XDG_CACHE_HOME": self.path(cache)}, **more)

    def kept(self, cache="cache"):
        folder = os.path.join(self.path(cache), "offload-train")
        return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []

    def test_every_row_is_work_over_time(self):
        result = self.probe("--json", "--quiet")
        report = result.json()
        groups = []
        for row in report["rows"]:
            unit = UNITS.get(row["group"], "bytes")
            self.assertEqual(set(row) - {"share"}, {"group", "name", "seconds", unit, unit + "_per_s"}, row)
            self.assertGreater(row["seconds"], 0, row)
            self.assertGreater(row[unit], 0, row)
            self.assertAlmostEqual(row[unit] / row["seconds"] / row[unit + "_per_s"], 1, delta=1e-6)
            if row["group"] not in groups[-1:]:
                groups.append(row["group"])
        self.assertEqual(groups, GROUPS)
        names = [(row["group"], row["name"]) for row in report["rows"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(result.err, "")

    def test_rates_follow_from_the_rows(self):
        report = self.probe("--json", "--quiet").json()
        self.assertEqual(list(report["rates"]), RATES)
        products = [row for row in report["rows"] if row["group"] == "gemm"]
        whole = sum(row["flops"] for row in products) / sum(row["seconds"] for row in products)
        self.assertAlmostEqual(report["rates"]["product_flops_per_s"] / whole, 1, delta=1e-6)
        for name, rate in (("host to device", "h2d_bytes_per_s"), ("triad, 1 thread", "triad_bytes_per_s"),
                           ("copy", "device_bytes_per_s")):
            row = next(row for row in report["rows"] if row["name"] == name)
            self.assertAlmostEqual(report["rates"][rate] / row["bytes_per_s"], 1, delta=1e-6)

    def test_the_table_is_for_people(self):
        result = self.probe("--dtype", "bf16")
        for name in ("host to device", "AdamW, split master", "triad, 1 thread", "AdamW scalar, 1 thread"):
            self.assertIn(name, result.out)
        self.assertRegex(result.out, r"copy +\d+\.\d GB/s +\d+\.\d+ ms   100 %")

    def test_the_rates_are_kept(self):
        first = self.probe("--json", "--quiet", cache="fresh").json()
        [path] = self.kept("fresh")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        with open(path) as file:
            self.assertEqual(json.load(file)["rates"], first["rates"])
        second = self.probe("--json", "--quiet", cache="fresh").json()
        with open(path) as file:
            self.assertEqual(json.load(file)["rates"], second["rates"])
        self.probe("--dtype", "bf16", "--quiet", cache="fresh")
        self.assertEqual(len(self.kept("fresh")), 2)

    def test_a_folder_that_cannot_be_written_is_a_line(self):
        program.write_rows(self.path("file"), [])
        result = self.probe(cache="file")
        self.assertIn("rates   are not kept for the next run: ", result.err)
        self.assertEqual(result.err.count("not kept"), 1)
        result = self.succeed(*SMALL, "--json", "--quiet", env={"XDG_CACHE_HOME": "", "HOME": ""})
        self.assertEqual(result.err, "")

    def test_a_link_in_the_files_place_is_replaced(self):
        self.probe("--quiet", cache="linked")
        [path] = self.kept("linked")
        os.rename(path, self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), path)
        before = program.read_bytes(self.path("elsewhere"))
        self.probe("--quiet", cache="linked")
        self.assertFalse(os.path.islink(path))
        self.assertEqual(program.read_bytes(self.path("elsewhere")), before)

    def test_too_little_device_memory_is_a_sentence(self):
        self.fail_with(4, "device memory", "probe", "--device", "cpu", "--gpu-mem", "1M", "--threads", "1", "--quiet",
                       "--json")


if __name__ == "__main__":
    program.main()
