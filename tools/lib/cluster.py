"""The common part of tools/demo, tools/spike and tools/reproduce: programs of build/bin on a fabric of their own.

Everything a Cluster starts and makes is gone when it ends: on success, after a failed step, on SIGINT, SIGTERM and
SIGHUP (run_story). If it is killed, the kernel sends its children SIGTERM.
"""

import contextlib
import ctypes
import dataclasses
import glob
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "bin"
WORKLOADS = ROOT / "ycsb" / "workloads"
SHM = "/dev/shm"
READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15
EVENT_TIMEOUT_S = 30
PR_SET_PDEATHSIG = 1
LOAD_WORKERS = 2
REDIS_CONNECTIONS = 64
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TTY = sys.stdout.isatty()


class Failure(Exception):
    """A step failed. Holds what happened, and the process whose log explains it."""

    def __init__(self, message, process=None):
        super().__init__(message)
        self.process = process


class Interrupted(BaseException):
    def __init__(self, signum):
        super().__init__(signum)
        self.signum = signum


class Screen:
    """Prints lines on stdout. On a terminal the last one is rewritten in place."""

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


@dataclasses.dataclass(frozen=True)
class Burst:
    """A load that rises within a moment and falls again, and the workers that may serve it."""

    base: float        # requests a second before and after the spike
    peak: float        # requests a second in the spike
    capacity: float    # requests a second that a worker is given
    max_workers: int
    slo_us: int        # queueing delay that the autoscaler is to keep
    start_s: float     # when the spike begins
    length_s: float    # how long it lasts
    end_s: float       # when the run ends

    def covers(self, time_s):
        return self.start_s <= time_s < self.start_s + self.length_s


def begin_child():
    """Runs in a child: gives it the default signals, whatever is ignored here, and lets it end with its parent."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def machine():
    """The machine and the commit that are measured."""
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                  if line.startswith("model name")), platform.machine())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release(), "commit": commit.stdout.strip()}


def cpu_times():
    """Busy and all CPU time of the machine so far, in ticks."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


