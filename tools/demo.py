#!/usr/bin/env python3
"""The demo: a store on this machine, loaded, served by compute nodes that get workers while they run.

tools/demo builds first and then runs this. Everything it starts and makes is gone when it ends: on success, after a
failed step, on SIGINT, SIGTERM and SIGHUP. Should it be killed, the kernel sends its children SIGTERM.
"""

import argparse
import contextlib
import ctypes
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "bin"
WORKLOADS = ROOT / "ycsb" / "workloads"
SHM = "/dev/shm"
READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15
PR_SET_PDEATHSIG = 1
LOAD_WORKERS = 2
EVENT_TIMEOUT_S = 30
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TTY = sys.stdout.isatty()


class Failure(Exception):
    """A step that failed: what happened, and the process whose log explains it."""

    def __init__(self, message, process=None):
        super().__init__(message)
        self.process = process


class Interrupted(BaseException):
    def __init__(self, signum):
        super().__init__(signum)
        self.signum = signum


class Screen:
    """Lines on stdout, the last of them rewritten in place on a terminal."""

    def __init__(self):
        self.open_line = False
        self.last_progress = 0.0

    def line(self, text=""):
        self.end()
        print(text, flush=True)

    def progress(self, text):
        if TTY:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", flush=True)
            self.open_line = True
        elif time.monotonic() - self.last_progress >= 1:
            self.last_progress = time.monotonic()
            print(text, flush=True)

    def end(self):
        if self.open_line:
            print("\r\x1b[K", end="")
            self.open_line = False


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A program of build/bin with its log; a thread collects the lines of its stdout."""

    def __init__(self, name, program, arguments, folder):
        self.name = name
        self.log = folder / (name.replace(" ", "-") + ".log")
        with self.log.open("wb") as log:
            # A session of its own, so that a Ctrl-C in the terminal reaches the demo alone, which then stops all in order.
            self.popen = subprocess.Popen([BIN / program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=log, text=True, cwd=ROOT, start_new_session=True,
                                          preexec_fn=die_with_parent)
        self.lines = []
        self.changed = threading.Condition()
        self.ended = False
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        for line in self.popen.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_line(self, wanted, after, timeout_s):
        """The first line from index `after` on for which wanted(line) is true, and its index. None: end or timeout."""
        deadline = time.monotonic() + timeout_s
        index = after
        with self.changed:
            while True:
                while index < len(self.lines):
                    if wanted(self.lines[index]):
                        return self.lines[index], index
                    index += 1
                if self.ended or time.monotonic() >= deadline:
                    return None
                self.changed.wait(0.1)

    def command(self, text):
        try:
            self.popen.stdin.write(text + "\n")
            self.popen.stdin.flush()
        except OSError:
            raise Failure(f"{self.name} takes no more commands: {self.describe_end()}", self) from None

    def describe_end(self):
        code = self.popen.poll()
        if code is None:
            return "it is still running"
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with status {code}"


class Demo:
    def __init__(self, options, screen):
        self.options = options
        self.screen = screen
        self.fabric = f"demo-{os.getpid()}-{time.time_ns() % 1_000_000}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="surgekv-demo-"))
        self.processes = []  # in the order they were started
        self.serving = []    # must not end before they are told to
        self.rows = []
        self.notes = []
        self.step = "start"
        self.records = 100_000 if options.quick else 1_000_000
        self.window_s = 1.5 if options.quick else 5.0

    # ---- processes

    def start(self, name, program, *arguments):
        process = Process(name, program, [*arguments, f"--fabric={self.fabric}"], self.folder)
        self.processes.append(process)
        return process

    def check_serving(self):
        for process in self.serving:
            if process.popen.poll() is not None:
                raise Failure(f"{process.name} ended while it was needed: {process.describe_end()}", process)

    def wait_line(self, process, wanted, after, what, timeout_s):
        """Waits for a line of `process` for which wanted(line), while all that must serve do. Returns (line, index)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = process.wait_line(wanted, after, 0.1)
            if found:
                return found
            if process.popen.poll() is not None:
                # What it said last may still be on its way to the collecting thread.
                found = process.wait_line(wanted, after, 1)
                if found:
                    return found
                raise Failure(f"{process.name} {what}: {process.describe_end()}", process)
            self.check_serving()
        raise Failure(f"{process.name} {what} within {timeout_s} s", process)

    def start_memnode(self, name, *arguments):
        process = self.start(name, "memnode", *arguments)
        self.wait_line(process, lambda line: line.startswith("ready"), 0, "did not become ready", READY_TIMEOUT_S)
        self.serving.append(process)

    def stop(self, process, clean):
        """Ends one process, politely first. Returns what went wrong, or None."""
        complaint = None
        if process.popen.poll() is None:
            process.popen.terminate()
            try:
                process.popen.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
                complaint = f"{process.name} did not stop within {STOP_TIMEOUT_S} s"
        with contextlib.suppress(OSError):
            process.popen.stdin.close()
        if clean and not complaint and process.popen.returncode != 0:
            complaint = f"{process.name}: {process.describe_end()}"
        return complaint

    def clean_up(self, clean):
        """Stops everything and removes what is left. Returns what an orderly end would not have left."""
        complaints = [self.stop(process, clean) for process in reversed(self.processes)]
        left = sorted(glob.glob(f"{SHM}/*{self.fabric}*"))
        if left and clean:
            complaints.append(f"left in {SHM}: {', '.join(os.path.basename(path) for path in left)}")
        if left:
            subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--clean"], capture_output=True, check=False)
        for path in glob.glob(f"{SHM}/*{self.fabric}*"):
            complaints.append(f"memnode --clean leaves {path}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return [complaint for complaint in complaints if complaint]

    # ---- steps

    def start_memory(self):
        self.step = "start a metadata server and two memory nodes"
        each = self.memory_of_each()
        self.screen.line(f"==> fabric {self.fabric}: a metadata server, two memory nodes of {each >> 20} MiB")
        self.start_memnode("metadata server", "--memory=0", "--metaserver")
        self.start_memnode("memory node 1", "--node=1", f"--memory={each >> 20}M")
        self.start_memnode("memory node 2", "--node=2", f"--memory={each >> 20}M")

    def memory_of_each(self):
        wanted = (256 if self.options.quick else 1024) << 20
        room = os.statvfs(SHM)
        free = room.f_bavail * room.f_frsize
        least = (128 if self.options.quick else 384) << 20
        while 2 * wanted > free * 0.9 and wanted // 2 >= least:
            wanted //= 2
        return wanted

    def load(self):
        self.step = f"load {self.records} records"
        self.screen.line(f"==> loading {self.records:,} records")
        report = self.folder / "load.json"
        arguments = ["load", "-P", WORKLOADS / "workloadc", "-p", f"recordcount={self.records}",
                     f"--json={report}", f"--workers={LOAD_WORKERS}"]
        if self.options.plant_mismatch:
            arguments.append("--plant_mismatch")
        process = self.start("load", "ycsb", *arguments)
        while process.popen.poll() is None:
            self.check_serving()
            self.screen.progress(f"    {last_line(process.log) or '...'}")
            time.sleep(0.1)
        self.screen.end()
        if process.popen.returncode != 0:
            raise Failure(f"ycsb load: {process.describe_end()}", process)
        result = json.loads(report.read_text("utf-8"))
        latency = result["by_operation"]["INSERT"]["latency_us"]
        self.rows.append(Row("load", result["workers"], result["throughput_ops"], latency["p50"], latency["p99"], None,
                             result["failed_operations"]))
        if result["operations"] != self.records:
            raise Failure(f"ycsb load reports {result['operations']} records instead of {self.records}", process)

    def run_workload(self, letter):
        """Serves a workload from two compute nodes: one worker first, then one more while it runs."""
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
        self.note_bootstrap(letter, summaries[1])

    def event(self, process, name, after, what):
        """The first JSON line of that event from line `after` on, and its index."""
        line, index = self.wait_line(process, lambda text: event_name(text) == name, after, what, EVENT_TIMEOUT_S)
        return json.loads(line), index

    def statuses(self, nodes):
        """What each node did since it was asked last."""
        marks = [len(node.lines) for node in nodes]
        for node in nodes:
            node.command("status")
        return [self.event(node, "status", mark, "did not answer `status`")[0] for node, mark in zip(nodes, marks)]

    def window(self, phase, nodes, workers):
        """Measures for window_s: a row of the table."""
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
            if summary["errors"] > 0 or node.popen.returncode != 0:
                raise Failure(f"{node.name}: {summary['errors']:,} failed operations, {node.describe_end()}", node)
        if sum(summary["verified"] for summary in summaries) == 0:
            raise Failure("no value was verified", nodes[0])

    def note_bootstrap(self, letter, summary):
        for worker in summary["workers"]:
            if worker["total_us"] is None:
                raise Failure(f"the worker added under workload {letter.upper()} never served a reply")
            self.notes.append(f"{letter.upper()}: the worker added to compute node 2 served its first reply after "
                              f"{worker['total_us']:,.0f} us (thread {worker['thread_us']:,.0f}, client "
                              f"{worker['client_us']:,.0f}, first reply {worker['first_reply_us']:,.0f})")

    def note_memory_nodes(self):
        """Called when they have stopped: their last line says what they used."""
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
        lines = [header] + [row.cells() for row in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
        self.screen.line()
        for line in lines:
            cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
            self.screen.line("  ".join(cells))
        self.screen.line()
        for note in self.notes:
            self.screen.line(note)
        self.screen.line("Measured on this machine over the software NIC; p50 and p99 of the slower compute node.")

    def run(self):
        self.start_memory()
        self.load()
        self.run_workload("c")
        self.run_workload("a")


class Row:
    def __init__(self, phase, workers, ops_per_s, p50_us, p99_us, verified, failures):
        self.phase, self.workers, self.ops_per_s = phase, workers, ops_per_s
        self.p50_us, self.p99_us, self.verified, self.failures = p50_us, p99_us, verified, failures

    def cells(self):
        verified = "-" if self.verified is None else f"{self.verified:,}"
        return (self.phase, str(self.workers), f"{self.ops_per_s:,.0f}", f"{self.p50_us:.1f}", f"{self.p99_us:.1f}",
                verified, f"{self.failures:,}")


def event_name(line):
    try:
        return json.loads(line).get("event")
    except (ValueError, AttributeError):
        return None


def last_line(path):
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 400))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines[:-1]) if line.strip()), "")


