#!/usr/bin/env python3
"""Repeats KRCORE's evaluation on this machine. tools/reproduce builds first and then runs this; bench/results/README.md
says what each figure is.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(BENCH / "common"), str(BENCH.parent / "tools/lib")]
import figures  # noqa: E402  (found in the folders above)
import reproduce_page  # noqa: E402
from bootstraps import KINDS, PARTS, PLANES, one_at_a_time  # noqa: E402
from cluster import BIN, Cluster, Failure, Screen, cpu_times, machine, run_story  # noqa: E402
from report import table  # noqa: E402

OTHERS_LIMIT = 0.1  # share of the machine: if others use more, a figure does not count
SILENCE_S = 300
BOOTSTRAP_TRIES = 5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Seconds that a round of a figure takes on a machine with two cores, with --quick and without; only for the estimate.
ESTIMATE_S = {"many_to_one": (0.8, 9), "full_mesh": (0.5, 2.4), "one_sided": (1.2, 4), "two_sided": (0.3, 1),
              "race_bootstrap": (7, 18), "transfer": (0.8, 2.5), "modelled": (1, 0.5)}


def spread(values):
    """Mean and percentiles in microseconds, by the nearest rank as in bench/reproduce/report.h."""
    ranked = sorted(values)
    return {"mean": statistics.fmean(ranked), "p50": ranked[(len(ranked) * 50 + 99) // 100 - 1],
            "p99": ranked[(len(ranked) * 99 + 99) // 100 - 1]}


class CpuOfOthers:
    """The share of the machine that processes use other than this program and what it runs."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.begin = self.now()

    def now(self):
        busy, total = cpu_times()
        own = 0.0  # s
        for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(processes)
            own += usage.ru_utime + usage.ru_stime
        for process in self.cluster.processes:
            if process.popen.poll() is None:
                stat = pathlib.Path(f"/proc/{process.popen.pid}/stat").read_text("ascii")
                own += sum(map(int, stat.rsplit(")", 1)[1].split()[11:15])) / TICKS_PER_S
        return busy, total, own * TICKS_PER_S

    def share(self):
        busy, total, own = (after - before for after, before in zip(self.now(), self.begin))
        return max(0.0, (busy - own) / total)


