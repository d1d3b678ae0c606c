#!/usr/bin/env python3
"""Signals that a program is told to ignore by whoever starts it, such as nohup, and what it leaves to its own children.

Usage: tests/programs/signals_test.py [TEST...]
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from fabric_case import RECORDS, FabricCase
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, Program, a_worker_of, wait_for

IGNORED = "env", "--ignore-signal=HUP,INT"


class SignalsTest(FabricCase):
    def start_as(self, prefix, program, *arguments):
        """Started by the command `prefix`, which becomes the program."""
        self.programs.append(Program(self.folder, "/usr/bin/" + prefix[0], *prefix[1:], BIN / program, f"--fabric={self.fabric}",
                                     *arguments))
        return self.programs[-1]

    def start_home(self, *prefix):
        memnode = self.start_as(prefix or ("env",), "memnode", "--node=1", "--memory=64M", "--hugepages=off", "--metaserver")
        memnode.wait_for("^ready ")
        self.load()
        return memnode

    def workload(self, *arguments):
        return ["-P", WORKLOADS / "workloadc", "-p", f"recordcount={RECORDS}", *arguments]

    def check_records(self):
        done = subprocess.run([BIN / "ycsb", "run", f"--fabric={self.fabric}", *self.workload("-p", "operationcount=1000")],
                              capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def hang_up(self, program):
        program.popen.send_signal(signal.SIGHUP)
        program.popen.send_signal(signal.SIGINT)

    def test_a_closed_terminal_takes_no_memory_node_away(self):
        for prefix in ("env",), ("nohup",):
            with self.subTest(prefix=prefix):
                memnode = self.start_home(*prefix)
                memnode.popen.send_signal(signal.SIGHUP)
                self.check_records()
                self.assertEqual(memnode.stop(), 0, memnode.text())
                memnode.wait_for("^stopped .* signal=SIGTERM ")

    def test_a_memory_node_that_was_started_with_signals_blocked_can_be_stopped(self):
        memnode = self.start_home("env", "--block-signal=TERM,INT,HUP")
        self.assertEqual(memnode.stop(), 0, memnode.text())

    def test_a_memory_node_in_the_background_of_a_script_survives_ctrl_c(self):
        memnode = self.start_home(*IGNORED)
        self.hang_up(memnode)
        self.check_records()
        self.assertEqual(memnode.stop(), 0, memnode.text())

    def test_ycsb_honours_what_it_is_told_to_ignore(self):
        self.start_home()
        ycsb = self.start_as(IGNORED, "ycsb", "run", *self.workload("-p", "operationcount=4000", "-p",
                                                                        "status.interval=1", "--target=2000"))
        ycsb.wait_for("worker", ycsb.log)
        self.hang_up(ycsb)
        self.assertEqual(ycsb.ended(), 0, ycsb.text())

    def test_computenode_honours_what_it_is_told_to_ignore(self):
        self.start_home()
        profile = "--profile=constant:100,600"
        for kind in [], [profile], [profile, "--worker_kind=thread"], [profile, "--worker_kind=fork"], [profile, "--worker_kind=exec"]:
            with self.subTest(kind=kind):
                computenode = self.start_as(IGNORED, "computenode", *self.workload("-p", "operationcount=0", *kind))
                computenode.wait_for('"event":"ready"')
                self.hang_up(computenode)
                computenode.command("status")
                computenode.wait_for('"event":"status"')
                computenode.command("quit")
                self.assertEqual(computenode.ended(), 0, computenode.text())
                computenode.wait_for('"end":"quit"')

    def test_a_closed_terminal_stops_a_compute_node_and_its_workers(self):
        self.start_home()
        for kind in "fork", "exec":
            with self.subTest(kind=kind):
                computenode = self.start_as(("env", "--default-signal=HUP,INT"), "computenode",
                                            *self.workload("--profile=constant:100,600", f"--worker_kind={kind}"))
                computenode.wait_for('"event":"ready"')
                os.killpg(computenode.popen.pid, signal.SIGHUP)  # of the template and the workers, too
                self.assertEqual(computenode.ended(), 0, computenode.text())
                summary = json.loads(computenode.wait_for('^.*"event":"summary".*$').group(0))
                self.assertEqual((summary["end"], summary["deaths"], summary["failed"]), ("signal", 0, 0))

    def test_surge_honours_what_it_is_told_to_ignore(self):
        self.start_home()
        surge = self.start_as(IGNORED, "surge", "status", "--watch", "--json")
        surge.wait_for("nodes")
        self.hang_up(surge)
        lines = len(surge.out.read_text("utf-8").splitlines())
        wait_for(lambda: len(surge.out.read_text("utf-8").splitlines()) > lines or not surge.alive(), surge.text)
        self.assertTrue(surge.alive(), surge.text())
        self.assertEqual(surge.stop(), 0)

    def test_worker_programs_find_no_signal_ignored_or_blocked(self):
        self.start_home()
        computenode = self.start_as(("env", "--ignore-signal=USR1,TTIN,CHLD", "--block-signal=USR2"), "computenode",
                                    *self.workload("--profile=constant:100,600", "--worker_kind=exec", "--workers=1"))
        computenode.wait_for('"event":"ready"')
        worker = a_worker_of(computenode)
        masks = {name: int(mask, 16) for name, mask in re.findall(
            r"^(Sig\w+):\s+([0-9a-f]+)$", pathlib.Path(f"/proc/{worker}/status").read_text("ascii"), re.MULTILINE)}
        left_to_front_end = sum(1 << (number - 1) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE))
        self.assertEqual((masks["SigBlk"], masks["SigIgn"]), (0, left_to_front_end))
        computenode.command("quit")
        self.assertEqual(computenode.ended(), 0, computenode.text())

    def test_a_dead_worker_is_noticed_where_the_ends_of_children_are_ignored(self):
        self.start_home()
        for kind in "fork", "exec":
            with self.subTest(kind=kind):
                computenode = self.start_as(("env", "--ignore-signal=CHLD"), "computenode",
                                            *self.workload("--profile=constant:100,600", f"--worker_kind={kind}"))
                computenode.wait_for('"event":"ready"')
                os.kill(a_worker_of(computenode), signal.SIGKILL)
                computenode.wait_for('"event":"died"')
                computenode.command("quit")
                computenode.ended()
                computenode.wait_for('"event":"summary"')


STORY = """
import os, pathlib, signal, sys
sys.path.insert(0, "tools/lib")
import cluster
screen = cluster.Screen()
fabric = cluster.Cluster("story", screen)
def tell():
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), number)
    memnode = fabric.start("memory node", "memnode", "--node=1", "--memory=64M", "--hugepages=off", "--metaserver")
    fabric.wait_line(memnode, lambda line: line.startswith("ready"), 0, "did not become ready", 60)
    status = pathlib.Path(f"/proc/{memnode.popen.pid}/status").read_text("ascii")
    screen.line(next(line for line in status.splitlines() if line.startswith("SigCgt")))
sys.exit(cluster.run_story(fabric, screen, tell))
"""


class StoriesTest(unittest.TestCase):
    def test_tools_honour_what_they_are_told_to_ignore_and_their_children_can_be_stopped(self):
        done = subprocess.run([*IGNORED, sys.executable, "-c", STORY], capture_output=True, text=True, timeout=PATIENCE_S,
                              cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        caught = int(re.search(r"SigCgt:\s+([0-9a-f]+)", done.stdout).group(1), 16)
        self.assertTrue(caught & 1 << (signal.SIGINT - 1), "the memory node ignores SIGINT")


if __name__ == "__main__":
    unittest.main()
