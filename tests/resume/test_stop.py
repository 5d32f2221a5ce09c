"""What users and schedulers do to a run: Ctrl-C once and twice, in every phase; terminals that go away; the command
that a stopped run prints, pasted into a shell."""

import fcntl
import glob
import os
import pty
import random
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest

import program
from program import PROGRAM, STOPPED, read_bytes, run, sql_rows, write_rows
from resumable import preload
from stopping import SLOW, StoppingTest

STEPS = 20
STOPS = (signal.SIGINT, signal.SIGTERM)
AT_ONCE = "error: stopped at once by a second signal; unsaved progress is lost\n"
NOTHING = "error: stopped before step 1: nothing was trained\n"


class StopTest(StoppingTest):
    words = [*StoppingTest.words, "--steps", str(STEPS), "--eval-every", "4"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        begin = time.monotonic()
        result = run(*cls.command("whole"))
        cls.seconds = time.monotonic() - begin
        assert result.code == 0, result.err

    def kinds(self):
        return [[], ["--home", "host"], ["--home", "nvme", "--nvme", self.disk], ["--save-every", "1"],
                ["--save-every", "1", "--home", "weights=host,state=nvme", "--nvme", self.disk]]

    def in_a_shell(self, err):
        """Runs the command that a stopped run prints, and expects it to finish the run."""
        command = re.search(r"^resume  (.*)$", err[err.index("stopped by a signal after step"):], re.M)[1]
        done = subprocess.run(["sh", "-c", command], capture_output=True, cwd=self.folder, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stderr.decode()

    def check_end(self, code, err, out):
        """Checks a run that was stopped once: its message must be true."""
        if code == STOPPED:
            step = int(re.search(r"^saved   .* · step (\d+) of 20$", err, re.M)[1])
            self.assertEqual(self.checkpoints(out)[-1], step)
            self.assertIn("\nStopping: ", err)
            self.assertRegex(err, rf"\nstopped by a signal after step {step}\n")
            export = re.search(r"\nexport  (.*) --out DIR writes it as a Hugging Face directory\n$", err)[1]
            self.succeed(*shlex.split(export)[1:], "--out", self.path("exported"), "--quiet")
            shutil.rmtree(self.path("exported"))
        else:
            self.assertEqual(code, 8, err)
            self.assertTrue(err.endswith(NOTHING), err)


class Once(StopTest):
    def test_at_random_moments(self):
        draw = random.Random(3)
        stops, tries = 0, 0
        while stops < (100 if SLOW else 5):
            out = "it's here"
            shutil.rmtree(self.path(out), ignore_errors=True)
            process = self.start(out, *draw.choice(self.kinds()))
            if draw.random() < 0.8:
                self.wait_for(process, lambda: self.logged(out, "step", 1))
            time.sleep(draw.uniform(0, 0.2 if SLOW else 0.5 * self.seconds))
            number = draw.choice(STOPS)
            ended = process.poll() is not None
            process.send_signal(number)
            err = process.communicate(timeout=60)[1].decode()
            tries += 1
            self.assertLess(tries, 1000)
            if ended or process.returncode == -number:  # before main, or after the run had finished
                continue
            if os.path.exists(self.path(out + "/model.safetensors")):  # perhaps without the last evaluation
                self.assertEqual(process.returncode, 0)
                self.check_equal(out, "whole", "step")
                continue
            self.check_end(process.returncode, err, out)
            if process.returncode == STOPPED:
                self.in_a_shell(err)
                stops += 1
            else:
                self.succeed(*self.command(out))
            self.check_equal(out, "whole")

    def test_before_step_1(self):
        """A signal while the machine is measured, and while rows are evaluated."""
        draw = random.Random(4)
        for i in range(20 if SLOW else 4):
            words = [word for word in self.command("early") if word != "--no-forecast"]
            process = subprocess.Popen([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            time.sleep(draw.uniform(0.03, 0.1))
            process.send_signal(STOPS[i % 2])
            err = process.communicate(timeout=60)[1].decode()
            if process.returncode != -STOPS[i % 2] and not os.path.exists(self.path("early")):
                self.assertEqual(process.returncode, 8, err)
                self.assertTrue(err.endswith(NOTHING), err)
            shutil.rmtree(self.path("early"), ignore_errors=True)
        held = write_rows(self.path("held.jsonl"), sql_rows(2000))
        process = self.start("early", "--eval-data", held)
        self.assertTrue(self.wait_for(process, lambda: os.path.exists(self.path("early/log.jsonl"))))
        time.sleep(0.02)
        err = self.end(process, signal.SIGINT, 8)
        self.assertTrue(err.endswith(NOTHING), err)
        self.assertNotIn("\nsaved ", err)
        self.assertEqual(os.listdir(self.path("early")).count("checkpoints"), 0)

    def test_while_a_model_is_loaded(self):
        """Makes random weights, or a checkpoint, of a model of 10 million parameters."""
        shape = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6,
                 "num_key_value_heads": 6, "head_dim": 64}
        config = program.json.loads(read_bytes(self.path("whole/config.json"))) | shape
        os.mkdir(self.path("larger"))
        with open(self.path("larger/config.json"), "w") as file:
            program.json.dump(config, file)
        shutil.copy(self.path("whole/tokenizer.json"), self.path("larger"))
        larger = ("--model", self.path("larger"))
        for _ in range(10 if SLOW else 2):
            process = self.loading("larger-out", larger)
            err = self.end(process, signal.SIGTERM, 8)
            self.assertTrue(err.endswith(NOTHING), err)
            self.assertFalse(os.path.exists(self.path("larger-out")))
        self.stop_after(2, "larger-out", *larger, "--save-every", "1", number=signal.SIGTERM)
        before = self.checkpoints("larger-out")
        err = self.end(self.loading("larger-out", larger), signal.SIGTERM, 8)
        self.assertTrue(err.endswith(NOTHING), err)
        self.assertEqual(self.checkpoints("larger-out"), before)

    def loading(self, out, words):
        """Starts a run and waits until it has a plan and reads or makes weights."""
        process = self.start(out, *words)
        for line in process.stderr:
            if b"  checkpoints " in line:
                return process
        self.fail(process.wait(timeout=60))

    def test_after_the_last_step(self):
        """The training is over: a signal while the model is saved, while rows are evaluated, while the sample is
        made."""
        for event, pause in (("step", 0), ("eval", 0), ("eval", 0.01)):
            shutil.rmtree(self.path("late"), ignore_errors=True)
            process = self.start("late", "--save-every", "7")
            self.assertTrue(self.wait_for(process, lambda: self.logged("late", event, STEPS)))
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=60)[1].decode()
            if process.returncode == -signal.SIGINT:  # when everything was done
                continue
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("\ndone    20 of 20 steps", err)
            self.assertNotIn("stopped by a signal", err)
            self.assertRegex(err, r"\nsaved   \S+/late · Hugging Face directory")
            self.check_equal("late", "whole", "step")

    def test_with_nothing_to_save(self):
        words = self.command("none", "--no-save", "--json", "--steps", "100000")[:-2]  # without --out
        process = subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder)
        for line in process.stdout:
            if b'"event":"step"' in line or b'"event": "step"' in line:
                break
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, STOPPED, err)
        self.assertIn("Stopping: finishing the step; nothing is saved (--no-save)", err)
        self.assertNotIn("\nresume ", err)
        self.assertEqual(glob.glob(self.path("out*")), [])  # the default name of --out

    def test_within_the_time_that_the_machine_gives(self):
        """The process is halted for longer than --grace: too late for everything, or for everything but an older
        checkpoint."""
        slow = ("--tokens-per-step", "16Ki", "--steps", "90", "--eval-every", "90", "--grace", "1s", "--save-every")
        for _ in range(10):
            code, err = self.stand_still(*slow, "never")
            if code != STOPPED:  # it saved before it was halted
                break
        self.assertEqual(code, 8, err)
        self.assertRegex(err, r"\nwarning: stopped by a signal after step \d+: --grace left no time to save it\n")
        self.assertRegex(err, r"\nerror: nothing is saved: --grace was too short for a save, .* \(--save-every\)\n$")
        code, err = self.stand_still(*slow, "1")
        self.assertEqual(code, STOPPED, err)
        self.assertRegex(err, r"\nsaved   \S+/step-000000\d\d · step \d+ of 90\nresume  ")

    def stand_still(self, *words):
        """Halts the process between the signal and its effect."""
        shutil.rmtree(self.path("grace"), ignore_errors=True)
        process = self.start("grace", *words)
        event = "step" if words[-1] == "never" else "checkpoint"
        self.assertTrue(self.wait_for(process, lambda: self.logged("grace", event, 1)))
        process.send_signal(signal.SIGTERM)
        for line in process.stderr:
            if line.startswith(b"Stopping"):
                break
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.1)
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=60)[1].decode()
        return process.returncode, "\n" + err

    @unittest.skipUnless(SLOW, "a step that takes seconds")
    def test_a_long_step_is_given_up(self):
        rows = write_rows(self.path("long.jsonl"), sql_rows(4000))
        process = self.start("long", "--data", rows, "--tokens-per-step", "512Ki", "--steps", "9", "--eval-every", "epoch",
                             "--grace", "3s")
        self.assertTrue(self.wait_for(process, lambda: self.logged("long", "step", 1)))
        began = time.time()
        err = self.end(process, signal.SIGTERM, STOPPED)
        self.assertLess(time.time() - began, 3)
        self.assertRegex(err, r"\nsaved   \S+ · step 1 of 9\n")