class Reproduce(Cluster):
    def __init__(self, options, screen):
        super().__init__("reproduce", screen)
        self.options = options
        self.begin = time.monotonic()
        self.figures = {}
        self.modelled = {}

    def tell(self):
        expected = [ESTIMATE_S[name][0 if self.options.quick else 1] * self.options.rounds for name in self.options.only]
        self.screen.line(f"==> {', '.join(self.options.only)}: about {sum(expected) / 60:.1f} minutes")
        for number, name in enumerate(self.options.only):
            gone = time.monotonic() - self.begin
            left = sum(expected[number:]) * (gone / sum(expected[:number]) if number else 1)
            self.screen.line(f"==> {name}; {gone:.0f} s gone, about {left:.0f} s left")
            self.step = name
            if name == "modelled":
                self.run_models()
            else:
                self.run_figure(name)

    def run_figure(self, name):
        begin, others = time.monotonic(), CpuOfOthers(self)
        rounds = self.bootstraps() if name == "race_bootstrap" else self.measure(name)
        share = others.share()
        problems = figures.inconsistencies(name, rounds)
        if problems:
            raise Failure(f"{name}: rate and latency do not agree, by arithmetic or units: {problems[0]}")
        self.figures[name] = {"valid": share <= OTHERS_LIMIT, "cpu_of_others": share,
                              "seconds": time.monotonic() - begin,
                              "rows": figures.medians(name, rounds), "rounds": rounds}
        self.screen.line(f"    {len(rounds)} measurements, others used {share:.0%} of the machine"
                         f"{'' if share <= OTHERS_LIMIT else ': INVALID'}")

    def measure(self, name):
        """The rows that reproduce_bench prints."""
        options = self.options
        bench = self.start(name, "reproduce_bench", f"--figure={name}", f"--rounds={options.rounds}",
                           f"--seed={options.seed}", f"--quick={str(options.quick).lower()}")
        heard, seen = time.monotonic(), 0
        while bench.popen.poll() is None:
            time.sleep(0.1)
            if len(bench.lines) != seen:
                heard, seen = time.monotonic(), len(bench.lines)
                self.screen.progress(f"    {seen - 1} of {json.loads(bench.lines[0])['rows']}")
            if time.monotonic() - heard > SILENCE_S:
                raise Failure(f"{name}: nothing measured for {SILENCE_S} s", bench)
        self.screen.end()
        bench.wait_line(lambda line: False, 0, SILENCE_S)  # until all of its output has arrived
        if bench.popen.returncode != 0:
            raise Failure(f"reproduce_bench: {bench.describe_end()}", bench)
        self.processes.remove(bench)
        announced, *rows = map(json.loads, bench.lines)
        if len(rows) != announced["rows"]:
            raise Failure(f"{len(rows)} of {announced['rows']} measurements", bench)
        return rows

    def bootstraps(self):
        """Adds workers of the store one at a time, and measures each until its first reply."""
        options = self.options
        each = self.memory_of_each(quick=True) >> 20
        self.start_memnode("metadata server", "--memory=0", "--metaserver")
        for node in (1, 2):
            self.start_memnode(f"memory node {node}", f"--node={node}", f"--memory={each}M")
        records = 20_000 if options.quick else 200_000
        self.load(records)
        rows, order = [], random.Random(options.seed)
        configurations = [(plane, kind) for plane in PLANES for kind in KINDS]
        for number in range(options.rounds):
            order.shuffle(configurations)
            for plane, kind in configurations:
                rows.append(self.bootstrap_of(plane, kind, records) | {"round": number})
        for process in reversed(list(self.serving)):
            self.serving.remove(process)
            complaint = self.stop(process, clean=True)
            if complaint:
                raise Failure(complaint, process)
            self.processes.remove(process)
        return rows

    def bootstrap_of(self, plane, kind, records):
        for _ in range(BOOTSTRAP_TRIES):
            parts = one_at_a_time(self, plane, kind, 8 if self.options.quick else 30, 1_000, records)
            # A worker that was retired before a request reached it had no first reply.
            served = [worker for worker in zip(*(parts[part] for part in PARTS)) if None not in worker]
            if served:
                row = {"control_plane": plane, "worker_kind": kind, "samples": len(served)}
                return row | {f"{part}_us": spread(values) for part, values in zip(PARTS, zip(*served))}
        raise Failure(f"{plane}, {kind}: no worker served a request before it was retired")

    def run_models(self):
        for name, command in (("connecting", ("bench_connect", "--model=connectx")),
                              ("spike", ("spike_model", "--scale=1", f"--seed={self.options.seed}"))):
            done = subprocess.run([BIN / command[0], *command[1:]], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Failure(f"{command[0]}: {done.stderr.strip()}")
            self.modelled[name] = {"command": " ".join(("build/bin/" + command[0], *command[1:])), "text": done.stdout}


def parse_options():
    known = (*figures.FIGURES, "modelled")
    parser = argparse.ArgumentParser(prog="tools/reproduce", description="See tools/reproduce --help.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(known))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("reproduce-report"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 3 if options.quick else 7
    chosen = options.only.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"--only: '{', '.join(unknown)}': expected some of {', '.join(known)}")
    options.only = [name for name in known if name in chosen]
    if options.rounds < 1 or options.rounds % 2 == 0:
        parser.error("--rounds is odd and at least 1")
    if options.seed < 0:
        parser.error("--seed is not negative")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out: {options.out} is no directory")
    return options


def main():
    options = parse_options()
    screen = Screen()
    story = Reproduce(options, screen)
    status = run_story(story, screen, story.tell)
    if status != 0:
        return status
    report = {"machine": machine(), "provider": "sw", "quick": options.quick, "rounds": options.rounds,
              "seed": options.seed, "flags": sys.argv[1:], "figures": story.figures, "modelled": story.modelled,
              "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    reproduce_page.write(options.out, report)
    for name in story.figures:
        screen.line()
        screen.line(f"{figures.FIGURES[name].title}")
        for line in table(*reproduce_page.cells(name, report["figures"][name])):
            screen.line(line)
    screen.line()
    invalid = [name for name, figure in story.figures.items() if not figure["valid"]]
    if invalid:
        screen.line(f"INVALID, the machine was busy with others: {', '.join(invalid)}")
    screen.line(f"{options.out}/report.html; {time.monotonic() - story.begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
