#!/usr/bin/env python3
"""Clients that live for a moment come all the time to a small store; it neither loses a key nor fills up.

Usage: short_lived_test.py [--seconds=N] [--rate=N] [--seed=N], in the repository's root, after a release build.

Twenty a second put some keys and end (short_lived.cc): cleanly, by SIGKILL, stopped for longer than a lease and killed
or continued, forked, or with hardly a descriptor to be had. At the end every key is read, and memory in use must come
down to what the keys need and what docs/protocol.md allows on top.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

from program import BIN, PATIENCE_S, ROOT, Program, Unexpected, clean_fabric, run_seeded, wait_for

CLIENT = ROOT / "build" / "tests" / "short_lived"
MEMORY_MIB = 64
KEYS, KEYS_EACH = 1_000, 10
PAUSED_AT_ONCE = 1  # with more there is always one that was expelled of late, and pins all that is older
ALLOWED_MIB = 12  # keys and subtables 3, twice; what is not swept yet 4; what clients cut last 2
ENDS = {"exit": 6, "kill": 6, "pause": 1, "fork-exit": 2, "fork-kill": 2, "starved": 3}


class ShortLived:
    """A store, and the clients that it gets."""

    def __init__(self, folder, seed, rate):
        self.fabric = f"short-lived-{os.getpid()}"
        self.folder = folder
        self.rate = rate
        self.random = random.Random(seed)
        self.memory = Program(folder, "memnode", f"--fabric={self.fabric}", "--node=1", f"--memory={MEMORY_MIB}M",
                              "--metaserver", "--hugepages=off")
        self.running = {}  # first key -> (popen, end, when to go on with it or None)
        self.done = dict.fromkeys((*ENDS, "refused for want of descriptors"), 0)

    def start_one(self):
        free = [first for first in range(0, KEYS, KEYS_EACH) if first not in self.running]
        ends = dict(ENDS)
        if sum(1 for _, end, _ in self.running.values() if end == "pause") >= PAUSED_AT_ONCE:
            del ends["pause"]
        if not free:
            return
        first = self.random.choice(free)
        end = self.random.choices(list(ends), list(ends.values()))[0]
        descriptors, closed = self.random.randrange(4, 14), self.random.sample(range(3), self.random.randrange(4))

        def starve():
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            for fd in closed:
                os.close(fd)

        out = (self.folder / "clients.log").open("ab")
        with out:
            popen = subprocess.Popen(
                [CLIENT, self.fabric, self.folder / "ledger", str(KEYS), str(first), str(KEYS_EACH),
                 "exit" if end == "starved" else end], stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=starve if end == "starved" else None)
        resume_at = time.monotonic() + self.random.choice((0.5, 2, 6)) if end == "pause" else None
        self.running[first] = popen, end, resume_at

    def look_after(self):
        for first, (popen, end, resume_at) in list(self.running.items()):
            if resume_at is not None and time.monotonic() > resume_at:
                popen.send_signal(self.random.choice((signal.SIGCONT, signal.SIGCONT, signal.SIGKILL)))
                self.running[first] = popen, end, None
            status = popen.poll()
            if status is None:
                continue
            del self.running[first]
            self.done[end] += 1
            if end == "starved" and status == 4:
                self.done["refused for want of descriptors"] += 1
            elif status != 0 and not (status == -signal.SIGKILL and end in ("kill", "pause")):
                raise Unexpected(f"a client that was to end by {end} ended with {status}\n{self.clients_said()}")

    def clients_said(self):
        return "\n".join((self.folder / "clients.log").read_text("utf-8", "replace").splitlines()[-20:])

    def torment(self, seconds):
        self.memory.wait_for("^ready ")
        begin = time.monotonic()
        started = 0
        while (passed := time.monotonic() - begin) < seconds:
            while started < passed * self.rate:
                started += 1
                self.start_one()
            self.look_after()
            if not self.memory.alive():
                raise Unexpected(f"the memory node has ended\n{self.memory.text()}")
            time.sleep(0.005)
        deadline = time.monotonic() + PATIENCE_S
        while self.running:
            if time.monotonic() > deadline:
                raise Unexpected(f"clients that do not end: {self.running}")
            self.look_after()
            time.sleep(0.02)

    def finish(self):
        verified = subprocess.run([CLIENT, self.fabric, self.folder / "ledger", str(KEYS)], capture_output=True, text=True,
                                  timeout=PATIENCE_S, check=False)
        if verified.returncode != 0:
            raise Unexpected(f"a key is not what it must be: {verified.stdout}{verified.stderr}")
        print(verified.stdout.strip())
        print("ended by:", ", ".join(f"{name} {count}" for name, count in self.done.items()))
        wait_for(lambda: self.used_mib() <= ALLOWED_MIB,
                 lambda: f"{self.used_mib():.0f} MiB stay in use, for {KEYS} keys of 2 kB\n{self.memory.text()}")
        print(f"memory in use: {self.used_mib():.0f} MiB")
        if self.memory.stop() != 0:
            raise Unexpected(self.memory.text())

    def used_mib(self):
        surge = subprocess.run([BIN / "surge", "status", f"--fabric={self.fabric}", "--json"], capture_output=True,
                               text=True, timeout=PATIENCE_S, check=False)
        if surge.returncode != 0:
            raise Unexpected(f"surge status: {surge.returncode}\n{surge.stderr}")
        return json.loads(surge.stdout)["memory"]["used_bytes"] / (1 << 20)

    def clean_up(self):
        for popen, _, _ in self.running.values():
            os.killpg(popen.pid, signal.SIGKILL)  # also what it has forked
            popen.wait()
        self.memory.close()
        clean_fabric(self.fabric)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=20, help="clients a second (default: 20)")
    return run_seeded("short-lived", __doc__.splitlines()[0],
                   lambda folder, seed, arguments: ShortLived(folder, seed, arguments.rate), parser)


if __name__ == "__main__":
    sys.exit(main())
