#!/usr/bin/env python3
"""The programs as they are operated: metrics, health, `surge status`, and their logs, on a fabric with load.

Usage: operating_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import glob
import json
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = ROOT / "build" / "bin"
WORKLOADS = ROOT / "ycsb" / "workloads"
PAGE = ROOT / "docs" / "operating.md"
PATIENCE_S = 90
RECORDS = 2000

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
KINDS = {"counter", "gauge", "histogram", "summary", "untyped"}


class Exposition:
    """Parses Prometheus's text format 0.0.4, strictly: whatever a parser might not accept is an error."""

    def __init__(self, text):
        self.families = {}  # name -> kind
        self.samples = {}   # (name, labels as a sorted tuple) -> value
        if not text.endswith("\n"):
            raise ValueError("the last line has no end")
        current, helped = None, set()
        for line in text[:-1].split("\n"):
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                if not re.fullmatch(NAME, name) or name in helped or len(line.split(" ", 3)) != 4:
                    raise ValueError(f"HELP: {line}")
                helped.add(name)
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                if name in self.families or kind not in KINDS or name not in helped:
                    raise ValueError(f"TYPE: {line}")
                self.families[name] = kind
                current = name
            else:
                self._sample(line, current)
        for name, kind in self.families.items():
            if kind == "histogram":
                self._check_histogram(name)

    def _sample(self, line, current):
        match = SAMPLE.fullmatch(line)
        if not match or current is None:
            raise ValueError(f"not a sample: {line}")
        name, labels, value = match.groups()
        kind = self.families[current]
        suffixes = ["_bucket", "_sum", "_count"] if kind == "histogram" else [""]
        if name not in [current + suffix for suffix in suffixes]:
            raise ValueError(f"{line}: stands among the samples of {current}")
        if kind == "counter" and not name.endswith("_total"):
            raise ValueError(f"{name}: a counter's name ends with _total")
        pairs = tuple(sorted(re.findall(LABEL, labels or "")))
        if len({pair.split("=")[0] for pair in pairs}) != len(pairs) or (name, pairs) in self.samples:
            raise ValueError(f"{line}: twice")
        number = float(value)
        if math.isnan(number) or (number < 0 and kind != "gauge"):
            raise ValueError(f"{line}: not a number that counts something")
        self.samples[(name, pairs)] = number

    def _check_histogram(self, name):
        series = {}
        for (sample, pairs), value in self.samples.items():
            if sample != name + "_bucket":
                continue
            bounds = [pair for pair in pairs if pair.startswith('le="')]
            rest = tuple(pair for pair in pairs if not pair.startswith('le="'))
            series.setdefault(rest, []).append((float(bounds[0][4:-1]), value))
        if not series:
            raise ValueError(f"{name} has no buckets")
        for rest, buckets in series.items():
            buckets.sort()
            counts = [count for _, count in buckets]
            if counts != sorted(counts) or buckets[-1][0] != math.inf:
                raise ValueError(f"{name}{rest}: buckets {buckets}")
            if self.samples[(name + "_count", rest)] != counts[-1] or (name + "_sum", rest) not in self.samples:
                raise ValueError(f"{name}{rest}: _count or _sum")

    def value(self, name, **labels):
        return self.samples[(name, tuple(sorted(f'{key}="{value}"' for key, value in labels.items())))]

    def counters(self):
        names = {name for name, kind in self.families.items() if kind in ("counter", "histogram")}
        return {key: value for key, value in self.samples.items()
                if key[0] in names or re.sub("_(bucket|count)$", "", key[0]) in names}


