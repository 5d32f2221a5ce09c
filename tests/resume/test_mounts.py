"""Outputs that rename cannot exchange: bind mounts, tmpfs, both layers of an overlay, a mounted sub-directory. The
whole script runs in a user and mount namespace of its own. It is skipped if the system permits none."""

import os
import re
import signal
import subprocess
import sys
import unittest

import program
from program import STOPPED, read_bytes, run
from resumable import FAULTS, SLOW, preload
from stopping import StoppingTest

INSIDE = "OT_TEST_IN_NAMESPACE"
STEPS = "6"
WEIGHTS = "model.safetensors"


def mount(*words):
    subprocess.run(["mount", *words], check=True, capture_output=True)


class MountsTest(StoppingTest):
    words = [*StoppingTest.words, "--steps", STEPS, "--eval-fraction", "0", "--save-every", "2", "--io-engine", "pool"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for out, seed in (("whole", "0"), ("other", "1")):
            result = run(*cls.command(out, "--seed", seed))
            assert result.code == 0, result.err

    @classmethod
    def tearDownClass(cls):
        with open("/proc/self/mounts") as mounts:
            points = [line.split(" ")[1] for line in mounts]
        for point in sorted((point for point in points if point.startswith(cls.folder)), reverse=True):
            subprocess.run(["umount", "-l", point], check=True)  # files that a ring held may still be closing
        super().tearDownClass()

    def make(self, *names):
        for name in names:
            os.makedirs(self.path(name), exist_ok=True)
        return [self.path(name) for name in names]

    def bind(self, name):
        source, out = self.make(f"{name}.source", name)
        mount("--bind", source, out)

    def tmpfs(self, name, *options):
        mount("-t", "tmpfs", *options, "none", *self.make(name))

    def overlay(self, name, lower_has_out):
        """The output is NAME/out. The lower layer has it already, or the first run makes it in the upper layer."""
        base, merged = self.make(f"{name}.base", name)
        mount("-t", "tmpfs", "none", base)  # not every file system can be a layer
        layers = self.make(f"{name}.base/lower", f"{name}.base/upper", f"{name}.base/work")
        if lower_has_out:
            self.succeed(*self.command(f"{name}.base/lower/out", "--seed", "1"))
        mount("-t", "overlay", "none", "-o", "userxattr,lowerdir={},upperdir={},workdir={}".format(*layers), merged)

    def sub_mount(self, name):
        source, _ = self.make(f"{name}.source", f"{name}/checkpoints")
        self.succeed(*self.command(f"{name}.first", "--seed", "1", "--save-every", "never"))
        for file in os.listdir(self.path(f"{name}.first")):
            os.rename(self.path(f"{name}.first/{file}"), self.path(f"{name}/{file}"))
        mount("--bind", source, self.path(f"{name}/checkpoints"))

    def check_whole(self, out, whole="whole"):
        self.assertEqual(read_bytes(self.path(f"{out}/{WEIGHTS}")), read_bytes(self.path(f"{whole}/{WEIGHTS}")))
        self.assertEqual(set(os.listdir(self.path(out))) - {"checkpoints"}, set(os.listdir(self.path(whole))) - {"checkpoints"})
        self.assertEqual(self.records(out), self.records(whole))
        self.assertFalse(os.path.exists(self.path(out + ".partial")))
        self.succeed("verify", self.path(out), "--quiet")

    def check_runs(self, out):
        """A first result, another one in its place, the same command again, then an export in its place."""
        anew = ("--resume", "never")
        self.succeed(*self.command(out, *anew))
        self.check_whole(out)
        self.succeed(*self.command(out, *anew, "--seed", "1"))
        self.check_whole(out, "other")
        self.assertIn("already finished", self.succeed(*self.command(out, "--seed", "1")).err)
        self.succeed("export", self.path("whole"), "--out", self.path(out))
        self.assertEqual(read_bytes(self.path(f"{out}/{WEIGHTS}")), read_bytes(self.path(f"whole/{WEIGHTS}")))
        self.assertTrue(os.path.exists(self.path(f"{out}/log.jsonl")))

    def test_a_mount_point(self):
        self.bind("bind")
        self.check_runs("bind")
        self.tmpfs("tmpfs")
        self.check_runs("tmpfs")

    def test_a_new_volume(self):
        """ext4 has a directory of its own at the mount point."""
        self.bind("volume")
        os.mkdir(self.path("volume/lost+found"))
        self.succeed(*self.command("volume"))
        self.assertTrue(os.path.isdir(self.path("volume/lost+found")))
        os.rmdir(self.path("volume/lost+found"))
        self.check_whole("volume")

    def test_overlays(self):
        for lower_has_out in (True, False):
            name = f"overlay-{lower_has_out}"
            self.overlay(name, lower_has_out)
            self.check_runs(f"{name}/out")

    def test_a_mounted_sub_directory(self):
        self.sub_mount("sub")
        for seed, whole in (("0", "whole"), ("1", "other")):
            self.succeed(*self.command("sub", "--resume", "never", "--seed", seed))
            self.check_whole("sub", whole)
            self.assertEqual(self.checkpoints("sub"), self.checkpoints("whole"))
            self.assertEqual(os.listdir(self.path("sub.source")), os.listdir(self.path("sub/checkpoints")))

    def test_a_mounted_sub_directory_of_a_run_that_was_stopped(self):
        """Its checkpoints cannot be set aside for a new run, and they are all that the stopped run has left."""
        self.sub_mount("held")
        self.succeed(*self.command("held", "--resume", "never"))
        for name in "finished.json", "checkpoints/complete":
            os.remove(self.path(f"held/{name}"))
        kept = self.checkpoints("held")
        result = run(*self.command("held", "--resume", "never", "--seed", "1"))
        self.assertEqual(result.code, 5, result.err)
        self.assertRegex(result.err, r"held/checkpoints: has checkpoints of another run and cannot be renamed to .*\.old; "
                                     "remove them, or choose another --out")
        self.assertEqual(self.checkpoints("held"), kept)

    def test_beside_it_nothing_can_be_written(self):
        self.make("fixed")
        mount("--bind", *[self.path("fixed")] * 2)
        self.bind("fixed/out")
        mount("-o", "remount,bind,ro", self.path("fixed"))
        self.check_runs("fixed/out")

    def test_a_run_that_was_stopped_goes_on(self):
        self.tmpfs("stopped")
        process = self.start("stopped", "--steps", "300")
        self.assertTrue(self.wait_for(process, lambda: self.checkpoints("stopped")))
        process.terminate()
        err = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, STOPPED, err)
        # The step at which the run was stopped does not matter: its checkpoint allows another length.
        self.assertIn("resume  ", self.succeed(*self.command("stopped", "--steps", "300")).err)

    def test_a_disk_that_becomes_full(self):
        """The log has no space left. The space reserved for checkpoints is released, and then the log gets its
        lines."""
        self.tmpfs("full", "-o", "size=16M")
        self.make("full/out")
        more = ("--steps", "60", "--save-every", "1h")
        process = self.start("full/out", *more)
        self.assertTrue(self.wait_for(process, lambda: self.logged("full/out", "step", 3)))
        process.send_signal(signal.SIGSTOP)
        with self.assertRaises(OSError):
            with open(self.path("full/others"), "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=60)[1].decode()
        line = err.splitlines()[-1]
        self.assertEqual(process.returncode, 5, err)
        self.assertRegex(line, "log.jsonl: cannot write the log: No space left on device; step .* is saved; ")
        os.unlink(self.path("full/others"))
        option = re.search(r"--resume \S+", line)[0].split(" ")
        self.assertIn(self.path("full/out/checkpoints/step-"), option[1])
        self.succeed(*self.command("full/out", *more, *option))
        self.succeed(*self.command("long", *more))
        self.check_whole("full/out", "long")

    @unittest.skipUnless(FAULTS, "needs faults.c")
    def test_cut_at_any_moment(self):
        """A second run replaces a finished one and is killed before each call in turn. Readers refuse the
        half-replaced output, or find the old result or the new one. The next command finishes the replacement."""
        self.tmpfs("cut")
        words, log = self.command("cut", "--resume", "never", "--save-every", "never", "--steps", "2"), self.path("calls")
        weights, names = [], {"log.old.jsonl", "checkpoints"}
        for more in ((), ("--seed", "1")):
            self.succeed(*words, *more)
            weights.append(read_bytes(self.path(f"cut/{WEIGHTS}")))
        names |= set(os.listdir(self.path("cut")))
        self.assertEqual(run(*words, env=preload(None, "/cut/", log)).code, 0)
        calls = read_bytes(log).decode().splitlines()
        first = max(n for n, call in enumerate(calls, 1) if "unlink" in call and call.endswith("unfinished"))
        refused = 0
        for n in range(first, len(calls) + 1, 1 if SLOW else 5):
            self.succeed(*words, "--seed", "1")
            self.assertEqual(run(*words, env=preload(f"kill:any:{n}", "/cut/")).code, -9, calls[n - 1])
            seen = run("verify", self.path("cut"), "--quiet")
            if seen.code != 0:
                self.assertIn("a process ended while it was replacing the result", seen.err, calls[n - 1])
                refused += 1
            # A reader that does not know this program must not find a mixture of old and new files that looks like a
            # model.
            if os.path.exists(self.path("cut/config.json")):
                self.assertIn(read_bytes(self.path(f"cut/{WEIGHTS}")), weights)
            again = self.succeed(*self.command("cut", "--save-every", "never", "--steps", "2"))
            self.assertIn("already finished", again.err)
            self.assertLessEqual(set(os.listdir(self.path("cut"))), names)
            self.assertIn(read_bytes(self.path(f"cut/{WEIGHTS}")), weights if seen.code == 0 else weights[:1])
        self.assertGreater(refused, 4 if SLOW else 0)


def enter_namespace():
    """Runs the script again in a namespace, if mounting is permitted. Returns if it is not."""
    unshare = ["unshare", "-Ur", "-m"]
    try:
        tried = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True)
    except FileNotFoundError:
        return "unshare is not installed"
    if tried.returncode == 0:
        os.environ[INSIDE] = "1"
        os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])
    return tried.stderr.decode().strip()


if __name__ == "__main__":
    if INSIDE not in os.environ:
        print("SKIP: the system permits no user namespace with mounts:", enter_namespace())
        sys.exit(77)
    program.main()
