"""A fabric of its own for each test of programs that are operated: started, asked for metrics and health, and looked at."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from exposition import Exposition
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, Program, clean_fabric, wait_for

RECORDS = 2000


class FabricCase(unittest.TestCase):
    def setUp(self):
        self.fabric = f"operating-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        scratch = tempfile.TemporaryDirectory(prefix="surgekv-operating-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.programs = []
        self.addCleanup(self.clean_up)

    def clean_up(self):
        for program in reversed(self.programs):
            program.close()
        clean_fabric(self.fabric)

    def start(self, program, *arguments, stdout=None):
        self.programs.append(Program(self.folder, program, f"--fabric={self.fabric}", *arguments, stdout=stdout))
        return self.programs[-1]

    def start_memnode(self, node, *arguments, metrics=True):
        flags = ["--metrics=127.0.0.1:0"] if metrics else []
        memnode = self.start("memnode", f"--node={node}", "--memory=64M", "--hugepages=off", *flags, *arguments)
        memnode.wait_for("^ready ")
        return memnode

    def start_computenode(self, *arguments, stdout=None):
        computenode = self.start("computenode", "-P", WORKLOADS / "workloadb", "-p", f"recordcount={RECORDS}", "-p",
                                 "operationcount=0", "--in_flight=1", "--metrics=127.0.0.1:0", *arguments, stdout=stdout)
        if stdout is None:
            computenode.wait_for('"event":"ready"')
        return computenode

    def load(self):
        done = subprocess.run([BIN / "ycsb", "load", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloadb", "-p",
                               f"recordcount={RECORDS}"], capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def ask(self, address, path):
        """(HTTP status, body)"""
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def scrape(self, address):
        status, text = self.ask(address, "/metrics")
        self.assertEqual(status, 200)
        return Exposition(text)

    def wait_for_health(self, address, status, pattern):
        """Waits until /healthz says so."""
        seen = []

        def healthy():
            seen[:] = [self.ask(address, "/healthz")]
            return seen[0][0] == status and re.fullmatch(pattern, seen[0][1].rstrip("\n"))
        wait_for(healthy, lambda: f"/healthz is {seen}, not {status} {pattern}")

    def surge(self, *arguments):
        return subprocess.run([BIN / "surge", "status", f"--fabric={self.fabric}", *arguments], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)

    def status(self):
        done = self.surge("--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def nodes(self, **wanted):
        return [node for node in self.status()["nodes"] if all(node[key] == value for key, value in wanted.items())]
