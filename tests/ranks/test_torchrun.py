"""Real torchrun starts the ranks: on one host, on two, and again after a rank was killed.

torchrun is $OT_TORCHRUN, or else the first one in PATH. It comes with PyTorch, which this test does not install.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import program
from launchers import free_port

SKIPPED = 77
TORCHRUN = os.environ.get("OT_TORCHRUN") or shutil.which("torchrun")
STEPS = 40
# one sequence a rank and step, so that a run is long enough to kill a rank in it
WORDS = [program.PROGRAM, "train", *program.SMALL, "--device", "cpu", "--micro-batch", "1", "--no-forecast",
         "--deterministic", "world", "--steps", str(STEPS)]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def is_program(pid):
    try:
        return os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(program.PROGRAM)
    except OSError:
        return False  # it has ended


class Torchrun(program.ProgramTest):
    def start(self, out, per_node, *words, port=None, nodes=1, more=()):
        """Starts an agent of torchrun, with per_node ranks on its host. more: words of torchrun."""
        port = port or free_port()
        command = [TORCHRUN, "--no-python", "--nnodes", nodes, "--nproc-per-node", per_node, "--rdzv-backend", "c10d",
                   "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", f"test-{port}", *more, *WORDS, "--data",
                   self.rows, "--out", self.path(out), *words]
        log = open(self.path(f"{out}.txt"), "ab")
        with log:
            agent = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
        self.addCleanup(agent.kill)
        return agent

    def output(self, out):
        return program.read_bytes(self.path(f"{out}.txt")).decode("utf-8", "replace")

    def check(self, out, agents):
        """The agents end well, and the model is that of one rank."""
        for agent in agents:
            self.assertEqual(agent.wait(timeout=300), 0, self.output(out))
        if not os.path.exists(self.path("one")):
            self.train("one", *WORDS[len(program.SMALL) + 2:])
        self.assertEqual(program.read_bytes(self.path(f"{out}/model.safetensors")),
                         program.read_bytes(self.path("one/model.safetensors")))

    def test_one_host(self):
        for ranks in 2, 4:
            out = f"ranks-{ranks}"
            self.check(out, [self.start(out, ranks)])
            self.assertIn(f"rank 0 of {ranks} (local 0 of {ranks}), found by torchrun", self.output(out))

    def test_two_hosts(self):
        port = free_port()
        self.check("nodes", [self.start("nodes", 1, port=port, nodes=2) for _ in range(2)])
        self.assertIn("rank 0 of 2 (local 0 of 1), found by torchrun", self.output("nodes"))

    def test_a_killed_rank_is_started_again(self):
        agent = self.start("killed", 2, "--save-every", 5, more=["--max-restarts", 1])
        begin, checkpoints = time.monotonic(), self.path("killed/checkpoints")
        # the second checkpoint begins when the first is complete
        while not os.path.isdir(checkpoints) or \
                sum(name.startswith("step-") for name in os.listdir(checkpoints)) < 2:
            self.assertIsNone(agent.poll(), self.output("killed"))
            self.assertLess(time.monotonic() - begin, 200)
            time.sleep(0.02)
        ranks = [pid for pid in children(agent.pid) if is_program(pid)]
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGKILL)
        self.check("killed", [agent])
        self.assertRegex(self.output("killed"), r"rank 1 \(.*\) is lost: ")
        resumed = re.findall(r"resum\w+ .*step[ -](\d+)", self.output("killed"))
        self.assertEqual(len(resumed), 1, self.output("killed"))
        self.assertGreaterEqual(int(resumed[0]), 5)


if not TORCHRUN:
    print("SKIP: there is no torchrun in PATH, and OT_TORCHRUN names none")
    sys.exit(SKIPPED)
program.main()
