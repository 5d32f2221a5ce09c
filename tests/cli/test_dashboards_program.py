"""train --tensorboard and --metrics: the event file is read back record by record, and by the real tensorboard where it is
installed; the file of metrics is checked by promtool where it is installed. Else uses the standard library only."""

import glob
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import unittest

import program
from program import SMALL, ProgramTest, read_bytes, sql_rows, write_rows

TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """The fields of a message: {number: [values]}; messages and texts are bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 127) << shift
            shift, at = shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            value, at = data[at:at + size], at + size
            if key & 7 != 2:
                value, = struct.unpack("<d" if size == 8 else "<f", value)
        found.setdefault(key >> 3, []).append(value)
    return found


def events(path):
    """The events of a file, whose checksums must be right."""
    data, at = read_bytes(path), 0
    while at < len(data):
        size, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked_crc32c(data[at:at + 8])
        body, (crc,) = data[at + 12:at + 12 + size], struct.unpack_from("<I", data, at + 12 + size)
        assert crc == masked_crc32c(body) and len(body) == size
        yield fields(body)
        at += size + 16


class Dashboards(ProgramTest):
    words = ["--no-forecast", *SMALL, "--device", "cpu", "--eval-every", "2"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.path("rows.jsonl"), sql_rows(20))

    def train(self, out, *more, steps=4):
        to = ["--out", self.path(out)] if out else ["--no-save"]
        return self.succeed("train", *self.words, "--data", self.rows, "--eval-fraction", "0.2", "--steps", steps,
                            "--schedule", "constant", *to, *more)

    def event_files(self, name):
        return sorted(glob.glob(self.path(f"{name}/events.out.tfevents.*")), key=os.path.getmtime)

    def check_scalars(self, found, log):
        """Every number of the log is there, in its precision; nothing else."""
        names = {"lr": "learning_rate", "tokens_per_s": "tokens_per_second", "seconds": "step_seconds"}
        groups = {"tokens_per_s": "speed", "seconds": "speed", "gpu_bytes": "memory", "host_bytes": "memory"}
        wanted = {}
        for event in log:
            keys = {"step": ("loss", "lr", "grad_norm", "epoch", "tokens_per_s", "seconds", "gpu_bytes", "host_bytes"),
                    "eval": ("loss", "perplexity", "accuracy")}.get(event["event"], ())
            for key in keys:
                group = "eval" if event["event"] == "eval" else groups.get(key, "train")
                value, = struct.unpack("<f", struct.pack("<f", event[key]))
                wanted[f"{group}/{names.get(key, key)}", event["step"]] = value
        self.assertEqual(found, wanted)

    def test_an_event_file(self):
        self.train("run", "--tensorboard", self.path("events"))
        path, = self.event_files("events")
        version, session, *rest = events(path)
        self.assertEqual(version[3], [b"brain.Event:2"])
        self.assertEqual((session[2], fields(session[7][0])), ([0], {1: [1]}))  # starts; its first event is of step 0
        scalars, texts, plugins = {}, {}, {}
        for event in rest:
            for value in fields(event[5][0])[1]:
                value = fields(value)
                tag = value[1][0].decode()
                if 2 in value:
                    scalars[tag, event[2][0]] = value[2][0]
                    continue
                plugin = fields(fields(value[9][0])[1][0])
                if plugin[1] == [b"text"]:
                    texts[tag, event[2][0]] = fields(value[8][0])[8][0].decode()
                else:
                    plugins[tag] = fields(plugin[2][0])
        log = self.log("run")
        self.check_scalars(scalars, log)
        sample = next(event for event in log if event["event"] == "sample")
        text = texts["sample/answer", 4].replace("\n    ", "\n")
        self.assertIn("**prompt**\n\n" + sample["prompt"].rstrip("\n") + "\n", text)
        self.assertIn("**answer**\n\n" + sample["text"].rstrip("\n"), text)
        start = fields(plugins["_hparams_/session_start_info"][3][0])
        options = {fields(entry)[1][0].decode(): fields(fields(entry)[2][0]) for entry in start[1]}
        self.assertEqual(options["eval-fraction"], {2: [0.2]})
        self.assertEqual(options["schedule"], {3: [b"constant"]})
        self.assertEqual(options["pack"], {4: [1]})
        self.assertEqual(fields(plugins["_hparams_/session_end_info"][4][0])[1], [1])

    def test_a_resumed_run_takes_the_place_of_later_steps(self):
        more = ["--tensorboard", self.path("two"), "--save-every", "3", "--result", "last"]
        self.train("resumed", *more)
        os.remove(self.path("resumed/finished.json"))
        os.remove(self.path("resumed/checkpoints/complete"))
        first, = self.event_files("two")
        self.train("resumed", *more, steps=6)
        second, = set(self.event_files("two")) - {first}
        starts = [next(event for event in events(path) if 7 in event)[2] for path in (first, second)]
        self.assertEqual(starts, [[0], [4]])
        if importlib.util.find_spec("tensorboard"):
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
            seen = EventAccumulator(self.path("two"))
            seen.Reload()
            self.assertEqual([event.step for event in seen.Scalars("train/loss")], [1, 2, 3, 4, 5, 6])

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "needs the package tensorboard")
    def test_the_real_tensorboard(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        self.train("shown", "--tensorboard", self.path("shown-events"))
        seen = EventAccumulator(self.path("shown-events"))
        seen.Reload()
        found = {(tag, event.step): event.value for tag in seen.Tags()["scalars"] for event in seen.Scalars(tag)}
        self.check_scalars(found, self.log("shown"))
        self.assertIn(b"**answer**", seen.Tensors("sample/answer")[0].tensor_proto.string_val[0])
        from tensorboard.plugins.hparams import plugin_data_pb2
        for tag, data in seen.PluginTagToContent("hparams").items():
            info = plugin_data_pb2.HParamsPluginData.FromString(data)
            if tag == "_hparams_/session_start_info":
                self.assertEqual(info.session_start_info.hparams["eval-fraction"].number_value, 0.2)

    def test_metrics(self):
        path = self.path("run.prom")
        self.train("measured", "--metrics", path, "--gpus", "2")
        lines = dict(line.rsplit(" ", 1) for line in read_bytes(path).decode().splitlines() if line[0] != "#")
        label = '{out="%s"}' % self.path("measured")
        last = [event for event in self.log("measured") if event["event"] == "step"][-1]
        self.assertEqual(lines[f"offload_train_step{label}"], "4")
        self.assertEqual(float(lines[f"offload_train_loss_nats{label}"]), last["loss"])
        self.assertEqual(lines[f"offload_train_finished{label}"], "1")
        tokens = sum(event["tokens"] for event in self.log("measured") if event["event"] == "step")
        self.assertEqual(int(lines[f"offload_train_tokens_total{label}"]), tokens)
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=read_bytes(path), capture_output=True)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, b""))

    def test_neither_ends_a_run(self):
        os.mkdir(self.path("taken.prom"))
        said = self.train(None, "--metrics", self.path("taken.prom"), steps=2)
        self.assertEqual(said.err.count("--metrics gets no more steps: "), 1)
        self.fail_with(2, "the name must end with .prom", "train", *self.words, "--data", self.rows, "--steps", "2",
                       "--no-save", "--metrics", "execution")
        self.fail_with(5, "cannot make the directory", "train", *self.words, "--data", self.rows, "--steps", "2",
                       "--no-save", "--tensorboard", self.rows + "/events")


# Stands in for wandb and for mlflow: writes down what it is told.
FAKE = """
import json
run = None

