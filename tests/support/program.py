"""Runs the built program for the end-to-end tests. Uses the standard library only.

The first argument of a test script is the path of the program, the second is the folder of real inputs. Names of
tests may follow, such as Train.test_two_things:

    PYTHONPATH=tests/support python3 tests/cli/test_program.py build/offload-train none Train.test_two_things
"""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""
SHARED = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else ""

GOLDEN = os.path.join(os.path.dirname(__file__), "../golden")

STOPPED = 10  # the exit code of a run that a signal stopped after it saved a checkpoint

TABLES = ["singer", "song", "city", "team"]
COLUMNS = ["name", "age", "year", "place"]
# Options with which a training run of the smallest preset takes a fraction of a second.
SMALL = ["--model", "tiny-test", "--init", "random", "--seq-len", "128", "--tokens-per-step", "512", "--threads", "1"]
# Budgets with which the first run of a test measures the machine in a fifth of a second: without them it takes 5 CPU seconds.
SMALL_MACHINE = ["--gpu-mem", "64M", "--host-mem", "64M"]
if PROGRAM.endswith("-emu"):
    SMALL += ["--gpu-mem", "256M"]  # so that the probe measures the emulated GPU on its smallest sizes


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.out)

    def events(self):
        return [json.loads(line) for line in self.out.splitlines()]


def run(*words, stdin=b"", cwd=None, env=None):
    environment = {key: value for key, value in os.environ.items() if key not in ("OFFLOAD_MODELS", "HF_HOME")}
    environment["HF_HUB_OFFLINE"] = "1"  # no test asks a server that it has not started
    environment.update(env or {})
    words = [PROGRAM] + [str(word) for word in words]
    return Result(subprocess.run(words, input=stdin, capture_output=True, cwd=cwd, env=environment, timeout=600))


def sql_rows(n):
    rows = []
    for i in range(n):
        table, column = TABLES[i % 4], COLUMNS[i * 7 // 3 % 4]
        rows.append({"question": f"List the {column} of every {table}.",
                     "context": f"CREATE TABLE {table} ({column} TEXT)",
                     "answer": f"SELECT {column} FROM {table}"})
    return rows


def write_rows(path, rows):
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return path


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def read_safetensors(path):
    """The bytes of the file, where its data begin, and {tensor: {"dtype", "shape", "data_offsets"}}."""
    data = read_bytes(path)
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return data, start, header


def read_golden(name):
    """{array: (shape, bytes)}; scripts/golden/goldenfile.py has the format."""
    data = read_bytes(os.path.join(GOLDEN, name))
    head = data.index(b"\n\n")
    arrays = {}
    for line in data[:head].decode().split("\n")[1:]:
        array, dtype, dims, offset = line.split()
        shape = [int(dim) for dim in dims.split("x")]
        begin = head + 2 + int(offset)
        arrays[array] = shape, data[begin:begin + math.prod(shape) * {"f64": 8, "i64": 8, "u8": 1}.get(dtype, 4)]
    return arrays


class ProgramTest(unittest.TestCase):
    """A temporary folder for each class, with rows.jsonl in it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="offload-train-test-")
        cls.rows = write_rows(cls.path("rows.jsonl"), sql_rows(60))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def succeed(self, *words, **more):
        result = run(*words, **more)
        self.assertEqual(result.code, 0, f"{words}: {result.err}")
        return result

    def fail_with(self, code, phrase, *words, **more):
        """Runs the program, which must print one line on stderr that begins with "error: " and contains the phrase,
        and nothing on stdout. Warnings about other programs, such as tests that run at the same time, may come
        before it."""
        result = run(*words, **more)
        lines = [line for line in result.err.splitlines() if not re.match("warning: .*other programs", line)]
        self.assertEqual(result.code, code, f"{words}: {result.err}")
        self.assertEqual(len(lines), 1, result.err)
        self.assertTrue(lines[0].startswith("error: "), result.err)
        self.assertIn(phrase, lines[0])
        self.assertEqual(result.out, "")
        return lines[0]

    def train(self, out, *words, rows=None, forecast=False, **more):
        """Trains without a forecast, because a forecast takes longer than these runs. A run in a finished --out
        folder begins anew."""
        words = (*SMALL_MACHINE, *words) if forecast else ("--no-forecast", *words)
        if os.path.exists(self.path(f"{out}/finished.json")) and "--resume" not in words:
            words = (*words, "--resume", "never")
        return self.succeed("train", *SMALL, "--data", rows or self.rows, "--out", self.path(out), *words, **more)

    def log(self, out):
        with open(os.path.join(self.path(out), "log.jsonl")) as file:
            return [json.loads(line) for line in file]


def main():
    if not PROGRAM:
        sys.exit("usage: " + sys.argv[0] + " PROGRAM [SHARED [TEST..]]")
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=1)
