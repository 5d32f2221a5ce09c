"""The built program on a disk that fails, or killed, in every phase of a save (faults.c). The old or the new
checkpoint is whole, and the same command resumes the run to the same bits."""

import glob
import os
import re
import signal
import time

import program
from program import STOPPED, read_bytes, run
from resumable import SLOW, ResumableTest, preload

# In one save of a run, as its calls are: before, amid and after the files, and after the rename.
PLACES = ("gpu", "host", "nvme", "two", "mixed") if SLOW else ("mixed",)  # copies some content and refers to the rest
DTYPES = ([], ["--dtype", "bf16"]) if SLOW else ([],)
EVERY = int(os.environ.get("OT_TEST_EVERY_FAULT", "1"))


class FaultsTest(ResumableTest):
    words = [*ResumableTest.words[:-4], "--steps", "6", "--eval-every", "2"]

    def run_with(self, fault, out, *more, where=None):
        return run(*self.command(out, *more, "--io-engine", "pool"), env=preload(fault, where or f"/{out}"))

    def calls(self, *more):
        """The calls of a run that touch its output, from beginning to end: (call, path)."""
        log = self.path("calls")
        if os.path.exists(log):
            os.unlink(log)
        self.clear("f")
        result = run(*self.command("f", *more, "--io-engine", "pool"), env=preload(None, "/f", log))
        self.assertEqual(result.code, 0, result.err)
        calls = [line.split(" ", 1) for line in read_bytes(log).decode().splitlines()]
        self.assertGreater(len(calls), 60)
        return [(call, path[len(self.folder):]) for call, path in calls]

    def moments(self, calls):
        """Numbers of calls, from 1: each kind of call on each kind of file once, at its second occurrence, which is
        in the save that has another before it. Of these every EVERY-th. In slow runs all calls."""
        if SLOW:
            return range(1, len(calls) + 1)
        seen = {}
        for n, (call, path) in enumerate(calls, 1):
            seen.setdefault((call, re.sub(r"\d+", "#", path)), []).append(n)
        return sorted(ns[min(1, len(ns) - 1)] for ns in seen.values())[::EVERY]

    def each_plan(self, places=PLACES):
        for place in places:
            for dtype in DTYPES:
                yield [*self.places[place], *dtype], self.whole(*dtype)


class Killed(FaultsTest):
    def check_killed(self, fault, more, whole, label, where=None):
        """Returns True if the fault happened before the run finished."""
        self.clear("f")
        result = self.run_with(fault, "f", *more, where=where)
        if result.code == 0:
            return False
        self.assertEqual(result.code, -signal.SIGKILL, f"{label}: {result.err}")
        self.verify("f")
        self.go_on("f", *more, label=label)
        self.check_equal("f", whole, label)
        self.check_tidy("f", label)
        return True

    def test_before_every_call(self):
        for more, whole in self.each_plan():
            calls = self.calls(*more)
            kept = self.checkpoints("f")
            last = max(n for n, (call, path) in enumerate(calls, 1) if (call, path[-8:]) == ("rename", "00000006"))
            # The last checkpoint exists and has not replaced an older one yet.
            for n in sorted({*self.moments(calls), last + 2}):
                # A flush before the kill changes nothing that stays.
                if n in (1, last + 2) or calls[n - 2][0] != "fsync":
                    label = f"{more} {n}: {calls[n - 1]}"
                    self.assertTrue(self.check_killed(f"kill:any:{n}", more, whole, label) or SLOW, label)
                    self.assertEqual(self.checkpoints("f"), kept, label)

    def test_amid_a_write(self):
        for more, whole in self.each_plan():
            bytes, step = 1000, 60000 if SLOW else 700000
            while self.check_killed(f"kill:bytes:{bytes}", more, whole, f"{more} {bytes} bytes"):
                bytes += step
            self.assertGreater(bytes, 500000)

    def test_while_the_store_is_flushed(self):
        for n in (1, 3):
            self.assertTrue(self.check_killed(f"kill:fsync:{n}", self.places["mixed"], self.whole(), n, where=".store"))

    def test_while_what_a_kill_left_is_cleared(self):
        """The work of the next runs before their first step is interrupted too, at one call after another."""
        more = self.places["mixed"]
        self.clear("f")
        self.assertEqual(self.run_with("kill:fsync:6", "f", *more, where="/f/checkpoints/step-").code, -signal.SIGKILL)
        self.assertIn(2, self.checkpoints("f"))
        for n in range(1, 18, 1 if SLOW else 4):
            self.assertEqual(self.run_with(f"kill:any:{n}", "f", *more).code, -signal.SIGKILL)
        self.assertGreaterEqual(self.go_on("f", *more), 2)
        self.check_equal("f", self.whole())
        self.check_tidy("f")


