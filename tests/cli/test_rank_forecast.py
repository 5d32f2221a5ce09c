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
        self.assertEqual(len(comm), 2)  # predicted and measured


if __name__ == "__main__":
    program.main()
