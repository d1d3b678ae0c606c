#!/usr/bin/env python3
"""Compares latencies of single requests with perftest's, in one run on one machine: READ, CAS and SEND through a bare RC
QP of provider verbs, and through a VirtualQueue on RC, against ib_read_lat, ib_atomic_lat and ib_send_lat.

Usage: bench/queues/perftest_pairs.py BENCH_RNIC [--pairs N] [--requests N] [--paths rc,queue] [--operations read,cas,send]
                               [--device NAME] [--gid_index N] [--json FILE]
In a guest: tools/vm run -t 900 bench/queues/perftest_pairs.py build/bin/bench_rnic

A pair is perftest and then each path; every second pair is in the other order. All have processes of their own, whose two
ends are on CPUs of their own where there are two. A pair's ratio is that of the medians ("typical" in perftest's table);
printed is the median of the pairs' ratios, with the least and the greatest. One request at a time, of 64 bytes (CAS: 8),
both ends polling, through the same port and GID of one device.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

PERFTEST = {"read": ["ib_read_lat", "-s", "64"], "cas": ["ib_atomic_lat", "-A", "CMP_AND_SWAP"],
            "send": ["ib_send_lat", "-s", "64", "-I", "64"]}
LISTENS_S = 20
PATIENCE_S = 60
TCP_LISTEN = "0A"
NEAR_CPU, FAR_CPU = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))  # of the two ends
ports = itertools.count(18600)  # a new one each time: the one before may be in TIME_WAIT


def listens(port):
    """Whether a process of this machine listens on the TCP port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == TCP_LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def start(command, cpu, stderr):
    return subprocess.Popen(["taskset", "-c", str(cpu), *command], stdout=subprocess.PIPE, stderr=stderr, text=True)


def ended(process, command, words):
    """Waits for its end. Returns the number in its output that matches `words`."""
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors = f"{errors or ''}did not end within {PATIENCE_S} s\n"
    found = re.search(words, output, re.MULTILINE)
    if process.returncode != 0 or not found:
        raise SystemExit(f"{' '.join(command)} failed:\n{output}{errors or ''}")
    return float(found.group(1))


def perftest(operation, options):
    """The typical latency in microseconds, as ib_*_lat prints it."""
    port = next(ports)
    command = [*PERFTEST[operation], "-d", options.device, "-x", str(options.gid_index), "-n", str(options.requests), "-F",
               "-p", str(port)]
    with start(command, FAR_CPU, subprocess.STDOUT) as server:
        try:
            give_up = time.monotonic() + LISTENS_S
            while not listens(port):
                if server.poll() is not None or time.monotonic() > give_up:
                    server.kill()
                    raise SystemExit(f"{' '.join(command)} does not listen:\n{server.stdout.read()}")
                time.sleep(0.01)
            client = [*command, "localhost"]
            # #bytes #iterations t_min t_max t_typical ...
            typical = ended(start(client, NEAR_CPU, subprocess.PIPE), client,
                            r"^ *\d+ +\d+ +[\d.]+ +[\d.]+ +([\d.]+) ")
            server.communicate(timeout=PATIENCE_S)
            return typical
        finally:
            server.kill()


def ours(path, operation, options):
    command = [options.bench_rnic, "--rnic=verbs", f"--path={path}", f"--operation={operation}",
               f"--requests={options.requests}", f"--rnic_port={options.device}:1:{options.gid_index}"]
    process = start(command, NEAR_CPU, subprocess.PIPE)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with contextlib.suppress(OSError):  # it has ended; ended() reports that
        while process.poll() is None and not children.read_text(encoding="ascii"):
            time.sleep(0.001)
        os.sched_setaffinity(int(children.read_text(encoding="ascii").split()[0]), {FAR_CPU})
    return ended(process, command, r" median_us=([\d.]+) ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("bench_rnic")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--paths", default="rc,queue")
    parser.add_argument("--operations", default="read,cas,send")
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--gid_index", type=int, default=1)
    parser.add_argument("--json", help="file for the samples")
    options = parser.parse_args()
    paths = options.paths.split(",")
    for given, known in ((paths, ("rc", "queue")), (options.operations.split(","), ("read", "cas", "send"))):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    report = []
    for operation in options.operations.split(","):
        tool = PERFTEST[operation][0]
        sides = ["perftest", *paths]
        samples = {side: [] for side in sides}
        for pair in range(options.pairs):
            for side in sides if pair % 2 == 0 else reversed(sides):
                took = perftest(operation, options) if side == "perftest" else ours(side, operation, options)
                samples[side].append(took)
        typical = statistics.median(samples["perftest"])
        for path in paths:
            ratios = sorted(ours / theirs for ours, theirs in zip(samples[path], samples["perftest"]))
            print(f"{operation:4} {path:5}  {statistics.median(samples[path]):7.2f} us   {tool:13} {typical:7.2f} us   "
                  f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)", flush=True)
            report.append({"operation": operation, "path": path, "us": samples[path], "perftest": tool,
                           "perftest_us": samples["perftest"], "ratio": statistics.median(ratios)})
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
