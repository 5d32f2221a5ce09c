"""offload-train download, and commands whose --model, --adapter or --data is on the hub, against a server of the tests."""

import base64
import ctypes
import glob
import json
import os
import pty
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import unittest

import hub_server
from hub_server import always, cut, git_hash, of_range, pause, raw, sha256, slow, status, without_ranges, wrong_bytes
from program import PROGRAM, SMALL as SMALL_RUN, main, read_bytes, run, sql_rows, write_rows

USAGE, INPUT, IO, INTERRUPT = 2, 3, 5, 8
CHUNK = 4 << 20  # of small files (src/hub/partial.c)
SMALL = {"config.json": b'{"model_type": "none"}', "tokenizer.json": b"{}", "README.md": b"# x", "merges.txt": b"a b\n"}


def noise(n, seed=1):
    """Bytes that no two ranges of a file share."""
    return random.Random(seed).randbytes(n)


class HubTest(hub_server.HubTest):
    def setUp(self):
        self.hub.clear()
        self.cache = self.path("cache")
        shutil.rmtree(self.cache, ignore_errors=True)
        self.env = {"HF_ENDPOINT": self.hub.url, "HF_HUB_CACHE": self.cache, "HF_HOME": self.path("home"), "HF_HUB_OFFLINE": "0",
                    "HF_TOKEN": "", "XDG_CACHE_HOME": self.path("xdg"), "HF_HUB_DOWNLOAD_TIMEOUT": "5"}

    def download(self, *words, **env):
        return self.succeed("download", *words, env={**self.env, **env})

    def refuse(self, code, phrase, *words, **env):
        result = run("download", *words, env={**self.env, **env})
        self.assertEqual(result.code, code, result.err)
        errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, result.err)
        self.assertIn(phrase, errors[0])
        self.assertNotIn(self.hub.token, result.err + result.out)
        self.assertNotIn("SECRET-SIGNATURE", result.err + result.out)
        return result.err

    def files(self):
        """All files of the cache by their path, links followed; without locks."""
        found = {}
        for where, _, names in os.walk(self.cache):
            for name in names:
                path = os.path.relpath(os.path.join(where, name), self.cache)
                if not path.startswith(".locks"):
                    found[path] = read_bytes(os.path.join(where, name))
        return found

    def unfinished(self):
        """Paths of the files that a download has begun. Reads no file: a running program renames them."""
        return glob.glob(f"{self.cache}/**/*.incomplete", recursive=True)

    def snapshot(self, repository, name="org/name"):
        folder = f"{self.cache}/models--{name.replace('/', '--')}/snapshots/{repository.commit}"
        paths = [path for path in glob.glob(f"{folder}/**", recursive=True) if os.path.isfile(path)]
        return {os.path.relpath(path, folder): read_bytes(path) for path in paths}


