"""offload-train watch: pictures of every size on a pseudo-terminal, what is new in a growing log, how it ends, and logs that
are damaged, hostile or missing. Uses the standard library only."""

import os
import re
import signal
import subprocess
import threading
import time

import program
from program import PROGRAM, SMALL, ProgramTest, run, write_rows
from run_log import Log, eval_event, loss_of, run_event, step_event
from terminal import Terminal

SENSORS = os.environ.get("OT_TEST_SENSORS", "")


class Watch(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ.update({"FAKE_SENSORS": "bare", **({"LD_LIBRARY_PATH": SENSORS} if SENSORS else {})})  # of no GPU
        cls.live = Log(cls.path("live")).run(cls.path("live"), 1200, 100)

    @classmethod
    def tearDownClass(cls):
        cls.live.close()
        super().tearDownClass()

    def open(self, out, rows=24, columns=80, *words, **env):
        terminal = Terminal([PROGRAM, "watch", self.path(out), *words], rows, columns, env=env)
        self.addCleanup(terminal.close)
        return terminal

    def write(self, out, **how):
        log = Log(self.path(out), **how)
        self.addCleanup(log.close)
        return log

    def leave(self, terminal):
        terminal.keys("q")
        self.assertEqual(terminal.end(), 0, terminal.process.stderr.read())
        self.assertTrue(terminal.is_restored())

    def labels(self, terminal):
        return [line[:7].strip() for line in terminal.lines()[2:-1] if re.match(r"[a-z]\w*( \d)? ", line[:8])]

    def test_pictures_of_every_size(self):
        terminal = self.open("live", 30, 100, "--every", "5m").until("q leaves")
        lines = terminal.lines()
        self.assertRegex(lines[0], r"^.*live +running$")
        self.assertEqual(len(lines[0]), 100)
        self.assertRegex(lines[1], r"^\[#\.{19}\] step 100 of 1,200, 8 % · ETA (59m\d\ds|1h0\dm) · 5m3\ds so far · epoch 0.25$")
        self.assertEqual(lines[2], f"loss    {loss_of(100):.4f} · eval {loss_of(100) + 0.05:.4f} after step 100 · accuracy 71.0 %")
        speed = "speed   5,041 tok/s · 3.25 s a step · roof 62 % · 3.20 s a step predicted · |g| 1.25 · lr 1.00e-05"
        lanes = "lanes   predicted · compute 90 % · nvme_read 75 % · cpu 60 % · h2d 40 % · nvme_write 35 % · d2h 25 %"
        tiers = ["gpu     [###################.] 22.0 GiB of 23.0 GiB · 22.0 GiB planned",
                 "host    [#################...] 44.0 GiB of 50.0 GiB · 44.0 GiB planned",
                 "nvme    [########............] 81.0 GiB of 200.0 GiB · as planned"]
        disks = "disks   read 4 GB/s · write 2 GB/s · a step 13 GB read, 6.5 GB written"
        for line in (speed, lanes, *tiers, disks, "model   llama-7b · llama · 6.74 B parameters, bf16", "tokens a second"):
            self.assertIn(line, lines)
        self.assertRegex(lines[-1], r"^q leaves +last step [\d.]+s ago$")
        self.check_curve(terminal, 8, 100)
        for rows, columns in ((24, 80), (10, 40), (5, 20), (60, 200), (3, 9), (1, 1), (24, 80)):
            terminal.resize(rows, columns)
            terminal.read(0.3)
            self.assertLessEqual(max(map(len, terminal.lines())), columns)
        lines = terminal.lines()
        self.assertEqual(self.labels(terminal), ["loss", "speed", "lanes", "gpu", "host", "nvme", "disks", "model", "machine"])
        self.assertEqual([line for line in lines if line == disks or line in tiers], [*tiers, disks])
        self.assertIn("lanes   predicted · compute 90 % · nvme_read 75 % · cpu 60 % · h2d 40 %", lines)
        self.check_curve(terminal, 8, 80)
        order = ["speed", "lanes", "gpu", "host", "nvme", "disks", "model", "machine"]  # the most important ones first
        for rows in (5, 6, 7, 9, 12, 14, 17, 20):
            terminal.resize(rows, 80)
            terminal.read(0.3)
            labels = self.labels(terminal)
            self.assertEqual(labels, ["loss", *order[:len(labels) - 1]])
            self.assertTrue(1 < len(labels) <= rows - 3, (rows, labels))
        terminal.resize(10, 40)
        terminal.until("step 100/1,200 · ETA ")
        self.assertEqual(self.labels(terminal)[:2], ["loss", "speed"])
        self.assertEqual(terminal.lines()[2], f"loss    {loss_of(100):.4f}")
        self.leave(terminal)

    def check_curve(self, terminal, left, columns):
        """The loss falls from the upper left to the lower right, without a gap. Evaluations are marked."""
        lines = [line.ljust(columns) for line in terminal.lines()]
        top = 3
        bottom = next(i for i, line in enumerate(lines) if re.fullmatch(r" {8}0 +100", line.rstrip()))
        plot = [line[left:] for line in lines[top:bottom]]
        self.assertEqual((plot[0][0], plot[-1][-1]), ("o", "o"))
        self.assertEqual(sum(line.count("o") for line in plot), 6)
        rows = [[i for i, line in enumerate(plot) if line[x] not in " o"] or [i for i, line in enumerate(plot) if line[x] == "o"]
                for x in range(1, columns - left)]
        self.assertTrue(all(rows), plot)
        self.assertTrue(all(min(a) <= min(b) <= max(a) + 1 for a, b in zip(rows, rows[1:])), plot)
        self.assertEqual((lines[top][:left].strip(), lines[bottom - 1][:left].strip()), ("2.5", f"{loss_of(100):.3g}"))

    def test_a_real_run_is_watched_to_its_end(self):
        """The watch begins first, waits, and leaves the last picture on the normal screen."""
        terminal = self.open("real", 24, 80, "--every", "0.1s").until(f"waiting for {self.path('real')[:40]}")
        self.train("real", "--steps", "6", "--eval-every", "3", "--eval-fraction", "0.2")
        self.assertEqual(terminal.end(), 0, terminal.process.stderr.read())
        self.assertTrue(terminal.is_restored())
        log = self.log("real")
        step, last = [event for event in log if event["event"] == "step"][-1], [event for event in log if event["event"] == "eval"][-1]
        self.assertIn(f"loss    {step['loss']:.4f} · eval {last['loss']:.4f} after step 6", terminal.normal)
        self.assertRegex(terminal.normal, r"real +finished\r\n\[#{20}\] step 6 of 6, 100 % ")
        sample = next(event for event in log if event["event"] == "sample")
        self.assertIn('sample  "' + sample["prompt"].replace("\n", " ")[:40], terminal.normal)
        self.assertEqual(run("watch", self.path("real")).out.splitlines()[2:3], terminal.normal.splitlines()[2:3])

    def test_a_growing_log_is_read_from_where_it_was(self):
        out = self.path("growing")
        log = self.write("growing").run(out, 9000, 3000, evals=1000)
        terminal = self.open("growing", 24, 80, "--every", "0.1s").until("step 3,000 of 9,000")

        def bytes_read():
            with open(f"/proc/{terminal.process.pid}/io") as file:
                return int(re.search(r"rchar: (\d+)", file.read())[1])
        before = bytes_read()
        line = '{"event": "step", "step": 3001, "loss": 0.125, "tokens_per_s": 7}\n'
        log.put(text=line[:30])
        terminal.read(0.3)
        self.assertIn("step 3,000 of 9,000", terminal.text())
        log.put(text=line[30:])
        terminal.until("step 3,001 of 9,000")
        self.assertIn("loss    0.1250 ", terminal.text())
        terminal.read(0.3)
        self.assertLess(bytes_read() - before, os.path.getsize(log.path) / 10)
        # A resumed run cuts the log, and goes on from an earlier step.
        log.file.truncate(0)
        log.file.seek(0)
        log.put(run_event(out, 70), step_event(41, 70, 0.75))
        terminal.until("step 41 of 70")
        log.put({"event": "done", "steps": 42, "interrupted": True})
        self.assertEqual(terminal.end(), 0)
        self.assertIn("stopped by a signal after step 41 of 70", terminal.normal)

    def test_it_leaves_the_terminal_as_it_was(self):
        for number in (None, signal.SIGTERM, signal.SIGHUP):
            terminal = self.open("live").until("q leaves")
            self.assertTrue(terminal.is_other and not terminal.wraps and not terminal.has_cursor)
            if number:
                terminal.process.send_signal(number)
            else:
                terminal.keys("\x03")
            self.assertEqual(terminal.end(), 0, number)
            self.assertTrue(terminal.is_restored(), number)
            self.assertEqual(terminal.normal, "")
        terminal = self.open("live").until("q leaves")
        terminal.process.send_signal(signal.SIGTSTP)
        for _ in range(100):
            terminal.read(0.02)
            if terminal.is_restored():
                break
        self.assertTrue(terminal.is_restored())
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until("q leaves")
        self.assertTrue(terminal.is_other)
        self.leave(terminal)

    def test_a_terminal_without_utf8_or_colours(self):
        terminal = self.open("live", 24, 80, LC_ALL="C", NO_COLOR="1").until("q leaves")
        self.assertTrue(terminal.raw.isascii())
        self.assertLessEqual(terminal.styles, {"0", "0;1", "0;2"})
        self.assertIn("5,041 tok/s | 3.25 s a step", terminal.text())
        self.check_curve(terminal, 8, 80)
        self.leave(terminal)
        plain = run("watch", self.path("live"), "--once", env={"LC_ALL": "C.UTF-8"}).out
        self.assertNotIn("\x1b", plain)
        self.assertIn("5,041 tok/s · 3.25 s a step", plain)
        self.assertEqual(plain, plain.rstrip() + "\n")

    def test_how_a_run_ended(self):
        cases = {"failed": ({"event": "failed", "error": "layer.1 is broken: use another --lr " + "or look " * 30, "exit_code": 7},
                            r"end     failed: layer.1 is broken: use another --lr (or|look)( |\n {8}|or|look)+\n"),
                 "stopped": ({"event": "done", "steps": 5, "interrupted": True}, r"end     stopped by a signal after step 5 of 12\n"),
                 "finished": ({"event": "done", "steps": 5, "interrupted": False}, r"^\S+ +finished\n"),
                 "not running": ({"event": "checkpoint", "step": 4}, r"end     not running: its log ends after step 5 of 12\n")}
        for number, (state, (event, line)) in enumerate(cases.items()):
            log = self.write(f"end{number}").run("x", 12, 5)
            log.put(event)
            log.age()
            out = run("watch", self.path(f"end{number}"), env={"LC_ALL": "C.UTF-8"}).out
            self.assertRegex(out, rf"^\S+ +{state}\n")
            self.assertRegex(out, line)
            self.assertLessEqual(max(map(len, out.splitlines())), 100)
        # The log of a run that has just written a line, or holds its lock, belongs to a running one.
        log = self.write("held").run("x", 12, 5)
        os.utime(log.path, (1, 1))
        self.assertIn(" running\n", run("watch", self.path("held")).out)
        log.close()
        self.assertIn(" not running\n", run("watch", self.path("held")).out)
        os.utime(log.path)
        self.assertIn(" running\n", run("watch", self.path("held")).out)

    def test_hostile_and_damaged_logs(self):
        log = self.write("hostile")
        evil = run_event("\x1b[2J", 10, model="\x1b]0;title\x07 日本語 \u202e\u0085\x9b31m", data=[[["deep"]], {"a": 1}, 7])
        evil["machine"]["device"] = "\x1b[31m" + "漢" * 500
        log.put(evil, step_event(1, 10, 2.0), step_event(2, 10, None), eval_event(-5, 1), {"event": "sample", "step": [], "prompt": 7},
                {"event": "sample", "prompt": "p\x1b[0m\n" * 50, "text": "漢字かな交じり文 " * 40})
        log.put(text='not json\n{"event": 7}\n[]\n\n{"event":"step","step":"x"}\n{"event":"step","step":3,"loss":1e999,"seconds":-1}\n'
                     '{"event":"step","step":9000000000000000000,"loss":1,"seconds":1e300,"gpu_bytes":1e300}\n' + '{"a": "' + "x" * 5_000_000 + '"}\n')
        log.put(step_event(4, 10, 1.5))
        log.put({"event": "checkpoint_failed", "step": 4, "error": "no space\x1b[7m"}, {**step_event(5, 10, None), "skipped": "loss"})
        terminal = self.open("hostile", 30, 60).until("q leaves")
        text = terminal.text()
        self.assertIn("日", text)
        self.assertIn("lost    no space", text)
        self.assertIn("guard   1 step skipped · 3 losses not finite", text)
        self.assertIn("loss    not finite", text)
        self.leave(terminal)

    def test_runs_without_steps_and_no_runs(self):
        os.makedirs(self.path("empty"))
        os.makedirs(self.path("config"))
        with open(self.path("config/run.json"), "w") as file:
            file.write('{"model": "tiny-test", "lr": 0.1, "sources": {"lr": "default"}}')
        self.fail_with(5, "none: cannot read the run: No such file", "watch", self.path("none"))
        self.fail_with(5, "rows.jsonl is a file; give the run's directory", "watch", self.rows)
        self.fail_with(3, "has neither log.jsonl nor run.json", "watch", self.path("empty"))
        self.assertRegex(run("watch", self.path("config")).out, r"^\S+ +no log yet\nwaiting for .*/config/log.jsonl\n$")
        log = self.write("begun")
        log.put(run_event("x", 12), eval_event(0, 2.5))
        self.assertRegex(run("watch", self.path("begun"), env={"LC_ALL": "C.UTF-8"}).out,
                         r"^\S+ +before step 1\n\[\.{20}\] step 0 of 12, 0 % .*\nloss    eval 2.5000 after step 0")

    def test_sensors_of_the_gpu(self):
        if not SENSORS:
            self.skipTest("OT_TEST_SENSORS does not name the folder of the fake libnvidia-ml.so.1: no sensors are read")
        env = {"FAKE_SENSORS": "two", "LC_ALL": "C.UTF-8"}
        lines = run("watch", self.path("live"), env=env).out.splitlines()
        self.assertIn("gpu 0   61 C · 312 of 450 W · 97 % busy · 20.0 GiB of 24.0 GiB · Fake [31m 0", lines)
        self.assertIn("gpu 1   62 C · 312 W · Fake [31m 1", lines)
        for told in ("none", "bare"):
            self.assertNotIn("gpu 0", run("watch", self.path("live"), env={**env, "FAKE_SENSORS": told}).out)
        on_cpu = run_event("x", 12)
        on_cpu["machine"]["device"] = "cpu (1 thread)"
        log = self.write("cpu")
        log.put(on_cpu, step_event(1, 12, 2))
        self.assertNotIn("gpu 0", run("watch", self.path("cpu"), env=env).out)

    def test_a_run_begins_beside_watchers(self):
        """A watcher tries the lock of an old log for an instant. No run is refused because of that."""
        self.train("beside", "--steps", "1")
        os.utime(self.path("beside/log.jsonl"), (1, 1))
        with open(self.path("beside/log.jsonl")) as file:
            lines = file.read().splitlines()
        with open(self.path("beside/log.jsonl"), "w") as file:  # without its end
            file.write("\n".join(line for line in lines if '"done"' not in line) + "\n")
        os.utime(self.path("beside/log.jsonl"), (1, 1))
        stop = threading.Event()

        def watch():
            while not stop.is_set():
                run("watch", self.path("beside"))
        threads = [threading.Thread(target=watch) for _ in range(2)]
        for thread in threads:
            thread.start()
        self.train("beside", "--steps", "2", "--resume", "never")
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(self.log("beside")[-1]["event"], "done")


if __name__ == "__main__":
    program.main()
