#!/usr/bin/env python3
"""Output that cannot be written: the disk is full (/dev/full), or the reader of the pipe has left. A program says so, and
its exit status is not 0.

Usage: tests/programs/output_test.py [TEST...]
"""

import glob
import json
import os
import signal
import subprocess
import sys
import unittest

from fabric_case import RECORDS, FabricCase
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, wait_for

PROGRAMS = "memnode", "surge", "ycsb", "computenode", "bench_connect", "bench_rnic", "bench_peers", "spike_model"
CLOSED_PIPE = 128 + signal.SIGPIPE, -signal.SIGPIPE  # where it is ignored, and where it is not


class OutputTest(FabricCase):
    def run_to(self, stdout, program, *arguments):
        """Returns its exit status and what it said on stderr."""
        done = subprocess.run([BIN / program, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                              text=True, timeout=PATIENCE_S, cwd=ROOT, check=False)
        return done.returncode, done.stderr

    def run_to_full_disk(self, program, *arguments):
        with open("/dev/full", "wb") as full:
            return self.run_to(full, program, *arguments)

    def run_to_closed_pipe(self, program, *arguments):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return self.run_to(writer, program, *arguments)
        finally:
            os.close(writer)

    def start_store(self):
        self.start_memnode(1, "--metaserver", metrics=False)
        self.start_memnode(2, metrics=False)
        self.load()

    def runs(self):
        """What needs a store, and ends by itself."""
        fabric = f"--fabric={self.fabric}"
        workload = [fabric, "-P", WORKLOADS / "workloadc", "-p", f"recordcount={RECORDS}", "-p", "operationcount=1000"]
        elastic = ["computenode", *workload[:-1], "operationcount=0", "--profile=constant:1000,0.1"]
        return [
            ["surge", "status", fabric],
            ["surge", "status", fabric, "--json"],
            ["surge", "status", fabric, "--json", "--watch"],
            ["ycsb", "load", *workload, "--overwrite"],
            ["ycsb", "run", *workload],
            ["ycsb", "run", *workload, "--json=-"],
            ["computenode", *workload],
            ["computenode", *workload, "--json_status"],
            *([*elastic, f"--worker_kind={kind}"] for kind in ("thread", "fork", "exec")),
            ["memnode", fabric, "--undrain=2"],
            ["memnode", fabric, "--drain=2"],
            ["memnode", f"--fabric={self.fabric}-other", "--clean"],
        ]

    def test_help_that_cannot_be_written(self):
        for program in PROGRAMS:
            for flag in "--help", "--helpfull", "--version":
                with self.subTest(program=program, flag=flag):
                    status, said = self.run_to_full_disk(program, flag)
                    self.assertEqual(status, 1)
                    self.assertRegex(said, rf"^{program}: cannot write all output to stdout: ")
                    self.assertIn(self.run_to_closed_pipe(program, flag), [(status, "") for status in CLOSED_PIPE])

    def test_results_that_cannot_be_written(self):
        self.start_store()
        for program, *arguments in self.runs():
            if "--watch" in arguments:
                continue
            with self.subTest(program=program, arguments=arguments):
                status, said = self.run_to_full_disk(program, *arguments)
                self.assertEqual(status, 1, said)
                self.assertRegex(said, rf"(?m)^{program}: cannot write all output to stdout: ")

    def test_a_display_that_cannot_be_written_ends(self):
        self.start_store()
        status, said = self.run_to_full_disk("surge", "status", f"--fabric={self.fabric}", "--watch")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"^surge: cannot write all output to stdout: ")

    def test_who_reads_one_line_and_leaves_gets_no_complaint(self):
        self.start_store()
        for program, *arguments in self.runs():
            with self.subTest(program=program, arguments=arguments):
                status, said = self.run_to_closed_pipe(program, *arguments)
                self.assertIn(status, CLOSED_PIPE, said)
                self.assertNotIn("stdout", said)

    def test_a_compute_node_that_nobody_listens_to_any_more_ends(self):
        self.start_store()
        for kind in [], ["--profile=constant:100,600", "--worker_kind=fork"]:
            with self.subTest(kind=kind):
                status, said = self.run_to_closed_pipe(
                    "computenode", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloadc", "-p", f"recordcount={RECORDS}", "-p",
                    "operationcount=0", "--json_status", *kind)
                self.assertIn(status, CLOSED_PIPE, said)

    def test_reports_in_files_that_cannot_be_written(self):
        self.start_store()
        workload = [f"--fabric={self.fabric}", "-P", WORKLOADS / "workloadc", "-p", f"recordcount={RECORDS}"]
        for program, *arguments in (
                ["ycsb", "run", *workload, "--json=/dev/full"],
                ["ycsb", "run", *workload, "-p", "exportfile=/dev/full"],
                ["computenode", *workload, "--profile=constant:1000,0.1", "--worker_kind=thread", "--requests_file=/dev/full"],
                ["spike_model", "--spike_s=4", "--scale=1", "--spawn=thread", "--json=/dev/full"]):
            with self.subTest(program=program):
                status, said = self.run_to(subprocess.DEVNULL, program, *arguments)
                self.assertEqual(status, 1, said)
                self.assertRegex(said, rf"(?m)^{program}: .*/dev/full")

    def test_a_report_in_a_file_is_written_even_if_the_summary_cannot_be(self):
        self.start_store()
        report = self.folder / "report.json"
        status, said = self.run_to_full_disk("ycsb", "run", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloadc", "-p",
                                             f"recordcount={RECORDS}", "-p", "operationcount=1000", f"--json={report}")
        self.assertEqual(status, 1, said)
        self.assertEqual(json.loads(report.read_text("utf-8"))["operations"], 1000)

    def test_a_memory_node_serves_although_nobody_listens(self):
        for name, path in ("the disk is full", "/dev/full"), ("the reader has left", None):
            with self.subTest(name):
                reader, writer = os.pipe()
                if path:
                    os.close(writer)
                    writer = os.open(path, os.O_WRONLY)
                os.close(reader)
                with subprocess.Popen([BIN / "memnode", f"--fabric={self.fabric}", "--node=1", "--memory=64M", "--metaserver",
                                       "--hugepages=off"], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE,
                                      text=True) as memnode:
                    os.close(writer)
                    try:
                        wait_for(lambda: self.surge().returncode == 0 or memnode.poll() is not None, lambda: "no store")
                        self.load()
                        memnode.terminate()
                        _, said = memnode.communicate(timeout=PATIENCE_S)
                    finally:
                        memnode.kill()
                self.assertEqual(memnode.returncode, 1 if path else CLOSED_PIPE[0], said)
                self.assertEqual("stdout" in said, bool(path), said)


STORY = """
import sys
sys.path.insert(0, "tools/lib")
import cluster
screen = cluster.Screen()
fabric = cluster.Cluster("story", screen)
def tell():
    fabric.start_memnode("memory node", "--node=1", "--memory=64M", "--hugepages=off", "--metaserver")
    print(fabric.fabric, file=sys.stderr, flush=True)
    while True:
        screen.line("a line")
sys.exit(cluster.run_story(fabric, screen, tell))
"""


class StoriesTest(unittest.TestCase):
    def test_a_tool_whose_reader_has_left_cleans_up_and_ends(self):
        with subprocess.Popen([sys.executable, "-c", STORY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              cwd=ROOT) as tool:
            self.assertEqual(tool.stdout.readline(), "a line\n")
            tool.stdout.close()
            said = tool.stderr.read()
            self.assertEqual(tool.wait(PATIENCE_S), CLOSED_PIPE[0], said)
        self.assertRegex(said, r"^story-\S+\n$")
        self.assertEqual(glob.glob(f"/dev/shm/*{said.strip()}*"), [])


if __name__ == "__main__":
    unittest.main()
