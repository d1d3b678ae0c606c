#!/usr/bin/env python3
"""Kills the programs of a mirrored store one after another while clients write; nothing may be lost or unavailable.

Usage: kill_rounds_test.py [--rounds=N] [--keys=N] [--seed=N] [--verbose], in the repository's root, after a release
build.

A round kills (SIGKILL) the holder of one role, removes its memory, starts another one, and waits until each pool has
its two replicas again. Then each writer (chaos_writer.cc: half reads, half writes, by Zipf's law) reads all its keys. Every second
round also stops (SIGSTOP) a writer before the kill, for up to 1.7 s. N rounds for each role; at the end there is a table.
"""

import argparse
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from program import BIN, PATIENCE_S, ROOT, Program, Unexpected, clean_fabric, run_seeded, wait_for

WRITER = ROOT / "build" / "tests" / "chaos_writer"
WRITERS = 2
# Pool and place of the memory node that dies. Pool 1 is the home.
PLACES = {"home's head": (1, "head"), "home's tail": (1, "tail"), "head": (2, "head"), "tail": (2, "tail")}
METADATA = "host of a metadata server"
STOPPED_S = (0.1, 0.5, 1, 1.7)  # a lease is 1 s; a client that is silent for 1.5 s is expelled; an operation may take 2 s
COUNTED = ("done", "refused", "unavailable", "unknown", "no_room")


