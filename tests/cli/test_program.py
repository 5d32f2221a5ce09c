"""The built program, end to end, on the smallest preset: train, eval, generate, tokenize, and the files that they
write."""

import datetime
import fcntl
import glob
import json
import math
import os
import re
import shutil
import signal
import subprocess
import termios
import time

import program
from program import PROGRAM, SMALL, STOPPED, run, sql_rows, write_rows


class Train(program.ProgramTest):
    def test_a_run_leaves_a_model_directory_and_a_log(self):
        result = self.train("a", "--steps", "40", "--eval-every", "10", "--log-every", "10")
        self.assertEqual(result.out, "")
        names = set(os.listdir(self.path("a")))
        self.assertLessEqual({"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                              "model.safetensors", "log.jsonl", "run.json"}, names)
        self.assertFalse(os.path.exists(self.path("a.partial")))
        log = self.log("a")
        steps = [event for event in log if event["event"] == "step"]
        self.assertEqual([event["step"] for event in steps], list(range(1, 41)))
        for event in steps:
            for key in ("epoch", "loss", "grad_norm", "clipped_norm", "lr", "tokens", "trained_tokens", "tokens_per_s",
                        "seconds", "gpu_bytes", "host_bytes"):
                self.assertGreater(event[key], 0, key)
            self.assertLessEqual(event["clipped_norm"], 1.0001)
        self.assertEqual([event["step"] for event in log if event["event"] == "eval"], [0, 10, 20, 30, 40])
        evals = [event["loss"] for event in log if event["event"] == "eval"]
        self.assertLess(evals[-1], 0.7 * evals[0])
        self.assertEqual([event["event"] for event in log][0], "run")
        self.assertEqual([event["event"] for event in log][-2:], ["sample", "done"])
        for word in ("machine ", "model ", "data ", "plan ", "weights", "total", "budget", "save ", "step  1/40", "ETA",
                     "eval 40/40", "sample ", "done ", "memory ", "saved ", "next "):
            self.assertIn(word, result.err)

    def test_the_record_is_documented(self):
        """Returns every key of every event, from the comment at the top of run_log.h."""
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/train/run_log.h")) as file:
            table = file.read().split("*/")[0]
        documented, event = {}, None
        for line in table.splitlines():
            begin = re.match(r" \*   (\w+) +(.*)", line)
            more = re.match(r" \*               (.*)", line)
            event = None if not begin and not more else begin[1] if begin else event
            if event:
                documented.setdefault(event, set()).update(re.findall(r"\w+", begin[2] if begin else more[1]))
        began = time.time()
        words = ["--eval-every", "2", "--save-every", "1", "--trace", self.path("rec.trace"), "--dtype", "fp16"]
        self.train("rec", "--steps", "4", "--nvme", self.folder + ":64M", "--home", "state=nvme", *words)
        constant = ["--schedule", "constant", "--save-every", "1"]
        self.train("rec2", "--steps", "2", *constant)
        self.train("rec2", "--steps", "4", *constant, "--resume", self.path("rec2/checkpoints"))
        self.train("rec3", "--steps", "6", forecast=True)
        wild = ["--dtype", "fp16", "--lr", "1", "--weight-decay", "1", "--max-skips", "1", "--eval-fraction", "0"]
        failed = program.run("train", *SMALL, "--data", self.rows, "--out", self.path("rec4"), "--no-forecast", *wild)
        end = self.log("rec4")[-1]
        self.assertEqual((failed.code, end["event"], end["exit_code"]), (7, "failed", 7))
        self.assertIn(f"error: {end['error']}", failed.err)
        seen, times = set(), []
        for record in self.log("rec") + self.log("rec2") + self.log("rec3") + self.log("rec4"):
            event = record.pop("event")
            seen.add(event)
            self.assertRegex(record["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            times.append(datetime.datetime.fromisoformat(record.pop("time")[:-1] + "+00:00").timestamp())
            self.assertLessEqual(set(record), documented.get(event, set()), event)
        self.assertEqual(seen, set(documented))
        self.assertTrue(began - 1 < min(times) and max(times) < time.time() + 1, (began, times)) # a clock may be set a little
        self.assertEqual(times, sorted(times))

    def test_the_base_models_files_go_along(self):
        self.train("base", "--steps", "1")
        base = self.path("base")
        kept = {"LICENSE.txt": "free", "USE_POLICY.md": "kind", "preprocessor_config.json": "{}", "modeling_x.py": "pass"}
        left = {"notes.txt": "n", "model.onnx": "o", "tokenizer.vocab": "v"}
        for name, text in {**kept, **left}.items():
            with open(os.path.join(base, name), "w") as file:
                file.write(text)
        words = ["train", "--model", base, "--data", self.rows, "--seq-len", "128", "--tokens-per-step", "512", "--threads",
                 "1", "--steps", "1", "--no-forecast", "--max-shard-size", "1M", "--out", self.path("along")]
        result = self.succeed(*words)
        self.assertIn("not copied from", result.err)
        self.assertIn(": notes.txt, tokenizer.vocab\n", result.err)
        names = os.listdir(self.path("along"))
        for name, text in kept.items():
            self.assertEqual(program.read_bytes(os.path.join(self.path("along"), name)).decode(), text)
        self.assertFalse(set(left) & set(names))
        card = program.read_bytes(self.path("along/README.md")).decode()
        self.assertIn("Fine-tuned from base with offload-train", card)
        self.assertIn("- steps: 1\n", card)
        self.assertNotIn(self.folder, card)

    def test_the_card_names_the_base_on_the_hub(self):
        self.train("hub", "--steps", "1")
        home = self.path("models/team/small")
        os.makedirs(os.path.dirname(home))
        shutil.copytree(self.path("hub"), home)
        self.succeed("train", "--model", "team/small", "--data", self.rows, "--seq-len", "128", "--tokens-per-step", "512",
                     "--threads", "1", "--steps", "1", "--no-forecast", "--out", self.path("named"),
                     env={"OFFLOAD_MODELS": self.path("models")})
        self.assertIn("\nbase_model: team/small\n", program.read_bytes(self.path("named/README.md")).decode())

    def test_large_results_are_cut_into_shards(self):
        self.succeed("train", "--model", "tiny-sql", "--init", "random", "--data", self.rows, "--seq-len", "128",
                     "--tokens-per-step", "512", "--threads", "1", "--steps", "1", "--no-forecast", "--eval-fraction", "0",
                     "--dtype", "fp32", "--max-shard-size", "4M", "--save-every", "1", "--keep", "2", "--out",
                     self.path("shards"))
        shards = [name for name in os.listdir(self.path("shards")) if name.endswith(".safetensors")]
        self.assertGreater(len(shards), 1)
        for name in shards:
            self.assertLess(os.path.getsize(os.path.join(self.path("shards"), name)), 4 << 20 | 1 << 14)
        self.succeed("verify", self.path("shards"))

    def test_the_result_evaluates_to_the_last_eval_loss(self):
        write_rows(self.path("held.jsonl"), sql_rows(7))
        self.train("b", "--steps", "12", "--eval-data", self.path("held.jsonl"))
        last = [event for event in self.log("b") if event["event"] == "eval"][-1]
        result = self.succeed("eval", self.path("b"), "--data", self.path("held.jsonl"), "--json", "--seq-len", "128")
        self.assertEqual(len(result.out.splitlines()), 1)
        self.assertEqual(set(result.json()), {"loss", "perplexity", "accuracy", "trained_tokens", "rows"})
        self.assertEqual(result.json()["rows"], 7)
        self.assertEqual(result.json()["trained_tokens"], last["trained_tokens"])
        self.assertAlmostEqual(result.json()["loss"], last["loss"], delta=1e-5)
        self.assertAlmostEqual(result.json()["perplexity"], math.exp(result.json()["loss"]), delta=1e-3)
        self.assertEqual(result.json()["accuracy"], last["accuracy"])
        self.assertEqual(result.err, "")
        text = self.succeed("eval", "--model", self.path("b"), "--data", self.path("held.jsonl"))
        self.assertRegex(text.out, r"^loss \d\.\d+ · perplexity .* · accuracy \d.* % of .* trained tokens · 7 rows\n$")

    def test_placement_and_threads_do_not_change_a_bit(self):
        self.train("c", "--steps", "6")
        want = [event["loss"] for event in self.log("c") if event["event"] == "step"]
        weights = program.read_bytes(self.path("c/model.safetensors"))
        for i, more in enumerate((["--home", "host"], ["--home", "weights=host,state=gpu", "--slots", "2"],
                                  ["--home", "host", "--rounds", "100", "--recompute", "all"],
                                  ["--optimizer-engine", "stream", "--home", "weights=host"],
                                  ["--optimizer-engine", "cpu:0.4,gpu:0.3,stream:0.3"],
                                  ["--optimizer-engine", "cpu", "--home", "weights=host", "--shadow", "64M"],
                                  ["--gpu-mem", "4M"], ["--optimizer-threads", "3", "--home", "state=host"])):
            out = f"c{i}"
            self.train(out, "--steps", "6", "--micro-batch", "4", *more)
            losses = [event["loss"] for event in self.log(out) if event["event"] == "step"]
            self.assertEqual(losses, want, more)
            self.assertEqual(program.read_bytes(self.path(out + "/model.safetensors")), weights, more)

    def test_updates_ahead_of_the_norm_are_counted(self):
        cpu = ("--optimizer-engine", "cpu", "--home", "weights=host", "--steps", "12")
        result = self.train("ahead", *cpu, "--clip", "1e6", "--shadow", "64M")
        done = self.log("ahead")[-1]
        self.assertRegex(result.err, rf"\nahead   shadow updates of \d+ tiles a step: {done['shadow_committed']} committed, 0")
        self.assertGreater(done["shadow_committed"], 0)
        self.assertEqual(done["shadow_dropped"], 0)
        plan = self.log("ahead")[0]["plan"]
        self.assertGreater(plan["shadow_tiles"], 0)
        self.assertIn("shadow updates", [entry["name"] for entry in plan["ledger"]])
        result = self.train("behind", *cpu, "--clip", "1e6", "--shadow", "0")
        self.assertNotIn("shadow", result.err)
        self.assertEqual(program.read_bytes(self.path("ahead/model.safetensors")),
                         program.read_bytes(self.path("behind/model.safetensors")))

    def test_the_recorded_options_repeat_the_run(self):
        self.train("d", "--steps", "5", "--lr", "1e-3", "--schedule", "wsd", "--seed", "3", "--optimizer-engine", "stream")
        again = self.path("again")
        self.succeed("--config", os.path.join(self.path("d"), "run.json"), "--out", again)
        first, second = self.log("d"), self.log("again")
        self.assertEqual([event["loss"] for event in first if event["event"] == "step"],
                         [event["loss"] for event in second if event["event"] == "step"])
        first[0]["options"].pop("out"), second[0]["options"].pop("out")
        self.assertEqual(first[0]["options"], second[0]["options"])
        self.assertEqual([event[0]["sources"][name] for event in (first, second) for name in ("lr", "micro-batch", "out")],
                         ["command line", "program", "command line", "config", "config", "command line"])

    def test_training_goes_on_from_its_own_output(self):
        self.train("e", "--steps", "20")
        result = self.succeed("--model", self.path("e"), "--data", self.rows, "--out", self.path("e2"), "--steps", "5",
                              "--seq-len", "128", "--tokens-per-step", "512", "--lr", "1e-4")
        self.assertIn("fp32, computed in fp32", result.err)
        first = [event for event in self.log("e2") if event["event"] == "eval"][0]["loss"]
        last = [event for event in self.log("e") if event["event"] == "eval"][-1]["loss"]
        self.assertAlmostEqual(first, last, delta=1e-5)
        # The same directory as input and output is an earlier output of ours. It is replaced as a whole.
        self.succeed("--model", self.path("e"), "--data", self.rows, "--out", self.path("e"), "--steps", "2",
                     "--resume", "never")

    def test_bf16_trains_too(self):
        self.train("f", "--steps", "30", "--dtype", "bf16")
        evals = [event["loss"] for event in self.log("f") if event["event"] == "eval"]
        self.assertLess(evals[-1], 0.75 * evals[0])

    def test_dry_run_prints_the_plan_and_writes_nothing(self):
        before = sorted(os.listdir(self.folder))
        result = self.train("dry", "--dry-run", "--show-sample")
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.assertIn("[SELECT name FROM singer<|eos|>]", result.err)
        self.assertIn("total", result.err)
        self.assertEqual(result.out, "")
        self.assertRegex(result.err, r"updates all \d+ tiles by gpu\n")
        result = self.train("dry", "--dry-run", "--optimizer-engine", "stream:0.5,cpu:0.5")
        self.assertRegex(result.err, r"updates \d+ of \d+ tiles by stream \(\d+\.\d %\), \d+ by cpu \(\d+\.\d %\)\n")
        self.assertRegex(result.err, r"\n +optimizer +[\d.]+ +[\d.]+\n")  # slots on the device, state in host memory
        event = self.train("dry", "--dry-run", "--json").json()
        self.assertEqual(event["event"], "run")
        for tier in ("gpu", "host"):
            planned = sum(entry["bytes"] for entry in event["plan"]["ledger"] if entry["tier"] == tier)
            self.assertLessEqual(planned, event["plan"][tier + "_budget_bytes"])

    def test_json_mirrors_the_log_on_stdout(self):
        result = self.train("g", "--steps", "3", "--json", "--quiet")
        self.assertEqual(result.err, "")
        self.assertEqual(result.events(), self.log("g"))

    def test_quiet_says_nothing(self):
        result = self.train("h", "--steps", "2", "--quiet")
        self.assertEqual((result.out, result.err), ("", ""))

    def test_a_terminal_gets_a_bar(self):
        here, there = os.openpty()
        child = subprocess.Popen([PROGRAM, *SMALL, *program.SMALL_MACHINE, "--data", self.rows, "--out", self.path("tty"), "--steps", "3"],
                                 stderr=there)
        os.close(there)
        text = b""
        try:
            while piece := os.read(here, 65536):
                text += piece
        except OSError:  # a pseudoterminal reports like this that the other side is closed
            pass
        os.close(here)
        self.assertEqual(child.wait(timeout=60), 0)
        self.assertRegex(text, rb"\[#{6}\.{14}\] 1/3 ETA \d\.\ds loss \d")
        self.assertIn(b"\r\x1b[K", text)
        self.assertRegex(text, rb"\nstep 1/3 ETA \d\.\ds loss ")  # the lines stay above the bar

    def test_model_and_data_are_all_that_a_first_run_needs(self):
        self.train("base", "--steps", "2")
        result = run("--model", "base", "--data", "rows.jsonl", "--steps", "2", cwd=self.folder)
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(os.path.exists(self.path("out/base-rows/model.safetensors")))

    def check_prediction(self, run, steps, sequences):
        """In a run event the parts of a predicted step sum to the step, and the predicted run is that many steps."""
        prediction = run["prediction"]
        self.assertGreater(prediction["step_seconds"], 0)
        self.assertGreater(prediction["rates"]["product_flops_per_s"], 0)
        self.assertAlmostEqual(prediction["run_seconds"], steps * prediction["step_seconds"], delta=1e-6)
        tokens = sequences * run["data"]["tokens"] / run["data"]["sequences"]  # not all sequences are full
        self.assertAlmostEqual(prediction["tokens_per_s"] * prediction["step_seconds"], tokens, delta=1e-3 * tokens)
        parts = prediction["busy_seconds"]["compute"] + sum(prediction["exposed_seconds"].values()) + \
            prediction["exposed_host_seconds"]
        self.assertAlmostEqual(parts, prediction["step_seconds"], delta=0.02 * prediction["step_seconds"])
        return prediction

    def test_a_run_says_before_it_begins_how_long_it_takes(self):
        result = self.train("p", "--steps", "8", forecast=True)
        self.assertRegex(result.err, r"\nexpect  [\d.]+ [mu]?s a step, [\d,]+ tok/s · 8 steps in .*\n(.*\n)*step 1/8")
        self.assertRegex(result.err, r"\nspeed   [\d.]+ [mu]?s a step predicted, [\d.]+ [mu]?s measured over 6 steps \(off by ")
        run, done = self.log("p")[0], self.log("p")[-1]
        prediction = self.check_prediction(run, 8, 4)
        self.assertIn("0 of 2 layers recomputed", result.err)  # there is memory for all products
        self.assertEqual(done["predicted_step_seconds"], prediction["step_seconds"])
        self.assertGreater(done["measured_step_seconds"], 0)
        self.assertEqual(done["measured_steps"], 6)  # the first two steps fill the pipeline

    def test_a_forecast_and_a_summary_count_evaluations(self):
        """With an evaluation after each step, the run takes the time of 9 evaluations too, and says so before and after."""
        result = self.train("often", "--steps", "8", "--eval-every", "1", "--save-every", "3", forecast=True)
        log = self.log("often")
        prediction, done, evals = log[0]["prediction"], log[-1], [event for event in log if event["event"] == "eval"]
        self.assertEqual((prediction["evals"], prediction["saves"]), (9, 2))
        self.assertEqual(len(evals), 9)
        whole = 8 * prediction["step_seconds"] + 9 * prediction["eval_seconds"] + 2 * prediction["save_seconds"] + \
            prediction["sample_seconds"] + prediction["result_seconds"]
        self.assertAlmostEqual(prediction["whole_seconds"], whole, delta=1e-6)
        self.assertGreater(prediction["eval_seconds"], 0)
        self.assertRegex(result.err, r"\nexpect  .* · 8 steps in \S+ · in all \S+, [\d,]+ tok/s: 9 evaluations of ")
        self.assertGreaterEqual(done["eval_seconds"], sum(event["seconds"] for event in evals))
        parts = sum(done[part + "_seconds"] for part in ("step", "eval", "save", "result", "sample"))
        self.assertGreater(done["seconds"], parts - 1e-6)
        self.assertGreater(done["step_seconds"], 0)
        self.assertRegex(result.err, r"\ntime    \S+ = 8 steps \S+")
        rate = re.search(r"\ndone .* ([\d,]+) tok/s", result.err)[1]
        self.assertEqual(rate, f"{int(done['tokens'] / done['seconds']):,}")
        a_token = prediction["model_flops"] / (prediction["tokens_per_s"] * prediction["step_seconds"])
        self.assertAlmostEqual(done["flops_per_s"] * done["seconds"] / done["tokens"] / a_token, 1, delta=0.2)
        share_of_flops = 1 / prediction["rates"]["product_flops_per_s"]
        self.assertAlmostEqual(done["roof_share"] / done["flops_per_s"] / share_of_flops, 1, places=6)
        a_token = done["flops_per_s"] * done["seconds"] / done["tokens"]
        for step in (event for event in log if event["event"] == "step"):
            self.assertAlmostEqual(step["roof_share"] / step["tokens_per_s"] / a_token / share_of_flops, 1, places=6)
        self.assertRegex(result.err, r"\nstep .* tok/s roof \d+ % gpu .*\n(.*\n)*done .* GFLOP/s, roof \d+ %\n")

    def test_a_wrong_prediction_is_made_again(self):
        """The rates of the cache file say that a task takes 50 ms to start. Two full steps after the warm-up show that
        it does not. A run that is too short to show it keeps the first prediction, and a resumed run counts its own
        steps."""
        words, env = ["--home", "host", "--micro-batch", "4", "--schedule", "constant"], {"XDG_CACHE_HOME": self.path("wrong")}
        self.train("w1", "--steps", "1", *words, forecast=True)
        shutil.copytree(os.environ["XDG_CACHE_HOME"], self.path("wrong"))
        for rates in glob.glob(self.path("wrong/offload-train/rates-*.json")):
            with open(rates) as file:
                kept = json.load(file)
            kept["rates"]["task_seconds"] = 0.05
            with open(rates, "w") as file:
                json.dump(kept, file)
        short = self.train("w2", "--steps", "5", *words, forecast=True, env=env)
        self.assertRegex(short.err, r"\(off by \+\d+\.\d %\)\n")
        self.assertNotIn("predicted again", short.err)
        result = self.train("w3", "--steps", "6", "--save-every", "6", *words, forecast=True, env=env)
        self.assertRegex(result.err, r"\nexpect  [\d.]+ [mu]?s a step, not [\d.]+ m?s: predicted again from steps 3 and 4 \(.*compute ")
        self.assertRegex(result.err, r"\(off by \+\d+\.\d %; predicted again after step 4: [\d.]+ [mu]?s, [+-][\d.]+ %\)\n")
        log = self.log("w3")
        again, = (event for event in log if event["event"] == "predicted_again")
        self.assertEqual((again["from_step"], again["to_step"]), (3, 4))
        self.assertLess(again["step_seconds"], 0.5 * again["first_step_seconds"])
        self.assertEqual(log[0]["prediction"]["step_seconds"], again["first_step_seconds"])
        self.assertEqual(log[-1]["predicted_again_step_seconds"], again["step_seconds"])
        self.assertLess(log.index(again), [event.get("step") for event in log].index(5))
        result = self.train("w4", "--steps", "12", "--resume", self.path("w3/checkpoints/step-00000006"), *words,
                            forecast=True, env=env)
        self.assertIn(": predicted again from steps 9 and 10 (", result.err)

    def test_a_run_without_a_forecast_has_the_same_bits_and_measures_nothing(self):
        cache = self.path("no-cache")
        result = self.train("q1", "--steps", "8", "--trace", self.path("q1.json"), env={"XDG_CACHE_HOME": cache})
        self.train("q2", "--steps", "8", forecast=True)
        self.assertFalse(os.path.exists(cache))
        self.assertNotIn("\nexpect ", result.err)
        self.assertRegex(result.err, r"\nspeed   [\d.]+ [mu]?s a step, measured over 6\n")
        self.assertNotIn("predicted", result.err)
        self.assertNotIn("prediction", self.log("q1")[0])
        self.assertNotIn("predicted_step_seconds", self.log("q1")[-1])
        with open(self.path("q1/model.safetensors"), "rb") as one, open(self.path("q2/model.safetensors"), "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_a_plan_that_does_not_fit_at_once_is_searched_for(self):
        words = ["--model", "tiny-sql", "--init", "random", "--seq-len", "128", "--tokens-per-step", "256", "--threads", "1",
                 "--data", self.rows, "--gpu-mem", "16M", "--host-mem", "256M", "--dry-run"]
        event = self.succeed("train", *words, "--json", "--explain").json()
        prediction = self.check_prediction(event, event["plan"]["steps"], 2)
        self.assertGreater(prediction["plans_tried"], 1)
        self.assertGreater(len(prediction["explanation"]["if"]), 3)
        for change in prediction["explanation"]["if"]:  # more of the machine is never slower; larger steps may be
            if "tokens" not in change["what"]:
                self.assertLessEqual(change["step_seconds"], 1.001 * prediction["step_seconds"], change)
        text = self.succeed("train", *words, "--explain").err
        self.assertRegex(text, r"\nexpect  .* · the fastest of \d+ plans\n")
        self.assertRegex(text, r"\nbound   .* of the step.*\nif      1 GiB more gpu memory .* tok/s ")
        self.assertNotIn("\nbound ", self.succeed("train", *words).err)

    def test_a_resident_plan_that_computes_again_is_searched_for(self):
        """All fits at once without kept activations. More rounds would keep them."""
        words = ["train", "--model", "tiny-sql", "--init", "random", "--seq-len", "128", "--micro-batch", "1", "--threads", "1",
                 "--data", self.rows, "--tokens-per-step", "4096", "--host-mem", "256M", "--dry-run"]
        result = self.succeed(*words, "--gpu-mem", "80M", "--no-forecast")
        self.assertRegex(result.err, r"[1-6] of 6 layers recomputed\n +homes   weights: all 8 slabs on gpu · optimizer state: all 8")
        # Beside other programs, a measurement may find that backward takes no longer if it computes again.
        searched = (" · the fastest of " in self.succeed(*words, "--gpu-mem", "80M").err for _ in range(4))
        self.assertTrue(any(searched))

    def test_predicted_memory_is_used_memory(self):
        self.train("m", "--steps", "3", "--gpu-mem", "4M")
        done = self.log("m")[-1]
        for tier in ("gpu", "host"):
            self.assertLessEqual(done[tier + "_used_bytes"], done[tier + "_planned_bytes"] * 1.02)
            self.assertGreaterEqual(done[tier + "_used_bytes"], done[tier + "_planned_bytes"] * 0.9)

    def test_the_summary_and_the_plan_table_have_one_total(self):
        """The rows, which are no pinned memory, count in both."""
        result = self.train("total", "--steps", "2", "--gpu-mem", "4M", "--home", "state=host")
        run, done = self.log("total")[0], self.log("total")[-1]
        table = re.search(r"\n +total +([\d.]+) +([\d.]+)\n", result.err)
        summary = re.search(r"\nmemory  gpu ([\d.]+) MiB planned, [\d.]+ MiB used · host ([\d.]+) MiB planned, ([\d.]+) MiB used", result.err)
        self.assertEqual(table.groups(), summary.groups()[:2])
        ledger = run["plan"]["ledger"]
        for tier in ("gpu", "host"):
            self.assertEqual(sum(entry["bytes"] for entry in ledger if entry["tier"] == tier), done[tier + "_planned_bytes"])
        rows = next(entry["bytes"] for entry in ledger if entry["name"] == "rows")
        self.assertGreater(rows, 0)
        self.assertGreater(done["host_used_bytes"], done["host_planned_bytes"] - rows // 2)
        self.assertGreaterEqual(self.log("total")[1 + (self.log("total")[1]["event"] != "step")]["host_bytes"], rows)


class Signals(program.ProgramTest):
    def start(self, out, *words, env=None, small=SMALL, steps=1000000):
        words = [PROGRAM, "train", *small, "--data", self.rows, "--out", self.path(out), "--steps", str(steps),
                 "--json", "--no-forecast", *words]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        while json.loads(child.stdout.readline())["event"] != "step":
            pass
        return child

    def export(self, out, to):
        """Makes a model directory of the checkpoint that a stopped run saved."""
        self.assertFalse(os.path.exists(self.path(f"{out}/model.safetensors")))
        self.succeed("export", self.path(out), "--out", self.path(to))

    def test_the_first_signal_saves_and_ends_well(self):
        for number in (signal.SIGINT, signal.SIGTERM):  # the second run goes on from the checkpoint of the first
            child = self.start("stop", "--eval-every", "1000000")
            child.send_signal(number)
            out, err = child.communicate(timeout=60)
            self.assertEqual(child.returncode, STOPPED, err)
            done = json.loads(out.splitlines()[-1])
            self.assertTrue(done["interrupted"])
            self.assertIn(f"/stop/checkpoints/step-{done['steps']:08} · step {done['steps']} of 1000000\n", err.decode())
            self.assertNotIn(b" -> ", err)  # no evaluation belongs to the saved weights
            self.export("stop", f"stop-{number}")
            self.succeed("eval", self.path(f"stop-{number}"), "--data", self.rows, "--seq-len", "128")

    def test_a_stopped_run_has_made_its_streamed_updates(self):
        constant = ["--schedule", "constant", "--warmup", "0"]  # no step depends on the number of steps
        child = self.start("streamed", "--optimizer-engine", "stream", "--home", "weights=host", *constant)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, STOPPED, err)
        done = json.loads(out.splitlines()[-1])
        self.assertTrue(done["interrupted"])
        self.export("streamed", "exported")
        self.train("whole", "--steps", str(done["steps"]), *constant)
        self.assertEqual(program.read_bytes(self.path("exported/model.safetensors")),
                         program.read_bytes(self.path("whole/model.safetensors")))

    def test_the_second_signal_ends_at_once(self):
        child = self.start("twice")
        child.send_signal(signal.SIGSTOP)  # both signals arrive before a step can end
        os.waitpid(child.pid, os.WUNTRACED)  # until it stands still
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 8)
        self.assertIn(b"Stopping: finishing the step and saving.", err)
        self.assertTrue(err.endswith(b"error: stopped at once by a second signal; unsaved progress is lost\n"))

    def test_the_command_that_resumes_is_not_one_that_begins_anew(self):
        with open(self.path("anew.json"), "w") as file:
            json.dump({"resume": "never"}, file)
        for words in (["--resume", "never", "--grace", "50s"], ["--resume=never", "--grace", "50s"],
                      ["--grace", "50s", "--config", self.path("anew.json")]):
            child = self.start("anew", *words)
            child.send_signal(signal.SIGTERM)
            _, err = child.communicate(timeout=60)
            command = re.search(r"\nresume  (.*)\n", err.decode())[1]
            self.assertNotIn("never", command)
            self.assertIn(" --grace 50s", command)
            self.assertTrue(command.endswith(" --resume auto"), command)

    def test_a_signal_to_the_process_and_to_its_group_is_one(self):
        child = self.start("group")
        child.send_signal(signal.SIGTERM)  # as timeout(1) does
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, STOPPED, err)

    def test_before_the_first_step_one_signal_ends_it(self):
        fifo = self.path("rows-to-come.jsonl")
        os.mkfifo(fifo)
        for number in (signal.SIGINT, signal.SIGTERM):
            child = subprocess.Popen([PROGRAM, "train", *SMALL, "--data", fifo, "--out", self.path("early")],
                                     stderr=subprocess.PIPE)
            writer = os.open(fifo, os.O_WRONLY)  # returns when the program waits for rows
            child.send_signal(number)
            _, err = child.communicate(timeout=60)
            os.close(writer)
            self.assertEqual((child.returncode, err), (8, b"error: stopped before step 1: nothing was trained\n"))
            self.assertFalse(os.path.exists(self.path("early")))

    def test_a_lost_terminal_ends_nothing(self):
        here, there = os.openpty()

        def take_terminal():
            os.setsid()
            fcntl.ioctl(there, termios.TIOCSCTTY, 0)

        child = subprocess.Popen([PROGRAM, "train", *SMALL, "--data", self.rows, "--out", self.path("hangup"), "--steps",
                                  "80", "--log-every", "1", "--no-forecast"], stderr=there, preexec_fn=take_terminal)
        os.close(there)
        os.read(here, 1)
        os.close(here)  # sends SIGHUP; from now on writing to the terminal fails
        self.assertEqual(child.wait(timeout=60), 0)
        self.assertEqual(self.log("hangup")[-1]["steps"], 80)

    def test_the_signal_for_a_checkpoint_ends_nothing(self):
        child = self.start("usr1")
        child.send_signal(signal.SIGUSR1)
        while json.loads(child.stdout.readline())["step"] < 50:
            pass
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, STOPPED)

    def test_ignored_signals_stay_ignored(self):
        inherited = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        child = self.start("nohup")
        signal.signal(signal.SIGHUP, inherited)
        child.send_signal(signal.SIGHUP)
        while json.loads(child.stdout.readline())["step"] < 50:
            pass
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, STOPPED, err)
        self.assertGreaterEqual(json.loads(out.splitlines()[-1])["steps"], 50)

    def test_a_trace_adds_up(self):
        plain = self.train("ta", "--steps", "4", "--home", "host", "--micro-batch", "4")
        result = self.train("tb", "--steps", "4", "--home", "host", "--micro-batch", "4", "--trace", self.path("trace.json"), forecast=True)
        self.assertEqual(program.read_bytes(self.path("ta/model.safetensors")),
                         program.read_bytes(self.path("tb/model.safetensors")))
        self.assertNotIn("lanes ", plain.err)
        for row in ("busy       predicted", "busy       measured", "stalled on predicted", "stalled on measured"):
            self.assertEqual(result.err.count(row), 1, result.err)
        trace = self.log("tb")[-2]
        self.assertEqual((trace["event"], trace["steps"], trace["left_out"]), ("trace", 4, 0))
        spent = trace["busy_seconds"]["compute"] + sum(trace["exposed_seconds"].values()) + trace["exposed_host_seconds"]
        self.assertAlmostEqual(spent, trace["seconds"], delta=1e-6 * trace["seconds"])
        with open(self.path("trace.json")) as file:
            names = {event["name"] for event in json.load(file)["traceEvents"]}
        self.assertLessEqual({"fetch layer.0", "forward layer.0 #0", "backward head #0", "decide", "step 4"}, names)
        with open(self.path("trace.json")) as file:
            groups = {event["pid"] for event in json.load(file)["traceEvents"]}
        self.assertEqual(len(groups), 2)  # the measured steps, and the predicted ones below

    def test_a_trace_that_cannot_be_written_is_no_run(self):
        self.fail_with(5, "cannot write there", *SMALL, "--data", self.rows, "--steps", "1", "--out",
                       self.path("tc"), "--trace", self.path("absent/trace.json"))
        self.assertFalse(os.path.exists(self.path("tc")))

    def test_a_trace_replaces_no_file_of_another_program(self):
        """The trace file is made before step 1, also if the run itself makes the folder. An earlier trace is
        replaced."""
        words = [*SMALL, "--data", self.rows, "--steps", "1", "--no-forecast", "--quiet", "--out", self.path("te"), "--trace"]
        before = program.read_bytes(self.rows)
        self.fail_with(3, "or give --force to replace it", *words, self.rows)
        self.fail_with(3, "no trace of this program", "plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--tokens-per-step",
                       "8192", "--quiet", "--trace", self.rows)
        self.assertEqual(program.read_bytes(self.rows), before)
        self.assertFalse(os.path.exists(self.path("te")))
        other = program.write_rows(self.path("other.jsonl"), [{"text": "mine"}])
        self.succeed("train", *words, other, "--force")
        self.succeed("train", *words, other, "--resume", "never")  # now it is a trace
        self.assertIn("traceEvents", json.loads(program.read_bytes(other)))
        os.remove(self.path("te/config.json"))
        self.fail_with(3, "te/config.json: this file exists", *words, self.path("te/config.json"), "--resume", "never")
        self.assertIn("architectures", json.loads(program.read_bytes(self.path("te/config.json"))))
        self.fail_with(2, "--force has no effect without --trace", *words[:-1], "--force")

    def test_two_runs_do_not_share_an_output(self):
        child = self.start("shared")
        child.send_signal(signal.SIGSTOP)  # it keeps its lock and takes no time
        second = run("train", *SMALL, "--data", self.rows, "--out", self.path("shared"), "--steps", "1", "--quiet")
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
        self.assertEqual((second.code, child.returncode), (3, STOPPED))
        self.assertRegex(second.err, r"^error: .*/shared: another process is writing this output; .*\n$")
        self.train("shared", "--steps", "1", "--quiet", "--resume", "never")

    def test_the_base_may_go_while_it_trains(self):
        self.train("base", "--steps", "1")
        shutil.copy(self.path("base/tokenizer.json"), self.path("other.json"))
        for words in (["--model", self.path("base")],
                      ["--model", self.path("base2"), "--tokenizer", self.path("other.json")]):
            if not os.path.exists(words[1]):
                shutil.copytree(self.path("orphan"), words[1])
            child = self.start("orphan", *words, "--resume", "never", small=SMALL[4:], steps=40)
            child.send_signal(signal.SIGSTOP)
            shutil.rmtree(words[1])
            if words[2:]:
                os.unlink(words[3])
            child.send_signal(signal.SIGCONT)
            _, err = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 0, err)
            self.succeed("eval", self.path("orphan"), "--data", self.rows, "--seq-len", "128")

    def test_an_evaluation_is_given_up(self):
        rows = write_rows(self.path("many.jsonl"), sql_rows(4000))
        words = [PROGRAM, "train", *SMALL, "--data", self.rows, "--eval-data", rows, "--out", self.path("long-eval"),
                 "--no-forecast", "--pack", "no", "--micro-batch", "1", "--json"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(json.loads(child.stdout.readline())["event"], "run")
        while not os.path.exists(self.path("long-eval/log.jsonl")):
            time.sleep(0.001)
        time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        end = json.loads(out)  # the one line after "run"
        self.assertEqual((child.returncode, end["event"], end["exit_code"]), (8, "failed", 8), err)
        self.assertEqual(end, self.log("long-eval")[-1])
        self.assertTrue(err.endswith(b"\nerror: stopped before step 1: nothing was trained\n"), err)

    def test_a_killed_run_leaves_no_temporary_file(self):
        folder = self.path("tmp")
        os.mkdir(folder)
        child = self.start("killed", env={**os.environ, "TMPDIR": folder})
        child.kill()
        child.communicate(timeout=60)
        self.assertEqual(os.listdir(folder), [])

    def test_a_closed_stdout_is_an_error(self):
        child = self.start("pipe")
        child.stdout.close()
        err = child.stderr.read()
        child.stderr.close()
        self.assertEqual(child.wait(timeout=60), 5)
        self.assertIn(b"error: stdout: cannot write", err)


class Generate(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_rows(cls.path("one.jsonl"), [{"text": "abcdefghijklmnopqrstuvwxyz"}] * 8)
        run("train", *SMALL, "--data", cls.path("one.jsonl"), "--out", cls.path("model"), "--steps", "60",
            "--eval-fraction", "0", "--pack", "no", "--no-forecast")
        cls.model = cls.path("model")

    def test_it_continues_what_it_learnt(self):
        self.assertEqual(self.succeed("generate", self.model, "-p", "abcdefgh").out, "ijklmnopqrstuvwxyz\n")
        self.assertEqual(self.succeed("generate", self.model, "-p", "abcdefgh", "--max-new-tokens", "3").out, "ijk\n")
        self.assertEqual(self.succeed("generate", self.model, "-p", "").out, "abcdefghijklmnopqrstuvwxyz\n")

    def test_json_has_ids_and_reason(self):
        event = self.succeed("generate", self.model, "-p", "abcdefghijklmnopqrstuvw", "--json").json()
        self.assertEqual((event["text"], event["ended_by"]), ("xyz", "eos"))
        self.assertEqual(event["ids"], [ord(c) for c in "xyz"])
        event = self.succeed("generate", self.model, "-p", "ab", "--json", "--max-new-tokens", "2").json()
        self.assertEqual((event["text"], event["ended_by"]), ("cd", "length"))

    def test_each_line_of_stdin_is_a_prompt(self):
        result = self.succeed("generate", self.model, "--max-new-tokens", "2", stdin=b"abcd\nabcdefg\n")
        self.assertEqual(result.out, "ef\nhi\n")

    def test_sampling_is_a_function_of_the_seed(self):
        def draw(seed):
            return self.succeed("generate", self.model, "-p", "ab", "--temperature", "5", "--seed", seed, "--json",
                                "--max-new-tokens", "20").json()["ids"]
        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))
        cold = self.succeed("generate", self.model, "-p", "abcdefgh", "--temperature", "5", "--top-p", "0.01")
        self.assertEqual(cold.out, "ijklmnopqrstuvwxyz\n")

    def test_the_positions_of_the_model_end_it(self):
        event = self.succeed("generate", self.model, "-p", "a" * 200, "--json", "--max-new-tokens", "1000",
                             "--temperature", "9").json()
        self.assertLessEqual(event["prompt_tokens"] + len(event["ids"]), 256)
        self.fail_with(3, "leaves no room in the model's 256 positions", "generate", self.model, "-p", "a" * 256)

    def test_rows_are_framed_as_in_training(self):
        self.train("sql", "--steps", "150", "--lr", "3e-3")
        for row in sql_rows(3):
            answer = row.pop("answer")
            result = self.succeed("generate", self.path("sql"), "--row", "-p", json.dumps(row))
            self.assertEqual(result.out, answer + "\n")
        self.fail_with(3, "unknown kind of row", "generate", self.path("sql"), "--row", "-p", '{"x": 1}')
        self.fail_with(3, "needs a JSON object", "generate", self.path("sql"), "--row", "-p", "[1]")
        self.fail_with(3, "--prompt", "generate", self.path("sql"), "--row", "-p", '{"x": ')


