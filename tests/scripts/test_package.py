"""scripts/package: the packages have what they say, and the program in them runs where there is nothing but the C library."""

import glob
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import program
from program import SMALL

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.dirname(program.PROGRAM)
EPOCH = 1800000000  # in 2027


def tool(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False, **more)


class Package(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name in "dpkg-deb", "meson", "strip", "objdump":
            if not shutil.which(name):
                print(f"skipped: {name} is not installed")
                sys.exit(77)
        cls.make("one")
        cls.deb = glob.glob(cls.path("one/*.deb"))[0]
        cls.tarball = glob.glob(cls.path("one/*.tar.gz"))[0]

    @classmethod
    def make(cls, name, root=ROOT, build=BUILD):
        done = tool(f"{root}/scripts/package", "--build", build, "--out", cls.path(name),
                    env={**os.environ, "PACKAGE_LEVEL": "1", "SOURCE_DATE_EPOCH": str(EPOCH)})
        assert done.returncode == 0, done.stderr
        return done

    def test_checksums(self):
        done = tool("sha256sum", "--check", "SHA256SUMS", cwd=self.path("one"))
        self.assertEqual((done.returncode, done.stdout.count(": OK")), (0, 3), done.stdout)

    def test_both_have_the_same_files(self):
        with tarfile.open(self.tarball) as tar:
            members = tar.getmembers()
        top = members[0].name
        ours = {member.name[len(top):] for member in members if member.isfile()}
        listed = tool("dpkg-deb", "--contents", self.deb).stdout
        theirs = {line.split("./usr", 1)[1] for line in listed.splitlines() if line.startswith("-")}
        self.assertEqual(ours, theirs)
        self.assertLessEqual({"/bin/offload-train", "/share/man/man1/offload-train.1.gz", "/share/doc/offload-train/copyright",
                              "/share/doc/offload-train/examples/slurm"}, ours)
        self.assertEqual({(member.uid, member.gid) for member in members}, {(0, 0)})
        self.assertEqual({member.mode & 0o022 for member in members}, {0})  # nobody else may write
        self.assertEqual(len({member.mtime for member in members}), 1)

    def test_the_debian_package_has_one_time(self):
        """A later time than SOURCE_DATE_EPOCH would be lowered; this one lies in the future, so dpkg-deb lowers none."""
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", self.deb], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            self.assertEqual({member.mtime for member in tar.getmembers()}, {EPOCH})

    def test_control(self):
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", tool("dpkg-deb", "--field", self.deb).stdout, re.M))
        facts = self.succeed("--version", "--json").json()
        self.assertEqual(fields["Version"], facts["version"])
        self.assertRegex(fields["Depends"], r"^libc6 \(>= 2\.\d+\)$")
        needed = re.findall(r"NEEDED +(\S+)", tool("objdump", "-p", program.PROGRAM).stdout)
        self.assertLessEqual(set(needed), {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})

    def test_bill_of_materials(self):
        with open(glob.glob(self.path("one/*.spdx.json"))[0], encoding="utf-8") as file:
            bill = json.load(file)
        self.assertEqual(bill["spdxVersion"], "SPDX-2.3")
        packages = {item["SPDXID"]: item for item in bill["packages"]}
        linked = {item["relatedSpdxElement"] for item in bill["relationships"] if item["relationshipType"] == "STATIC_LINK"}
        self.assertEqual(linked | {"SPDXRef-offload-train"}, set(packages))
        names = {packages[key]["name"] for key in linked}
        self.assertLessEqual({"z", "uring", "pcre2-8", "utf8proc", "hwloc"}, names)
        self.assertEqual("cudart_static" in names, self.succeed("--version", "--json").json()["cuda"] is not None)
        with tarfile.open(self.tarball) as tar:
            licences = {os.path.basename(name).rsplit("-", 1)[0] for name in tar.getnames() if "/licences/" in name}
        self.assertLessEqual(names - {"cudart_static"}, licences)

    def test_the_program_runs_in_a_bare_root(self):
        if os.geteuid() != 0:
            self.skipTest("only root can change the root directory")
        root = self.path("root")
        self.assertEqual(tool("dpkg-deb", "--extract", self.deb, root).returncode, 0)
        for line in tool("ldd", f"{root}/usr/bin/offload-train").stdout.splitlines():
            for path in re.findall(r"(/\S+)", line):
                os.makedirs(root + os.path.dirname(path), exist_ok=True)
                shutil.copy(path, root + path)
        os.makedirs(f"{root}/srv")
        os.makedirs(f"{root}/proc")
        shutil.copy(self.rows, f"{root}/srv/rows.jsonl")

        def enter(*words):
            return tool(shutil.which("chroot"), root, "/usr/bin/offload-train", *words, env={})  # no /dev, HOME, PATH
        self.assertIn("offload-train ", enter("--version").stdout)
        if tool("mount", "-t", "proc", "proc", f"{root}/proc").returncode != 0:
            self.skipTest("mounting is not permitted here: the program only printed its version")
        self.addCleanup(tool, "umount", f"{root}/proc")
        done = enter("train", "--no-forecast", *SMALL, "--device", "cpu", "--gpu-mem", "64M", "--host-mem", "64M",
                     "--data", "/srv/rows.jsonl", "--out", "/srv/out", "--steps", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.exists(f"{root}/srv/out/model.safetensors"))

    def test_a_build_elsewhere_has_the_same_bytes(self):
        if not os.environ.get("OT_TEST_SLOW"):
            self.skipTest("builds the product again; --slow runs it")
        elsewhere = self.path("some/other/folder")
        for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
            os.makedirs(os.path.dirname(f"{elsewhere}/{name}"), exist_ok=True)
            shutil.copy(f"{ROOT}/{name}", f"{elsewhere}/{name}")
        options = json.loads(tool("meson", "introspect", "--buildoptions", BUILD).stdout)
        wanted = {"cuda", "gpu_arch", "cpu_builds", "c_link_args", "cpp_link_args", "mpi"}
        chosen = [f"-D{option['name']}={option['value']}" for option in options if option["name"] in wanted]
        build = f"{elsewhere}/{os.path.relpath(BUILD, ROOT)}"
        for words in ["meson", "setup", build, elsewhere, *chosen], ["ninja", "-C", build, "product"]:
            done = subprocess.run(words, capture_output=True, text=True, timeout=3000, check=False, env={**os.environ, "CCACHE_DISABLE": "1"})
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)
        self.make("two", elsewhere, build)
        for path in glob.glob(self.path("one/*")):
            self.assertEqual(program.read_bytes(path), program.read_bytes(path.replace("/one/", "/two/")), path)

    def test_every_card_has_an_architecture(self):
        listed = program.run("plan", "--gpu", "list").out.split("\n\n")[0].splitlines()[1:]
        cards = [line.split()[0] for line in listed if line.strip()]
        self.assertGreater(len(cards), 20)
        wanted = {"t4": "sm_75", "a100-80g": "sm_80", "a6000": "sm_86", "rtx6000ada": "sm_89", "h100-nvl": "sm_90", "b200": "sm_100",
                  "rtxpro6000": "sm_120", "sm_103": "sm_103"}
        for card in [*cards, *wanted]:
            done = tool(f"{ROOT}/scripts/gpu-arch", card)
            self.assertRegex(done.stdout, r"^sm_\d+\n$", f"{card}: {done.stderr}")
            self.assertEqual(done.stdout.strip(), wanted.get(card, done.stdout.strip()))

    def test_what_is_wrong_is_said(self):
        for words, code, phrase in ((["--bild", "x"], 2, "unknown option '--bild'"), (["--out"], 2, "--out needs a value"),
                                    (["--arch", "rtx4099"], 2, "no card has the name 'rtx4099'"),
                                    (["--build", self.path("none")], 1, "has no offload-train")):
            done = tool(f"{ROOT}/scripts/package", *words)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(phrase, done.stderr)
        said = tool(f"{ROOT}/scripts/package", "--help").stdout
        self.assertIn("scripts/package --arch rtx4090", said)
        self.assertNotIn("pipefail", said)


if __name__ == "__main__":
    program.main()
