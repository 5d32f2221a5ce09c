"""A rehearsal of scripts/gpu-pack, gpu-check, gpu-report and first-lease. The pack has the emulated GPU. Its archive is
unpacked in a root folder that has bash, coreutils and the few other tools that the scripts call, but no compiler, BLAS,
cmocka, meson or Python.

Usage: test_gpu_pack.py BUILD [TEST..]: a build folder with tests/cli/offload-train-emu and tests/cuda/emu-tests.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

BUILD = os.path.abspath(sys.argv.pop(1))
SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
TOOLS = ["awk", "bash", "cat", "cp", "cut", "date", "df", "dirname", "env", "grep", "gzip", "head", "ls", "mkdir", "mv", "nproc",
         "paste", "rm", "sed", "sh", "sha256sum", "sleep", "sort", "tail", "tar", "tee", "timeout", "tr", "uname"]
ENTER = ('for part in proc dev sys; do mount --rbind "/$part" "$0/$part" || exit 99; done; exec chroot "$0" /usr/bin/env -i '
         'PATH=/usr/bin HOME=/ OT_EMU_CHECKS=0 "$@"')


def pack(out, *words):
    done = subprocess.run([os.path.join(SCRIPTS, "gpu-pack"), "--build", BUILD, "--out", out, *words], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_libraries(program, root):
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for library in re.findall(r"(?:=> )?(/[^ ]+) \(", listed):
        to = root + library
        if "cmocka" not in library and not os.path.exists(to):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(library, to)


def make_root(root, packed):
    for folder in ("proc", "dev", "sys", "tmp", "usr/bin"):
        os.makedirs(os.path.join(root, folder))
    os.symlink("usr/bin", os.path.join(root, "bin"))
    for tool in TOOLS:
        path = os.path.realpath(shutil.which(tool))
        shutil.copy(path, os.path.join(root, "usr/bin", tool))
        copy_libraries(path, root)
    os.makedirs(os.path.join(root, "pack"))
    subprocess.run(["tar", "-C", os.path.join(root, "pack"), "-xzf", packed + ".tar.gz"], check=True)
    for name in ("offload-train", "gpu-tests"):
        copy_libraries(os.path.join(packed, name), root)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="offload-train-test-")
        cls.packed, cls.root = os.path.join(cls.folder, "packed"), os.path.join(cls.folder, "root")
        cls.said = pack(cls.packed, "--emulated")
        make_root(cls.root, cls.packed)
        entered = cls.enter("/usr/bin/ls")
        entered.communicate()
        if entered.returncode != 0:
            shutil.rmtree(cls.folder)
            print("SKIP: this system does not let a user enter a root folder (unshare -Urm, mount, chroot)", file=sys.stderr)
            os._exit(77)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def enter(cls, *command):
        """Starts the command with the bare folder as its root. The process id is that of the command itself."""
        return subprocess.Popen(["unshare", "-Urm", "bash", "-c", ENTER, cls.root, *command], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def run_there(self, *command, code=0, limit=250):
        process = self.enter(*command)
        out, err = process.communicate(timeout=limit)
        self.assertEqual(process.returncode, code, out + err)
        return out, err

    def stop_when(self, command, ready):
        """Stops the command once ready() returns true. Returns its output."""
        process = self.enter(*command)
        until = time.monotonic() + 200
        while not ready():
            self.assertIsNone(process.poll(), process.stderr and process.stderr.read() if process.poll() else "")
            self.assertLess(time.monotonic(), until)
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 130, out + err)
        return out

    def there(self, name):
        return os.path.join(self.root, "tmp", name)

    def test_the_pack_is_whole_and_small(self):
        manifest = read(os.path.join(self.packed, "MANIFEST.txt"))
        golden = [os.path.basename(path) for path in glob.glob(os.path.join(SCRIPTS, "..", "tests", "golden", "*.bin"))]
        self.assertGreater(len(golden), 40)
        for name in ("offload-train", "libot-comm-nccl.so", "gpu-tests", "gpu-check", "gpu-report", "first-lease", "peer_gpu.py",
                     "libcmocka.so.0", "rows/train.jsonl", *(f"golden/{name}" for name in golden)):
            self.assertRegex(manifest, rf"(?m)^{os.path.getsize(os.path.join(self.packed, name))} +{re.escape(name)}$")
        self.assertRegex(self.said, r"[0-9]+ MiB, beside [0-9]+ MiB of tracked files, for emulated, commit ")
        around = [name for where, _, files in os.walk(self.root) for name in files if not where.endswith(("/pack", "/real", "/broken"))]
        self.assertEqual([name for name in around if re.search("openblas|cmocka|python|meson", name)], [])

    def test_check(self):
        out, _ = self.run_there("/pack/gpu-check", "quick", "--tests", "cuda_lane cuda_adamw", "--out", "/tmp/check")
        self.assertRegex(out, r"(?m)^memory +MemTotal \d+ kB, MemAvailable \d+ kB$")
        self.assertRegex(out, r"(?m)^gpu +nvidia-smi is not here$")
        self.assertRegex(out, r"(?m)^cuda_lane +\d+ s  ok\ncuda_adamw +\d+ s  ok\n2 passed, 0 failed, 0 skipped$")
        self.assertEqual(read(self.there("check/check.txt")), out)
        self.assertIn("== cuda_adamw\n", read(self.there("check/logs.txt")))

    def lease_items(self, folder):
        lines = read(self.there(folder + "/results/items.txt")).splitlines()
        return {(line.split()[0], line.split()[1]): line for line in lines if " s  " in line}

    def test_first_lease_without_checks(self):
        """A real run with stop and resume, and the report. The results are one archive, without the caches."""
        out, _ = self.run_there("/pack/first-lease", "--emulated", "--parts", "run report memcheck", "--out", "/tmp/lease")
        items = self.lease_items("lease")
        for name in ("whole", "stop", "resume", "same"):
            self.assertIn(" s  ok", items["run", name])
        self.assertIn(" s  ok", items["report", "gpu-report"])
        self.assertIn("SKIP", items["memcheck", "cuda_attention"])
        self.assertRegex(out, r"(?m)^run +took +\d+ s; on a GPU at most +60 s$")
        self.assertRegex(out, r"\d+ s in all: 5 green, 0 red\n$")
        with tarfile.open(self.there("lease/results.tar.gz")) as archive:
            names = archive.getnames()
        self.assertIn("results/report/report.json", names)
        self.assertFalse([name for name in names if not name.startswith("results") or "cache" in name.split("/")])

    @unittest.skipUnless(os.environ.get("OT_TEST_SLOW"), "every test on the emulated GPU takes 20 minutes")
    def test_first_lease_checks_every_test(self):
        self.run_there("/pack/first-lease", "--emulated", "--parts", "checks", "--out", "/tmp/checks", limit=3600)
        listed, _ = self.run_there("/pack/gpu-tests", "--list")
        items = self.lease_items("checks")
        self.assertEqual([name for name in listed.split() if " s  ok" not in items.get(("checks", name), "")], [])

    def test_a_lease_with_a_failure(self):
        """A red line, exit code 1, and results all the same."""
        broken = os.path.join(self.root, "broken")
        os.makedirs(broken)
        for name in ("first-lease", "gpu-check", "gpu-tests", "libcmocka.so.0"):
            shutil.copy(os.path.join(self.root, "pack", name), broken)
        with open(os.path.join(broken, "offload-train"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho error: planted >&2\nexit 6\n")
        os.chmod(os.path.join(broken, "offload-train"), 0o755)
        out, _ = self.run_there("/broken/first-lease", "--emulated", "--parts", "run", "--out", "/tmp/broken", code=1)
        self.assertIn("FAIL: exit code 6, not 0: error: planted", out)
        self.assertIn("0 green, 1 red", out)
        self.assertTrue(os.path.exists(self.there("broken/results.tar.gz")))
        for words, phrase in ((("--parts", "nothing"), "has no part 'nothing'"), (("--what",), "unknown option '--what'"),
                              (("--out", "/tmp/broken"), "has results already")):
            self.assertIn(phrase, self.run_there("/broken/first-lease", *words, code=2)[1])

    def test_a_check_that_is_stopped_leaves_what_it_has(self):
        check = self.there("stopped/check.txt")
        out = self.stop_when(["/pack/gpu-check", "--tests", "cuda_lane placement engine", "--out", "/tmp/stopped"],
                             lambda: os.path.exists(check) and "  ok\n" in read(check))
        self.assertTrue(out.endswith("not run (stopped by a signal): placement engine\n1 passed, 0 failed, 2 skipped\n"), out)
        self.assertEqual(read(check), out)

    def read_report(self, name):
        return json.loads(read(self.there(name + "/report.json"))), read(self.there(name + "/report.md"))

    def test_report(self):
        self.run_there("/pack/gpu-report", "--rehearse", "--minutes", "4", "--out", "/tmp/report")
        report, text = self.read_report("report")
        self.assertIn("Emulated GPU", report["probe"]["device"])
        self.assertGreater(len(report["probe"]["rows"]), 40)
        self.assertEqual(len(report["training"]), 5)
        self.assertIn("done", [row["status"] for row in report["training"]])
        self.assertEqual(report["not_run"], ["peers: python3 has no PyTorch that sees a GPU"])
        self.assertIn("# offload-train on cuda: GPU 0 (Emulated GPU", text)
        self.assertRegex(text, r"(?m)^pack +arch emulated$")
        self.assertEqual(text.count("\n| kernel: "), 14)

    def test_a_report_that_is_stopped_leaves_what_it_has(self):
        points = self.there("cut/bench-tiny-offloaded/bench.csv")
        self.stop_when(["/pack/gpu-report", "--rehearse", "--minutes", "4", "--device", "cpu", "--out", "/tmp/cut"],
                       lambda: os.path.exists(points) and read(points).count("\n") >= 2 and
                       os.path.exists(self.there("cut/report.md")))
        report, text = self.read_report("cut")
        self.assertGreater(len(report["probe"]["rows"]), 40)
        self.assertIn(report["training"][0]["status"], ("done", "no_time"))
        self.assertIn("tiny-offloaded: stopped by a signal", report["not_run"])
        self.assertIn("s in all; stopped by a signal.", text)

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "tests/cuda/gpu-tests")), "a build without CUDA")
    def test_the_real_pack_without_a_gpu(self):
        real = os.path.join(self.folder, "real")
        self.assertIn(" of tracked files, for sm_", pack(real))
        shutil.copytree(real, os.path.join(self.root, "real"))
        out, _ = self.run_there("/real/gpu-check", "quick", "--out", "/tmp/real")
        self.assertRegex(out, r"(?m)^No test ran on a GPU: no CUDA device: no NVIDIA driver is installed here")
        self.assertRegex(out, r"(?m)^\d passed, 0 failed, \d+ skipped$")


class GoldenVectors(unittest.TestCase):
    def test_they_are_read_where_the_environment_says(self):
        golden = os.path.join(SCRIPTS, "..", "tests", "golden", "ops.bin")
        with tempfile.TemporaryDirectory(prefix="offload-train-test-") as folder:
            def run():
                return subprocess.run([os.path.join(BUILD, "tests/kernels/test_ops_rows")], capture_output=True, text=True,
                                      env={**os.environ, "OT_TEST_GOLDEN": folder})
            self.assertIn(f"{folder}/ops.bin is missing", run().stderr)
            shutil.copy(golden, folder)
            self.assertEqual(run().returncode, 0)


class Results(unittest.TestCase):
    """gpu-check's verdict for each way in which a test can end. Another program stands in for gpu-tests."""

    FAKE = """#!/bin/sh
case $1 in
  --list) printf '%s\\n' good none bad slow last ;;
  none) echo 'SKIP: no such thing here' >&2; exit 77 ;;
  bad) echo '[ RUN      ] noise'; echo 'planted failure'; exit 3 ;;
  slow) sleep 60 ;;
esac
"""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="offload-train-test-")
        shutil.copy(os.path.join(SCRIPTS, "gpu-check"), self.folder)
        with open(os.path.join(self.folder, "gpu-tests"), "w") as file:
            file.write(self.FAKE)
        os.chmod(os.path.join(self.folder, "gpu-tests"), 0o755)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def check(self, *words, code=0):
        done = subprocess.run([os.path.join(self.folder, "gpu-check"), *words, "--out", self.folder + "/out"],
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_each_end(self):
        out = self.check("--tests", "good none bad last", code=1)
        self.assertRegex(out, r"(?m)^good +\d s  ok\nnone +\d s  SKIP: no such thing here\nbad +\d s  FAIL: exit code 3\n"
                              r"    planted failure\nlast +\d s  ok\n2 passed, 1 failed, 1 skipped$")

    def test_the_minutes(self):
        self.assertIn("not run (the 0 minutes were up): good none bad slow last\n0 passed, 0 failed, 5 skipped",
                      self.check("--minutes", "0"))

    def test_nothing_but_skips(self):
        self.assertIn("No test ran on a GPU: no such thing here\n0 passed, 0 failed, 1 skipped", self.check("--tests", "none"))

    def test_bad_options(self):
        for words, phrase in ((["fast"], "unknown option or selection 'fast'"), (["--tests", "what"], "has no test 'what'"),
                              (["--minutes", "x"], "whole number")):
            self.assertIn(phrase, self.check(*words, code=2))


if __name__ == "__main__":
    unittest.main(verbosity=1)
