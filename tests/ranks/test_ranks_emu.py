"""Ranks with an emulated GPU each: every communicator, under the program's own launcher and under mpirun."""

import json
import os
import re
import resource
import socket
import subprocess
import time
import unittest

import program

USAGE, MEMORY, COMM_FAILED = 2, 4, 11
FEW_BYTES = 1 << 16  # enough for a tokenizer in memory
SMALL = ["--gpu-mem", "256M", "--host-mem", "64M", "--threads", "1"]
TEST = [program.PROGRAM, "comm-test", *SMALL, "--sizes", "1000", "--json"]
SLOW = unittest.skipUnless(os.environ.get("OT_TEST_SLOW"), "slow")
MPIRUN = program.shutil.which("mpirun")


def run(words, gpus, **more):
    env = dict(os.environ, OT_EMU_DEVICES=str(gpus), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_btl_vader_single_copy_mechanism="none", **more)
    return program.Result(subprocess.run(words, env=env, capture_output=True, timeout=120))


def memory_on_host(err):
    """What the summary of a run says about the host: planned and used."""
    return re.search(r"^memory .*host (\S+ \S+) planned, (\S+ \S+) used", err, re.M).groups()


class Gpus(program.ProgramTest):
    def check(self, words, ranks, description, **env):
        """Every rank takes its own GPU, or NCCL would refuse them."""
        result = run(words, ranks, **env)
        self.assertEqual(result.code, 0, result.err)
        report = json.loads(result.out)
        # 11 with each of 7 sizes. Through host memory, transfers are also checked in memory that the ranks share.
        self.assertEqual((report["ranks"], report["checks"]), (ranks, 84 if "NCCL" in description else 112))
        self.assertIn("Emulated GPU", report["device"])
        self.assertRegex(report["comm"], description)

    def test_all_gpus_use_nccl(self):
        for ranks in 2, 3:
            self.check([*TEST, "--gpus", "all"], ranks, rf"^NCCL .*, {ranks} ranks$")

    @unittest.skipUnless(MPIRUN, "there is no mpirun here")
    def test_mpirun(self):
        for comm, description in ("nccl", "^NCCL"), ("tcp", "^tcp"), ("mpi", "MPI|MPICH"):
            plugin = f"libot-comm-{comm}.so"
            if comm != "tcp" and not os.path.exists(os.path.join(os.environ["OFFLOAD_TRAIN_PLUGINS"], plugin)):
                self.skipTest(f"{plugin} is not built")
            env = {"ASAN_OPTIONS": "detect_leaks=0"} if comm == "mpi" else {}  # Open MPI does not free all of its memory
            self.check([MPIRUN, "--oversubscribe", "-n", "3", *TEST, "--comm", comm], 3, description, **env)

    def test_two_ranks_on_one_gpu_are_refused(self):
        train = [program.PROGRAM, "train", *program.SMALL, "--data", self.rows, "--steps", "2", "--no-save"]
        result = run([*train, "--gpus", "2", "--device", "cuda:1"], 2)
        self.assertEqual(result.code, USAGE, result.err)
        self.assertRegex(result.err, r"error: ranks 0 and 1 use the same GPU \(0000:02:00\.0\); each rank needs ")
        result = run([*TEST, "--comm", "nccl", "--gpus", "2", "--device", "cuda:1"], 2)
        self.assertEqual(result.code, COMM_FAILED, result.err)
        self.assertIn("ranks 0 and 1 use the same GPU (UUID ", result.err)

    def test_eval_and_generate(self):
        self.train("m", "--device", "cpu", "--steps", "2")
        few = program.write_rows(self.path("few.jsonl"), program.sql_rows(4))
        commands = (["eval", self.path("m"), "--data", few, "--seq-len", "128", "--micro-batch", "1", "--json"],
                    ["generate", self.path("m"), "-p", "abc", "--max-new-tokens", "4"])
        for command in commands:
            one = run([program.PROGRAM, *command, *SMALL], 1)
            self.assertEqual(one.code, 0, one.err)
            for shard in (["none"], ["stages"], ["full", "--share-weights", "no"]):
                two = run([program.PROGRAM, *command, *SMALL, "--gpus", "all", "--shard", *shard], 2)
                self.assertEqual((two.code, two.out), (0, one.out), two.err)
                self.assertIn("comm    NCCL", two.err)

    def test_one_copy_of_the_weights(self):
        """Both processes pin the memory that they share, and copy from all of it."""
        words = [program.PROGRAM, "train", *program.SMALL, "--data", self.rows, "--steps", "3", "--micro-batch", "1", "--shard",
                 "full", "--home", "weights=host,state=host", "--no-forecast", "--no-save", "--gpus", "2", "--share-weights"]
        results = [run([*words, share], 2) for share in ("no", "yes")]
        for result in results:
            self.assertEqual(result.code, 0, result.err)
        self.assertIn("one copy for all ranks", results[1].err)
        losses = [re.findall(r"(step \d/3) (?:ETA \S+ )?(loss [\d.]+)", result.err) for result in results]
        self.assertEqual(losses[0], losses[1])
        self.assertGreater(len(losses[0]), 0)

    def test_stages_have_the_bits_of_one_gpu(self):
        """Over NCCL; and through memory that all ranks pin, which the plan counts."""
        held = program.write_rows(self.path("held.jsonl"), [{"text": row["answer"]} for row in program.sql_rows(1)])
        train = [program.PROGRAM, "train", *program.SMALL, "--data", self.rows, "--eval-data", held, "--steps", "2",
                 "--micro-batch", "1", "--no-forecast", "--save-every", "never"]
        found = []
        for comm, description in ("one", ""), ("nccl", "NCCL .*, 2 ranks"), ("tcp", "tcp, 2 ranks"):
            stages = [] if comm == "one" else ["--gpus", "2", "--shard", "stages", "--comm", comm]
            result = run([*train, *stages, "--out", self.path(comm)], 2)
            self.assertEqual(result.code, 0, result.err)
            self.assertTrue(re.search(description, result.err), result.err)
            self.assertEqual("between ranks through memory that all pin" in result.err, comm == "tcp", result.err)
            losses = [(event["event"], event["loss"]) for event in self.log(comm) if event["event"] in ("step", "eval")]
            self.assertEqual(len(losses), 4)
            found.append((losses, program.read_bytes(self.path(f"{comm}/model.safetensors"))))
        for other in found[1:]:
            self.assertEqual(other, found[0])
        self.assertEqual(memory_on_host(result.err)[0], memory_on_host(result.err)[1])

    def test_no_shared_memory(self):
        """Files of this size are too small for it, so no rank begins."""
        words = [program.PROGRAM, "train", *program.SMALL, "--data", self.rows, "--steps", "2", "--micro-batch", "1",
                 "--no-forecast", "--no-save", "--gpus", "2", "--shard", "stages", "--comm", "tcp"]
        done = subprocess.run(words, env=dict(os.environ, OT_EMU_DEVICES="2"), capture_output=True, timeout=120, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FEW_BYTES, FEW_BYTES)),
                              restore_signals=False)
        self.assertEqual(done.returncode, MEMORY, done.stderr)
        self.assertRegex(done.stderr, rb"error: rank 0: the machine has no \d+ bytes of host memory left to share")

    def start_stages(self, steps, contain=()):
        """Two ranks that a launcher might have started, the second one in a container."""
        words = [program.PROGRAM, "train", *program.SMALL, "--data", self.rows, "--steps", str(steps), "--micro-batch", "1",
                 "--no-forecast", "--no-save", "--shard", "stages", "--comm", "tcp", "--json", "--nodes", "2", "--gpus", "1"]
        with socket.create_server(("127.0.0.1", 0)) as server:
            words += ["--master", f"127.0.0.1:{server.getsockname()[1]}"]
        ranks = []
        for r, enter in enumerate(([], contain)):
            ranks.append(subprocess.Popen([*enter, *words, "--node-rank", str(r), "--device", f"cuda:{r}"], stdout=subprocess.PIPE,
                                          env=dict(os.environ, OT_EMU_DEVICES="2"), stderr=subprocess.PIPE))
            self.addCleanup(ranks[r].kill)
        return ranks

    @SLOW
    def test_containers_share_no_memory(self):
        """A rank that cannot see the process of the other: each has staging memory of its own."""
        unshare, found = ["unshare", "--pid", "--fork", "--mount-proc"], []
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
            self.skipTest("this user may not make a PID namespace")
        for contain in [], unshare:
            ranks = self.start_stages(2, contain)
            outs = [rank.communicate(timeout=120) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], outs)
            events = [json.loads(line) for line in outs[0][0].splitlines()]
            found.append([event["loss"] for event in events if event["event"] == "step"])
            self.assertEqual(b"between ranks through memory that all pin" in outs[0][1], not contain, outs)
            self.assertEqual(b"activations between them are copied once more: " in outs[0][1], bool(contain), outs)
        self.assertEqual(len(found[0]), 2)
        self.assertEqual(found[0], found[1])

    def test_a_rank_is_killed_while_transfers_cross(self):
        first, second = self.start_stages(1000)
        for line in first.stdout:
            if json.loads(line)["event"] == "step":
                break
        second.kill()
        second.communicate()
        begin = time.monotonic()
        _, err = first.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(first.returncode, COMM_FAILED, err)
        self.assertIn(b"rank 1 (", err)

    def test_replicas_have_the_bits_of_shares(self):
        """Over NCCL, and, in slow runs, in pieces through host memory."""
        train = [program.PROGRAM, "train", *program.SMALL, "--data", self.rows, "--steps", "2", "--micro-batch", "1",
                 "--no-forecast", "--save-every", "never", "--home", "state=host"]
        found = []
        for comm, ranks, words in (("nccl", 2, ["--shard", "state"]), ("nccl", 4, ["--shard", "stages", "--stages", "2"]),
                                   ("tcp", 4, ["--shard", "stages", "--stages", "2"])):
            if comm == "tcp" and not os.environ.get("OT_TEST_SLOW"):
                continue
            out = f"{comm}-{ranks}"
            result = run([*train, *words, "--gpus", str(ranks), "--comm", comm, "--out", self.path(out)], ranks)
            self.assertEqual(result.code, 0, result.err)
            self.assertIn(f"{ranks} ranks", result.err)
            losses = [event["loss"] for event in self.log(out) if event["event"] == "step"]
            self.assertEqual(len(losses), 2)
            found.append((losses, program.read_bytes(self.path(f"{out}/model.safetensors"))))
        for other in found[1:]:
            self.assertEqual(other, found[0])

    def test_work_that_fails_on_the_gpu_ends_all_ranks(self):
        result = run([*TEST, "--gpus", "2", "-q"], 2, OT_FAKE_NCCL_ASYNC="7")
        self.assertEqual(result.code, COMM_FAILED, result.err)
        self.assertEqual([line[:7] for line in result.err.splitlines()], ["error: "], result.err)
        self.assertRegex(result.err, "nccl .*rank [01]: remote process exited")


program.main()
