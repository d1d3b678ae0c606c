#!/usr/bin/env python3
"""The evaluation on a small scale: every figure with every row, rates that agree with latencies, and nothing left over.

Usage: reproduce_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import glob
import itertools
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from report_page import Page, measured_pictures, shown_by_a_browser

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REPRODUCE = ["/usr/bin/python3", ROOT / "bench" / "reproduce" / "reproduce.py"]
PATIENCE_S = 120
PLANES = ("krcore", "lite", "verbs")
KINDS = ("thread", "fork", "exec")
SIZES = (8, 64, 512, 4096, 32768, 262144, 1048576)
MESSAGE_SIZES = (8, 64, 256, 512, 1024, 2048, 4096, 16384, 65536, 262144)
# The fields that tell a figure's rows apart, and their values in all rows that there must be.
EXPECTED = {
    "many_to_one": (("worker_kind", "control_plane", "in_flight"),
                    itertools.product(("thread", "process"), PLANES, (1, 4, 16))),
    "full_mesh": (("control_plane", "nodes"), itertools.product(PLANES, (2, 4, 8))),
    "one_sided": (("op", "bytes", "in_flight", "transport"),
                  itertools.product(("READ", "WRITE"), SIZES, (1, 16, 32), ("bare RC", "krcore DC", "krcore RC"))),
    "two_sided": (("bytes", "in_flight", "mode"), itertools.product(MESSAGE_SIZES, (1, 16), ("copy", "zero-copy"))),
    "race_bootstrap": (("worker_kind", "control_plane"), itertools.product(KINDS, PLANES)),
    "transfer": (("worker_kind", "control_plane", "bytes"), itertools.product(KINDS, PLANES, (1 << 10, 1 << 15, 1 << 20))),
}


def spreads(row):
    """The latencies of a row by name."""
    return {name: value for name, value in row.items() if isinstance(value, dict)}


def descendants(pid):
    """Processes that a process has started, and those that they have started."""
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        found.append(int(child))
        try:
            found += descendants(int(child))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def shared_memory_of(pid):
    """The shared memory that a run with that id has left. Its fabric's name has the id, since other runs may go on."""
    return glob.glob(f"/dev/shm/*reproduce-{pid}-*")


class QuickRunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)
        run = subprocess.Popen([*REPRODUCE, "--quick", "--seed=7", f"--out={cls.path}"], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        output, _ = run.communicate()
        if run.returncode != 0:
            raise AssertionError(output)
        cls.pid = run.pid
        cls.report = json.loads((cls.path / "report.json").read_text("utf-8"))

    def test_every_figure_has_every_row(self):
        self.assertEqual(self.report["figures"].keys(), EXPECTED.keys())
        for name, (keys, wanted) in EXPECTED.items():
            wanted = sorted(wanted)
            figure = self.report["figures"][name]
            with self.subTest(figure=name):
                self.assertEqual(sorted(tuple(row[key] for key in keys) for row in figure["rows"]), wanted)
                measured = sorted((row["round"], *(row[key] for key in keys)) for row in figure["rounds"])
                self.assertEqual(measured, [(number, *row) for number in range(3) for row in wanted])

    def test_numbers_are_plausible(self):
        for name, figure in self.report["figures"].items():
            self.assertEqual(figure["valid"], figure["cpu_of_others"] <= 0.1)
            for row in figure["rounds"]:
                with self.subTest(figure=name, row=row):
                    self.assertGreaterEqual(len(spreads(row)), 1)
                    for of, spread in spreads(row).items():
                        self.assertLessEqual(spread["p50"], spread["p99"], of)
                        # A part that a control plane or a kind of worker does not have is 0.
                        self.assertGreaterEqual(spread["p50"], 0, of)
                    for of in {"worker_us", "connect_us", "mesh_us", "latency_us", "bootstrap_us", "total_us"} & row.keys():
                        self.assertGreater(row[of]["p50"], 0, of)

    def test_parts_are_not_more_than_the_whole(self):
        for name, whole, parts in (("many_to_one", "worker_us", ("open_us", "datagrams_us", "connect_us")),
                                   ("transfer", "total_us", ("spawn_us", "open_us", "datagrams_us", "connect_us", "transfer_us")),
                                   ("race_bootstrap", "bootstrap_us", ("spawn_us", "store_us", "client_us"))):
            for row in self.report["figures"][name]["rounds"]:
                with self.subTest(figure=name, row=row):
                    self.assertLessEqual(sum(row[part]["mean"] for part in parts), row[whole]["mean"] * 1.01 + 0.1)

    def test_what_was_moved_was_verified(self):
        def verified(name, row):
            if name in ("many_to_one", "full_mesh"):
                return row["connects"] * 64
            return row["bytes"] * (row["samples"] if name == "transfer" else row["in_flight"])

        for name in ("many_to_one", "full_mesh", "one_sided", "two_sided", "transfer"):
            for row in self.report["figures"][name]["rounds"]:
                with self.subTest(figure=name, row=row):
                    self.assertGreater(row["verified_bytes"], 0)
                    self.assertEqual(row["verified_bytes"], verified(name, row))

    def test_rates_agree_with_latencies_at_the_same_concurrency(self):  # an identity: arithmetic and units
        for name, rate, latency in (("many_to_one", "connects_per_s", "worker_us"), ("full_mesh", "connects_per_s", "connect_us"),
                                    ("one_sided", "ops_per_s", "latency_us"), ("two_sided", "ops_per_s", "latency_us")):
            figure = self.report["figures"][name]
            for row in (*figure["rounds"], *figure["rows"]):  # medians of an odd number of rounds agree as these do
                with self.subTest(figure=name, row=row):
                    at_a_time = row[rate] * row[latency]["mean"] / 1e6
                    self.assertLessEqual(at_a_time, row["in_flight"] * 1.02)
                    if rate == "ops_per_s":  # these never pause
                        self.assertGreaterEqual(at_a_time, row["in_flight"] * 0.98)

    def test_where_it_was_measured_is_said(self):
        self.assertGreater(self.report["machine"]["cpus"], 0)
        self.assertEqual((self.report["seed"], self.report["rounds"], self.report["quick"]), (7, 3, True))
        self.assertIn("--seed=7", self.report["flags"])
        self.assertRegex(self.report["machine"]["commit"], "^[0-9a-f]{7,}$")

    def test_the_page_needs_nothing_else(self):
        page = Page()
        page.feed((self.path / "report.html").read_text("utf-8"))
        self.assertEqual(page.open, [])
        self.assertEqual([name for name in page.references if not name.startswith("#")], [])
        self.assertEqual(page.tags.count("svg"), len(EXPECTED))
        self.assertEqual(page.text.count("Published."), len(EXPECTED))
        self.assertIn("Modelled", page.text)
        for name in EXPECTED:
            self.assertEqual((self.path / f"{name}.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            self.assertIn("<svg", (self.path / f"{name}.svg").read_text("utf-8"))

    def test_a_browser_shows_the_page(self):
        shown = shown_by_a_browser(self.path / "report.html")
        if shown is None:
            self.skipTest("there is no chromium")
        self.assertIn("The evaluation, repeated</h1>", shown)
        pictures = measured_pictures(shown)
        self.assertEqual(len(pictures), len(EXPECTED))
        for width, height, drawn in pictures:
            self.assertGreater(min(width, height), 100)
            self.assertGreater(drawn, 10)

    def test_nothing_is_left(self):
        self.assertEqual(shared_memory_of(self.pid), [])


class EndTest(unittest.TestCase):
    def test_bad_options_are_refused(self):
        for option, why in (("--only=many_to_one,pony", "pony"), ("--only=", "expected some of"), ("--rounds=2", "odd"),
                            ("--rounds=-1", "odd"), ("--seed=-1", "not negative"), ("--out=/dev/null", "no directory")):
            done = subprocess.run([*REPRODUCE, option], cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(why, done.stderr)

    def test_an_interrupted_run_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.Popen([*REPRODUCE, "--quick", "--only=transfer", "--rounds=99", f"--out={folder}/out"], cwd=ROOT,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            deadline = time.monotonic() + PATIENCE_S
            started = []
            while len(started) < 3 and time.monotonic() < deadline:  # the bench, its peer and a worker
                started = descendants(run.pid)
            self.assertGreaterEqual(len(started), 3)
            run.send_signal(signal.SIGINT)
            output, _ = run.communicate(timeout=PATIENCE_S)
            self.assertEqual(run.returncode, 128 + signal.SIGINT, output)
            self.assertNotIn("FAILED", output)
            self.assertFalse(os.path.exists(f"{folder}/out"))
        self.assertEqual([pid for pid in started if os.path.exists(f"/proc/{pid}")], [])
        self.assertEqual(shared_memory_of(run.pid), [])


if __name__ == "__main__":
    unittest.main()
