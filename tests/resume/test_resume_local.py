"""Hosts that share no directory: with --save-local each keeps the checkpoint parts of its own ranks. Two hosts are
two processes here, each with an --out of its own."""

import os
import shutil
import signal
import socket
import subprocess

import program
from launchers import free_port
from program import read_bytes
from resumable import FAULTS, ResumableTest, preload

USAGE, INPUT, COMM_FAILED = 2, 3, 11


class LocalTest(ResumableTest):
    words = ["--no-forecast", *program.SMALL, "--micro-batch", "1", "--steps", "8", "--eval-every", "8", "--device",
             "cpu", "--deterministic", "world", "--comm-timeout", "60s"]

    def hosts(self, out, *more, env=(None, None), own=None, each=((), ())):
        """Runs one rank on each host. own: the name of the directory of each host. each: words of each host. Returns
        the results."""
        port, processes = free_port(), []
        for host in 0, 1:
            words = ["--nodes", "2", "--node-rank", str(host), "--master", f"127.0.0.1:{port}", *more, *each[host]]
            processes.append(self.start((own or [f"{out}-0", f"{out}-1"])[host], *words, env=env[host]))
        ends = [process.communicate(timeout=100) for process in processes]
        return [program.Result(subprocess.CompletedProcess([], process.returncode, b"", end[1]))
                for process, end in zip(processes, ends)]

    def succeed_on_both(self, out, *more):
        results = self.hosts(out, "--save-local", *more)
        self.assertEqual([result.code for result in results], [0, 0], [result.err for result in results])
        return results

    def merge(self, out, step):
        """Copies the folders of a checkpoint together. Returns the path."""
        name = f"checkpoints/step-{step:08}"
        shutil.copytree(self.path(f"{out}-1/{name}"), self.path(f"merged/{name}"))
        shutil.copytree(self.path(f"{out}-0/{name}"), self.path(f"merged/{name}"), dirs_exist_ok=True)
        return self.path(f"merged/{name}")