class Download(HubTest):
    def test_the_layout_of_the_cache(self):
        weights = noise(100)
        repository = self.hub.add("org/name", {**SMALL, "model.safetensors": weights, "pytorch_model.bin": b"pickle",
                                               "onnx/model.onnx": b"other", "additional_chat_templates/tool_use.jinja": b"{{ x }}",
                                               "additional_chat_templates/other.jinja": b"", "quantize_config.json": b"{ }", "added_tokens.json": SMALL["tokenizer.json"]})
        result = self.download("org/name")
        folder = f"models--org--name/snapshots/{repository.commit}"
        self.assertEqual(result.out, f"{self.cache}/{folder}\n")
        wanted = {name: SMALL[name] for name in ("config.json", "merges.txt", "tokenizer.json")}
        wanted["additional_chat_templates/tool_use.jinja"], wanted["quantize_config.json"] = b"{{ x }}", b"{ }"
        wanted["added_tokens.json"] = SMALL["tokenizer.json"]  # two files, one blob
        self.assertEqual(self.snapshot(repository), {**wanted, "model.safetensors": weights})
        blobs = {f"models--org--name/blobs/{git_hash(data)}": data for data in wanted.values()}
        self.assertEqual({path: data for path, data in self.files().items() if "/snapshots/" not in path},
                         {**blobs, f"models--org--name/blobs/{sha256(weights)}": weights,
                          "models--org--name/refs/main": repository.commit.encode()})
        self.assertEqual(os.readlink(f"{self.cache}/{folder}/model.safetensors"), f"../../blobs/{sha256(weights)}")
        self.hub.clear()
        self.assertEqual(self.download("org/name", "--json", HF_ENDPOINT=self.hub.url + "//").json(),
                         {"model": f"{self.cache}/{folder}", "bytes": 0, "data": []})
        self.assertEqual([path for _, path, _ in self.hub.asked("hub")], ["/api/models/org/name/revision/main"])
        self.assertEqual({headers["Accept-Encoding"] for _, _, headers in self.hub.asked("hub")}, {"identity"})

    def test_revisions(self):
        first = self.hub.add("org/name", {**SMALL, "model.safetensors": b"old"})
        old = first.commit
        self.download("org/name")
        second = self.hub.add("org/name", {**SMALL, "model.safetensors": b"new"})
        second.revisions["v1.0"] = second.revisions["refs/pr/7"] = second.commit
        self.download("org/name@v1.0")
        self.assertEqual(self.files()["models--org--name/refs/main"], old.encode())
        self.assertEqual(self.files()["models--org--name/refs/v1.0"], second.commit.encode())
        self.download("org/name@refs/pr/7")
        self.assertEqual(self.files()["models--org--name/refs/refs/pr/7"], second.commit.encode())
        self.download("--model", f"org/name@{second.commit}")
        self.download("org/name")
        self.assertEqual(self.files()["models--org--name/refs/main"], second.commit.encode())
        self.refuse(INPUT, "org/name has no branch, tag or commit 'v9'", "org/name@v9")
        for name in ("org/name@../main", "org/name@", "org/name@a//b", "../name", "org/..", "a/b/c", "org", "org/na--me", "org/n@a b"):
            self.refuse(USAGE, "no name of a model on the hub", name)

    def test_shards_and_pickles(self):
        shards = {f"model-0000{i}-of-00002.safetensors": noise(50, i) for i in (1, 2)}
        index = json.dumps({"weight_map": {"a": list(shards)[0], "b": list(shards)[1], "c": list(shards)[0]}}).encode()
        repository = self.hub.add("org/name", {**SMALL, **shards, "model.safetensors.index.json": index, "consolidated.safetensors": b"2",
                                               "pytorch_model.bin": b"3"})
        self.download("org/name")
        self.assertEqual(set(self.snapshot(repository)), {*SMALL, *shards, "model.safetensors.index.json"} - {"README.md"})
        repository = self.hub.add("org/pickle", {**SMALL, "pytorch_model.bin": b"3", "tf_model.h5": b"4"})
        self.download("org/pickle")
        self.assertEqual(set(self.snapshot(repository, "org/pickle")), {*SMALL, "pytorch_model.bin"} - {"README.md"})

    def test_what_is_no_model(self):
        self.hub.add("org/name", {"README.md": b""})
        self.refuse(INPUT, "org/name: has no config.json", "org/name")
        self.hub.add("org/name", {"a.Q4_K_M.gguf": b"GGUF", "README.md": b""})
        self.refuse(INPUT, "choose one, such as --model hf://org/name/a.Q4_K_M.gguf", "org/name")
        self.download("hf://org/name/a.Q4_K_M.gguf")
        self.hub.add("org/name", {"adapter_config.json": b"{}"})
        self.refuse(INPUT, "org/name: holds adapters, not a model: give them with --adapter", "org/name")
        self.hub.add("org/name", SMALL)
        self.refuse(INPUT, "has no weights", "org/name")
        for weights in ({"a": "../evil"}, {"a": "/etc/passwd"}, {"a": ".."}, {"a": "x/y"}, {"a": 7}, {}, {"a": "absent.safetensors"}):
            index = json.dumps({"weight_map": weights}).encode()
            self.hub.add("org/name", {**SMALL, "model.safetensors.index.json": index, "../evil": b"evil", "x/y": b""})
            self.refuse(INPUT, "model.safetensors.index.json", "org/name")
        self.refuse(USAGE, "this preset has no published weights", "tiny-sql")

    def test_adapters(self):
        files = {"adapter_config.json": b"{ }", "adapter_model.bin": b"pickle", "tokenizer.json": b"{}", "optimizer.pt": b"x"}
        weights = noise(50)
        repository = self.hub.add("org/name", {**files, "config.json": b"{}", "adapter_model.safetensors": weights})
        result = self.download("--adapter", "org/name", "--json").json()
        folder = f"{self.cache}/models--org--name/snapshots/{repository.commit}"
        self.assertEqual(result, {"adapter": folder, "bytes": 50 + 3 + 2, "data": []})
        self.assertEqual(self.snapshot(repository), {"adapter_config.json": b"{ }", "tokenizer.json": b"{}", "adapter_model.safetensors": weights})
        torch = self.hub.add("org/torch", files)
        self.hub.add("org/base", {**SMALL, "model.safetensors": b"w"})
        folders = self.download("org/base", "--adapter", f"org/torch@{torch.commit}").out.split()
        self.assertEqual([folder.split("/")[-3] for folder in folders], ["models--org--base", "models--org--torch"])
        self.assertEqual(set(self.snapshot(torch, "org/torch")), {"adapter_config.json", "adapter_model.bin", "tokenizer.json"})
        self.refuse(INPUT, "org/base: holds a model, not adapters (it has no adapter_config.json): give it with --model", "--adapter", "org/base")
        self.hub.add("org/name", {"README.md": b""})
        self.refuse(INPUT, "org/name: has no adapter_config.json, so it holds no adapters of PEFT", "--adapter", "org/name")
        self.hub.add("org/name", {"adapter_config.json": b"{ }", "../adapter_model.safetensors": b"evil"})
        self.refuse(INPUT, "has no weights of adapters: neither adapter_model.safetensors nor", "--adapter", "org/name")
        for name in ("llama-7b", "../name", "org/..", "org/name@../main", self.path("cache")):
            self.refuse(USAGE, "no name of adapters on the hub", "--adapter", name)

    def test_a_large_file_in_parallel_ranges(self):
        weights = noise(3 * CHUNK + 12345)
        repository = self.hub.add("org/name", {**SMALL, "model.safetensors": weights})
        self.download("org/name")
        self.assertEqual(self.snapshot(repository)["model.safetensors"], weights)
        ranges = sorted(headers["Range"] for _, _, headers in self.hub.asked("files"))
        self.assertEqual(len(ranges), 4)
        self.assertEqual(ranges[0], f"bytes=0-{CHUNK - 1}")


