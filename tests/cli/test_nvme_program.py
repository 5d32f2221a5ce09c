"""The built program with its third tier on disk: the same bits as in memory, within the given limits, and no file
left behind, however a run ends."""

import glob
import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

import program
from program import PROGRAM, SMALL, read_bytes, run

SLOW = bool(os.environ.get("OT_TEST_SLOW"))
ALL_ON_DISK = ["--home", "state=nvme,weights=nvme"]


class NvmeTest(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name in ("disk", "other"):
            os.mkdir(cls.path(name))
        cls.disk, cls.other = cls.path("disk"), cls.path("other")

    def stores(self, folder=None):
        return glob.glob(os.path.join(folder or self.disk, "*"))

    def losses(self, out):
        return [event["loss"] for event in self.log(out) if event["event"] == "step"]

    def done(self, out):
        return self.log(out)[-1]


class Bits(NvmeTest):
    """Tests whose names contain `emulated` also run on the emulated GPU."""

    def check_equal(self, steps, *kinds):
        words = ["--steps", steps, "--micro-batch", "4", "--eval-fraction", "0"]
        self.train("memory", *words)
        for i, more in enumerate(kinds):
            out = f"disk-{i}"
            # Without a forced home the planner decides.
            result = self.train(out, *words, *more, forecast=more[0] != "--home")
            self.assertEqual(self.losses(out), self.losses("memory"), more)
            for name in ("model.safetensors", "tokenizer.json", "config.json"):
                self.assertEqual(read_bytes(self.path(f"{out}/{name}")), read_bytes(self.path(f"memory/{name}")), more)
            self.assertGreater(self.done(out)["nvme_read_bytes"], 0)
            self.assertGreater(self.done(out)["nvme_written_bytes"], 0)
            self.assertEqual(self.stores() + self.stores(self.other), [])
            yield result

    def test_a_run_on_disk_is_the_run_in_memory(self):
        kinds = [[*ALL_ON_DISK, "--nvme", self.disk, "--io-engine", engine] for engine in ("auto", "pool")]
        kinds += [["--home", "nvme", "--nvme", self.disk, "--nvme", self.other + ":64M", "--no-io-verify"],
                  ["--home", "state=nvme,weights=host", "--nvme", self.disk, "--optimizer-engine", "stream:0.5,cpu:0.5"],
                  ["--home", "weights=nvme,state=gpu,activations=nvme", "--nvme", self.disk, "--dtype", "fp32"],
                  ["--home", "nvme", "--nvme", self.disk, "--rounds", "100", "--recompute", "all", "--slots", "2"],
                  ["--gpu-mem", "3200K", "--host-mem", "8200K", "--nvme", self.disk]]  # homes that the planner chooses
        results = list(self.check_equal(6, *kinds))
        self.assertRegex(results[0].err, r"\nstore   (uring|pool) .*CRC-32")
        self.assertRegex(results[1].err, r"\nstore   pool .*CRC-32")
        self.assertRegex(results[2].err, r"\nstore   .*not verified")
        self.assertRegex(results[0].err, r"weights: all \d+ slabs on nvme · optimizer state: all \d+ tiles on nvme")
        self.assertRegex(results[2].err, r"optimizer state: all \d+ tiles on nvme · activations: on nvme · gradients: of all \d+ tiles on nvme\n")

    def test_emulated_the_same(self):
        kinds = [[*ALL_ON_DISK, "--nvme", self.disk, "--io-engine", engine] for engine in ("auto", "pool")]
        list(self.check_equal(3, *kinds))

    def test_bf16_too(self):
        words = ["--steps", "4", "--micro-batch", "4", "--dtype", "bf16"]
        self.train("a", *words)
        self.train("b", *words, *ALL_ON_DISK, "--nvme", self.disk)
        self.assertEqual(self.losses("a"), self.losses("b"))
        self.assertEqual(read_bytes(self.path("a/model.safetensors")), read_bytes(self.path("b/model.safetensors")))

    def test_the_record_repeats_the_run(self):
        self.train("c", "--steps", "3", *ALL_ON_DISK, "--nvme", self.disk, "--nvme", self.other + ":64M",
                   "--io-engine", "pool")
        self.succeed("--config", os.path.join(self.path("c"), "run.json"), "--out", self.path("again"))
        self.assertEqual(self.losses("c"), self.losses("again"))
        first, second = self.log("c")[0], self.log("again")[0]
        self.assertEqual(first["options"]["nvme"], [self.disk, self.other + ":67108864"])
        first["options"].pop("out"), second["options"].pop("out")
        self.assertEqual(first["options"], second["options"])
        self.assertEqual([place["dir"] for place in first["machine"]["nvme"]], [self.disk, self.other])
        self.assertRegex(first["machine"]["store"], "^pool")

    def test_eval_and_generate_may_keep_weights_there(self):
        self.succeed("train", "--model", "tiny-sql", "--init", "random", "--data", self.rows, "--out", self.path("d"),
                     "--steps", "1", "--seq-len", "128", "--tokens-per-step", "128", "--no-forecast")
        # The size of the micro-batch decides some bits. If the plan chooses it, it depends on the budgets.
        for gpu, *words in (("16M", "eval", self.path("d"), "--data", self.rows, "--seq-len", "128", "--micro-batch", "1", "--json"),
                            ("7M", "generate", self.path("d"), "-p", "SELECT", "--max-new-tokens", "8", "--json")):
            want = self.succeed(*words).json()
            tight = [*words, "--gpu-mem", gpu, "--host-mem", "5M"]  # not enough memory for all weights
            self.fail_with(4, "short by", *tight)
            got = self.succeed(*tight, "--nvme", self.disk).json()
            want.pop("seconds", None), got.pop("seconds", None)
            self.assertEqual(got, want)
            self.assertEqual(self.stores(), [])

    def test_a_long_text_keeps_its_keys_elsewhere(self):
        """If the GPU has no room for the keys and values: in RAM, or on disk if RAM has no room either. The text is the same."""
        self.succeed("train", "--model", "tiny-sql", "--init", "random", "--data", self.rows, "--out", self.path("k"), "--rope-scaling",
                     "linear:4", "--steps", "1", "--seq-len", "128", "--tokens-per-step", "128", "--no-forecast")
        # The prompt passes in pieces of 512 tokens: three in one pass, or with 20 MiB one in each.
        words = ["generate", self.path("k"), "-p", "SELECT name " * 100, "--max-new-tokens", "12", "--temperature", "1", "--json"]
        want = self.succeed(*words)
        tokens = want.json()["prompt_tokens"] + 12
        rams = {"host": ["--host-mem", "64M"], "nvme": ["--host-mem", "10M", "--nvme", self.disk]}
        ways = [("gpu", ["--gpu-mem", "20M"])] + [(home, [*more, *ram]) for home, ram in rams.items()
                                                  for more in (["--gpu-mem", "12M"], ["--home", f"cache={home}"])]
        for home, way in ways:
            got = self.succeed(*words, *way)
            self.assertEqual(got.err, "" if home == "gpu" else f"cache   the keys and values of {tokens} tokens are on {home}\n")
            self.assertEqual({**got.json(), "seconds": 0}, {**want.json(), "seconds": 0})
        self.assertEqual(want.err, "")
        self.assertEqual(self.stores(), [])
        self.fail_with(4, "short by", *words, "--gpu-mem", "12M", "--home", "cache=gpu", *rams["host"])
        self.fail_with(4, "host memory: the data that does not fit", *words, "--home", "cache=host", "--host-mem", "1M")
        self.fail_with(2, "--home cache=nvme needs --nvme DIR", *words, "--home", "cache=nvme")

    def test_wear_is_told_before_step_1(self):
        words = ["train", "--model", "tiny-test", "--init", "random", "--data", self.rows, "--seq-len", "128", "--tokens-per-step",
                 "256", *ALL_ON_DISK, "--nvme", self.disk, "--eval-fraction", "0", *program.SMALL_MACHINE, "--dry-run", "--steps"]
        long = self.succeed(*words, "1000000000").err
        self.assertRegex(long, r"\nwarning: the run writes [\d.]+ TB to --nvme: \d+ % of the 600 TB that a 1 TB drive is rated for")
        self.assertNotIn("the run writes", self.succeed(*words, "100").err)


class Files(NvmeTest):
    def start(self, out, *words):
        child = subprocess.Popen([PROGRAM, "train", *SMALL, "--data", self.rows, "--out", self.path(out), "--steps",
                                  "1000000", "--json", "--no-forecast", *ALL_ON_DISK, "--nvme", self.disk, *words],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while json.loads(child.stdout.readline())["event"] != "step":
            pass
        return child

    def end(self, child, number, code):
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, code, err)
        return out, err

    def test_they_are_gone_after_a_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            child = self.start("stopped")
            names = self.stores()
            self.assertEqual(len(names), 1)
            self.assertRegex(os.path.basename(names[0]), rf"^offload-train\.{child.pid}\.\d+\.store$")
            self.end(child, number, program.STOPPED)
            self.assertEqual(self.stores(), [])

    def test_the_next_run_removes_what_a_killed_one_left(self):
        self.end(self.start("killed"), signal.SIGKILL, -signal.SIGKILL)
        self.assertEqual(len(self.stores()), 1)
        result = self.train("next", "--steps", "2", *ALL_ON_DISK, "--nvme", self.disk)
        self.assertIn("of files that a killed run left behind", result.err)
        self.assertEqual(self.stores(), [])

    def test_two_runs_in_one_directory(self):
        child = self.start("first")
        mine = self.stores()
        self.train("memory", "--steps", "3", "--micro-batch", "4")
        self.train("second", "--steps", "3", "--micro-batch", "4", *ALL_ON_DISK, "--nvme", self.disk)
        self.assertEqual(self.losses("second"), self.losses("memory"))
        self.assertEqual(self.stores(), mine)
        self.end(child, signal.SIGINT, program.STOPPED)
        self.assertEqual(self.stores(), [])

    def test_files_of_others_stay(self):
        for name in ("offload-train.store", "offload-train.1.2.store.txt", "notes"):
            with open(os.path.join(self.disk, name), "w") as file:
                file.write("mine")
        self.train("mine", "--steps", "1", *ALL_ON_DISK, "--nvme", self.disk)
        self.assertEqual(len(self.stores()), 3)
        for path in self.stores():
            os.unlink(path)


class Limits(NvmeTest):
    def refuse(self, code, phrase, *words):
        line = self.fail_with(code, phrase, "train", *SMALL, "--data", self.rows, "--out", self.path("none"), "--steps",
                              "1", "--no-forecast", *words)
        self.assertEqual(self.stores(), [])
        self.assertFalse(os.path.exists(self.path("none")))
        return line

    def test_a_limit_that_is_too_small(self):
        self.refuse(4, "short by", *ALL_ON_DISK, "--nvme", self.disk + ":1M")
        line = self.refuse(4, "nvme", "--home", "nvme", "--nvme", self.disk + ":2M")
        self.assertIn("short by", line)

    def test_a_full_disk(self):
        """Runs on a small tmpfs, in a mount namespace that ends with the run."""
        script = 'mount -t tmpfs -o size=$1 none "$2" && shift 2 && "$@"; code=$?; ls "$DISK" >&2; exit $code'
        able = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", "1M", self.disk, "true"], capture_output=True,
                              env=os.environ | {"DISK": self.disk})
        if able.returncode != 0:
            self.skipTest("needs a tmpfs of its own: " + able.stderr.decode().strip())
        words = [PROGRAM, "train", *SMALL, "--data", self.rows, "--out", self.path("full"), "--steps", "1", "--no-forecast",
                 *ALL_ON_DISK]
        for size, nvme, code, phrase in (("2M", self.disk, 4, "short by"), ("2M", self.disk + ":64M", 4, "give less"),
                                         ("64M", self.disk, 0, "\nsaved ")):
            done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", size, self.disk, *words, "--nvme", nvme],
                                  capture_output=True, env=os.environ | {"DISK": self.disk}, timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(phrase, done.stderr.decode())
            self.assertNotIn("offload-train.", done.stderr.decode())  # no file of the store is listed
            self.assertEqual(os.path.exists(self.path("full")), code == 0)

    def test_the_plan_is_what_is_used(self):
        """Planned and used bytes agree: files exactly, pinned memory and device memory to the page."""
        for i, more in enumerate((ALL_ON_DISK, ["--home", "nvme"], ["--home", "state=nvme"])):
            self.train(f"used-{i}", "--steps", "3", *more, "--nvme", self.disk)
            done, plan = self.done(f"used-{i}"), self.log(f"used-{i}")[0]["plan"]
            self.assertEqual(done["nvme_used_bytes"], done["nvme_planned_bytes"])
            self.assertEqual(sum(entry["bytes"] for entry in plan["ledger"] if entry["tier"] == "nvme"),
                             done["nvme_planned_bytes"])
            for tier in ("gpu", "host"):
                self.assertLessEqual(done[tier + "_used_bytes"], done[tier + "_planned_bytes"] * 1.02)
                self.assertGreaterEqual(done[tier + "_used_bytes"], done[tier + "_planned_bytes"] * 0.9)
            steps = [event for event in self.log(f"used-{i}") if event["event"] == "step"]
            for way in ("nvme_read_bytes", "nvme_written_bytes"):  # a step's update ends after its record
                moved = sum(event.get(way, 0) for event in steps)
                self.assertTrue(0 < moved <= done[way], (way, moved, done[way]))


