"""Resuming with another command: which changes are refused and with which error, which are allowed, and what then
happens to the log and to other runs' checkpoints."""

import glob
import os
import shutil
import struct
import zlib

import program
from program import SMALL, read_bytes, run, sql_rows, write_rows

LENGTH = ["--schedule", "constant", "--warmup", "4"]  # with these options no step depends on the number of steps


class Other(program.ProgramTest):
    """run/: 40 steps with a checkpoint after every tenth, of which 30 and 40 stay, as if the run had been stopped."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = run(*cls.command("run", "--steps", "40", "--keep", "2", "--no-eos", *LENGTH))
        assert result.code == 0, result.err
        os.unlink(cls.path("run/checkpoints/complete"))
        shutil.copytree(cls.path("run"), cls.path("kept"))

    def setUp(self):
        shutil.rmtree(self.path("run"))
        shutil.copytree(self.path("kept"), self.path("run"))

    @classmethod
    def command(cls, out, *more, rows=None):
        return ["train", "--no-forecast", *SMALL, "--data", rows or cls.rows, "--out", cls.path(out), "--save-every", "10",
                "--micro-batch", "2", "--eval-fraction", "0", *more]

    def checkpoints(self, out):
        return sorted(int(path[-8:]) for path in glob.glob(self.path(f"{out}/checkpoints/step-*")))

    def steps(self, out):
        return [event["step"] for event in self.log(out) if event["event"] == "step"]

    def refuse(self, code, phrase, *more, rows=None):
        before = sorted(glob.glob(self.path("run/**"), recursive=True)), read_bytes(self.path("run/log.jsonl"))
        # --quiet: without it, lines of the plan come before the error
        line = self.fail_with(code, phrase, *self.command("run", "--quiet", *more, rows=rows))
        after = sorted(glob.glob(self.path("run/**"), recursive=True)), read_bytes(self.path("run/log.jsonl"))
        self.assertEqual(before, after)
        return line

    def test_another_run_is_refused_and_nothing_touched(self):
        self.refuse(2, "--seed 0, you gave 3. Use the checkpoint's settings, --resume never", "--seed", "3")
        self.refuse(2, "--lr 0.003, you gave 0.001", "--lr", "1e-3")
        self.refuse(2, "--schedule constant, you gave wsd", "--schedule", "wsd")
        self.refuse(3, "61 rows with ", rows=write_rows(self.path("more.jsonl"), sql_rows(61)))
        rows = sql_rows(60)
        rows[7], rows[8] = rows[8], rows[7]
        self.refuse(3, "as many rows and tokens as ", rows=write_rows(self.path("swapped.jsonl"), rows))
        self.refuse(2, "the run would end after 39 steps, but 40 are done already in ", "--steps", "39")

    def test_another_model_is_refused(self):
        words = self.command("run", "--quiet")
        words[words.index("tiny-test")] = "tiny-sql"
        self.fail_with(3, "was made with another model: head_dim is 16 in the checkpoint and 32 now. Use the checkpoint's settings", *words)

    def test_what_is_left_out_is_as_it_was(self):
        result = self.succeed(*self.command("run"))
        self.assertIn("\n        taken from the checkpoint: --no-eos --schedule constant --warmup 4\n", result.err)
        self.assertEqual(read_bytes(self.path("run/model.safetensors")), read_bytes(self.path("kept/model.safetensors")))

    def test_a_run_may_grow(self):
        self.succeed(*self.command("run", "--steps", "55"))
        self.succeed(*self.command("whole", "--steps", "55", "--no-eos", *LENGTH))
        self.assertEqual(read_bytes(self.path("run/model.safetensors")), read_bytes(self.path("whole/model.safetensors")))
        self.assertEqual(self.steps("run"), list(range(1, 56)))

    def test_a_moved_data_file_is_the_same_data(self):
        moved = shutil.copy(self.rows, self.path("moved.jsonl"))
        self.succeed(*self.command("run", rows=moved))

    def test_damage_is_said_with_what_goes_on(self):
        newest = self.path("run/checkpoints/step-00000040")
        with open(os.path.join(newest, "state.bin"), "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))
        line = self.refuse(3, "step-00000040/state.bin: damaged: ")
        option = f"--resume {self.path('run/checkpoints/step-00000030')}"
        self.assertIn(f"; to resume from the checkpoint before it, use {option}", line)
        self.succeed(*self.command("run", *option.split()))
        self.assertEqual(self.steps("run"), list(range(1, 41)))
        self.assertEqual(read_bytes(self.path("run/model.safetensors")), read_bytes(self.path("kept/model.safetensors")))
        self.assertEqual(self.checkpoints("run"), [40])

    def test_other_products_are_said(self):
        """A checkpoint of a machine with another library of products gives a warning, also with --quiet; with
        --exact the run is refused. A checkpoint of an older version, which does not name its library, gives
        neither."""
        newest = self.path("run/checkpoints/step-00000040")
        more = ["--steps", "41", "--no-eos", *LENGTH]
        self.change_record(newest, b'"arithmetic": "', b'"arithmetic": "abacus, ')
        self.refuse(3, "--exact resumes only with the same libraries", "--exact", *more)
        said = self.succeed(*self.command("run", "--quiet", *more)).err
        self.assertRegex(said, r"^warning: .* was computed with abacus, .* kernels, .*, and goes on with .* kernels, .*: from now on, "
                               r"the last digits of losses and weights differ from those of an uninterrupted run \(--exact refuses this\)\n$")
        self.setUp()
        self.change_record(newest, b'"arithmetic": ', b'"unknown": ')
        self.assertEqual(self.succeed(*self.command("run", "--quiet", "--exact", *more)).err, "")
        self.setUp()
        self.assertEqual(self.succeed(*self.command("run", "--quiet", "--exact", *more)).err, "")

    def test_the_library_of_products_is_recorded(self):
        """The same machine, with another library."""
        said = run(*self.command("run", "--quiet", "--steps", "41", "--no-eos", *LENGTH), env={"OFFLOAD_TRAIN_BLAS": "openblas"}).err
        if b"oneDNN" not in read_bytes(self.path("kept/checkpoints/step-00000040/checkpoint.json")):
            self.skipTest("oneDNN is not installed")
        self.assertRegex(said, r"was computed with \w+ kernels, oneDNN [\d.]+ isa 0x\w+, .*, and goes on with \w+ kernels, OpenBLAS [\d.]+ ")

    def test_what_a_checkpoint_says_of_itself_agrees(self):
        """The name of its directory, its step or its position in the data is changed, and the checksums are
        corrected."""
        newest, parent = self.path("run/checkpoints/step-00000040"), self.path("run/checkpoints")
        os.rename(newest, parent + "/step-00000041")
        self.refuse(3, "step-00000041/checkpoint.json: damaged: it says step 40")
        self.assertIn("it says step 40", run("verify", parent + "/step-00000041").err)
        os.rename(parent + "/step-00000041", self.path("copy"))  # a name without a step
        self.succeed("verify", self.path("copy"), "--quiet")
        os.rename(self.path("copy"), newest)
        self.change_record(newest, b'"sequence": ', b'"sequence": 1')
        line = self.refuse(3, "step-00000040/checkpoint.json: damaged: step 40 leads to sequence ")
        self.assertIn(f"to resume from the checkpoint before it, use --resume {self.path('run/checkpoints/step-00000030')}", line)

    def change_record(self, directory, old, new):
        """The manifest has the record's size and CRC-32; its last four bytes are its own CRC-32."""
        path, manifest = os.path.join(directory, "checkpoint.json"), os.path.join(directory, "manifest.bin")
        was, whole = read_bytes(path), read_bytes(manifest)
        now = was.replace(old, new, 1)
        self.assertNotEqual(was, now)
        fields = [struct.pack("<Q", len(was)), struct.pack("<I", zlib.crc32(was))]
        for field, value in zip(fields, (struct.pack("<Q", len(now)), struct.pack("<I", zlib.crc32(now)))):
            self.assertEqual(whole[:-4].count(field), 1)
            whole = whole[:-4].replace(field, value) + whole[-4:]
        whole = whole[:-4] + struct.pack("<I", zlib.crc32(whole[:-4]))
        for name, data in ((path, now), (manifest, whole)):
            with open(name, "wb") as file:
                file.write(data)

    def test_from_elsewhere_it_is_a_run_of_its_own(self):
        self.train("branch", "--steps", "20", "--save-every", "5", "--seed", "8")  # checkpoints of another run
        self.succeed(*self.command("branch", "--steps", "45", "--resume", self.path("run/checkpoints/step-00000030")))
        self.assertEqual(self.steps("branch"), list(range(31, 46)))
        self.assertEqual(self.checkpoints("run"), [30, 40])
        self.assertEqual(self.checkpoints("branch"), [40])

    def test_never_begins_anew(self):
        self.succeed(*self.command("run", "--steps", "3", "--resume", "never"))
        self.assertEqual(self.steps("run"), [1, 2, 3])

    def test_a_dry_run_says_it_and_changes_nothing(self):
        before = sorted(glob.glob(self.path("run/**"), recursive=True))
        result = self.succeed(*self.command("run", "--dry-run"))
        self.assertIn("step-00000040 · step 40 of 40", result.err)
        self.assertEqual(before, sorted(glob.glob(self.path("run/**"), recursive=True)))


if __name__ == "__main__":
    program.main()
