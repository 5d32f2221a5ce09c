"""verify and export: whole outputs pass, every damage is found and named, and an export equals the model that the
run saves."""

import os
import shutil
import struct
import zlib

from program import SMALL, ProgramTest, main, read_bytes, run

MANIFEST = "manifest.bin"
FILES = [MANIFEST, "checkpoint.json", "state.bin"]


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


class Manifest:
    """The layout is the one in src/checkpoint/manifest.h."""

    def __init__(self, folder):
        self.folder = folder
        data = read_bytes(os.path.join(folder, MANIFEST))
        assert data[:8] == b"OTCKPT\r\n" and zlib.crc32(data[:-4]) == struct.unpack("<I", data[-4:])[0]
        (_, self.dtype, slabs, files, parts, spans) = struct.unpack_from("<6I", data, 8)
        at = 8 + 24 + 12
        self.slabs = struct.unpack_from(f"<{slabs}Q", data, at)
        at += 8 * slabs
        self.files = []
        for _ in range(files):
            length = struct.unpack_from("<H", data, at)[0]
            self.files.append(data[at + 2:at + 2 + length].decode())
            at += 2 + length + 8
        self.parts = [struct.unpack_from("<IQQBI", data, at + 25 * i) for i in range(parts)]
        self.spans_at = at + 25 * parts
        self.spans = [struct.unpack_from("<IQII", data, self.spans_at + 20 * i) for i in range(spans)]
        self.data = bytearray(data)

    def put(self, slab, array, index, value):
        """Writes a float into m (0) or v (1), or the bits of an fp32 weight (2), and corrects every checksum."""
        first_span = 0
        for part_slab, first, n, flags, n_spans in self.parts:
            if part_slab == slab and first <= index < first + n and flags == 3 and n_spans == 1:
                file, offset, size, _ = self.spans[first_span]
                path = os.path.join(self.folder, self.files[file])
                with open(path, "r+b") as target:
                    target.seek(offset + 4 * (n * array + index - first))
                    target.write(struct.pack("<f", value))
                    target.seek(offset)
                    crc = zlib.crc32(target.read(size))
                struct.pack_into("<I", self.data, self.spans_at + 20 * first_span + 16, crc)
                struct.pack_into("<I", self.data, len(self.data) - 4, zlib.crc32(self.data[:-4]))
                with open(os.path.join(self.folder, MANIFEST), "wb") as target:
                    target.write(self.data)
                return
            first_span += n_spans
        raise AssertionError("no such parameter")


