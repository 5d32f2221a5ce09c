"""Two ranks in two network namespaces, with a link of 1 Gbit/s and 20 ms between them, which may drop everything."""

import shutil
import subprocess
import sys
import time

import program
import slow_link

COMM_FAILED, SKIPPED = 11, 77
OPTIONS = ["--device", "cpu", "--micro-batch", "1"]


class Network(program.ProgramTest):
    def setUp(self):
        self.link = slow_link.SlowLink()
        self.addCleanup(self.link.close)

    def start(self, *words):
        """Starts a rank at each end of the link."""
        ranks = []
        for rank, enter in enumerate(([], self.link.enter)):
            command = [*enter, program.PROGRAM, "train", *program.SMALL, *OPTIONS, "--no-forecast", "--data", self.rows,
                       "--nodes", 2, "--gpus", 1, "--master", slow_link.HERE, "--node-rank", rank, *words]
            ranks.append(subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE))
            self.addCleanup(ranks[rank].kill)
        return ranks

    def test_the_link_changes_no_bit(self):
        for rank in self.start("--steps", 3, "--out", self.path("far")):
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, err)
        self.train("near", *OPTIONS, "--steps", 3, "--gpus", 2)
        self.assertEqual(program.read_bytes(self.path("far/model.safetensors")),
                         program.read_bytes(self.path("near/model.safetensors")))
        for event in self.log("far"):
            if event["event"] == "step":  # sums cross the link, and then updated weights
                self.assertGreater(event["seconds"], 2 * slow_link.DELAY_SECONDS)

    def test_stages_over_the_link_have_the_bits_of_one_rank(self):
        for rank in self.start("--steps", 3, "--shard", "stages", "--out", self.path("stages")):
            _, err = rank.communicate(timeout=120)
            self.assertEqual(rank.returncode, 0, err)
        self.train("alone", *OPTIONS, "--steps", 3)
        self.assertEqual(program.read_bytes(self.path("stages/model.safetensors")),
                         program.read_bytes(self.path("alone/model.safetensors")))

    def test_a_dropped_link_ends_the_run(self):
        ranks = self.start("--no-save", "--steps", 1000000)
        while not (line := ranks[0].stderr.readline()).startswith(b"step "):
            self.assertTrue(line, "rank 0 has ended")
        self.link.drop()
        begin = time.monotonic()
        for rank, process in enumerate(ranks):
            _, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, COMM_FAILED, err)
            errors = [line for line in err.splitlines() if line.startswith(b"error: ")]
            self.assertEqual(len(errors), 1, err)
            self.assertRegex(errors[0], rb"rank %d \(.*\) is lost: " % (1 - rank))
        self.assertLess(time.monotonic() - begin, 60)


def is_permitted():
    try:
        slow_link.SlowLink().close()
        return True
    except OSError:
        return False


if "--inside" not in sys.argv:
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rn", "true"], stderr=subprocess.DEVNULL).returncode:
        print("SKIP: network namespaces are not permitted here, or there is no unshare command")
        sys.exit(SKIPPED)
    sys.exit(subprocess.run(["unshare", "-rn", sys.executable, *sys.argv, "--inside"]).returncode)
sys.argv.remove("--inside")
if not is_permitted():
    print("SKIP: tun devices are not permitted here, or there is no ip command")
    sys.exit(SKIPPED)
program.main()
