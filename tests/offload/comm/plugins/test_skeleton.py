"""The skeleton plugin as an outsider uses it: with nothing but what `meson install` installs for authors of plugins.

Usage: test_skeleton.py PROGRAM BUILD_FOLDER [TEST...]
"""

import glob
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM, BUILD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


class Skeleton(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--tags", "devel", "--destdir", cls.folder.name)
        headers, sources = cls.find("plugin.h"), cls.find("skeleton.c")
        assert len(headers) == 1 and len(sources) == 1, (headers, sources)
        cls.include, cls.source = os.path.dirname(headers[0]), sources[0]
        cls.plugin = os.path.join(cls.folder.name, "my-comm.so")
        run("cc", "-std=c17", "-O2", *STRICT, "-shared", "-fPIC", "-I", cls.include, "-o", cls.plugin, cls.source)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def find(cls, name):
        return glob.glob(os.path.join(cls.folder.name, "**", name), recursive=True)

    def test_the_header_is_installed_where_the_skeleton_says(self):
        self.assertEqual(self.include.split(os.sep)[-2:], ["include", "offload-train"])

    def test_it_exports_the_symbols_of_the_interface_alone(self):
        symbols = run("nm", "-D", "--defined-only", self.plugin).split("\n")
        self.assertEqual([line.split()[-1] for line in symbols if line], ["ot_comm_plugin_transfers_v1", "ot_comm_plugin_v1"])

    def test_it_passes_the_checks_of_every_communicator(self):
        self.assertIn("rank 0: ok, 72 checks, skeleton, 1 rank", run(PROGRAM, self.plugin, "checks"))

    def test_every_hook(self):
        self.assertIn("rank 0: ok", run(PROGRAM, self.plugin, "alone"))

    def test_it_has_every_hook_with_a_comment(self):
        with open(self.source, encoding="utf-8") as source, open(os.path.join(self.include, "plugin.h"), encoding="utf-8") as header:
            text, interface = source.read(), header.read()
        structs = [interface.split(f"struct {name} {{")[1].split("\n};")[0] for name in ("ot_comm_v1", "ot_comm_transfers_v1")]
        hooks = [part.split(")")[0] for part in "".join(structs).split("(*")[1:]]
        self.assertEqual(len(hooks), 12)
        for hook in hooks:
            self.assertRegex(text, rf"\.{hook} = skeleton_{hook},")
            self.assertRegex(text, rf"\*/\nstatic \w+ skeleton_{hook}\(")

    def test_the_header_is_for_other_standards_too(self):
        probe = os.path.join(self.folder.name, "probe")
        for compiler, standard, ending in (("cc", "c99", "c"), ("cc", "c17", "c"), ("c++", "c++11", "cpp"), ("c++", "c++17", "cpp")):
            with open(f"{probe}.{ending}", "w", encoding="utf-8") as file:
                file.write("#include <plugin.h>\nint use(void);\nint use(void) { return OT_COMM_ABI_V1; }\n")
            run(compiler, f"-std={standard}", *STRICT, "-fsyntax-only", "-I", self.include, f"{probe}.{ending}")


if __name__ == "__main__":
    unittest.main()