class Twice(StopTest):
    def test_the_second_stops_at_once(self):
        draw = random.Random(6)
        seen, tries = 0, 0
        while seen < (60 if SLOW else 4):
            tries += 1
            self.assertLess(tries, 500)
            shutil.rmtree(self.path("twice"), ignore_errors=True)
            process = self.start("twice", *draw.choice(self.kinds()))
            self.wait_for(process, lambda: self.logged("twice", "step", draw.randint(1, 12)))
            process.send_signal(signal.SIGINT)
            time.sleep(draw.uniform(0, 0.03 if SLOW else 0.01))
            process.send_signal(signal.SIGTERM)  # another run, not a copy of the first
            err = process.communicate(timeout=60)[1].decode()
            if process.returncode == 8:
                seen += 1
                self.assertTrue(err.endswith(AT_ONCE), err)
            else:
                self.assertIn(process.returncode, (0, STOPPED, -signal.SIGINT, -signal.SIGTERM), err)
            if not os.path.exists(self.path("twice/model.safetensors")):
                self.succeed(*self.command("twice"))
            self.check_equal("twice", "whole")

    def test_during_a_save(self):
        slow = os.environ | preload("slow:fsync:1", "state.bin") # so that the test sees the save before it ends
        for second in (None, signal.SIGTERM):
            shutil.rmtree(self.path("saving"), ignore_errors=True)
            process = self.start("saving", "--save-every", "3", env=slow)
            partial = self.path("saving/checkpoints/step-00000003.partial")
            self.assertTrue(self.wait_for(process, lambda: os.path.exists(partial)))
            if second:  # the save must not end between both signals
                process.send_signal(signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)
            process.send_signal(signal.SIGINT)
            if second:
                process.send_signal(second)
                process.send_signal(signal.SIGCONT)
            err = process.communicate(timeout=60)[1].decode()
            self.assertEqual(process.returncode, 8 if second else STOPPED, err)
            if not second:
                self.check_end(STOPPED, err, "saving")
            self.succeed(*self.command("saving"))
            self.check_equal("saving", "whole")

    def test_the_same_again_at_once_is_one(self):
        """A signal as timeout(1) sends it: to the process, and to its group."""
        process = self.start("same")
        self.wait_for(process, lambda: self.logged("same", "step", 1))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=60)[1].decode()
        self.check_end(process.returncode, err, "same")
        self.assertEqual(err.count("Stopping"), 1)


