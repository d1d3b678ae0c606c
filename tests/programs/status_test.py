#!/usr/bin/env python3
"""`surge status`, on fabrics whose programs live, die, and are killed meanwhile.

Usage: status_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import json
import signal
import subprocess
import unittest

from fabric_case import RECORDS, FabricCase
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, metrics_address, wait_for



class StatusTest(FabricCase):
    def test_status_shows_living_and_dead_nodes(self):
        self.start_memnode(1, "--metaserver")
        second = self.start_memnode(2, metrics=False)
        self.load()
        computenode = self.start_computenode("--workers=2", "--worker_kind=exec", "--profile=constant:200,600")
        wait_for(lambda: len(self.nodes(role="compute", state="serving")) == 1, lambda: self.surge().stdout)
        # More than of a second in which it began at the very end.
        status = wait_for(lambda: (found := self.status())["operations_per_s"] > 10 and found,
                          lambda: self.surge().stdout)
        self.assertEqual(sorted(status), sorted(["fabric", "nodes", "memory", "workers", "clients",
                                                 "operations_per_s", "configuration", "problems"]))
        self.assertEqual((status["fabric"], status["workers"], status["problems"]), (self.fabric, 2, []))
        self.assertEqual(status["clients"], 2)
        self.assertEqual([(node["id"], node["role"], node["home"]) for node in status["nodes"][:2]],
                         [(1, "memory", True), (2, "memory", False)])
        self.assertIsNone(status["nodes"][1]["metrics"])
        self.assertEqual(status["memory"]["total_bytes"], 128 << 20)
        compute = status["nodes"][2]
        self.assertEqual(compute["metrics"], metrics_address(computenode))
        self.assertEqual(compute["pid"], computenode.popen.pid)
        self.assertEqual(compute["workers"], {"wanted": 2, "starting": 0, "serving": 2, "draining": 0})
        self.assertEqual(compute["operations_per_s"], status["operations_per_s"])
        text = self.surge()
        self.assertEqual(text.returncode, 0)
        self.assertRegex(text.stdout, r"(?m)^1 +memory,home,metadata +serving +\S+ \S+ +\S+ +\S+ +\d+% +- +- +127\.0")
        self.assertRegex(text.stdout, rf"(?m)^{compute['id']} +compute +serving .* 2/2 +\S+ +127\.0\.0\.1:\d+$")

        # A reader that is at it when they die.
        with subprocess.Popen([BIN / "surge", "status", f"--fabric={self.fabric}", "--watch", "--json"],
                              stdout=subprocess.PIPE, text=True) as watch:
            try:
                self.assertIn('"nodes"', watch.stdout.readline())
                second.kill()
                computenode.kill()
                for line in watch.stdout:
                    states = {node["id"]: node["state"] for node in json.loads(line)["nodes"]}
                    if states == {1: "serving", 2: "dead", compute["id"]: "dead"}:
                        break
            finally:
                watch.send_signal(signal.SIGINT)
                watch.stdout.read()
                self.assertEqual(watch.wait(PATIENCE_S), 0)
        status = self.status()
        self.assertEqual(status["memory"]["total_bytes"], 64 << 20)
        self.assertEqual((status["workers"], status["operations_per_s"]), (0, 0))
        self.assertIsNone(status["nodes"][1]["memory"])
        self.start_memnode(2)  # in its place, with its memory
        wait_for(lambda: [node["state"] for node in self.nodes(id=2)] == ["serving"], lambda: self.surge().stdout)

    def test_status_tells_how_much_of_the_used_memory_is_live_open_and_unswept(self):
        self.start_memnode(1, "--metaserver")
        self.load()
        memory = self.status()["memory"]
        self.assertEqual(memory["live_bytes"] + memory["open_bytes"] + memory["unswept_bytes"], memory["used_bytes"])
        self.assertGreater(memory["live_bytes"], RECORDS * 100)
        self.assertGreater(memory["open_bytes"], 0)
        self.assertLess(memory["unswept_bytes"], 2 << 20)  # the loader took about twice as much each time
        self.assertRegex(self.surge().stdout, r"(?m)memory \S+ used \(\S+ live, \S+ open, \S+ unswept\), \S+ free; ")
        # Most of it is replaced by another client's values.
        done = subprocess.run([BIN / "ycsb", "run", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloada", "-p",
                               f"recordcount={RECORDS}", "-p", "operationcount=6000"],
                              capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(self.status()["memory"]["unswept_bytes"], memory["unswept_bytes"])

    def test_status_never_hangs_on_nodes_that_are_killed_meanwhile(self):
        self.start_memnode(1, "--metaserver")
        for _ in range(5):
            victim = self.start_memnode(2, metrics=False)
            wait_for(lambda: self.nodes(id=2, state="serving"), lambda: self.surge().stdout)
            with subprocess.Popen([BIN / "surge", "status", f"--fabric={self.fabric}", "--json"],
                                  stdout=subprocess.PIPE, text=True) as reader:
                victim.kill()
                out, _ = reader.communicate(timeout=PATIENCE_S)
                self.assertEqual(reader.returncode, 0)
            self.assertIn(next(node["state"] for node in json.loads(out)["nodes"] if node["id"] == 2),
                          ("serving", "dead"))
            self.assertEqual([node["state"] for node in self.nodes(id=2)], ["dead"])

    def test_a_dead_home_is_said_and_the_others_are_shown(self):
        meta = self.start("memnode", "--memory=0", "--metaserver")
        meta.wait_for("^ready ")
        home = self.start_memnode(1)
        self.start_memnode(2)
        home.kill()
        done = self.surge()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^1 +memory,home +dead ")
        self.assertRegex(done.stdout, r"(?m)^2 +memory +serving ")
        self.assertRegex(done.stdout, r"(?m)^problem: the store's home cannot be read: ")

    def test_a_member_of_a_store_that_has_ended_is_told_so(self):
        meta = self.start("memnode", "--memory=0", "--metaserver")
        meta.wait_for("^ready ")
        home = self.start_memnode(1)
        member = self.start_memnode(2)
        self.wait_for_health(metrics_address(member), 200, "ok")
        self.assertEqual(home.stop(), 0, home.text())
        self.assertIn("home=yes", self.start_memnode(3).wait_for("^ready .*").group(0))
        self.wait_for_health(metrics_address(member), 503, "no member of the store: .+")
        wait_for(lambda: self.nodes(id=2, state="troubled"), lambda: self.surge().stdout)
        status = self.status()
        self.assertEqual(status["memory"]["total_bytes"], 64 << 20)
        self.assertEqual(len(status["problems"]), 1)
        self.assertIn("memory node 2 is no member of the store", status["problems"][0])

    def test_a_fabric_whose_programs_were_all_killed_is_told_from_none(self):
        self.start_memnode(1, "--metaserver").kill()
        done = self.surge()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"fabric {self.fabric} has no living device", done.stderr)
        self.assertIn("whose data may still be there, or remove it all (memnode --clean)", done.stderr)
        self.assertNotRegex(done.stderr, rf"exist: .*\b{self.fabric}\b")

    def test_mistakes_are_told(self):
        self.start_memnode(1, "--metaserver")
        workload = ["-P", WORKLOADS / "workloadc", "--open_timeout_ms=100"]
        for program in (["surge", "status"], ["ycsb", "run", *workload], ["computenode", *workload],
                        ["memnode", "--drain=1", "--wait_ms=100"]):
            done = subprocess.run([BIN / program[0], *program[1:], f"--fabric={self.fabric}-not"], capture_output=True,
                                  text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, done.stdout), (1, ""), program)
            self.assertIn(f"no fabric named {self.fabric}-not", done.stderr)
            self.assertRegex(done.stderr, rf"Other fabrics that exist: .*\b{self.fabric}\b", program)
        for arguments, message in (([], "no command"), (["stats"], "unknown command"), (["status"], "--fabric is miss"),
                                   (["status", "--fabric=x", "--bad"], "bad")):
            done = subprocess.run([BIN / "surge", *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(message, done.stderr)
        done = subprocess.run([BIN / "surge", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0)
        for word in ("usage: surge status --fabric=NAME", "--watch", "--json", "examples:"):
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
