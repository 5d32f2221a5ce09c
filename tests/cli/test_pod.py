"""Runs as on a rented pod: with a root that cannot be written, 64 MiB of /dev/shm, an odd user without a home and without an
environment, and a machine that is taken away. A run there stops within its grace and goes on with the same bits."""

import os
import shutil
import signal
import subprocess
import time
import unittest

import program
from program import PROGRAM, SMALL, STOPPED, read_bytes

# In a mount namespace of its own: $1 can be written, and nothing else.
ENTER = """mount --bind "$1" "$1" && mount -o remount,ro,bind / && mount -t tmpfs -o size=64M tmpfs /dev/shm || exit 99
shift
exec env -i setpriv --reuid 54321 --regid 54321 --clear-groups --no-new-privs "$@" """


class Pod(program.ProgramTest):
    words = ["train", "--no-forecast", *SMALL, "--device", "cpu", "--gpu-mem", "64M", "--host-mem", "64M", "--micro-batch", "2"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.volume = cls.path("volume")
        os.makedirs(cls.volume)
        os.chmod(cls.volume, 0o777)
        os.chmod(cls.folder, 0o755)
        cls.binary = shutil.copy(PROGRAM, cls.path("offload-train"))
        os.chmod(cls.binary, 0o755)
        for tool in "unshare", "setpriv", "mount":
            if not shutil.which(tool):
                raise unittest.SkipTest(f"{tool} is not installed")

    def start(self, *words):
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", ENTER, "sh", self.volume, self.binary, *words], cwd="/",
                                stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def enter(self, *words):
        started = self.start(*words)
        err = started.communicate(timeout=120)[1]
        if started.returncode in (1, 99) and "offload-train" not in err:
            self.skipTest(f"namespaces are not permitted here: {err.strip()}")
        return started.returncode, err

    def test_a_pod_that_is_taken_away(self):
        out, data = f"{self.volume}/run", ["--data", self.rows]
        code, err = self.enter("--version")
        self.assertEqual(code, 0, err)
        self.succeed(*self.words, *data, "--out", self.path("whole"), "--steps", "150")
        started = self.start(*self.words, *data, "--out", out, "--steps", "150", "--grace", "20s")
        while not os.path.exists(f"{out}/log.jsonl") or b'"step": 3' not in read_bytes(f"{out}/log.jsonl"):
            time.sleep(0.01)
        started.send_signal(signal.SIGTERM)  # `exec` all the way: it is the program's own process
        self.assertEqual(started.wait(timeout=60), STOPPED, started.communicate()[1])
        code, err = self.enter(*self.words, *data, "--out", out, "--steps", "150", "--grace", "20s")
        self.assertEqual(code, 0, err)
        self.assertIn("\nresume  ", err)
        self.assertEqual(read_bytes(f"{out}/model.safetensors"), read_bytes(self.path("whole/model.safetensors")))
        self.assertEqual(sorted(os.listdir(self.volume)), ["run"])

    def test_ranks_in_little_shared_memory(self):
        out = f"{self.volume}/ranks"
        code, err = self.enter(*self.words, "--data", self.rows, "--out", out, "--steps", "3", "--gpus", "2", "--shard", "full",
                               "--share-weights", "yes")
        self.assertEqual(code, 0, err)
        shutil.rmtree(out)

    def test_an_output_that_cannot_be_written_is_said(self):
        code, err = self.enter(*self.words, "--data", self.rows, "--out", self.path("elsewhere"), "--steps", "3", "--quiet")
        self.assertEqual(code, 5, err)
        self.assertRegex(err, "^error: .*elsewhere.*(Read-only|Permission denied)")


if __name__ == "__main__":
    program.main()
