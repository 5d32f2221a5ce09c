"""What this program caches, huggingface_hub finds; what huggingface_hub caches, this program finds.

Needs the Python package huggingface_hub, and is skipped without it. Start it with the Python that has the package.
"""

import importlib.util
import json
import os
import subprocess
import sys

import hub_server
from program import main, run

FILES = {"config.json": b'{"model_type": "none"}', "tokenizer.json": b"{}", "model.safetensors": bytes(range(256)) * 50}
PATTERNS = ["config.json", "tokenizer.json", "model.safetensors"]


class WithPython(hub_server.HubTest):
    def env(self, cache, **more):
        return {"HF_ENDPOINT": self.hub.url, "HF_HUB_CACHE": self.path(cache), "HF_HOME": self.path("home"), "HF_HUB_OFFLINE": "0",
                "HF_TOKEN": self.hub.token, "XDG_CACHE_HOME": self.path("xdg"), "HF_HUB_DISABLE_TELEMETRY": "1", **more}

    def python(self, env, code):
        """Runs the code with huggingface_hub, and returns the JSON that it prints."""
        done = subprocess.run([sys.executable, "-c", f"import json, huggingface_hub as h; print(json.dumps({code}))"],
                              env={**os.environ, **env}, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def test_python_finds_what_the_program_cached(self):
        repository = self.hub.add("org/name", FILES, private=True)
        folder = self.succeed("download", "org/name", env=self.env("ours")).out[:-1]
        self.hub.clear()
        offline = self.env("ours", HF_HUB_OFFLINE="1")
        found = self.python(offline, f"[h.snapshot_download('org/name', allow_patterns={PATTERNS})]"
                            f" + [h.hf_hub_download('org/name', name, revision={repository.commit!r}) for name in {PATTERNS}]"
                            " + [h.try_to_load_from_cache('org/name', 'config.json')]")
        self.assertEqual(found, [folder, *(f"{folder}/{name}" for name in PATTERNS), f"{folder}/config.json"])
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(self.python(self.env("ours"), f"h.snapshot_download('org/name', allow_patterns={PATTERNS})"), folder)
        self.assertEqual(self.hub.asked("files"), [])  # online, it downloads nothing again
        scan = self.python(offline, "[[r.repo_id, r.size_on_disk, sorted(f.file_name for v in r.revisions for f in v.files)]"
                           " for r in h.scan_cache_dir().repos]")
        self.assertEqual(scan, [["org/name", sum(map(len, FILES.values())), sorted(FILES)]])

    def test_the_program_finds_what_python_cached(self):
        self.hub.add("org/name", FILES)
        self.hub.add("org/rows", {"data/train.jsonl": b'{"text": "a"}\n'}, kind="dataset")
        folder, rows = self.python(self.env("theirs"), f"[h.snapshot_download('org/name', allow_patterns={PATTERNS}),"
                                   " h.hf_hub_download('org/rows', 'data/train.jsonl', repo_type='dataset')]")
        self.hub.clear()
        self.assertEqual(self.succeed("download", "org/name", env=self.env("theirs")).out[:-1], folder)
        self.assertEqual(len(self.hub.requests), 1)  # for the commit
        result = run("eval", "org/name", "--data", "hf://datasets/org/rows/data/train.jsonl", env=self.env("theirs", HF_HUB_OFFLINE="1"))
        self.assertIn(f"{folder}/config.json", result.err)  # this is no model, but it was found
        self.assertEqual(self.succeed("download", "--data", "hf://datasets/org/rows/data/train.jsonl", env=self.env("theirs")).out[:-1], rows)
        self.assertEqual(self.hub.asked("files"), [])

    def test_both_use_the_same_locks(self):
        self.hub.add("org/name", FILES)
        path = self.path(f"locked/.locks/models--org--name/{hub_server.sha256(FILES['model.safetensors'])}.lock")
        code = ("import sys, time, pathlib; from huggingface_hub.utils import WeakFileLock\n"
                "pathlib.Path(sys.argv[1]).parent.mkdir(parents=True)\n"
                "with WeakFileLock(sys.argv[1]):\n    print('locked', flush=True)\n    time.sleep(1)\n")
        other = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
        self.assertEqual(other.stdout.readline(), "locked\n")
        result = self.succeed("download", "org/name", env=self.env("locked"))
        self.assertIsNotNone(other.poll())
        self.assertIn("another process downloads model.safetensors", result.err)
        other.communicate()


if __name__ == "__main__":
    if not importlib.util.find_spec("huggingface_hub"):
        print("SKIP: the Python package huggingface_hub is not installed")
        sys.exit(77)
    main()
