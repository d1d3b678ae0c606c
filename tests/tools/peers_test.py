#!/usr/bin/python3
"""bench_peers and the plot of what it measures, on very small data: every peer in every table, nothing left over,
mistakes reported.

Usage: peers_test.py PATH/bench_peers [unittest's arguments]
"""

import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
PLOT = HERE.parent.parent / "bench" / "peers" / "plot.py"
sys.path.insert(1, str(PLOT.parent))
import plot  # noqa: E402  (found in the folder above; Debian's Python has matplotlib)

PEERS = ["surgekv", "bound", "bound-unsafe", "tbb", "absl", "boost", "lmdb", "memcached", "redis"]
SMALL = ["--records=2000", "--reps=1", "--slice_ms=5", "--workers=1"]


def start(*flags):
    return subprocess.Popen([BENCH, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*flags):
    """Runs it to its end. Returns the result and its process id."""
    with start(*flags) as running:
        out, err = running.communicate(timeout=120)
        return subprocess.CompletedProcess(running.args, running.returncode, out, err), running.pid


def left_by(pid):
    """Files of /dev/shm that have its process id in their names: fabrics, and folders of servers."""
    return sorted(path.name for path in pathlib.Path("/dev/shm").glob(f"*peers-{pid}-*"))


def drawn(results):
    """Plots the file's results. Returns the axes that were drawn."""
    with unittest.mock.patch("sys.argv", [str(PLOT), str(results), str(results.with_suffix(""))]):
        plot.main()
    return plot.pyplot.gcf().axes


class PeersTest(unittest.TestCase):
    def check_bars(self, axes, rows, missing):
        """There is a panel of each choice of workers and requests in flight, and each bar is as high as its rate."""
        rates = {(row["load"], row["peer"], f"workers: {row['workers']}, requests in flight: {row['in_flight']}"):
                 statistics.median(row["ops_per_s"]) / 1e6 for row in rows if row["ops_per_s"] and not row["timed"]}
        bars = {}
        for axis in axes:
            loads = [label.get_text() for label in axis.get_xticklabels()]
            for group in axis.containers:
                self.assertEqual(len(group), len(loads))
                for load, bar in zip(loads, group):
                    bars[load, group.get_label(), axis.get_title()] = bar.get_height()
        self.assertEqual(len(rates), 4 * (len(PEERS) - len(missing)))
        self.assertEqual(bars, rates)

    def check_goals(self, axis, goals):
        """Each bar is as long as the share of its goal that was reached."""
        goals = [goal for goal in goals if goal.get("measured")]
        self.assertGreater(len(goals), 5)
        self.assertEqual(len(axis.patches), len(goals))
        for goal, label, bar in zip(goals, axis.get_yticklabels(), axis.patches):
            self.assertTrue(label.get_text().startswith(goal["measure"]), label)
            reached = goal["measured"] / goal["goal"]
            self.assertAlmostEqual(bar.get_width(), reached if goal["at_least"] else 1 / reached, msg=goal["measure"])

    def test_tables_and_plot_have_every_peer_that_runs_here(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results.json"
            done, pid = run(*SMALL, "--mixes=load,C", "--distributions=uniform", "--in_flight=1,16", f"--json={results}")
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
            self.check_bars(drawn(results), measured["rows"], missing)
        self.assertEqual(left_by(pid), [])

    def test_each_goal_is_measured_and_judged(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "goals.json"
            done, _ = run("--quick", "--records=2000", "--reps=1", "--slice_ms=5", f"--json={results}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            measured = json.loads(results.read_text("utf-8"))
            self.check_goals(drawn(results)[0], measured["goals"])
        goals = {goal["measure"]: goal for goal in measured["goals"]}
        self.assertEqual(len(goals), 12)
        table = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
        self.assertEqual(len(table), 12)
        for row in table:
            name, bound, value, met = (cell.strip() for cell in row[1:5])
            goal = goals[name]
            self.assertEqual(bound.startswith(">="), goal["at_least"], name)
            if value == "not run":
                continue
            right = goal["measured"] >= goal["goal"] if goal["at_least"] else goal["measured"] <= goal["goal"]
            self.assertEqual(met, "yes" if right else "no", name)
        # Of several ratios the worst counts.
        rates = {(row["peer"], row["load"], row["workers"], row["in_flight"]): row["ops_per_s"][0]
                 for row in measured["rows"] if row["ops_per_s"] and not row["timed"]}
        ratios = [rates["surgekv", "C uniform", workers, 16] / rates[peer, "C uniform", workers, 1]
                  for peer in ("tbb", "absl") for workers in (1, 2)]
        name = "Get, 16 in flight, against TBB and the sharded absl maps (one at a time), same workers"
        self.assertAlmostEqual(goals[name]["measured"] / min(ratios), 1, places=4)

    def test_an_interrupted_run_leaves_nothing(self):
        with start("--records=2000", "--reps=1000", "--mixes=C", "--peers=surgekv,lmdb") as running:
            for line in running.stderr:
                if "repetition 1 of" in line:
                    running.send_signal(signal.SIGINT)
                    break
            self.assertEqual(running.wait(timeout=60), 130)
        self.assertEqual(left_by(running.pid), [])

    def test_mistakes_are_reported(self):
        for flag, said in (("--peers=nosql", "nosql is none of surgekv"), ("--mixes=E", "E is none of"),
                           ("--workers=0", "0 is not 1 to 16"), ("--in_flight=65", "65 is not 1 to 64"),
                           ("--distributions=normal", "uniform or zipf"), ("--shape=1/1", "16/100 or 8/8"),
                           ("--reps=0", "above 0")):
            done, _ = run(*SMALL, flag) if flag != "--workers=0" else run(flag)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stdout, "")


BENCH = sys.argv.pop(1)
if __name__ == "__main__":
    unittest.main()
