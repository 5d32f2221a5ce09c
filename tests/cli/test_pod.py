"""Runs as on a rented pod: with a root that cannot be written, 64 MiB of /dev/shm, an odd user without a home and without an
environment, a limit of memory, no io_uring, and a machine that is taken away. A run there stops within its grace and goes on
with the same bits."""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import time
import unittest

import program
from program import PROGRAM, SMALL, STOPPED, read_bytes

# In a mount namespace of its own: $1 can be written, and nothing else.
ENTER = """mount --bind "$1" "$1" && mount -o remount,ro,bind / && mount -t tmpfs -o size=64M tmpfs /dev/shm || exit 99
shift
exec env -i setpriv --reuid 54321 --regid 54321 --clear-groups --no-new-privs "$@" """


PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
IO_URING_SETUP, EPERM = 425, 1
LIMIT = 400 << 20


def forbid_io_uring():
    """What the default seccomp profile of containers does. For subprocess: runs in the child, and holds for all it starts."""
    load, equal, result = 0x20, 0x15, 0x06  # BPF: of a word, jump, return
    filters = [(load, 0, 0, 0), (equal, 0, 1, IO_URING_SETUP), (result, 0, 0, 0x00050000 | EPERM), (result, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filters))
    program_of_filters = struct.pack("HP", len(filters), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program_of_filters):
        os._exit(99)


def own_group():
    """The folder of this process's cgroup for memory, and the name of its limit."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for number, controllers, path in (line.rstrip("\n").split(":", 2) for line in file):
            if controllers == "memory":
                return f"/sys/fs/cgroup/memory{path}", "memory.limit_in_bytes"
            if number == "0" and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
                return f"/sys/fs/cgroup{path}", "memory.max"
    raise unittest.SkipTest("this machine has no cgroup for memory")


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

    def start(self, *words, before=None):
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", ENTER, "sh", self.volume, self.binary, *words], cwd="/",
                                stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=before)

    def enter(self, *words, before=None):
        started = self.start(*words, before=before)
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

    def test_without_io_uring(self):
        for name, before in ("with", None), ("without", forbid_io_uring):
            os.makedirs(f"{self.volume}/{name}", mode=0o777)
            os.chmod(f"{self.volume}/{name}", 0o777)
            words = [*self.words, "--data", self.rows, "--out", f"{self.volume}/{name}/run", "--steps", "3", "--home", "nvme",
                     "--nvme", f"{self.volume}/{name}"]
            code, err = self.enter(*words, before=before)
            self.assertEqual(code, 0, err)
            if before:
                code, err = self.enter(*words, "--resume", "never", "--io-engine", "uring", before=before)
                self.assertEqual(code, 5, err)
                self.assertIn("io_uring is forbidden here, by the container's seccomp profile", err)
        models = [read_bytes(f"{self.volume}/{name}/run/model.safetensors") for name in ("with", "without")]
        self.assertEqual(*models)
        for name in "with", "without":
            shutil.rmtree(f"{self.volume}/{name}")

    def test_a_limit_of_memory(self):
        """Without a limit of its own, the program plans within the cgroup's, and nothing ends it."""
        parent, limit = own_group()
        group = f"{parent}/offload-train-test-{os.getpid()}"
        try:
            os.mkdir(group)
            self.addCleanup(os.rmdir, group)
            with open(f"{group}/{limit}", "w", encoding="utf-8") as file:
                file.write(str(LIMIT))
        except OSError as error:
            self.skipTest(f"cgroups cannot be made here: {error}")

        def join():
            with open(f"{group}/cgroup.procs", "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))

        out = f"{self.volume}/limited"
        words = [word for word in self.words if word not in ("--gpu-mem", "--host-mem", "64M")]
        code, err = self.enter(*words, "--data", self.rows, "--out", out, "--steps", "3", before=join)
        self.assertEqual(code, 0, err)
        code, err = self.enter("plan", "--model", "tiny-test", "--device", "cpu", "--threads", "1", "--gpu-mem", "64M", "--host-mem",
                               "1G", before=join)  # measures the machine
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"--host-mem 1.0 GiB is more than the 3\d\d\.\d MiB of RAM that are free within the container's limit")
        shutil.rmtree(out)

    def test_an_output_that_cannot_be_written_is_said(self):
        code, err = self.enter(*self.words, "--data", self.rows, "--out", self.path("elsewhere"), "--steps", "3", "--quiet")
        self.assertEqual(code, 5, err)
        self.assertRegex(err, "^error: .*elsewhere.*(Read-only|Permission denied)")


if __name__ == "__main__":
    program.main()
