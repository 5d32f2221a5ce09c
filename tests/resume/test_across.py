"""A run that is stopped under one plan is resumed under another and ends with the same bits. A run that cannot be
resumed says why and names a cure. Records of steps and the model are compared with those of an uninterrupted run."""

import json
import os
import random
import re
import shutil
import signal
import struct
import unittest

import program
from program import PROGRAM, STOPPED, read_bytes, run, sql_rows, write_rows
from stopping import SLOW, StoppingTest

MIB = 1 << 20
STEPS = 20  # steps of four sequences: 59 rows make an epoch of 15 steps


class AcrossTest(StoppingTest):
    words = [*StoppingTest.words, "--steps", str(STEPS)]
    often = ["--save-every", "1", "--keep", "12"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        nvme = ["--nvme", cls.disk]
        cls.homes = {"device": ["--home", "gpu"],
                     "host": ["--home", "host", "--slots", "2"],
                     "nvme": ["--home", "nvme", *nvme, "--io-engine", "pool"],
                     "mixed": ["--home", "weights=host,state=nvme,activations=gpu", *nvme],
                     "stream": ["--home", "host", "--optimizer-engine", "stream:0.7,cpu:0.3"]}
        # Options that may change on resuming, a few at a time.
        cls.free = [["--threads", "2"], ["--optimizer-threads", "2"], ["--rounds", "100"], ["--recompute", "all"],
                    ["--recompute", "none"], ["--shadow", "64M"], ["--gpu-mem", "64M", "--host-mem", "64M"],
                    ["--save-every", "5"], ["--save-every", "never"], ["--keep", "3"], ["--eval-every", "4"]]

    def other(self, draw):
        return [word for more in draw.sample(self.free, 3) for word in more]

    def whole(self, *variant):
        """The uninterrupted run, once for each variant."""
        name = "whole-" + "-".join(os.path.basename(word) for word in variant)
        if not os.path.exists(self.path(name)):
            self.succeed(*self.command(name, *variant))
        return name


class Plans(AcrossTest):
    def go_on(self, variant, step, before, afters, draw):
        whole = self.whole(*variant)
        number = draw.choice((signal.SIGKILL, signal.SIGTERM))
        self.stop_after(step, "stopped", *variant, *self.often, *self.homes[before], number=number)
        for after in afters:
            words = [*self.homes[after], *self.other(draw)]
            with self.subTest(variant=variant, step=step, before=before, after=words, number=number):
                shutil.rmtree(self.path("on"), ignore_errors=True)
                shutil.copytree(self.path("stopped"), self.path("on"))
                result = self.succeed(*self.command("on", *variant, *words))
                self.assertRegex(result.err, rf"\nresume  \S+/on/checkpoints/step-\d+ · step \d+ of {STEPS} · ")
                self.check_equal("on", whole, *(("step",) if "--eval-every" in words else ()))

    def each(self, *variant, pairs):
        """Homes before and after the stop: a few pairs, or all."""
        draw = random.Random(repr([word for word in variant if "/" not in word]))
        names = draw.sample(list(self.homes), len(self.homes))
        pairs = 1 if "OT_TEST_KILLS" in os.environ else pairs  # fewer pairs under the sanitizers, as with kills
        for i, before in enumerate(names if SLOW else names[:pairs]):
            self.go_on(variant, draw.randint(1, STEPS - 3), before, names if SLOW else [names[i - 1]], draw)

    def test_fp32(self):
        self.each("--eval-every", "4", pairs=5)

    def test_bf16_and_a_warm_up_of_half_the_run(self):
        self.each("--dtype", "bf16", "--warmup", "60%", "--schedule", "linear", pairs=2)

    def test_fp16(self):
        self.each("--dtype", "fp16", "--schedule", "wsd", pairs=1)

    def test_tied(self):
        config = self.whole_config()
        config["tie_word_embeddings"] = True
        os.mkdir(self.path("tied"))
        with open(self.path("tied/config.json"), "w") as file:
            json.dump(config, file)
        shutil.copy(self.path(self.whole("--eval-every", "4") + "/tokenizer.json"), self.path("tied"))
        self.each("--model", self.path("tied"), "--pack", "no", pairs=1)

    def whole_config(self):
        with open(self.path(self.whole("--eval-every", "4") + "/config.json")) as file:
            return json.load(file)

    def test_rows_packed(self):
        rows = write_rows(self.path("many.jsonl"), sql_rows(150))
        self.each("--data", rows, "--seq-len", "256", pairs=1)


class Places(AcrossTest):
    """The place of the checkpoint, the length of the run, and the activity at the moment of the stop."""

    def test_every_name_of_a_checkpoint_and_another_output(self):
        whole = self.whole("--eval-every", "4")
        self.stop_after(9, "named", "--eval-every", "4", *self.often)
        before = self.log("named")
        newest = self.checkpoints("named")[-1]
        for at, name in ((6, "checkpoints/step-00000006"), (newest, ""), (newest, "checkpoints"), (newest, "checkpoints/")):
            result = self.succeed(*self.command("elsewhere", "--eval-every", "4", "--resume", self.path("named/" + name)))
            self.assertIn(f"/step-{at:08} · step {at} of {STEPS}", result.err)
            self.assertEqual(self.log("elsewhere")[1]["event"], "resume")
            self.assertEqual(self.records("elsewhere"),
                             [record for record in self.records(whole) if record["step"] > at])
            self.assertEqual(read_bytes(self.path("elsewhere/model.safetensors")),
                             read_bytes(self.path(whole + "/model.safetensors")))
        self.assertEqual(self.log("named"), before)
        # Resumes from an older checkpoint of the same output: the later steps are made again.
        self.succeed(*self.command("named", "--eval-every", "4", "--resume", self.checkpoint("named", 5)))
        self.check_equal("named", whole)

    def test_a_run_grows_where_its_rates_stay(self):
        flat = ("--schedule", "constant", "--warmup", "3")
        whole = self.whole(*flat)
        for steps in (("--steps", "8"), ("--epochs", "1", "--steps")):
            shutil.rmtree(self.path("grows"), ignore_errors=True)
            short = [word for word in self.command("grows", *flat, *self.often) if word not in ("--steps", str(STEPS))]
            self.stop_after(5, "grows", *flat, *self.often)
            with open(os.path.join(self.checkpoint("grows", 5), "checkpoint.json")) as file:
                self.assertEqual(json.load(file)["run"]["steps"], STEPS)
            result = self.succeed(*short, *steps[:2])
            self.assertIn("resume  ", result.err)
            done = self.log("grows")[-1]["steps"]
            self.assertEqual(done, 8 if steps[0] == "--steps" else 15)
            self.assertEqual(self.records("grows", "step"), self.records(whole, "step")[:done])

    def test_in_the_middle_of_an_evaluation(self):
        held = write_rows(self.path("held.jsonl"), sql_rows(600 if SLOW else 300))
        variant = ("--eval-data", held, "--eval-every", "6", *(() if SLOW else ("--steps", "8")))
        whole = self.whole(*variant)
        for i, (number, code) in enumerate(((signal.SIGKILL, -9), (signal.SIGTERM, STOPPED), (signal.SIGINT, STOPPED))):
            out = f"eval-{i}"
            for _ in range(20):  # the evaluation may be over before the signal arrives
                shutil.rmtree(self.path(out), ignore_errors=True)
                process = self.start(out, *variant, "--save-every", "3")
                self.assertTrue(self.wait_for(process, lambda: self.logged(out, "step", 6)))
                if self.end(process, number, code) is not None and not self.logged(out, "eval", 6):
                    break
            self.assertFalse(self.logged(out, "eval", 6))
            self.assertIn(self.checkpoints(out), ([6], [3, 6]) if code == STOPPED else ([], [3]))
            self.succeed(*self.command(out, *variant, *self.homes["nvme"]))
            self.check_equal(out, whole)

    @unittest.skipUnless(SLOW, "takes seconds")
    def test_evaluations_by_the_clock(self):
        variant = ("--tokens-per-step", "16Ki", "--threads", "2")
        whole = self.whole(*variant)
        self.stop_after(7, "clock", *variant, "--eval-every", "1s", *self.often)
        self.succeed(*self.command("clock", *variant, "--eval-every", "1s"))
        self.check_equal("clock", whole, "step")


class Devices(AcrossTest):
    """Also resumes with the program whose GPU is emulated."""
    words = [*AcrossTest.words, "--steps", "6"]

    def test_within_a_device_to_the_bit(self):
        whole = self.whole("--dtype", "bf16")
        self.stop_after(3, "stopped", "--dtype", "bf16", *self.often, *self.homes["mixed"])
        self.succeed(*self.command("stopped", *self.homes["stream"]))
        self.check_equal("stopped", whole)

    def test_from_the_cpu_to_whatever_there_is(self):
        cpu = ("--device", "cpu", "--dtype", "fp32")
        whole = self.whole(*cpu)
        self.stop_after(3, "moved", *cpu, *self.often, *self.homes["nvme"])
        self.succeed(*self.command("moved", *self.homes["host"]))
        got, want = self.records("moved", "step"), self.records(whole, "step")
        self.assertEqual([step["step"] for step in got], [step["step"] for step in want])
        self.assertEqual([step["lr"] for step in got], [step["lr"] for step in want])
        for a, b in zip(got, want):
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-3 * b["loss"])  # the sums are in another order


