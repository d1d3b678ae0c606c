#!/usr/bin/python3
"""The report that tools/reproduce makes, from recorded measurements: reproduce_recorded.json, of a quick run.

Usage: reproduce_report_test.py [unittest's arguments]
"""

import copy
import html
import json
import pathlib
import re
import sys
import tempfile
import unittest

from report_page import Page

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[1:1] = [str(ROOT / folder) for folder in ("bench/reproduce", "bench/common", "tools/lib")]
import figures  # noqa: E402  (found in the folders above; Debian's Python has matplotlib)
import reproduce_page  # noqa: E402


def recorded():
    report = json.loads((HERE / "reproduce_recorded.json").read_text("utf-8"))
    for name, figure in report["figures"].items():
        figure["rows"] = figures.medians(name, figure["rounds"])
    return report


def times(row, factor):
    """The row with every measured number multiplied by `factor`."""
    keys = {"in_flight", "bytes", "nodes", "round"}
    return {name: value if name in keys or isinstance(value, str) else
            {part: number * factor for part, number in value.items()} if isinstance(value, dict) else value * factor
            for name, value in row.items()}


def rows_of(page, cell="td"):
    """The rows of all tables of the HTML page: of each the text of its cells."""
    rows = re.findall(r"<tr>(.*?)</tr>", page.decode("utf-8"), re.DOTALL)
    return [[html.unescape(text) for text in re.findall(rf"<{cell}>(.*?)</{cell}>", row)] for row in rows]


class MediansTest(unittest.TestCase):
    def test_each_number_is_the_median_of_its_rounds(self):
        for name, figure in recorded()["figures"].items():
            rounds = [times(row, factor) | {"round": number} for number, factor in enumerate((2, 1, 5))
                      for row in figure["rounds"]]
            doubled = figures.medians(name, [times(row, 2) for row in figure["rounds"]])
            self.assertEqual(figures.medians(name, rounds), [row | {"rounds": 3} for row in doubled])
            self.assertEqual(len(doubled), len(figure["rounds"]))


class ConsistencyTest(unittest.TestCase):
    def test_recorded_rates_agree_with_their_latencies(self):
        for name, figure in recorded()["figures"].items():
            self.assertEqual(figures.inconsistencies(name, figure["rounds"]), [])

    def test_a_rate_that_its_latency_does_not_allow_is_found(self):
        for name, figure in figures.FIGURES.items():
            if not figure.rate:
                continue
            rows = recorded()["figures"][name]["rounds"]
            rows[1][figure.rate] = rows[1]["in_flight"] * 1.1e6 / rows[1][figure.latency]["mean"]
            self.assertEqual(len(figures.inconsistencies(name, rows)), 1, name)

    def test_a_data_path_slower_than_its_latency_is_found(self):
        rows = recorded()["figures"]["one_sided"]["rounds"]
        rows[2]["ops_per_s"] *= 0.9
        self.assertEqual(len(figures.inconsistencies("one_sided", rows)), 1)


class FindingsTest(unittest.TestCase):
    def rows_of(self, copied, zero_copied):
        return [{"mode": mode, "bytes": 64 << i, "in_flight": 1, "latency_us": {"p50": us}}
                for mode, list_of_us in (("copy", copied), ("zero-copy", zero_copied)) for i, us in enumerate(list_of_us)]

    def test_copy_and_zero_copy_cross_where_zero_copy_stays_faster(self):
        self.assertEqual(figures.crossing(self.rows_of((1, 2, 4, 8), (3, 3, 3, 3)), 1), (128, 256))
        self.assertEqual(figures.crossing(self.rows_of((1, 4, 2, 8), (3, 3, 3, 3)), 1), (256, 512))
        self.assertEqual(figures.crossing(self.rows_of((4, 4, 4, 8), (3, 3, 3, 3)), 1), (0, 64))
        self.assertIsNone(figures.crossing(self.rows_of((1, 2, 4, 2), (3, 3, 3, 3)), 1))

    def test_what_got_longer_is_not_said_to_be_shorter(self):
        rows = recorded()["figures"]["race_bootstrap"]["rows"]
        for row in rows:
            row["bootstrap_us"]["p50"] = {"krcore": 300, "lite": 200, "verbs": 200 if row["worker_kind"] == "exec" else 1000}[
                row["control_plane"]]
        said = figures.found_race_bootstrap(rows)
        self.assertIn("thread 70% shorter (300 against 1,000 us)", said)
        self.assertIn("exec 50% LONGER (300 against 200 us)", said)

    def test_every_figure_says_what_was_published_and_found(self):
        for name, figure in recorded()["figures"].items():
            said = dict(reproduce_page.sentences(name, figure))
            self.assertIn("KRCORE, USENIX ATC'22", said["Published"])
            self.assertRegex(said["Found"], "[0-9]")