class Program:
    """A program of build/bin, with its stdout and log in files."""

    def __init__(self, test, program, *arguments):
        self.test = test
        self.out = test.folder / f"{program}-{time.monotonic_ns()}.out"
        self.log = self.out.with_suffix(".log")
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.popen = subprocess.Popen([BIN / program, *arguments], stdin=subprocess.PIPE, stdout=out, stderr=log,
                                          cwd=ROOT, start_new_session=True)
        test.programs.append(self)

    def text(self):
        return f"{self.out.read_text('utf-8', 'replace')}\n---- log\n{self.log.read_text('utf-8', 'replace')}"

    def wait_for(self, pattern, path=None):
        """Waits until the file (its stdout) has a match, which is returned."""
        def look():
            found = re.search(pattern, (path or self.out).read_text("utf-8", "replace"), re.MULTILINE)
            if not found and self.popen.poll() is not None:
                found = re.search(pattern, (path or self.out).read_text("utf-8", "replace"), re.MULTILINE)
                self.test.assertTrue(found, f"ended with {self.popen.returncode}, no {pattern!r}\n{self.text()}")
            return found
        return self.test.wait_for(look, lambda: f"no {pattern!r}\n{self.text()}")

    def address(self):
        return self.wait_for(r"metrics at (\S+)", self.log).group(1)

    def command(self, text):
        self.popen.stdin.write(text.encode() + b"\n")
        self.popen.stdin.flush()

    def stop(self):
        self.popen.terminate()
        return self.popen.wait(PATIENCE_S)

    def kill(self):
        self.popen.kill()
        self.popen.wait()


def a_worker_of(computenode):
    """The pid of a worker process, as soon as one is reported."""
    def look():
        computenode.command("status")
        statuses = re.findall(r'^.*"event":"status".*$', computenode.out.read_text("utf-8", "replace"), re.MULTILINE)
        return statuses and json.loads(statuses[-1])["pids"]
    return computenode.test.wait_for(look, lambda: f"no worker's pid\n{computenode.text()}")[0]


