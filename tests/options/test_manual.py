"""The man page, the shell completions, the help topics and README agree with the program. The second argument is the
folder of the generated files.
"""

import os
import re
import shlex
import subprocess
import unittest

import program
from program import run, sql_rows, write_rows

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
USAGE, DEVICE = 2, 6
SHOWN = r" *(?:scripts/demo-data && )?(?:build/)?"  # what stands before a command that is shown
VARIABLE = re.compile(r'"([A-Z][A-Z0-9_]{3,})"')


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def commands():
    return re.findall(r"^  \[?([\w-]+)", run("help").out.split("\nCommands:\n")[1], re.MULTILINE)


def topics():
    return re.findall(r"^  (\S+)", run("help").out.split("\nCommands:\n")[0].split("\nTopics:\n")[1], re.MULTILINE)


def options(command):
    return re.findall(r"^  (?:-\w, |    )--(\S+)", run(command, "--help", "all").out, re.MULTILINE)


def plain(roff):
    """The man page's source without its escapes."""
    for escape, character in {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ha": "^", r"\(ti": "~", r"\e": "\\", r"\&": ""}.items():
        roff = roff.replace(escape, character)
    return re.sub(r"\\f[BIR]", "", roff)


class ManPage(program.ProgramTest):
    def test_it_has_every_command_option_and_topic(self):
        page = plain(read(program.SHARED, "offload-train.1"))
        known = set(commands())
        found = set()
        table = page.split("\n.SH OPTIONS\n")[1].split("\n.SH ")[0]
        for option, entry in re.findall(r"(?m)^\.TP\n(?:-\w, )?--(\S+).*\n((?:[^.\n].*\n)+)", table):
            owners = re.search(r"\(((?:[\w-]+,\s)*[\w-]+)\)\n$", entry)
            names = set(re.split(r",\s", owners.group(1))) if owners else set()
            found |= {(command, option) for command in (names if names <= known and names else known)}
        self.assertEqual(found, {(command, option) for command in known for option in options(command)})
        for command in known:
            self.assertRegex(page, rf"(?m)^\.B \[?{command}\b")
        text = " ".join(page.split())
        for topic in topics():
            title, *lines = run("help", topic).out.splitlines()
            self.assertIn(f'\n.SH "{title.upper()}"\n', page)
            for line in lines:
                for part in re.split(r" {2,}", line.strip()):
                    self.assertIn(" ".join(part.split()), text)

    def test_it_says_who_has_an_option(self):
        page = " ".join(plain(read(program.SHARED, "offload-train.1")).split())
        self.assertRegex(page, r"\.TP --price/h MONEY\|CARD=MONEY,\.\.\|FILE .{20,300}\(plan\) \.")
        self.assertRegex(page, r"\.TP --keep N .{20,300}\(default: 1\) \(train\) \.")
        self.assertRegex(page, r"\.TP -h, --help \[all\|TOPIC\] Print the options that most runs need")


class Completion(program.ProgramTest):
    def complete(self, *words):
        """The words that bash offers to complete the last word."""
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _offload_train; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "--norc", "-c", script, "bash", os.path.join(program.SHARED, "offload-train"),
                               "offload-train", *words], capture_output=True, text=True, cwd=self.folder, check=True)
        self.assertEqual(done.stderr, "")
        return sorted(done.stdout.split())

    def test_commands_and_topics(self):
        self.assertEqual(self.complete(""), sorted([*commands(), "help"]))
        self.assertEqual(self.complete("ex"), ["export"])
        self.assertEqual(self.complete("help", ""), sorted(commands() + topics()))

    def test_the_options_of_each_command(self):
        for command in commands():
            self.assertEqual(self.complete(command, "--"), sorted("--" + name for name in options(command)))
        self.assertEqual(self.complete("--gpu"), ["--gpu-mem", "--gpus"], "without a command: those of train")

    def test_values(self):
        self.assertEqual(self.complete("train", "--dtype", ""), ["auto", "bf16", "fp16", "fp32"])
        self.assertEqual(self.complete("train", "--dtype", "=", "bf"), ["bf16"])
        self.assertEqual(self.complete("train", "--dtype", "="), ["auto", "bf16", "fp16", "fp32"])
        self.assertEqual(self.complete("train", "--pack", ""), ["no", "yes"])
        self.assertEqual(self.complete("plan", "--gpu", "l"), ["list"])
        self.assertEqual(self.complete("train", "--lr", ""), [])

    def test_files_and_directories(self):
        os.makedirs(self.path("models"), exist_ok=True)
        self.assertEqual(self.complete("train", "--data", ""), ["models", "rows.jsonl"])
        self.assertEqual(self.complete("train", "--model", ""), ["models"])
        self.assertEqual(self.complete("eval", ""), ["models"])
        self.assertEqual(self.complete("train", "--resume", ""), ["auto", "models", "never"])

    def test_zsh_has_the_options_of_each_command(self):
        text = read(program.SHARED, "_offload-train").split("    case $command in\n")[1]
        for command in commands():
            part = re.search(rf"(?s)^        {command}\) _arguments(.*?) ;;\n", text, re.MULTILINE).group(1)
            self.assertEqual(sorted(re.findall(r"'\*?--([a-z0-9/-]+)", part)), sorted(options(command)))


