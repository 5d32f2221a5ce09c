"""How a run of several ranks ends when one of them does not go on: killed, stopped, told to stop, or failing."""

import os
import signal
import subprocess
import time
import unittest

import program
from launchers import free_port, run_commands, slurm, torchrun

USAGE, BAD_INPUT, COMM_FAILED = 2, 5, 11
OPTIONS = ["train", *program.SMALL, "--device", "cpu", "--micro-batch", "1", "--no-forecast"]


class Ends(program.ProgramTest):
    def begin(self, ranks, *words):
        """Starts a long run and waits for its first steps. Returns the parent and the ranks."""
        command = [program.PROGRAM, *OPTIONS, "--data", self.rows, "--steps", "1000000", "--gpus", ranks, *words]
        parent = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE)
        lines = []
        for line in parent.stderr:
            lines.append(line.decode())
            if lines[-1].startswith("step "):
                break
        self.assertTrue(lines and lines[-1].startswith("step "), lines)
        with open(f"/proc/{parent.pid}/task/{parent.pid}/children") as file:
            children = [int(word) for word in file.read().split()]
        self.assertEqual(len(children), ranks)
        return parent, children

    def await_end(self, parent, seconds):
        begin = time.monotonic()
        _, err = parent.communicate(timeout=120)
        self.assertLess(time.monotonic() - begin, seconds)
        return parent.returncode, [line for line in err.decode().splitlines() if line.startswith("error: ")]

    def end(self, ranks, victim, number, seconds, *words):
        parent, children = self.begin(ranks, "--no-save", *words)
        os.kill(children[victim], number)
        return (*self.await_end(parent, seconds), children)

    def test_a_killed_rank_is_named_once(self):
        for mode in "none", "state", "full":
            code, errors, children = self.end(3, 2, signal.SIGKILL, 20, "--shard", mode)
            self.assertEqual(code, COMM_FAILED)
            self.assertEqual(len(errors), 1, errors)
            self.assertRegex(errors[0], f"rank 2 .*process {children[2]}.* is lost: its connection closed")

    def test_shared_weights_vanish_with_the_ranks(self):
        def mapped(process):
            try:
                with open(f"/proc/{process}/maps") as file:
                    return {line.split()[5] for line in file if "/memfd:offload-train-" in line}
            except OSError:
                return set()

        names = sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else []
        parent, children = self.begin(3, "--no-save", "--share-weights", "yes")
        memory = mapped(children[0])
        self.assertEqual(len(memory), 1)
        for child in children:
            self.assertEqual(mapped(child), memory)
        os.kill(children[1], signal.SIGKILL)
        code, errors = self.await_end(parent, 20)
        self.assertEqual((code, len(errors)), (COMM_FAILED, 1), errors)
        for process in filter(str.isdigit, os.listdir("/proc")):
            self.assertFalse(mapped(process) & memory, process)
        if names:
            self.assertEqual([name for name in os.listdir("/dev/shm") if "offload" in name],
                             [name for name in names if "offload" in name])

    def test_weights_that_cannot_be_shared(self):
        for phrase, words in (("one rank; use --gpus 2", []), ("contradict", ["--gpus", 2, "--shard", "state"]),
                              ("contradict", ["--gpus", 2, "--home", "weights=gpu"])):
            result = program.run(*OPTIONS, "--data", self.rows, "--steps", 1, "--no-save", "--share-weights", "yes", *words)
            self.assertEqual(result.code, USAGE, result.err)
            self.assertIn(phrase, result.err)

    def test_rank_0_is_killed(self):
        code, errors, _ = self.end(2, 0, signal.SIGKILL, 20)
        self.assertEqual((code, len(errors)), (COMM_FAILED, 1), errors)
        self.assertIn("rank 0 was killed by signal 9", errors[0])

    def test_a_stopped_rank_is_lost(self):
        for victim, shard in (0, "full"), (1, "stages"):
            code, errors, _ = self.end(2, victim, signal.SIGSTOP, 60, "--shard", shard)
            self.assertEqual((code, len(errors)), (COMM_FAILED, 1), errors)
            self.assertRegex(errors[0], f"rank {victim} .* is lost: it was silent for 30 s")

    def test_sigterm_on_any_rank_stops_all(self):
        for victim in 0, 1:
            out = self.path(f"stopped-{victim}")
            parent, children = self.begin(2, "--out", out)
            os.kill(children[victim], signal.SIGTERM)
            code, errors = self.await_end(parent, 60)
            self.assertEqual((code, errors), (program.STOPPED, []))
            names = os.listdir(os.path.join(out, "checkpoints"))
            self.assertEqual(len(names), 1, names)
            self.assertFalse(os.path.exists(os.path.join(out, "model.safetensors")))

    def test_a_run_that_saves_nothing_stops_as_one_rank_does(self):
        parent, _ = self.begin(2, "--no-save")
        parent.terminate()
        self.assertEqual(self.await_end(parent, 60), (program.STOPPED, []))

    def test_a_budget_error_is_printed_once(self):
        result = program.run(*OPTIONS, "--data", self.rows, "--steps", 3, "--gpus", 2, "--gpu-mem", "1M", "--no-save")
        self.assertEqual(result.code, 4, result.err)
        self.assertEqual(result.err.count("the smallest plan"), 1, result.err)

    def test_a_killed_run_names_its_checkpoint(self):
        parent, children = self.begin(2, "--save-every", 2, "--out", self.path("killed"))
        # the second checkpoint begins when the first is complete
        while sum(name.startswith("step-") for name in os.listdir(self.path("killed/checkpoints"))) < 2:
            self.assertIsNone(parent.poll())
            time.sleep(0.05)
        os.kill(children[1], signal.SIGKILL)
        code, errors = self.await_end(parent, 30)
        self.assertEqual((code, len(errors)), (COMM_FAILED, 1), errors)
        self.assertEqual(errors[0].count("the last checkpoint is"), 1, errors[0])


