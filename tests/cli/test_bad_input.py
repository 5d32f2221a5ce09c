"""Bad input gives one line that names the file, the place and the cure, an exit code other than 0, and no files left
behind."""

import gzip
import json
import os
import re
import shutil
import struct
import subprocess

import program
from program import SMALL, read_bytes, run, sql_rows, write_rows

USAGE, INPUT, BUDGET, IO = 2, 3, 4, 5


class BadInput(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.path("model")
        run("train", *SMALL, "--data", cls.rows, "--out", cls.model, "--steps", "1", "--no-forecast")

    def refuse(self, code, phrase, *words, **more):
        """Like fail_with, for a training run: the output directory and the files beside it must not change."""
        out = self.path("out")
        before = sorted(os.listdir(self.folder))
        line = self.fail_with(code, phrase, "--out", out, "--seq-len", "128", "--steps", "1", *words, **more)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        return line

    def refuse_data(self, code, phrase, data, *words, name="bad.jsonl"):
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        line = self.refuse(code, phrase, "--model", self.model, "--data", self.path(name), *words)
        self.assertIn(name, line)
        os.unlink(self.path(name))

    def refuse_model(self, code, phrase, change):
        """change(folder) damages a copy of the model."""
        broken = self.path("broken")
        shutil.copytree(self.model, broken)
        change(broken)
        self.refuse(code, phrase, "--model", broken, "--data", self.rows)
        self.fail_with(code, phrase, "eval", broken, "--data", self.rows, "--seq-len", "128")
        shutil.rmtree(broken)


class Unreadable(BadInput):
    def refuse_locked(self, path, *words):
        """Runs as a user who may not read the path."""
        mode = os.stat(path).st_mode
        os.chmod(path, 0)
        user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            done = subprocess.run([program.PROGRAM, *words], capture_output=True, timeout=60, **user)
        finally:
            os.chmod(path, mode)
        err = done.stderr.decode()
        self.assertEqual(done.returncode, IO, err)
        self.assertRegex(err, r"^error: .*" + path + r".*: Permission denied\n$")

    def test_what_may_not_be_read(self):
        os.chmod(self.folder, 0o755)
        words = ["--model", self.model, "--data", self.rows, "--out", self.path("never-made")]
        self.refuse_locked(self.model, *words)
        self.refuse_locked(self.rows, *words)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            self.refuse_locked(os.path.join(self.model, name), *words)
        os.mkdir(self.path("locked"))
        self.refuse_locked(self.path("locked"), "--model", self.model, "--data", self.rows, "--seq-len", "128", "--out",
                           self.path("locked/out"))


class Data(BadInput):
    def test_missing_or_unreadable(self):
        self.refuse(IO, "/nowhere/rows.jsonl", "--model", self.model, "--data", "/nowhere/rows.jsonl")
        self.refuse(INPUT, self.folder, "--model", self.model, "--data", self.folder)
        self.fail_with(INPUT, self.folder, "--model", self.model, "--data", self.folder + "/")
        self.refuse(IO, "/nowhere.jsonl", "--model", self.model, "--data", self.rows, "--eval-data", "/nowhere.jsonl")

    def test_malformed_rows(self):
        good = json.dumps(sql_rows(1)[0])
        self.refuse_data(INPUT, "bad.jsonl:2", good + "\n{\"question\": \n" + good)
        self.refuse_data(INPUT, "bad.jsonl:3", good + "\n\n[1, 2]\n")
        self.refuse_data(INPUT, "bad.jsonl:2", good + "\n{\"question\": \"a\"}\n")
        self.refuse_data(INPUT, "bad.jsonl:1", "{\"foo\": 1}\n")
        self.refuse_data(INPUT, "bad.jsonl", "")
        self.refuse_data(INPUT, "bad.jsonl", "\n\n  \n")
        self.refuse_data(INPUT, "bad.jsonl:1", b"{\"text\": \"\xff\xfe\"}\n")
        self.refuse_data(INPUT, "bad.jsonl:1", b"{\"text\": \"a\0b\"}\n")
        self.refuse_data(INPUT, "bad.jsonl", "hello".encode("utf-16"))
        self.refuse_data(INPUT, "bad.jsonl.gz", gzip.compress(good.encode() * 100)[:-20], name="bad.jsonl.gz")

    def test_rows_without_a_trained_token(self):
        empty = json.dumps({"prompt": "x", "completion": ""})
        self.refuse_data(INPUT, "bad.jsonl", (empty + "\n") * 3, "--no-eos")

    def test_files_of_other_kinds(self):
        for text, phrase in ((b"question,answer\na\n", "a record with fewer fields"), (b"GGUF\x03\0\0\0", "a GGUF model"),
                             (b"rows:\n  - a\n", "this is YAML"), (b"\x01\x02\x03\x04", "a binary file"),
                             (b'{"text": "caf\xe9 noir"}\n', "Windows-1252")):
            with open(self.path("other"), "wb") as file:
                file.write(text)
            self.fail_with(INPUT, phrase, *SMALL, "--data", self.path("other"), "--dry-run", "--quiet")
        self.fail_with(INPUT, "are not downloaded", *SMALL, "--data", "b-mc2/sql-create-context", "--dry-run", "--quiet")

    def test_rows_that_are_cut_are_a_warning(self):
        """A warning appears if more than one row in a hundred is cut, even with -q. The length that it names cuts no
        row."""
        rows = program.sql_rows(300)
        for i in (7, 8, 9):
            rows[i]["context"] *= 3
        few = program.write_rows(self.path("few.jsonl"), rows)
        words = ["--model", "tiny-test", "--init", "random", "--threads", "1", "--eval-fraction", "0", "--no-forecast", "--dry-run"]
        short = [*words, "--seq-len", "128", "--quiet"]
        self.assertEqual(self.succeed(*short, "--data", few).err, "")
        rows[10]["context"] *= 4
        many = program.write_rows(self.path("many.jsonl"), rows)
        err = self.succeed(*short, "--data", many).err
        found = re.fullmatch(r"warning: \S+many.jsonl: 4 of 300 rows are cut to --seq-len 128; the longest has ([\d,]+) tokens: "
                             r"(?:--seq-len (\d+) would fit all|and the model takes --seq-len \d+ at most)\n", err)
        self.assertTrue(found, err)
        fits = int(found[2])
        self.assertEqual(self.succeed(*words, "--data", many, "--seq-len", fits, "--quiet").err, "")
        self.assertIn(" 1 truncated", self.succeed(*words, "--data", many, "--seq-len", fits - 1).err)

    def test_columns_with_other_names(self):
        """Rows with other key names give the same tokens as rows with our names, in any order, and in --row."""
        def rename(row):
            return {"query": row["question"], "schema": row["context"], "sql": row["answer"], "answer": "of another field"}
        rows = program.sql_rows(30)
        ours = program.write_rows(self.path("ours.jsonl"), rows)
        theirs = program.write_rows(self.path("theirs.jsonl"), [rename(row) for row in rows])
        columns = ["--columns", "question=query,context=schema,answer=sql"]
        words = [*SMALL, "--steps", "2", "--no-forecast", "--quiet"]
        self.succeed(*words, "--data", ours, "--out", self.path("ours"))
        self.succeed(*words, "--data", theirs, "--out", self.path("theirs"), *columns)
        self.assertEqual(program.read_bytes(self.path("ours/model.safetensors")),
                         program.read_bytes(self.path("theirs/model.safetensors")))
        plain = self.succeed("eval", self.path("ours"), "--data", ours, "--json").json()
        named = self.succeed("eval", self.path("ours"), "--data", theirs, "--json", *columns).json()
        self.assertEqual(plain["loss"], named["loss"])
        row = {"question": "q", "context": "c"}
        text = self.succeed("generate", self.path("ours"), "--row", "-p", json.dumps(row), "--max-new-tokens", "5").out
        row = {"query": "q", "schema": "c"}
        again = self.succeed("generate", self.path("ours"), "--row", "-p", json.dumps(row), "--max-new-tokens", "5", *columns).out
        self.assertEqual(text, again)
        swapped = [{"question": row["answer"], "context": row["context"], "answer": row["question"]} for row in rows]
        program.write_rows(self.path("swapped.jsonl"), swapped)
        swapped = self.succeed("eval", self.path("ours"), "--data", self.path("swapped.jsonl"), "--json", "--columns",
                               "question=answer,answer=question").json()
        self.assertEqual(plain["loss"], swapped["loss"])
        for code, phrase, value in ((INPUT, "theirs.jsonl:1: the row has no column 'quest'", "question=quest"),
                                    (USAGE, "'question' is not a pair OURS=THEIRS", "question"),
                                    (USAGE, "rows have no field 'quest'", "quest=query"),
                                    (USAGE, "uses a name of an earlier pair again", "question=query,answer=query")):
            self.fail_with(code, phrase, *SMALL, "--data", theirs, "--columns", value, "--dry-run", "--quiet")

    def test_a_stopped_run_is_no_model_yet(self):
        os.makedirs(self.path("stopped/checkpoints/step-00000001"))
        for words in (["generate", self.path("stopped"), "-p", "x"], ["eval", self.path("stopped"), "--data", self.rows]):
            self.fail_with(INPUT, f"with 'offload-train export {self.path('stopped')} --out MODEL'", *words)

    def test_skip_bad_counts_and_goes_on(self):
        lines = [json.dumps(row) for row in sql_rows(20)]
        lines[3] = "{"
        lines[7] = "{\"question\": 1}"
        with open(self.path("mixed.jsonl"), "w") as file:
            file.write("\n".join(lines))
        result = self.succeed("--model", self.model, "--data", self.path("mixed.jsonl"), "--out", self.path("mixed"),
                              "--seq-len", "128", "--steps", "1", "--skip-bad", "--no-forecast")
        self.assertIn("2 bad, the first on line 4", result.err)

    def test_marks_and_line_ends_are_accepted(self):
        rows = [json.dumps(row) for row in sql_rows(20)]
        texts = {"bom": b"\xef\xbb\xbf" + "\n".join(rows).encode(), "crlf": "\r\n".join(rows).encode(),
                 "array": ("[" + ",\n".join(rows) + "]").encode(), "gz": gzip.compress("\n".join(rows).encode())}
        losses = set()
        for name, data in texts.items():
            with open(self.path(name), "wb") as file:
                file.write(data)
            losses.add(self.succeed("eval", self.model, "--data", self.path(name), "--json", "--seq-len", "128").out)
        self.assertEqual(len(losses), 1)

    def test_a_gzip_bomb(self):
        part = gzip.compress(b"a" * (1 << 24), 1)
        self.refuse_data(INPUT, "bomb.gz:1: a row of more than 256 MB", gzip.compress(b'{"text": "') + part * 17,
                         name="bomb.gz")

    def test_a_line_of_50_megabytes(self):
        row = {"prompt": "x " * (25 << 20), "completion": "y"}
        write_rows(self.path("long.jsonl"), [row])
        result = self.succeed("eval", self.model, "--data", self.path("long.jsonl"), "--json", "--seq-len", "128")
        self.assertEqual(result.json()["trained_tokens"], 2)
        self.assertIn("1 truncated", result.err)
        os.remove(self.path("long.jsonl"))  # other tests read the whole folder


class Model(BadInput):
    def edit_json(self, name, **values):
        def change(folder):
            path = os.path.join(folder, name)
            with open(path) as file:
                tree = json.load(file)
            for key, value in values.items():
                if value is None:
                    tree.pop(key, None)
                else:
                    tree[key] = value
            with open(path, "w") as file:
                json.dump(tree, file)
        return change

    def edit_header(self, edit):
        def change(folder):
            path = os.path.join(folder, "model.safetensors")
            data = read_bytes(path)
            n = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + n])
            edit(header)
            text = json.dumps(header).encode()
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + data[8 + n:])
        return change

    def replace_weights(self, make):
        def change(folder):
            path = os.path.join(folder, "model.safetensors")
            data = make(read_bytes(path))
            with open(path, "wb") as file:
                file.write(data)
        return change

    def test_a_pipe_instead_of_a_file(self):
        def replace(name):
            def change(folder):
                os.unlink(os.path.join(folder, name))
                os.mkfifo(os.path.join(folder, name))  # no process ever writes to it
            return change
        self.refuse_model(INPUT, "no config.json", replace("config.json"))
        self.refuse_model(INPUT, "has neither", replace("model.safetensors"))
        self.refuse_model(INPUT, "--tokenizer", replace("tokenizer.json"))

    def test_names_that_are_nothing(self):
        self.refuse(INPUT, "help models", "--model", "nosuch", "--data", self.rows)
        self.refuse(INPUT, "offload-train download huggyllama/llama-7b", "--model", "llama-7b", "--data", self.rows,
                    env={"HF_HOME": self.folder})
        self.refuse(INPUT, "--tokenizer", "--model", "llama-7b", "--data", self.rows, "--init", "random",
                    env={"HF_HOME": self.folder})
        self.refuse(INPUT, "config.json", "--model", self.folder, "--data", self.rows)

    def test_config(self):
        self.refuse_model(INPUT, "hidden_size", self.edit_json("config.json", hidden_size=None))
        self.refuse_model(INPUT, "num_hidden_layers", self.edit_json("config.json", num_hidden_layers=-2))
        self.refuse_model(INPUT, "num_hidden_layers", self.edit_json("config.json", num_hidden_layers=1e30))
        self.refuse_model(INPUT, "num_hidden_layers is 65536", self.edit_json("config.json", num_hidden_layers=65536))
        self.refuse_model(INPUT, "mamba", self.edit_json("config.json", model_type="mamba", architectures=["MambaLM"]))
        self.refuse_model(INPUT, "config.json",
                          lambda folder: open(os.path.join(folder, "config.json"), "w").close())

    def test_safetensors_headers_that_lie(self):
        name = "model.embed_tokens.weight"

        def overlap(header):
            first, second = [key for key in header if key != "__metadata__"][:2]
            header[second]["data_offsets"] = header[first]["data_offsets"]

        def shift(header):
            header[name]["data_offsets"] = [offset + (1 << 40) for offset in header[name]["data_offsets"]]

        def shape(header):
            header[name]["shape"] = [header[name]["shape"][1], header[name]["shape"][0]]

        def dtype(header):
            header[name]["dtype"] = "F99"

        def rename(header):
            header["model.other.weight"] = header.pop(name)

        self.refuse_model(INPUT, "model.safetensors", self.edit_header(overlap))
        self.refuse_model(INPUT, name, self.edit_header(shift))
        self.refuse_model(INPUT, name, self.edit_header(shape))
        self.refuse_model(INPUT, name, self.edit_header(dtype))
        self.refuse_model(INPUT, name, self.edit_header(rename))
        self.refuse_model(INPUT, "model.safetensors", self.replace_weights(lambda data: data[:-100]))
        self.refuse_model(INPUT, "model.safetensors", self.replace_weights(lambda data: data[:5]))
        self.refuse_model(INPUT, "model.safetensors", self.replace_weights(lambda data: b""))
        self.refuse_model(INPUT, "model.safetensors", self.replace_weights(lambda data: data + b"more"))
        self.refuse_model(INPUT, "model.safetensors", self.replace_weights(lambda data: b"\xff" * 8 + data[8:]))
        self.refuse_model(INPUT, "model.safetensors",
                          self.replace_weights(lambda data: data[:8] + b"x" * 40 + data[48:]))

    def test_no_weights(self):
        def remove(folder):
            os.unlink(os.path.join(folder, "model.safetensors"))
        self.refuse_model(INPUT, "broken: has neither model.safetensors", remove)

    def test_a_damaged_weight_is_found_when_loaded(self):
        broken = self.path("nan")
        shutil.copytree(self.model, broken)
        data = read_bytes(os.path.join(broken, "model.safetensors"))
        with open(os.path.join(broken, "model.safetensors"), "wb") as file:
            file.write(data[:-4] + struct.pack("<f", float("nan")))
        result = run("--model", broken, "--data", self.rows, "--out", self.path("nan-out"), "--steps", "1", "--quiet",
                     "--no-forecast")
        self.assertEqual(result.code, INPUT)
        self.assertRegex(result.err, r"^error: .*nan/model.safetensors.*\n$")
        self.assertFalse(os.path.exists(self.path("nan-out")))

    def test_tokenizer(self):
        self.refuse_model(INPUT, "WordPiece", self.edit_json("tokenizer.json", model={"type": "WordPiece", "vocab": {}}))
        self.refuse_model(INPUT, "tokenizer.json",
                          lambda folder: open(os.path.join(folder, "tokenizer.json"), "w").close())
        self.refuse_model(INPUT, "--tokenizer", lambda folder: os.unlink(os.path.join(folder, "tokenizer.json")))
        self.refuse(IO, "/nowhere.json", "--model", self.model, "--data", self.rows, "--tokenizer", "/nowhere.json")

    def test_ids_beyond_the_embedding(self):
        def grow(folder):
            path = os.path.join(folder, "tokenizer.json")
            with open(path) as file:
                tree = json.load(file)
            tree["added_tokens"].append(dict(tree["added_tokens"][0], id=5000, content="SELECT"))
            with open(path, "w") as file:
                json.dump(tree, file)
        self.refuse_model(INPUT, "5000", grow)
        grown = self.path("grown")
        shutil.copytree(self.model, grown)
        grow(grown)
        self.fail_with(INPUT, "--prompt: token 5000 ('SELECT') is outside of the model's embedding", "generate", grown, "-p", "SELECT")
        self.succeed("generate", grown, "-p", "select", "--max-new-tokens", "1")