class Devices(program.ProgramTest):
    def test_a_build_without_cuda_says_how_to_get_it(self):
        setup = read(program.SHARED, "..", "..", "meson-logs", "meson-log.txt").split("\n  Devices of offload-train\n")[-1]
        version = self.succeed("--version").out.splitlines()[1]
        if re.match(r"    cuda *: yes, for sm_", setup):
            self.assertEqual(version, "devices: cpu, cuda")
            return
        refused = self.fail_with(DEVICE, "this build has no cuda device", "probe", "--device", "cuda")
        self.assertEqual(refused, f"error: {version}")
        for text in (setup.splitlines()[0], version):
            self.assertRegex(text, r"nvcc.*-Dcuda=disabled.*nstall the CUDA toolkit.*meson setup build-cuda -Dcuda=enabled$")


class Words(program.ProgramTest):
    def test_help_prints_topics_and_commands(self):
        for topic in topics():
            self.assertGreater(len(self.succeed("help", topic).out), 500)
        self.assertEqual(self.succeed("help", "plan").out, self.succeed("plan", "--help", "all").out)
        self.assertEqual(self.succeed("help", "bits").out, self.succeed("eval", "--help=bits").out)

    def test_options_and_headings_count_nothing_that_the_reader_must_know(self):
        """A 'third tier' has no meaning on the page of an option, and 'three journeys' become four."""
        number = r"(?i)\b(first|second|third|two|three|four|five) (tiers?|journeys)\b"
        for command in commands():
            self.assertNotRegex(" ".join(self.succeed(command, "--help", "all").out.split()), number)
        for heading in re.findall(r"(?m)^#.*$", read(ROOT, "README.md")):
            self.assertNotRegex(heading, number)

    def test_an_unknown_topic_is_one_line_that_lists_the_known(self):
        line = self.fail_with(USAGE, "no help topic 'tires'", "help", "tires")
        for topic in topics():
            self.assertIn(topic, line)
        self.fail_with(USAGE, "help takes one topic or command", "help", "tiers", "rows")

    def test_environment_names_every_variable_that_is_read(self):
        page, found = "".join(run("help", topic).out for topic in ("environment", "hub", "launchers")), set()
        for folder in ("src", "models", "offload", "kernels"):
            for where, _, names in os.walk(os.path.join(ROOT, folder)):
                for name in names:
                    if name.endswith((".c", ".h", ".inc", ".cu", ".cpp")):
                        text = read(where, name)
                        calls = re.findall(r"(?:getenv|setenv|ot_ranks_env)\(([^),]*)", text)
                        found |= {call[1:-1] for call in calls if call.startswith('"')}
                        # The name comes from a table or an argument.
                        if any(not call.startswith('"') for call in calls):
                            found |= set(VARIABLE.findall(text))
        self.assertIn("HF_HUB_CACHE", found)
        self.assertGreater(len(found), 15)
        items = re.findall(r"^  ([A-Z][A-Z0-9_, ]+?)(?:  .*)?$", page, re.MULTILINE)
        self.assertEqual(sorted(name for item in items for name in item.split(", ")), sorted(found))


