"""Objectives that compare answers: a run has the same bits on several ranks and placements, after a stop, and after its
pass of the reference was killed; the reference's file is needed, moved and removed; wrong options and rows are named."""

import json
import os
import shutil
import signal
import subprocess
import time

import program
import tiny_models
from program import SMALL, read_bytes, write_rows

USAGE, INPUT = 2, 3


def pairs(n):
    rows = program.sql_rows(n)
    return [{"question": row["question"], "context": row["context"], "chosen": row["answer"],
             "rejected": rows[(5 * i + 1) % n]["answer"] + " LIMIT 1"} for i, row in enumerate(rows)]


class Objectives(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pairs = write_rows(cls.path("pairs.jsonl"), pairs(40))
        cls.labels = write_rows(cls.path("labels.jsonl"), [{"prompt": row["question"] + "\n", "completion": row["chosen"],
                                                           "label": i % 3 != 0} for i, row in enumerate(pairs(40))])

    def words(self, out, *words, rows=None, steps=4):
        return ("train", *SMALL, "--no-forecast", "--micro-batch", "1", "--steps", str(steps), "--data", rows or self.pairs,
                "--out", self.path(out), *words)

    def run_of(self, out, *words, **more):
        """The weights and the log's steps."""
        self.succeed(*self.words(out, *words, **more))
        with open(self.path(out + "/log.jsonl")) as file:
            events = [json.loads(line) for line in file]
        return (read_bytes(self.path(out + "/model.safetensors")),
                [{k: e[k] for k in ("step", "loss", "reward_chosen", "reward_rejected", "reward_accuracy", "grad_norm")}
                 for e in events if e["event"] == "step"])

    def test_bits_do_not_depend_on_plan_or_ranks(self):
        for objective, rows in (("dpo", self.pairs), ("kto", self.labels)):
            words = ["--objective", objective, "--device", "cpu"]
            whole = self.run_of(objective, *words, rows=rows)
            self.assertNotEqual(whole[1][0]["loss"], whole[1][3]["loss"])
            self.assertTrue(any(abs(s["reward_chosen"]) > 1e-3 for s in whole[1]), whole[1])
            ways = {"host": ["--home", "weights=host,state=host,activations=host", "--recompute", "all"],
                    "stages": ["--gpus", "2", "--shard", "stages"]}
            for name, more in ways.items():
                with self.subTest(f"{objective} {name}"):
                    self.assertEqual(self.run_of(f"{objective}-{name}", *words, *more, rows=rows), whole)
            world = self.run_of(objective + "-world", *words, "--deterministic", "world", rows=rows)
            for ranks in ("2", "4"):
                with self.subTest(f"{objective} {ranks} ranks"):
                    self.assertEqual(self.run_of(f"{objective}-{ranks}", *words, "--deterministic", "world", "--gpus", ranks,
                                                 rows=rows), world)

    def test_a_resumed_run_needs_its_reference(self):
        words = ["--objective", "ipo", "--save-every", "2", "--keep", "9", "--eval-every", "2"]
        whole = self.run_of("whole", *words)
        self.assertTrue(os.path.exists(self.path("whole/reference.bin")))  # its checkpoints are kept
        step = self.path("whole/checkpoints/step-00000002")
        self.succeed(*self.words("other", *words, "--resume", step))
        self.assertEqual(read_bytes(self.path("other/model.safetensors")), whole[0])
        data = read_bytes(self.path("whole/reference.bin"))
        for name, damage in (("missing", None), ("cut", data[:-3]), ("wrong", data[:40] + b"x" + data[41:]),
                             ("foreign", b"OTREFER1" + data[12:16] + data[12:])):
            with self.subTest(name):
                os.remove(self.path("whole/reference.bin"))
                if damage is not None:
                    with open(self.path("whole/reference.bin"), "wb") as file:
                        file.write(damage)
                shutil.rmtree(self.path("third"), ignore_errors=True)
                self.fails_at_the_end(self.words("third", *words, "--resume", step), INPUT, "cannot be computed again")
                with open(self.path("whole/reference.bin"), "wb") as file:
                    file.write(data)
        self.run_of("alone", "--objective", "ipo")
        self.assertFalse(os.path.exists(self.path("alone/reference.bin")))

    def fails_at_the_end(self, words, code, phrase):
        result = program.run(*words)
        self.assertEqual(result.code, code, result.err)
        self.assertIn(phrase, result.err.splitlines()[-1])

    def test_a_pass_that_was_killed_goes_on(self):
        rows = write_rows(self.path("many.jsonl"), pairs(400))
        words = ["--objective", "dpo", "--eval-data", self.pairs]
        whole = self.run_of("unkilled", *words, "--keep", "9", "--save-every", "2", rows=rows, steps=2)
        wanted = read_bytes(self.path("unkilled/reference.bin"))
        with open(self.path("unkilled/log.jsonl")) as file:  # the rows of --eval-data have a reference too
            first = next(event for event in map(json.loads, file) if event["event"] == "eval")
        self.assertAlmostEqual(first["loss"], 0.6931472, 5)
        self.assertLess(abs(first["reward_margin"]), 1e-4)
        process = subprocess.Popen([program.PROGRAM, *self.words("killed", *words, rows=rows, steps=2)], stderr=subprocess.PIPE)
        path, deadline = self.path("killed/reference.bin"), time.monotonic() + 60
        while time.monotonic() < deadline and not (os.path.exists(path) and os.path.getsize(path) > 100):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = read_bytes(path)
        self.assertTrue(wanted.startswith(left[:len(left) - len(left) % 4 - 64]), len(left))
        with open(path, "r+b") as file:  # the last record is not whole
            file.truncate(len(left) // 2 + 3)
        before = os.stat(path).st_ino
        again = self.run_of("killed", *words, "--keep", "9", "--save-every", "2", rows=rows, steps=2)
        self.assertEqual(again, whole)
        self.assertEqual(read_bytes(path), wanted)
        self.assertEqual(os.stat(path).st_ino, before)

    def test_eval(self):
        """The numbers of the run's last evaluation, by the base of adapters, by --reference, and on several ranks."""
        self.succeed(*self.words("start", rows=self.rows, steps=1))
        members = ("loss", "reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy", "trained_tokens", "rows")
        for objective, more, rows in (("dpo", ("--lora", "r=4"), self.pairs), ("ipo", (), self.pairs), ("simpo", (), self.pairs),
                                      ("orpo", ("--lora", "r=4"), self.pairs), ("kto", (), self.labels)):
            out = self.path("of-" + objective)
            words = ("--objective", objective, "--beta", "0.3", "--seq-len", "128", "--micro-batch", "1", "--threads", "1")
            self.succeed("train", "--model", self.path("start"), "--data", rows, "--eval-data", rows, "--out", out, "--no-forecast",
                         "--steps", "2", "--lr", "1e-3", "--tokens-per-step", "512", *words, *more)
            want = [event for event in self.log("of-" + objective) if event["event"] == "eval"][-1]
            needs = objective in ("ipo", "kto")
            reference = ("--reference", self.path("start")) if needs else ()
            for ranks in ((), ("--gpus", "2", "--device", "cpu")) if objective in ("dpo", "kto") else ((),):
                got = self.succeed("eval", out, "--data", rows, "--json", *words, *reference, *ranks).json()
                self.assertEqual({name: got[name] for name in members}, {name: want[name] for name in members}, (objective, ranks))
                self.assertNotIn("perplexity", got)
            if needs:
                self.fail_with(USAGE, "give --reference MODEL, the model before training", "eval", out, "--data", rows, *words)
        text = self.succeed("eval", self.path("of-simpo"), "--data", self.pairs, "--objective", "simpo", "--seq-len", "128").out
        self.assertRegex(text, r"^loss [0-9.]+ · margin -?[0-9.]+ \(rewards -[0-9.]+ and -[0-9.]+\) · right [0-9.]+ % · 40 rows$")
        run = ("eval", self.path("of-ipo"), "--data", self.pairs)
        for words, phrase in ((("--objective", "simpo", "--reference", self.path("start")), "--reference has no effect with --objective simpo"),
                              (("--reference", self.path("start")), "--reference has no effect without --objective"),
                              (("--objective", "dpo", "--gamma", "2"), "--gamma has no effect with --objective dpo"),
                              (("--objective", "dpo", "--train-on-prompt"), "contradict each other")):
            self.fail_with(USAGE, phrase, *run, *words)
        self.fail_with(INPUT, "fewer than the 384 of the model", *run, "--objective", "dpo", "--seq-len", "128", "--reference",
                       os.path.join(program.GOLDEN, "peft/base"))

    def test_an_encoder_decoder(self):
        """The losses and margins of torch; the same bits on other placements, and after a cut prompt; KTO; eval and answers."""
        with open(os.path.join(program.GOLDEN, "t5_objectives.json")) as file:
            golden = json.load(file)
        model = self.path("t5")
        tiny_models.write_model(model, tiny_models.MODELS["t5_gated"])
        shutil.copy(os.path.join(program.GOLDEN, "tokenizers/byte_level.json"), model + "/tokenizer.json")
        with open(model + "/tokenizer_config.json", "w") as file:
            json.dump({"eos_token": "<|eos|>"}, file)
        rows = write_rows(self.path("t5.jsonl"), [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in golden["rows"]])
        labels = write_rows(self.path("t5-labels.jsonl"), [{"prompt": p, "completion": c, "label": i != 1}
                                                           for i, (p, c, _) in enumerate(golden["rows"])])
        short = ("--model", model, "--threads", "1", "--no-forecast", "--steps", "4", "--dtype", "fp32", "--lr", str(golden["lr"]))
        words = (*short, "--seq-len", "128", "--tokens-per-step", "384", "--schedule", "constant", "--warmup", "0", "--beta",
                 str(golden["beta"]), "--eval-data", rows, "--eval-generate", "3")
        for objective in ("dpo", "orpo"):
            out = self.path("t5-" + objective)
            self.succeed("train", *words, "--data", rows, "--micro-batch", "3", "--objective", objective, "--out", out)
            log = self.log("t5-" + objective)
            got = [(event["loss"], event["reward_margin"]) for event in log if event["event"] == "step"]
            for i, ((loss, margin), (want, wanted_margin)) in enumerate(zip(got, golden[objective], strict=True)):
                self.assertAlmostEqual(loss, want, delta=(2e-4 if i else 2e-6) * want)  # AdamW's first steps magnify roundings
                self.assertAlmostEqual(margin, wanted_margin, delta=2e-3 if i else 1e-5)
            last = [event for event in log if event["event"] == "eval"][-1]
            self.assertEqual(last["answered"], 3)
            told = self.succeed("eval", out, "--data", rows, "--objective", objective, "--beta", str(golden["beta"]), "--dtype", "fp32",
                                "--seq-len", "128", "--micro-batch", "3", "--threads", "1", "--json",
                                *(("--reference", model) if objective == "dpo" else ())).json()
            self.assertEqual((told["loss"], told["reward_margin"]), (last["loss"], last["reward_margin"]))
        cut = ("train", *short, "--seq-len", "32", "--micro-batch", "1", "--tokens-per-step", "96")
        for objective, data in (("ipo", rows), ("kto", labels)):
            evals = ("--eval-data", data, "--objective", objective)
            for i, more in enumerate([(), ("--home", "weights=host,state=host", "--recompute", "all"),
                                      ("--gpus", "2", "--device", "cpu", "--shard", "stages")]):
                self.succeed(*cut, *more, "--data", data, *evals, "--out", self.path(f"t5-{objective}{i}"))
                self.assertEqual(read_bytes(self.path(f"t5-{objective}{i}/model.safetensors")),
                                 read_bytes(self.path(f"t5-{objective}0/model.safetensors")), (objective, more))
        self.succeed("train", *words, "--data", rows, "--micro-batch", "3", "--objective", "dpo", "--lora", "r=2", "--out", self.path("t5-lora"))
        steps = [event for event in self.log("t5-lora") if event["event"] == "step"]
        self.assertAlmostEqual(steps[0]["loss"], 0.6931472, 5)
        self.assertLess(steps[3]["loss"], steps[0]["loss"])

    def test_answers(self):
        """The prompt is answered, and the chosen answer is the right one; a bad answer of KTO is none."""
        given = pairs(40)
        self.succeed(*self.words("plain", rows=self.rows, steps=1))
        for objective, rows, right in (("simpo", self.pairs, [row["chosen"] for row in given]),
                                       ("kto", self.labels, [row["chosen"] for i, row in enumerate(given) if i % 3 != 0])):
            words = ("--objective", objective, "--eval-data", rows, "--eval-generate", "6", "--eval-metric", "match")
            self.succeed(*self.words("judged-" + objective, *words, rows=rows, steps=2))
            events = [event for event in self.log("judged-" + objective) if event["event"] == "eval"]
            self.assertEqual([event["answered"] for event in events], [6, 6])
            failures = self.path("failures-" + objective)
            reference = ("--reference", self.path("plain")) if objective == "kto" else ()
            told = self.succeed("eval", self.path("judged-" + objective), "--data", rows, "--generate", "6", "--failures", failures,
                                "--objective", objective, "--seq-len", "128", "--json", *reference).json()
            self.assertEqual((told["answered"], told["exact_match"]), (6, events[1]["exact_match"]))
            self.assertIn("reward_margin", told)
            with open(failures) as file:
                wrong = [json.loads(line) for line in file]
            self.assertEqual([row["answer"] for row in wrong], right[:6])
            self.assertTrue(all(row["prompt"] and "SELECT" not in row["prompt"] for row in wrong))

    def test_adapters_begin_at_the_reference(self):
        # A new adapter changes nothing, so the first step has no margin but rounding.
        words = ["--lora", "r=4", "--objective", "dpo", "--no-save", "--json", "--init", "random"]
        events = self.succeed("train", *SMALL, "--no-forecast", "--steps", "3", "--data", self.pairs, *words).events()
        steps = [e for e in events if e["event"] == "step"]
        self.assertAlmostEqual(steps[0]["loss"], 0.6931472, 5)
        self.assertLess(abs(steps[0]["reward_margin"]), 1e-4)

    def test_faults_are_named(self):
        for code, phrase, words in (
                (USAGE, "--gamma has no effect with --objective dpo; it is for simpo", ["--objective", "dpo", "--gamma", "1"]),
                (USAGE, "--beta has no effect with --objective sft", ["--beta", "1"]),
                (USAGE, "--sft-weight has no effect with --objective kto", ["--objective", "kto", "--sft-weight", "1"]),
                (USAGE, "contradict", ["--objective", "dpo", "--train-on-prompt"]),
                (USAGE, "--dpo", ["--dpo"])):
            with self.subTest(phrase):
                self.fail_with(code, phrase, *self.words("faults", *words))
        rows = write_rows(self.path("plain.jsonl"), program.sql_rows(5))
        self.fails_at_the_end(self.words("faults", "--objective", "dpo", rows=rows), INPUT, "key 'chosen' is missing")
        self.fails_at_the_end(self.words("faults"), INPUT, "give --objective dpo")
        self.succeed(*self.words("once", "--objective", "orpo"))
        self.fails_at_the_end(self.words("once", "--objective", "dpo", steps=9), USAGE, "--objective")


if __name__ == "__main__":
    program.main()