class Machine(BadInput):
    def test_budgets_too_small(self):
        for words in (["--gpu-mem", "1M"], ["--gpu-mem", "1M", "--host-mem", "1M"],
                      ["--host-mem", "1M", "--home", "host"], ["--gpu-mem", "20M", "--optimizer-engine", "gpu"],
                      ["--gpu-mem", "8M", "--optimizer-engine", "gpu:0.5,stream:0.5"]):
            self.refuse(BUDGET, "short by", "--model", "tiny-sql", "--init", "random", "--data", self.rows, *words)
        # A budget larger than the memory is tried, and a run takes the memory that its plan needs.
        for option in ("--gpu-mem", "--host-mem"):
            told = self.succeed("train", "--model", self.model, "--data", self.rows, "--out", self.path("huge" + option), "--seq-len",
                                "128", "--steps", "1", "--gpu-mem", "64M", "--host-mem", "64M", "--quiet", "--no-forecast",
                                option, "900T")
            self.assertRegex(told.err, rf"^warning: {option} 900.0 TiB is more than the .* of RAM that are free.*\. Trying it anyway\n$")
        # All RAM for the device leaves none for the host tier: less for the device helps.
        words = ["train", "--model", self.model, "--data", self.rows, "--dry-run", "--no-forecast", "--quiet", "--seq-len", "128"]
        told = program.run(*words, "--gpu-mem", "900T")
        self.assertEqual(told.code, BUDGET, told.err)
        self.succeed(*words, "--gpu-mem", re.search(r"\. What helps: --gpu-mem (\d+[MG])$", told.err.strip())[1])
        self.refuse(BUDGET, "; or --tokens-per-step ", "--model", self.model, "--data", self.rows,
                    "--tokens-per-step", "5e7", "--rounds", "1")
        self.fail_with(BUDGET, "short by", "generate", self.model, "-p", "x" * 200, "--gpu-mem", "1M")

    def test_directories_of_the_store(self):
        base = ["--model", self.model, "--data", self.rows]
        os.mkdir(self.path("disk"))
        for code, phrase, nvme in ((IO, "--nvme: /absent: make this directory first", "/absent"),
                                   (IO, "--nvme: /absent:5Q: make this", "/absent:5Q"),
                                   (IO, "is a file; the NVMe store needs a directory", self.rows),
                                   (BUDGET, "disk: 900.0 TiB is more than the", self.path("disk") + ":900T"),
                                   (USAGE, "must be DIR or DIR:SIZE", self.path("disk") + ":5")):
            self.refuse(code, phrase, *base, "--nvme", nvme)
            self.fail_with(code, phrase, "eval", *base, "--seq-len", "128", "--nvme", nvme)
            self.fail_with(code, phrase, "generate", self.model, "-p", "a", "--nvme", nvme)
        self.refuse(USAGE, "needs --nvme DIR", *base, "--home", "state=nvme")
        os.rmdir(self.path("disk"))

    def test_output_directories(self):
        words = ["--model", self.model, "--data", self.rows, "--steps", "1", "--seq-len", "128"]
        self.fail_with(INPUT, "rows.jsonl", *words, "--out", self.rows)
        os.makedirs(self.path("mine/notes"))
        self.fail_with(INPUT, "mine", *words, "--out", self.path("mine"))
        self.assertEqual(os.listdir(self.path("mine")), ["notes"])
        self.fail_with(IO, "/proc/none", *words, "--out", "/proc/none/out")

    def test_no_link_leads_out_of_the_output(self):
        words = ["--model", self.model, "--data", self.rows, "--steps", "1", "--seq-len", "128", "--no-forecast"]
        out, elsewhere = self.path("linked"), self.path("elsewhere")
        os.mkdir(elsewhere)
        os.symlink(elsewhere, out)
        self.fail_with(INPUT, "is a symbolic link", *words, "--out", out)
        os.unlink(out)
        shutil.copytree(self.model, out)
        for name in ("log.jsonl", "checkpoints"):
            path = os.path.join(out, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)
            os.symlink(elsewhere, path)
            with self.subTest(name):
                result = run("train", *words, "--out", out, "--resume", "never")
                self.assertIn(result.code, (INPUT, IO), result.err)
                self.assertIn(name, result.err)
            os.unlink(path)
        self.assertEqual(os.listdir(elsewhere), [])
        shutil.rmtree(out)

    def test_options(self):
        base = ["--model", self.model, "--data", self.rows]
        self.fail_with(USAGE, "beyond the model's 256 positions", *base, "--seq-len", "512")
        for phrase, words in (("did you mean --lr?", ["--lrr", "1"]), ("its name here is --lr", ["--learning_rate", "1e-4"]),
                              ("--steps and --epochs", ["--epochs", "1"]), ("must be a number", ["--lr", "1e9"]),
                              ("must be a whole number", ["--threads", "99999999999999999999"]),
                              ("is more than the 4 sequences", ["--micro-batch", "5", "--tokens-per-step", "512"]),
                              ("is not an engine", ["--optimizer-engine", "tpu"]),
                              ("gpu updates state that lives on the gpu, not on the host", ["--optimizer-engine", "gpu", "--home", "host"]),
                              ("tiles; raise the engine's share in --optimizer-engine", ["--optimizer-engine", "cpu:0.999,stream:0.001"]),
                              ("; lower --tokens-per-step, or raise --micro-batch",
                               ["--micro-batch", "1", "--tokens-per-step", "512M"]),
                              ("no-such-template", ["--template", "no-such-template"]),
                              ("must begin a placeholder", ["--prompt-format", "{question"])):
            self.refuse(USAGE, phrase, *base, *words)


if __name__ == "__main__":
    program.main()
