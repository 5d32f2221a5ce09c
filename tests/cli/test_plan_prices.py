"""offload-train plan: machines for rent side by side: classes of cards, a price for each, the cheapest within a time."""

import re

import plan_test
import program

USAGE, IO = 2, 5
RUN = ["plan", "--model", "tinyllama-1.1b", "--tokens-per-step", "8k", "--tokens", "10M", "--epochs", "1"]


class Prices(plan_test.PlanTest):
    def compare(self, *words):
        return self.succeed(*RUN, *words, "--json").json()["compare"]

    def cards(self, *words):
        answer = self.succeed("plan", "--model", "tiny-test", "--seq-len", "128", "--tokens-per-step", "512", *words, "--json").json()
        return [row["card"] for row in answer["compare"]]

    def test_classes_of_cards(self):
        known = self.succeed("plan", "--gpu", "list", "--json").json()
        names = [card["name"] for card in known["cards"]]
        self.assertEqual(self.cards("--gpu", "all", "--sort", "none"), names)
        self.assertEqual(self.cards("--gpu", "rented", "--sort", "none"), [pod["name"] for pod in known["machines"]])
        self.assertEqual(set(self.cards("--gpu", "24g")), {"rtx3090", "rtx4090", "a5000", "a10", "l4"})
        self.assertEqual(set(self.cards("--gpu", "80G")), {"a100-80g", "a100-80g-sxm", "h100", "h100-pcie"})
        self.assertEqual(self.cards("--gpu", "h200,141gb,h200", "--sort", "none"), ["h200"])  # each once
        # Every card is in one class: that of the size in its name, if it has one.
        sizes = {name: size for size in (8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 94, 96, 141, 180, 192)
                 if size not in (8, 20, 192) for name in self.cards("--gpu", f"{size}g")}
        self.assertEqual(sorted(sizes), sorted(names))
        for card in known["cards"]:
            said = re.search(r"(\d+)GB", card["title"])
            self.assertEqual(sizes[card["name"]], int(said[1]) if said else sizes[card["name"]], card)
            self.assertTrue(0.9 < card["memory_bytes"] / 2**30 / sizes[card["name"]] <= 1, card)

    def test_one_price_a_card(self):
        """In a list and in a file, with the names in any spelling; classes have the named machines alone."""
        want = {"rtx4090": 0.4, "h100": 2.5, "p5.48xlarge": 90.0}
        with open(self.path("prices"), "w") as file:
            file.write("# of today\n\nRTX 4090 0.4\n  h100=2.5 # per hour\r\np5.48xlarge\t90\n")
        for price in ("RTX 4090=0.4,h100=2.5,p5.48xlarge=90", self.path("prices")):
            rows = self.compare("--gpu", "all,rented", "--price/h", price)
            self.assertLessEqual({"rtx4090", "h100", "p5.48xlarge"}, {row["card"] for row in rows})
            for row in rows:  # in nine digits; other rented machines with H100s cost as much as their cards
                per_hour = want.get(row["card"], {"a3-highgpu-1g": 2.5, "a3-highgpu-8g": 8 * 2.5}.get(row["card"]))
                self.assertAlmostEqual(row["price"], per_hour * row["run_seconds"] / 3600, delta=1e-8 * row["price"], msg=row)
                self.assertAlmostEqual(row["price_per_million_tokens"], per_hour / 3600 * 1e6 / row["tokens_per_s"],
                                       delta=1e-8 * row["price_per_million_tokens"])
            prices = [row["price"] for row in rows]
            self.assertEqual(prices, sorted(prices))
        text = self.succeed(*RUN, "--gpu", "24g", "--price/h", "rtx4090=0.4").out
        self.assertIn("\n4 machines are left out: --price/h does not name them.\n", text)
        one = self.answer(*RUN, "--gpu", "4090", "--price/h", "rtx4090=0.4,h100=2.5")["run"]
        self.assertAlmostEqual(one["price"], 0.4 * one["seconds"] / 3600, delta=1e-9)
        two = self.answer(*RUN, "--gpu", "rtx4090", "--gpus", "2", "--price/h", "rtx4090=0.4")["run"]
        self.assertAlmostEqual(two["price"], 2 * 0.4 * two["seconds"] / 3600, delta=1e-9)
        # A machine that the user names stays, without a price, at the end.
        text = self.succeed(*RUN, "--gpu", "t4,rtx4090", "--price/h", "rtx4090=0.4").out
        self.assertRegex(text, r"\nrtx4090 .*\nt4 .* -  +- +computing")
        config = self.path("run.json")
        with open(config, "w") as file:
            file.write('{"price/h": 2.5}')
        self.assertEqual(self.answer(*RUN, "--gpu", "h100", "--config", config)["run"]["price"],
                         self.answer(*RUN, "--gpu", "h100", "--price/h", "2.5")["run"]["price"])

    def test_the_cheapest_way_within_a_time(self):
        """Which card, and which way to train, for the least money in so much time? Slow ones come last, and are no answer."""
        words = ["--gpu", "rtx3060,rtx4090,h100,t4", "--methods", "--price/h", "rtx3060=0.05,t4=0.01,rtx4090=0.4,h100=2.5"]
        rows = self.compare(*words, "--within", "20m")
        self.assertEqual(len(rows), 4 * 5)
        late = [row["fits"] and not row["within"] for row in rows]
        self.assertEqual(late, sorted(late))
        self.assertIn(True, late)
        for row in rows:
            self.assertEqual(row["within"], row["run_seconds"] <= 20 * 60)
        prices = [row["price"] for row in rows if row["within"]]
        self.assertEqual(prices, sorted(prices))
        text = self.succeed(*RUN, *words, "--within", "20m").out
        self.assertIn(f"\nCheapest within 20m00s: {rows[0]['way']} on {rows[0]['card']}, ", text)
        self.assertRegex(text.splitlines()[0], r"^way +card .* RAM GiB .* run +price +per M tokens +limit$")
        self.assertRegex(text, r"\nLoRA +rtx4090 .* 64\.0 ")  # the RAM that is assumed
        self.assertTrue(text.endswith(" The RAM of cards is assumed: --ram.\n"), text)
        given = self.succeed(*RUN, *words, "--ram", "96G").out
        self.assertRegex(given, r"\nLoRA +rtx4090 .* 96\.0 ")
        self.assertNotIn("RAM of cards", given)
        fast = self.compare(*words, "--sort", "time")
        times = [row["run_seconds"] for row in fast]
        self.assertEqual(times, sorted(times))
        self.assertEqual([row["card"] for row in self.compare(*words, "--sort", "none")], sum(([card] * 5 for card in ("rtx3060", "rtx4090", "h100", "t4")), []))
        asked = self.compare("--gpu", "h100,rtx4090", "--price/h", "2")  # one price for all: as they were named
        self.assertEqual([row["card"] for row in asked], ["h100", "rtx4090"])

    def test_a_class_tells_what_does_not_fit_in_a_line(self):
        words = ["plan", "--model", "llama-7b", "--tokens-per-step", "8k", "--gpu", "24g,h200"]
        text = self.succeed(*words).out
        self.assertRegex(text, r"^llama-7b · sequences of 2048 tokens · 8,192 tokens a step\ncard ")
        self.assertIn("\nDoes not fit (more --ram or --nvme may help): rtx3090, a5000, a10, rtx4090, l4.\n", text)
        self.assertRegex(text, r"\nh200 .*\nFastest: h200\.\n")
        rows = self.succeed(*words, "--json").json()["compare"]
        self.assertEqual([row["card"] for row in rows if not row["fits"]], ["rtx3090", "a5000", "a10", "rtx4090", "l4"])
        text = self.succeed(*words[:-1], "24g").out  # nothing fits: no table
        self.assertRegex(text, r"^llama-7b .*\nDoes not fit .*\nEstimated ")

    def test_bad_prices_and_classes_are_one_line(self):
        base = [*RUN, "--gpu", "rtx4090"]
        with open(self.path("bad"), "w") as file:
            file.write("rtx4090 0.4\nh100 cheap\n")
        with open(self.path("empty"), "w") as file:
            file.write("# none\n")
        for code, phrase, words in (
                (USAGE, "--price/h must be a number from 0 to 1000000, prices such as", [*base, "--price/h", "-1"]),
                (IO, "nowhere", [*base, "--price/h", self.path("nowhere")]),
                (USAGE, "bad, line 2: the price of h100 must be a number above 0, not 'cheap'", [*base, "--price/h", self.path("bad")]),
                (USAGE, "this file has no prices", [*base, "--price/h", self.path("empty")]),
                (USAGE, "the price of rtx4090 must be a number above 0, not '0'", [*base, "--price/h", "rtx4090=0"]),
                (USAGE, "--price/h rtx4900: unknown card; did you mean rtx4090?", [*base, "--price/h", "rtx4900=1"]),
                (USAGE, "'h100' is not a card and its price", [*base, "--price/h", "rtx4090=1,h100"]),
                (USAGE, "no price of rtx4090", [*base, "--price/h", "h100=1"]),
                (USAGE, "has no effect without --gpu", [*RUN, "--device", "cpu", *program.SMALL_MACHINE, "--quiet", "--price/h", "h100=1"]),
                (USAGE, "no card is sold with that memory; there are 10g, 11g, 12g", [*RUN, "--gpu", "25g"]),
                (USAGE, "no machine of this class has a price", [*RUN, "--gpu", "24g", "--price/h", "h100=1"]),
                (USAGE, "--within orders a comparison", [*base, "--within", "1h"]),
                (USAGE, "--sort orders a comparison", [*base, "--sort", "price"]),
                (USAGE, "--within needs the length of the run", ["plan", "--model", "llama-7b", "--gpu", "all", "--within", "1h"]),
                (USAGE, "one GPU and one model", [*RUN, "--gpu", "all", "--explain"])):
            with self.subTest(words=words):
                self.fail_with(code, phrase, *words)


if __name__ == "__main__":
    program.main()
