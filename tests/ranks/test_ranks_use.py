"""What several ranks make of a model together, with eval and generate: the bits of one rank, printed once by rank 0."""

import json
import os
import pty
import shutil
import signal
import subprocess
import time

import program
import tiny_models
from launchers import run_commands, torchrun

USAGE, STOPPED_AT_ONCE, COMM_FAILED = 2, 8, 11
DEVICE = ["--device", "cpu", "--threads", "1"]
TRAINED = [*DEVICE, "--steps", "40", "--lr", "0.01"]
WAYS = {"auto": "none: each rank has all weights on its device", "none": "none: each rank has all weights on its device",
        "state": "state: each rank has all weights on its device", "stages": "stages: each rank has its layers on its device",
        "full": "full: the ranks stream weights from one copy in RAM",
        "full --share-weights no": "full: each rank has a part of the weights, and gathers the others"}


class Use(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls("test_loss").train("m", *TRAINED)

    def words(self, command, model="m", *words):
        data = {"eval": ["--data", self.rows, "--seq-len", "128", "--micro-batch", "1", "--json"],
                "generate": ["--max-new-tokens", "24"]}[command]
        return [command, self.path(model), *data, *DEVICE, *words]

    def compare(self, command, model, ways, *words, **more):
        """Each way says what one rank says. Returns that."""
        one = self.succeed(*self.words(command, model, *words), **more).out
        for way, ranks in ways:
            result = self.succeed(*self.words(command, model, *words, "--gpus", ranks, "--shard", *way.split()), **more)
            self.assertEqual(result.out, one, (way, ranks))
            self.assertIn(f"shard   {WAYS[way]}\n", result.err)
        return one

    def test_loss(self):
        self.compare("eval", "m", [(way, 2) for way in WAYS if way != "auto"] + [("auto", 3)])

    def test_weights_that_do_not_fit_the_device(self):
        """auto: generation takes stages if they fit, because its passes compute little for the weights that they read."""
        one = self.succeed(*self.words("eval", "m")).json()
        for phrase, more in (("none: each rank streams all weights", ["--gpu-mem", "5000K"]),
                             ("stages: each rank has its layers", ["--gpu-mem", "5200K", "--generate", 3])):
            result = self.succeed(*self.words("eval", "m", "--gpus", 2, *more))
            self.assertEqual({**result.json(), **one}, result.json())
            self.assertIn(f"shard   {phrase}", result.err)

    def test_adapters_and_pairs(self):
        self.train("lora", "--model", self.path("m"), "--init", "files", "--lora", "r=4", *TRAINED)
        self.compare("eval", "lora", [("full --share-weights no", 2)])
        self.compare("generate", "lora", [("stages", 2)], "-p", "abc")
        tiny_models.write_model(self.path("t5"), tiny_models.MODELS["t5"])
        for name in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(os.path.join(self.path("m"), name), self.path("t5"))
        self.compare("eval", "t5", [("none", 2)])
        self.compare("generate", "t5", [("stages", 2)], stdin=b"abc\nde\n")

    def test_judged_answers(self):
        """All ranks answer; rank 0 judges, and writes the failures."""
        files = []
        for ranks, way in (1, "auto"), (2, "none"), (2, "stages"), (3, "full"), (2, "full --share-weights no"):
            words = ["--generate", "7", "--failures", self.path("wrong.jsonl"), "--gpus", ranks, "--shard", *way.split()]
            found = self.succeed(*self.words("eval", "m", *words)).json()
            del found["generate_seconds"]
            files.append((found, program.read_bytes(self.path("wrong.jsonl"))))
            self.assertEqual(files[-1], files[0], (ranks, way))
        self.assertEqual(files[0][0]["answered"], 7)
        self.assertGreater(len(files[0][1]), 0)
        self.fail_with(5, "cannot write there", *self.words("eval", "m", "--generate", 2, "--failures", "/nowhere/x",
                                                            "--gpus", 2, "--quiet"))

    def test_texts(self):
        """Texts grow side by side, and on several ranks; each is the text that its prompt gets alone."""
        prompts = ["x" * 250]  # has room for 5 tokens, so that rank 0 is done before the others
        prompts += [f"List the {'name of every singer' * (i % 3)} {i}"[:6 + 9 * i] for i in range(1, 5)]
        alone = [self.succeed(*self.words("generate", "m", "-p", prompt)).out for prompt in prompts]
        ways = [("none", 3), ("stages", 2), ("full --share-weights no", 2)]
        lines = "\n".join(prompts).encode()
        self.assertEqual(self.compare("generate", "m", ways, stdin=lines), "".join(alone))
        sampled = ["--temperature", "1", "--top-p", "0.9", "--seed", "5"]
        self.assertNotEqual(self.compare("generate", "m", ways[:2], *sampled, stdin=lines), "".join(alone))
        found = []
        for ranks in 1, 2:
            events = self.succeed(*self.words("generate", "m", "--json", "--gpus", ranks), stdin=lines).events()
            found.append([{key: event[key] for key in event if key != "seconds"} for event in events])
        self.assertEqual(found[1], found[0])
        self.assertEqual([event["prompt"] for event in found[0]], prompts)
        self.assertEqual([event["text"] + "\n" for event in found[0]], alone)

    def test_more_prompts_than_grow_together(self):
        """64 texts grow together, and 1024 are in memory."""
        lines = "".join(f"{i}\n" for i in range(1030)).encode()
        words = self.words("generate", "m", "--temperature", "1", "--max-new-tokens", "2", "--json")
        texts = [[(event["prompt"], event["text"]) for event in self.succeed(*words, "--gpus", ranks, stdin=lines).events()]
                 for ranks in (1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual([prompt for prompt, text in texts[0]], [str(i) for i in range(1030)])

    def test_a_conversation(self):
        """Rank 0 reads the turns. A pause that is longer than --comm-timeout ends nothing."""
        words = self.words("generate", "m", "--chat", "--template", "llama-2")
        one = self.succeed(*words, stdin=b"abc\n/reset\ndef\n").out
        self.assertEqual(len(one.splitlines()), 2)
        for way in "none", "stages":
            more = ["--gpus", "2", "--shard", way, "--comm-timeout", "2s"]
            talk = subprocess.Popen([program.PROGRAM, *words, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            talk.stdin.write(b"abc\n/reset\n")
            talk.stdin.flush()
            time.sleep(3)
            out, err = talk.communicate(b"def\n", timeout=60)
            self.assertEqual((talk.returncode, out.decode()), (0, one), err)
        result = program.run(*words, "--gpus", "2", "--quiet", stdin=b"abc\n/help\n")
        self.assertEqual((result.code, result.out), (3, one.splitlines(True)[0]))
        self.assertEqual(result.err.strip(), "error: stdin: unknown command '/help'; there are /reset and /exit")

    def test_lines_at_a_terminal(self):
        """Each line gets its text at once, or its error."""
        lines, found = [b"abc", b"", b"de"], []
        for ranks in 1, 2:
            terminal, inside = pty.openpty()
            words = self.words("generate", "m", "--json", "--no-special", "--gpus", ranks)
            with subprocess.Popen([program.PROGRAM, *map(str, words)], stdin=inside, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as run:
                os.close(inside)
                os.write(terminal, b"\n".join(lines) + b"\n\x04")
                out, err = run.communicate(timeout=60)
            os.close(terminal)
            self.assertEqual(run.returncode, 0, err)
            self.assertIn(b"enter one text on each line", err)
            self.assertIn(b"error: stdin:2: the prompt has no token", err)
            events = [json.loads(line) for line in out.splitlines()]
            found.append([(event["prompt"], event["text"], event["prompt_tokens"]) for event in events])
        self.assertEqual(found[1], found[0])
        self.assertEqual([(prompt, n) for prompt, text, n in found[0]], [("abc", 3), ("de", 2)])

    def test_the_reader_of_the_texts_ends(self):
        words = self.words("generate", "m", "--gpus", "2", "--quiet", "--max-new-tokens", "200")
        with subprocess.Popen([program.PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            run.stdout.close()
            run.stdin.write(b"a\n" * 20)
            run.stdin.close()
            self.assertEqual((run.stderr.read(), run.wait(60)), (b"", 128 + signal.SIGPIPE))
        with open("/dev/full", "wb") as full:
            done = subprocess.run([program.PROGRAM, *words], input=b"a\n" * 20, stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (5, b"error: stdout: cannot write the text\n"))

    def test_more_rows_than_a_schedule_has_room_for(self):
        """A pass has one micro-batch, so an evaluation may be longer than any step."""
        rows = program.write_rows(self.path("many.jsonl"), [{"text": "a b c"}] * 4200)
        words = ["eval", self.path("m"), "--data", rows, "--seq-len", "8", "--micro-batch", "1", *DEVICE, "--json"]
        self.assertEqual(self.succeed(*words).json()["rows"], 4200)

    def test_ranks_that_differ(self):
        self.train("other", "--seed", "1", *TRAINED)
        few = program.write_rows(self.path("few.jsonl"), program.sql_rows(59))
        same = self.words("eval", "m")
        for phrase, other in (("the weights of --model differ between ranks", self.words("eval", "other")),
                              ("the evaluation data differs: rank 0 has 60 rows", [few if w == self.rows else w for w in same]),
                              ("--micro-batch differs: rank 0 has 1, rank 1 has 2", [*same, "--micro-batch", 2]),
                              ("--shard differs: rank 0 has auto, rank 1 has full", [*same, "--shard", "full"])):
            for result in run_commands(torchrun, [same, other]):
                self.assertEqual((result.code, result.out), (USAGE, ""), result.err)
                self.assertIn(phrase, result.err.splitlines()[-1])
        same = self.words("generate", "m", "-p", "abc", "--temperature", "1")
        for phrase, other in (("the weights of --model differ", self.words("generate", "other", *same[-4:])),
                              ("--top-p differs: rank 0 has 1.0, rank 1 has 0.5",
                               [*same, "--top-p", "0.5"])):
            for result in run_commands(torchrun, [same, other]):
                self.assertEqual((result.code, result.out), (USAGE, ""), result.err)
                self.assertIn(phrase, result.err.splitlines()[-1])

    def test_refusals(self):
        for phrase, words in (("--gpus '0' is neither all nor a number", ["--gpus", 0]),
                              ("--share-weights yes has no effect with one rank", ["--share-weights", "yes"]),
                              ("contradict each other; use --shard full", ["--share-weights", "yes", "--shard", "none"]),
                              ("--node-rank has no effect without --nodes", ["--node-rank", 1]),
                              ("2 layers, too few for a stage on each of 3", ["--gpus", 3, "--shard", "stages", "--quiet"])):
            self.fail_with(USAGE, phrase, *self.words("eval", "m", *words))
            self.fail_with(USAGE, phrase, *self.words("generate", "m", "-p", "abc", *words))
        self.fail_with(3, "stdin:2: the prompt has no token", *self.words("generate", "m", "--no-special"), stdin=b"a\n\n")
        self.fail_with(3, "stdin: no prompt", *self.words("generate", "m", "--gpus", 2, "--quiet"))

    def test_a_rank_ends_early(self):
        rows = program.write_rows(self.path("long.jsonl"), program.sql_rows(20000))
        evaluation = ["eval", self.path("m"), "--data", rows, "--seq-len", "128", *DEVICE, "--gpus", "2"]
        text = self.words("generate", "m", "--chat", "--template", "llama-2", "--gpus", "2")  # it waits for turns
        for words, victim, number, code, phrase in (
                (evaluation, 1, signal.SIGKILL, COMM_FAILED, "rank 1 .* is lost: "),
                (evaluation, 0, signal.SIGKILL, COMM_FAILED, "rank 0 was killed by signal 9"),
                (evaluation, None, signal.SIGTERM, STOPPED_AT_ONCE, "stopped before the evaluation was done"),
                (text, 1, signal.SIGKILL, COMM_FAILED, "rank 1 .* is lost: "),
                (text, None, signal.SIGTERM, STOPPED_AT_ONCE, "stopped before all text was generated")):
            with subprocess.Popen([program.PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as parent:
                for line in parent.stderr:
                    if line.startswith(b"shard "):
                        break
                with open(f"/proc/{parent.pid}/task/{parent.pid}/children") as file:
                    children = [int(word) for word in file.read().split()]
                os.kill(parent.pid if victim is None else children[victim], number)
                begin = time.monotonic()
                self.assertEqual(parent.wait(60), code)
                self.assertLess(time.monotonic() - begin, 10)
                self.assertEqual(parent.stdout.read(), b"")
                self.assertRegex(parent.stderr.read().decode(), f"error: {phrase}")


program.main()