class GoesOn(StopTest):
    def test_what_remains_and_the_whole(self):
        """After a resume each figure says whether it is of this part of the run or of the whole run."""
        saves = ("--save-every", "1", "--keep", "99", *program.SMALL_MACHINE)
        words = [word for word in self.command("rest", *saves) if word != "--no-forecast"]
        plain = self.succeed(*words)
        self.assertRegex(plain.err, r"\nexpect  [^\n]* tok/s · 20 steps in ")
        self.assertRegex(plain.err, r"\ndone    20 of 20 steps · [^\n]* · \d[^\n]* tokens in [^\n]*\n(?!        all)")
        self.stop_after(3, "rest", *saves)
        step = self.checkpoints("rest")[-1]
        err = self.succeed(*words).err
        self.assertRegex(err, rf"\nexpect  [^\n]* tok/s · remaining {20 - step} steps in \S+ · all 20 steps in ")
        self.assertRegex(err, rf"\ndone    20 of 20 steps · [^\n]* · since step {step}: \S+( K)? tokens in [^\n]*\n"
                              r"        whole run: 20 steps, \S+( K)? tokens in \S+\n")

    def test_sigusr1_saves(self):
        """One checkpoint for each signal, also while the one before is still being saved."""
        process = self.start("usr1", "--save-every", "never", "--keep", "99")
        self.assertTrue(self.wait_for(process, lambda: self.logged("usr1", "step", 2)))
        begun = lambda: len(glob.glob(self.path("usr1/checkpoints/step-*")))
        for count in range(3):
            self.assertTrue(self.wait_for(process, lambda: begun() == count))
            process.send_signal(signal.SIGUSR1)
        err = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(len(self.checkpoints("usr1")), 3, err)
        self.assertEqual(err.count("\ncheckpoint "), 3)
        self.check_equal("usr1", "whole")

    def test_sighup_ends_nothing(self):
        for words in ([], ["nohup"]):
            shutil.rmtree(self.path("hup"), ignore_errors=True)
            process = subprocess.Popen([*words, PROGRAM, *self.command("hup")], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for step in (1, 10):
                self.assertTrue(self.wait_for(process, lambda: self.logged("hup", "step", step)))
                process.send_signal(signal.SIGHUP)
            self.assertEqual(process.communicate(timeout=60)[1].count(b"Stopping"), 0)
            self.assertEqual(process.returncode, 0)
            self.check_equal("hup", "whole")

    def test_a_script_in_the_background_ignores_the_keyboard(self):
        process = self.start("ignores", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self.assertTrue(self.wait_for(process, lambda: self.logged("ignores", "step", 1)))
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 0)
        process.stderr.close()
        self.check_equal("ignores", "whole")


class Terminal(StopTest):
    """The text that stands on the screen."""

    def open(self, out, *more):
        terminal, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))

        def lead():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        process = self.start(out, *more, stdin=other, stdout=other, stderr=other, preexec_fn=lead)
        os.close(other)
        return process, terminal

    def read(self, terminal):
        """Reads until the last process has closed the terminal. Returns the lines that are visible in the end."""
        text = b""
        while True:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # Linux reports like this that the other side is closed
                data = b""
            if not data:
                break
            text += data
        os.close(terminal)
        lines = []
        for line in text.decode().split("\n"):
            shown = ""
            for part in line.split("\r"):
                erased = part.startswith("\033[K")
                part = part.removeprefix("\033[K")
                shown = part if erased else part + shown[len(part):]
            lines.append(shown)
        return lines

    def test_ctrl_c(self):
        process, terminal = self.open("screen", "--save-every", "5")
        self.assertTrue(self.wait_for(process, lambda: self.logged("screen", "step", 6)))
        os.write(terminal, b"\x03")
        lines = self.read(terminal)
        self.assertEqual(process.wait(timeout=60), STOPPED, lines)
        at = next(i for i, line in enumerate(lines) if line.startswith("Stopping: "))
        self.assertRegex(lines[at], r" without saving\.$")  # a whole line: the bar was erased before it
        for line in lines[:at] + lines[at + 1:]:
            self.assertRegex(line, r"^($|[a-z]+ |        )")
            self.assertNotIn("\033", line)
        self.assertEqual([line.split(" ")[0] for line in lines[-6:]],
                         ["memory", "stopped", "saved", "resume", "export", ""])
        self.in_a_shell("\n".join(lines))
        self.check_equal("screen", "whole")

    def test_losses_stay_above_the_bar(self):
        """A line at each interval, as in a file, and the bar below the lines."""
        process, terminal = self.open("history", "--log-every", "4")
        lines = self.read(terminal)
        self.assertEqual(process.wait(timeout=60), 0)
        steps = [int(found[1]) for found in (re.match(r"step +(\d+)/20( ETA \S+)? loss \d", line) for line in lines) if found]
        self.assertEqual(steps, [1, 4, 8, 12, 16, 20])
        self.assertFalse([line for line in lines if line.startswith("[")], lines)  # the bar is gone in the end

    def test_an_answer_after_each_line(self):
        self.succeed(*self.command("talk", "--steps", "1"))
        terminal, other = pty.openpty()
        words = [PROGRAM, "generate", self.path("talk"), "--max-new-tokens", "3", "--json", "--threads", "1"]
        process = subprocess.Popen(words, stdin=other, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        os.close(other)
        self.addCleanup(process.kill)
        for text in ("first", "second"):  # typed when the first is answered
            os.write(terminal, text.encode() + b"\n")
            ready, _, _ = select.select([process.stdout], [], [], 60)
            self.assertTrue(ready, "no answer before the end of the input")
            self.assertEqual(program.json.loads(process.stdout.readline())["prompt"], text)
        os.write(terminal, b"x" * 300 + b"\nthird\n")  # too long for the model: an error, and the chat goes on
        self.assertEqual(program.json.loads(process.stdout.readline())["prompt"], "third")
        os.write(terminal, b"\x04")
        self.assertEqual(process.wait(timeout=60), 0)
        process.stdout.close()
        os.close(terminal)

    def test_one_that_is_closed(self):
        process, terminal = self.open("closed", "--save-every", "5")
        self.assertTrue(self.wait_for(process, lambda: self.logged("closed", "step", 3)))
        os.close(terminal)  # the kernel sends SIGHUP, and every write fails from here on
        self.assertEqual(process.wait(timeout=60), 0)
        self.check_equal("closed", "whole")


if __name__ == "__main__":
    program.main()
