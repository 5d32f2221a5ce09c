"""offload-train plan: described machines, text and JSON with the same figures, sums that are right, one clear line
for each error."""

import json
import os
import re
import unittest

import plan_test
import program
from program import run

USAGE, INPUT, BUDGET, IO = 2, 3, 4, 5
SLOW = unittest.skipUnless(os.environ.get("OT_TEST_SLOW"), "OT_TEST_SLOW=1 plans it for many machines")
SMALL = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--tokens-per-step", "8192"]


def three_digits(value):
    """Formats an estimate as the program prints it: 21.7, 3,030."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:.1f}" if rounded >= 10 else f"{rounded:.2f}"


class Plan(plan_test.PlanTest):
    def check_sums(self, text, answer):
        prediction = answer["prediction"]
        parts = (prediction["busy_seconds"]["compute"] + sum(prediction["exposed_seconds"].values()) +
                 prediction["exposed_host_seconds"])
        self.assertAlmostEqual(parts, prediction["step_seconds"], delta=1e-6 * prediction["step_seconds"])
        rows = re.findall(r" ([\d.]+) m?s +([\d.]+) %   comput", text)  # computing, stalled, idle
        self.assertAlmostEqual(sum(float(share) for _, share in rows), 100, delta=1e-6)
        step = float(re.search(r"time +(?:about )?([\d.]+) m?s a step", text)[1])
        self.assertAlmostEqual(sum(float(part) for part, _ in rows), step, delta=1e-6)
        lines = text.splitlines()
        first = next(i for i, line in enumerate(lines) if re.match(r"^ +[GM]iB ", line))
        unit = 2**30 if "GiB" in lines[first] else 2**20
        columns = lines[first].split()[1:]
        last = next(i for i, line in enumerate(lines) if line.split()[:1] == ["total"])
        for column, tier in enumerate(columns):
            cells = [line[34 + 13 * column:47 + 13 * column].strip() for line in lines[first + 1:last + 1]]
            numbers = [float(cell) for cell in cells if cell != "-"]
            self.assertAlmostEqual(sum(numbers[:-1]), numbers[-1], delta=1e-6)
            total = sum(entry["bytes"] for entry in answer["plan"]["ledger"] if entry["tier"] == tier)
            self.assertAlmostEqual(total / unit, numbers[-1], delta=0.051)
            self.assertLessEqual(total, answer["machine"]["budget_bytes"][tier])

    def test_text_and_json_agree_and_add_up(self):
        for words in ([], ["--gpu-mem", "4G"], ["--gpu-mem", "4G", "--home", "state=host,weights=host"],
                      ["--optimizer-engine", "stream:0.5,cpu:0.5"]):
            text, answer = self.plan(*SMALL, "--steps", "100", "--price/h", "2", *words)
            self.check_sums(text, answer)
            prediction, price = answer["prediction"], answer["run"]["price"]
            self.assertIn(f"about {three_digits(prediction['step_seconds'])} s a step", text)
            self.assertIn(f" {three_digits(prediction['tokens_per_s'])} tokens/s (", text)
            self.assertIn(f"MFU {100 * prediction['mfu']:.0f} %", text)
            self.assertAlmostEqual(prediction["tokens_per_s"], 8192 / prediction["step_seconds"], delta=1e-6 * 8192)
            seconds = 100 * prediction["step_seconds"] + answer["run"]["result_seconds"]
            self.assertAlmostEqual(answer["run"]["seconds"], seconds, delta=1e-6)
            self.assertAlmostEqual(price, seconds / 1800, delta=1e-9)
            self.assertIn(f"about {price:.2f} for the run at 2 an hour", text)
            self.assertLess(prediction["fast_step_seconds"], prediction["step_seconds"])
            self.assertGreater(prediction["slow_step_seconds"], prediction["step_seconds"])
            self.assertAlmostEqual(prediction["mfu"],
                                   prediction["model_flops"] / prediction["step_seconds"] / prediction["mfu_peak_flops"],
                                   delta=1e-8)

    def test_the_same_question_has_the_same_answer(self):
        self.assertEqual(self.succeed(*SMALL).out, run(*SMALL).out)  # succeed remembers its answers

    def test_what_is_forced_is_in_the_plan(self):
        answer = self.answer(*SMALL, "--home", "state=host,weights=host,activations=host", "--optimizer-engine", "cpu",
                             "--micro-batch", "2", "--recompute", "all")
        plan = answer["plan"]
        self.assertEqual((plan["activations"], plan["micro_sequences"], plan["kept_blocks"]), ("host", 2, 0))
        self.assertEqual((plan["optimizer_tiles"]["gpu"], plan["optimizer_tiles"]["stream"]), (0, 0))

    def test_a_faster_machine_is_not_predicted_slower(self):
        rates = [self.answer(*SMALL, "--gpu-mem", "3G", "--home", "state=host", "--pcie", pcie, "--host-bw", host)
                 ["prediction"]["tokens_per_s"] for pcie, host in (("6GB", "30GB"), ("12GB", "30GB"), ("12GB", "60GB"))]
        self.assertEqual(rates, sorted(rates))

    def test_the_length_of_a_run(self):
        def steps(*words):
            return self.answer(*SMALL, "--seq-len", "1024", *words)["run"]["steps"]
        self.assertEqual(steps("--steps", "7"), 7)
        self.assertEqual(steps("--tokens", "81920", "--epochs", "2"), 20)
        self.assertEqual(steps("--tokens", "81921"), 3 * 11)
        self.assertEqual(steps("--rows", "17", "--epochs", "1"), 3)
        text, answer = self.plan(*SMALL, "--price/h", "1.89")
        self.assertEqual(set(answer["run"]), {"price_per_million_tokens"})
        self.assertIn("a million tokens at 1.89 an hour (--steps, --data, --tokens or --rows add the price of the run)", text)

    def test_tokens_that_are_no_whole_sequences_are_rounded_down(self):
        text = self.succeed("plan", "--model", "llama-7b", "--gpu", "h200", "--tokens-per-step", "65000").out
        self.assertIn("\nstep    63,488 = 31 x 2048 tokens a step (65,000 rounded down) · ", text)

    def test_k_tokens_are_binary_as_memory_is(self):
        text, answer = self.plan("plan", "--model", "llama-7b", "--gpu", "h200", "--tokens-per-step", "16k", "--steps", "1k")
        self.assertIn("\nstep    16,384 = 8 x 2048 tokens a step · ", text)
        self.assertIn("run     1,000 steps", text)

    def test_all_of_a_card_by_the_name_that_it_is_sold_under(self):
        """24G on a card of 24 GB, whose firmware leaves 22.5 GiB, is the budget that the program would take without
        the option."""
        words = ["plan", "--model", "tinyllama-1.1b", "--tokens-per-step", "8192", "--gpu"]
        for card in ("rtx4090", "l4"):
            plain = self.succeed(*words, card, "--json").json()
            whole = self.succeed(*words, card, "--gpu-mem", "24G", "--json")
            self.assertEqual(whole.json()["plan"], plain["plan"])
            self.assertRegex(whole.err, r"note    --gpu-mem 24\.0 GiB is more than this GPU has for programs\. Using all of it, 2\d\.\d GiB\n")

    def test_explain(self):
        text, answer = self.plan(*SMALL, "--gpu-mem", "3G", "--explain")
        explanation = answer["explanation"]
        self.assertGreater(explanation["bound_share"], 0)
        rates = {one["what"]: one["tokens_per_s"] for one in explanation["if"]}
        self.assertEqual(set(rates), {"1 GiB more gpu memory", "1 GiB more host memory", "twice the link's rate",
                                      "twice the host memory's rate", "twice the tokens, half the steps"})
        for what, rate in rates.items():
            self.assertIn(what, text)
            if what != "twice the tokens, half the steps":
                self.assertGreaterEqual(rate, answer["prediction"]["tokens_per_s"] * (1 - 1e-9))

    def test_twice_the_tokens_are_half_the_steps(self):
        for words, steps in ((["--steps", "7"], "4 steps instead of 7"), (["--tokens", "100k", "--epochs", "1"], "7 steps instead of 13")):
            text = self.succeed("plan", "--model", "tiny-sql", "--gpu", "rtx3060", "--tokens-per-step", "8192", "--explain", *words).out
            self.assertRegex(text, rf"\n +twice the tokens, half the steps .* · {steps}\n")
            self.assertEqual(text.count("steps instead of"), 1)

    def test_a_step_within_bounds(self):
        """The table has each step's own prediction, and the rest of the answer is that of the chosen step."""
        words = ["plan", "--model", "tiny-sql", "--gpu", "h100", "--gpu-mem", "100M", "--tokens", "1M", "--epochs", "1", "--tokens-per-step"]
        text, answer = self.plan(*words, "auto:8k..20000")
        choice = answer["step_choice"]
        self.assertEqual([one["tokens"] for one in choice], [8192, 16384, 19968])
        alone = [self.answer(*words, str(one["tokens"])) for one in choice]
        for one, its in zip(choice, alone):
            self.assertEqual((one["step_seconds"], one["tokens_per_s"], one["steps"]),
                             (its["prediction"]["step_seconds"], its["prediction"]["tokens_per_s"], its["run"]["steps"]))
        rates = [one["tokens_per_s"] for one in choice]
        chosen = next(i for i, rate in enumerate(rates) if rate >= 0.98 * max(rates))
        self.assertEqual([one["chosen"] for one in choice], [i == chosen for i in range(3)])
        self.assertEqual(answer["options"]["tokens-per-step"], choice[chosen]["tokens"])
        for part in ("plan", "prediction", "run"):
            self.assertEqual(answer[part], alone[chosen][part])
        rows = re.findall(r"\n +([\d,]+) +[\d.]+ ms +([\d,]+) +(\d+)(   chosen)?(?=\n)", text)
        self.assertEqual(rows, [(f"{one['tokens']:,}", three_digits(one["tokens_per_s"]), str(one["steps"]),
                                 "   chosen" if one["chosen"] else "") for one in choice])

    def test_each_card_has_its_own_step(self):
        words = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060,h200", "--ram", "32G", "--tokens-per-step"]
        table = self.answer(*words, "auto:8k..32k")["compare"]
        alone = [self.answer(*words[:4], card, *words[5:], "auto:8k..32k") for card in ("rtx3060", "h200")]
        chosen = [one["tokens"] for answer in alone for one in answer["step_choice"] if one["chosen"]]
        self.assertLess(*chosen)
        self.assertEqual([row["step_tokens"] for row in table], chosen)
        text = self.succeed(*words, "auto:8k..32k").out
        self.assertRegex(text, r"^card +model +tokens a step +lives on ")
        small = self.succeed("plan", "--model", "llama-7b", "--gpu", "rtx4090", "--ram", "88G", "--tokens-per-step", "auto:32k..64k").out
        self.assertRegex(small, r"\n +65,536   does not fit\n")
        self.assertNotIn("tokens a step", self.succeed(*words, "16k").out)

    def test_this_machine_is_measured_once(self):
        here = ["plan", "--model", "tiny-test", "--device", "cpu", "--threads", "1", "--gpu-mem", "64M", "--host-mem", "64M",
                "--seq-len", "128", "--tokens-per-step", "512"]
        measured = self.succeed(*here, "--json")
        self.assertIn("measured this machine", measured.err)
        answer = measured.json()
        self.assertEqual((answer["machine"]["described"], answer["machine"]["assumed"]), (False, ""))
        self.assertIn("measured on this machine", answer["prediction"]["basis"])
        again = self.succeed(*here, "--nvme", "10G", "--nvme-read", "3GB/s", "--home", "state=nvme", "--json")
        self.assertNotIn("measured this machine", again.err)
        self.assertEqual(again.json()["machine"]["nvme_read_bytes_per_s"], 3e9)
        self.assertEqual(again.json()["machine"]["assumed"], "--nvme-write 2.5GB")
        self.assertGreater(again.json()["prediction"]["bytes"]["nvme_write"], 0)
        self.assertTrue(again.json()["prediction"]["basis"].endswith("; disks assumed."))
        said = self.succeed(*here, "--nvme", "10G", "--nvme-read", "3GB/s", "--nvme-write", "2GB/s", "--json").json()
        self.assertEqual(said["machine"]["assumed"], "")
        self.assertTrue(said["prediction"]["basis"].endswith("; disks as described."))
        os.mkdir(self.path("disk"))
        text = self.succeed(*here, "--nvme", self.path("disk") + ":64M", "--home", "state=nvme", "--quiet").out
        self.assertEqual(os.listdir(self.path("disk")), [])
        self.assertIn("measured on this machine", text)
        self.assertRegex(text, r"nvme reads [\d.]+ GB/s, writes")
        self.assertRegex(text, r"nvme +[\d.]+ GB read, [\d.]+ GB written a step · a 1 TB drive \(600 TB endurance\) lasts [\d,]+ steps")
        self.assertRegex(text, r"time +[\d.]+ m?s a step")

    def test_a_trace_of_the_prediction(self):
        path = self.path("trace.json")
        self.plan(*SMALL, "--trace", path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
        self.assertGreater(len([event for event in events if event["ph"] == "X"]), 100)

    def test_the_cards(self):
        text = self.succeed("plan", "--gpu", "list").out
        listed = self.succeed("plan", "--gpu", "list", "--json").json()
        self.assertGreaterEqual(len(listed["cards"]), 20)
        names = [entry["name"] for entry in listed["cards"] + listed["machines"]]
        self.assertEqual(len(set(names)), len(names))
        for entry in listed["cards"] + listed["machines"]:
            self.assertIn(entry["name"], text)
            answer = self.succeed("plan", "--model", "tiny-sql", "--gpu", entry["name"], "--json").json()
            self.assertGreater(answer["prediction"]["tokens_per_s"], 0)
            self.assertLess(answer["prediction"]["mfu"], 1)

    def test_every_share_has_its_source(self):
        """A share follows from a measurement or a publication that has a year or a table, or says that it is assumed."""
        for i, card in enumerate(self.succeed("plan", "--gpu", "list", "--json").json()["cards"]):
            words = ["plan", "--model", "tiny-sql", "--gpu", card["name"]]
            text, answer = self.plan(*words) if i % 6 == 0 else (None, self.answer(*words))  # a text is a second run
            machine = answer["machine"]
            for key in ("product_share_source", "attention_source", "device_memory_source", "link_source"):
                self.assertRegex(machine[key], r"20\d\d|MAMF|gpu_benchmark|llmq|FlexTrain|measured|assumed|share of PCIe", card["name"])
                if text:
                    self.assertIn(": " + machine[key] + "\n", text)
            self.assertLess(machine["attention_backward_flops"], machine["attention_forward_flops"])
            self.assertLess(machine["attention_forward_flops"], machine["product_flops"])
            self.assertLess(machine["device_bytes_per_s"], card["memory_bytes_per_s"])
        said = self.succeed(*SMALL, "--pcie", "20GB", "--json").json()["machine"]
        self.assertNotIn("link_source", said)

    def test_attention_has_a_rate_by_the_size_of_heads(self):
        """tinyllama has heads of 64, llama-7b of 128. On an H200 the rates stand to each other as those that our kernels
        reached there."""
        small, large = ({key: self.succeed("plan", "--model", model, "--gpu", "h200", "--tokens-per-step", "16k",
                                           "--json").json()["machine"][f"attention_{key}_flops"] for key in ("forward", "backward")}
                        for model in ("tinyllama-1.1b", "llama-7b"))
        self.assertLess(small["forward"], large["forward"])
        self.assertLess(small["backward"], large["backward"])
        self.assertAlmostEqual(large["backward"] / large["forward"], 360 / 474, places=3)
        self.assertAlmostEqual(small["forward"] / large["forward"], 307 / 474, places=3)

    def test_other_spellings_of_a_card(self):
        want = self.succeed(*SMALL, "--json").json()["prediction"]
        for name in ("RTX3060", "rtx-3060", "RTX 3060", "3060", "GeForce RTX 3060 12GB"):
            words = [word if word != "rtx3060" else name for word in SMALL]
            self.assertEqual(self.succeed(*words, "--json").json()["prediction"], want)

    def test_cures_are_tried_and_are_the_users_own(self):
        """With any option that a shortage names, the plan fits. The shortage does not ask to leave out an option
        that was not given."""
        self.check_cures(["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--ram", "32G", "--tokens-per-step", "16k"],
                         ["--micro-batch", "8", "--gpu-mem", "1500M"], ["--home", "weights=gpu,state=gpu"],
                         ["--recompute", "none", "--rounds", "1", "--gpu-mem", "6G"], ["--gpu-mem", "500M"], ["--optimizer-engine", "gpu"],
                         ["--slots", "8", "--gpu-mem", "1G"])

    def test_chunks_of_long_rows_are_told(self):
        base = ["plan", "--model", "tinyllama-1.1b", "--gpu", "h100", "--rope-scaling", "yarn:8", "--tokens-per-step", "16k", "--seq-len"]
        self.assertIn("  chunks  each layer takes a micro-batch of 16,384 tokens in chunks of 4,096\n", self.succeed(*base, "16k").out)
        self.assertNotIn("chunks", self.succeed(*base, "2k", "--micro-batch", "2").out)

    def test_sections_of_rows_that_do_not_fit_are_told(self):
        base = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--ram", "64G", "--gpu-mem", "3G", "--rope-scaling",
                "yarn:256", "--seq-len", "128k", "--tokens-per-step", "128k"]
        plan = self.succeed(*base).out
        told = re.search(r"sections each row is (\d+) micro-batches, of ([0-9,]+) tokens each", plan)
        self.assertEqual(int(told[1]) * int(told[2].replace(",", "")), 131072)
        self.assertIn("1 micro-batch of 1\n", plan)
        self.assertEqual(self.succeed(*base, "--json").json()["plan"]["row_sections"], int(told[1]))
        self.fail_with(BUDGET, "leave out --row-sections", *base, "--row-sections", "1")
        self.assertIn("leaves the GPU after each layer", self.succeed(*base, "--gpu-mem", "2500M").out)

    def test_groups_of_keys_that_do_not_fit_are_told(self):
        base = ["plan", "--model", "llama-7b", "--gpu", "rtx4090", "--ram", "512G", "--rope-scaling", "yarn:1024", "--seq-len"]
        plan = self.succeed(*base, "512k", "--tokens-per-step", "512k").out
        heads = int(re.search(r"; keys of (\d+) heads? at a time", plan)[1])
        told = self.succeed(*base, "512k", "--tokens-per-step", "512k", "--json").json()["plan"]
        self.assertEqual(heads * told["key_groups"], 32)
        self.assertNotIn("at a time", self.succeed(*base, "256k", "--tokens-per-step", "256k").out)

    def test_two_options_where_one_is_not_enough(self):
        base = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--gpu-mem", "2G", "--ram", "8G", "--rope-scaling", "yarn:256"]
        rows = ["--seq-len", "512k", "--tokens-per-step", "512k"]
        self.assertRegex(self.fail_with(BUDGET, "What helps: ", *base, *rows), r"What helps: --seq-len \S+ with --nvme \d+[MG]$")
        self.check_cures(base, rows)

    @SLOW
    def test_cures_for_a_larger_model(self):
        self.check_cures(["plan", "--model", "llama-7b", "--gpu", "rtx4090", "--ram", "128G", "--tokens-per-step", "32k"],
                         ["--micro-batch", "16", "--gpu-mem", "6G"], ["--home", "weights=gpu,state=gpu"], ["--recompute", "none"],
                         ["--gpu-mem", "2G"], ["--optimizer-engine", "gpu"], ["--slots", "8", "--gpu-mem", "5G"])

    def check_cures(self, base, *shortages):
        for words in shortages:
            error = self.fail_with(BUDGET, "What helps: ", *base, *words)
            cures = error.split("What helps: ")[1].strip().split("; or ")
            given = [word for word in words if word.startswith("--")]
            for cure in cures:
                left = list(words)
                if cure.startswith("leave out "):
                    for name in cure[len("leave out "):].split(", "):
                        self.assertIn(name, given)
                        at = left.index(name)
                        del left[at:at + 2]
                    more = []
                else:
                    more = [word for option in re.findall(r"(--\S+) (\S+)", cure) for word in option]
                    for name in more[::2]:
                        if name in left:
                            del left[left.index(name):left.index(name) + 2]
                self.assertIn("time    about ", self.succeed(*[word for word in base], *left, *more).out)

    def test_never_a_larger_card_than_the_one_named(self):
        error = self.fail_with(BUDGET, "What helps: ", "plan", "--model", "llama-13b", "--gpu", "rtx3060", "--ram", "16G")
        self.assertNotIn("--gpu-mem", error)

    def test_ram_is_what_is_installed(self):
        by_ram = self.succeed(*SMALL, "--ram", "40G", "--json").json()
        by_host = self.succeed(*SMALL, "--host-mem", "36G", "--json").json()
        self.assertEqual(by_ram["machine"]["budget_bytes"], by_host["machine"]["budget_bytes"])
        self.assertEqual(by_ram["machine"]["ram_bytes"], 40 << 30)
        self.assertNotIn("--ram", by_ram["machine"]["assumed"])

    def test_explained_noise_is_no_gain(self):
        """If hardly anything of a disk is used, a larger disk makes no difference."""
        words = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--ram", "16G", "--nvme", "1T", "--tokens-per-step", "16k"]
        answer = self.succeed(*words, "--explain", "--json").json()["explanation"]
        gains = {one["what"]: one["gain"] for one in answer["if"]}
        self.assertEqual(gains["1 GiB more on nvme"], 0)
        for gain in gains.values():
            self.assertTrue(gain == 0 or abs(gain) >= 0.02)
        self.assertIn("second", answer)
        self.assertRegex(self.succeed(*SMALL, "--gpu-mem", "3G", "--explain").out, r"\nbound   .*; next ")

    def test_wear_is_a_warning(self):
        words = ["plan", "--model", "tiny-sql", "--gpu", "rtx3060", "--tokens-per-step", "8192", "--nvme", "1T", "--home", "state=nvme"]
        self.assertRegex(self.succeed(*words, "--steps", "5000000").err, r"warning: the run writes [\d.]+ TB to --nvme: \d+ % of the 600 TB")
        self.assertNotIn("warning", self.succeed(*words, "--steps", "10").err)

    def test_what_is_written_beside_is_told_in_the_row(self):
        """On disks AdamW's state of 10 bytes a parameter takes 20: the row says so."""
        text, answer = self.plan(*SMALL, "--nvme", "64G", "--home", "state=nvme,weights=host", "--slots", "1")
        on_disk = next(entry for entry in answer["plan"]["ledger"] if (entry["tier"], entry["name"]) == ("nvme", "optimizer state"))
        self.assertEqual(on_disk["bytes"], 2 * on_disk["spare_bytes"])
        total, spare = re.search(r"\n +optimizer .* ([\d.]+)   ([\d.]+) of it: room to write new content beside the old\n", text).groups()
        self.assertAlmostEqual(float(total), 2 * float(spare), delta=0.11)
        self.assertRegex(text, r" · 1 weight slot\n")

    def test_frozen_and_trained_parameters_add_up(self):
        text, answer = self.plan(*SMALL, "--lora", "r=8")
        model = answer["model"]
        self.assertEqual(model["frozen_parameters"], model["parameters"])
        self.assertRegex(text, r"model .* · 1\.10 B frozen \+ [\d.]+ M trained parameters, ")
        self.assertRegex(self.plan(*SMALL)[0], r"model .* · 1\.10 B parameters, ")

    def test_five_rows_and_the_full_ledger(self):
        self.assertNotIn("gradient slots", self.succeed(*SMALL, "--gpu-mem", "3G").out)
        self.assertIn("gradient slots", self.succeed(*SMALL, "--gpu-mem", "3G", "--explain").out)

    def test_cards_and_models_side_by_side(self):
        words = ["plan", "--gpu", "rtx3060,h100", "--model", "tinyllama-1.1b,llama-7b", "--tokens-per-step", "16k", "--steps", "10"]
        rows = self.succeed(*words, "--json").json()["compare"]
        self.assertEqual([(row["card"], row["model"]) for row in rows],
                         [("rtx3060", "tinyllama-1.1b"), ("h100", "tinyllama-1.1b"), ("rtx3060", "llama-7b"), ("h100", "llama-7b")])
        self.assertEqual([row["fits"] for row in rows], [True, True, False, True])
        self.assertRegex(rows[2]["helps"], r"^--nvme \d+G; or --")  # the cures alone
        single = self.succeed("plan", "--gpu", "h100", "--model", "llama-7b", "--tokens-per-step", "16k", "--json").json()
        self.assertEqual(rows[3]["step_seconds"], single["prediction"]["step_seconds"])
        text, markdown = self.succeed(*words).out.splitlines(), self.succeed(*words, "--markdown").out.splitlines()
        self.assertEqual(len(text), 1 + 4 + 1)
        self.assertTrue(text[3].startswith("rtx3060  llama-7b  "))
        self.assertIn(three_digits(rows[0]["tokens_per_s"]), text[1])
        self.assertEqual(len({line.count("|") for line in markdown if line.startswith("|")}), 1)

    def test_ways_to_train_side_by_side(self):
        words = ["plan", "--gpu", "rtx3060", "--model", "tinyllama-1.1b", "--tokens-per-step", "8k", "--ram", "32G", "--json"]
        rows = self.succeed(*words, "--methods", "--price/h", "1").json()["compare"]
        self.assertEqual([row["way"] for row in rows],
                         ["all parameters", "LoRA", "QLoRA, int8", "QLoRA, nf4", "QLoRA, nf4-double"])
        self.assertTrue(all(row["fits"] and row["price_per_million_tokens"] > 0 for row in rows))
        self.assertLess(rows[1]["step_seconds"], rows[0]["step_seconds"])
        for row, more in (rows[0], []), (rows[1], ["--lora", "r=16"]), (rows[3], ["--lora", "r=16", "--base-type", "nf4"]):
            self.assertEqual(row["step_seconds"], self.succeed(*words, *more).json()["prediction"]["step_seconds"], more)
        text = self.succeed(*words[:-1], "--methods").out.splitlines()
        self.assertTrue(text[0].startswith("way ") and text[4].startswith("QLoRA, nf4 "), text)
        # Where full training does not fit, the row says what helps.
        small = self.succeed(*words[:4], "llama-7b", *words[5:], "--methods").json()["compare"]
        self.assertEqual([row["fits"] for row in small], [False, True, True, True, True])
        for words in ["--sweep", "tokens-per-step"], ["--minimum"], ["--train", "norms"], ["--base-type", "nf4"], ["--explain"]:
            self.fail_with(USAGE, "contradict", "plan", "--gpu", "h100", "--model", "llama-7b", "--methods", *words)

    def test_a_sweep_over_steps(self):
        words = ["plan", "--model", "tiny-sql", "--gpu", "rtx3060"]
        rows = self.succeed(*words, "--sweep", "tokens-per-step", "--json").json()["sweep"]
        self.assertEqual([row["step_tokens"] for row in rows], [2048 << i for i in range(8)])
        single = self.succeed(*words, "--tokens-per-step", "8k", "--json").json()
        self.assertEqual(rows[2]["step_seconds"], single["prediction"]["step_seconds"])
        self.assertTrue(all(row["fits"] for row in rows))
        text = self.succeed(*words, "--sweep", "tokens-per-step").out
        self.assertRegex(text, r"^tiny-sql · sequences of \d+ tokens · rtx3060\n")

    @SLOW
    def test_the_least_machine_is_enough_and_less_is_not(self):
        words = ["plan", "--model", "llama-7b", "--tokens-per-step", "16k"]
        resident, host, disk = self.succeed(*words, "--minimum", "--json").json()["minimum"]
        self.assertEqual([row["way"] for row in (resident, host, disk)], ["all on the GPU", "GPU and RAM", "GPU, RAM and a disk"])
        gib = 1 << 30
        here = [*words, "--gpu", host["card"], "--ram"]
        self.succeed(*here, f"{host['ram_bytes'] // gib}G")
        self.fail_with(BUDGET, "short by", *here, f"{host['ram_bytes'] // gib - 2}G")
        disk_size = ["--nvme", f"{disk['used_bytes']['nvme'] // gib + 1}G"]
        self.succeed(*here, f"{disk['ram_bytes'] // gib}G", *disk_size)
        less = disk["used_bytes"]["host"] * 9 // 10 >> 20
        self.fail_with(BUDGET, "short by", *words, "--gpu", host["card"], "--host-mem", f"{less}M", *disk_size)
        self.assertLess(disk["ram_bytes"], host["ram_bytes"])
        self.succeed(*words, "--gpu", resident["card"], "--home", "weights=gpu,state=gpu,activations=gpu")
        self.assertIn("no known card", self.succeed("plan", "--model", "llama-13b", "--minimum").out)

    def test_all_on_the_gpu_is_all(self):
        """Gradient sums between rounds are on no host either: it holds rows and the like alone."""
        resident = self.succeed("plan", "--model", "llama-7b", "--tokens-per-step", "16k", "--minimum", "--json").json()["minimum"][0]
        self.assertLess(resident["used_bytes"]["host"], 1 << 30)

    def test_the_title_of_the_least_machine(self):
        """The first way fits on no such card, so its row knows no step."""
        text = self.succeed(*SMALL, "--minimum").out
        self.assertTrue(text.startswith("tinyllama-1.1b · sequences of 2048 tokens · 8,192 tokens a step\n"), text)
        self.assertRegex(text, r"\nall on the GPU +rtx3060 +does not fit: ")

    def test_gradients_on_a_disk(self):
        """1.1B beside 1 GiB: twice that much would hold the gradients alone."""
        words = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx3060", "--gpu-mem", "2G", "--host-mem", "1G", "--nvme", "1T",
                 "--tokens-per-step", "16k"]
        answer = self.succeed(*words, "--json").json()
        tiles = answer["plan"]["gradient_tiles"]
        self.assertGreater(tiles["nvme"], tiles["host"] + tiles["gpu"])
        on_disk = sum(entry["bytes"] for entry in answer["plan"]["ledger"] if (entry["tier"], entry["name"]) == ("nvme", "gradients"))
        self.assertGreater(on_disk, 2 * tiles["nvme"] / sum(tiles.values()) * answer["model"]["parameters"] * 0.98)
        self.fail_with(BUDGET, "short by", *words, "--home", "grads=host")

    def test_several_ranks(self):
        """1/W of what a rank holds, the bytes of the formula, and the tokens of all ranks."""
        base = ["plan", "--model", "llama-7b", "--gpu", "rtx4090", "--ram", "384G", "--tokens-per-step", "32k",
                "--home", "weights=host,state=host", "--share-weights", "no"]
        one = self.succeed(*base, "--json").json()
        params = one["model"]["parameters"]

        def held(answer, name):
            return sum(entry["bytes"] for entry in answer["plan"]["ledger"] if entry["name"] == name)

        for ranks in (2, 4, 8):
            text, answer = self.plan(*base, "--gpus", str(ranks), "--shard", "full")
            self.check_sums(text, answer)
            for name in ("weights", "optimizer state"):
                self.assertAlmostEqual(held(answer, name) * ranks / held(one, name), 1, delta=0.02, msg=name)
            prediction, share = answer["prediction"], (ranks - 1) / ranks
            # Shares are cut at multiples of 32 parameters.
            self.assertAlmostEqual(prediction["exchanged_bytes"] / (share * 4 * params), 1, delta=1e-4)
            self.assertLessEqual(prediction["gathered_bytes"], share * 2 * 2 * params * 1.0001)
            self.assertGreater(prediction["gathered_bytes"], share * 1.5 * 2 * params)
            self.assertLess(prediction["bytes"]["comm"], 1.0001 * (prediction["gathered_bytes"] + prediction["exchanged_bytes"]))
            self.assertAlmostEqual(prediction["tokens_per_s"] * prediction["step_seconds"], 32768, delta=1)
            self.assertLess(prediction["step_seconds"], one["prediction"]["step_seconds"])
            self.assertIn(f"{ranks - 1}/{ranks} x 4 bytes x 6.74 G x 1.00", text)
            self.assertIn("through host memory", text)
            # What the ranks exchange leaves one GPU and enters another.
            moved = prediction["bytes"]
            self.assertAlmostEqual(prediction["link_bytes"] / (moved["h2d"] + moved["d2h"] + 2 * moved["comm"]), 1, delta=1e-6)
            printed = re.search(r"link carries ([\d.]+) GB a step = ([\d.]+) to the GPU \+ ([\d.]+) back \+ 2 x ([\d.]+) of ranks", text)
            total, *parts = [float(number) for number in printed.groups()]
            self.assertAlmostEqual(total, parts[0] + parts[1] + 2 * parts[2], delta=0.03)
            self.assertAlmostEqual(total, prediction["link_bytes"] * 1e-9, delta=0.006)
            self.assertEqual(answer["plan"]["shard"], "full")

    def test_one_copy_of_the_weights(self):
        """Chosen where the GPUs of a host do not copy to each other. Nothing is gathered; each GPU reads all weights."""
        base = ["plan", "--model", "llama-7b", "--ram", "384G", "--tokens-per-step", "16k", "--gpus", "4", "--shard", "full"]

        def ask(*words):
            return self.answer(*base, *words)

        text, shared = self.plan(*base, "--gpu", "rtx4090")
        self.check_sums(text, shared)
        apart = ask("--gpu", "rtx4090", "--share-weights", "no")
        self.assertTrue(shared["plan"]["one_copy"])
        self.assertIn("one copy for all ranks", text)
        self.assertEqual(shared["prediction"]["gathered_bytes"], 0)
        self.assertLess(shared["prediction"]["step_seconds"], 0.98 * apart["prediction"]["step_seconds"])
        forced = ask("--gpu", "rtx4090", "--share-weights", "yes")  # its search begins elsewhere, and both have limits
        self.assertAlmostEqual(forced["prediction"]["step_seconds"] / shared["prediction"]["step_seconds"], 1, delta=0.02)
        for words in ["--gpu", "h100"], ["--gpu", "rtx4090", "--nodes", "2"], ["--gpu", "rtx4090", "--home", "weights=gpu,state=host"]:
            self.assertFalse(ask(*words)["plan"]["one_copy"], words)  # NVLink; two hosts

    def test_cures_of_stages_are_tried_on_every_stage(self):
        # More RAM, which one stage would need, is not enough for the other.
        refused = self.fail_with(BUDGET, "What helps: --nvme 310G", "plan", "--model", "llama-13b", "--gpu", "rtx3060", "--ram",
                                 "40G", "--gpus", "2", "--shard", "stages")
        self.assertNotIn("--ram", refused)
        # Each stage has a plan alone, and all together have none: they have one micro-batch and one number of rounds.
        words = ["plan", "--model", "qwen3-32b", "--gpu", "rtx4090", "--ram", "1T", "--gpus", "8", "--tokens-per-step", "128k"]
        refused = self.fail_with(BUDGET, "What helps: leave out --rounds; or --shard auto", *words, "--shard", "stages", "--rounds",
                                 "1")
        self.assertNotIn("--nvme", refused)
        if os.environ.get("OT_TEST_SLOW"):
            self.succeed(*words, "--shard", "stages")

    def test_stages_over_ethernet(self):
        """Rank 0 sends activations and receives their gradients, in 2 bytes an element. Weights do not cross."""
        base = ["plan", "--model", "tinyllama-1.1b", "--gpu", "rtx4090", "--ram", "64G", "--nodes", "4", "--nic", "10G",
                "--tokens-per-step", "16k", "--shard"]
        text, answer = self.plan(*base, "auto")
        times = answer["plan"]["shard_step_seconds"]
        self.assertEqual((answer["plan"]["shard"], times["stages"]), ("stages", answer["prediction"]["step_seconds"]))
        self.assertLessEqual({"full", "stages"}, set(times))
        second = min(set(times) - {"stages"}, key=times.get)
        self.assertRegex(text, rf"chosen by time: {second} would take [\d.]+ s a step\n")
        self.assertLess(answer["prediction"]["slow_step_seconds"], 1.5 * answer["prediction"]["step_seconds"])
        self.check_sums(text, answer)
        stages, prediction = answer["plan"]["stages"], answer["prediction"]
        self.assertEqual(sum(stages["layers"]), 22)
        self.assertEqual(stages["turn_layers"], 0)
        self.assertIn(f"stages  {' + '.join(map(str, stages['layers']))} layers, one turn each", text)
        self.assertIn("what follows is of rank 0", text)
        self.assertIn("activations and their gradients, 2 bytes x 2048 a token, 2.0 times", text)
        self.assertAlmostEqual(prediction["bytes"]["comm"] / (16384 * 2048 * 2), 2, delta=0.01)
        self.assertLess(4 * prediction["step_seconds"], times["full"])
        words = ["plan", "--model", "t5-small", "--gpu", "rtx4090", "--gpus", "2", "--seq-len", "64", "--shard", "stages"]
        text = self.succeed(*words).out  # the layers share a table, which one rank borrows
        self.assertRegex(text, r"stages  \d+ \+ \d+ layers")

    @SLOW
    def test_the_way_between_ranks(self):
        base = ["plan", "--model", "llama-7b", "--tokens-per-step", "64k", "--ram", "384G", "--json", "--gpus", "4"]

        def ask(*words):
            return self.succeed(*base, *words).json()

        host, peer, fabric = ask("--gpu", "rtx4090"), ask("--gpu", "rtx4090", "--p2p", "yes"), ask("--gpu", "h100")
        self.assertEqual([x["machine"]["p2p"] for x in (host, peer, fabric)], [False, True, True])
        self.assertEqual([x["machine"]["nvlink"] for x in (host, peer, fabric)], [False, False, True])
        self.assertEqual(fabric["machine"]["comm_bytes_per_s"], 450e9 * 0.8)
        # Each received byte crosses a link twice; the memory of the host limits it if it holds the bytes.
        self.assertEqual(peer["machine"]["comm_bytes_per_s"], peer["machine"]["both_bytes_per_s"] / 2)
        slow = ask("--gpu", "rtx4090", "--host-bw", "80GB")
        self.assertEqual(slow["machine"]["comm_bytes_per_s"], 80e9 / 4 / 2)
        # Of eight ranks' bytes 4/7 come from the other host, over a network that four ranks share.
        far = ask("--gpu", "h100", "--nodes", "2", "--nic", "100G")
        self.assertEqual(far["machine"]["ranks"], 8)
        self.assertAlmostEqual(far["machine"]["comm_bytes_per_s"], 100e9 / 8 * 0.8 / 4 * 7 / 4, delta=1)
        self.assertEqual(far["machine"]["transfer_bytes_per_s"], fabric["machine"]["comm_bytes_per_s"])
        self.assertEqual(far["machine"]["transfer_bytes_per_s_of_host"], 100e9 / 8 * 0.8)
        self.assertAlmostEqual(far["prediction"]["network_bytes_per_host"],
                               4 * 4 / 7 * far["prediction"]["bytes"]["comm"], delta=1e6)
        self.assertGreater(far["prediction"]["step_seconds"], fabric["prediction"]["step_seconds"] / 2)

    @SLOW
    def test_a_rented_machine_with_several_gpus(self):
        """It is its GPUs in one host, with its own cores, RAM and network."""
        words = ["plan", "--model", "llama-7b", "--tokens-per-step", "64k"]
        text, one = self.plan(*words, "--gpu", "g6e.12xlarge")
        self.check_sums(text, one)
        self.assertIn("machine AWS g6e.12xlarge with 4 x L40S, described", text)
        same = self.succeed(*words, "--gpu", "l40s", "--gpus", "4", "--ram", "384G", "--threads", "24", "--json").json()
        self.assertEqual(one["prediction"], same["prediction"])
        text, two = self.plan(*words, "--gpu", "g6e.12xlarge", "--nodes", "2")
        self.assertIn("machine 2 x AWS g6e.12xlarge with 4 x L40S, described", text)
        self.assertEqual((two["machine"]["ranks"], two["machine"]["ranks_per_host"]), (8, 4))
        self.assertEqual(two["machine"]["network_bits_per_s"], 100e9)
        self.assertNotIn("--nic", two["machine"]["assumed"])

    def test_two_cards_of_a_workstation_divide_its_lanes(self):
        words = ["plan", "--model", "tiny-sql", "--gpu", "rtx3090", "--ram", "384G", "--json", "--gpus"]
        two, four = (self.succeed(*words, gpus).json()["machine"]["h2d_bytes_per_s"] for gpus in ("2", "4"))
        self.assertEqual(2 * two, four)  # four are in a server

    def test_the_planner_chooses_the_mode(self):
        words = ["plan", "--model", "tinyllama-1.1b", "--tokens-per-step", "32k", "--gpu", "h100", "--gpus", "2", "--nodes", "2", "--nic", "10G"]
        steps = {mode: self.succeed(*words, "--shard", mode, "--json").json()["prediction"]["step_seconds"]
                 for mode in ("none", "state", "full", "stages")}
        chosen = self.succeed(*words, "--json").json()
        self.assertLessEqual(chosen["prediction"]["step_seconds"], min(steps.values()) * 1.02)
        # A host of two ranks is a stage of two replicas, so that gradients stay inside hosts.
        division, step = chosen["plan"]["stages"], chosen["prediction"]["step_seconds"]
        self.assertEqual((len(division["layers"]), division["replicas"]), (2, 2))
        text, forced = self.plan(*words, "--shard", "stages", "--stages", "2")
        self.assertAlmostEqual(forced["prediction"]["step_seconds"] / step, 1, delta=0.02)
        self.assertRegex(text, r"stages  \d+ \+ \d+ layers, .* · 2 replicas")
        self.assertRegex(text, r"from the same stage of other replicas weights [\d.]+ GB: 1/2 x 2 bytes x [\d.]+ [GM] parameters x 1.00, "
                               r"\+ gradients [\d.]+ GB: 1/2 x 4 bytes x [\d.]+ [GM] x 1.00\n")
        self.assertLess(step, 0.93 * min(steps.values()))

    def test_layers_of_a_decoder_are_more_work(self):
        """So the stages of an encoder-decoder have other numbers of layers."""
        words = ["plan", "--model", "flan-t5-base", "--gpu", "l40s", "--ram", "64G", "--nodes", "4", "--nic", "100G", "--rounds", "8",
                 "--tokens-per-step", "16k", "--micro-batch", "1", "--shard", "stages", "--json"]
        division = self.succeed(*words).json()["plan"]["stages"]
        self.assertEqual((division["turn_layers"], division["layers"]), (0, [8, 7, 6, 3]))

    def test_bad_input_is_one_line(self):
        base = ["plan", "--model", "llama-7b", "--gpu", "rtx4090"]
        for code, phrase, words in (
                (USAGE, "--gpus has no effect without --gpu", ["plan", "--model", "llama-7b", "--gpus", "2"]),
                (USAGE, "--nic has no effect without --nodes", [*base, "--gpus", "2", "--nic", "25G"]),
                (USAGE, "a number from 1 to 64", [*base, "--gpus", "all"]),
                (USAGE, "has 1; use --nodes", ["plan", "--model", "llama-7b", "--gpu", "g6.xlarge", "--gpus", "2"]),
                (USAGE, "has 8; use --nodes, or --gpu h100", ["plan", "--model", "llama-7b", "--gpu", "p5.48xlarge", "--gpus", "4"]),
                (USAGE, "p5.48xlarge has 8; give its card: --gpu h100",
                 ["plan", "--model", "llama-7b", "--gpu", "p5.48xlarge", "--minimum"]),
                (USAGE, "72 ranks; the most is 64", [*base, "--gpus", "8", "--nodes", "9"]),
                (USAGE, "1, 2, 4 or 8 ranks, not 3", [*base, "--gpus", "3", "--deterministic", "world"]),
                (USAGE, "contradict", [*base, "--gpus", "2", "--minimum"]),
                (USAGE, "use --shard full", [*base, "--gpus", "2", "--share-weights", "yes", "--shard", "none"]),
                (USAGE, "several GPUs in one host", [*base, "--gpus", "2", "--nodes", "2", "--share-weights", "yes"]),
                (USAGE, "several GPUs in one host", [*base, "--share-weights", "yes"]),
                (USAGE, "did you mean rtx4090?", ["plan", "--model", "llama-7b", "--gpu", "rtx4900"]),
                (USAGE, "a100-80g-sxm", ["plan", "--model", "llama-7b", "--gpu", "a100"]),
                (USAGE, "--gpu list shows all", ["plan", "--model", "llama-7b", "--gpu", "voodoo2"]),
                (USAGE, "plan needs --model", ["plan", "--gpu", "h200"]),
                (USAGE, "remove --model", ["plan", "--gpu", "list", "--model", "llama-7b"]),
                (USAGE, "remove --steps", ["plan", "--gpu", "list", "--steps", "5"]),
                (BUDGET, "GeForce RTX 4090 has for a program", [*base, "--gpu-mem", "48G"]),
                (BUDGET, "What helps: --nvme 63G; or --ram 93G", base),
                (BUDGET, "What helps: --nvme 63G in total", [*base, "--nvme", "30G"]),
                (USAGE, "--ram and --host-mem contradict", [*base, "--ram", "64G", "--host-mem", "40G"]),
                (USAGE, "--ram has no effect without --gpu", ["plan", "--model", "llama-7b", "--ram", "64G"]),
                (USAGE, "one GPU and one model", ["plan", "--model", "llama-7b", "--gpu", "h100,h200", "--explain"]),
                (USAGE, "one GPU and one model", ["plan", "--model", "llama-7b,llama-13b", "--gpu", "h100", "--minimum"]),
                (USAGE, "--markdown prints tables", [*base, "--markdown"]),
                (USAGE, "did you mean h100?", ["plan", "--model", "llama-7b", "--gpu", "h200,h1000"]),
                (USAGE, "contradict", [*base, "--sweep", "tokens-per-step", "--tokens-per-step", "8k"]),
                (USAGE, "--template has no effect without --data", [*base, "--template", "chatml"]),
                (USAGE, "--eval-every has no effect without --data", [*base, "--eval-every", "5"]),
                (USAGE, "must be one of none|tokens-per-step", [*base, "--sweep", "lr"]),
                (USAGE, "--seq-len 4096 is beyond", [*base, "--seq-len", "4096"]),
                (USAGE, "less than one sequence", [*base, "--seq-len", "1024", "--tokens-per-step", "512"]),
                (USAGE, "--minimum needs one step", [*base, "--minimum", "--tokens-per-step", "auto:8k..64k"]),
                (USAGE, "no step of whole sequences (2048 tokens each) lies within", [*base, "--tokens-per-step", "auto:5k..6000"]),
                (BUDGET, "What helps: --nvme", [*base, "--tokens-per-step", "auto:8k..64k"]),
                (USAGE, "--micro-batch 64 is more than the 4", [*base, "--micro-batch", "64", "--tokens-per-step", "8192"]),
                (USAGE, "--epochs has no effect", [*base, "--epochs", "2"]),
                (USAGE, "contradict", [*base, "--steps", "2", "--tokens", "5k"]),
                (USAGE, "contradict", [*base, "--device", "cpu"]),
                (USAGE, "--pcie has no effect without --gpu", ["plan", "--model", "llama-7b", "--pcie", "25GB"]),
                (USAGE, "do not mix", ["plan", "--model", "tiny-sql", "--nvme", "5G", "--nvme", self.folder]),
                (USAGE, "which is measured", ["plan", "--model", "tiny-sql", "--nvme", self.folder, "--nvme-read", "1G"]),
                (USAGE, "--nvme-read has no effect", [*base, "--nvme-read", "6GB"]),
                (USAGE, "the size is needed", [*base, "--nvme", "/mnt/a"]),
                (USAGE, "a rate from", [*base, "--pcie", "fast"]),
                (USAGE, "a rate from", [*base, "--host-bw", "0"]),
                (USAGE, "must be a rate", [*base, "--host-bw", "-1"]),
                (USAGE, "only the rate in bf16", [*base, "--dtype", "fp32"]),
                (USAGE, "has no effect with plan", [*base, "--lr", "1e-4"]),
                (INPUT, "nowhere-7b", ["plan", "--model", "nowhere-7b", "--gpu", "h200"]),
                (IO, "/nowhere/config.json", ["plan", "--model", "/nowhere/config.json", "--gpu", "h200"]),
                (IO, "/nowhere/trace.json", [*SMALL, "--quiet", "--trace", "/nowhere/trace.json"])):
            self.fail_with(code, phrase, *words)


if __name__ == "__main__":
    program.main()
