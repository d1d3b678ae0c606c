#!/usr/bin/env python3
"""The demo: a store on this machine, loaded, served by two compute nodes, and then a load spike.

tools/demo builds first and then runs this. Everything that it starts and makes is gone when it ends (cluster.py).
"""

import argparse
import contextlib
import json
import statistics
import struct
import subprocess
import sys
import time

from cluster import READY_TIMEOUT_S, STOP_TIMEOUT_S, WORKLOADS, Burst, Cluster, Failure, Screen, event_name, run_story

BURST = Burst(base=1_000, peak=10_000, capacity=1_500, max_workers=16, slo_us=10_000, start_s=2, length_s=5, end_s=10)
QUICK_BURST = Burst(base=1_000, peak=10_000, capacity=1_500, max_workers=16, slo_us=10_000, start_s=1, length_s=1.5, end_s=3.5)
PLANES = {"krcore": "krcore", "verbs": "plain verbs"}  # control plane: how the demo calls it
LIVE_S = 0.5  # between two rows of the live view
BAR_COLUMNS = 30
REQUEST = struct.Struct("=qqII")  # as computenode --requests_file writes it: due, done, worker, failed


class Demo(Cluster):
    def __init__(self, options, screen):
        super().__init__("demo", screen)
        self.options = options
        self.rows = []
        self.notes = []
        self.records = 100_000 if options.quick else 1_000_000
        self.window_s = 1.5 if options.quick else 5.0
        self.burst = QUICK_BURST if options.quick else BURST
        self.spikes = {}

    def start_memory(self):
        self.step = "start a metadata server and two memory nodes"
        each = self.memory_of_each(self.options.quick)
        self.screen.line(f"==> fabric {self.fabric}: a metadata server, two memory nodes of {each >> 20} MiB")
        self.start_memnode("metadata server", "--memory=0", "--metaserver")
        self.start_memnode("memory node 1", "--node=1", f"--memory={each >> 20}M")
        self.start_memnode("memory node 2", "--node=2", f"--memory={each >> 20}M")

    def load_records(self):
        result = self.load(self.records, *(["--plant_mismatch"] if self.options.plant_mismatch else []))
        latency = result["by_operation"]["INSERT"]["latency_us"]
        self.rows.append(Row("load", result["workers"], result["throughput_ops"], latency["p50"], latency["p99"], None,
                             result["failed_operations"]))

    def run_workload(self, letter):
        """Serves a workload from two compute nodes: first with one worker, then with one more."""
        self.step = f"run workload {letter.upper()}"
        self.screen.line(f"==> workload {letter.upper()} from two compute nodes")
        nodes = []
        for number, workers in ((1, 1), (2, 0)):
            node = self.start(f"compute node {number} ({letter.upper()})", "computenode", f"--workers={workers}",
                              "-P", WORKLOADS / f"workload{letter}", "-p", f"recordcount={self.records}",
                              "-p", "operationcount=0", f"--seed={number}")
            self.event(node, "ready", 0, "did not become ready")
            nodes.append(node)
        self.serving += nodes
        self.window(f"{letter.upper()}", nodes, 1)
        # A worker more, while the other goes on.
        mark = len(nodes[1].lines)
        nodes[1].command("workers 1")
        self.event(nodes[1], "workers", mark, "did not add a worker")
        self.window(f"{letter.upper()}", nodes, 2)
        for node in nodes:
            self.serving.remove(node)
            node.command("quit")
        summaries = [self.event(node, "summary", 0, "did not end its work")[0] for node in nodes]
        self.judge(nodes, summaries)

    def statuses(self, nodes):
        """What each node did since its last status."""
        marks = [len(node.lines) for node in nodes]
        for node in nodes:
            node.command("status")
        return [self.event(node, "status", mark, "did not answer `status`")[0] for node, mark in zip(nodes, marks)]

    def window(self, phase, nodes, workers):
        """Measures for window_s and adds a row to the table."""
        before = self.statuses(nodes)
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < self.window_s:
            self.check_serving()
            self.screen.progress(f"    {phase}, {workers} worker(s): {passed:.1f} of {self.window_s:.1f} s")
            time.sleep(0.1)
        after = self.statuses(nodes)
        self.screen.end()
        busy = [status for status in after if status["workers"] > 0]
        self.rows.append(Row(phase, workers, sum(status["ops_per_s"] for status in after),
                             max(status["p50_us"] for status in busy), max(status["p99_us"] for status in busy),
                             sum(status["verified"] for status in after) - sum(status["verified"] for status in before),
                             sum(status["errors"] + status["mismatches"] for status in after)
                             - sum(status["errors"] + status["mismatches"] for status in before)))
        self.screen.line(f"    {phase}, {workers} worker(s): {self.rows[-1].ops_per_s:,.0f} ops/s")

    def judge(self, nodes, summaries):
        for node, summary in zip(nodes, summaries):
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.popen.wait(STOP_TIMEOUT_S)
            if summary["mismatches"] > 0:
                raise Failure(f"{node.name} read {summary['mismatches']:,} values that are not what was written", node)
            failed = summary["failed" if "failed" in summary else "errors"]
            if failed > 0 or node.popen.returncode != 0:
                raise Failure(f"{node.name}: {failed:,} failed operations, {node.describe_end()}", node)
        if sum(summary["verified"] for summary in summaries) == 0:
            raise Failure("no value was verified", nodes[0])

    def run_spike(self, plane):
        """Load rises tenfold and falls again; workers follow it. Shows it as it happens."""
        burst = self.burst
        self.step = f"the spike with {PLANES[plane]}"
        self.screen.line(f"==> a load spike, workers connect by {PLANES[plane]}: {burst.base:,} requests a second become "
                         f"{burst.peak:,} for {burst.length_s:g} s")
        requests = self.folder / "requests"
        follow = self.follow_redis if self.options.redis else self.follow_queue
        node, summary = follow(plane, burst, requests)
        self.judge([node], [summary])
        self.spikes[plane] = self.figures(summary, requests, node)

    def follow_redis(self, plane, burst, requests):
        """Clients of Redis send the requests. Returns the front end and the summary."""
        node = self.start_redis_front_end(f"front end ({plane})", burst, f"--control_plane={plane}")
        clients, begin_s = self.start_redis_clients(node, burst, self.records // 10, requests)
        self.screen.line(f"    {'time':>6}  {'commands/s':>10}  {'':{BAR_COLUMNS}}  {'workers':>7}")
        while clients.popen.poll() is None:
            time.sleep(LIVE_S)
            (status,) = self.statuses([node])
            self.screen.line(f"    {status['time_s'] - begin_s:4.1f} s  {status['commands_per_s']:10,.0f}  "
                             f"{bar(status['commands_per_s'], burst)}  {status['workers']:7}")
        return node, self.stop_redis_front_end(node, clients, begin_s)

    def follow_queue(self, plane, burst, requests):
        """The front end makes the requests itself, and ends with them. Returns it and the summary."""
        node = self.start_front_end(f"front end ({plane})", burst, self.records, requests, f"--control_plane={plane}")
        self.screen.line(f"    {'time':>6}  {'requests/s':>10}  {'':{BAR_COLUMNS}}  {'p99 ms':>7}  {'workers':>7}")
        line, after = "", 0
        while event_name(line) != "summary":
            if line:
                self.screen.line(live_row(json.loads(line), burst))
            node.wait_line(lambda text: event_name(text) == "summary", after, LIVE_S)
            with contextlib.suppress(Failure):  # it has ended
                node.command("status")
            line, index = self.wait_line(node, lambda text: event_name(text) in ("status", "summary"), after,
                                         "did not answer `status`", READY_TIMEOUT_S)
            after = index + 1
        return node, json.loads(line)

    def figures(self, summary, requests, node):
        """A spike's figures for the summary table. Times are in milliseconds."""
        starts = sorted(worker["bootstrap_us"] / 1e3 for worker in summary["workers"]
                        if worker["wanted_s"] >= 0 and worker["bootstrap_us"] is not None)
        latencies = []
        for due_ns, done_ns, _, failed in REQUEST.iter_unpack(requests.read_bytes()):
            if done_ns < 0 or failed:
                raise Failure(f"the request that was due after {due_ns / 1e9:.3f} s got no reply", node)
            if self.burst.covers(due_ns / 1e9):
                latencies.append((done_ns - due_ns) / 1e6)
        if len(starts) < 2 or len(latencies) < 100:
            raise Failure("the spike added no workers, or no requests fell due in it", node)
        return {"added": len(starts), "median_start": statistics.median(starts), "slowest_start": starts[-1],
                "p99": statistics.quantiles(latencies, n=100)[98], "slowest": max(latencies)}

    def print_spikes(self):
        burst = self.burst
        rows = (("", *PLANES.values()),
                ("workers added", *(f"{self.spikes[plane]['added']}" for plane in PLANES)),
                ("a new worker's first reply, after it was wanted: median",
                 *(f"{self.spikes[plane]['median_start']:.2f} ms" for plane in PLANES)),
                ("... the slowest worker", *(f"{self.spikes[plane]['slowest_start']:.2f} ms" for plane in PLANES)),
                ("a request in the spike, from when it was due: p99",
                 *(f"{self.spikes[plane]['p99']:.2f} ms" for plane in PLANES)),
                ("... the slowest request", *(f"{self.spikes[plane]['slowest']:.2f} ms" for plane in PLANES)))
        self.screen.line()
        self.screen.line(f"The spike: load rose from {burst.base:,} to {burst.peak:,} requests a second within a moment.")
        self.print_columns(rows)
        self.screen.line("Plain verbs here lack what a real device adds: tens of milliseconds for each new connection.")

    def note_memory_nodes(self):
        """Called after they have stopped: the last line of each says what it used."""
        for process in self.processes:
            for line in process.lines:
                if line.startswith("stopped "):
                    said = dict(word.split("=", 1) for word in line.split()[1:])
                    cpu = float(said["cpu_user_s"]) + float(said["cpu_system_s"])
                    huge = float(said["of_it_hugepages_s"])
                    self.notes.append(f"{process.name}: {cpu - huge:.3f} s of CPU while it served "
                                      f"{float(said['served_s']):.1f} s, and {huge:.3f} s for huge pages")

    def print_table(self):
        header = ("phase", "workers", "ops/s", "p50 us", "p99 us", "verified", "failures")
        self.screen.line()
        self.print_columns([header] + [row.cells() for row in self.rows])
        self.screen.line()
        for note in self.notes:
            self.screen.line(note)
        self.screen.line("Measured on this machine over the software NIC; p50 and p99 of the slower compute node.")

    def print_columns(self, lines):
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        for line in lines:
            cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
            self.screen.line("  ".join(cells))

    def run(self):
        self.start_memory()
        self.load_records()
        self.run_workload("c")
        self.run_workload("a")
        for plane in PLANES:
            self.run_spike(plane)


def bar(rate, burst):
    return f"{'#' * round(BAR_COLUMNS * min(rate / burst.peak, 1)):{BAR_COLUMNS}}"


def live_row(status, burst):
    return (f"    {status['time_s']:4.1f} s  {status['replies_per_s']:10,.0f}  {bar(status['replies_per_s'], burst)}  "
            f"{status['p99_us'] / 1e3:7.2f}  {status['workers']:7}")


class Row:
    def __init__(self, phase, workers, ops_per_s, p50_us, p99_us, verified, failures):
        self.phase, self.workers, self.ops_per_s = phase, workers, ops_per_s
        self.p50_us, self.p99_us, self.verified, self.failures = p50_us, p99_us, verified, failures

    def cells(self):
        verified = "-" if self.verified is None else f"{self.verified:,}"
        return (self.phase, str(self.workers), f"{self.ops_per_s:,.0f}", f"{self.p50_us:.1f}", f"{self.p99_us:.1f}",
                verified, f"{self.failures:,}")


def main():
    parser = argparse.ArgumentParser(prog="tools/demo", description="A store on this machine; see tools/demo --help.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plant-mismatch", action="store_true")
    parser.add_argument("--redis", action="store_true")
    options = parser.parse_args()

    screen = Screen()
    demo = Demo(options, screen)
    begin = time.monotonic()
    status = run_story(demo, screen, demo.run)
    if status == 0:
        demo.note_memory_nodes()
        demo.print_table()
        demo.print_spikes()
        screen.line(f"\nEvery value read was one written for its key; nothing is left over. {time.monotonic() - begin:.0f} s.")
    return status


if __name__ == "__main__":
    sys.exit(main())
