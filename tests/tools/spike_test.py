#!/usr/bin/env python3
"""The spike experiment on a small scale: every request served, the report complete, nothing left over.

Usage: spike_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import glob
import json
import pathlib
import subprocess
import tempfile
import unittest

from report_page import Page, measured_pictures, shown_by_a_browser

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SPIKE = ["/usr/bin/python3", ROOT / "bench" / "spike" / "spike.py", "--quick"]


class SpikeTest(unittest.TestCase):
    def test_the_report_is_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            with subprocess.Popen([*SPIKE, "--planes=krcore,verbs", "--kinds=thread,fork", f"--output={folder}"],
                                  cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as spike:
                said, _ = spike.communicate()
            self.assertEqual(spike.returncode, 0, said)
            report = json.loads((pathlib.Path(folder) / "spike.json").read_text("utf-8"))
            page = Page()
            page.feed((pathlib.Path(folder) / "index.html").read_text("utf-8"))
            shown = shown_by_a_browser(pathlib.Path(folder) / "index.html")
        self.assertEqual(page.open, [])
        self.assertEqual([name for name in page.references if not name.startswith("#")], [], "it needs nothing else")
        self.assertEqual(page.tags.count("svg"), 3)
        places = [page.text.index(text) for text in ("a new worker's first reply after: median", "workers that serve",
                                                          "The spike in detail")]
        self.assertEqual(places, sorted(places), "what matters comes first")
        for label in ("replies a second", "p99, ms", "workers that serve"):
            self.assertEqual(page.text.count(label), 3, label)
        if shown is None:
            print("not checked in a browser: there is no chromium")
        else:
            timelines = measured_pictures(shown)
            self.assertEqual(len(timelines), 3)
            for width, height, drawn in timelines:
                self.assertGreater(min(width, height), 100)
                self.assertGreater(drawn, 10)
        (section,) = report["sections"]
        self.assertEqual(section["provider"], "sw")
        combinations = {(run["control_plane"], run["worker_kind"], run["kills"]) for run in section["runs"]}
        self.assertEqual(combinations, {(plane, kind, False) for plane in ("krcore", "verbs")
                                        for kind in ("thread", "fork")} | {("krcore", "fork", True)})
        for run in section["runs"]:
            self.assertGreater(run["requests"], 10_000)
            self.assertGreaterEqual(run["workers_added"], 6)
            self.assertGreater(len(run["decisions"]), 0)
            self.assertEqual(run["deaths"] > 0, run["kills"])
            line = run["timeline"]
            self.assertEqual(len({len(line[name]) for name in ("due_per_s", "replies_per_s", "p99_us", "workers")}), 1)
            self.assertAlmostEqual(sum(line["due_per_s"]) * line["bin_s"], run["requests"], delta=1)
            self.assertGreaterEqual(max(line["workers"]), 7)
        self.assertEqual(len(section["one_at_a_time"]), 4)
        for row in section["one_at_a_time"]:
            # Of 20 workers; on a busy machine some are retired before their first request comes.
            self.assertGreaterEqual(row["bootstrap_us"]["bootstrap"]["samples"], 5)
            self.assertGreater(row["bootstrap_us"]["connect"]["p50"], 0)
        self.assertIn("Modelled", page.text)
        self.assertEqual(glob.glob(f"/dev/shm/*spike-{spike.pid}-*"), [])

    def test_clients_of_redis_as_the_load(self):
        with tempfile.TemporaryDirectory() as folder:
            spike = subprocess.run([*SPIKE, "--redis", "--planes=krcore", f"--output={folder}"], cwd=ROOT,
                                   capture_output=True, text=True, check=False)
            self.assertEqual(spike.returncode, 0, spike.stdout + spike.stderr)
            report = json.loads((pathlib.Path(folder) / "spike.json").read_text("utf-8"))
            page = (pathlib.Path(folder) / "index.html").read_text("utf-8")
        self.assertIn("Clients of Redis sent the requests", page)
        ((run,),) = (section["runs"] for section in report["sections"])
        self.assertGreater(run["requests"], 10_000)
        self.assertGreaterEqual(run["workers_added"], 1)
        # The clock of the workers and that of the clients are one: workers are added when the load rises.
        at_start = round(report["sections"][0]["load"]["start_s"] / run["timeline"]["bin_s"])
        self.assertGreater(max(run["timeline"]["workers"][at_start:]), max(run["timeline"]["workers"][at_start - 10:at_start]))

    def test_bad_options_are_refused(self):
        for option, why in (("--planes=krcore,pony", "pony"), ("--kinds=", "expected some of"), ("--repeats=-1", "at least 1"),
                            ("--rnic=sw,tin", "tin"), ("--peak=1", "below --peak"),
                            ("--planes=krcore,kernel", "kernel needs an RDMA device"), ("--control_plane=lite", "lite")):
            done = subprocess.run([*SPIKE, option], cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()
