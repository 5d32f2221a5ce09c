"""The model that several ranks leave: the bits of one rank, written once by rank 0."""

import json
import os
import re
import shutil

import program
import tiny_models
from launchers import run_commands, torchrun

WORLD = ["--device", "cpu", "--steps", "4", "--micro-batch", "1", "--deterministic", "world"]
OWN = ("log.jsonl", "run.json", "finished.json", "README.md")  # of the run: names, times, options


class Result(program.ProgramTest):
    def model(self, out, *words):
        """Trains, and returns the files of the model."""
        self.train(out, *WORLD, *words)
        names = sorted(name for name in os.listdir(self.path(out)) if name not in OWN)
        self.assertIn("model.safetensors", names)
        return {name: program.read_bytes(os.path.join(self.path(out), name)) for name in names
                if os.path.isfile(os.path.join(self.path(out), name))}

    def test_every_mode_leaves_the_model_of_one_rank(self):
        one = self.model("one")
        few = "OT_TEST_BRIEF" in os.environ and "OT_TEST_SLOW" not in os.environ  # under a sanitizer
        for ranks in (2,) if few else (2, 4):
            for mode in "none", "state", "full":
                out = f"{mode}-{ranks}"
                self.assertEqual(self.model(out, "--gpus", ranks, "--shard", mode), one, out)
                self.assertEqual([name for name in os.listdir(self.path(out)) if name.startswith("rank-")], [])

    def test_one_copy_of_the_weights_leaves_the_same_model(self):
        homes = ["--home", "weights=host,state=host", "--optimizer-engine", "stream:0.5,cpu:0.5"]
        words = ["--shard", "full", "--eval-fraction", 0.1, "--eval-every", 2, *homes]
        one, losses = self.model("apart-one"), []
        for share, ranks in ("no", 2), ("yes", 2), ("yes", 4):
            out = f"{share}-{ranks}"
            self.model(out, *words, "--gpus", ranks, "--share-weights", share)
            log = self.log(out)
            losses.append([event["loss"] for event in log if event["event"] in ("step", "eval")])
            self.assertEqual([event for event in log if event["event"] == "run"][0]["plan"]["one_copy"], share == "yes")
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(len(losses[0]), 4 + 3)
        self.assertEqual(self.model("together-4", *homes, "--gpus", 4, "--share-weights", "yes"), one)

    def test_bf16_with_state_on_the_host(self):
        words = ["--dtype", "bf16", "--home", "state=host"]
        one = self.model("bf16-one", *words)
        self.assertEqual(self.model("bf16-two", *words, "--gpus", 2), one)

    def test_frozen_weights(self):
        words = ["--train", "last:1,norms"]
        one = self.model("frozen-one", *words)
        for mode in "state", "full":
            self.assertEqual(self.model(f"frozen-{mode}", *words, "--gpus", 2, "--shard", mode), one, mode)

    def test_three_ranks_train_too(self):
        result = self.train("three", "--device", "cpu", "--steps", 4, "--micro-batch", 1, "--gpus", 3)
        self.assertIn("tcp, 3 ranks", result.err)
        steps = [event["step"] for event in self.log("three") if event["event"] == "step"]
        self.assertEqual(steps, [1, 2, 3, 4])  # one log: that of rank 0
        self.succeed("eval", self.path("three"), "--data", self.rows, "--device", "cpu", "--seq-len", 128)

    def test_fewer_micro_batches_than_ranks(self):
        words = ["--tokens-per-step", 256]  # two micro-batches
        self.assertEqual(self.model("few-4", *words, "--gpus", 4), self.model("few-1", *words))

    def test_evaluation_and_sample_at_the_end(self):
        words = ["--eval-fraction", 0.1, "--eval-every", 2, "--gpus"]
        found = []
        for ranks in 1, 2:
            self.train(f"eval-{ranks}", *WORLD, *words, ranks)
            log = self.log(f"eval-{ranks}")
            found.append(([event["loss"] for event in log if event["event"] == "eval"],
                          [event["text"] for event in log if event["event"] == "sample"]))
        self.assertEqual(len(found[0][0]), 3)
        self.assertEqual(len(found[0][1]), 1)
        self.assertEqual(found[0][1], found[1][1])
        for one, two in zip(found[0][0], found[1][0]):
            self.assertAlmostEqual(one, two, delta=1e-6)

    def test_stages_of_an_encoder_decoder(self):
        """Its layers share a slab, which ranks borrow: in training, evaluation, and for the sample at the end."""
        tiny_models.write_model(self.path("t5"), tiny_models.MODELS["t5"])
        self.train("tokens", *WORLD)
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(self.path("tokens"), name), self.path("t5"))
        words = ["--model", self.path("t5"), "--init", "files", "--eval-fraction", 0.1, "--eval-every", 2, "--device", "cpu",
                 "--steps", 4, "--micro-batch", 1]
        stages = ["--shard", "stages"]
        for one, some, more in (([], [3, *stages], []), ([], [2, *stages], ["--deterministic", "world"]),
                                ([2, "--shard", "state"], [4, *stages, "--stages", 2], [])):
            found = []
            for out, ranks in ("t5-one", one), ("t5-stages", some):
                self.train(out, *words, *more, *(["--gpus", *ranks] if ranks else []))
                log = self.log(out)
                found.append(([(event["event"], event["loss"]) for event in log if event["event"] in ("step", "eval")],
                              [event["text"] for event in log if event["event"] == "sample"],
                              program.read_bytes(self.path(f"{out}/model.safetensors"))))
            self.assertEqual(found[0], found[1])
            self.assertEqual((len(found[0][0]), len(found[0][1])), (4 + 3, 1))

    def test_replicas_of_a_pipeline(self):
        """Two pipelines of two stages have the bits of two ranks that share the state, in all that a run leaves."""
        words = ["--eval-fraction", 0.1, "--eval-every", 2, "--device", "cpu", "--steps", 4, "--micro-batch", 1]
        found = []
        for out, ranks in ("two-shares", ["--gpus", 2, "--shard", "state"]), \
                ("two-pipelines", ["--gpus", 4, "--shard", "stages", "--stages", 2]):
            self.train(out, *words, *ranks)
            log = self.log(out)
            found.append(([(event["event"], event["loss"]) for event in log if event["event"] in ("step", "eval")],
                          [event["text"] for event in log if event["event"] == "sample"],
                          program.read_bytes(self.path(f"{out}/model.safetensors"))))
        self.assertEqual(found[0], found[1])
        self.assertEqual((len(found[0][0]), len(found[0][1])), (4 + 3, 1))
        for phrase, ranks in (("--stages has no effect without --shard stages", ["--gpus", 4, "--stages", 2]),
                              ("--stages has no effect with one rank", ["--shard", "stages", "--stages", 2]),
                              ("4 ranks cannot form pipelines of 3 stages", ["--gpus", 4, "--shard", "stages", "--stages", 3])):
            result = program.run("train", *program.SMALL, "--data", self.rows, "--no-save", *words, *ranks)
            self.assertEqual(result.code, 2, result.err)
            self.assertIn(phrase, result.err)

    def test_stages_of_ranks_with_unequal_memory(self):
        """The rank with little memory gets fewer layers, with and without a forecast; the bits stay those of one rank."""
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 1024,
                  "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512,
                  "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
        self.train("tokens", *WORLD)
        with open(self.path("tokens/config.json")) as file:
            config["vocab_size"] = json.load(file)["vocab_size"]
        os.mkdir(self.path("deep"))
        with open(self.path("deep/config.json"), "w") as file:
            json.dump(config, file)
        shutil.copy(self.path("tokens/tokenizer.json"), self.path("deep"))
        words = ["train", *program.SMALL, "--model", self.path("deep"), "--data", self.rows, "--device", "cpu", "--steps", 4,
                 "--micro-batch", 1, "--eval-fraction", 0, "--out"]
        large, small = ["--gpu-mem", "164M", "--host-mem", "164M"], ["--gpu-mem", "14M", "--host-mem", "22M"]
        self.succeed(*words, self.path("whole"), "--no-forecast", *large)
        for number, more in enumerate((["--no-forecast"], [])):
            out = self.path(f"unequal-{number}")
            results = run_commands(torchrun, [[*words, out, "--shard", "stages", *more, *memory] for memory in (large, small)])
            self.assertEqual([result.code for result in results], [0, 0], [result.err for result in results])
            told = re.search(r"shard   stages of (\d+) \+ (\d+) layers: the ranks differ in speed or memory", results[0].err)
            self.assertEqual(int(told[1]) + int(told[2]), 12)
            self.assertGreaterEqual(int(told[1]), 8)
            self.assertEqual(program.read_bytes(os.path.join(out, "model.safetensors")),
                             program.read_bytes(self.path("whole/model.safetensors")))

    def test_the_run_is_recorded(self):
        self.train("recorded", *WORLD, "--gpus", 2)
        with open(os.path.join(self.path("recorded"), "run.json")) as file:
            self.assertEqual(json.load(file)["ranks"], {"ranks": 2, "hosts": 1, "shard": "full",
                                                        "comm": "tcp, 2 ranks by direct reads"})

    def test_a_finished_run_is_confirmed(self):
        words = ["train", *program.SMALL, *WORLD, "--no-forecast", "--data", self.rows, "--out", self.path("again"),
                 "--gpus", 2]
        self.succeed(*words)
        self.assertIn("already finished", self.succeed(*words).err)


program.main()
