#!/usr/bin/env python3
"""Kills, stops, drains and starts again what a fabric consists of, at random, while clients write; nothing may be lost.

Usage: chaos_test.py [--seconds=N] [--seed=N] [--verbose], in the repository's root, after a release build.

Every writer (chaos_writer.cc) knows what its keys must have, also after it was killed, and reads them all at the end.
The seed decides what is done, not when each program gets to see it, so a failure need not come again by it.
"""

import argparse
import glob
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

from program import BIN, PATIENCE_S, ROOT, Program, Unexpected, clean_fabric, run_seeded

WRITER = ROOT / "build" / "tests" / "chaos_writer"
CONTROL_PLANES = ("krcore", "verbs", "lite")  # of the writers
KEYS = 3000
MEMORY = "16M"  # so little that clients have to give memory back
HOME, MEMBERS = 1, (2, 3)


class Chaos:
    """A fabric, and what is done to it."""

    def __init__(self, folder, seed, verbose):
        self.fabric = f"chaos-{os.getpid()}"
        self.folder = folder
        self.random = random.Random(seed)
        self.verbose = verbose
        self.begin = time.monotonic()
        self.meta = {}     # number -> Program
        self.memory = {}   # node -> Program
        self.writers = {}  # number -> Program
        self.command = None
        self.done = {}
        self.actions = {
            self.kill_memory: 6, self.restart_memory: 3, self.pause_memory: 1, self.kill_meta: 3, self.kill_writer: 4,
            self.pause_writer: 4, self.drain: 3, self.interrupt_drain: 3, self.replace: 1, self.come_and_go: 2,
            self.kill_home_and_meta: 2}

    def say(self, text):
        if self.verbose:
            print(f"{time.monotonic() - self.begin:7.2f} {text}", flush=True)

    # ---- programs

    def start(self, program, *arguments):
        return Program(self.folder, program, f"--fabric={self.fabric}", *arguments)

    def end(self, program, status):
        """Waits for it, and sees that it ended so."""
        if (got := program.ended()) != status:
            raise Unexpected(f"{program.name} ended with {got}, not {status}\n{program.text()}")

    def stop(self, program):
        program.popen.terminate()
        self.end(program, 0)

    def start_meta(self, number):
        self.meta[number] = self.start("memnode", "--memory=0", "--metaserver")
        self.meta[number].wait_for("^ready ")

    def start_memory(self, node, wait=True):
        self.memory[node] = self.start("memnode", f"--node={node}", f"--memory={MEMORY}", "--hugepages=off",
                                       "--keep_memory", f"--wait_ms={PATIENCE_S * 1000}")
        if wait:
            self.await_memory(node)

    def await_memory(self, node):
        ready = self.memory[node].wait_for("^ready .*")
        if f" home={'yes' if node == HOME else 'no'} " not in ready.group(0) + " ":
            raise Unexpected(f"node {node} is what it must not be: {ready.group(0)}")

    def start_writer(self, number):
        self.writers[number] = Program(
            self.folder, WRITER, self.fabric, CONTROL_PLANES[number], self.folder / f"ledger{number}", str(number),
            str(KEYS), str(self.random.getrandbits(32)))

    def run(self, *arguments, give_up_s=None):
        """A command that may fail, but not hang, nor crash. Its status; None: it was stopped."""
        self.command = program = self.start(*arguments)
        try:
            status = program.popen.wait(give_up_s or PATIENCE_S)
        except subprocess.TimeoutExpired as expired:
            if give_up_s is None:
                raise Unexpected(f"{arguments} does not end\n{program.text()}") from expired
            program.popen.send_signal(self.random.choice((signal.SIGKILL, signal.SIGTERM)))
            program.popen.wait()
            return None
        if status not in (0, 1):
            raise Unexpected(f"{arguments} ended with {status}\n{program.text()}")
        self.say(f"{' '.join(arguments)}: {status}, {program.text()}")
        return status

    # ---- what is done

    def some_memory(self):
        return self.random.choice((HOME, *MEMBERS))

    def away(self):
        time.sleep(self.random.choice((0, 0.05, 0.3, 1.2)))

    def kill_memory(self):
        nodes = self.random.sample((HOME, *MEMBERS), self.random.choice((1, 1, 1, 2, 3)))
        for node in nodes:
            self.memory[node].kill()
        self.away()
        self.random.shuffle(nodes)
        for node in nodes:
            self.start_memory(node, wait=False)
        for node in nodes:
            self.await_memory(node)

    def restart_memory(self):
        node = self.some_memory()
        self.stop(self.memory[node])
        self.away()
        self.start_memory(node)

    def pause_memory(self):
        memory = self.memory[self.some_memory()].popen
        memory.send_signal(signal.SIGSTOP)
        self.away()
        memory.send_signal(signal.SIGCONT)

    def kill_meta(self):
        for number in self.random.sample(range(2), self.random.choice((1, 1, 2))):
            self.meta[number].kill()
        self.away()
        self.heal_meta()

    def heal_meta(self):
        for number, server in self.meta.items():
            if not server.alive():
                self.start_meta(number)

    def kill_home_and_meta(self):
        """Nobody is left who knows of the home."""
        dead = [self.memory[HOME], *self.meta.values()]
        for program in dead:
            program.kill()
        self.end(self.start("memnode", "--node=9", f"--memory={MEMORY}", "--hugepages=off", "--metaserver",
                            "--wait_ms=300"), 1)
        for number in self.meta:
            self.start_meta(number)
        self.start_memory(HOME)

    def kill_writer(self):
        number = self.random.randrange(len(CONTROL_PLANES))
        self.writers[number].kill()
        self.away()
        self.start_writer(number)

    def pause_writer(self):
        """Often for longer than its lease."""
        writer = self.writers[self.random.randrange(len(CONTROL_PLANES))].popen
        writer.send_signal(signal.SIGSTOP)
        time.sleep(self.random.choice((0.1, 0.5, 1.5, 3)))
        writer.send_signal(signal.SIGCONT)

    def drain(self):
        node = self.random.choice(MEMBERS)
        self.run("memnode", f"--drain={node}")
        self.undrain(node)

    def undrain(self, node):
        """Where all metadata servers were lost, the node is found once it has published itself again."""
        deadline = time.monotonic() + 10
        while self.run("memnode", f"--undrain={node}") != 0:
            if time.monotonic() > deadline:
                raise Unexpected(f"node {node} cannot be taken back into use")
            time.sleep(0.1)

    def interrupt_drain(self):
        node = self.random.choice(MEMBERS)
        self.run("memnode", f"--drain={node}", give_up_s=self.random.choice((0.02, 0.1, 0.5)))
        if self.random.random() < 0.5:
            self.undrain(node)
        else:  # it is in use again when it comes back
            self.memory[node].kill()
            self.start_memory(node)

    def replace(self):
        """By an empty node of the same id, which nobody may take for the one before."""
        node = self.random.choice(MEMBERS)
        if self.run("memnode", f"--drain={node}") != 0:
            return self.undrain(node)
        self.memory[node].kill()
        for path in glob.glob(f"/dev/shm/*-{self.fabric}.k{node}-*"):
            os.unlink(path)
        self.start_memory(node)
        if "adopted=no" not in self.memory[node].text():
            raise Unexpected(f"memory of node {node} was to be removed")
        return None

    def come_and_go(self):
        """A clean end of a writer, and another one at once."""
        number = self.random.randrange(len(CONTROL_PLANES))
        self.writers[number].command("quit")
        self.end(self.writers[number], 0)
        self.start_writer(number)

    # ---- the whole

    def check(self):
        for program in (*self.meta.values(), *self.memory.values(), *self.writers.values()):
            if not program.alive():
                raise Unexpected(f"{program.name} has ended: {program.popen.returncode}\n{program.text()}")

    def torment(self, seconds):
        for number in range(2):
            self.start_meta(number)
        for node in (HOME, *MEMBERS):
            self.start_memory(node)
        for number in range(len(CONTROL_PLANES)):
            self.start_writer(number)
        while time.monotonic() - self.begin < seconds:
            time.sleep(self.random.uniform(0.1, 0.7))
            action = self.random.choices(list(self.actions), list(self.actions.values()))[0]
            self.say(action.__name__)
            action()
            self.done[action.__name__] = self.done.get(action.__name__, 0) + 1
            self.check()
            if self.random.random() < 0.2:
                self.verify()

    def verify(self):
        seen = {}
        for writer in self.writers.values():
            seen[writer] = len(re.findall("^verified", writer.out.read_text("utf-8"), re.MULTILINE))
            writer.command("verify")
        for writer, times in seen.items():
            writer.wait_for(rf"^verified times={times + 1} .*\n")

    def finish(self):
        self.verify()
        for writer in self.writers.values():
            print(re.findall("^verified.*", writer.text(), re.MULTILINE)[-1])
            writer.command("quit")
            self.end(writer, 0)
        for program in (*self.memory.values(), *self.meta.values()):
            self.stop(program)
        print("done:", ", ".join(f"{name} {count}" for name, count in sorted(self.done.items())))

    def clean_up(self):
        for program in (self.command, *self.writers.values(), *self.memory.values(), *self.meta.values()):
            if program is not None:
                program.close()
        clean_fabric(self.fabric)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true", help="a line for each thing that is done")
    return run_seeded("chaos", __doc__.splitlines()[0],
                   lambda folder, seed, arguments: Chaos(folder, seed, arguments.verbose), parser)


if __name__ == "__main__":
    sys.exit(main())