def say(*words):
    with open("said", "a") as file:
        file.write(json.dumps(words) + "\\n")

def init(project, name, config):
    global run
    run = name
    log_params(config)

def start_run(run_name):
    global run
    run = run_name

def active_run():
    return run

def log_params(options):
    say("options", run, options["seq-len"])

def log(numbers, step):
    say(step, numbers)

log_metrics = log
"""
READ_WANDB = """
import glob, json, struct
from wandb.proto import wandb_internal_pb2
path, = glob.glob("wandb/offline-run-*/run-*.wandb")
data, at, message = open(path, "rb").read(), 7, wandb_internal_pb2.Record()
while at + 7 <= len(data):  # the format of LevelDB's log
    room = 32768 - at % 32768
    if room < 7:
        at += room
        continue
    size, kind = struct.unpack_from("<HB", data, at + 4)
    part = data[at + 7:at + 7 + size]
    record = part if kind in (1, 2) else record + part
    at += 7 + size
    if kind in (1, 4):
        message.ParseFromString(record)
        numbers = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in message.history.item}
        if numbers:
            print(json.dumps([numbers["_step"], numbers]))
"""
READ_MLFLOW = """
import json, mlflow
client = mlflow.MlflowClient()
run, = client.search_runs(["0"])
assert run.data.params["seq-len"] == "128", run.data.params
for key in run.data.metrics:
    for one in client.get_metric_history(run.info.run_id, key):
        print(json.dumps([one.step, {key: one.value}]))
