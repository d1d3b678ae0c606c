#!/usr/bin/env python3
"""What programs count and expose, on a fabric with load: what they report otherwise, and what docs/operating.md lists.

Usage: metrics_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import json
import os
import re
import signal
import socket
import time
import unittest

from fabric_case import FabricCase
from program import ROOT, a_worker_of, metrics_address, wait_for

PAGE = ROOT / "docs" / "operating.md"


class MetricsTest(FabricCase):
    maxDiff = None  # a difference between the page and what is exposed is shown whole

    def check_documented(self, *expositions):
        """What is exposed is what the page lists, by name and type, and the other way round."""
        rows = re.findall(r"^\| `([a-z0-9_]+)`(?:, `([a-z_, ]+)`)? \| (counter|gauge|histogram) \|",
                          PAGE.read_text("utf-8"), re.MULTILINE)
        listed = {name: kind for name, _, kind in rows}
        store = {f"surgekv_store_{name.strip('` ')}_total": "counter" for line in
                 re.findall(r"^\| `surgekv_store_\*_total` \| counters \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
                 for name in line.split(",")}
        exposed = {}
        for exposition in expositions:
            exposed.update(exposition.families)
        self.assertEqual(exposed, {**listed, **store})

    def test_threads_count_what_the_program_reports(self):
        memnode = self.start_memnode(1, "--metaserver")
        self.load()
        computenode = self.start_computenode("--workers=2", "--target=1000")
        address = metrics_address(computenode)
        self.wait_for_health(address, 200, "ok")
        wait_for(lambda: self.scrape(address).value("surgekv_requests_total") > 500, lambda: computenode.text())
        before = self.scrape(address)
        computenode.command("workers 3")
        wait_for(lambda: self.scrape(address).value("surgekv_workers", state="serving") == 3,
                 lambda: computenode.text())
        wait_for(lambda: self.scrape(address).value("surgekv_worker_start_seconds_count", part="first_reply") == 3,
                 lambda: computenode.text())
        computenode.command("workers 0")
        self.wait_for_health(address, 503, "no worker serves")
        wait_for(lambda: self.scrape(address).value("surgekv_workers", state="draining") == 0,
                 lambda: computenode.text())
        still = self.scrape(address)
        for key, value in before.counters().items():
            self.assertGreaterEqual(still.counters()[key], value, key)
        self.assertEqual(still.value("surgekv_workers_started_total"), 3)
        self.assertEqual(still.value("surgekv_workers_retired_total"), 3)
        self.assertEqual(still.value("surgekv_workers_failed_total"), 0)
        self.assertEqual(still.value("surgekv_connection_memory_bytes"), 0)
        self.assertGreater(before.value("surgekv_connection_memory_bytes"), 0)
        self.assertGreater(still.value("surgekv_worker_cpu_seconds_total"), 0)
        computenode.command("quit")
        self.assertEqual(computenode.ended(), 0, computenode.text())
        summary = json.loads(computenode.wait_for('^.*"event":"summary".*$').group(0))
        self.assertEqual(still.value("surgekv_requests_total"), summary["ops"])
        self.assertEqual(still.value("surgekv_requests_failed_total"), summary["errors"])
        self.assertEqual(still.value("surgekv_values_verified_total"), summary["verified"])
        self.assertEqual(still.value("surgekv_values_mismatched_total"), 0)
        self.assertEqual(still.value("surgekv_request_latency_seconds_count"), summary["ops"])
        for name in ("operations", "round_trips", "operation_round_trips", "cas_failures", "restarts", "splits"):
            self.assertEqual(still.value(f"surgekv_store_{name}_total"), summary["client_stats"][name], name)
        for part in ("client", "connect", "register", "lanes", "first_reply", "bootstrap"):
            self.assertEqual(still.value("surgekv_worker_start_seconds_count", part=part), 3, part)
        self.assertEqual(memnode.stop(), 0, memnode.text())

    def test_a_mirrored_store_exposes_every_listed_metric_and_tells_of_a_lost_replica(self):
        first = self.start_memnode(1, "--metaserver", "--replicas=2")
        second = self.start_memnode(2)
        address = metrics_address(first)
        self.wait_for_health(address, 200, "ok: member of pool 1, which has 2 of 2 replicas")
        self.load()
        computenode = self.start_computenode("--workers=1", "--worker_kind=fork", "--profile=constant:200,600")
        front_end = self.start("computenode", "--redis=127.0.0.1:0", "--metrics=127.0.0.1:0")
        front_end.wait_for('"event":"ready"')
        whole = self.scrape(address)
        self.check_documented(whole, self.scrape(metrics_address(computenode)), self.scrape(metrics_address(front_end)))
        self.assertEqual(front_end.stop(), 0, front_end.text())
        self.assertEqual(whole.value("surgekv_replica_state", state="member"), 1)
        self.assertEqual((whole.value("surgekv_replica_pool"), whole.value("surgekv_replica_pool_missing")), (1, 0))
        third = self.start_memnode(3)
        alone = metrics_address(third)
        self.wait_for_health(alone, 200, "ok: member of pool 2, which has 1 of 2 replicas")
        # Its pool has no keys before it has both replicas, so nothing is missing.
        wait_for(lambda: self.scrape(alone).value("surgekv_replica_pool_missing") == 0, third.text)
        self.assertEqual(third.stop(), 0, third.text())
        second.kill()
        self.wait_for_health(address, 200, "ok: member of pool 1, which has 1 of 2 replicas")
        self.assertEqual(self.scrape(address).value("surgekv_replica_pool_missing"), 1)
        self.assertIn("pool 1 has 1 of 2 replicas", self.status()["problems"])
        computenode.command("quit")
        self.assertEqual(computenode.ended(), 0, computenode.text())

    def test_processes_count_too_also_killed_ones_and_counters_never_go_down(self):
        self.start_memnode(1, "--metaserver")
        self.load()
        # Long enough that what is asked at the end is asked while it serves.
        computenode = self.start_computenode("--workers=2", "--worker_kind=fork", "--standby=1",
                                             "--profile=step:500@0,0@4,end@40")
        address = metrics_address(computenode)
        highest, expositions = {}, 0
        killed = False

        def idle():
            nonlocal highest, expositions, killed
            exposition = self.scrape(address)
            expositions += 1
            counters = exposition.counters()
            for key, value in highest.items():
                self.assertGreaterEqual(counters[key], value, key)
            highest = counters
            if not killed and exposition.value("surgekv_store_operations_total") > 200:
                os.kill(a_worker_of(computenode), signal.SIGKILL)
                killed = True
            return (exposition.value("surgekv_requests_due_total") == 2000 and
                    exposition.value("surgekv_request_latency_seconds_count") == 2000 and exposition)
        exposition = wait_for(idle, lambda: computenode.text())
        self.assertTrue(killed)
        self.assertGreater(expositions, 5)
        self.assertEqual(exposition.value("surgekv_workers_failed_total"), 1)
        self.assertEqual(exposition.value("surgekv_workers_restarted_total"), 1)
        self.assertEqual(exposition.value("surgekv_workers_started_total"), 3)
        self.assertEqual(exposition.value("surgekv_requests_failed_total"), 0)
        self.assertEqual(exposition.value("surgekv_requests_backlog"), 0)
        self.assertGreaterEqual(exposition.value("surgekv_requests_total"), 2000)
        # What the killed one had not told yet is lost with it: a quarter of a second's operations.
        self.assertGreater(exposition.value("surgekv_store_operations_total"), 1500)
        computenode.command("quit")
        self.assertEqual(computenode.ended(), 0, computenode.text())
        summary = json.loads(computenode.wait_for('^.*"event":"summary".*$').group(0))
        self.assertEqual((summary["due"], summary["replied"], summary["deaths"], summary["replaced"]),
                         (2000, 2000, 1, 1))
        self.assertEqual(exposition.value("surgekv_values_verified_total"), summary["verified"])
        # Workers log like everybody.
        log = computenode.log.read_text("utf-8")
        self.assertRegex(log, r"(?m)^I\d{8} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] worker \d+ has ended: \d+ requests")

    def test_a_memory_node_tells_what_its_pool_holds(self):
        memnode = self.start_memnode(1, "--metaserver")
        address = metrics_address(memnode)
        empty = self.scrape(address)
        self.load()
        full = self.scrape(address)
        self.assertGreater(full.value("surgekv_memory_bytes", use="blocks"), 0)
        self.assertLess(full.value("surgekv_memory_bytes", use="free"), empty.value("surgekv_memory_bytes", use="free"))
        uses = ("free", "blocks", "tables", "large", "large_rest", "reserved")
        self.assertEqual(sum(full.value("surgekv_memory_bytes", use=use) for use in uses), 64 << 20)
        self.assertEqual(full.value("surgekv_memory_pool_bytes"), 64 << 20)
        self.assertEqual(full.value("surgekv_node_info", fabric=self.fabric, node="1", role="memory", home="yes",
                                    metaserver="yes"), 1)
        self.assertAlmostEqual(full.value("process_start_time_seconds"), time.time(), delta=600)
        self.assertGreater(full.value("process_resident_memory_bytes"), 1 << 20)
        (node,) = self.nodes(id=1)
        self.assertEqual(node["memory"]["free_bytes"], full.value("surgekv_memory_bytes", use="free"))
        self.assertEqual(node["metrics"], address)
        self.assertEqual(memnode.stop(), 0)

    def test_an_address_of_ipv6_answers_and_what_is_printed_can_be_given_again(self):
        try:
            with socket.socket(socket.AF_INET6) as one:
                one.bind(("::1", 0))
        except OSError as error:
            self.skipTest(f"this host has no IPv6: {error}")
        given = "--metrics=[::1]:0"
        for _ in range(2):
            memnode = self.start_memnode(1, "--metaserver", given, metrics=False)
            self.load()
            computenode = self.start_computenode("--metrics=[::1]:0")
            for program, role in (memnode, "memory"), (computenode, "compute"):
                address = metrics_address(program)
                self.assertRegex(address, r"^\[::1\]:[1-9][0-9]*$")
                self.wait_for_health(address, 200, "ok")
                self.assertGreater(self.scrape(address).value("process_resident_memory_bytes"), 0)
                wait_for(lambda role=role, address=address: self.nodes(role=role, metrics=address), self.status)
            given = f"--metrics={metrics_address(memnode)}"
            computenode.command("quit")
            self.assertEqual((computenode.ended(), memnode.stop()), (0, 0))
        memnode.wait_for(f"metrics at {re.escape(given.split('=')[1])}$", memnode.log)


if __name__ == "__main__":
    unittest.main(verbosity=2)