class Checkpoints(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_folder = cls.path("run")
        words = ["train", *SMALL, "--data", cls.rows, "--no-forecast", "--steps", "6", "--schedule", "constant", "--out"]
        cls.train_words = words
        result = run(*words, cls.run_folder, "--save-every", "2", "--keep", "3")
        assert result.code == 0, result.err

    def copy(self, name):
        folder = self.path(name)
        shutil.copytree(self.run_folder, folder)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def checkpoint(self, folder, step):
        return os.path.join(folder, "checkpoints", f"step-{step:08d}")

    def damaged(self, folder, *phrases):
        result = run("verify", folder)
        self.assertEqual(result.code, 3, result.out + result.err)
        self.assertEqual(len(result.err.splitlines()), 1)
        self.assertEqual(result.out.splitlines()[-1], "damaged")
        for phrase in phrases:
            self.assertIn(phrase, result.err)
        return result


class Verify(Checkpoints):
    def test_a_whole_run_is_ok_and_its_table_adds_up(self):
        result = self.succeed("verify", self.run_folder)
        self.assertEqual(result.out.splitlines()[-1], "ok")
        found = self.succeed("verify", self.run_folder, "--json").json()
        self.assertTrue(found["ok"] and found["model"]["ok"] and found["checkpoint"]["ok"])
        checkpoint = found["checkpoint"]
        self.assertEqual(checkpoint["dir"], self.checkpoint(self.run_folder, 6))
        self.assertEqual(checkpoint["step"], 6)
        self.assertIn("step 6 of 6, fp32", checkpoint["what"])
        bytes_of_slabs = sum(slab["bytes"] for slab in checkpoint["slabs"])
        self.assertEqual(bytes_of_slabs, sum(file["bytes"] for file in checkpoint["files"]))
        self.assertIn(f" {bytes_of_slabs:,}\n", result.out)
        params = sum(slab["parameters"] for slab in checkpoint["slabs"])
        self.assertEqual(params, sum(slab["parameters"] for slab in found["model"]["slabs"]))
        self.assertEqual(result.out.count(f"  {'total':<20} {params:>16,}"), 2)
        for slab, same in zip(checkpoint["slabs"], found["model"]["slabs"]):
            self.assertEqual((slab["name"], slab["max_weight"]), (same["name"], same["max_weight"]))
            self.assertEqual((slab["state"], same["state"]), ("ok", "ok"))
            self.assertGreater(slab["max_m"], 0)
            self.assertGreater(slab["max_v"], 0)
        self.assertEqual([older["state"] for older in found["older"]], ["not read", "not read"])

    def test_a_checkpoint_by_its_own_name_and_by_the_folder_of_all(self):
        for folder, newest in ((self.checkpoint(self.run_folder, 4), 4),
                               (os.path.join(self.run_folder, "checkpoints"), 6)):
            found = self.succeed("verify", folder, "--json").json()
            self.assertEqual(found["checkpoint"]["dir"], self.checkpoint(self.run_folder, newest))
            self.assertNotIn("model", found)

    def test_any_byte_of_any_file_counts_and_the_older_checkpoint_is_named(self):
        folder = self.copy("bytes")
        newest, older = self.checkpoint(folder, 6), self.checkpoint(folder, 4)
        for name in FILES:
            path = os.path.join(newest, name)
            size = os.path.getsize(path)
            for at in sorted({0, size // 3, size // 2, size - 1}):
                flip(path, at)
                result = self.damaged(folder, path + ": ", older + " is intact")
                self.assertIn(f"older checkpoint {older}: ok", result.out)
                flip(path, at)
        self.assertEqual(self.succeed("verify", folder).out.splitlines()[-1], "ok")

    def test_only_what_is_damaged_is_called_so(self):
        folder = self.copy("only")
        newest = self.checkpoint(folder, 6)
        file, offset, _, _ = Manifest(newest).spans[0]
        flip(os.path.join(newest, "state.bin"), offset + 100)
        self.damaged(folder, f"state.bin: damaged: the")
        found = run("verify", newest, "--json").json()["checkpoint"]
        self.assertEqual(sorted(slab["state"] for slab in found["slabs"]), ["damaged", "ok", "ok", "ok"])
        self.assertEqual([file["ok"] for file in found["files"]], [False])
        self.assertEqual(found["damages"], 1)

    def test_the_best_state_is_read_too(self):
        folder = self.path("evaluated")
        self.succeed(*self.train_words, folder, "--save-every", "2", "--eval-every", "2", "--eval-fraction", "0.2", "--result",
                     "last")
        found = self.succeed("verify", folder, "--json").json()
        best = found["best"]
        self.assertTrue(found["ok"] and best["ok"] and best["step"] == 4, found)  # the last evaluation's is the result
        self.assertIn(", the weights alone, made ", best["what"])
        self.assertEqual([slab["state"] for slab in best["slabs"]], [slab["state"] for slab in found["checkpoint"]["slabs"]])
        self.assertEqual([slab["max_m"] for slab in best["slabs"]], [0] * len(best["slabs"]))
        path = os.path.join(best["dir"], "state.bin")
        flip(path, os.path.getsize(path) // 2)
        self.damaged(folder, path + ": damaged")
        result = run("verify", folder, "--json")
        self.assertEqual([result.code, result.json()["ok"], result.json()["best"]["ok"], result.json()["checkpoint"]["ok"]],
                         [3, False, False, True])

    def test_the_newest_whole_one_is_found_behind_damaged_ones(self):
        folder = self.copy("behind")
        for step in 6, 4:
            flip(os.path.join(self.checkpoint(folder, step), "state.bin"), 5000)
        result = self.damaged(folder, self.checkpoint(folder, 2) + " is intact")
        self.assertIn(f"older checkpoint {self.checkpoint(folder, 4)}: damaged", result.out)
        flip(os.path.join(self.checkpoint(folder, 2), "state.bin"), 5000)
        self.damaged(folder, "all older checkpoints are damaged")
        self.damaged(self.checkpoint(folder, 2), "there is no older checkpoint")

    def test_values_that_cannot_be_are_found_where_checksums_agree(self):
        for array, value, phrase in ((0, float("inf"), "the m of parameter 7 (model.embed_tokens.weight) is not finite"),
                                     (1, -1e-30, "the v of parameter 7 (model.embed_tokens.weight) is negative"),
                                     (2, float("nan"), "the weight of parameter 7 (model.embed_tokens.weight) is not finite")):
            folder = self.copy(f"values{array}")
            newest = self.checkpoint(folder, 6)
            Manifest(newest).put(0, array, 7, value)
            self.damaged(folder, f"{newest}: embed: {phrase}", self.checkpoint(folder, 4) + " is intact")
        folder = self.copy("zero")
        Manifest(self.checkpoint(folder, 6)).put(0, 1, 7, -0.0)
        self.succeed("verify", folder)

    def test_files_that_are_missing_cut_or_lead_elsewhere(self):
        folder = self.copy("files")
        newest = self.checkpoint(folder, 6)
        path = os.path.join(newest, "state.bin")
        os.truncate(path, os.path.getsize(path) - 4096)
        self.damaged(folder, path + ": damaged: it has ")
        os.unlink(path)
        self.damaged(folder, path + ": damaged: it is missing")
        os.symlink(os.path.join(self.checkpoint(self.run_folder, 6), "state.bin"), path)
        self.damaged(folder, path + ": damaged: it is a symbolic link")

    def check_layers(self, layers, phrase):
        folder = self.copy("layers")
        newest = self.checkpoint(folder, 6)
        path = os.path.join(newest, "checkpoint.json")
        text = read_bytes(path).replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": %d' % layers)
        with open(path, "wb") as file:
            file.write(text)
        manifest = Manifest(newest)
        struct.pack_into("<QI", manifest.data, 32, len(text), zlib.crc32(text))
        struct.pack_into("<I", manifest.data, len(manifest.data) - 4, zlib.crc32(manifest.data[:-4]))
        with open(os.path.join(newest, MANIFEST), "wb") as file:
            file.write(manifest.data)
        self.damaged(newest, phrase)
        shutil.rmtree(folder)

    def test_a_checkpoint_of_another_model_than_it_says(self):
        self.check_layers(3, "the checkpoint has 4 slabs, but the model of this run has 5")
        self.check_layers(2000000000, "checkpoint.json: model: num_hidden_layers is 2000000000, must be")

    def test_a_model_directory(self):
        folder = self.copy("weights")
        shutil.rmtree(os.path.join(folder, "checkpoints"))
        self.assertEqual(self.succeed("verify", folder).out.splitlines()[-1], "ok")
        path = os.path.join(folder, "model.safetensors")
        whole = read_bytes(path)
        header = 8 + struct.unpack("<Q", whole[:8])[0]
        for data, phrase in ((whole[:header] + struct.pack("<f", float("nan")) + whole[header + 4:], "holds nan"),
                             (whole[:-1], "truncated or damaged"),
                             (whole.replace(b"model.norm.weight", b"model.morn.weight"), "model.norm.weight")):
            with open(path, "wb") as file:
                file.write(data)
            self.damaged(folder, phrase)
        os.unlink(path)
        self.damaged(folder, "has neither model.safetensors nor")
        with open(path, "wb") as file:
            file.write(whole)
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            file.write("{")
        self.damaged(folder, "tokenizer.json: byte ")

    def test_what_is_nothing_of_the_kind(self):
        empty = self.path("empty")
        os.mkdir(empty)
        self.fail_with(3, "not a checkpoint", "verify", empty)
        self.fail_with(3, "no such directory", "verify", self.path("absent"))
        self.fail_with(3, "no such directory", "verify", self.rows)


class Export(Checkpoints):
    def same_model(self, exported, saved):
        names = set(os.listdir(exported))
        self.assertEqual(names, {name for name in os.listdir(saved) if name not in ("log.jsonl", "checkpoints", "finished.json")})
        for name in names:
            want = read_bytes(os.path.join(saved, name))
            if name == "offload-train.json":  # the list of files
                want = want.replace(b'    "finished.json",\n', b"")
            self.assertEqual(read_bytes(os.path.join(exported, name)), want, name)

    def test_the_last_step_is_what_the_run_saves(self):
        self.succeed("export", self.run_folder, "--out", self.path("last"))
        self.same_model(self.path("last"), self.run_folder)
        # A second time, over the first export.
        found = self.succeed("export", self.run_folder, "--out", self.path("last"), "--json").json()
        self.assertEqual((found["step"], found["steps"], found["dtype"]), (6, 6, "fp32"))
        self.assertEqual(found["checkpoint"], self.checkpoint(self.run_folder, 6))
        self.same_model(self.path("last"), self.run_folder)

    def test_an_earlier_step_is_what_a_run_up_to_there_saves(self):
        words = [word if word != "6" else "2" for word in self.train_words]
        self.succeed(*words, self.path("short"))
        self.succeed("export", self.checkpoint(self.run_folder, 2), "--out", self.path("early"))
        for name in "model.safetensors", "config.json", "tokenizer.json":
            self.assertEqual(read_bytes(os.path.join(self.path("early"), name)),
                             read_bytes(os.path.join(self.path("short"), name)), name)

    def test_number_formats_and_tiers(self):
        """Exports from a model directory: other files are copied, and the dtype and shards stay."""
        os.makedirs(self.path("disk"), exist_ok=True)
        for name, words in (("bf16", ["--dtype", "bf16"]), ("fp16", ["--dtype", "fp16"]),
                            ("nvme", ["--dtype", "bf16", "--nvme", self.path("disk") + ":1G", "--home", "nvme"])):
            saved, exported = self.path(name), self.path(name + "-exported")
            self.succeed("train", "--model", self.run_folder, *SMALL[4:], "--data", self.rows, "--no-forecast", "--steps",
                         "3", "--save-every", "1", "--out", saved, *words)
            self.assertEqual(self.succeed("verify", saved).out.splitlines()[-1], "ok")
            self.assertEqual("nvme-0.store" in os.listdir(self.checkpoint(saved, 3)), name == "nvme")
            self.succeed("export", saved, "--out", exported, "-q")
            self.same_model(exported, saved)

    def test_a_model_that_was_moved_is_named_anew(self):
        base, moved, saved = self.path("base"), self.path("moved"), self.path("of-base")
        shutil.copytree(self.run_folder, base)
        self.succeed("train", "--model", base, *SMALL[4:], "--data", self.rows, "--no-forecast", "--steps", "2",
                     "--save-every", "1", "--out", saved)
        os.rename(base, moved)
        self.fail_with(3, "if the model of this run has moved, add --model", "export", saved, "--out",
                       self.path("of-moved"))
        self.succeed("export", saved, "--out", self.path("of-moved"), "--model", moved)
        self.same_model(self.path("of-moved"), saved)
        config = os.path.join(moved, "config.json")
        text = read_bytes(config).replace(b'"rms_norm_eps": 1e-0', b'"rms_norm_eps": 2e-0')
        self.assertNotEqual(text, read_bytes(config))
        with open(config, "wb") as file:
            file.write(text)
        self.fail_with(3, "this checkpoint is not of the model that is now in --model", "export", saved, "--out", self.path("other"),
                       "--model", moved)
        self.assertFalse(os.path.exists(self.path("other")))

    def test_what_cannot_be_exported(self):
        folder = self.copy("bad")
        out = self.path("never")
        flip(os.path.join(self.checkpoint(folder, 6), "state.bin"), 6000)
        line = self.fail_with(3, "state.bin: damaged: the", "export", folder, "--out", out)
        self.assertTrue(line.endswith("; you can export the checkpoint before it: " + self.checkpoint(folder, 4)), line)
        self.assertFalse(os.path.exists(out))
        self.succeed("export", self.checkpoint(folder, 4), "--out", self.path("older"))
        shutil.rmtree(os.path.join(folder, "checkpoints"))
        self.fail_with(3, "it has no checkpoints", "export", folder, "--out", out)
        self.fail_with(3, "rows.jsonl: the output is not a directory", "export", self.run_folder, "--out", self.rows)
        os.symlink(self.path("older"), out)
        self.fail_with(3, "never: ", "export", self.run_folder, "--out", out)


if __name__ == "__main__":
    main()
