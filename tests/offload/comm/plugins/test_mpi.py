"""The plugin `mpi` under a real mpirun, with 1 to 8 ranks on this machine.

Usage: test_mpi.py OFFLOAD_TRAIN PLUGIN_CASE PLUGIN PLUGIN_WITH_SMALL_PIECES [TEST...]
"""

import os
import shutil
import subprocess
import sys
import time
import unittest

OFFLOAD_TRAIN, PROGRAM, PLUGIN, SMALL_PIECES = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))


def mpirun(ranks, *words):
    """Runs the words with so many ranks. Open MPI wants to be told that this is a small machine."""
    environment = dict(os.environ)
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    options = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in version else []
    if options:
        environment["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"  # containers forbid it
    return subprocess.run(["mpirun", *options, "-n", str(ranks), *words], capture_output=True, text=True, timeout=240,
                          env=environment)


class Mpi(unittest.TestCase):
    def run_case(self, ranks, case, plugin=PLUGIN, ends_well=True):
        done = mpirun(ranks, PROGRAM, plugin, case)
        if ends_well:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(": ok"), ranks, done.stdout + done.stderr)
        return done

    def test_every_operation_with_1_to_8_ranks(self):
        for ranks in (1, 3) if "OT_TEST_BRIEF" in os.environ else (1, 2, 3, 4, 8):
            with self.subTest(ranks=ranks):
                done = self.run_case(ranks, "checks")
                self.assertIn(f", {ranks} rank{'s' if ranks > 1 else ''}\n", done.stdout)
                self.assertEqual(done.stdout.count("72 checks"), ranks)

    def test_the_program_finds_and_checks_it(self):
        done = mpirun(3, OFFLOAD_TRAIN, "comm-test", "--device", "cpu", "--comm", "mpi")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all_gather", done.stdout)
        self.assertRegex(done.stdout + done.stderr, r"comm +.*, 3 ranks\n")

    def test_large_operations_in_pieces(self):
        self.run_case(3, "checks", SMALL_PIECES)

    def test_a_rank_without_mpirun(self):
        done = subprocess.run([PROGRAM, PLUGIN, "checks"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 0: ok", done.stdout)

    def test_every_hook_of_one_rank(self):
        self.run_failing_case(1, "alone")  # an aborted MPI ends without MPI_Finalize

    def test_control_on_another_thread(self):
        self.run_case(3, "threads")

    def run_failing_case(self, ranks, case, plugin=PLUGIN):
        """One rank fails. mpirun sees that, and ends the others, which would wait for a minute."""
        start = time.monotonic()
        done = self.run_case(ranks, case, plugin, ends_well=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertLess(time.monotonic() - start, 40)

    def test_a_deadline_passes(self):
        self.run_failing_case(2, "deadline")

    def test_a_deadline_passes_in_a_transfer(self):
        self.run_failing_case(2, "receive")

    def test_a_rank_dies_in_a_transfer(self):
        self.run_failing_case(2, "die-in-a-transfer")

    def test_transfers_of_different_sizes(self):
        for case, plugin in ("more", PLUGIN), ("less", PLUGIN), ("more", SMALL_PIECES), ("less", SMALL_PIECES), ("less-by-a-piece", SMALL_PIECES):
            with self.subTest(case=case, plugin=plugin):
                self.run_failing_case(2, case, plugin)

    def test_abort_from_another_thread(self):
        self.run_failing_case(3, "abort")

    def test_other_ranks_than_mpirun_has(self):
        self.run_failing_case(2, "another-rank")

    def test_a_missing_rank(self):
        script = 'test "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 || exec sleep 60; exec "$0" "$@"'
        start = time.monotonic()
        done = mpirun(2, "sh", "-c", script, PROGRAM, PLUGIN, "missing")
        self.assertEqual(done.stdout.count(": ok"), 1, done.stdout + done.stderr)
        self.assertLess(time.monotonic() - start, 40)

    def test_a_rank_dies(self):
        self.run_failing_case(3, "die")


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        print("SKIP: there is no mpirun, so the plugin mpi is not tested; scripts/install-packages installs it")
        sys.exit(77)
    unittest.main()
