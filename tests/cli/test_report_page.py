"""offload-train report: the numbers of the page are those of the log, whatever the log has; the page needs nothing else. Uses
the standard library only."""

import html.parser
import os
import re

import program
from program import ProgramTest, read_bytes, run
from run_log import Log, eval_event, loss_of, run_event, step_event


class Page(html.parser.HTMLParser):
    """Collects elements, tables as {heading before it: rows of cells}, facts and the text outside pictures. Refuses elements
    that are not closed."""

    def __init__(self, path):
        super().__init__()
        self.open, self.elements, self.tables, self.facts, self.text = [], [], {}, {}, ""
        self.names = {}  # heading before a table, and the number of the table: its headings, and the names at its cells
        self.last = self.heading = ""
        self.bytes = os.path.getsize(path)
        self.source = read_bytes(path).decode()
        self.feed(self.source)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("meta", "br"):
            return
        self.open.append(tag)
        self.last = ""
        if tag == "table":
            self.table = self.names.setdefault(len(self.names), [])
        if tag == "tr":
            self.tables.setdefault(self.heading, []).append([])
            self.table.append([])
        if "data-name" in dict(attributes):
            self.table[-1].append(dict(attributes)["data-name"])

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag
        if tag in ("h1", "h2", "h3"):
            self.heading = self.last
        if tag in ("td", "th"):
            self.tables[self.heading][-1].append(self.last)
        if tag == "th":
            self.table[0].append(self.last)
        if tag == "dt":
            self.name = self.last
        if tag == "dd":
            self.facts[self.name] = self.last

    def handle_data(self, data):
        if "style" not in self.open and "svg" not in self.open:
            self.last += data
            self.text += data

    def curves(self):
        """The numbers of points of all lines, in the order of the page."""
        return [attributes["d"].count(",") for tag, attributes in self.elements
                if tag == "path" and attributes.get("class") in ("curve", "faint") and not attributes["d"].startswith("M0,8")]

    def markers(self):
        return sum(tag == "path" and attributes.get("class") == "marker" for tag, attributes in self.elements)