class Failing(FaultsTest):
    """Disk errors under OUT/checkpoints. All checkpoints are kept, so that a later one cannot hide the damage of an
    earlier one."""

    def check_failing(self, fault, more, whole, label, spoilt, where="/f/checkpoints/step-"):
        """A run on a failing disk ends with the same result as any other. spoilt: the checkpoints, or best states, that
        could not be saved."""
        self.clear("f")
        result = self.run_with(fault, "f", *more, "--keep", "3", where=where)
        self.assertEqual(result.code, 0, f"{label}: {result.err}")
        self.check_equal("f", whole, label)
        kind, what = ("best", "best state, that") if "/best" in where else ("checkpoint", "checkpoint")
        failed = [event for event in self.log("f") if event["event"].endswith("_failed")]
        self.assertEqual([(event["event"], event["step"]) for event in failed], [(f"{kind}_failed", n) for n in spoilt],
                         label)
        made = {name: [event["step"] for event in self.log("f") if event["event"] == name]
                for name in ("checkpoint", "best")}
        self.assertEqual(made["checkpoint"], [n for n in (2, 4, 6) if kind == "best" or n not in spoilt], label)
        self.assertEqual([self.checkpoints("f"), self.best_states("f")], [made["checkpoint"], made["best"][-1:]], label)
        self.assertFalse(set(spoilt) & set(made[kind]), label)
        for event in failed:
            self.assertIn(f"could not save the {what} of step {event['step']}: {event['error']}\n", result.err, label)
        self.check_tidy("f", label, keep=3)

    def saves(self, calls):
        """For each call the step whose save it belongs to. None: the call belongs to no save, or a save works
        without it."""
        last = before = None
        for call, path in calls:
            step = re.search(r"/step-(\d+)" + ("$" if call == "rename" else ".partial"), path)
            last = int(step[1]) if step else last
            flushes_name = call == "fsync" and path.startswith("/f/checkpoints") and before == "rename"
            yield last if flushes_name or (step and call != "unlink") else None
            before = call

    def test_one_call_of_a_save(self):
        """This save is abandoned, and the next one is made."""
        for more, whole in self.each_plan():
            calls = [(call, path) for call, path in self.calls(*more, "--keep", "3") if path.startswith("/f/checkpoints")]
            steps = list(self.saves(calls))
            for n in self.moments(calls):
                call, path = calls[n - 1]  # its number differs between runs, because threads share the directory
                k = len([1 for kind, other in calls[:n] if kind == call and path in other])
                for error in ("enospc", "eio", "erofs") if SLOW else ("eio",):
                    if steps[n - 1]:
                        label = f"{error} {more} {k}: {call} {path}"
                        self.check_failing(f"{error}:{call}:{k}", more, whole, label, [steps[n - 1]], where=path)

    def test_a_disk_that_is_full(self):
        for more, whole in self.each_plan(("host", "mixed")):
            self.check_failing("enospc:fallocate:1", more, whole, more, [2])
            self.check_failing("enospc:fallocate:1+", more, whole, more, [2, 4, 6])
            self.check_failing("enospc:bytes:5000", more, whole, more, [2, 4, 6])


class AtAStop(FaultsTest):
    words = [*ResumableTest.words[:-4], "--steps", "150", "--eval-fraction", "0", "--io-engine", "pool"]

    def test_a_save_that_fails(self):
        """At a stop a failed save is an error of the run, reported in one sentence. Earlier checkpoints stay, and
        the run resumes from them."""
        for more in [self.places[place] for place in (("host", "mixed") if SLOW else PLACES)]:
            self.clear("s")
            code, err = self.stop_after_a_step(self.start("s", *more, save="1h"), "s")
            self.assertEqual(code, STOPPED, err)
            saved = self.checkpoints("s")
            for fault, why in (("eio:fsync:1+", "Input/output error"), ("enospc:write:1+", "No space left on device"),
                               ("enospc:fallocate:1+", "cannot reserve"), ("erofs:any:1+", "Read-only file system")):
                process = self.start("s", *more, save="1h", env=preload(fault, "/s/checkpoints/step-"))
                code, err = self.stop_after_a_step(process, "s")
                lines = [line for line in err.splitlines() if line.startswith("error: ")]
                self.assertEqual((code, len(lines)), (5, 1), fault + err)
                self.assertEqual(err.splitlines()[-1], lines[0])
                self.assertIn(why, lines[0])
                self.assertEqual(os.listdir(self.path("s/checkpoints")), [f"step-{saved[0]:08}"], fault)
                self.verify("s")
            self.assertEqual(self.go_on("s", *more), saved[0])
            self.check_equal("s", self.whole())

    def test_an_output_that_is_read_only(self):
        """The program reports it before it computes anything."""
        code, err = self.stop_after_a_step(self.start("r", save="1h"), "r")
        self.assertEqual(code, STOPPED, err)
        saved = self.checkpoints("r")
        result = run(*self.command("r", save="1h"), env=preload("erofs:any:1+", "/r"))
        self.assertEqual((result.code, result.err.count("error: ")), (5, 1), result.err)
        self.assertIn("Read-only file system", result.err.splitlines()[-1])
        self.assertEqual(self.checkpoints("r"), saved)
        self.assertEqual(self.go_on("r"), saved[0])


class SlowDisk(FaultsTest):
    # Enough steps for everything that the test asks for.
    words = [*ResumableTest.words[:-4], "--steps", "300", "--eval-every", "300"]

    def test_a_signal_during_a_save_is_kept(self):
        """SIGUSR1 asks for an additional checkpoint, also while the one before is not on the disk yet."""
        self.clear("f")
        gate = self.path("gate")
        open(gate, "w").close()
        env = preload("hold:fsync:1", "state.bin") | {"OT_TEST_FAULT_HOLD": gate}
        process = self.start("f", "--keep", "9", save="never", env=env)
        self.wait_for(process, lambda: self.logged("f", "step"))
        process.send_signal(signal.SIGUSR1)
        self.wait_for(process, lambda: glob.glob(self.path("f/checkpoints/*.partial")))
        process.send_signal(signal.SIGUSR1)  # the run notices the request, and then waits for the first save
        steps = -1
        while steps != len(self.logged("f", "step")):  # the run does not wait yet
            steps = len(self.logged("f", "step"))
            time.sleep(0.5)
        process.send_signal(signal.SIGUSR1)
        os.unlink(gate)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(len(self.logged("f", "checkpoint")), 3, err)


if __name__ == "__main__":
    program.main()