class ReportTest(unittest.TestCase):
    def write(self, report, *figures):
        """Writes a report with these figures, or with all if none are named. Returns its page and its files."""
        report = report | {"figures": {name: report["figures"][name] for name in figures or report["figures"]}}
        with tempfile.TemporaryDirectory() as folder:
            reproduce_page.write(pathlib.Path(folder), report)
            files = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
        shown = Page()
        shown.feed(files["report.html"].decode("utf-8"))
        self.assertEqual(shown.open, [])
        self.assertEqual([name for name in shown.references if not name.startswith("#")], [])
        return shown, files

    def test_all_that_was_measured_is_in_page_markdown_and_json(self):
        report = recorded()
        _, files = self.write(report)
        self.assertEqual(json.loads(files["report.json"]), report)
        text = files["report.md"].decode("utf-8")
        in_html = rows_of(files["report.html"])
        for name, figure in report["figures"].items():
            self.assertIn(f"{name}.png", files)
            self.assertIn(f"{name}.svg", files)
            headings, rows = reproduce_page.cells(name, figure)
            self.assertEqual(len(rows), len(figure["rows"]))
            for row in rows:
                self.assertEqual(len(row), len(headings))
                self.assertIn(f"| {' | '.join(row)} |", text)
                self.assertIn(row, in_html)
        for known in (report["machine"]["commit"], report["when"], "seed 1"):
            self.assertIn(known, text)

    def test_a_number_stands_in_its_column(self):
        report = recorded()
        row = next(row for row in report["figures"]["one_sided"]["rows"]
                   if (row["op"], row["transport"], row["bytes"], row["in_flight"]) == ("READ", "krcore DC", 8, 16))
        row["latency_us"] = {"mean": 2.0, "p50": 1.25, "p99": 3.5}
        row["ops_per_s"] = 8_000_000
        headings, rows = reproduce_page.cells("one_sided", report["figures"]["one_sided"])
        right = ["READ", "krcore DC", "8", "16", "1.250", "3.500", "8,000,000"]
        self.assertIn(right, rows)
        self.assertEqual(headings[4:], ["batch p50 us", "p99", "requests a second"])
        _, files = self.write(report, "one_sided")
        self.assertIn(right, rows_of(files["report.html"]))
        self.assertIn(headings, rows_of(files["report.html"], "th"))
        self.assertIn(f"\n| {' | '.join(headings)} |\n", files["report.md"].decode("utf-8"))

    def test_a_line_goes_through_what_was_measured(self):
        rows = [row for row in recorded()["figures"]["one_sided"]["rows"] if row["op"] == "WRITE"]
        of_line = [row for row in rows if row["transport"] == "krcore DC"]
        figure = reproduce_page.PLOTS["one_sided"](recorded()["figures"]["one_sided"]["rows"])
        reproduce_page.pyplot.close(figure)
        for in_flight, panel, part, scale in ((1, 1, "p50", 1), (1, 1, "p99", 1), (16, 3, None, 1e-6)):
            some = sorted((row["bytes"], row["latency_us"][part] if part else row["ops_per_s"] * scale)
                          for row in of_line if row["in_flight"] == in_flight)
            self.assertEqual(len(some), 2)
            lines = [line for line in figure.axes[panel].lines
                     if line.get_color() == reproduce_page.STYLES["krcore DC"]
                     and line.get_linestyle() == ("--" if part == "p99" else "-")]
            self.assertEqual([list(zip(line.get_xdata(), line.get_ydata())) for line in lines], [some])

    def test_a_figure_of_a_busy_machine_is_marked(self):
        report = recorded()
        report["figures"]["two_sided"]["valid"] = True
        _, files = self.write(report, "two_sided")
        for text in (files["report.html"], files["report.md"]):
            self.assertNotIn(b"INVALID", text)
        report["figures"]["two_sided"]["valid"] = False
        _, files = self.write(report, "two_sided")
        self.assertEqual(files["report.html"].count(b"INVALID"), 2)  # in the plot and in the text
        self.assertEqual(files["report.md"].count(b"INVALID"), 1)

    def test_modelled_figures_stand_apart_and_in_no_table(self):
        report = recorded()
        report["modelled"]["connecting"]["text"] = "modelled 12345.678 us"
        shown, files = self.write(report, "full_mesh")
        self.assertEqual(sum("12345.678" in text for text in shown.text), 1)
        html_text = files["report.html"].decode("utf-8")
        self.assertLess(html_text.rindex("</table>"), html_text.index("12345.678"))
        self.assertLess(html_text.index("<h2>Modelled</h2>"), html_text.index("12345.678"))
        alone = copy.deepcopy(report) | {"modelled": {}}
        self.assertNotIn("Modelled", self.write(alone, "full_mesh")[0].text)

    def test_some_figures_alone_make_a_report(self):
        shown, files = self.write(recorded(), "two_sided", "transfer")
        self.assertEqual(shown.tags.count("svg"), 2)
        self.assertEqual(sorted(name for name in files if name.endswith(".png")), ["transfer.png", "two_sided.png"])


if __name__ == "__main__":
    unittest.main()
