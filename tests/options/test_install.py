"""`meson install` into a folder: every file is at its place, and the program runs from there.

Usage: test_install.py MESON BUILD_FOLDER PREFIX PLUGIN...
"""

import os
import stat
import subprocess
import sys
import tempfile

meson, build, prefix, *plugins = sys.argv[1:]
with tempfile.TemporaryDirectory(prefix="offload-train-install-") as folder:
    done = subprocess.run([meson, "install", "-C", build, "--no-rebuild", "--destdir", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            found[os.path.relpath(path, folder)] = path
    own = prefix.lstrip("/")
    program = found[f"{own}/bin/offload-train"]
    wanted = ["bin/offload-train", "share/man/man1/offload-train.1", "share/bash-completion/completions/offload-train",
              "share/zsh/site-functions/_offload-train", "include/offload-train/plugin.h", "share/offload-train/skeleton.c"]
    wanted += [f"bin/libot-comm-{name}.so" for name in plugins]
    assert sorted(found) == sorted(f"{own}/{name}" for name in wanted), sorted(found)
    assert os.stat(program).st_mode & stat.S_IXUSR
    for words in (["--version"], ["help", "tiers"], ["plan", "--gpu", "list"]):
        done = subprocess.run([program, *words], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0 and done.stdout, f"{words}: {done.stderr}"