class Report(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        program.run("train", *program.SMALL, "--data", cls.rows, "--out", cls.path("real"), "--eval-every", "3", "--steps", "6",
                    "--eval-fraction", "0.2", "--seed", "5", "--no-forecast")

    def report(self, *names, words=()):
        """The page about the runs."""
        page = self.path("all.html" if len(names) > 1 else f"{names[0]}/report.html")
        result = self.succeed("report", *map(self.path, names), *(["--out", page] if len(names) > 1 else []), *words)
        size = os.path.getsize(page)
        self.assertRegex(result.out, rf"^{re.escape(page)} · [\d.]+ KiB, {len(names)} runs?\n$")
        page = Page(page)
        self.assertLess(size, 1 << 20)
        for tag, attributes in page.elements:
            self.assertNotIn(tag, ("script", "link", "img", "iframe", "object", "form"))
            self.assertFalse({"src", "href", "style", "onload", "onerror"} & set(attributes), attributes)
        self.assertNotRegex(page.source, r"https?:|@import|\b[Nn]a[Nn]\b|\binf\b")
        self.assertIn("prefers-color-scheme:dark", page.source)
        for rows in page.names.values():  # narrow screens show a column's name at each cell
            heads = [head.replace("-", "") for head in rows[0]]
            for names in rows[1:]:
                self.assertEqual([name.replace(" ", "").replace("-", "") for name in names], [head.replace(" ", "") for head in heads[1:]])
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        self.assertEqual(len(ids), len(set(ids)))
        return page

    def write(self, out, **how):
        log = Log(self.path(out), **how)
        self.addCleanup(log.close)
        return log

    def test_the_numbers_of_a_real_run(self):
        page, log = self.report("real"), self.log("real")
        steps, evals = ([event for event in log if event["event"] == kind] for kind in ("step", "eval"))
        done = log[-1]
        head, row = page.tables[f"Run {self.path('real')}"]
        self.assertEqual(dict(zip(head, row))["lowesteval loss"], f"{min(event['loss'] for event in evals):.4f}")
        self.assertEqual(row[:4], [self.path("real"), "finished", "6", f"{steps[-1]['loss']:.4f}"])
        self.assertEqual(row[6], f"{int(done['tokens'] / done['seconds'] + 0.5):,}")
        self.assertEqual(page.facts["State"], "finished")
        self.assertRegex(page.facts["Model"], r"^tiny-test · llama · 123 K parameters, fp32$")
        self.assertEqual(page.tables["Evaluations"][0], ["after step", "loss", "perplexity", "accuracy", "rows", "time"])
        rows = page.tables["Evaluations"][1:]
        self.assertEqual([row[0].strip("★ ") for row in rows], [str(event["step"]) for event in evals])
        self.assertEqual([row[1] for row in rows], [f"{event['loss']:.4f}" for event in evals])
        self.assertEqual([row[3] for row in rows], [f"{100 * event['accuracy']:.1f} %" for event in evals])
        self.assertEqual(sum("★" in row[0] for row in rows), 1)
        self.assertIn("★", min(rows, key=lambda row: float(row[1]))[0])
        self.assertEqual(page.curves(), [6, 6, 6, 6])  # loss, speed, norm, learning rate
        self.assertEqual(page.markers(), 3)
        options = {row[0]: row[1:] for row in page.tables["Options given or chosen"][1:]}
        self.assertEqual((options["--seed"], options["--lr"]), (["5", "command line"], ["0.003", "program"]))
        self.assertNotIn("--clip", options)
        gpu = page.tables["Memory"][1]
        self.assertEqual(gpu[0], "gpu")
        self.assertEqual([round(float(cell.split()[0])) for cell in gpu[1:3]], [round(done[f"gpu_{key}_bytes"] / 2**20) for key in ("used", "planned")])
        sample = next(event for event in log if event["event"] == "sample")
        self.assertIn(sample["prompt"], page.text)
        self.assertIn(sample["text"], page.text)
        again = self.report("real")
        self.assertEqual(again.source, page.source)
        self.train("real", "--steps", "6", "--eval-every", "3", "--eval-fraction", "0.2", "--seed", "5")  # OUT stays an output

    def test_runs_beside_each_other(self):
        for name, options in (("a", {"lr": 1e-5}), ("b", {"lr": 3e-5, "pack": False}), ("c", {"clip": 0})):
            log = self.write(name)
            log.put(run_event(name, 30, **options), *(step_event(s, 30, loss_of(s)) for s in range(1, 31)), {**eval_event(30, 0.5), "exact_match": 0.25})
            log.put({"event": "predicted_again", "from_step": 3, "to_step": 4, "step_seconds": 3.4, "busy_seconds": {"compute": 1.7}},
                    {"event": "done", "steps": 30, "tokens": 480000, "seconds": 120, "interrupted": False, "measured_step_seconds": 4.0,
                     "gpu_used_bytes": 1 << 34, "gpu_planned_bytes": 1 << 35, "process_peak_bytes": 1 << 36})
        page = self.report("a", "b", "c")
        self.assertEqual([row[0] for row in page.tables["3 runs"][1:]], [self.path(name) for name in "abc"])
        self.assertEqual(page.tables["3 runs"][1][5:], ["4.00 s", "4,000", "16.0 GiB", "2m00s"])
        self.assertEqual(page.tables["Options that differ"][1:],
                         [["--lr", "1e-05", "3e-05", "1e-05"], ["--pack", "yes", "no", "yes"], ["--clip", "-", "-", "0"]])
        self.assertEqual(page.curves(), [30] * 12)
        self.assertEqual(page.tables["Predicted and measured"][1:4],
                         [["a step", "3.20 s", "4.00 s", "-20.0 %"],
                          ["a step, predicted again from its first steps", "3.40 s", "4.00 s", "-15.0 %"],
                          ["the whole run", "97.5 s", "120 s", "-18.8 %"]])
        self.assertEqual(page.tables["Lanes"][:3], [["lanes busy", "h2d", "compute", "d2h", "cpu", "nvme_read", "nvme_write"],
                                                   ["predicted", "40.0 %", "90.0 %", "25.0 %", "60.0 %", "75.0 %", "35.0 %"],
                                                   ["predicted again", "0.0 %", "50.0 %", "0.0 %", "0.0 %", "0.0 %", "0.0 %"]])
        self.assertEqual(page.tables["Memory"][1:4], [["gpu", "16.0 GiB", "22.0 GiB", "23.0 GiB"], ["host", "44.0 GiB", "44.0 GiB", "50.0 GiB"],
                                                      ["nvme", "-", "81.0 GiB", "200.0 GiB"]])
        self.assertIn("Peak of the process: 64.0 GiB.", page.text)
        self.assertEqual(page.tables["Evaluations"][1], ["★ 30", "0.5000", "1.649", "71.0 %", "25.0 %", "300", "12.3 s"])

    def test_a_long_run_that_was_resumed_makes_a_small_page(self):
        log = self.write("long")
        log.put(run_event("long", 40000))
        lines = '{{"event": "step", "step": {}, "loss": {}, "tokens_per_s": 5, "grad_norm": 1, "lr": 1}}\n'
        log.put(text="".join(lines.format(step, 9 if step > 20000 else 1 + step % 2) for step in range(1, 20100)))
        log.put(*(eval_event(step, 2) for step in range(0, 20100, 300)))
        log.put({**run_event("long", 40000)}, {"event": "resume", "step": 20000})
        log.put(text="".join(lines.format(step, 1 + step % 2) for step in range(20001, 30001)) + '{"event": "step", "step": 30001, "lo')
        page = self.report("long")
        self.assertLess(page.bytes, 200_000)
        self.assertTrue(all(450 < n <= 1000 for n in page.curves()[:2]), page.curves())
        self.assertEqual(sum(attributes.get("class") == "faint" for _, attributes in page.elements), 3)  # loss, speed, norm
        loss = page.source[page.source.index("<svg viewBox"):].split("</svg>")[0]
        ticks = [float(number) for number in re.findall(r'text-anchor="end">([\d.]+)<', loss)]
        self.assertTrue(len(ticks) > 2 and 1 < min(ticks) and max(ticks) < 2, ticks)  # the steps with 9 were made again
        evals = page.tables["Evaluations"][1:]
        self.assertIn("The best one, and the last 20 of 67.", page.text)
        self.assertEqual((len(evals), evals[0][0], evals[-1][0]), (21, "★ 0", "19800"))
        self.assertEqual(page.facts["State"], "running")
        log.close()

    def test_hostile_logs_stay_text(self):
        evil = "<script>alert(1)</script>\"'&"
        log = self.write("<b>x&'")
        run_of = run_event(evil, 5, model=evil, data=evil, **{evil: evil, "l": [1, True, [2], "x\x1b\x00y"]})
        run_of["machine"]["device"], run_of["plan"]["weights"] = evil, {evil: 7}
        log.put(run_of, step_event(1, 5, None), {**step_event(2, 5, 2.0), "skipped": evil}, eval_event(2, 1.0), eval_event(2, 0.9),
                {"event": "sample", "step": 2, "prompt": evil + "é" * 9000, "text": evil},
                {"event": "failed", "error": evil, "exit_code": 7})
        log.put(text='{"event": "step", "step": -1}\n{"event":\n"\xff"\n{"event": "eval", "step": 3, "loss": "x"}\n')
        page = self.report("<b>x&'")
        self.assertEqual(page.facts["State"], f"failed: {evil}")
        self.assertIn(evil, page.facts["Machine"])
        self.assertIn(f"7 slabs on {evil}", page.facts["Plan"])
        self.assertEqual(page.facts["Guard"], "1 step skipped · 1 loss not finite")
        self.assertEqual(page.facts["Log"], "2 lines of it could not be read")
        self.assertIn(["--" + evil, evil, "-"], page.tables["Options given or chosen"])
        self.assertIn(["--l", "1, yes, x ", "-"], page.tables["Options given or chosen"])
        self.assertIn(evil + "é" * ((4000 - len(evil)) // 2) + " ...", page.text)
        self.assertEqual([row[1] for row in page.tables["Evaluations"][1:]], ["0.9000", "-"])

    def test_what_is_no_run_and_what_is_no_page(self):
        os.makedirs(self.path("empty"))
        os.makedirs(self.path("config"))
        with open(self.path("config/run.json"), "w") as file:
            file.write('{"model": "tiny-test", "lr": 0.1, "clip": 1.0, "sources": {"lr": "command line", "clip": "default"}}')
        self.fail_with(5, "none: cannot read the run: No such file", "report", self.path("none"))
        self.fail_with(3, "has neither log.jsonl nor run.json", "report", self.path("empty"))
        self.fail_with(2, "report needs --out, such as --out runs.html", "report", self.path("real"), self.path("config"))
        self.fail_with(3, "rows.jsonl exists and is no page of this program", "report", self.path("real"), "--out", self.rows)
        self.fail_with(5, "cannot write: No such file", "report", self.path("real"), "--out", self.path("none/x.html"))
        page = self.report("config")
        self.assertEqual((page.facts["State"], page.curves()), ("no log yet", []))
        self.assertNotIn("Curves", page.text)
        self.assertEqual(page.tables["Options given or chosen"][1:], [["--model", "tiny-test", "-"], ["--lr", "0.1", "command line"]])
        log = self.write("begun")
        log.put(run_event("begun", 9), eval_event(0, 2.5))
        page = self.report("begun")
        self.assertEqual((page.facts["State"], page.markers()), ("before step 1", 1))
        self.assertEqual(page.tables["Evaluations"][1:], [["★ 0", "2.5000", "12.18", "71.0 %", "300", "12.3 s"]])
        self.assertEqual(page.tables["Options given or chosen"][0], ["option", "value", "given by"])
        log.put({**eval_event(3, 0.25), "reward_margin": 1.5, "exact_match": 0.5, "equal_results": 0.625})
        page = self.report("begun")
        self.assertEqual(page.tables["Evaluations"], [
            ["after step", "loss", "accuracy", "margin", "exact match", "equal results", "rows", "time"],
            ["0", "2.5000", "71.0 %", "-", "-", "-", "300", "12.3 s"],
            ["★ 3", "0.2500", "71.0 %", "1.500", "50.0 %", "62.5 %", "300", "12.3 s"]])
        result = self.succeed("report", self.path("begun"), "--json").json()
        self.assertEqual(result, {"file": self.path("begun/report.html"), "bytes": page.bytes, "runs": 1})
        self.assertEqual(os.listdir(self.path("empty")), [])


if __name__ == "__main__":
    program.main()