MIB = 1 << 20


class Inside(NvmeTest):
    """Models of 16 bytes and more a parameter that are larger than the memory that the program gets."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run("train", *SMALL, "--data", cls.rows, "--out", cls.path("tiny"), "--steps", "1", "--quiet", "--no-forecast")

    def make_model(self, name, hidden, layers):
        """Makes a directory without weights, for --init random. Returns the number of parameters."""
        os.mkdir(self.path(name))
        shutil.copy(self.path("tiny/tokenizer.json"), self.path(name))
        with open(self.path("tiny/config.json")) as file:
            config = json.load(file)
        config |= {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers,
                   "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "head_dim": 64}
        with open(self.path(name + "/config.json"), "w") as file:
            json.dump(config, file)
        return layers * 13 * hidden * hidden

    def words(self, name, *more):
        return ["train", "--model", self.path(name), "--init", "random", "--data", self.rows, "--no-save", "--seq-len", "128",
                "--tokens-per-step", "128", "--dtype", "bf16", "--threads", "1", "--eval-fraction", "0", *more]

    def limit(self, bytes):
        """Returns a function that limits the memory of a child before the program starts, and the name of the limit."""
        folder = self.own_group()
        if folder:
            with open(folder + "/memory.max", "w") as file:
                file.write(str(bytes))

            def enter():
                with open(folder + "/cgroup.procs", "w") as file:
                    file.write("0")
            return enter, "memory.max"

        def restrict():
            # Of every thread; the limit counts them even if they are unused.
            resource.setrlimit(resource.RLIMIT_STACK, (MIB, MIB))
            resource.setrlimit(resource.RLIMIT_DATA, (bytes, bytes))
        return restrict, "RLIMIT_DATA"

    def own_group(self):
        """Makes a control group below our own, if version 2 lets us limit its memory; else returns None."""
        with open("/proc/self/cgroup") as file:
            mine = [line[3:].strip() for line in file if line.startswith("0::")]
        folder = "/sys/fs/cgroup" + (mine[0] if mine else "") + f"/offload-train-test-{os.getpid()}"
        try:
            os.mkdir(folder)
        except OSError:
            return None
        self.addCleanup(os.rmdir, folder)
        return folder if os.path.exists(folder + "/memory.max") else None

    def test_a_model_larger_than_all_memory_trains(self):
        params = self.make_model("large", 512, 12 if SLOW else 8)
        # The last: memory that libraries reserve and mostly do not use.
        gpu, host, program_itself = (76 * MIB, 140 * MIB, 200 * MIB) if SLOW else (54 * MIB, 82 * MIB, 200 * MIB)
        self.assertGreater(14 * params, 2.5 * (gpu + host))
        self.assertGreater(14 * params, gpu + host + program_itself)
        enter, name = self.limit(gpu + host + program_itself)
        words = [PROGRAM, *self.words("large", "--steps", "2", "--gpu-mem", str(gpu), "--host-mem", str(host), "--json"),
                 *(() if SLOW else ("--no-forecast",))]
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, preexec_fn=enter, timeout=60)
        if b"Sanitizer" in version.stderr:
            self.skipTest(f"a sanitizer needs more than {name} leaves")
        in_memory = subprocess.run(words, capture_output=True, preexec_fn=enter, timeout=60)
        self.assertEqual(in_memory.returncode, 4, in_memory.stderr)
        self.assertIn(b"short by", in_memory.stderr)
        done = subprocess.run([*words, *ALL_ON_DISK, "--nvme", self.disk], capture_output=True, preexec_fn=enter,
                              timeout=300)
        self.assertEqual(done.returncode, 0, (name, done.stderr))
        last = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((last["event"], last["steps"]), ("done", 2))
        self.assertEqual(last["nvme_used_bytes"], last["nvme_planned_bytes"])
        self.assertLess(last["process_peak_bytes"], gpu + host + 64 * MIB)
        self.assertEqual(self.stores(), [])

    @unittest.skipUnless(SLOW, "OT_TEST_SLOW=1 trains a model of some GiB")
    def test_the_plan_is_what_the_process_takes(self):
        """The program itself (code, stacks, library buffers, 16 MiB while it makes random weights) takes up to 48
        MiB under any plan. So 2 % of the plan say something only from 2.4 GiB on."""
        self.make_model("huge", 1024, 14)
        result = self.succeed(*self.words("huge", "--steps", "2", "--json"))
        last = result.events()[-1]
        planned = last["gpu_planned_bytes"] + last["host_planned_bytes"]
        self.assertGreater(planned, 2.4 * 1024 * MIB)
        self.assertLess(abs(last["process_peak_bytes"] - planned), 0.02 * planned)


if __name__ == "__main__":
    program.main()