class Examples(program.ProgramTest):
    """The commands that README and the help pages show. Here are neither models nor GPUs."""
    LONG = ("probe", "bench", "comm-test")  # these would measure this machine
    OTHERS = ("--gpus", "--nodes")  # these would look for GPUs, or wait for other ranks

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_rows(cls.path("sql.jsonl"), sql_rows(4))

    def shown(self):
        pages = [read(ROOT, "README.md"), *(run("help", name).out for name in topics() + commands())]
        lines = [line for page in pages for line in re.findall(rf"^{SHOWN}offload-train (.*)$", page, re.MULTILINE)]
        for line in dict.fromkeys(lines):
            words = shlex.split(re.split(r" [<>|] ", line)[0], comments=True)
            if words and not words[0][0].isupper() and "..." not in words and "[options]" not in words:
                yield line, words

    @unittest.skipIf(os.environ.get("OT_TEST_BRIEF"), "training takes a minute under a sanitizer, and others test it there")
    def test_the_first_commands_train_and_generate(self):
        """The commands of README that need only the rows of scripts/demo-data, with --out demo/out as in scripts/quickstart,
        whose test has all steps."""
        subprocess.run([os.path.join(ROOT, "scripts", "demo-data"), "--out", self.path("demo")], check=True, stdout=subprocess.DEVNULL)
        done = []
        for _, words in self.shown():
            if any(word.startswith("demo/") for word in words):
                more = ["--out", "demo/out", "--steps", "3"] if words[0].startswith("--") else []
                done.append(self.succeed(*words, *more, cwd=self.folder))
        self.assertEqual(len(done), 2)
        self.assertIn("done    3 of 3 steps", done[0].err)

    @unittest.skipIf(os.environ.get("OT_TEST_BRIEF"), "these searches take minutes under a sanitizer, and test plan is there too")
    def test_plans_are_made(self):
        n = 0
        for line, words in self.shown():
            if words[0] == "plan":
                n += 1
                if not os.environ.get("OT_TEST_SLOW"):  # the searches for large models take a minute together
                    words = [re.sub(r"^(llama-7b|llama-13b|llama-3.1-70b)$", "tinyllama-1.1b", word) for word in words]
                result = run(*words, cwd=self.folder)
                self.assertEqual(result.code, 0, f"{line}: {result.err}")
                self.assertGreater(len(result.out), 200, line)
        self.assertGreater(n, 5)

    def test_the_others_lack_only_files(self):
        n = 0
        for line, words in self.shown():
            if words[0] in ("plan", *self.LONG) or any(word in self.OTHERS or word.startswith("demo/") for word in words):
                continue
            n += 1
            result = run(*words, cwd=self.folder)
            if words[0] in ("help", "--version") or words[-1] == "--help":
                self.assertEqual(result.code, 0, f"{line}: {result.err}")
                continue
            self.assertNotIn(result.code, (0, 1, USAGE), f"{line}: {result.err}")
            self.assertRegex(result.err, "no such|not found|cannot open|is not here|No such|no weights|not a|needs a network|has no tokenizer here", line)
        self.assertGreater(n, 20)


class Readme(program.ProgramTest):
    def test_it_names_every_command_and_topic(self):
        text = read(ROOT, "README.md")
        for name in commands():
            self.assertTrue(re.search(rf"`(offload-train )?{name}`", text), name)
        for name in topics():
            self.assertTrue(f"`{name}`" in text, name)

    def test_it_is_short(self):
        self.assertLessEqual(read(ROOT, "README.md").count("\n"), 220)

    def test_its_links_lead_somewhere(self):
        places = re.findall(r"\]\(([^)#]+)\)", read(ROOT, "README.md"))
        self.assertGreater(len(places), 5)
        for place in places:
            if "://" not in place:
                self.assertTrue(os.path.exists(os.path.join(ROOT, place)), place)

    def test_its_table_of_machines_says_estimated(self):
        text = read(ROOT, "README.md")
        parts = re.search(r"(?s)<!-- plan-table: begin -->\n(.*)\n<!-- plan-table: end -->", text)
        self.assertTrue(parts)
        table, below = parts.group(1).split("\n\n")
        self.assertRegex(below, r"on 20\d\d-\d\d-\d\d")
        head, rule, *rows = table.split("\n")
        self.assertTrue(head.startswith("| estimated, not measured |"), head)
        self.assertRegex(rule, r"^\|(---\|)+$")
        self.assertEqual(len(rows), 3)
        models = run("help", "models").out.replace("\n", " ")
        for row in rows:
            self.assertEqual(row.count("|"), head.count("|"))
            _, model, checkpoint, ram, *cells, _ = [cell.strip() for cell in row.split("|")]
            self.assertIn(f" {model}", models)
            self.assertRegex(checkpoint + ram, r"^\d+ GiB\d+ GiB$")
            for cell in cells:
                self.assertRegex(cell, r"^(no|[\d,.]+ tok/s, [\d,.]+ s(, disk \d+ GiB)?)$")


program.main()
