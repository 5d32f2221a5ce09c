"""offload-train train --gpus N: the ranks measure together, choose one plan, and keep the bits."""

import json
import re

import program


class RankForecast(program.ProgramTest):
    def setUp(self):
        super().setUp()
        self.rows = self.path("rows.jsonl")
        with open(self.rows, "w", encoding="utf-8") as file:
            for i in range(64):
                file.write(json.dumps({"text": f"SELECT a{i % 7}, b{i % 5} FROM t{i} WHERE c = {i}"}) + "\n")

    def train(self, ranks, *words):
        return self.succeed("--model", "tiny-test", "--init", "random", "--data", self.rows, "--device", "cpu", "--no-save",
                            "--steps", "4", "--seq-len", "64", "--tokens-per-step", "512", "--micro-batch", "1", "--threads", "1",
                            "--eval-fraction", "0", "--gpu-mem", "32M", "--host-mem", "32M", "--gpus", str(ranks), *words,
                            env={"XDG_CACHE_HOME": self.path("cache")})

    def loss(self, result):
        return re.findall(r"step 4/4 loss ([\d.]+)", result.err)

    def test_a_forecast_keeps_the_bits(self):
        plain = self.train(2, "--no-forecast")
        first = self.train(2)
        self.assertRegex(first.err, r"expect  .* a step, [\d,]+ tok/s .* the fastest of \d+ plans")
        self.assertRegex(first.err, r"shard   \w+ · \w+ would take [\d.]+ \w+ a step")
        self.assertEqual(len(self.loss(plain)), 1, plain.err)
        for words in ([], ["--shard", "none"], ["--shard", "state"], ["--shard", "full"]):
            self.assertEqual(self.loss(self.train(2, *words)), self.loss(plain), words)

    def test_the_trace_has_the_comm_lane(self):
        path = self.path("trace.json")
        result = self.train(2, "--shard", "full", "--explain", "--trace", path)
        self.assertRegex(result.err, r"lanes .* comm ")
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        comm = {e["pid"] for e in events if e.get("ph") == "X" and lanes.get((e["pid"], e["tid"])) == "comm"}
        self.assertEqual(len(comm), 3)  # measured on each rank, and predicted
        names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
        self.assertEqual(names, {1: "rank 0, measured", 2: "rank 0, predicted", 3: "rank 1, measured"})
        # Ranks of one host have one clock. A step ends on no rank before it began on the other.
        span = {(e["pid"], e["name"]): (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "step"}
        for step in ("step 2", "step 3"):
            self.assertTrue(span[1, step][0] < span[3, step][1] and span[3, step][0] < span[1, step][1], span)


if __name__ == "__main__":
    program.main()
