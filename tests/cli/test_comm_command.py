"""offload-train comm-test: ranks that are started by hand check and measure a communicator."""

import json
import os
import subprocess

import program
from launchers import free_port, torchrun

SMALL = ["comm-test", "--device", "cpu", "--gpu-mem", "256M", "--host-mem", "32M", "--threads", "1"]
COMM_FAILED = 11


def start_rank(rank, ranks, port, *words):
    """Starts a rank with the environment of torchrun."""
    return subprocess.Popen([program.PROGRAM, *SMALL, *words], env={**os.environ, **torchrun(rank, ranks, port)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class CommTest(program.ProgramTest):
    def run_ranks(self, ranks, *words):
        port = free_port()
        processes = [start_rank(rank, ranks, port, *words) for rank in range(ranks)]
        results = []
        for process in processes:
            out, err = process.communicate(timeout=120)
            results.append(program.Result(subprocess.CompletedProcess([], process.returncode, out, err)))
        return results

    def test_one_rank(self):
        result = self.succeed(*SMALL, "--sizes", "1,4K")
        self.assertRegex(result.err, r"comm    self, 1 rank\nchecks  84 passed")
        lines = result.out.splitlines()
        self.assertEqual(lines[0].split(), ["operation", "part", "time", "received", "of", "a", "copy"])
        self.assertEqual(len(lines), 1 + 2 * 4)
        for line in lines[1:]:
            self.assertEqual(line.split()[-2:], ["-", "-"])  # nothing is received

    def test_three_ranks(self):
        results = self.run_ranks(3, "--json", "--sizes", "1000,64K")
        for result in results:
            self.assertEqual(result.code, 0, result.err)
        for result in results[1:]:
            self.assertEqual((result.out, result.err), ("", ""))  # rank 0 speaks for all
        report = json.loads(results[0].out)
        self.assertEqual((report["ranks"], report["checks"]), (3, 84))
        self.assertTrue(report["comm"].startswith("tcp, 3 ranks by "), report["comm"])
        rows = [(row["operation"], row["part_bytes"], row["received_bytes"]) for row in report["rows"]]
        self.assertEqual(rows, [(name, size, size * factor) for size in (1000, 65536)
                                for name, factor in (("all_gather", 2), ("all_to_all", 2), ("broadcast", 1), ("transfer", 1))])
        for row in report["rows"]:
            self.assertAlmostEqual(row["received_bytes"] / row["seconds"] / row["bytes_per_s"], 1, delta=1e-6)
            self.assertGreater(row["copy_bytes_per_s"], 0)

    def test_table_of_two_ranks_that_it_starts(self):
        result = self.succeed(*SMALL, "--sizes", "2M", "--gpus", "2")
        lines = result.out.splitlines()
        self.assertEqual(len(lines), 5)
        for line in lines[1:]:
            self.assertRegex(line, r"^\w+ +2\.0 MiB +[\d.]+ (us|ms|s) +[\d.]+ GB/s +\d+ %$")

    def test_ranks_must_use_the_same_communicator(self):
        port = free_port()
        first, second = (start_rank(rank, 2, port, "--comm", name) for rank, name in enumerate(["tcp", "self"]))
        for process in (first, second):
            _, err = process.communicate(timeout=120)
            self.assertIn(b"the communicator differs: rank 0 has tcp, rank 1 has self", err)
            self.assertNotEqual(process.returncode, 0)

    def test_missing_rank(self):
        process = start_rank(0, 2, free_port(), "--comm-timeout", "1s")
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (COMM_FAILED, b""), err)
        self.assertIn(b"rank 1", err)

    def test_wrong_arguments(self):
        self.fail_with(3, "there is no communicator 'smoke'", *SMALL, "--comm", "smoke", "-q")
        self.fail_with(3, "./smoke.so", *SMALL, "--comm", "./smoke.so", "-q")
        self.fail_with(2, "--sizes", *SMALL, "-q", "--sizes", "0")


if __name__ == "__main__":
    program.main()
