#!/usr/bin/env python3
"""bench_rnic --rnic: what it prints on sw, and that it reports mistakes before it measures anything.

Usage: tests/tools/bench_rnic_test.py BENCH_RNIC
"""

import re
import subprocess
import sys
import unittest

LINE = re.compile(r"^rnic=sw path=(\w+) operation=(\w+) bytes=(\d+) requests=10 min_us=[\d.]+ median_us=([\d.]+) "
                  r"p99_us=[\d.]+(?: round_trips=([\d.]+) ratio_to_read=([\d.]+))?$")
PATIENCE_S = 50


def bench(*arguments):
    return subprocess.run([bench_rnic, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


class BenchRnicTest(unittest.TestCase):
    def lines(self, *arguments):
        done = bench("--rnic=sw", "--requests=10", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        matches = [LINE.match(line) for line in done.stdout.splitlines()]
        self.assertTrue(all(matches), done.stdout)
        return [match.groups() for match in matches]

    def test_each_operation_over_a_bare_queue_and_a_virtual_one(self):
        self.assertEqual([line[:3] for line in self.lines()],
                         [(path, operation, "8" if operation == "cas" else "64")
                          for operation in ("read", "cas", "send") for path in ("rc", "queue")])

    def test_a_get_costs_two_round_trips_or_one_and_its_ratio_to_a_bare_read_is_printed(self):
        lines = self.lines("--path=store", "--bytes=200")
        self.assertEqual([line[:3] + line[4:5] for line in lines],
                         [("rc", "read", "200", None), ("store", "get", "200", "2.000"),
                          ("store", "get_cached", "200", "1.000")])
        for line in lines[1:]:
            self.assertGreater(float(line[5]), 0)

    def test_mistakes_are_reported_whatever_the_path(self):
        for flags in (["--bytes=0"], ["--bytes=4097"], ["--requests=0"], ["--operation=write"], ["--rnic=nic"],
                      ["--fabric_address=localhost"]):
            for path in ("rc", "queue", "store"):
                done = bench("--rnic=sw", f"--path={path}", *flags)
                self.assertEqual((done.returncode, done.stdout), (2, ""), (path, flags))
                self.assertIn(flags[0].split("=")[0], done.stderr)
        for flags, flag in ((["--rnic=sw", "--path=dc"], "--path=dc"), (["--path=store"], "--path"),
                            (["--rnic=sw", "--path=store", "--operation=read"], "--operation")):
            done = bench(*flags)
            self.assertEqual((done.returncode, done.stdout), (2, ""), flags)
            self.assertIn(flag, done.stderr)


if __name__ == "__main__":
    bench_rnic = sys.argv.pop(1)
    unittest.main(verbosity=2)
