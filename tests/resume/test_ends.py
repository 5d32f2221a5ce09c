"""Every end of a run, except a second signal, keeps the run's progress: as a checkpoint in --out or in the nearest
place where saving works. The last line names that place. The command in that line resumes the run, and its result
has the bits of an undisturbed run."""

import glob
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
import unittest

import program
from program import PROGRAM, STOPPED, read_bytes, run
from resumable import FAULTS, preload
from stopping import StoppingTest

STEPS = 40


class Ends(StoppingTest):
    words = [*StoppingTest.words, "--steps", str(STEPS), "--eval-fraction", "0", "--io-engine", "pool", "--save-every", "1h"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = run(*cls.command("whole"))
        assert result.code == 0, result.err

    def held(self, out, *more, step=5, **popen):
        """A run that is halted after some steps."""
        process = self.start(out, *more, **popen)
        self.assertTrue(self.wait_for(process, lambda: self.logged(out, "step", step)), process.stderr)
        process.send_signal(signal.SIGSTOP)
        self.assertIsNone(process.poll(), "the run was too short to be held")
        return process

    def let_go(self, process, *signals):
        for number in signals:
            process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=60)[1].decode()
        return process.returncode, err

    def check_goes_on(self, out, err, *more, where=None):
        """The last line of a failed run names a checkpoint, and the run resumes from it."""
        line = err.splitlines()[-1]
        self.assertTrue(line.startswith("error: "), err)
        words = re.search(r"; step (\d+) is saved; resume from it with (--resume .*)$", line)
        self.assertIsNotNone(words, line)
        option = shlex.split(words[2])
        self.assertIn(where or self.path(f"{out}/checkpoints/"), option[1])
        self.succeed("verify", option[1], "--quiet")
        result = self.succeed(*self.command(out, *more, *option))
        self.assertIn(f"step {words[1]} of {STEPS}", result.err)
        self.assertEqual(read_bytes(self.path(f"{out}/model.safetensors")), read_bytes(self.path("whole/model.safetensors")))

    def test_stdout_has_no_reader_any_more(self):
        process = self.held("json", "--json", stdout=subprocess.PIPE)
        process.stdout.close()
        process.stdout = None
        code, err = self.let_go(process)
        self.assertEqual(code, 5, err)
        self.assertIn("stdout: cannot write: Broken pipe", err)
        self.check_goes_on("json", err)
        self.check_equal("json", "whole")

    @unittest.skipUnless(FAULTS, "needs faults.c")
    def test_the_result_cannot_be_saved(self):
        """Flushes fail in OUT.partial; or in OUT's checkpoints too; or everywhere near OUT. The checkpoint is then
        in OUT, beside OUT, or elsewhere."""
        elsewhere = self.path("elsewhere")
        os.makedirs(elsewhere)
        for i, (where, place) in enumerate((("bad0.partial/", None), ("bad1.partial/:bad1/checkpoints/step", ".rescued/step-"),
                                            (self.folder + "/bad", elsewhere))):
            out = f"bad{i}"
            env = preload("eio:fsync:3+", where) | {"TMPDIR": elsewhere, "HOME": self.path("bad-home")}
            with self.subTest(where=where):
                os.makedirs(self.path("bad-cwd"), exist_ok=True)
                if i == 2:
                    self.succeed(*self.command("seeds"))  # so that only the work after the first steps fails
                    process = self.held(out, cwd=self.path("bad-cwd"), env=os.environ | env | {"OT_TEST_FAULT": "eio:fsync:9+"})
                    code, err = self.let_go(process)
                else:
                    result = run(*self.command(out), env=env)
                    code, err = result.code, result.err
                self.assertEqual(code, 5, err)
                self.assertIn("Input/output error", err.splitlines()[-1])
                self.check_goes_on(out, err, where=place)

    @unittest.skipUnless(FAULTS, "needs faults.c")
    def test_a_stop_whose_checkpoint_fails(self):
        process = self.held("stop", env=os.environ | preload("eio:fsync:1+", "/stop/checkpoints/step"))
        code, err = self.let_go(process, signal.SIGTERM)
        self.assertEqual(code, 5, err)
        self.check_goes_on("stop", err, where=".rescued/step-")

    @unittest.skipUnless(FAULTS, "needs faults.c")
    def test_grace_counts_flushes(self):
        """Each flush takes a second. The five flushes of a checkpoint do not fit in three seconds, and the program
        knows so before the first."""
        for grace, code in (("3s", 8), ("30s", STOPPED)):
            out = f"grace-{grace}"
            process = self.held(out, "--grace", grace, env=os.environ | preload("slow:fsync:1+", f"/{out}/checkpoints"))
            began = time.time()
            got, err = self.let_go(process, signal.SIGTERM)
            self.assertEqual(got, code, err)
            self.assertEqual(self.checkpoints(out) != [], code == STOPPED, err)
            if code != STOPPED:
                self.assertLess(time.time() - began, 3)
                self.assertIn("--grace left no time to save it", err)

    def test_the_size_of_files_is_limited(self):
        """Before step 1 a small limit of the file size is refused. Later nothing can be saved any more: the run ends
        with an error and not by a signal, and the store's file is removed."""
        words = ("--home", "state=nvme,weights=host", "--nvme", self.disk)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        process = self.start("limit", "--quiet", preexec_fn=limit)
        err = process.communicate(timeout=60)[1].decode()
        self.assertEqual((process.returncode, err.count("\n")), (5, 1), err)
        self.assertRegex(err, r"ulimit -f.* 1\.0 MiB")
        process = self.held("limit", *words)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        code, err = self.let_go(process)
        self.assertEqual(code, 5, err)
        self.assertIn("File too large", err)
        self.assertRegex(err.splitlines()[-1], "; (the state could not be saved anywhere; )?there is no checkpoint$")
        self.assertEqual(os.listdir(self.disk), [])

    def test_the_marker_goes(self):
        process = self.held("marker")
        os.unlink(self.path("marker/offload-train.json"))
        code, err = self.let_go(process)
        self.assertEqual(code, 0, err)
        self.assertIn("restored it", err)
        self.check_equal("marker", "whole")
        self.assertEqual(set(os.listdir(self.path("marker"))), set(os.listdir(self.path("whole"))))

    def test_the_output_is_moved_away(self):
        """After a stop, or at the end, everything that the run says it saved exists."""
        process = self.held("away")
        os.rename(self.path("away"), self.path("moved"))
        code, err = self.let_go(process, signal.SIGTERM)
        self.assertEqual(code, STOPPED, err)
        self.assertIn(f"{self.path('away')} was moved away while this run was writing to it", err)
        self.assertIn(f"are now in {self.path('moved')}", err)
        saved = re.search(r"\nsaved   (\S+) · step ", err)[1]
        self.assertTrue(os.path.exists(saved + "/manifest.bin"), err)
        self.assertIn("resume  ", self.succeed(*self.command("away")).err)
        self.assertEqual(read_bytes(self.path("away/model.safetensors")), read_bytes(self.path("whole/model.safetensors")))
        process = self.held("away1", "--save-every", "1", "--steps", "4000")  # moved away with its last checkpoint
        os.rename(self.path("away1"), self.path("moved1"))
        code, err = self.let_go(process, signal.SIGTERM)
        self.assertEqual(code, STOPPED, err)
        self.assertTrue(os.path.exists(re.search(r"\nsaved   (\S+) · step ", err)[1] + "/manifest.bin"), err)
        process = self.held("away2")
        os.rename(self.path("away2"), self.path("moved2"))
        code, err = self.let_go(process)
        self.assertEqual(code, 0, err)
        self.assertIn(f"are now in {self.path('moved2')}", err)
        self.assertEqual(read_bytes(self.path("away2/model.safetensors")), read_bytes(self.path("whole/model.safetensors")))
        self.assertTrue(os.path.exists(self.path("moved2/log.jsonl")))

    def test_another_directory_takes_the_place_of_the_output(self):
        process = self.held("place")
        os.rename(self.path("place"), self.path("place.was"))
        os.mkdir(self.path("place"))
        with open(self.path("place/thesis"), "w") as file:
            file.write("years of work")
        code, err = self.let_go(process)
        self.assertEqual(code, 3, err)
        self.assertEqual(os.listdir(self.path("place")), ["thesis"])
        shutil.rmtree(self.path("place"))
        self.check_goes_on("place", err, where="place.rescued/step-")

    def test_the_store_loses_its_name(self):
        """The store's files are deleted. Saves still read them through open descriptors: at a stop, and when a
        checkpoint is due during the run."""
        for i, home in enumerate(("state=nvme,weights=nvme", "state=nvme,weights=host")):
            words = ("--home", home, "--nvme", self.disk, "--io-engine", ("pool", "auto")[i])
            process = self.start(f"store{i}", *words, "--save-every", "10")
            self.assertTrue(self.wait_for(process, lambda: self.logged(f"store{i}", "checkpoint", 10)))
            process.send_signal(signal.SIGSTOP)
            for path in glob.glob(self.disk + "/*"):
                os.unlink(path)
            before = self.checkpoints(f"store{i}")
            code, err = self.let_go(process, *([signal.SIGTERM] if i else []))
            self.assertEqual(code, STOPPED if i else 0, err)
            self.assertGreater(self.checkpoints(f"store{i}")[-1], before[-1], err)
            # A save that had begun when the names were lost may fail; each later one copies the content.
            self.assertLessEqual(err.count("could not save"), 1, err)
            self.succeed(*self.command(f"store{i}", *words, "--save-every", "10"))
            self.check_equal(f"store{i}", "whole")


if __name__ == "__main__":
    program.main()