class Local(LocalTest):
    def test_both_go_back_to_the_best_state(self):
        """It is read from the parts of both hosts. Rates that are too high make the last state a worse one."""
        more = ["--eval-every", "1", "--lr", "0.2", "--schedule", "constant", "--warmup", "0"]
        first, _ = self.succeed_on_both("back", *more)
        done = self.log("back-0")[-1]
        best = done["result_step"]
        self.assertEqual((best, done["best_eval_step"]), (best, best))
        self.assertLess(best, 8)
        for host in 0, 1:
            self.assertEqual([self.checkpoints(f"back-{host}"), self.best_states(f"back-{host}")], [[8], [best]])
        self.assertIn("the result; after the last step, 8, it is", first.err)
        self.assertIn("copy that checkpoint's directory of every host into one, then export it", first.err)
        whole = self.whole(*more, "--steps", str(best), "--gpus", "1")
        self.assertEqual(read_bytes(self.path("back-0/model.safetensors")),
                         read_bytes(self.path(f"{whole}/model.safetensors")))

    def test_each_host_keeps_the_parts_of_its_ranks(self):
        whole = self.whole("--gpus", "1")
        first, second = self.succeed_on_both("own", "--keep", "9")
        self.check_equal("own-0", whole)
        self.assertIn("each host keeps the parts of its own ranks", first.err)
        self.assertEqual(second.err, "")
        paths = [self.path(f"own-{host}/checkpoints/step-00000004") for host in (0, 1)]
        for host, name in enumerate(("state.bin", "state-1.bin")):
            self.assertEqual(sorted(os.listdir(paths[host])), ["checkpoint.json", "manifest.bin", name])
        for name in "checkpoint.json", "manifest.bin":
            self.assertEqual(read_bytes(f"{paths[0]}/{name}"), read_bytes(f"{paths[1]}/{name}"))
        verified = program.run("verify", paths[1])
        self.assertEqual(verified.code, INPUT)
        self.assertRegex(verified.out, "state-1.bin .* ok\n(.*\n)*incomplete\n$")
        self.assertRegex(verified.err, f"state.bin is not here: rank 0 kept it on host {socket.gethostname()} .*copy")
        exported = program.run("export", paths[0], "--out", self.path("exported"))
        self.assertEqual(exported.code, INPUT)
        self.assertIn("state-1.bin is not here: rank 1", exported.err)
        alone = program.run(*self.command("alone", "--gpus", "1", "--resume", paths[0]))
        self.assertEqual(alone.code, INPUT)
        self.assertIn("state-1.bin is not here: rank 1", alone.err)
        merged = self.merge("own", 4)
        self.succeed("verify", merged)
        self.succeed(*self.command("alone", "--gpus", "1", "--resume", merged))
        self.assertEqual(read_bytes(self.path("alone/model.safetensors")),
                         read_bytes(self.path(f"{whole}/model.safetensors")))
        again = self.succeed_on_both("own")
        self.assertIn("already finished", again[0].err)

    def test_a_host_that_lost_its_directory_is_named(self):
        self.succeed_on_both("lost", "--steps", "4", "--schedule", "constant")
        os.remove(self.path("lost-0/finished.json"))
        for host in 0, 1:
            os.remove(self.path(f"lost-{host}/checkpoints/complete"))
        shutil.rmtree(self.path("lost-1"))
        results = self.hosts("lost", "--save-local", "--steps", "4", "--schedule", "constant")
        # Both find it. The slower one may learn it from the other, which then is why it ends.
        self.assertIn(INPUT, [result.code for result in results])
        for result in results:
            self.assertIn(result.code, (INPUT, COMM_FAILED), result.err)
            self.assertRegex(result.err, r"rank 1 \(.*\) has no checkpoint, but rank 0 \(.*\) has that of step 4: "
                                         "start the ranks on the hosts that saved it")

    def test_a_missing_part_is_named(self):
        self.succeed_on_both("part", "--steps", "4", "--schedule", "constant", "--keep", "9")
        paths = [self.path(f"part-{host}/checkpoints/step-00000002") for host in (0, 1)]
        os.remove(paths[1] + "/state-1.bin")
        results = self.hosts("went", "--save-local", "--steps", "4", "--schedule", "constant",
                             each=[["--resume", path] for path in paths])
        self.assertEqual([result.code for result in results], [COMM_FAILED, INPUT])
        for result in results:
            self.assertIn("state-1.bin is not here: rank 1 kept it on host", result.err)

    def begin_again(self, out):
        """Makes the run of both hosts one that was stopped after its newest checkpoint."""
        os.remove(self.path(f"{out}-0/finished.json"))
        for host in 0, 1:
            os.remove(self.path(f"{out}-{host}/checkpoints/complete"))

    def test_two_saves_of_one_step_are_not_the_same(self):
        """One host has the checkpoint of step 4 of another process: the newest that both have is that of step 2."""
        more = ("--steps", "4", "--schedule", "constant", "--keep", "9")
        for out in "one", "two":
            self.succeed_on_both(out, *more)
        name = "checkpoints/step-00000004"
        shutil.rmtree(self.path(f"one-1/{name}"))
        shutil.copytree(self.path(f"two-1/{name}"), self.path(f"one-1/{name}"))
        self.begin_again("one")
        self.succeed_on_both("one", *more)
        self.assertEqual([event["step"] for event in self.log("one-0") if event["event"] == "resume"], [2])
        self.check_equal("one-0", "two-0")

    def test_a_damaged_newest_checkpoint_is_not_passed_over(self):
        more = ("--steps", "4", "--schedule", "constant", "--keep", "9")
        self.succeed_on_both("hurt", *more)
        path = self.path("hurt-1/checkpoints/step-00000004/manifest.bin")
        os.truncate(path, os.path.getsize(path) - 1)
        self.begin_again("hurt")
        results = self.hosts("hurt", "--save-local", *more)
        self.assertIn(INPUT, [result.code for result in results])
        for result in results:
            self.assertIn(result.code, (INPUT, COMM_FAILED), result.err)
        self.assertRegex(results[1].err, "manifest.bin.* use --resume .*step-00000002")

    def test_a_slash_at_the_end_names_the_same_directory(self):
        first, _ = self.hosts("slash", "--save-local", own=["slash", "slash/"])
        self.assertEqual(first.code, 0, first.err)
        self.assertIn("--save-local has no effect: all ranks share the directory", first.err)

    def test_hosts_find_out_whether_they_share_the_directory(self):
        results = self.hosts("apart")
        self.assertIn(USAGE, [result.code for result in results])  # one rank may hear it from the other first
        for result in results:
            self.assertNotEqual(result.code, 0)
            self.assertRegex(result.err, r"rank 1 \(.*\) does not see the --out directory of rank 0 .*--save-local")
        self.assertEqual([name for name in os.listdir(self.folder) if "apart" in name or name.startswith(".")], [])
        first, _ = self.hosts("shared", "--save-local", own=["shared", "shared"])
        self.assertEqual(first.code, 0, first.err)
        self.assertIn("--save-local has no effect: all ranks share the directory", first.err)

    def test_a_whole_checkpoint_on_each_host(self):
        self.succeed_on_both("none", "--shard", "none", "--keep", "9")
        for host in 0, 1:
            self.succeed("verify", self.path(f"none-{host}/checkpoints/step-00000004"))


class Killed(LocalTest):
    def test_a_rank_that_dies_in_a_save(self):
        whole = self.whole("--gpus", "1")
        for host, name, calls, newest in ((1, "state-1.bin", "fsync:2", 2), (1, "manifest.bin", "open:2", 2),
                                          (0, "step-00000004", "rename:1", 2), (1, "step-00000002", "rename:1", 0)):
            for place in 0, 1:
                self.clear(f"dies-{place}")
            env = [None, None]
            env[host] = preload(f"kill:{calls}", name)
            results = self.hosts("dies", "--save-local", env=env)
            self.assertEqual(results[host].code, -signal.SIGKILL, (name, results[host].err))
            self.assertNotEqual(results[1 - host].code, 0)
            self.succeed_on_both("dies")
            begun = [event["step"] for event in self.log("dies-0") if event["event"] == "resume"]
            self.assertGreaterEqual((begun or [0])[0], newest, name)
            self.check_equal("dies-0", whole, name)


if __name__ == "__main__":
    if not FAULTS:
        del Killed
    program.main()
