#!/usr/bin/python3
"""bench_peers and the plot of what it measures, on very small data: every peer in every table, nothing left behind,
mistakes told.

Usage: peers_test.py PATH/bench_peers [unittest's arguments]
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PLOT = HERE.parent.parent / "tools" / "peers_plot.py"
PEERS = ["surgekv", "bound", "bound-unsafe", "tbb", "absl", "boost", "lmdb", "memcached", "redis"]
SMALL = ["--records=2000", "--reps=1", "--slice_ms=5", "--workers=1"]


def run(*flags):
    return subprocess.run([BENCH, *flags], capture_output=True, text=True, timeout=120, check=False)


class PeersTest(unittest.TestCase):
    def test_tables_and_plot_have_every_peer_that_runs_here(self):
        before = set(pathlib.Path("/dev/shm").glob("*peers*"))
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results.json"
            done = run(*SMALL, "--mixes=load,C", "--distributions=uniform", "--in_flight=1,16", f"--json={results}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            measured = json.loads(results.read_text("utf-8"))
            missing = {problem.split(":")[1].strip() for problem in measured["problems"]}
            self.assertLessEqual(missing, {"memcached", "redis"}, measured["problems"])  # programs, perhaps not installed
            for peer in set(PEERS) - missing:
                rows = [row for row in measured["rows"] if row["peer"] == peer and row["ops_per_s"]]
                # Loads and slices, one at a time and 16 in flight; and the timed slice.
                self.assertEqual(len(rows), 5, peer)
                self.assertTrue(all(row["ops_per_s"][0] > 0 for row in rows), rows)
            lines = done.stdout.splitlines()
            self.assertEqual(lines[0].count("|"), len(PEERS) + 2)
            self.assertEqual(sum(line.startswith("| C uniform, 1 worker, one at a time") for line in lines), 2)
            subprocess.run([PLOT, results, results.with_suffix("")], check=True, timeout=60)
            drawing = results.with_suffix(".svg").read_text("utf-8")
            for name in ("surgekv", "C uniform", "requests in flight: 16"):
                self.assertIn(name, drawing)
            self.assertTrue(results.with_suffix(".png").read_bytes().startswith(b"\x89PNG"))
        self.assertEqual(set(pathlib.Path("/dev/shm").glob("*peers*")) - before, set())

    def test_interrupted_it_leaves_nothing(self):
        before = set(pathlib.Path("/dev/shm").glob("*peers*"))
        with subprocess.Popen([BENCH, "--records=2000", "--reps=1000", "--mixes=C", "--peers=surgekv,lmdb"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
            for line in running.stderr:
                if "repetition 1 of" in line:
                    running.send_signal(signal.SIGINT)
                    break
            self.assertEqual(running.wait(timeout=60), 130)
        self.assertEqual(set(pathlib.Path("/dev/shm").glob("*peers*")) - before, set())

    def test_mistakes_are_told(self):
        for flag, said in (("--peers=nosql", "nosql is none of surgekv"), ("--mixes=E", "E is none of"),
                           ("--workers=0", "0 is not 1 to 16"), ("--in_flight=65", "65 is not 1 to 64"),
                           ("--distributions=normal", "uniform or zipf"), ("--shape=1/1", "16/100 or 8/8"),
                           ("--reps=0", "above 0")):
            done = run(*SMALL, flag) if flag != "--workers=0" else run(flag)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stdout, "")


BENCH = sys.argv.pop(1)
if __name__ == "__main__":
    unittest.main()