class OperatingTest(unittest.TestCase):
    def setUp(self):
        self.fabric = f"operating-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        scratch = tempfile.TemporaryDirectory(prefix="surgekv-operating-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.programs = []
        self.addCleanup(self.clean_up)

    def clean_up(self):
        for program in reversed(self.programs):
            if program.popen.poll() is None:
                program.kill()
            program.popen.stdin.close()
        subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--clean"], capture_output=True, check=False)
        self.assertEqual(glob.glob(f"/dev/shm/*{self.fabric}*"), [])

    # ---- what tests are made of

    def wait_for(self, condition, message):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            result = condition()
            if result:
                return result
            time.sleep(0.02)
        return self.fail(message())

    def start(self, program, *arguments):
        return Program(self, program, f"--fabric={self.fabric}", *arguments)

    def start_memnode(self, node, *arguments, metrics=True):
        flags = ["--metrics=127.0.0.1:0"] if metrics else []
        memnode = self.start("memnode", f"--node={node}", "--memory=64M", "--hugepages=off", *flags, *arguments)
        memnode.wait_for("^ready ")
        return memnode

    def start_computenode(self, *arguments):
        computenode = self.start("computenode", "-P", WORKLOADS / "workloadb", "-p", f"recordcount={RECORDS}", "-p",
                                 "operationcount=0", "--in_flight=1", "--metrics=127.0.0.1:0", *arguments)
        computenode.wait_for('"event":"ready"')
        return computenode

    def load(self):
        done = subprocess.run([BIN / "ycsb", "load", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloadb", "-p",
                               f"recordcount={RECORDS}"], capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def ask(self, address, path):
        """(HTTP status, body)"""
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def scrape(self, address):
        status, text = self.ask(address, "/metrics")
        self.assertEqual(status, 200)
        return Exposition(text)

    def wait_for_health(self, address, status, pattern):
        """Waits until /healthz says so."""
        seen = []

        def healthy():
            seen[:] = [self.ask(address, "/healthz")]
            return seen[0][0] == status and re.fullmatch(pattern, seen[0][1].rstrip("\n"))
        self.wait_for(healthy, lambda: f"/healthz is {seen}, not {status} {pattern}")

    def surge(self, *arguments):
        return subprocess.run([BIN / "surge", "status", f"--fabric={self.fabric}", *arguments], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)

    def status(self):
        done = self.surge("--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def nodes(self, **wanted):
        return [node for node in self.status()["nodes"] if all(node[key] == value for key, value in wanted.items())]

    # ---- metrics

    def check_documented(self, *expositions):
        """What is exposed is what the page lists, by name and type, and the other way round."""
        rows = re.findall(r"^\| `([a-z0-9_]+)`(?:, `([a-z_, ]+)`)? \| (counter|gauge|histogram) \|",
                          PAGE.read_text("utf-8"), re.MULTILINE)
        listed = {name: kind for name, _, kind in rows}
        store = {f"surgekv_store_{name.strip('` ')}_total": "counter" for line in
                 re.findall(r"^`surgekv_store_\*_total`: (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
                 for name in line.split(",")}
        exposed = {}
        for exposition in expositions:
            exposed.update(exposition.families)
        self.assertEqual(exposed, {**listed, **store})

    def test_threads_count_what_the_program_reports(self):
        memnode = self.start_memnode(1, "--metaserver")
        self.load()
        computenode = self.start_computenode("--workers=2", "--target=1000")
        address = computenode.address()
        self.wait_for_health(address, 200, "ok")
        self.wait_for(lambda: self.scrape(address).value("surgekv_requests_total") > 500, lambda: computenode.text())
        before = self.scrape(address)
        computenode.command("workers 3")
        self.wait_for(lambda: self.scrape(address).value("surgekv_workers", state="serving") == 3,
                      lambda: computenode.text())
        self.wait_for(lambda: self.scrape(address).value("surgekv_worker_start_seconds_count", part="first_reply") == 3,
                      lambda: computenode.text())
        computenode.command("workers 0")
        self.wait_for_health(address, 503, "no worker serves")
        self.wait_for(lambda: self.scrape(address).value("surgekv_workers", state="draining") == 0,
                      lambda: computenode.text())
        still = self.scrape(address)
        for key, value in before.counters().items():
            self.assertGreaterEqual(still.counters()[key], value, key)
        self.assertEqual(still.value("surgekv_workers_started_total"), 3)
        self.assertEqual(still.value("surgekv_workers_retired_total"), 3)
        self.assertEqual(still.value("surgekv_workers_failed_total"), 0)
        self.assertEqual(still.value("surgekv_connection_memory_bytes"), 0)
        self.assertGreater(before.value("surgekv_connection_memory_bytes"), 0)
        self.assertGreater(still.value("surgekv_worker_cpu_seconds_total"), 0)
        computenode.command("quit")
        self.assertEqual(computenode.popen.wait(PATIENCE_S), 0, computenode.text())
        summary = json.loads(computenode.wait_for('^.*"event":"summary".*$').group(0))
        self.assertEqual(still.value("surgekv_requests_total"), summary["ops"])
        self.assertEqual(still.value("surgekv_requests_failed_total"), summary["errors"])
        self.assertEqual(still.value("surgekv_values_verified_total"), summary["verified"])
        self.assertEqual(still.value("surgekv_values_mismatched_total"), 0)
        self.assertEqual(still.value("surgekv_request_latency_seconds_count"), summary["ops"])
        for name in ("operations", "round_trips", "operation_round_trips", "cas_failures", "restarts", "splits"):
            self.assertEqual(still.value(f"surgekv_store_{name}_total"), summary["client_stats"][name], name)
        for part in ("client", "connect", "register", "lanes", "first_reply", "bootstrap"):
            self.assertEqual(still.value("surgekv_worker_start_seconds_count", part=part), 3, part)
        self.assertEqual(memnode.stop(), 0, memnode.text())

    def test_processes_count_too_also_killed_ones_and_counters_never_go_down(self):
        memnode = self.start_memnode(1, "--metaserver")
        self.load()
        # Long enough that what is asked at the end is asked while it serves.
        computenode = self.start_computenode("--workers=2", "--worker_kind=fork", "--standby=1",
                                             "--profile=step:500@0,0@4,end@40")
        address = computenode.address()
        self.check_documented(self.scrape(memnode.address()), self.scrape(address))
        highest, expositions = {}, 0
        killed = False

        def idle():
            nonlocal highest, expositions, killed
            exposition = self.scrape(address)
            expositions += 1
            counters = exposition.counters()
            for key, value in highest.items():
                self.assertGreaterEqual(counters[key], value, key)
            highest = counters
            if not killed and exposition.value("surgekv_store_operations_total") > 200:
                os.kill(a_worker_of(computenode), signal.SIGKILL)
                killed = True
            return (exposition.value("surgekv_requests_due_total") == 2000 and
                    exposition.value("surgekv_request_latency_seconds_count") == 2000 and exposition)
        exposition = self.wait_for(idle, lambda: computenode.text())
        self.assertTrue(killed)
        self.assertGreater(expositions, 5)
        self.assertEqual(exposition.value("surgekv_workers_failed_total"), 1)
        self.assertEqual(exposition.value("surgekv_workers_restarted_total"), 1)
        self.assertEqual(exposition.value("surgekv_workers_started_total"), 3)
        self.assertEqual(exposition.value("surgekv_requests_failed_total"), 0)
        self.assertEqual(exposition.value("surgekv_requests_backlog"), 0)
        self.assertGreaterEqual(exposition.value("surgekv_requests_total"), 2000)
        # What the killed one had not told yet is lost with it: a quarter of a second's operations.
        self.assertGreater(exposition.value("surgekv_store_operations_total"), 1500)
        computenode.command("quit")
        self.assertEqual(computenode.popen.wait(PATIENCE_S), 0, computenode.text())
        summary = json.loads(computenode.wait_for('^.*"event":"summary".*$').group(0))
        self.assertEqual((summary["due"], summary["replied"], summary["deaths"], summary["replaced"]),
                         (2000, 2000, 1, 1))
        self.assertEqual(exposition.value("surgekv_values_verified_total"), summary["verified"])
        # Workers log like everybody.
        log = computenode.log.read_text("utf-8")
        self.assertRegex(log, r"(?m)^I\d{8} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] worker \d+ has ended: \d+ requests")

    def test_a_memory_node_tells_what_its_pool_holds(self):
        memnode = self.start_memnode(1, "--metaserver")
        address = memnode.address()
        empty = self.scrape(address)
        self.load()
        full = self.scrape(address)
        self.assertGreater(full.value("surgekv_memory_bytes", use="blocks"), 0)
        self.assertLess(full.value("surgekv_memory_bytes", use="free"), empty.value("surgekv_memory_bytes", use="free"))
        uses = ("free", "blocks", "tables", "large", "large_rest", "reserved")
        self.assertEqual(sum(full.value("surgekv_memory_bytes", use=use) for use in uses), 64 << 20)
        self.assertEqual(full.value("surgekv_memory_pool_bytes"), 64 << 20)
        self.assertEqual(full.value("surgekv_node_info", fabric=self.fabric, node="1", role="memory", home="yes",
                                    metaserver="yes"), 1)
        self.assertAlmostEqual(full.value("process_start_time_seconds"), time.time(), delta=600)
        self.assertGreater(full.value("process_resident_memory_bytes"), 1 << 20)
        (node,) = self.nodes(id=1)
        self.assertEqual(node["memory"]["free_bytes"], full.value("surgekv_memory_bytes", use="free"))
        self.assertEqual(node["metrics"], address)
        self.assertEqual(memnode.stop(), 0)

    # ---- health

    def test_health_follows_a_drain_and_back(self):
        self.start_memnode(1, "--metaserver")
        second = self.start_memnode(2)
        address = second.address()
        self.wait_for_health(address, 200, "ok")
        drain = subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--drain=2"], capture_output=True,
                               check=False)
        self.assertEqual(drain.returncode, 0, drain.stderr)
        # At once, whatever the node itself has announced.
        self.assertIn(self.nodes(id=2)[0]["state"], ("draining", "drained"))
        self.wait_for_health(address, 503, "draining|drained")
        self.assertEqual(self.scrape(address).value("surgekv_memory_state", state="in_use"), 0)
        self.assertEqual(self.scrape(address).value("surgekv_healthy"), 0)
        undrain = subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--undrain=2"], capture_output=True,
                                 check=False)
        self.assertEqual(undrain.returncode, 0, undrain.stderr)
        self.assertEqual(self.nodes(id=2)[0]["state"], "serving")
        self.wait_for_health(address, 200, "ok")

    def test_health_without_a_metadata_server_and_with_another(self):
        meta = self.start("memnode", "--memory=0", "--metaserver", "--metrics=127.0.0.1:0")
        meta.wait_for("^ready ")
        memnode = self.start_memnode(1)
        address = memnode.address()
        self.wait_for_health(address, 200, "ok")
        meta.kill()
        self.wait_for_health(address, 503, "not published at a metadata server: .+")
        done = self.surge()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("metadata server", done.stderr)
        meta = self.start("memnode", "--memory=0", "--metaserver")
        meta.wait_for("^ready ")
        self.wait_for_health(address, 200, "ok")
        self.wait_for(lambda: self.nodes(id=1, state="serving"), lambda: self.surge().stdout)
        meta.kill()
        self.wait_for_health(address, 503, "not published at a metadata server: .+")
        begin = time.monotonic()
        self.assertEqual(memnode.stop(), 0, memnode.text())
        self.assertLess(time.monotonic() - begin, PATIENCE_S / 2)

    def test_workers_that_cannot_start_make_it_ill_and_say_why(self):
        memnode = self.start_memnode(1, "--metaserver")
        self.load()
        computenode = self.start_computenode("--workers=1", "--worker_kind=fork", "--standby=0",
                                             "--profile=constant:10,600", "--open_timeout_ms=500")
        address = computenode.address()
        self.wait_for_health(address, 200, "ok")
        memnode.kill()
        os.kill(a_worker_of(computenode), signal.SIGKILL)
        self.wait_for_health(address, 503, "workers cannot start: .+")
        exposition = self.scrape(address)
        self.assertGreaterEqual(exposition.value("surgekv_workers_failed_total"), 2)
        self.assertGreaterEqual(exposition.value("surgekv_workers_restarted_total"), 1)
        self.assertEqual(exposition.value("surgekv_healthy"), 0)
        self.assertEqual(computenode.popen.wait(PATIENCE_S), 1, computenode.text())  # it has given up
        self.assertRegex(computenode.log.read_text("utf-8"), r"(?m)^E.*\] a worker cannot open the store: ")

    def test_a_compute_node_without_a_metadata_server_is_ill(self):
        memnode = self.start_memnode(1, "--metaserver")
        self.load()
        computenode = self.start_computenode("--workers=1", "--target=100", "--operation_timeout_ms=500")
        address = computenode.address()
        self.wait_for_health(address, 200, "ok")
        memnode.kill()
        self.wait_for_health(address, 503, "not announced at a metadata server: .+")
        self.assertEqual(computenode.stop(), 1, computenode.text())

    # ---- the endpoint's end

    def test_an_address_in_use_is_an_error_that_leaves_nothing(self):
        first = self.start_memnode(1, "--metaserver")
        self.load()
        address = first.address()
        for program, arguments in (("memnode", ["--node=2", "--memory=64M"]),
                                   ("computenode", ["-P", WORKLOADS / "workloadc"])):
            done = subprocess.run([BIN / program, f"--fabric={self.fabric}", f"--metrics={address}", *arguments],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
                                  cwd=ROOT, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"--metrics={address}: the address is in use by another program", done.stderr)
        self.assertEqual([node["id"] for node in self.status()["nodes"]], [1])
        done = subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", "--node=2", "--memory=64M", "--metrics=9464"],
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--metrics=9464: expected HOST:PORT", done.stderr)

    def test_a_stop_while_it_is_scraped_is_clean(self):
        memnode = self.start_memnode(1, "--metaserver")
        address = memnode.address()
        host, port = address.split(":")
        stopping = threading.Event()
        answers, failures = [], []

        def scrape_on():
            while not stopping.is_set():
                try:
                    answers.append(self.ask(address, "/metrics")[0])
                except OSError:  # it has ended
                    failures.append(None)
        threads = [threading.Thread(target=scrape_on) for _ in range(4)]
        with socket.create_connection((host, int(port))) as silent:
            for thread in threads:
                thread.start()
            self.wait_for(lambda: len(answers) > 20, lambda: f"{len(answers)} answers")
            silent.sendall(b"GET /metr")
            self.assertEqual(memnode.stop(), 0, memnode.text())
        stopping.set()
        for thread in threads:
            thread.join()
        self.assertEqual(set(answers), {200})
        self.assertIn("stopped ", memnode.out.read_text("utf-8"))

    # ---- surge status

    def test_status_shows_living_and_dead_nodes(self):
        self.start_memnode(1, "--metaserver")
        second = self.start_memnode(2, metrics=False)
        self.load()
        computenode = self.start_computenode("--workers=2", "--worker_kind=exec", "--profile=constant:200,600")
        self.wait_for(lambda: len(self.nodes(role="compute", state="serving")) == 1, lambda: self.surge().stdout)
        # More than of a second in which it began at the very end.
        status = self.wait_for(lambda: (found := self.status())["operations_per_s"] > 10 and found,
                               lambda: self.surge().stdout)
        self.assertEqual(sorted(status), sorted(["fabric", "nodes", "memory", "workers", "clients",
                                                 "operations_per_s", "problems"]))
        self.assertEqual((status["fabric"], status["workers"], status["problems"]), (self.fabric, 2, []))
        self.assertEqual(status["clients"], 2)
        self.assertEqual([(node["id"], node["role"], node["home"]) for node in status["nodes"][:2]],
                         [(1, "memory", True), (2, "memory", False)])
        self.assertIsNone(status["nodes"][1]["metrics"])
        self.assertEqual(status["memory"]["total_bytes"], 128 << 20)
        compute = status["nodes"][2]
        self.assertEqual(compute["metrics"], computenode.address())
        self.assertEqual(compute["pid"], computenode.popen.pid)
        self.assertEqual(compute["workers"], {"wanted": 2, "starting": 0, "serving": 2, "draining": 0})
        self.assertEqual(compute["operations_per_s"], status["operations_per_s"])
        text = self.surge()
        self.assertEqual(text.returncode, 0)
        self.assertRegex(text.stdout, r"(?m)^1 +memory,home,metadata +serving +\S+ \S+ +\S+ +\S+ +\d+% +- +- +127\.0")
        self.assertRegex(text.stdout, rf"(?m)^{compute['id']} +compute +serving .* 2/2 +\S+ +127\.0\.0\.1:\d+$")

        # A reader that is at it when they die.
        with subprocess.Popen([BIN / "surge", "status", f"--fabric={self.fabric}", "--watch", "--json"],
                              stdout=subprocess.PIPE, text=True) as watch:
            try:
                self.assertIn('"nodes"', watch.stdout.readline())
                second.kill()
                computenode.kill()
                for line in watch.stdout:
                    states = {node["id"]: node["state"] for node in json.loads(line)["nodes"]}
                    if states == {1: "serving", 2: "dead", compute["id"]: "dead"}:
                        break
            finally:
                watch.send_signal(signal.SIGINT)
                watch.stdout.read()
                self.assertEqual(watch.wait(PATIENCE_S), 0)
        status = self.status()
        self.assertEqual(status["memory"]["total_bytes"], 64 << 20)
        self.assertEqual((status["workers"], status["operations_per_s"]), (0, 0))
        self.assertIsNone(status["nodes"][1]["memory"])
        self.start_memnode(2)  # in its place, with its memory
        self.wait_for(lambda: [node["state"] for node in self.nodes(id=2)] == ["serving"], lambda: self.surge().stdout)

    def test_status_never_hangs_on_nodes_that_are_killed_meanwhile(self):
        self.start_memnode(1, "--metaserver")
        for _ in range(5):
            victim = self.start_memnode(2, metrics=False)
            self.wait_for(lambda: self.nodes(id=2, state="serving"), lambda: self.surge().stdout)
            with subprocess.Popen([BIN / "surge", "status", f"--fabric={self.fabric}", "--json"],
                                  stdout=subprocess.PIPE, text=True) as reader:
                victim.kill()
                out, _ = reader.communicate(timeout=PATIENCE_S)
                self.assertEqual(reader.returncode, 0)
            self.assertIn(next(node["state"] for node in json.loads(out)["nodes"] if node["id"] == 2),
                          ("serving", "dead"))
            self.assertEqual([node["state"] for node in self.nodes(id=2)], ["dead"])

    def test_a_dead_home_is_said_and_the_others_are_shown(self):
        meta = self.start("memnode", "--memory=0", "--metaserver")
        meta.wait_for("^ready ")
        home = self.start_memnode(1)
        self.start_memnode(2)
        home.kill()
        done = self.surge()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^1 +memory,home +dead ")
        self.assertRegex(done.stdout, r"(?m)^2 +memory +serving ")
        self.assertRegex(done.stdout, r"(?m)^problem: the store's home cannot be read: ")

    def test_a_member_of_a_store_that_has_ended_is_told_so(self):
        meta = self.start("memnode", "--memory=0", "--metaserver")
        meta.wait_for("^ready ")
        home = self.start_memnode(1)
        member = self.start_memnode(2)
        self.wait_for_health(member.address(), 200, "ok")
        self.assertEqual(home.stop(), 0, home.text())
        self.assertIn("home=yes", self.start_memnode(3).wait_for("^ready .*").group(0))
        self.wait_for_health(member.address(), 503, "no member of the store: .+")
        self.wait_for(lambda: self.nodes(id=2, state="troubled"), lambda: self.surge().stdout)
        status = self.status()
        self.assertEqual(status["memory"]["total_bytes"], 64 << 20)
        self.assertEqual(len(status["problems"]), 1)
        self.assertIn("memory node 2 is no member of the store", status["problems"][0])

    def test_a_fabric_whose_programs_were_all_killed_is_told_from_none(self):
        self.start_memnode(1, "--metaserver").kill()
        done = self.surge()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"fabric {self.fabric} has no living device", done.stderr)
        self.assertIn("clean it (memnode --clean)", done.stderr)
        self.assertNotRegex(done.stderr, rf"exist: .*\b{self.fabric}\b")

    def test_mistakes_are_told(self):
        self.start_memnode(1, "--metaserver")
        workload = ["-P", WORKLOADS / "workloadc", "--open_timeout_ms=100"]
        for program in (["surge", "status"], ["ycsb", "run", *workload], ["computenode", *workload],
                        ["memnode", "--drain=1", "--wait_ms=100"]):
            done = subprocess.run([BIN / program[0], *program[1:], f"--fabric={self.fabric}-not"], capture_output=True,
                                  text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, done.stdout), (1, ""), program)
            self.assertIn(f"no fabric named {self.fabric}-not", done.stderr)
            self.assertRegex(done.stderr, rf"Others that exist: .*\b{self.fabric}\b", program)
        for arguments, message in (([], "no command"), (["stats"], "no such command"), (["status"], "--fabric is miss"),
                                   (["status", "--fabric=x", "--bad"], "bad")):
            done = subprocess.run([BIN / "surge", *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(message, done.stderr)
        done = subprocess.run([BIN / "surge", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0)
        for word in ("usage: surge status --fabric=NAME", "--watch", "--json", "examples:"):
            self.assertIn(word, done.stdout)


class ParserTest(unittest.TestCase):
    """The parser of this test refuses what is wrong."""

    GOOD = ("# HELP a_total A\n# TYPE a_total counter\na_total{k=\"v\"} 1\n# HELP h H\n# TYPE h histogram\n"
            "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n")

    def test_what_is_right_is_accepted(self):
        self.assertEqual(Exposition(self.GOOD).value("a_total", k="v"), 1)

    def test_what_is_wrong_is_refused(self):
        for old, new in (("a_total{", "b_total{"), ("} 1\n#", "} x\n#"), ("} 1\n#", "} -1\n#"), ("} 1\n#", "} NaN\n#"),
                         ("a_total", "a"), ("h_count 2", "h_count 3"), ("h_sum 3\n", ""), ('le="1"} 1', 'le="1"} 5'),
                         ('h_bucket{le="+Inf"} 2\n', ""), ("# HELP a_total A\n", ""), ('k="v"', 'k="v'),
                         ('k="v"', "k=v"), ("h_count 2\n", "h_count 2"), ("counter", "count"),
                         ('{k="v"} 1\n', '{k="v"} 1\na_total{k="v"} 1\n'), ("# HELP h", "\n# HELP h")):
            with self.subTest(new=new), self.assertRaises((ValueError, KeyError)):
                Exposition(self.GOOD.replace(old, new))


if __name__ == "__main__":
    unittest.main(verbosity=2)