def median(values):
    return sorted(values)[len(values) // 2]


class KillRounds:
    """A store of two pools with two replicas each, its writers, and what its rounds have shown."""

    def __init__(self, folder, seed, arguments):
        self.fabric = f"kill-rounds-{os.getpid()}"
        self.folder = folder
        self.keys = arguments.keys
        self.memory_mib = 64 + self.keys // 200  # most of it stays free
        self.verbose = arguments.verbose
        self.random = random.Random(seed)
        self.memory = {}  # node -> Program
        self.writers = []
        self.counts = {}  # writer -> its last counts
        self.rounds = {}  # (role, whether a writer was stopped) -> what each round was

    def start_memory(self, node, *more):
        self.memory[node] = Program(
            self.folder, "memnode", f"--fabric={self.fabric}", f"--node={node}", f"--memory={self.memory_mib}M",
            "--hugepages=off", "--wait_ms=20000", *more)

    def start_writer(self, number):
        self.writers.append(Program(
            self.folder, WRITER, self.fabric, "krcore", self.folder / f"ledger{number}", str(number),
            str(self.keys), str(self.random.getrandbits(32))))

    def begin(self):
        for node in range(1, 5):
            self.start_memory(node, *(["--replicas=2"] if node == 1 else []), *(["--metaserver"] if node <= 2 else []))
            self.memory[node].wait_for("^ready .*mirrored=yes")
        self.await_redundancy()
        for number in range(WRITERS):
            self.start_writer(number)
        # The first death is to hit as much as the last one.
        wait_for(lambda: self.verify() and all(count["present"] > self.keys / 2 for count in self.counts.values()),
                 lambda: f"few keys are written: {self.counts}")
        wait_for(lambda: all(node["memory"]["live_bytes"] for node in self.members(self.status())),
                 lambda: f"a pool stays empty: {self.status()}")

    # ---- what surge says

    def status(self):
        surge = subprocess.run([BIN / "surge", "status", f"--fabric={self.fabric}", "--json"], capture_output=True,
                               text=True, timeout=PATIENCE_S, check=False)
        if surge.returncode != 0:
            raise Unexpected(f"surge status: {surge.returncode}\n{surge.stderr}")
        return json.loads(surge.stdout)

    @staticmethod
    def members(status):
        return [node for node in status["nodes"] if node["state"] != "dead" and node["replica"] in ("head", "tail")]

    def await_redundancy(self):
        """Returns what is there then."""
        seen = {}

        def redundant():
            seen.update(self.status())
            places = {(node["pool"], node["replica"]) for node in self.members(seen)}
            return not seen["problems"] and places >= set(PLACES.values()) and seen
        return wait_for(redundant, lambda: f"the store does not become redundant: {json.dumps(seen)}\n" + "\n".join(
            program.text() for program in self.memory.values()))

    # ---- a round

    def victim(self, role, status):
        if role == METADATA:
            hosts = [node for node in status["nodes"] if node["metaserver"] and node["state"] != "dead"]
            return self.random.choice(hosts)
        return next(node for node in self.members(status) if (node["pool"], node["replica"]) == PLACES[role])

    def replace(self, victim):
        """By one with or without its id, whose memory nobody may take for that of the dead one."""
        node = victim["id"]
        self.memory.pop(node).kill()
        files = glob.glob(f"/dev/shm/*{self.fabric}*.m{node}-pool")
        if len(files) != 1:
            raise Unexpected(f"memory of node {node} is not where it was expected: {files}")
        os.unlink(files[0])
        new = self.random.choice([node, *(free for free in range(1, 9) if free not in self.memory)])
        self.start_memory(new, *(["--metaserver"] if victim["metaserver"] else []))
        self.memory[new].wait_for("^ready ")

    def round(self, role, stopped):
        status = self.await_redundancy()
        victim = self.victim(role, status)
        gib = 0 if victim["memory"]["live_bytes"] is None else victim["memory"]["live_bytes"] / (1 << 30)
        begin = time.monotonic()
        if stopped:
            # While it is stopped a new program may have to wait, since it may hold the fabric's lock; and no replica
            # joins when it has been expelled.
            stopped.popen.send_signal(signal.SIGSTOP)
            timer = threading.Timer(self.random.choice(STOPPED_S), stopped.popen.send_signal, [signal.SIGCONT])
            timer.start()
        self.replace(victim)
        self.await_redundancy()
        if stopped:
            timer.join()
        took_s = time.monotonic() - begin
        done = self.verify()
        did = {name: sum(count[name] for count in done.values()) for name in COUNTED}
        did["silent_ms"] = max(count["silent_ms"] for writer, count in done.items() if writer is not stopped)
        did["redundant_s"], did["gib"] = took_s, gib
        self.rounds.setdefault((role, stopped is not None), []).append(did)
        if self.verbose:
            print(f"{role}, node {victim['id']}{', a writer stopped' if stopped else ''}: {did}", flush=True)

    def verify(self):
        """Each writer reads all its keys. Returns what each has done since the last time."""
        for writer in self.writers:
            writer.command("verify")
        since = {}
        for writer in self.writers:
            before = self.counts.get(writer, {})
            line = writer.wait_for(rf"^verified times={before.get('times', 0) + 1:.0f} .*\n").group(0)
            self.counts[writer] = {name: float(count) for name, count in re.findall(r"(\w+)=([\d.]+)", line)}
            since[writer] = {name: self.counts[writer][name] - before.get(name, 0) for name in COUNTED}
            since[writer]["silent_ms"] = self.counts[writer]["silent_ms"]
        return since

    # ---- the whole

    def torment(self, times):
        self.begin()
        for number in range(times):
            for role in (*PLACES, METADATA):
                self.round(role, self.random.choice(self.writers) if number % 2 else None)
        for writer in self.writers:
            writer.command("quit")
            if (status := writer.ended()) != 0:
                raise Unexpected(f"a writer ended with {status}\n{writer.text()}")

    def finish(self):
        print(f"{'killed':26} {'writer':8} {'rounds':>6} {'operations':>11} {'failed':>6} {'unknown':>7}  "
              f"{'silent ms: p50':>14} {'max':>7}  {'redundant s: p50':>16} {'max':>6}  {'GiB':>6} {'s/GiB':>6}")
        for (role, stopped), rounds in self.rounds.items():
            total = {name: sum(each[name] for each in rounds) for name in rounds[0]}
            silent, redundant = [each["silent_ms"] for each in rounds], [each["redundant_s"] for each in rounds]
            rate = f"{total['redundant_s'] / total['gib']:6.1f}" if total["gib"] else "     -"
            operations, failed = total["done"] + total["refused"], total["unavailable"] + total["no_room"]
            print(f"{role:26} {'stopped' if stopped else 'runs':8} {len(rounds):6} {operations:11.0f} {failed:6.0f} "
                  f"{total['unknown']:7.0f}  {median(silent):14.1f} {max(silent):7.1f}  {median(redundant):16.2f} "
                  f"{max(redundant):6.2f}  {total['gib'] / len(rounds):6.3f} {rate}")
        if failed := sum(each["unavailable"] + each["no_room"] for rounds in self.rounds.values() for each in rounds):
            raise Unexpected(f"{failed:.0f} operations failed")

    def clean_up(self):
        for program in (*self.writers, *self.memory.values()):
            program.close()
        clean_fabric(self.fabric)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=5000, help="of each writer (default: 5000)")
    parser.add_argument("--verbose", action="store_true", help="a line for each round")
    return run_seeded("kill-rounds", __doc__.splitlines()[0], KillRounds, parser, unit="rounds", amount=2)


if __name__ == "__main__":
    sys.exit(main())
