"""The measured part of tools/spike: one provider's spike, for each control plane and kind of worker, on this machine."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import time

import numpy

from bootstraps import PARTS, one_at_a_time
from cluster import READY_TIMEOUT_S, Burst, Cluster, Failure, cpu_times, event_name, machine

KERNEL = "kernel"  # the kernel module's control plane, measured on request; it has memory nodes of its own
CPU_LIMIT = 0.7  # share of the machine: a run that uses more measures the machine and not the workers
REQUEST = numpy.dtype([("due_ns", "<i8"), ("done_ns", "<i8"), ("worker", "<u4"), ("failed", "<u4")])
PLATEAU = 0.9
PLATEAU_WINDOW_S, PLATEAU_REQUESTS = 0.01, 50  # whichever takes longer at the new rate
BIN_S = 0.02
PATIENCE = ("--operation_timeout_ms=30000", "--open_timeout_ms=30000")


@dataclasses.dataclass(frozen=True)
class Scale(Burst):
    """How large an experiment is. SCALES has the values that the command line does not give."""

    records: int
    kill_every_s: float  # between two kills of workers, in a run of its own; 0: there is no such run
    added: int         # workers that are added one at a time
    repeats: int
    memory_mib: int    # of each of two memory nodes


# By provider and whether it is to be quick. verbs is meant for Soft-RoCE in a guest of tools/vm, whose emulated cores
# are kept busy by half a dozen idle workers.
SCALES = {
    ("sw", True): Scale(1_000, 10_000, 1_500, 16, 10_000, 1.0, 1.5, 3.5, 20_000, 0.2, 20, 1, 256),
    ("sw", False): Scale(1_000, 10_000, 1_500, 16, 10_000, 3.0, 5.0, 12.0, 200_000, 0.2, 300, 5, 256),
    ("verbs", True): Scale(3, 30, 12, 4, 100_000, 3.0, 3.0, 8.0, 100, 0, 2, 1, 32),
    ("verbs", False): Scale(3, 30, 12, 4, 100_000, 5.0, 10.0, 20.0, 500, 2.0, 10, 3, 32),
}


def percentiles(values):
    """p50, p99 and how many there are, for JSON."""
    known = [value for value in values if value is not None]
    if not known:
        return {"samples": 0, "p50": None, "p99": None}
    return {"samples": len(known), "p50": float(numpy.percentile(known, 50)), "p99": float(numpy.percentile(known, 99))}


def timeline(due_s, done_s, latency_us, workers, end_s):
    """For each bin of BIN_S: requests due and replied to a second, p99 of those due in it, and workers that serve."""
    edges = numpy.arange(0, end_s + BIN_S, BIN_S)
    due, _ = numpy.histogram(due_s, edges)
    done, _ = numpy.histogram(done_s, edges)
    place = numpy.digitize(due_s, edges) - 1
    p99 = [float(numpy.percentile(latency_us[place == i], 99)) if due[i] else None for i in range(len(edges) - 1)]
    serving = [sum(1 for worker in workers if worker["ready_s"] is not None and worker["ready_s"] <= edge
                   and worker["ended_s"] > edge) for edge in edges[:-1]]
    return {"bin_s": BIN_S, "due_per_s": (due / BIN_S).tolist(), "replies_per_s": (done / BIN_S).tolist(),
            "p99_us": p99, "workers": serving}


class Spike(Cluster):
    """The runs of one provider. `planes`, `kinds`: which control planes and kinds of workers."""

    def __init__(self, provider, scale, planes, kinds, screen, redis=False):
        super().__init__("spike", screen, provider)
        self.redis = redis  # clients of Redis are the load
        self.provider = provider
        self.scale, self.planes, self.kinds = scale, planes, kinds
        self.patience = () if provider == "sw" else PATIENCE
        self.bootstraps = []
        self.runs = []

    def tell(self):
        self.step = "start a metadata server and two memory nodes"
        each = min(self.scale.memory_mib, self.memory_of_each(quick=True) >> 20)
        if any(plane != KERNEL for plane in self.planes):
            self.screen.line(f"==> fabric {self.fabric}: a metadata server, two memory nodes of {each} MiB")
            self.start_memnode("metadata server", "--memory=0", "--metaserver")
            self.start_memory_nodes("", each)
        if KERNEL in self.planes:
            self.screen.line(f"==> the same fabric of the kernel module: two memory nodes of {each} MiB")
            self.start_memory_nodes(" of the kernel's", each, f"--control_plane={KERNEL}")
        for kind in () if self.redis else self.kinds:
            for plane in self.planes:
                self.bootstraps.append(self.one_at_a_time(plane, kind))
        for kind in self.kinds:
            for plane in self.planes:
                for repeat in range(self.scale.repeats):
                    self.runs.append(self.measure(plane, kind, repeat, kills=False))
        if "fork" in self.kinds and self.scale.kill_every_s > 0:
            self.runs.append(self.measure(self.planes[0], "fork", 0, kills=True))

    def start_memory_nodes(self, name, each, *arguments):
        for node in (1, 2):
            self.start_memnode(f"memory node {node}{name}", f"--node={node}", f"--memory={each}M", *arguments)
        self.load(self.scale.records, *arguments, *self.patience)

    def section(self):
        """This provider's section of the report."""
        return {"provider": self.provider, "redis": self.redis, "machine": machine(), "load": dataclasses.asdict(self.scale),
                "one_at_a_time": self.bootstraps, "measured": self.summarize(), "runs": self.runs}

    def one_at_a_time(self, plane, kind):
        parts = one_at_a_time(self, plane, kind, self.scale.added, self.scale.base, self.scale.records, *self.patience)
        row = {"control_plane": plane, "worker_kind": kind,
               "bootstrap_us": {part: percentiles(values) for part, values in parts.items()}}
        whole = row["bootstrap_us"]["bootstrap"]
        self.screen.line(f"    {plane} {kind} one at a time: first reply after {whole['p50']:,.0f} us, "
                         f"{whole['p99']:,.0f} at p99")
        return row

    def measure(self, plane, kind, repeat, kills):
        name = f"{plane} {kind}{' with kills' if kills else ''}{f' {repeat + 1}' if repeat else ''}"
        self.step = f"the spike with {name}"
        scale = self.scale
        requests = self.folder / "requests"
        busy, total = cpu_times()
        if self.redis:
            node = self.start_redis_front_end(name, scale, f"--control_plane={plane}", "--json_status", *self.patience)
            clients, begin_s = self.start_redis_clients(node, scale, scale.records, requests, repeat + 1)
            self.watch(clients, name, False, repeat)
            summary = self.stop_redis_front_end(node, clients, begin_s)
            self.processes.remove(clients)
        else:
            node = self.start_front_end(name, scale, scale.records, requests, f"--control_plane={plane}",
                                        f"--worker_kind={kind}", f"--seed={repeat + 1}", "--json_status", *self.patience)
            self.watch(node, name, kills, repeat)
            summary, _ = self.event(node, "summary", 0, "did not end its work")
            node.popen.wait(READY_TIMEOUT_S)
        busy, total = [after - before for after, before in zip(cpu_times(), (busy, total))]
        self.processes.remove(node)
        return self.judge(node, plane, kind, kills, summary, numpy.fromfile(requests, REQUEST), busy / total)

    def watch(self, node, name, kills, seed):
        """Waits until the run is over. With `kills`, kills workers during the spike."""
        chooser = random.Random(seed)
        begin = time.monotonic()
        kill_at, calm_at = begin + self.scale.start_s, begin + self.scale.start_s + self.scale.length_s
        while not any(event_name(line) == "summary" for line in node.lines[-1:]) and node.popen.poll() is None:
            self.check_serving()
            self.screen.progress(f"    {name}: {time.monotonic() - begin:.1f} of {self.scale.end_s:.1f} s")
            time.sleep(0.05)
            if not kills or not kill_at <= time.monotonic() < calm_at:
                continue
            kill_at = time.monotonic() + self.scale.kill_every_s
            mark = len(node.lines)
            node.command("status")
            status, _ = self.event(node, "status", mark, "did not answer `status`")
            if status["pids"]:
                with contextlib.suppress(ProcessLookupError):  # retired since
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
        during = (due_s >= self.scale.start_s) & (due_s < self.scale.start_s + self.scale.length_s)
        steady = due_s < self.scale.start_s
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
            "timeline": timeline(due_s, done_s, latency_us, summary["workers"], self.scale.end_s),
        }
        reach = run["to_plateau_s"]
        self.screen.line(
            f"    {node.name}: full throughput after {'-' if reach is None else f'{reach * 1e3:.0f} ms'}, p99 "
            f"{run['spike_us']['p99']:,.0f} us in the spike and {run['steady_us']['p99']:,.0f} before, "
            f"{len(added)} workers added, CPU {cpu:.0%}{'' if run['valid'] else ' INVALID'}")
        return run

    def to_plateau(self, done_s):
        """From the rise to the end of the first 10 ms, or as long as 50 requests take to come, in which 90% of the new
        rate is replied to."""
        window_s = max(PLATEAU_WINDOW_S, PLATEAU_REQUESTS / self.scale.peak)
        wanted = PLATEAU * self.scale.peak * window_s
        for begin in numpy.arange(self.scale.start_s, self.scale.start_s + self.scale.length_s, 0.0005):
            first, last = numpy.searchsorted(done_s, (begin, begin + window_s))
            if last - first >= wanted:
                return float(begin + window_s - self.scale.start_s)
        return None

    def summarize(self):
        """A row for each control plane and kind of worker, over its repeats."""
        rows = []
        for kind in self.kinds:
            for plane in self.planes:
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