class Faults(HubTest):
    """Connections that are cut, slow or wrong."""

    def setUp(self):
        super().setUp()
        self.env["HF_HUB_DOWNLOAD_TIMEOUT"] = "1"
        self.weights = noise(2 * CHUNK + 1000)
        self.repository = self.hub.add("org/name", {**SMALL, "model.safetensors": self.weights})

    def check_weights(self):
        self.assertEqual(self.snapshot(self.repository)["model.safetensors"], self.weights)
        self.assertEqual([path for path in self.files() if "incomplete" in path], [])

    def received(self):
        """The bytes of the weights that were asked for."""
        ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", headers["Range"]) for _, _, headers in self.hub.asked("files")]
        return sum(int(match[2]) + 1 - int(match[1]) for match in ranges)

    def test_a_cut_goes_on_where_it_was(self):
        self.hub.faults["model.safetensors"] = [cut(3 << 20), cut(0), cut(2 << 20)]
        err = self.download("org/name").err
        self.assertIn("trying again", err)
        self.check_weights()
        self.assertLess(self.received(), len(self.weights) + 2 * CHUNK)

    def test_the_end_of_the_process_goes_on_where_it_was(self):
        self.hub.faults["model.safetensors"] = [of_range(0, cut(3 << 20)), of_range(3 << 20, status(404))]
        self.refuse(INPUT, "127.0.0.1", "org/name")
        names = [path for path in self.files() if "incomplete" in path]
        self.assertEqual(names, [f"models--org--name/blobs/{sha256(self.weights)}.offload-train.incomplete"])
        self.assertNotIn("models--org--name/refs/main", self.files())
        self.hub.clear()
        self.download("org/name")
        self.check_weights()
        self.assertLessEqual(self.received(), len(self.weights) - (3 << 20))
        self.assertIn(f"bytes={3 << 20}-{CHUNK - 1}", [headers["Range"] for _, _, headers in self.hub.asked("files")])

    def test_a_signal_ends_it_at_once(self):
        for number, words in (signal.SIGINT, ["download", "org/name"]), (signal.SIGTERM, ["generate", "org/name", "-p", "x"]), (
                signal.SIGINT, ["--model", "org/name", "--data", self.rows, "--out", self.path("never")]):
            self.hub.faults["model.safetensors"] = [cut(1 << 20)] + [lambda handler: time.sleep(4)] * 9
            program = subprocess.Popen([PROGRAM, *words], env={**os.environ, **self.env, "HF_HUB_DOWNLOAD_TIMEOUT": "9"},
                                       stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            while not self.unfinished() or len(self.hub.asked("files")) < 3:
                time.sleep(0.02)
            begun = time.monotonic()
            program.send_signal(number)
            err = program.communicate()[1].decode()
            self.assertLess(time.monotonic() - begun, 3)  # the server would hold it for 4 seconds; the machine may be busy
            self.assertEqual(program.returncode, INTERRUPT)
            self.assertIn("the same command goes on where it stopped", err)
            self.assertTrue(self.unfinished())
            self.hub.clear()
        self.download("org/name")
        self.check_weights()

    def test_the_progress_on_a_terminal(self):
        self.hub.faults["model.safetensors"] = [of_range(0, pause(1 << 20))]
        ours, theirs = pty.openpty()
        program = subprocess.Popen([PROGRAM, "download", "org/name"], stdout=subprocess.DEVNULL, stderr=theirs,
                                   env={**os.environ, **self.env, "HF_HUB_DOWNLOAD_TIMEOUT": "9"})
        _, program.returncode, usage = os.wait4(program.pid, 0)
        self.assertLess(usage.ru_utime + usage.ru_stime, 0.8)  # nothing spins while the server waits for a second
        os.close(theirs)
        shown = os.read(ours, 1 << 16).decode()
        os.close(ours)
        self.assertRegex(shown, r"download org/name: [1-8]\.[0-9] MiB of 8\.0 MiB · [0-9.]+ [KM]iB/s · [0-9.]+s left")
        self.assertRegex(shown, r"\ndownloaded org/name: 8.0 MiB in 1.*s \([0-9.]+ MiB/s\)\r\n$|\x1b\[Kdownloaded org/name: 8.0 MiB in 1")

    def test_a_server_without_ranges(self):
        self.hub.faults["model.safetensors"] = [without_ranges] * 9
        self.download("org/name")
        self.check_weights()

    def test_wrong_content_is_got_again_and_then_refused(self):
        self.hub.faults["model.safetensors"] = [wrong_range]
        self.assertIn("what arrived has the wrong hash", self.download("org/name").err)
        self.check_weights()
        for name, data in ("model.safetensors", b"short"), ("tokenizer.json", SMALL["tokenizer.json"]):
            self.hub.add("org/other", {**SMALL, "model.safetensors": b"short"})
            shutil.rmtree(self.cache)
            self.hub.faults[name] = [always(wrong_bytes)]
            self.refuse(INPUT, "another hash than the server says", "org/other")
            self.assertFalse([path for path in self.files() if path.endswith((sha256(data), git_hash(data), name))])
            self.hub.clear()
        self.download("org/other")

    def test_lengths_that_lie(self):
        def lie(**headers):
            return lambda handler: handler.answer(206, b"x" * 100, **headers) or True
        for fault in (lie(Content_Range=f"bytes 0-99/{len(self.weights) + 1}"), lie(Content_Range="bytes 7-106/100000"),
                      lambda handler: handler.answer(200, b"123456789") or True):
            self.hub.faults["model.safetensors"] = [always(fault)]
            self.refuse(INPUT, "model.safetensors: the server", "org/name")
            self.hub.clear()
        huge = {"X_Repo_Commit": self.repository.commit, "X_Linked_Etag": '"' + "a" * 64 + '"', "Location": "/x"}
        for size, code, phrase in (str(1 << 49), IO, "are to be downloaded"), (str(1 << 60), INPUT, "how long"), ("-1", INPUT, "how long"), (
                "9" * 40, INPUT, "how long"):
            self.hub.faults["HEAD model.safetensors"] = [always(status(302, X_Linked_Size=size, **huge))]
            self.refuse(code, phrase, "org/name")
            self.hub.clear()
        self.assertFalse([path for path in self.files() if "a" * 64 in path])

    def test_slow_servers_are_given_up(self):
        self.hub.faults["model.safetensors"] = [slow(len(self.weights))]
        self.download("org/name")
        self.check_weights()
        self.hub.faults["list org/name"] = [slow(1000)]
        self.download("org/name")

    def test_redirects(self):
        for location, phrase in ("/x", "more than 10 redirects"), ("", "no URL"), ("ftp://127.0.0.1/x", "no URL"), (
                "http://user:word@127.0.0.1/", "no URL"), ("//", "no URL"), ("file:///etc/passwd", "no URL"):
            with self.subTest(location=location):
                self.hub.plain["/x"] = b""
                self.hub.faults["/x"] = self.hub.faults["list org/name"] = [always(status(302, Location=location))] * 2
                self.refuse(INPUT, phrase, "org/name")
                self.hub.clear()

    def test_busy_servers(self):
        self.hub.faults["list org/name"] = [status(503), status(429, Retry_After="1")]
        begun = time.monotonic()
        err = self.download("org/name").err
        self.assertGreater(time.monotonic() - begun, 1)
        self.assertIn("asks to wait (HTTP 429): trying again in 1 s", err)
        self.hub.faults["list org/name"] = [status(500)] * 9
        self.refuse(IO, "has a fault (HTTP 500) and did not recover", "org/name")

    def test_nobody_answers(self):
        self.refuse(IO, "cannot ask the hub: 127.0.0.1:9", "org/name", HF_ENDPOINT="http://127.0.0.1:9")
        self.refuse(IO, "or download with 'hf download'", "org/name", OFFLOAD_TRAIN_LIBCURL="/nowhere.so")
        self.refuse(IO, "libcurl has no function", "org/name", OFFLOAD_TRAIN_LIBCURL="libz.so.1")
        self.refuse(USAGE, "HF_ENDPOINT", "org/name", HF_ENDPOINT="huggingface.co")
        self.refuse(IO, "cannot make this folder", "org/name", HF_HUB_CACHE=self.rows)

    def test_a_host_that_takes_no_connection(self):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # they fill the queue of the listener, so that the next one hangs
        for other in waiting:
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        begun = time.monotonic()
        self.refuse(IO, "cannot ask the hub", "org/name", HF_ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}",
                    HF_HUB_DOWNLOAD_TIMEOUT="0.2")
        self.assertLess(time.monotonic() - begun, 4)
        for other in [listener, *waiting]:
            other.close()

    def test_answers_that_are_not_of_a_hub(self):
        many = json.dumps({"sha": self.repository.commit, "siblings": [{"rfilename": f"x{i}"} for i in range(100000)]
                           + [{"rfilename": name} for name in ("config.json", "config.json", "model.safetensors", "../evil", "/evil", "a\0b")]})
        self.repository.answer = many.encode()
        self.download("org/name")
        self.assertEqual(set(self.snapshot(self.repository)), {"config.json", "model.safetensors"})
        for answer in (b"", b"<html>", b"[" * 100000, b"{}", b'{"sha": 7}', b'{"sha": "../../../../evil"}', b'{"sha": "' + b"a" * 41 + b'"}',
                       b'{"sha": "AAAA1234aaaa1234aaaa1234aaaa1234aaaa1234"}'):
            self.repository.answer = answer
            self.refuse(INPUT, "does not answer as a Hugging Face hub does", "org/name")
        self.repository.answer = None
        for headers in ({}, {"X_Repo_Commit": "b" * 40}, {"X_Repo_Commit": "../x"}):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.hub.faults["HEAD config.json"] = [status(200, ETag='"' + "a" * 40 + '"', Content_Length="9", **headers)]
            self.refuse(INPUT, "does not answer as a Hugging Face hub does", "org/name")
        for etag in ("", '"../../../evil"', '"' + "g" * 40 + '"', "x" * 1000, '"' + "a" * 63 + '"'):
            self.hub.faults["HEAD config.json"] = [status(200, ETag=etag, Content_Length="9", X_Repo_Commit=self.repository.commit)]
            self.refuse(INPUT, "does not say the file's hash", "org/name")
        self.assertEqual([path for path in os.listdir(self.folder) if "evil" in path], [])

    def test_headers_that_are_hostile(self):
        ok, end = b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n"
        for answer in (ok + b"ETag: " + b"a" * 200000 + end, ok + b"X: y\r\n" * 100000 + end, ok + b"X-Repo-Commit: a\0b" + end,
                       ok + b"Content-Length: -5" + end, ok + b"Content-Length: 99999999999999999999" + end, b"HTTP/1.1 999" + end,
                       b"HTTP/9.9 200 OK" + end, b"garbage" + end, b"", ok, ok + b": x\r\n:::\r\n \r\nno colon" + end,
                       b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + b"HTTP/1.1 404 No\r\nContent-Length: 0" + end,
                       b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 99999999999999999999" + end):
            with self.subTest(answer=answer[:60]):
                self.hub.faults["HEAD config.json"] = [raw(answer)]
                result = run("download", "org/name", env={**self.env, "HF_HUB_DOWNLOAD_TIMEOUT": "0.2"})
                self.assertIn(result.code, (INPUT, IO), result.err)
                self.assertEqual(result.err.count("error: "), 1)
        much = b"[" * (1 << 20)
        self.hub.faults["list org/name"] = [raw(ok + b"\r\n", much, much)]
        self.refuse(INPUT, "the answer has more than 64 MiB", "org/name")
        self.hub.faults["list org/name"] = [raw(b"HTTP/1.1 404 No" + end, much, much)]
        self.refuse(INPUT, "the hub has no public model of this name", "org/name")


def wrong_range(handler):
    """The range that was asked for, with other bytes."""
    first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
    handler.answer(206, b"x" * (last + 1 - first), Content_Range=f"bytes {first}-{last}/{2 * CHUNK + 1000}")
    return True


class Access(HubTest):
    """Tokens, and repositories that are private, gated, renamed or missing."""

    def test_the_token_goes_to_the_hub_alone(self):
        self.hub.add("org/name", {**SMALL, "model.safetensors": b"w"}, private=True)
        self.refuse(INPUT, "set HF_TOKEN to a token that may read it", "org/name")
        os.makedirs(self.path("home"), exist_ok=True)
        for way in "variable", "file":
            self.hub.clear()
            shutil.rmtree(self.cache, ignore_errors=True)
            if way == "file":
                with open(self.path("home/secret"), "w") as file:
                    file.write(self.hub.token + "\n")
                os.symlink("secret", self.path("home/token"))  # as secrets of Kubernetes are
            result = self.download("org/name", HF_TOKEN=self.hub.token if way == "variable" else "")
            self.assertNotIn(self.hub.token, result.out + result.err)
            self.assertTrue(self.hub.asked("files"))
            for role in "hub", "files":
                wanted = f"Bearer {self.hub.token}" if role == "hub" else None
                self.assertEqual({headers.get("Authorization") for _, _, headers in self.hub.asked(role)}, {wanted})
        self.assertNotIn(self.hub.token.encode(), b"".join(self.files().values()))
        os.unlink(self.path("home/token"))

    def test_a_redirect_to_another_server_and_back(self):
        """The list is on the other server, which sends back to the hub: only the hub sees the token."""
        self.hub.add("org/name", {**SMALL, "model.safetensors": b"w"}, private=True)
        self.hub.faults["list org/name"] = [status(302, Location=f"{self.hub.files_url}/blobs/x?name=x")]
        self.refuse(INPUT, "answers HTTP 404", "org/name", HF_TOKEN=self.hub.token)
        self.assertEqual({headers.get("Authorization") for _, _, headers in self.hub.asked("files")}, {None})

    def test_tokens_that_are_wrong(self):
        self.hub.add("org/name", {**SMALL, "model.safetensors": b"w"})
        err = self.refuse(INPUT, "the hub does not accept your token", "org/name", HF_TOKEN="hf_wrong")
        self.assertNotIn("hf_wrong", err)
        for token in "a b", "a\r\nX-Evil: 1", "\x7f", "ä", "x" * 512:
            self.hub.clear()
            err = self.refuse(USAGE, "HF_TOKEN: this is no token", "org/name", HF_TOKEN=token)
            self.assertNotIn(token, err)
            self.assertEqual(self.hub.asked("hub"), [])

    def test_a_server_that_repeats_the_token(self):
        self.hub.add("org/name", SMALL)
        self.hub.faults["list org/name"] = [status(403, X_Error_Message=f"no right for {self.hub.token}")]
        self.refuse(INPUT, "the hub refuses access (HTTP 403)", "org/name", HF_TOKEN=self.hub.token)
        self.hub.faults["list org/name"] = [status(403, X_Error_Message="no right\x1b[2J")]
        self.refuse(INPUT, "(HTTP 403: no right [2J)", "org/name", HF_TOKEN=self.hub.token)

    def test_gated(self):
        self.hub.add("org/name", {**SMALL, "model.safetensors": b"w"}, gated=True)
        self.refuse(INPUT, f"org/name is gated: accept its terms at {self.hub.url}/org/name, then set HF_TOKEN", "org/name")
        self.download("org/name", HF_TOKEN=self.hub.token)
        self.hub.add("org/name", {**SMALL, "model.safetensors": b"v"}, gated="refused")
        self.refuse(INPUT, "the account of your token has no access", "org/name", HF_TOKEN=self.hub.token)

    def test_missing_and_renamed(self):
        self.refuse(INPUT, "org/nothing: the hub has no public model of this name", "org/nothing")
        self.refuse(INPUT, "your token may not read it", "org/nothing", HF_TOKEN=self.hub.token)
        self.hub.add("new/name", {**SMALL, "model.safetensors": b"w"})
        self.hub.add("old/name", {}, renamed="new/name")
        self.assertIn("old/name is called new/name now", self.download("old/name").err)
        self.assertIn("models--old--name/refs/main", self.files())


class Certificates(HubTest):
    """A hub with a certificate that nobody trusts, and proxies on the way."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("openssl"):
            raise unittest.SkipTest("openssl is not installed, which makes the certificate")
        super().setUpClass()
        cls.ca = cls.path("ca.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", cls.path("key.pem"), "-out", cls.ca],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cls.ca, cls.path("key.pem"))
        cls.tls = hub_server.HubServer(context)
        for hub in cls.hub, cls.tls:
            hub.add("org/name", {**SMALL, "model.safetensors": b"weights"})

    @classmethod
    def tearDownClass(cls):
        cls.tls.close()
        super().tearDownClass()

    def setUp(self):
        super().setUp()
        self.tls.clear()
        self.env.update({name: "" for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "http_proxy", "https_proxy",
                                               "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")})

    def test_authorities(self):
        self.env["HF_ENDPOINT"] = self.tls.url
        self.refuse(IO, "has this certificate, let SSL_CERT_FILE name its CA", "org/name")
        self.assertEqual(self.tls.requests, [])
        with open(self.path("none.pem"), "w") as file:
            file.write("no certificate")
        absent, other = self.path("absent.pem"), self.path("none.pem")
        order = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"]
        for i, name in enumerate(order):
            shutil.rmtree(self.cache, ignore_errors=True)
            later = dict.fromkeys(order[i + 1:], absent)
            self.download("org/name", **{name: self.ca}, **later)
            self.refuse(USAGE, f"{name}: {absent} cannot be read: unset it", "org/name", **{name: absent}, **dict.fromkeys(order[i + 1:], self.ca))
            self.refuse(IO, f"{name} names these certificates", "org/name", **{name: other}, **later)
        self.assertEqual(set(self.snapshot(self.tls.repositories["model", "org/name"])), {*SMALL, "model.safetensors"} - {"README.md"})
        folder = self.path("folder")
        os.mkdir(folder)
        self.refuse(IO, "let CURL_CA_BUNDLE name its CA", "org/name", CURL_CA_BUNDLE=folder)
        digits = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", self.ca], check=True, capture_output=True).stdout.decode().strip()
        os.symlink(self.ca, f"{folder}/{digits}.0")
        self.download("org/name", CURL_CA_BUNDLE=folder)

    def test_proxies(self):
        login = "Basic " + base64.b64encode(b"user:SECRET-SIGNATURE").decode()
        for hub, method in (self.hub, "GET"), (self.tls, "CONNECT"):
            with self.subTest(method), hub_server.Proxy() as proxy, hub_server.Proxy(login) as closed:
                shutil.rmtree(self.cache, ignore_errors=True)
                variable = "https_proxy" if method == "CONNECT" else "http_proxy"
                self.env.update({"HF_ENDPOINT": hub.url, "SSL_CERT_FILE": self.ca})
                self.download("org/name", **{variable: f"http://{proxy.host}", "NO_PROXY": "127.0.0.1"})
                self.assertEqual(proxy.asked, [])
                shutil.rmtree(self.cache)
                self.download("org/name", **{variable: f"http://{proxy.host}"})
                hosts = {target.removeprefix("http://").split("/")[0] for _, target in proxy.asked}
                self.assertEqual(hosts, {url.split("//")[1] for url in (hub.url, hub.files_url)})
                self.assertEqual({asked for asked, _ in proxy.asked}, {"CONNECT"} if method == "CONNECT" else {"GET", "HEAD"})
                shutil.rmtree(self.cache)
                self.refuse(IO, "the proxy wants a login (HTTP 407)", "org/name", **{variable: f"http://user:SECRET-SIGNATURE2@{closed.host}"})
                self.assertEqual(len(closed.asked), 1)
                self.download("org/name", **{variable: f"http://user:SECRET-SIGNATURE@{closed.host}"})


class Commands(HubTest):
    """--model and --data of other commands."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run("train", *SMALL_RUN, "--data", cls.rows, "--out", cls.path("made"), "--steps", "1", "--no-forecast")
        cls.made = {name: read_bytes(cls.path(f"made/{name}")) for name in os.listdir(cls.path("made"))
                    if name.endswith((".json", ".safetensors", ".jinja"))}

    def setUp(self):
        super().setUp()
        self.hub.add("org/name", self.made)
        self.data = {"train.jsonl": read_bytes(self.rows), "more/notes.txt": b"Some text.\n" * 40}
        self.hub.add("org/rows", self.data, kind="dataset")

    def weights(self):
        return [path for _, path, _ in self.hub.asked("files", "name=model.safetensors")]

    def test_a_model_that_is_missing(self):
        near = self.succeed("eval", self.path("made"), "--data", self.rows, "--json", "--seq-len", "128").json()["loss"]
        far = self.succeed("eval", "org/name", "--data", self.rows, "--json", "--seq-len", "128", env=self.env)
        self.assertEqual(far.json()["loss"], near)
        self.assertEqual(len(self.weights()), 1)
        self.hub.clear()
        words = ["eval", "org/name", "--data", self.rows, "--json", "--seq-len", "128"]
        self.assertEqual(self.succeed(*words, env=self.env).json()["loss"], near)
        self.assertEqual(self.succeed(*words, env={**self.env, "HF_HUB_OFFLINE": "1"}).json()["loss"], near)
        self.assertEqual(self.hub.requests, [])
        os.unlink(glob.glob(f"{self.cache}/models--org--name/blobs/{sha256(self.made['model.safetensors'])}")[0])
        self.fail_with(INPUT, "get it with 'offload-train download org/name'", *words, env={**self.env, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(self.succeed(*words, env=self.env).json()["loss"], near)
        self.assertEqual(len(self.weights()), 1)

    def test_without_weights(self):
        words = ["plan", "org/name", "--gpu", "rtx4090", "--json"]
        self.fail_with(INPUT, "'hf download org/name config.json'", *words, env={**self.env, "HF_HUB_OFFLINE": "1"})
        self.succeed(*words, env=self.env)
        self.succeed("tokenize", "org/name", "-p", "text", env=self.env)
        self.assertEqual(self.weights(), [])
        self.assertEqual(len(self.hub.asked("hub", "/api/")), 1)
        self.succeed("generate", "org/name", "-p", "text", "--max-new-tokens", "2", env=self.env)
        self.assertEqual(len(self.weights()), 1)

    def test_adapters_get_their_base(self):
        adapter = self.path("adapter")
        self.succeed("train", "--model", self.path("made"), "--lora", "r=2", *SMALL_RUN[4:], "--data", self.rows, "--steps", "1",
                     "--no-forecast", "--out", adapter)
        with open(f"{adapter}/adapter_config.json") as file:
            config = json.load(file)
        with open(f"{adapter}/adapter_config.json", "w") as file:
            json.dump({**config, "base_model_name_or_path": "org/name"}, file)
        self.succeed("merge", adapter, "--out", self.path("merged"), env=self.env)
        self.assertEqual(len(self.weights()), 1)
        self.succeed("plan", "org/name", "--gpu", "rtx4090", "--data", "hf://datasets/org/rows/train.jsonl", "--json", env=self.env)

    def test_adapters_of_the_hub(self):
        """Their commands, online and offline; a stopped download goes on; names that are wrong; a run that goes on."""
        run("train", "--model", self.path("made"), *SMALL_RUN[4:], "--lora", "r=2", "--lr", "1e-2", "--data", self.rows, "--steps", "1",
            "--no-forecast", "--out", self.path("tuned"))
        files = {name: read_bytes(self.path(f"tuned/{name}")) for name in os.listdir(self.path("tuned"))
                 if name.startswith("adapter_") or name == "run.json"}
        weights = files["adapter_model.safetensors"]
        tuned = self.hub.add("org/tuned", files)
        words = ["eval", "org/name", "--data", self.rows, "--json", "--seq-len", "128"]
        near = self.succeed("eval", self.path("made"), "--adapter", self.path("tuned"), *words[2:]).json()["loss"]
        self.assertGreater(abs(self.succeed(*words, env=self.env).json()["loss"] - near), 1e-4)
        self.hub.faults["adapter_model.safetensors"] = [cut(len(weights) // 2), status(404)]
        stopped = run(*words, "--adapter", "org/tuned", env=self.env)
        self.assertIn("error: org/tuned/adapter_model.safetensors", stopped.err)
        self.assertEqual((stopped.code, len(self.unfinished())), (INPUT, 1))
        self.assertEqual(self.succeed(*words, "--adapter", "org/tuned", env=self.env).json()["loss"], near)
        self.assertEqual(self.snapshot(tuned, "org/tuned"), files)
        ranges = [headers["Range"] for _, _, headers in self.hub.asked("files", "name=adapter_model.safetensors")]
        self.assertEqual(ranges[-1].split("-")[0], f"bytes={len(weights) // 2}")
        self.hub.clear()
        offline = {**self.env, "HF_HUB_OFFLINE": "1"}
        self.assertEqual(self.succeed(*words, "--adapter", "org/tuned@main", env=offline).json()["loss"], near)
        self.succeed("merge", "org/name", "org/tuned", "--out", self.path("merged-tuned"), env=offline)
        self.assertAlmostEqual(self.succeed("eval", self.path("merged-tuned"), *words[2:]).json()["loss"], near, 6)
        self.fail_with(INPUT, "get them with 'offload-train download --adapter org/absent'", *words, "--adapter", "org/absent", env=offline)
        self.fail_with(INPUT, "(a model, not adapters)", *words, "--adapter", "org/name", env=offline)
        self.fail_with(INPUT, "(adapters, which --adapter takes)", "eval", "org/tuned", *words[2:], env=offline)
        self.assertEqual(self.hub.requests, [])
        self.fail_with(INPUT, "org/absent: the hub has no public model of this name", *words, "--adapter", "org/absent", env=self.env)
        self.fail_with(INPUT, "org/name: holds a model, not adapters", *words, "--adapter", "org/name", env=self.env)
        self.fail_with(INPUT, "org/tuned: holds adapters, not a model: give them with --adapter", "eval", "org/tuned", *words[2:], env=self.env)
        self.hub.clear()
        for name in "../tuned", "org/../tuned", "org/tuned@../main", "org/tuned/x", "hf://org/tuned/adapter_model.safetensors":
            self.fail_with(INPUT, "no such directory; adapters of the hub are named ORG/NAME[@REVISION]", *words, "--adapter", name, env=self.env)
        self.fail_with(INPUT, "this is a file", *words, "--adapter", self.path("tuned/adapter_config.json"), env=self.env)
        self.assertEqual(self.hub.requests, [])

    def test_a_run_that_goes_on_from_adapters_of_the_hub(self):
        words = ["train", *SMALL_RUN[4:], "--data", self.rows, "--no-forecast", "--lora", "r=2"]
        self.succeed(*words, "--model", self.path("made"), "--steps", "1", "--out", self.path("first"))
        self.hub.add("org/first", {name: read_bytes(self.path(f"first/{name}")) for name in ("adapter_config.json", "adapter_model.safetensors")})
        words = [*words[:-2], "--model", "org/name", "--adapter", "org/first", "--steps", "2", "--out", self.path("second")]
        result = self.succeed(*words, "--save-every", "1", "--keep", "9", env=self.env)
        self.assertIn("org/first (HF cache, ", result.err)
        with open(self.path("second/run.json")) as file:
            self.assertEqual(json.load(file)["adapter"], "org/first")
        with open(self.path("second/adapter_config.json")) as file:
            self.assertEqual(json.load(file)["base_model_name_or_path"], "org/name")
        whole = read_bytes(self.path("second/adapter_model.safetensors"))
        for network in "0", "1":  # from its checkpoint; without a network the adapters are not needed again
            shutil.rmtree(self.path("second/checkpoints/step-00000002"), ignore_errors=True)
            for name in "checkpoints/complete", "finished.json", "adapter_model.safetensors":
                os.remove(self.path(f"second/{name}"))
            shutil.rmtree(f"{self.cache}/models--org--first")
            again = self.succeed(*words, env={**self.env, "HF_HUB_OFFLINE": network})
            self.assertEqual("the adapters are taken from the checkpoint alone: org/first: no adapters found" in again.err, network == "1")
            self.assertEqual(read_bytes(self.path("second/adapter_model.safetensors")), whole)

    def test_a_reference_of_the_hub(self):
        pairs = write_rows(self.path("pairs.jsonl"), [{"prompt": "q", "chosen": row["answer"], "rejected": "no"} for row in sql_rows(4)])
        words = ["eval", self.path("made"), "--data", pairs, "--objective", "dpo", "--seq-len", "128", "--json", "--reference"]
        near = self.succeed(*words, self.path("made")).json()
        self.assertEqual(self.succeed(*words, "org/name", env=self.env).json()["loss"], near["loss"])
        self.assertEqual(len(self.weights()), 1)
        self.fail_with(INPUT, "the reference: org/absent: the hub has no public model", *words, "org/absent", env=self.env)

    def test_a_run_on_rows_of_the_hub(self):
        out = self.path("run")
        words = ["train", "--model", "org/name@main", "--data", "hf://datasets/org/rows/train.jsonl:0.7",
                 "--data", "hf://datasets/org/rows@main/more/notes.txt:0.3", *SMALL_RUN[4:], "--steps", "1", "--no-forecast", "--out", out]
        self.succeed(*words, env={**self.env, "HF_TOKEN": self.hub.token})
        self.assertEqual(len(self.weights()), 1)
        for path in glob.glob(f"{out}/**", recursive=True):
            if os.path.isfile(path):
                self.assertNotIn(self.hub.token.encode(), read_bytes(path), path)
        with open(f"{out}/run.json") as file:
            self.assertEqual(json.load(file)["data"][0], "hf://datasets/org/rows/train.jsonl:0.7")
        self.hub.clear()
        self.succeed(*words[:-1], self.path("again"), env={**self.env, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(read_bytes(f"{out}/model.safetensors"), read_bytes(self.path("again/model.safetensors")))

    def test_two_processes_download_once(self):
        self.hub.faults["model.safetensors"] = [lambda handler: time.sleep(0.5)]
        programs = [subprocess.Popen([PROGRAM, "generate", "org/name", "-p", "x", "--max-new-tokens", "1", "--threads", "1"],
                                     env={**os.environ, **self.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        results = [program.communicate() for program in programs]
        self.assertEqual([program.returncode for program in programs], [0, 0], results)
        self.assertEqual(results[0][0], results[1][0])
        self.assertEqual(len(self.weights()), 1)
        self.assertTrue(any(b"another process downloads" in err for _, err in results))

    def test_rows_of_the_hub(self):
        spec = "hf://datasets/org/rows/train.jsonl"
        result = self.download("--data", spec, "--data", "hf://datasets/org/rows/more/notes.txt")
        commit = self.hub.repositories["dataset", "org/rows"].commit
        folder = f"{self.cache}/datasets--org--rows/snapshots/{commit}"
        self.assertEqual(result.out, f"{folder}/train.jsonl\n{folder}/more/notes.txt\n")
        self.assertEqual(read_bytes(f"{folder}/more/notes.txt"), self.data["more/notes.txt"])
        self.assertEqual(os.readlink(f"{folder}/more/notes.txt"), f"../../../blobs/{git_hash(self.data['more/notes.txt'])}")
        self.refuse(INPUT, "org/rows has no file 'absent.jsonl'", "--data", "hf://datasets/org/rows/absent.jsonl")
        for name in ("hf://datasets/org/rows", "hf://datasets/org/rows/", "hf://datasets/org/rows/../x", "hf://datasets/org", "hf://",
                     "hf://datasets/org/rows@../x/y", "hf://datasets/org/rows//x", "hf://datasets/org/rows/a/./b", "hf://spaces/o/n/f"):
            self.refuse(INPUT, "the form is hf://datasets/ORG/NAME/FILE", "--data", name)
        self.refuse(USAGE, "takes hf://.. and https://.. alone", "--data", self.rows)
        self.refuse(USAGE, "needs --model", )
        self.refuse(IO, "HF_HUB_OFFLINE is set", "org/name", HF_HUB_OFFLINE="1")

    def test_files_of_other_servers(self):
        url = f"{self.hub.files_url}/data/rows.jsonl".replace(self.hub.files_url, self.hub.url)
        rows = self.hub.plain["/data/rows.jsonl"] = read_bytes(self.rows)
        path = self.download("--data", url + "?key=SECRET-SIGNATURE").out[:-1]
        self.assertEqual(os.path.basename(path), "rows.jsonl")
        path = self.download("--data", url).out[:-1]
        self.assertEqual(read_bytes(path), rows)
        self.hub.clear()
        self.assertEqual(self.download("--data", url).out[:-1], path)
        self.assertEqual(len(self.hub.asked("hub")), 1)  # asks whether the file has changed
        large = noise(CHUNK + 10)
        self.hub.plain["/data/large"] = large
        self.hub.faults["/data/large"] = [of_range(CHUNK, lambda handler: handler.answer(206, large[CHUNK:], ETag='"new"', Content_Range=(
            f"bytes {CHUNK}-{CHUNK + 9}/{CHUNK + 10}")) or True)]
        self.refuse(IO, "large: the file changes at the server during the download", "--data", f"{self.hub.url}/data/large")
        self.assertEqual(read_bytes(self.download("--data", f"{self.hub.url}/data/large").out[:-1]), large)
        self.hub.plain["/data/rows.jsonl"] = rows + rows
        self.assertEqual(read_bytes(self.download("--data", url).out[:-1]), rows + rows)
        words = ["eval", self.path("made"), "--data", url, "--json", "--seq-len", "128"]
        seen = self.succeed(*words, env=self.env).out
        self.assertEqual(self.succeed(*words, env={**self.env, "HF_HUB_OFFLINE": "1"}).out, seen)
        self.fail_with(INPUT, "was not downloaded before", *words[:3], url + "2", env={**self.env, "HF_HUB_OFFLINE": "1"})
        self.refuse(INPUT, "there is no such file", "--data", url + "?absent".replace("?", "/"))
        for fault, phrase in (status(403), "needs a login"), (status(200, Transfer_Encoding="chunked"), "how long the file is"):
            self.hub.faults["/data/rows.jsonl"] = [fault]
            if phrase.startswith("how"):
                self.hub.faults["/data/rows.jsonl"] = [lambda handler: handler.answer(200, b"0\r\n\r\n", Transfer_Encoding="chunked") or True]
            self.refuse(INPUT, phrase, "--data", url)
        for bad in "http://user:SECRET-SIGNATURE@127.0.0.1/x", "http://127.0.0.1/a b", "http://", "http://[x]/", "http://a:b/":
            self.refuse(INPUT, "the address of a file of rows", "--data", bad)


if __name__ == "__main__":
    try:
        ctypes.CDLL("libcurl.so.4")
    except OSError:
        print("SKIP: libcurl4 is not installed")
        sys.exit(77)
    main()