class Process:
    """A program of build/bin with its log; a thread collects the lines of its stdout."""

    def __init__(self, name, program, arguments, folder):
        self.name = name
        self.log = folder / (name.replace(" ", "-") + ".log")
        with self.log.open("wb") as log:
            # A session of its own, so that a Ctrl-C in the terminal reaches only this program, which then stops all in order.
            self.popen = subprocess.Popen([BIN / program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=log, text=True, cwd=ROOT, start_new_session=True,
                                          preexec_fn=begin_child)
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


class Cluster:
    """A fabric with its processes. `name` is part of the fabric's name, and of the name of the folder with the logs.
    `provider`: the value of --rnic; if its fabrics have an address, this one gets an address of this machine."""

    def __init__(self, name, screen, provider="sw"):
        self.screen = screen
        self.provider_flags = [] if provider == "sw" else [f"--rnic={provider}", f"--fabric_address=localhost:{free_port()}"]
        self.fabric = f"{name}-{os.getpid()}-{time.time_ns() % 1_000_000}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"surgekv-{name}-"))
        self.processes = []  # in the order they were started
        self.serving = []    # must not end before they are told to
        self.step = "start"

    # ---- processes

    def start(self, name, program, *arguments, fabric=True):
        # An interrupt waits until the process is in the list, or clean_up() would not know of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            flags = (f"--fabric={self.fabric}", *self.provider_flags) if fabric else ()
            process = Process(name, program, [*arguments, *flags], self.folder)
            self.processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process

    def check_serving(self):
        for process in self.serving:
            if process.popen.poll() is not None:
                raise Failure(f"{process.name} ended while it was needed: {process.describe_end()}", process)

    def wait_line(self, process, wanted, after, what, timeout_s):
        """Waits for a line of `process` for which wanted(line). Fails if a process of `serving` ends. Returns (line, index)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = process.wait_line(wanted, after, 0.1)
            if found:
                return found
            if process.popen.poll() is not None:
                # Its last line may still be on its way to the collecting thread.
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
        """Ends one process: by SIGTERM, else by SIGKILL. Returns what went wrong, or None."""
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

    def shared_memory(self):
        """Files of this fabric, and not of one whose name merely contains this one's."""
        return sorted(glob.glob(f"{SHM}/surgekv-{os.geteuid()}-{self.fabric}.*"))

    def clean_up(self, clean):
        """Stops everything and removes what is left. Returns complaints about what a clean end would not leave."""
        complaints = [self.stop(process, clean) for process in reversed(self.processes)]
        left = self.shared_memory()
        if left and clean:
            complaints.append(f"left in {SHM}: {', '.join(os.path.basename(path) for path in left)}")
        if left:
            subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--clean"], capture_output=True, check=False)
        # Files that are left now are in use by a living process, and must not be removed by their names.
        complaints += [f"memnode --clean leaves {path}" for path in self.shared_memory()]
        return [complaint for complaint in complaints if complaint]

    @staticmethod
    def memory_of_each(quick):
        wanted = (256 if quick else 1024) << 20
        room = os.statvfs(SHM)
        free = room.f_bavail * room.f_frsize
        least = (128 if quick else 384) << 20
        while 2 * wanted > free * 0.9 and wanted // 2 >= least:
            wanted //= 2
        return wanted

    def load(self, records, *arguments):
        """Loads `records` records. Returns what ycsb reports."""
        self.step = f"load {records} records"
        self.screen.line(f"==> loading {records:,} records")
        report = self.folder / "load.json"
        process = self.start("load", "ycsb", "load", "-P", WORKLOADS / "workloadc", "-p", f"recordcount={records}",
                             f"--json={report}", f"--workers={LOAD_WORKERS}", *arguments)
        while process.popen.poll() is None:
            self.check_serving()
            self.screen.progress(f"    {last_line(process.log) or '...'}")
            time.sleep(0.1)
        self.screen.end()
        if process.popen.returncode != 0:
            raise Failure(f"ycsb load: {process.describe_end()}", process)
        result = json.loads(report.read_text("utf-8"))
        if result["operations"] != records:
            raise Failure(f"ycsb load reports {result['operations']} records instead of {records}", process)
        return result

    def start_front_end(self, name, burst, records, requests_file, *arguments):
        """Starts a computenode that serves the burst with workers that its autoscaler adds and retires. Returns it when it
        is ready.

        It writes what became of each request to requests_file, and ends by itself.
        """
        node = self.start(name, "computenode", "-P", WORKLOADS / "workloadb", "-p", f"recordcount={records}",
                          "-p", "operationcount=0", "--arrivals=poisson", "--in_flight=1",
                          f"--profile=burst:{burst.base},{burst.peak},{burst.start_s},{burst.length_s},{burst.end_s}",
                          f"--worker_capacity={burst.capacity}", "--autoscale", f"--max_workers={burst.max_workers}",
                          f"--slo_us={burst.slo_us}", "--scale_in_after_s=0.5", f"--requests_file={requests_file}",
                          *arguments)
        self.event(node, "ready", 0, "did not become ready")
        return node

    def start_redis_front_end(self, name, burst, *arguments):
        """The same for clients of Redis, whose requests it does not know in advance. It ends when it is told to."""
        node = self.start(name, "computenode", "--redis=127.0.0.1:0", f"--worker_capacity={burst.capacity}", "--autoscale",
                          f"--max_workers={burst.max_workers}", f"--slo_us={burst.slo_us}", "--scale_in_after_s=0.5",
                          *arguments)
        node.address = self.event(node, "ready", 0, "did not become ready")[0]["redis"]
        return node

    def start_redis_clients(self, node, burst, records, requests_file, seed=1):
        """Starts clients whose requests are the burst, and waits until it begins. Returns them, and the front end's time
        then. They write what became of each request to requests_file, and end by themselves."""
        clients = self.start(f"clients of {node.name}", ROOT / "bench/common/redis_clients.py", node.address,
                             f"--records={records}", f"--connections={REDIS_CONNECTIONS}", f"--base={burst.base}",
                             f"--peak={burst.peak}", f"--start={burst.start_s}", f"--length={burst.length_s}",
                             f"--end={burst.end_s}", f"--seed={seed}", f"--output={requests_file}", fabric=False)
        self.event(clients, "begin", 0, "did not begin")
        mark = len(node.lines)
        node.command("status")
        return clients, self.event(node, "status", mark, "did not answer `status`")[0]["time_s"]

    def stop_redis_front_end(self, node, clients, begin_s):
        """The summary of both when the clients have ended, with times from begin_s on."""
        said, _ = self.event(clients, "summary", 0, "did not end their work")
        clients.popen.wait(READY_TIMEOUT_S)
        node.command("quit")
        summary, _ = self.event(node, "summary", 0, "did not end its work")
        node.popen.wait(READY_TIMEOUT_S)
        for worker in summary["workers"]:
            for time_s in ("wanted_s", "ready_s", "ended_s"):
                if worker[time_s] is not None:
                    worker[time_s] -= begin_s
        return {**summary, **said, "deaths": 0}

    def event(self, process, name, after, what):
        """The first JSON line of that event from line `after` on, and its index."""
        line, index = self.wait_line(process, lambda text: event_name(text) == name, after, what, EVENT_TIMEOUT_S)
        return json.loads(line), index


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


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


def run_story(cluster, screen, tell):
    """Runs tell(), and cleans up however it ends. Returns the exit status."""
    status = 0
    for signum in SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # by nohup, or in the background of a script
            signal.signal(signum, interrupt)
    try:
        tell()
    except Failure as failure:
        status = 1
        screen.line(f"FAILED: {cluster.step}: {failure}")
        if failure.process:
            show_log(screen, failure.process)
    except BrokenPipeError:  # the reader of the output has gone
        status = 128 + signal.SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Interrupted as stop:
        status = 128 + stop.signum
        screen.line(f"stopped by {signal.Signals(stop.signum).name}, cleaning up")
    finally:
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        complaints = cluster.clean_up(clean=status == 0)
        shutil.rmtree(cluster.folder, ignore_errors=True)
    for complaint in complaints:
        status = status or 1
        screen.line(f"FAILED: clean up: {complaint}")
    return status