def show_log(screen, process):
    text = process.log.read_text("utf-8", "replace").rstrip()
    problems = [line for line in process.lines if event_name(line) in ("problem", "error")]
    screen.line(f"---- log of {process.name}")
    for line in (text.splitlines() + problems)[-40:] or ["(empty)"]:
        screen.line(line)
    screen.line("----")


def interrupt(signum, _frame):
    raise Interrupted(signum)


def main():
    parser = argparse.ArgumentParser(prog="tools/demo", description="A store on this machine; see tools/demo --help.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plant-mismatch", action="store_true")
    options = parser.parse_args()

    screen = Screen()
    demo = Demo(options, screen)
    status = 0
    for signum in SIGNALS:
        signal.signal(signum, interrupt)
    begin = time.monotonic()
    try:
        demo.run()
    except Failure as failure:
        status = 1
        screen.line(f"FAILED: {demo.step}: {failure}")
        if failure.process:
            show_log(screen, failure.process)
    except Interrupted as stop:
        status = 128 + stop.signum
        screen.line(f"stopped by {signal.Signals(stop.signum).name}, cleaning up")
    finally:
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        complaints = demo.clean_up(clean=status == 0)
        shutil.rmtree(demo.folder, ignore_errors=True)
    for complaint in complaints:
        status = status or 1
        screen.line(f"FAILED: clean up: {complaint}")
    if status == 0:
        demo.note_memory_nodes()
        demo.print_table()
        screen.line(f"Every value read was one written for its key; nothing is left behind. {time.monotonic() - begin:.0f} s.")
    return status


if __name__ == "__main__":
    sys.exit(main())
