#!/usr/bin/env python3
"""Programs that are started without some of stdin, stdout and stderr, as cron and daemons start them: what they print
gets into no file of the fabric.

Usage: tests/programs/standard_descriptors_test.py [TEST...]
"""

import itertools
import subprocess
import unittest

from fabric_case import RECORDS, FabricCase
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, wait_for

CLOSED = {0: "<&-", 1: ">&-", 2: "2>&-"}
COMBINATIONS = [some for count in (1, 2, 3) for some in itertools.combinations(CLOSED, count)]


class StandardDescriptorsTest(FabricCase):
    def command(self, closed, program, *arguments):
        """The command line that runs it without these descriptors."""
        redirections = " ".join(CLOSED[fd] for fd in closed)
        return ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", BIN / program, *arguments, f"--fabric={self.fabric}"]

    def run_without(self, closed, program, *arguments):
        return subprocess.run(self.command(closed, program, *arguments), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE_S, cwd=ROOT, check=False)

    def workload(self, *arguments):
        return ["-P", WORKLOADS / "workloadc", "-p", f"recordcount={RECORDS}", "-p", f"operationcount={RECORDS}", *arguments]

    def check_store(self):
        """It is there, and every record in it is right."""
        self.assertEqual([node["state"] for node in self.nodes(role="memory")], ["serving"])
        done = self.run_without((), "ycsb", "run", *self.workload("--workers=1"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, rf"\b{RECORDS}\b")

    def test_memory_nodes_serve_and_end_in_order(self):
        for closed in COMBINATIONS:
            with self.subTest(closed=closed):
                memnode = subprocess.Popen(
                    self.command(closed, "memnode", "--node=1", "--memory=64M", "--hugepages=off", "--metaserver"),
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
                try:
                    wait_for(lambda: self.surge().returncode == 0 or memnode.poll() is not None, lambda: "it does not start")
                    self.load()
                    self.check_store()
                    self.assertIsNone(memnode.poll())
                    memnode.terminate()
                    self.assertEqual(memnode.wait(PATIENCE_S), 0)
                finally:
                    memnode.kill()
                    memnode.wait()
                    subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--clean"], capture_output=True, check=False)

    def test_clients_leave_the_store_as_it_is(self):
        self.start_memnode(1, "--metaserver")
        self.load()
        elastic = ["computenode", "-P", WORKLOADS / "workloadc", "-p", f"recordcount={RECORDS}", "--profile=constant:2000,0.1"]
        clients = [["surge", "status"], ["ycsb", "run", *self.workload("--workers=2")],
                   ["computenode", *self.workload("--workers=2"), "--json_status"],
                   *([*elastic, f"--worker_kind={kind}"] for kind in ("thread", "fork", "exec"))]
        for client, closed in itertools.product(clients, COMBINATIONS):
            with self.subTest(client=client[0], last=client[-1], closed=closed):
                done = self.run_without(closed, *client)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.check_store()


if __name__ == "__main__":
    unittest.main()