"""


class Recipes(ProgramTest):
    """The Python of `help dashboards` sends the numbers of a log to modules that stand in for wandb and mlflow, and to the
    real ones where they are installed."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = write_rows(cls.path("rows.jsonl"), sql_rows(20))
        cls.result = program.run("train", "--no-forecast", *SMALL, "--device", "cpu", "--eval-every", "2", "--data", rows,
                                 "--eval-fraction", "0.2", "--steps", "4", "--out", cls.path("run"))

    def recipe(self, module):
        page = self.succeed("help", "dashboards").out
        code = page.split(f"import json, sys, {module}\n")[1].split("\n\n")[0]
        return f"import json, sys, {module}\n" + "".join(line[2:] + "\n" for line in code.splitlines())

    def python(self, folder, code, **env):
        with open(self.path("run/log.jsonl"), "rb") as log:
            done = subprocess.run([sys.executable, "-c", code], stdin=log, cwd=folder, capture_output=True, env=dict(os.environ, **env),
                                  check=False, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]

    def check_numbers(self, found):
        """[step, {name: number}] for each number of a step or an evaluation."""
        wanted = {(f"{event['event']}/{key}", event["step"]): value for event in self.log("run") if event["event"] in ("step", "eval")
                  for key, value in event.items() if type(value) in (int, float)}
        numbers = {(key, step): value for step, some in found for key, value in some.items() if "/" in key}
        self.assertEqual(numbers, wanted)
        self.assertIn(("step/loss", 4), numbers)
        self.assertIn(("eval/loss", 2), numbers)

    def test_what_a_recipe_sends(self):
        self.assertEqual(self.result.code, 0, self.result.err)
        for module in ("wandb", "mlflow"):
            folder = self.path("fake-" + module)
            os.mkdir(folder)
            with open(os.path.join(folder, module + ".py"), "w", encoding="utf-8") as file:
                file.write(FAKE)
            self.python(folder, self.recipe(module), PYTHONPATH=folder)
            with open(os.path.join(folder, "said"), encoding="utf-8") as file:
                first, *rest = [json.loads(line) for line in file]
            self.assertEqual(first, ["options", self.path("run"), 128])
            self.check_numbers(rest)

    @unittest.skipUnless(importlib.util.find_spec("wandb"), "wandb is not installed")
    def test_wandb(self):
        folder = self.path("wandb-runs")
        os.mkdir(folder)
        self.python(folder, self.recipe("wandb"), WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
        self.check_numbers(self.python(folder, READ_WANDB))

    @unittest.skipUnless(importlib.util.find_spec("mlflow"), "mlflow is not installed")
    def test_mlflow(self):
        folder = self.path("mlflow-runs")
        os.mkdir(folder)
        self.python(folder, self.recipe("mlflow"), MLFLOW_TRACKING_URI=f"sqlite:///{folder}/runs.db")
        self.check_numbers(self.python(folder, READ_MLFLOW, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/runs.db"))


if __name__ == "__main__":
    program.main()