class Tokenize(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run("train", *SMALL, "--data", cls.rows, "--out", cls.path("m"), "--steps", "1", "--no-forecast")
        cls.model = cls.path("m")

    def test_text_to_ids_and_back(self):
        text = "Hé\t x\\ 日本 \U0001f600"
        ids = self.succeed("tokenize", self.model, "-p", text, "--json").json()
        self.assertEqual(ids, [256] + list(text.encode()))
        plain = self.succeed("tokenize", "--model", self.model, "-p", text, "--no-special").out
        self.assertEqual(plain, " ".join(str(byte) for byte in text.encode()) + "\n")
        for form in (plain, json.dumps(ids[1:]), ",".join(plain.split())):
            self.assertEqual(self.succeed("tokenize", self.model, "--decode", "-p", form).out, text + "\n")
        self.assertEqual(self.succeed("tokenize", self.model, "--decode", "--json", "-p", plain).json(), text)
        with_bos = self.succeed("tokenize", self.model, "--decode", "-p", "256 65").out
        self.assertEqual(with_bos, "<|bos|>A\n")
        self.assertEqual(self.succeed("tokenize", self.model, "--decode", "--no-special", "-p", "256 65").out, "A\n")

    def test_one_line_of_output_for_each_line_of_input(self):
        lines = [f"line {i}" for i in range(9000)]
        result = self.succeed("tokenize", self.model, "--json", "--no-special", stdin="\n".join(lines).encode())
        self.assertEqual([bytes(json.loads(line)).decode() for line in result.out.splitlines()], lines)
        self.assertEqual(self.succeed("tokenize", self.model, "--json", "--no-special", stdin=b"\n\nx").out,
                         "[]\n[]\n[120]\n")
        self.assertEqual(self.succeed("tokenize", self.model, stdin=b"").out, "")

    def test_ids_that_are_none(self):
        for text in ("1 x", "1.5", "-1", "99999999999", "1;2"):
            self.fail_with(3, "is not a token id", "tokenize", self.model, "--decode", "-p", text)


class Help(program.ProgramTest):
    def test_help_and_version(self):
        overview = self.succeed("--help")
        self.assertTrue(overview.out.startswith("Usage: offload-train [train]"))
        self.assertEqual(self.succeed("train", "--help").out, overview.out)
        self.assertLess(len(overview.out.splitlines()), 30)
        self.assertIn("offload-train train --help all", overview.out)
        whole = self.succeed("--help", "all").out
        self.assertIn("--router-aux-loss", whole)
        self.assertNotIn("--router-aux-loss", overview.out)
        self.assertEqual(self.succeed("help", "train").out, whole)
        self.assertIn("--temperature X", self.succeed("generate", "-h").out)
        self.fail_with(2, "no help topic 'everything'", "--help", "everything")
        self.assertRegex(self.succeed("--version").out, r"^offload-train \d+\.\d+\.\d+\n.*\n$")
        for words in ("--version", "--json"), ("--json", "--version"):
            facts = self.succeed(*words).json()
            self.assertIn(f"offload-train {facts['version']}\n", self.succeed("--version").out)
            self.assertRegex(facts["build"], "^[0-9a-f]+$")
            self.assertEqual(facts["cuda"] is not None, "cuda" in self.succeed("--version").out.split("\n")[1].split(", "))
            self.assertIn("zlib", facts["libraries"])

    def test_results_that_cannot_be_written(self):
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 5)
            self.assertEqual(done.stderr, b"error: stdout: cannot write the result\n")

    def test_a_filter_ends_with_its_reader(self):
        child = subprocess.Popen([PROGRAM, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.close()
        self.assertEqual(child.stderr.read(), b"")
        child.stderr.close()
        self.assertIn(child.wait(timeout=60), (0, -signal.SIGPIPE))

    def test_closed_standard_streams_are_not_taken_for_files(self):
        words = ["train", *SMALL, "--data", self.rows, "--steps", "20", "--log-every", "1", "--json", "--no-forecast"]
        want = None
        for i, closed in enumerate(("0<&-", "1>&-", "2>&-", "0<&- 2>&-")):
            out = self.path(f"closed{i}")
            command = " ".join(["exec", PROGRAM, *words, "--out", out, closed])
            done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60)
            if closed == "1>&-":
                self.assertEqual((done.returncode, os.path.exists(out)), (5, False))
                self.assertIn(b"error: stdout: cannot write", done.stderr)
                continue
            self.assertEqual(done.returncode, 0, closed)
            weights = program.read_bytes(out + "/model.safetensors")
            self.assertEqual(weights, want or weights)
            want = weights
            self.log(f"closed{i}")  # every line is JSON
        done = subprocess.run(["sh", "-c", f"exec {PROGRAM} generate {self.path('closed0')} <&-"], capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (5, b"error: stdin: cannot read: Bad file descriptor\n"))


if __name__ == "__main__":
    program.main()