class Launchers(program.ProgramTest):
    def run_ranks(self, launcher, ranks, *words, own=()):
        """Starts the ranks by hand. own: words of the last rank alone."""
        command = [*OPTIONS, "--data", self.rows, "--steps", "3", *words]
        return run_commands(launcher, [*[command] * (ranks - 1), [*command, *own]])

    def check_model(self, out, results):
        for result in results:
            self.assertEqual(result.code, 0, result.err)
        self.train("one", "--device", "cpu", "--micro-batch", "1", "--steps", "3", "--deterministic", "world")
        self.assertEqual(program.read_bytes(self.path(f"{out}/model.safetensors")),
                         program.read_bytes(self.path("one/model.safetensors")))

    def test_torchrun(self):
        # Ranks without a common parent share weights too.
        self.check_model("torchrun", self.run_ranks(torchrun, 2, "--deterministic", "world", "--share-weights", "yes", "--out",
                                                    self.path("torchrun")))

    def test_slurm(self):
        self.check_model("slurm", self.run_ranks(slurm, 2, "--deterministic", "world", "--out", self.path("slurm")))

    def fail_to_agree(self, sentence, *own):
        results = self.run_ranks(torchrun, 3, "--no-save", own=own)
        for result in results:
            self.assertEqual(result.code, USAGE, result.err)
            self.assertIn(sentence, result.err)

    def test_ranks_that_differ_are_refused(self):
        self.fail_to_agree("--lr differs: ranks 0 and 1 have 0.003, rank 2 has 0.5", "--lr", "0.5")
        self.fail_to_agree("--shard differs: ranks 0 and 1 have auto, rank 2 has none", "--shard", "none")
        other = program.write_rows(self.path("other.jsonl"), program.sql_rows(59))
        self.fail_to_agree("the training data differs: ranks 0 and 1 have 60 rows", "--data", other)

    def test_options_of_one_rank_that_are_wrong(self):
        """Such a rank ends before the ranks are connected. The others would wait for it for 10 minutes."""
        good = [*OPTIONS, "--data", self.rows, "--steps", "3", "--no-save"]
        for wrong in range(3):
            results = run_commands(torchrun, [[*good, "--bogus", "1"] if rank == wrong else good for rank in range(3)])
            for result in results:
                self.assertEqual(result.code, USAGE, result.err)
                self.assertIn("unknown option --bogus", result.err)

    def test_words_that_are_wrong_before_those_that_name_the_rank(self):
        """--nodes, --node-rank and --master come after the word that ends the reading of options."""
        good = [*OPTIONS, "--data", self.rows, "--steps", "3", "--no-save"]
        port = free_port()
        place = [["--nodes", 2, f"--node-rank={rank}", "--master", f"127.0.0.1:{port}"] for rank in range(2)]
        results = run_commands(lambda *_: {}, [[*good, *place[0]], [*good, "--lr=fast", *place[1]]])
        for result in results:
            self.assertEqual(result.code, USAGE, result.err)
            self.assertIn("--lr", result.err)

    def test_a_secret(self):
        secret = "correct-horse-battery"

        def run_with(others, *words):
            command = [*OPTIONS, "--data", self.rows, "--steps", "3", "--out", self.path("secret"), *words]
            return run_commands(torchrun, [command] * 2, env=lambda rank: {"OFFLOAD_TRAIN_SECRET": secret if rank == 0 else others})

        results = run_with(secret, "--json")
        self.assertEqual([result.code for result in results], [0, 0], results[1].err)
        for at, _, names in os.walk(self.path("secret")):
            for name in names:
                self.assertNotIn(secret.encode(), program.read_bytes(os.path.join(at, name)), name)
        more = run_with("another-secret", "--comm-timeout", "3s", "--resume", "never")
        self.assertEqual([result.code for result in more], [COMM_FAILED, USAGE])
        self.assertIn("have different secrets; give all ranks the same $OFFLOAD_TRAIN_SECRET", more[1].err)
        self.assertIn("rank 0 drops a connection", more[0].err)
        self.assertIn("rank 1 of 2 did not connect", more[0].err)
        for result in results + more:
            for text in result.out, result.err:
                self.assertNotIn(secret, text)
                self.assertNotIn("another-secret", text)

    def test_a_rank_that_fails_by_itself(self):
        results = self.run_ranks(torchrun, 2, "--no-save", own=["--data", self.path("missing.jsonl")])
        for result in results:
            self.assertIn("missing.jsonl", result.err)
        self.assertEqual([result.code for result in results], [COMM_FAILED, BAD_INPUT])

    def test_mpirun(self):
        mpirun = program.shutil.which("mpirun")
        if not mpirun:
            self.skipTest("there is no mpirun here")
        for comm in "tcp", "mpi":
            if comm == "mpi" and not os.path.exists(os.path.join(os.path.dirname(program.PROGRAM), "libot-comm-mpi.so")):
                self.skipTest("the mpi plugin is not built")
            env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            if comm == "mpi":
                env["ASAN_OPTIONS"] = "detect_leaks=0"  # Open MPI does not free all of its memory
            out = f"mpirun-{comm}"
            command = [mpirun, "--oversubscribe", "-n", "2", program.PROGRAM, *OPTIONS, "--data", self.rows, "--steps",
                       "3", "--deterministic", "world", "--comm", comm, "--out", self.path(out)]
            done = subprocess.run(command, env=env, capture_output=True, timeout=120)
            self.check_model(out, [program.Result(done)])


program.main()