class Kept(AcrossTest):
    def test_the_best_and_the_newest_stay(self):
        """The evaluation rows are answers of characters that no training row has, so the evaluation loss soon
        increases."""
        other = [{**row, "answer": "#%&@!"} for row in sql_rows(8)]
        variant = ("--eval-data", write_rows(self.path("other.jsonl"), other), "--eval-every", "2")
        self.succeed(*self.command("worse", *variant, "--save-every", "2", "--keep", "2"))
        evals = {event["step"]: event["loss"] for event in self.log("worse") if event["event"] == "eval"}
        best = min((step for step in evals if step), key=evals.get)
        self.assertLess(best, STEPS - 2, evals)
        self.assertEqual(self.checkpoints("worse"), [STEPS - 2, STEPS])
        self.assertEqual(self.best_states("worse"), [best])
        # The same if the run was stopped in between.
        self.stop_after(best + 4, "again", *variant, "--save-every", "2", "--keep", "1")
        self.succeed(*self.command("again", *variant, "--save-every", "2", "--keep", "1"))
        self.assertEqual(self.checkpoints("again"), [STEPS])
        self.assertEqual(self.best_states("again"), [best])

    def test_sizes_are_as_announced(self):
        for kind, words in self.homes.items():
            result = self.succeed(*self.command("size", *words, "--save-every", "4", "--keep", "2", "--resume", "never",
                                               "--eval-every", "4"))
            line = re.search(r"checkpoints every 4 steps · (.*) · kept: 2 and the best", result.err)[1]
            said = {"copied": 0, "referred": 0}
            for size, unit, where in re.findall(r"([0-9.]+) (KiB|MiB)( each, on NVMe| on NVMe| each)", line):
                said["referred" if "NVMe" in where else "copied"] = float(size) * (1024 if unit == "KiB" else MIB)
            events = [event for event in self.log("size") if event["event"] == "checkpoint"]
            self.assertEqual([event["step"] for event in events], [4, 8, 12, 16, 20])
            for step in self.checkpoints("size"):
                size = os.path.getsize(os.path.join(self.checkpoint("size", step), "state.bin"))
                self.assertEqual(size, events[0]["written_bytes"], kind)
            self.assertLess(abs(said["copied"] - events[0]["written_bytes"]), MIB // 16, kind)
            self.assertLess(abs(said["referred"] - events[0]["referred_bytes"]), MIB // 16, kind)
            self.assertEqual(events[0]["referred_bytes"] > 0, kind in ("nvme", "mixed"), kind)
            self.assertEqual(os.listdir(self.disk), [])  # only checkpoints have a second name of the store's content


class Refused(AcrossTest):
    """Commands that would make a different run. They are refused, and nothing is changed."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls("setUp").stop_after(6, "run", *cls.often, number=signal.SIGTERM)

    def setUp(self):
        pass

    def refuse(self, code, *phrases_and_words):
        at = phrases_and_words.index("with")
        phrases, words = phrases_and_words[:at], phrases_and_words[at + 1:]
        before = sorted(os.listdir(self.path("run/checkpoints"))), read_bytes(self.path("run/log.jsonl"))
        line = self.fail_with(code, phrases[0], *self.command("run", *words, "--quiet"))
        for phrase in phrases:
            self.assertIn(phrase, line)
        after = sorted(os.listdir(self.path("run/checkpoints"))), read_bytes(self.path("run/log.jsonl"))
        self.assertEqual(after, before)

    def test_options_that_make_another_run(self):
        for option, was, now in (("lr", "0.003", "0.001"), ("seq-len", "128", "64"), ("dtype", "fp32", "bf16"),
                                 ("seed", "0", "1"), ("pack", "yes", "no"), ("micro-batch", "2", "4"),
                                 ("warmup", "3%", "5"), ("tokens-per-step", "512", "256")):
            self.refuse(2, f" made with --{option} {was}, you gave {now}. Use the", "--resume never, or another --out",
                        "with", f"--{option}", now)
        self.refuse(2, "--lr 0.003, you gave 0.1; --clip 1.0, you gave 0.0", "with", "--lr", "0.1", "--clip", "0")
        self.refuse(2, "in a run of 20 steps; in a run of 30", "with", "--steps", "30")
        self.refuse(2, "the run would end after 2 steps, but", "with", "--steps", "2", "--warmup", "3%")
        self.refuse(3, "was made with another model: ", "with", "--model", "tiny-sql", "--tokenizer",
                    self.path(self.whole() + "/tokenizer.json"))

    def test_rows_that_are_others(self):
        rows = sql_rows(60)
        for phrase, changed in ((" 61 rows with ", rows + rows[:1]), (" 59 rows with ", rows[1:]),
                                ("as many rows and tokens as ", [*rows[:30], {**rows[30], "answer": "S" +
                                                                 rows[30]["answer"][1:][::-1]}, *rows[31:]]),
                                ("as many rows and tokens as ", rows[1:] + rows[:1])):
            path = write_rows(self.path("changed.jsonl"), changed)
            self.refuse(3, phrase, path, "/step-", "with", "--data", path)
        # The path of the data file does not matter, its content does.
        shutil.copytree(self.path("run"), self.path("moved"))
        self.succeed(*self.command("moved", "--data", write_rows(self.path("same.jsonl"), rows)))
        self.check_equal("moved", self.whole())

    def test_where_there_is_no_checkpoint(self):
        os.makedirs(self.path("empty"), exist_ok=True)
        self.refuse(3, "not a checkpoint", self.path("empty"), "with", "--resume", self.path("empty"))
        self.refuse(3, "no such directory", "with", "--resume", self.path("nowhere"))

    def test_a_new_run_keeps_the_old_checkpoints_until_it_has_its_own(self):
        shutil.copytree(self.path("run"), self.path("anew"))
        os.unlink(self.path("anew/log.jsonl"))
        old = self.checkpoints("anew")
        words = ("--resume", "never", "--lr", "0.001", "--save-every")
        process = self.start("anew", *words, "never", "--tokens-per-step", "16Ki")
        self.assertTrue(self.wait_for(process, lambda: self.logged("anew", "step", 1)))
        self.assertIsNotNone(self.end(process, signal.SIGKILL, -9))
        self.assertEqual(self.checkpoints("anew"), [])
        self.assertEqual(len(os.listdir(self.path("anew/checkpoints.old"))), len(old))
        for more in (("never",), ("3",)):  # the model of an output; its own first checkpoint
            shutil.rmtree(self.path("copy"), ignore_errors=True)
            shutil.copytree(self.path("anew"), self.path("copy"))
            self.succeed(*self.command("copy", *words, *more))
            self.assertFalse(os.path.exists(self.path("copy/checkpoints.old")))
        self.assertEqual(self.checkpoints("copy")[-1], 18)


class Damaged(AcrossTest):
    """A single damaged byte at any place of a checkpoint, or a file without its last bytes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls("setUp").stop_after(7, "run", *cls.often, *cls.homes["mixed"])
        cls.steps = cls.checkpoints(cls, "run")

    def setUp(self):
        pass

    def spans(self, directory):
        """The bytes of each file that matter: all of them, and in the store's files those in which parts lie
        (src/checkpoint/manifest.h)."""
        manifest = read_bytes(os.path.join(directory, "manifest.bin"))
        slabs, files, parts, spans = struct.unpack_from("<4I", manifest, 16)
        at, names = 44 + 8 * slabs, []
        for _ in range(files):
            length, = struct.unpack_from("<H", manifest, at)
            names.append(manifest[at + 2:at + 2 + length].decode())
            at += 2 + length + 8
        at += 25 * parts
        self.assertEqual(len(manifest), at + 20 * spans + 4)
        result = {name: [(0, os.path.getsize(os.path.join(directory, name)))]
                  for name in ("manifest.bin", "checkpoint.json")}
        for i in range(spans):
            file, offset, size, _ = struct.unpack_from("<IQII", manifest, at + 20 * i)
            result.setdefault(names[file], []).append((offset, size))
        return result

    def places(self, name, spans, draw):
        """The first byte, the middle, the last byte, and some others."""
        ends = [(offset, offset + size - 1) for offset, size in spans]
        result = [ends[0][0], ends[len(ends) // 2][0] + 1, ends[-1][1]]
        if SLOW and name in ("manifest.bin", "checkpoint.json"):
            return range(ends[0][1] + 1)
        for _ in range(60 if SLOW else 1):
            result.append(draw.randint(*draw.choice(ends)))
        return result

    def check_refused(self, directory, name, where):
        """verify finds the damage, and so does resuming (if every byte is tried, resuming is tried for some of
        them)."""
        path, older = os.path.join(directory, name), self.checkpoint("run", self.steps[-2])
        with self.subTest(file=name, where=where):
            result = run("verify", directory, "--quiet")
            self.assertEqual((result.code, len(result.err.splitlines())), (3, 1), result.err)
            self.assertIn(path, result.err)
            if SLOW and where % 64:
                return
            result = run(*self.command("run", "--quiet"))
            self.assertEqual((result.code, len(result.err.splitlines())), (3, 1), result.err)
            self.assertIn(f"error: {path}", result.err)
            self.assertIn(f"; to resume from the checkpoint before it, use --resume {older}", result.err)

    def test_any_byte(self):
        draw = random.Random(5)
        directory = self.checkpoint("run", self.steps[-1])
        spans = self.spans(directory)
        self.assertEqual(sorted(spans), ["checkpoint.json", "manifest.bin", "nvme-0.store", "state.bin"])
        self.succeed("verify", directory, "--quiet")
        for name, of_file in spans.items():
            with open(os.path.join(directory, name), "r+b") as file:
                for at in self.places(name, of_file, draw):
                    file.seek(at)
                    byte = file.read(1)[0]
                    for value in (byte ^ 1 << draw.randrange(8), byte):
                        file.seek(at)
                        file.write(bytes([value]))
                        file.flush()
                        if value != byte:
                            self.check_refused(directory, name, at)
        self.succeed("verify", directory, "--quiet")

    def test_the_option_that_is_named_goes_on(self):
        for name, whole in ((name, whole) for name in ("manifest.bin", "checkpoint.json", "state.bin", "nvme-0.store")
                            for whole in (0, 1)):
            shutil.rmtree(self.path("cut"), ignore_errors=True)
            shutil.copytree(self.path("run"), self.path("cut"))
            directory = self.checkpoint("cut", self.steps[-1])
            path, (offset, size) = os.path.join(directory, name), max(self.spans(directory)[name])
            os.truncate(path, (offset + size - 1) * whole)
            result = run(*self.command("cut", "--quiet"))
            self.assertEqual((result.code, len(result.err.splitlines())), (3, 1), result.err)
            self.assertIn(f"error: {path}", result.err)
            option = re.search(r"; to resume from the checkpoint before it, use (--resume) (\S+)", result.err)
            self.assertEqual(option[2], self.checkpoint("cut", self.steps[-2]))
            if SLOW or whole and name != "checkpoint.json":
                self.succeed(*self.command("cut", *option.groups()))
                self.check_equal("cut", self.whole())
        shutil.rmtree(self.path("cut/checkpoints"))
        for step in self.steps:  # all of them damaged
            shutil.copytree(self.checkpoint("run", step), self.checkpoint("cut", step))
            os.truncate(os.path.join(self.checkpoint("cut", step), "manifest.bin"), 100)
        self.fail_with(3, "no earlier checkpoint is intact; to start a new run, use --resume never", *self.command("cut", "--quiet"))


if __name__ == "__main__":
    program.main()
