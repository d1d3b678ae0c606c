#!/usr/bin/env python3
"""Whether programs say that they are able to serve, and why not; and how their endpoint ends.

Usage: health_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import contextlib
import glob
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import unittest

from fabric_case import RECORDS, FabricCase
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, a_worker_of, metrics_address, wait_for



class HealthTest(FabricCase):
    def test_health_follows_a_drain_and_back(self):
        self.start_memnode(1, "--metaserver")
        second = self.start_memnode(2)
        address = metrics_address(second)
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

    def test_health_is_told_while_nobody_reads_what_a_compute_node_prints(self):
        self.start_memnode(1, "--metaserver")
        self.load()
        computenode = self.start_computenode(stdout=subprocess.PIPE)
        address = metrics_address(computenode)
        # More than a pipe holds, so that the compute node waits for its reader.
        os.set_blocking(computenode.popen.stdin.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(2000):
                computenode.popen.stdin.raw.write(b"status\n" * 10)
        waiting = pathlib.Path(f"/proc/{computenode.popen.pid}/wchan")
        wait_for(lambda: "pipe" in waiting.read_text("ascii"), lambda: waiting.read_text("ascii"))
        self.assertEqual(self.ask(address, "/healthz")[0], 200)
        self.assertEqual(self.ask(address, "/metrics")[0], 200)

    def test_health_without_a_metadata_server_and_with_another(self):
        meta = self.start("memnode", "--memory=0", "--metaserver", "--metrics=127.0.0.1:0")
        meta.wait_for("^ready ")
        memnode = self.start_memnode(1)
        address = metrics_address(memnode)
        self.wait_for_health(address, 200, "ok")
        meta.kill()
        self.wait_for_health(address, 503, "not published at a metadata server: .+")
        done = self.surge()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("metadata server", done.stderr)
        meta = self.start("memnode", "--memory=0", "--metaserver")
        meta.wait_for("^ready ")
        self.wait_for_health(address, 200, "ok")
        wait_for(lambda: self.nodes(id=1, state="serving"), lambda: self.surge().stdout)
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
        address = metrics_address(computenode)
        self.wait_for_health(address, 200, "ok")
        memnode.kill()
        os.kill(a_worker_of(computenode), signal.SIGKILL)
        self.wait_for_health(address, 503, "workers cannot start: .+")
        exposition = self.scrape(address)
        self.assertGreaterEqual(exposition.value("surgekv_workers_failed_total"), 2)
        self.assertGreaterEqual(exposition.value("surgekv_workers_restarted_total"), 1)
        self.assertEqual(exposition.value("surgekv_healthy"), 0)
        self.assertEqual(computenode.ended(), 1, computenode.text())  # it has given up
        self.assertRegex(computenode.log.read_text("utf-8"), r"(?m)^E.*\] a worker cannot open the store: ")

    def test_a_compute_node_without_a_metadata_server_is_ill(self):
        memnode = self.start_memnode(1, "--metaserver")
        self.load()
        computenode = self.start_computenode("--workers=1", "--target=100", "--operation_timeout_ms=500")
        address = metrics_address(computenode)
        self.wait_for_health(address, 200, "ok")
        memnode.kill()
        self.wait_for_health(address, 503, "not announced at a metadata server: .+")
        self.assertEqual(computenode.stop(), 1, computenode.text())

    def test_an_address_in_use_is_an_error_that_leaves_nothing(self):
        first = self.start_memnode(1, "--metaserver")
        self.load()
        address = metrics_address(first)
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

    def files(self):
        return sorted(glob.glob(f"/dev/shm/*-{self.fabric}.*"))

    def remove_files(self):
        for path in self.files():
            os.unlink(path)

    def verify(self):
        """Every record is there, and right."""
        done = subprocess.run([BIN / "ycsb", "run", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloadc", "-p",
                               f"recordcount={RECORDS}", "-p", "requestdistribution=sequential", "-p",
                               f"operationcount={RECORDS}"], capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_removed_files_make_it_ill_and_when_it_stops_the_next_store_of_that_name_keeps_its_own(self):
        first = self.start_memnode(1, "--metaserver")
        self.load()
        address = metrics_address(first)
        self.wait_for_health(address, 200, "ok")
        self.remove_files()
        gone = f"the name of fabric {self.fabric} is gone: its files were removed from /dev/shm"
        self.wait_for_health(address, 503, gone)
        first.wait_for(rf"(?m)^E.*\] {gone}\. Programs that are attached go on", first.log)
        done = self.surge()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"the files of fabric {self.fabric} were removed while it was in use by process "
                      f"{first.popen.pid}", done.stderr)

        second = self.start_memnode(1, "--metaserver")
        self.load()
        self.wait_for_health(address, 503, f"the name of fabric {self.fabric} belongs to another fabric now: .+")
        self.wait_for_health(metrics_address(second), 200, "ok")
        problems = self.status()["problems"]
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(f"process {first.popen.pid} uses an older fabric of this name", problems[0])
        files = self.files()
        self.assertEqual(first.stop(), 0, first.text())
        self.assertRegex(first.log.read_text("utf-8"), rf"(?m)^W.* of keys and values are lost .*{self.fabric} belongs to another")
        self.assertEqual(self.files(), files)
        self.verify()
        self.assertEqual(self.status()["problems"], [])
        self.wait_for_health(metrics_address(second), 200, "ok")

    def test_removed_files_do_not_stop_who_is_attached_whatever_the_next_store_of_that_name_does(self):
        first = self.start_memnode(1, "--metaserver", "--keep_memory")
        self.load()
        computenode = self.start_computenode("--workers=1", "--profile=constant:200,600")
        computenode_address = metrics_address(computenode)
        self.remove_files()
        self.wait_for_health(metrics_address(first), 503, "the name of fabric .+ is gone: .+")
        second = self.start_memnode(1, "--metaserver")
        self.load()
        self.assertEqual(second.stop(), 0, second.text())
        self.assertEqual(self.files(), [])

        def verified():
            return self.scrape(computenode_address).value("surgekv_values_verified_total")
        before = verified()
        wait_for(lambda: verified() > before + 200, computenode.text)
        self.assertEqual(computenode.stop(), 0, computenode.text())
        self.assertEqual(first.stop(), 0, first.text())
        self.assertIn(" memory=unnamed ", first.out.read_text("utf-8"))

    def test_memory_of_a_living_store_is_not_taken_by_another_when_the_fabrics_name_is_gone(self):
        first = self.start_memnode(1, "--metaserver")
        self.load()
        os.unlink(next(path for path in self.files() if path.endswith(".ctl")))
        self.wait_for_health(metrics_address(first), 503, "the name of fabric .+ is gone: .+")
        files = self.files()
        for arguments in (["--node=1", "--memory=64M", "--metaserver"], ["--clean"]):
            done = subprocess.run([BIN / "memnode", f"--fabric={self.fabric}", *arguments], capture_output=True,
                                  text=True, timeout=PATIENCE_S, check=False)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("in use by a process that lives" if arguments[0] == "--node=1" else "living process",
                          done.stderr)
            self.assertEqual(self.files(), files)
        self.assertEqual(first.stop(), 0, first.text())
        self.assertEqual(self.files(), [])

    def test_a_stop_while_it_is_scraped_is_clean(self):
        memnode = self.start_memnode(1, "--metaserver")
        address = metrics_address(memnode)
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
            wait_for(lambda: len(answers) > 20, lambda: f"{len(answers)} answers")
            silent.sendall(b"GET /metr")
            self.assertEqual(memnode.stop(), 0, memnode.text())
        stopping.set()
        for thread in threads:
            thread.join()
        self.assertEqual(set(answers), {200})
        self.assertIn("stopped ", memnode.out.read_text("utf-8"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
