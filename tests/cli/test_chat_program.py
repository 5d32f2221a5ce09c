"""The built program, end to end, on conversations: which chat template a run uses, that the run records it, and that
later commands use it too. test_chat_golden.c tests the rendered text itself."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess

import program
from program import SMALL, run, sql_rows, write_rows

BOS = "{{ '' + bos_token | default('', true) + '' }}"  # in front of a saved template if the tokenizer adds BOS
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/chat")


def jinja(name):
    with open(os.path.join(GOLDEN, name + ".jinja")) as file:
        return file.read()


def chats(n):
    return [{"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]}
            for row in sql_rows(n)]


class Chat(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.chats = write_rows(cls.path("chats.jsonl"), chats(24))
        run("train", *SMALL, "--data", cls.rows, "--out", cls.path("base"), "--steps", "1", "--no-forecast")

    def model(self, name, template, file="tokenizer_config.json"):
        """Makes a copy of a small model, with a chat template."""
        path = self.path(name)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path("base"), path)
        os.remove(os.path.join(path, "run.json"))
        target = os.path.join(path, file)
        if file.endswith(".jinja"):
            with open(target, "w") as out:
                out.write(template)
            return path
        with open(os.path.join(path, "tokenizer_config.json")) as source:
            config = json.load(source) if file == "tokenizer_config.json" else {}
        config["chat_template"] = template
        with open(target, "w") as out:
            json.dump(config, out)
        return path

    def fit(self, model, out, *words, rows=None, steps=2):
        return self.succeed("train", "--model", model, "--data", rows or self.chats, "--out", self.path(out), "--seq-len",
                            "256", "--tokens-per-step", "512", "--threads", "1", "--steps", steps, "--no-forecast", *words)

    def first_chat(self):
        with open(self.chats) as file:
            return json.loads(file.readline())

    def recorded(self, out):
        with open(os.path.join(self.path(out), "run.json")) as file:
            return json.load(file).get("template")

    # ---- which template is used ----

    def test_the_models_own_template_is_used(self):
        for number, (name, file, template) in enumerate([
                ("qwen2.5", "tokenizer_config.json", jinja("qwen2.5")),
                ("llama-2", "chat_template.jinja", jinja("llama-2") + "\n"),
                ("llama-3.1", "chat_template.json", jinja("llama-3.1")),
                ("qwen3", "tokenizer_config.json", [{"name": "tool_use", "template": "x"},
                                                    {"name": "default", "template": jinja("qwen3")}])]):
            model = self.model(f"own{number}", template, file)
            result = self.fit(model, f"fit{number}", "--show-sample")
            self.assertIn(f"template {name}, ", result.err)
            self.assertRegex(result.err, rf"data .*\(messages, {re.escape(name)}\)")
            self.assertNotRegex(result.err, "warning: .*template")
            self.assertEqual(self.recorded(f"fit{number}"), name)
        self.assertIn("<think>", result.err)

    def test_the_jinja_file_wins_over_the_config(self):
        model = self.model("two", jinja("zephyr"))
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write(jinja("mistral-v3"))
        self.assertIn("template mistral-v3, ", self.fit(model, "two-fit", "--show-sample").err)

    def test_any_template_of_the_model_is_rendered(self):
        own = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% endfor %}" \
              "{% if add_generation_prompt %}[assistant]{% endif %}"
        model = self.model("unknown", own)
        result = self.fit(model, "unknown-fit", "--show-sample")
        self.assertIn("template the model's own, ", result.err)
        question, answer = (self.first_chat()["messages"][i]["content"] for i in (0, 1))
        self.assertIn(f"<|bos|>[user]{question}<|eos|>\n[assistant][{answer}<|eos|>]", result.err)
        self.assertRegex(result.err, r"data .*\(messages, the model's own\)")
        self.assertIsNone(self.recorded("unknown-fit"))
        # The trained model has the template too, and later commands use it.
        out = self.path("unknown-fit")
        with open(os.path.join(out, "tokenizer_config.json")) as file:
            self.assertEqual(json.load(file)["chat_template"], own)
        losses = [self.succeed("eval", out, "--data", self.chats, "--json", "--seq-len", "256", *words).json()["loss"]
                  for words in ([], [], ["--template", "zephyr"])]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])
        row = {"messages": [{"role": "user", "content": "abc"}]}
        done = self.succeed("generate", out, "--row", "-p", json.dumps(row), "--json", "--max-new-tokens", "1")
        self.assertEqual(done.json()["prompt_tokens"], len("[user]abc") + len("\n[assistant]") + 2)

    def test_a_template_with_an_unsupported_tag_is_refused_by_name(self):
        model = self.model("outside", "{# one #}\n{% include 'other' %}")
        words = ["train", "--model", model, "--data", self.chats, "--out", self.path("refused"), "--no-forecast"]
        self.fail_with(2, "line 2: {% include %} is not supported in chat templates", *words)
        self.assertFalse(os.path.exists(self.path("refused")))
        result = self.fit(model, "said", "--template", "zephyr")
        self.assertNotIn("warning", result.err)

    def test_tools_are_rendered_or_refused(self):
        rows = [{"tools": [{"name": "now"}], **row} for row in chats(8)]
        path = write_rows(self.path("tools.jsonl"), rows)
        with_tools = self.model("tools", "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
                                         "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
        self.assertIn('[{"name": "now"}][user]', self.fit(with_tools, "tools-fit", "--show-sample", rows=path).err)
        words = ["--data", path, "--out", self.path("none"), "--no-forecast"]
        self.fail_with(3, "the built-in chat template chatml has no place for key 'tools'", "train", "--model", with_tools,
                       "--template", "chatml", *words)
        self.fail_with(3, "the model's chat template has no place for tools", "train", "--model",
                       self.model("no-tools", "{% for m in messages %}{{ m.content }}{% endfor %}"), *words)

    def test_what_the_template_leaves_out_is_said(self):
        rows = [{"system": "Be brief.", **row} for row in chats(8)]
        model = self.model("silent", "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
                                     "{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
        result = self.fit(model, "silent-fit", rows=write_rows(self.path("system.jsonl"), rows))
        self.assertIn("note    in 8 rows the chat template leaves out a text of a turn, or changes it, the first on line 1", result.err)

    def saved_template(self, out):
        with open(os.path.join(self.path(out), "chat_template.jinja")) as file:
            return file.read()

    def test_the_result_has_the_template_of_its_rows(self):
        """Its tokenizer adds BOS, so the text writes it too. Another template than the model's own replaces that."""
        model = self.model("own-zephyr", jinja("zephyr"))
        out = self.fit(model, "replaced", "--template", "chatml")
        self.assertIn("the result has it in place of the model's own", out.err)
        text = self.saved_template("replaced")
        self.assertIn("<|im_start|>", text)
        self.assertTrue(text.index("bos_token") < text.index("{% for"), text)
        again = self.fit(self.path("replaced"), "again", "--template", "chatml")
        self.assertNotIn("in place of", again.err)
        self.assertEqual(self.saved_template("again"), text)
        kept = self.fit(model, "kept")
        self.assertNotIn("in place of", kept.err)
        self.assertIn("the tokenizer puts BOS in front of rows, which the model's chat template does not write", kept.err)
        self.assertFalse(os.path.exists(os.path.join(self.path("kept"), "chat_template.jinja")))

    def test_marks_that_are_no_tokens_are_said(self):
        out = self.fit(self.path("base"), "spelled", "--template", "chatml")
        self.assertIn("ends turns with <|im_end|>, which is no token of this tokenizer", out.err)
        out = self.fit(self.path("base"), "spelled-not", "--template", "zephyr")
        self.assertNotIn("no token of this tokenizer", out.err)

    def test_a_template_with_the_name_of_its_rows_is_named_once(self):
        rows = write_rows(self.path("alpaca.jsonl"), [{"instruction": f"i {i}", "output": "o"} for i in range(8)])
        self.assertIn("8 rows (alpaca) · ", self.fit(self.path("base"), "alpaca", rows=rows).err)

    def test_a_model_without_a_template_needs_one(self):
        self.fail_with(2, "the model has no chat template; choose one with --template", "train", *SMALL, "--data",
                       self.chats, "--out", self.path("none"), "--no-forecast")

    # ---- recorded, and read back ----

    def test_generate_and_eval_use_the_runs_template(self):
        model = self.model("plain", None)
        self.fit(model, "sql", "--template", "chatml", rows=self.rows)
        losses = [self.succeed("eval", self.path("sql"), "--data", self.rows, "--json", "--seq-len", "256", *words).json()
                  for words in ([], ["--template", "chatml"], ["--template", "zephyr"])]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0]["loss"], losses[2]["loss"])
        row = {key: value for key, value in sql_rows(1)[0].items() if key != "answer"}
        tokens = [self.succeed("generate", self.path("sql"), "--row", "-p", json.dumps(row), "--json", "--max-new-tokens",
                               "1", *words).json()["prompt_tokens"] for words in ([], ["--template", "chatml"],
                                                                                  ["--template", "zephyr"])]
        self.assertEqual(tokens[0], tokens[1])
        self.assertNotEqual(tokens[0], tokens[2])
        # A text row has no turns, whatever data the run was trained on.
        text = write_rows(self.path("text.jsonl"), [{"text": "abc"}] * 4)
        self.succeed("eval", self.path("sql"), "--data", text, "--seq-len", "256")

    def test_generate_and_eval_use_the_runs_prompt_format(self):
        form = "Q {question} C {context} A "
        self.fit(self.model("plain", None), "form", "--prompt-format", form, rows=self.rows)
        losses = [self.succeed("eval", self.path("form"), "--data", self.rows, "--json", "--seq-len", "256", *words).json()
                  for words in ([], ["--prompt-format", form], ["--template", "zephyr"])]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0]["loss"], losses[2]["loss"])

    def test_an_empty_answer_is_none(self):
        out = self.fit(self.model("plain", None), "empty", "--template", "chatml", rows=self.rows) and self.path("empty")
        full = sql_rows(1)[0]
        chat = chats(1)[0]["messages"]
        same = [[{**full, "answer": ""}, {key: full[key] for key in ("question", "context")}, {**full, "answer": " \n"}],
                [{"instruction": "x", "output": ""}, {"instruction": "x"}],
                [{"prompt": "x", "response": ""}, {"prompt": "x", "completion": ""}, {"prompt": "x"}],
                [{"messages": [chat[0], {"role": "assistant", "content": ""}]}, {"messages": chat[:1]}]]
        for rows in same:
            tokens = [self.succeed("generate", out, "--row", "-p", json.dumps(row), "--json", "--max-new-tokens",
                                   "1").json()["prompt_tokens"] for row in rows]
            self.assertEqual(tokens, tokens[:1] * len(rows), rows)
            self.assertGreater(tokens[0], 4)

    def test_the_next_line_can_be_typed(self):
        model = self.model("plain", None)
        for number, (rows, words) in enumerate([(self.rows, []), (self.chats, ["--template", "zephyr"]),
                                                (self.rows, ["--prompt-format", "it's {question}: "])]):
            result = self.fit(model, f"next{number}", *words, rows=rows)
            command = re.search(r"^next    offload-train (generate .* --row -p '.*') · ", result.err, re.M)
            self.assertTrue(command, result.err)
            done = os.popen(f"'{program.PROGRAM}' {command[1]} --max-new-tokens 1 2>&1; echo code $?")
            self.assertTrue(done.read().endswith("code 0\n"))
            done.close()
        text = write_rows(self.path("text.jsonl"), [{"text": "abcdef"}] * 8)
        self.assertIn('-p "..." · ', self.fit(model, "next-text", rows=text).err)

    # ---- a conversation at the terminal ----

    def talker(self):
        """A trained model whose template shows the whole conversation."""
        own = "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[a]" \
              "{% endif %}"
        if not os.path.exists(self.path("talker")):
            self.fit(self.model("talk", own), "talker", steps=4)
        return self.path("talker")

    def tokens(self, *turns):
        row = {"messages": [{"role": role, "content": text} for role, text in turns]}
        return self.succeed("generate", self.talker(), "--row", "-p", json.dumps(row), "--json", "--max-new-tokens", "4").json()

    def chat(self, text, *words):
        return self.succeed("generate", self.talker(), "--chat", "--max-new-tokens", "4", *words, stdin=text.encode())

    def test_a_conversation_is_remembered(self):
        one = self.tokens(("user", "abc"))
        two = self.tokens(("user", "abc"), ("assistant", one["text"]), ("user", "def"))
        self.assertEqual(two["prompt_tokens"], one["prompt_tokens"] + len(one["text"].encode()) + 1 + len("[u]def") + 1 + len("[a]"))
        self.assertEqual(self.chat("abc\ndef\n").out, one["text"] + "\n" + two["text"] + "\n")
        self.assertEqual(self.chat("abc\n\ndef").out, one["text"] + "\n" + two["text"] + "\n")
        self.assertEqual(self.chat("abc\n/reset\nabc\n/exit\ndef\n").out, 2 * (one["text"] + "\n"))
        told = self.tokens(("system", "Be brief."), ("user", "abc"))
        self.assertEqual(self.chat("abc\n", "--system", "Be brief.").out, told["text"] + "\n")
        # A script gets the error of a turn as an exit code, and no answer to the turns after it.
        asked = ["generate", self.talker(), "--chat", "--max-new-tokens", "4"]
        self.fail_with(3, "unknown command '/help'", *asked, stdin=b"/help\nabc\n")
        result = run(*asked, stdin=b"abc\n" + b"x" * 100000 + b"\nabc\n")
        self.assertEqual((result.code, result.out), (3, one["text"] + "\n"), result.err)
        self.assertEqual(result.err.count("error: "), 1, result.err)
        self.assertIn("the answer ends after 4 tokens", self.chat("abc\n").err)

    def test_a_conversation_needs_a_template(self):
        model = self.model("plain", None)
        self.fail_with(2, "no chat template; choose one with --template", "generate", model, "--chat", stdin=b"abc\n")
        self.succeed("generate", model, "--chat", "--template", "chatml", "--max-new-tokens", "2", stdin=b"abc\n")
        self.fail_with(3, "does not allow a system turn", "generate", model, "--chat",
                       "--template", "mistral-v0", "--system", "x", stdin=b"abc\n")
        for words, phrase in [(["--chat", "--row"], "contradict"), (["--chat", "-p", "x"], "contradict"),
                              (["--system", "x"], "--system has no effect without --chat"), (["--chat", "--json"], "contradict")]:
            self.fail_with(2, phrase, "generate", model, *words)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        for ranks in [], ["--gpus", "2", "--shard", "none"], ["--gpus", "2", "--shard", "stages"]:
            with self.subTest(ranks):
                self.interrupt("--device", "cpu", *ranks)

    def interrupt(self, *words):
        terminal, inside = pty.openpty()
        words = [program.PROGRAM, "generate", self.talker(), "--chat", "--max-new-tokens", "100000", "--temperature", "5", *words]
        running = subprocess.Popen(words, stdin=inside, stdout=subprocess.PIPE, stderr=inside, start_new_session=True)
        os.close(inside)
        seen = b""

        def wait_for(*texts):
            """Reads the terminal up to one of the texts, and returns it."""
            nonlocal seen
            while not any(text in seen for text in texts):
                self.assertTrue(select.select([terminal], [], [], 60)[0], seen)
                seen += os.read(terminal, 4096)
            place, found = min((seen.find(text), text) for text in texts if text in seen)
            seen = seen[place + len(found):]
            return found
        wait_for(b"> ")
        for _ in range(50):  # an answer may end by itself before the signal comes
            os.write(terminal, b"abc\n")
            self.assertTrue(os.read(running.stdout.fileno(), 1))
            running.send_signal(signal.SIGINT)
            said = wait_for(b"stopped; what was written stays", b"Ctrl-C again, or Ctrl-D, ends")
            if said.startswith(b"stopped"):
                break
            wait_for(b"> ")
            os.write(terminal, b"/reset\n")
            wait_for(b"> ")
        self.assertTrue(said.startswith(b"stopped"))
        wait_for(b"> ")
        running.send_signal(signal.SIGINT)
        wait_for(b"Ctrl-C again, or Ctrl-D, ends")
        wait_for(b"> ")
        os.write(terminal, b"/reset\n")
        wait_for(b"> ")
        running.send_signal(signal.SIGINT)
        wait_for(b"Ctrl-C again, or Ctrl-D, ends")
        wait_for(b"> ")
        running.send_signal(signal.SIGINT)
        self.assertEqual(running.wait(60), 0)
        running.stdout.close()
        os.close(terminal)

    # ---- files for servers ----

    def test_the_output_says_how_it_was_trained(self):
        plain = self.model("plain", None)
        for number, (words, name) in enumerate([(["--template", "mistral-v3"], "mistral-v3"), ([], None)]):
            out = f"serve{number}"
            self.fit(plain, out, *words, rows=self.rows)
            path = os.path.join(self.path(out), "chat_template.jinja")
            if not name:
                self.assertFalse(os.path.exists(path))
                continue
            with open(path) as file:
                self.assertEqual(file.read(), jinja(name))
            self.assertIn(f"template {name}, ", self.fit(self.path(out), out + "-more", "--show-sample").err)
        own = self.model("has-own", jinja("zephyr"))
        self.fit(own, "serve-own", "--template", "chatml")
        self.assertEqual(self.saved_template("serve-own").replace(BOS, ""), jinja("chatml"))

    def test_a_run_goes_on_and_is_exported_with_its_template(self):
        plain = self.model("plain", None)
        self.fit(plain, "stop", "--template", "zephyr", "--save-every", "1", "--keep", "9")
        folder = os.path.join(self.path("stop"), "checkpoints")
        checkpoint = next(name for name in sorted(os.listdir(folder)) if os.path.isdir(os.path.join(folder, name)))
        self.succeed("export", os.path.join(folder, checkpoint), "--out", self.path("early"))
        self.assertEqual(self.saved_template("early").replace(BOS, ""), jinja("zephyr"))
        own = self.model("has-own", jinja("qwen2"))
        text = write_rows(self.path("text.jsonl"), [{"text": "abcdef"}] * 8)
        words = ["--eval-data", text, "--save-every", "1", "--schedule", "constant"]
        self.fit(own, "chosen", *words)
        result = self.fit(own, "chosen", *words, "--resume", self.path("chosen/checkpoints"), steps=3)
        self.assertIn("3 of 3 steps", result.err)


if __name__ == "__main__":
    program.main()
