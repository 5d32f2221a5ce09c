"""comm-test with plugins that lack transfers, or move wrong bytes with them.

Usage: test_comm_test.py OFFLOAD_TRAIN OLD_PLUGIN FLIPPING_PLUGIN [TEST...]
"""

import os
import subprocess
import sys
import unittest

OFFLOAD_TRAIN, OLD, FLIPPING = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
COMM_FAILED = 11
LACKS = "the communicator tcp cannot send from one rank to one other: its plugin has no symbol ot_comm_plugin_transfers_v1"


def comm_test(plugin, *words):
    return subprocess.run([OFFLOAD_TRAIN, "comm-test", "--device", "cpu", "--gpu-mem", "256M", "--host-mem", "32M", "--threads", "1",
                           "--gpus", "3", "--comm", plugin, "--sizes", "1000", *words], capture_output=True, text=True, timeout=120)


class CommTest(unittest.TestCase):
    def test_an_old_plugin_works_and_says_what_it_lacks(self):
        done = comm_test(OLD)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(LACKS, done.stderr)
        self.assertIn("56 passed", done.stderr)
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["operation", "all_gather", "all_to_all", "broadcast"])

    def test_a_wrong_byte_is_seen(self):
        done = comm_test(FLIPPING)
        self.assertEqual(done.returncode, COMM_FAILED, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"parts of 1 bytes: transfer: byte 0 of the part of rank \d is \d+, but should be \d+")


if __name__ == "__main__":
    unittest.main()
