#!/usr/bin/env python3
"""The demo succeeds, fails when it must, and leaves nothing behind, however it ends.

Usage: demo_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import glob
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEMO = [sys.executable, ROOT / "tools/lib/demo.py", "--quick"]
TIMEOUT_S = 120


def processes_naming(word):
    """Process id -> command line of every process with `word` in its command line."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            command = pathlib.Path(path).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it has ended
        if word in command:
            found[int(path.split("/")[2])] = command
    return found


class DemoTest(unittest.TestCase):
    def start(self, *arguments, command=None):
        self.demo = subprocess.Popen([*(command or DEMO), *arguments], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        self.output = ""
        self.addCleanup(self.demo.stdout.close)

    def read_until(self, pattern):
        """Reads the demo's output up to the line that matches; fails at its end."""
        for line in self.demo.stdout:
            self.output += line
            if re.search(pattern, line):
                return
        self.fail(f"no line matches {pattern!r}:\n{self.output}")

    def test_the_spike_of_clients_of_redis(self):
        self.start("--redis")
        self.assertEqual(self.finish(), 0, self.output)
        self.assertEqual(len(re.findall(r"^ +time +commands/s", self.output, re.MULTILINE)), 2, self.output)
        self.assertRegex(self.output, r"workers added +[1-9]\d* +[1-9]")
        self.check_nothing_left()

    def finish(self):
        rest, _ = self.demo.communicate(timeout=TIMEOUT_S)
        self.output += rest
        return self.demo.returncode

    def check_nothing_left(self):
        fabric = re.search(r"fabric (demo-\S+):", self.output).group(1)
        self.assertEqual(glob.glob(f"/dev/shm/*{fabric}*"), [], self.output)
        # The kernel may still be ending a process; one that stays is a failure.
        deadline = time.monotonic() + 10
        while (left := processes_naming(fabric)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(left, {}, self.output)

    def test_quick_demo_succeeds_and_leaves_nothing_behind(self):
        self.start("--quick", command=[ROOT / "tools" / "demo"])
        self.assertEqual(self.finish(), 0, self.output)
        for row in (r"^load\b", r"^C +1\b", r"^C +2\b", r"^A +1\b", r"^A +2\b"):
            self.assertRegex(self.output, re.compile(row, re.MULTILINE))
        for plane in ("krcore", "plain verbs"):
            shown = self.output.split(f"workers connect by {plane}:")[1].split("==>")[0]
            rows = re.findall(r"^ +[\d.]+ s +([\d,]+)  [# ]+ [\d.]+ +(\d+)$", shown, re.MULTILINE)
            self.assertGreater(max(int(rate.replace(",", "")) for rate, _ in rows), 5_000, shown)
            self.assertGreater(max(int(workers) for _, workers in rows), 5, shown)
        for row in ("new worker's first reply", "the slowest worker", "a request in the spike", "the slowest request"):
            self.assertRegex(self.output, rf"{row}.*  [\d.]+ ms +[\d.]+ ms\n")
        self.check_nothing_left()

    def test_interrupt_while_a_workload_runs_leaves_nothing_behind(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signum=signum):
                self.start()
                self.read_until(r"==> workload C")
                self.demo.send_signal(signum)
                self.assertEqual(self.finish(), 128 + signum, self.output)
                self.check_nothing_left()

    def test_interrupt_while_loading_leaves_nothing_behind(self):
        self.start()
        self.read_until(r"==> loading")
        self.demo.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(), 128 + signal.SIGINT, self.output)
        self.check_nothing_left()

    def test_interrupt_while_a_process_starts_leaves_nothing_behind(self):
        """The process exists, and the demo has not put it into its list yet."""
        interrupted_start = (
            "import os, signal, sys; sys.path.insert(0, 'tools/lib'); import cluster, demo\n"
            "begin = cluster.Process.__init__\n"
            "def interrupted(self, *arguments):\n"
            "    begin(self, *arguments)\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "cluster.Process.__init__ = interrupted\n"
            "sys.argv = ['demo', '--quick']; sys.exit(demo.main())\n")
        self.start(command=[sys.executable, "-c", interrupted_start])
        self.assertEqual(self.finish(), 128 + signal.SIGINT, self.output)
        self.check_nothing_left()

    def test_interrupt_in_the_spike_leaves_nothing_behind(self):
        self.start()
        self.read_until(r"^ +1\.\d s")
        self.demo.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(), 128 + signal.SIGINT, self.output)
        self.check_nothing_left()

    def test_killed_demo_leaves_no_process(self):
        self.start()
        self.read_until(r"==> workload C")
        self.demo.kill()
        self.finish()
        self.check_nothing_left_but_wait_for_memory()

    def check_nothing_left_but_wait_for_memory(self):
        """For a killed demo, whose children got SIGTERM from the kernel: waits until they have stopped."""
        fabric = re.search(r"fabric (demo-\S+):", self.output).group(1)
        deadline = time.monotonic() + 30
        while processes_naming(fabric) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.check_nothing_left()

    def test_killed_memory_node_fails_the_demo_by_name(self):
        self.start()
        self.read_until(r"==> workload C")
        fabric = re.search(r"fabric (demo-\S+):", self.output).group(1)
        victims = [pid for pid, command in processes_naming(fabric).items() if "memnode" in command
                   and "--node=2" in command]
        self.assertEqual(len(victims), 1, self.output)
        os.kill(victims[0], signal.SIGKILL)
        self.assertEqual(self.finish(), 1, self.output)
        self.assertRegex(self.output, r"FAILED: run workload C: memory node 2 .*SIGKILL")
        self.check_nothing_left()

    def test_planted_mismatch_fails_the_demo(self):
        self.start("--plant-mismatch")
        self.assertEqual(self.finish(), 1, self.output)
        self.assertRegex(self.output, r"FAILED: run workload C: .* values that are not what was written")
        self.check_nothing_left()


if __name__ == "__main__":
    unittest.main(verbosity=2)
