"""A run that saves all the time uses no more memory, files, threads or disk space at its end than at its beginning."""

import json
import os
import subprocess

import program
from program import read_bytes
from resumable import SLOW, ResumableTest

KIB = 1024


class Steady(ResumableTest):
    steps = 1000 if SLOW else 300
    words = [*ResumableTest.words[:-4], "--steps", str(steps), "--eval-every", "50", "--json", "--quiet"]

    def used_on_disk(self, out):
        """The disk space of a run, without its log, which grows by a line a step. A file with several names counts
        once."""
        files = {}
        for folder in (out, *self.disks):
            for parent, _, names in os.walk(folder):
                for name in names:
                    try:
                        info = os.stat(os.path.join(parent, name))
                    except FileNotFoundError:  # removed at this moment
                        continue
                    if name != "log.jsonl":
                        files[info.st_ino] = 512 * info.st_blocks
        return sum(files.values())

    def sample(self, process, out):
        folder = f"/proc/{process.pid}"
        status = dict(line.split(":", 1) for line in read_bytes(folder + "/status").decode().splitlines())
        return {"memory": int(status["VmRSS"].split()[0]) * KIB, "threads": int(status["Threads"]),
                "files": len(os.listdir(folder + "/fd")), "disk": self.used_on_disk(out)}

    def check_steady(self, out, *more):
        process = self.start(out, *more, save="3", stdout=subprocess.PIPE)
        samples = []
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "step" and event["step"] % 2 and event["step"] < self.steps - 10:
                samples.append(self.sample(process, self.path(out)))
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        begin = len(samples) // 10
        middle = (begin + len(samples)) // 2
        # A save in flight needs some of its own. A leak would add that much at every save, and there are many saves.
        slack = {"memory": 512 * KIB, "threads": 4, "files": 4, "disk": 64 * KIB}
        for what in slack:
            first, second = (max(sample[what] for sample in part) for part in (samples[begin:middle], samples[middle:]))
            self.assertGreater(first, 0)
            self.assertLessEqual(second, first + slack[what], f"{more}: {what}")
        return len([event for event in self.log(out) if event["event"] == "checkpoint"])

    def test_in_memory(self):
        self.assertGreater(self.check_steady("host", *self.places["host"]), self.steps // 10)

    def test_on_disk(self):
        self.assertGreater(self.check_steady("mixed", *self.places["mixed"]), self.steps // 10)


if __name__ == "__main__":
    if b"__asan_init" in read_bytes(program.PROGRAM) or b"__tsan_init" in read_bytes(program.PROGRAM):
        print("a sanitizer keeps memory by itself")
        raise SystemExit(77)
    program.main()
