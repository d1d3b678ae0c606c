#!/usr/bin/env python3
"""A front end beside redis-server: redis-benchmark asks both in turns, on the same cores.

Usage: beside_redis.py [--turns N] [--requests N] [--workers N] [--clients N] [--pipeline N]   (after a release build)

The server has cores 0 to workers - 1, redis-benchmark the others. For each command and size of value, each turn measures
both, one after the other; the table has medians: requests a second, microseconds of the server's CPU per request (for
the front end without that of the memory node), and the ratio of the first. Keys are drawn from a million,
which are written first; "one key" draws none. redis-server runs as it comes, in memory alone.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lib"))
from cluster import Cluster, Failure, Screen, free_port, run_story  # noqa: E402

KEYS = 1_000_000
CASES = [(command, size, keys) for keys in (KEYS, 1) for size in (100, 1024) for command in ("set", "get", "incr", "mset")
         if not (command == "incr" and size == 1024) and not (command == "mset" and keys == 1)]
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class BesideRedis(Cluster):
    def __init__(self, options, screen):
        super().__init__("beside-redis", screen)
        self.options = options
        self.cores = ",".join(map(str, range(options.workers)))
        self.rest = f"{options.workers}-{max(os.cpu_count() - 1, options.workers)}"
        self.servers = {}  # name: (port, pid)

    def tell(self):
        self.step = "start both servers"
        self.start_memnode("memory node", "--node=1", "--memory=4G", "--metaserver")
        node = self.start("front end", "computenode", "--redis=127.0.0.1:0", f"--workers={self.options.workers}")
        said, _ = self.event(node, "ready", 0, "did not become ready")
        subprocess.run(["taskset", "-apc", self.cores, str(node.popen.pid)], check=True, capture_output=True)
        self.servers["surgekv"] = (int(said["redis"].rpartition(":")[2]), node.popen.pid)
        port = free_port()
        redis = self.start("redis", pathlib.Path("/usr/bin/taskset"), "-c", self.cores, "redis-server", "--port", str(port),
                           "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder), fabric=False)
        self.servers["redis"] = (port, redis.popen.pid)
        time.sleep(1)
        for port, _ in self.servers.values():
            self.ask(port, "incr", 100, KEYS, 3 * KEYS)  # it has keys of its own
        for size in (100, 1024):
            for port, _ in self.servers.values():
                self.ask(port, "set", size, KEYS, 3 * KEYS)
            self.compare([case for case in CASES if case[1] == size])

    def ask(self, port, command, size, keys, requests):
        """Requests a second."""
        words = ["taskset", "-c", self.rest, "redis-benchmark", "-p", str(port), "-t", command, "-d", str(size), "-n", str(requests),
                 "-c", str(self.options.clients), "-P", str(self.options.pipeline), "--csv"]
        done = subprocess.run(words + (["-r", str(keys)] if keys > 1 else []), capture_output=True, text=True, check=False)
        if done.returncode != 0 or "Error" in done.stdout + done.stderr:
            raise Failure(f"redis-benchmark -t {command}: {done.stdout}{done.stderr}")
        return float(done.stdout.splitlines()[-1].split(",")[1].strip('"'))

    def compare(self, cases):
        for command, size, keys in cases:
            rates, cpu_us = {name: [] for name in self.servers}, {name: [] for name in self.servers}
            for _ in range(self.options.turns):
                for name, (port, pid) in self.servers.items():
                    before = cpu_s(pid)
                    rates[name].append(self.ask(port, command, size, keys, self.options.requests))
                    cpu_us[name].append((cpu_s(pid) - before) / self.options.requests * 1e6)
            ours, theirs = (statistics.median(rates[name]) for name in ("surgekv", "redis"))
            self.screen.line(f"{command.upper():4} {size:5} B  {'a million keys' if keys > 1 else 'one key':14}  "
                             f"{ours:9,.0f}/s  redis {theirs:9,.0f}/s  {ours / theirs:5.2f}  CPU "
                             f"{statistics.median(cpu_us['surgekv']):5.2f} us, redis {statistics.median(cpu_us['redis']):5.2f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name, value in {"turns": 5, "requests": 500_000, "workers": 1, "clients": 50, "pipeline": 16}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    screen = Screen()
    beside = BesideRedis(parser.parse_args(), screen)
    return run_story(beside, screen, beside.tell)


if __name__ == "__main__":
    sys.exit(main())
