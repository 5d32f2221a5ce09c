"""offload-train probe: what it measures, and what it saves for the next run."""

import json
import math
import os
import re
import shutil
import signal
import subprocess

import program
from program import run

GROUPS = ["copy", "task", "gemm", "attention", "kernel", "memory", "optimizer"]
UNITS = {"gemm": "flops", "attention": "flops", "task": "tasks"}
RATES = ["product_flops_per_s", "group_product_flops_per_s", "attention_forward_flops_per_s", "attention_backward_flops_per_s",
         "attention_64_forward_flops_per_s", "attention_64_backward_flops_per_s", "device_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s",
         "both_ways_bytes_per_s", "triad_bytes_per_s", "adamw_bytes_per_s", "adamw_16bit_bytes_per_s",
         "adamw_8bit_bytes_per_s", "crc_bytes_per_s", "task_seconds", "spread"]
SMALL = ["probe", "--device", "cpu", "--gpu-mem", "24M", "--host-mem", "32M", "--threads", "1"]


class Probe(program.ProgramTest):
    """A probe takes seconds, so tests share two: one as JSON, then one of another dtype and of disks as a table."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.result = run(*SMALL, "--json", "--quiet", env={"XDG_CACHE_HOME": cls.path("cache")})
        cls.report = cls.result.json()
        cls.kept_first = cls.kept("cache")
        os.mkdir(cls.path("table"))
        cls.table = run(*SMALL, "--dtype", "bf16", "--nvme", cls.path("table") + ":16M", env={"XDG_CACHE_HOME": cls.path("cache")})

    def probe(self, *words, cache, **more):
        return self.succeed(*SMALL, *words, env={"XDG_CACHE_HOME": self.path(cache)}, **more)

    @classmethod
    def kept(cls, cache):
        folder = os.path.join(cls.path(cache), "offload-train")
        return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []

    def test_ranks_measure_their_communicator(self):
        result = self.probe("--gpus", "2", "--json", cache="ranks")
        rates = result.json()["rates"]  # rank 0 alone prints
        self.assertEqual(set(rates) - {"spread"}, {*RATES, "comm_bytes_per_s", "comm_seconds"} - {"spread"})
        self.assertAlmostEqual(rates["comm_bytes_per_s"] * 1e-9,
                               float(re.search(r"ranks   each receives ([\d.]+) GB/s", result.err)[1]), delta=0.001)
        self.assertTrue(0 < rates["comm_seconds"] < 1)

    def test_every_row_is_work_over_time(self):
        groups = []
        for row in self.report["rows"]:
            unit = UNITS.get(row["group"], "bytes")
            self.assertEqual(set(row) - {"share"}, {"group", "name", "seconds", "spread", unit, unit + "_per_s"}, row)
            self.assertGreater(row["seconds"], 0, row)
            self.assertGreater(row[unit], 0, row)
            self.assertTrue(0 <= row["spread"] < math.inf, row)  # a busy machine has no bound
            self.assertAlmostEqual(row[unit] / row["seconds"] / row[unit + "_per_s"], 1, delta=1e-6)
            if row["group"] not in groups[-1:]:
                groups.append(row["group"])
        self.assertEqual(groups, GROUPS)
        names = [(row["group"], row["name"]) for row in self.report["rows"]]
        self.assertEqual(len(names), len(set(names)))

    def test_threads_double_up_to_all_cores(self):
        cores, counts = self.report["cores"], []
        for row in self.report["rows"]:
            if row["name"].startswith("triad, "):
                counts.append(int(row["name"].split()[1]))
        self.assertEqual(counts, sorted({1 << i for i in range(20) if 1 << i < cores} | {1, cores}))
        kernels = {row["name"] for row in self.report["rows"] if row["group"] == "optimizer"}
        self.assertIn(f"AdamW {self.report['host']['adamw_kernel']}, 1 thread", kernels)
        self.assertEqual(len(kernels) % len(counts), 0)

    def test_rates_follow_from_the_rows(self):
        rates, rows = self.report["rates"], self.report["rows"]
        self.assertEqual(list(rates), RATES)
        for rate, by_groups in (("product_flops_per_s", False), ("group_product_flops_per_s", True)):
            products = [row for row in rows if row["group"] == "gemm" and ("experts" in row["name"]) == by_groups]
            whole = sum(row["flops"] for row in products) / sum(row["seconds"] for row in products)
            self.assertAlmostEqual(rates[rate] / whole, 1, delta=1e-6)
        for way in ("forward", "backward"):
            row = next(row for row in rows if row["group"] == "attention" and row["name"].startswith(way))
            self.assertTrue(row["name"].endswith("head 128"), row)
            self.assertAlmostEqual(rates[f"attention_{way}_flops_per_s"] / row["flops_per_s"], 1, delta=1e-6)
        triad = [row["name"] for row in rows if row["name"].startswith("triad")][-1]
        for name, rate in (("host to device", "h2d_bytes_per_s"), (triad, "triad_bytes_per_s"),
                           ("copy", "device_bytes_per_s"), ("both at once", "both_ways_bytes_per_s")):
            row = next(row for row in rows if row["name"] == name)
            self.assertAlmostEqual(rates[rate] / row["bytes_per_s"], 1, delta=1e-6)

    def test_the_machine_is_described(self):
        host = self.report["host"]
        self.assertGreaterEqual(host["hardware_threads"], self.report["cores"])
        self.assertGreaterEqual(host["hardware_threads"], host["whole_cores"])
        for key in ("packages", "memory_nodes", "whole_cores"):
            self.assertGreaterEqual(host[key], 1)

    def test_disks_are_measured_and_left_as_they_were(self):
        os.mkdir(self.path("disk"))
        result = self.succeed(*SMALL, "--json", "--quiet", "--nvme", self.path("disk") + ":16M",
                              env={"XDG_CACHE_HOME": "", "HOME": ""})  # without a place for the rates
        self.assertEqual(result.err, "")
        report = result.json()
        self.assertEqual(os.listdir(self.path("disk")), [])
        rows = [row for row in report["rows"] if row["group"] == "nvme"]
        stored = {row["io"]: row for row in rows if row["by"] == "store"}
        self.assertEqual(list(stored), ["read", "write", "mixed"])
        for io, row in stored.items():
            self.assertAlmostEqual(report["rates"][f"nvme_{io}_bytes_per_s"] / row["bytes_per_s"], 1, delta=1e-6)
        for io in ("read", "write"):
            row, = (row for row in report["rows"] if row["name"] == f"store {io} of 4 KiB")
            self.assertAlmostEqual(report["rates"][f"nvme_{io}_seconds"] / row["seconds"], 1, delta=1e-6)
        engines = [row for row in rows if row["by"] != "store"]
        self.assertIn("pool", {row["by"] for row in engines})
        for row in engines:
            self.assertEqual(row["name"], f"{row['by']} {row['io']} {row['block_bytes'] // 1024} KiB x {row['depth']}")
            self.assertLessEqual(row["block_bytes"] * row["depth"], 16 << 20)
            self.assertEqual(row["bytes"] % row["block_bytes"], 0)

    def test_a_build_without_cuda_says_so(self):
        no_cuda = run("--version").out.splitlines()[1]
        self.assertEqual(f"\n        {no_cuda}\n" in self.table.err, no_cuda.startswith("this build has no cuda device"))

    def test_the_disks_have_a_line_for_each_engine_and_shape(self):
        result = self.table
        self.assertEqual(result.code, 0, result.err)
        rate = r" +(\d+\.\d\d GB/s|-)"
        self.assertRegex(result.out, "\ndisks, by block size and depth +read +write +mixed\n")
        self.assertRegex(result.out, f"\n  pool 256 KiB x 32{rate}{rate}{rate}\n")
        self.assertRegex(result.out, f"\n  the store{rate}{rate}{rate}\n    spread( +\\d+\\.\\d %){{3}}\n    of the best engine( +\\d+ %){{3}}\n"
                         "starting a task .*\n  store read of 4 KiB +\\d+ tasks/s .*\n  store write of 4 KiB +\\d+ tasks/s .*\n$")
        self.assertRegex(result.err, r"\nnvme    .*CRC-32.* · the probe wrote \d+\.\d MiB\n")

    def test_bad_disks_are_refused(self):
        os.mkdir(self.path("small"))
        program.write_rows(self.path("plain"), [])
        for code, phrase, value in ((5, "No such file", self.path("nowhere")), (5, "is a file", self.path("plain")),
                                    (4, "a probe needs 8 MiB there", self.path("small") + ":4M"),
                                    (4, "is more than the", self.path("small") + ":900T")):
            self.fail_with(code, phrase, *SMALL, "--quiet", "--json", "--nvme", value)
        self.assertEqual(os.listdir(self.path("small")), [])

    def test_a_signal_ends_it_and_nothing_is_kept(self):
        os.mkdir(self.path("stopped"))
        words = [program.PROGRAM, *SMALL, "--json", "--nvme", self.path("stopped") + ":16M"]
        env = dict(os.environ, XDG_CACHE_HOME=self.path("stopped-cache"))
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        while not child.stderr.readline().startswith(b"products"):
            pass
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 8)
        self.assertEqual(out, b"")
        self.assertIn(b"Stopping after the current measurement", err)
        self.assertEqual(err.splitlines()[-1], b"error: the probe was stopped; its rates are not kept")
        self.assertEqual(os.listdir(self.path("stopped")), [])
        self.assertEqual(self.kept("stopped-cache"), [])

    def test_quiet_json_is_one_line(self):
        self.assertEqual((self.result.code, self.result.err), (0, ""))
        self.assertEqual(self.result.out.count("\n"), 1)

    def test_the_table_is_for_people(self):
        result = self.table
        for name in ("host to device", "AdamW, split master", "triad, 1 thread", "AdamW scalar, 1 thread"):
            self.assertIn(name, result.out)
        self.assertRegex(result.out, r"copy +\d+\.\d GB/s +\d+\.\d % +\d+\.\d+ ms   100 %")

    def test_the_rates_are_kept(self):
        [path] = self.kept_first
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        with open(path) as file:
            self.assertEqual(json.load(file)["rates"], self.report["rates"])
        self.assertEqual(len(self.kept("cache")), 2)  # one of each dtype

    def test_a_folder_that_cannot_be_written_is_a_line(self):
        program.write_rows(self.path("file"), [])
        result = self.probe("--nvme", self.path("table") + ":16M", "--io-engine", "pool", "--no-io-verify", cache="file")
        self.assertIn("rates   are not kept for later runs: ", result.err)
        self.assertEqual(result.err.count("not kept"), 1)
        self.assertRegex(result.err, r"\nnvme    pool")
        self.assertNotIn("CRC-32 ·", result.err.split("nvme    ")[1])

    def test_a_read_only_home_is_a_line(self):
        home = self.path("home")
        os.makedirs(os.path.join(home, ".cache"))
        os.chmod(os.path.join(home, ".cache"), 0o555)
        os.chmod(home, 0o555)
        os.chmod(self.folder, 0o755)
        user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run([program.PROGRAM, *SMALL], capture_output=True, timeout=60,
                              env={"HOME": home, "PATH": os.environ["PATH"]}, **user)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"rates   are not kept for later runs: .*/rates-.*\.json: Permission denied")
        os.chmod(home, 0o755)

    def test_a_link_in_the_files_place_is_replaced(self):
        [first] = self.kept_first
        shutil.copy(first, self.path("elsewhere"))
        path = first.replace(self.path("cache"), self.path("linked"))
        os.makedirs(os.path.dirname(path))
        os.symlink(self.path("elsewhere"), path)
        before = program.read_bytes(self.path("elsewhere"))
        result = self.probe("--json", "--quiet", cache="linked")
        self.assertFalse(os.path.islink(path))
        with open(path) as file:
            self.assertEqual(json.load(file)["rates"], result.json()["rates"])
        self.assertEqual(program.read_bytes(self.path("elsewhere")), before)

    def test_too_little_device_memory_is_a_sentence(self):
        self.fail_with(4, "device memory", "probe", "--device", "cpu", "--gpu-mem", "1M", "--threads", "1", "--quiet",
                       "--json")


if __name__ == "__main__":
    program.main()
