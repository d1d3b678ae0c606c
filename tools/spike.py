#!/usr/bin/env python3
"""The spike experiment: load rises tenfold within a moment, and compute nodes scale out and in, once with each control
plane and each kind of worker. tools/spike builds first and then runs this; docs/elastic.md says what is measured.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy

import spike_report
from bootstraps import PARTS, one_at_a_time
from cluster import BIN, READY_TIMEOUT_S, WORKLOADS, Cluster, Failure, Screen, cpu_times, event_name, run_story

PLANES = ("krcore", "lite", "verbs")
KINDS = ("thread", "fork", "exec")
CPU_LIMIT = 0.7  # of the machine, above which a run measures the machine and not the workers
REQUEST = numpy.dtype([("due_ns", "<i8"), ("done_ns", "<i8"), ("worker", "<u4"), ("failed", "<u4")])
KILL_EVERY_S = 0.2
PLATEAU = 0.9
PLATEAU_WINDOW_S = 0.01


def percentiles(values):
    """p50, p99 and how many there are, for JSON."""
    known = [value for value in values if value is not None]
    if not known:
        return {"samples": 0, "p50": None, "p99": None}
    return {"samples": len(known), "p50": float(numpy.percentile(known, 50)), "p99": float(numpy.percentile(known, 99))}


class Spike(Cluster):
    def __init__(self, options, screen):
        super().__init__("spike", screen)
        self.options = options
        self.records = 20_000 if options.quick else 200_000
        self.start_s, self.length_s, self.end_s = (1.0, 1.5, 3.5) if options.quick else (3.0, 5.0, 12.0)
        self.bootstraps = []
        self.runs = []
        self.model = None

    def tell(self):
        self.step = "start a metadata server and two memory nodes"
        each = self.memory_of_each(quick=True) >> 20
        self.screen.line(f"==> fabric {self.fabric}: a metadata server, two memory nodes of {each} MiB")
        self.start_memnode("metadata server", "--memory=0", "--metaserver")
        for node in (1, 2):
            self.start_memnode(f"memory node {node}", f"--node={node}", f"--memory={each}M")
        self.load(self.records)
        for kind in self.options.kinds:
            for plane in self.options.planes:
                self.bootstraps.append(self.one_at_a_time(plane, kind))
        for kind in self.options.kinds:
            for plane in self.options.planes:
                for repeat in range(self.options.repeats):
                    self.runs.append(self.measure(plane, kind, repeat, kills=False))
        if "fork" in self.options.kinds:
            self.runs.append(self.measure(self.options.planes[0], "fork", 0, kills=True))
        self.step = "the modelled spike"
        self.model = self.run_model()

    # ---- measured

    def one_at_a_time(self, plane, kind):
        parts = one_at_a_time(self, plane, kind, 20 if self.options.quick else 100, self.options.base, self.records)
        row = {"control_plane": plane, "worker_kind": kind,
               "bootstrap_us": {part: percentiles(values) for part, values in parts.items()}}
        whole = row["bootstrap_us"]["bootstrap"]
        self.screen.line(f"    {plane} {kind} one at a time: first reply after {whole['p50']:,.0f} us, "
                         f"{whole['p99']:,.0f} at p99")
        return row

    def measure(self, plane, kind, repeat, kills):
        name = f"{plane} {kind}{' with kills' if kills else ''}{f' {repeat + 1}' if repeat else ''}"
        self.step = f"the spike with {name}"
        options = self.options
        requests = self.folder / "requests"
        busy, total = cpu_times()
        node = self.start(name, "computenode", "-P", WORKLOADS / "workloadb", "-p", f"recordcount={self.records}",
                          "-p", "operationcount=0", f"--control_plane={plane}", f"--worker_kind={kind}",
                          f"--profile=burst:{options.base},{options.peak},{self.start_s},{self.length_s},{self.end_s}",
                          "--arrivals=poisson", f"--seed={repeat + 1}", "--in_flight=1",
                          f"--worker_capacity={options.capacity}", "--autoscale", f"--max_workers={options.max_workers}",
                          f"--slo_us={options.slo_us}", "--scale_in_after_s=0.5", f"--requests_file={requests}",
                          "--json_status")
        self.event(node, "ready", 0, "did not become ready")
        self.watch(node, name, kills, repeat)
        summary, _ = self.event(node, "summary", 0, "did not end its work")
        node.popen.wait(READY_TIMEOUT_S)
        busy, total = [after - before for after, before in zip(cpu_times(), (busy, total))]
        self.processes.remove(node)
        return self.judge(node, plane, kind, kills, summary, numpy.fromfile(requests, REQUEST), busy / total)

    def watch(self, node, name, kills, seed):
        """Until the run is over; kills workers meanwhile, if that is asked for."""
        chooser = random.Random(seed)
        kill_at = time.monotonic() + self.start_s
        begin = time.monotonic()
        while not any(event_name(line) == "summary" for line in node.lines[-1:]) and node.popen.poll() is None:
            self.check_serving()
            self.screen.progress(f"    {name}: {time.monotonic() - begin:.1f} of {self.end_s:.1f} s")
            time.sleep(0.05)
            if not kills or time.monotonic() < kill_at or time.monotonic() - begin > self.start_s + self.length_s:
                continue
            kill_at = time.monotonic() + KILL_EVERY_S
            mark = len(node.lines)
            node.command("status")
            status, _ = self.event(node, "status", mark, "did not answer `status`")
            if status["pids"]:
                os.kill(chooser.choice(status["pids"]), signal.SIGKILL)
        self.screen.end()

    def judge(self, node, plane, kind, kills, summary, requests, cpu):
        if summary["mismatches"] or summary["failed"]:
            raise Failure(f"{summary['mismatches']} wrong values, {summary['failed']} failed requests", node)
        lost = int(numpy.count_nonzero(requests["done_ns"] < 0))
        if lost or node.popen.returncode != 0:
            raise Failure(f"{lost} of {len(requests)} requests had no reply, {node.describe_end()}", node)
        if kills and summary["deaths"] == 0:
            raise Failure("no worker was killed", node)
        due_s, done_s = requests["due_ns"] / 1e9, requests["done_ns"] / 1e9
        latency_us = (requests["done_ns"] - requests["due_ns"]) / 1e3
        during = (due_s >= self.start_s) & (due_s < self.start_s + self.length_s)
        steady = due_s < self.start_s
        added = [worker for worker in summary["workers"] if worker["wanted_s"] >= 0]
        run = {
            "control_plane": plane,
            "worker_kind": kind,
            "kills": kills,
            "cpu": cpu,
            "valid": cpu < CPU_LIMIT,
            "requests": len(requests),
            "deaths": summary["deaths"],
            "worker_seconds": summary["worker_seconds"],
            "workers_added": len(added),
            "to_plateau_s": self.to_plateau(numpy.sort(done_s)),
            "steady_us": {f"p{p}": float(numpy.percentile(latency_us[steady], p)) for p in (50, 99)},
            "spike_us": {f"p{p}": float(numpy.percentile(latency_us[during], p)) for p in (50, 99)},
            "spike_max_us": float(latency_us[during].max()),
            "bootstrap_us": {part: [worker[f"{part}_us"] for worker in added] for part in PARTS},
            "decisions": [json.loads(line)["numbers"] for line in node.lines if event_name(line) == "decision"],
            "timeline": spike_report.timeline(due_s, done_s, latency_us, summary["workers"], self.end_s),
        }
        reach = run["to_plateau_s"]
        self.screen.line(
            f"    {node.name}: full throughput after {'-' if reach is None else f'{reach * 1e3:.0f} ms'}, p99 "
            f"{run['spike_us']['p99']:,.0f} us in the spike and {run['steady_us']['p99']:,.0f} before, "
            f"{len(added)} workers added, CPU {cpu:.0%}{'' if run['valid'] else ' INVALID'}")
        return run

    def to_plateau(self, done_s):
        """From the rise to the end of the first 10 ms in which 90% of the new rate is replied to."""
        wanted = PLATEAU * self.options.peak * PLATEAU_WINDOW_S
        for begin in numpy.arange(self.start_s, self.start_s + self.length_s, 0.0005):
            first, last = numpy.searchsorted(done_s, (begin, begin + PLATEAU_WINDOW_S))
            if last - first >= wanted:
                return float(begin + PLATEAU_WINDOW_S - self.start_s)
        return None

    # ---- modelled

    def run_model(self):
        report = self.folder / "model.json"
        self.screen.line("==> the modelled spike")
        scale = "1" if self.options.quick else "1,10,100"
        done = subprocess.run([BIN / "spike_model", f"--json={report}", f"--scale={scale}"], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"spike_model: {done.stderr.strip()}")
        return {"text": done.stdout, "data": json.loads(report.read_text("utf-8"))}

    def summarize(self):
        """One row a control plane and kind of worker, over its repeats."""
        rows = []
        for kind in self.options.kinds:
            for plane in self.options.planes:
                runs = [run for run in self.runs
                        if (run["control_plane"], run["worker_kind"], run["kills"]) == (plane, kind, False)]
                rows.append({
                    "control_plane": plane,
                    "worker_kind": kind,
                    "valid": all(run["valid"] for run in runs),
                    "cpu": max(run["cpu"] for run in runs),
                    "worker_seconds": float(numpy.mean([run["worker_seconds"] for run in runs])),
                    "to_plateau_s": percentiles([run["to_plateau_s"] for run in runs]),
                    "steady_p99_us": percentiles([run["steady_us"]["p99"] for run in runs])["p50"],
                    "spike_p99_us": percentiles([run["spike_us"]["p99"] for run in runs])["p50"],
                    "bootstrap_us": {part: percentiles([us for run in runs for us in run["bootstrap_us"][part]])
                                     for part in PARTS},
                })
        return rows


def parse_options():
    parser = argparse.ArgumentParser(prog="tools/spike", description="The spike experiment; see tools/spike --help.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--planes", default=",".join(PLANES))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--base", type=float, default=1_000)
    parser.add_argument("--peak", type=float, default=10_000)
    parser.add_argument("--capacity", type=float, default=1_500)
    parser.add_argument("--max-workers", type=int, default=16)
    parser.add_argument("--slo-us", type=int, default=10_000)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("spike-report"))
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    for name, known in (("planes", PLANES), ("kinds", KINDS)):
        chosen = tuple(getattr(options, name).split(","))
        unknown = [word for word in chosen if word not in known]
        if unknown:
            parser.error(f"--{name}: {', '.join(unknown)}: expected some of {', '.join(known)}")
        setattr(options, name, chosen)
    if options.repeats < 1 or not 0 < options.base < options.peak or options.capacity <= 0:
        parser.error("--repeats is at least 1, --capacity above 0, and --base is above 0 and below --peak")
    return options


def main():
    options = parse_options()
    screen = Screen()
    spike = Spike(options, screen)
    begin = time.monotonic()
    status = run_story(spike, screen, spike.tell)
    if status != 0:
        return status
    rows = spike.summarize()
    report = {"machine": spike_report.machine(), "quick": options.quick, "provider": "sw",
              "load": {"base": options.base, "peak": options.peak, "start_s": spike.start_s, "length_s": spike.length_s,
                       "end_s": spike.end_s, "worker_capacity": options.capacity, "slo_us": options.slo_us},
              "one_at_a_time": spike.bootstraps, "measured": rows, "runs": spike.runs, "modelled": spike.model["data"]}
    spike_report.write(options.output, report, spike.model["text"])
    for header, lines in ((spike_report.BOOTSTRAP_HEADER, map(spike_report.bootstrap_cells, spike.bootstraps)),
                          (spike_report.HEADER, map(spike_report.cells, rows))):
        screen.line()
        for line in spike_report.table(header, lines):
            screen.line(line)
    screen.line()
    screen.line(f"Every request got one right reply. {options.output}/index.html; {time.monotonic() - begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
