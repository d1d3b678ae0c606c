#!/usr/bin/env python3
"""What programs do where the system has too little for them: descriptors, threads, memory, /dev/shm.

Usage: limits_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import os
import pathlib
import pwd
import resource
import socket
import subprocess
import time
import unittest

from fabric_case import FabricCase
from program import BIN, PATIENCE_S, metrics_address, wait_for

MIB = 1 << 20


def cpu_s(pid):
    """Of all threads, so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class LimitsTest(FabricCase):
    def refused(self, *arguments, prefix=(), preexec=None):
        """What a memory node says that does not start. It has not offered anything, and leaves nothing."""
        done = subprocess.run([*prefix, BIN / "memnode", f"--fabric={self.fabric}", "--node=1", "--metaserver",
                               *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                              preexec_fn=preexec, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(list(pathlib.Path("/dev/shm").glob(f"*{self.fabric}*")), [])
        return done.stderr

    def test_without_descriptors_it_does_not_start_and_names_the_limit(self):
        for limit, metrics in (5, []), (8, ["--metrics=127.0.0.1:0"]):
            message = self.refused("--memory=64M", *metrics, prefix=("prlimit", f"--nofile={limit}", "--"))
            self.assertIn(f"Too many open files (ulimit -n is {limit})", message)

    def test_without_address_space_it_does_not_start_and_names_the_limit(self):
        limit = 512 * MIB
        message = self.refused("--memory=1G", preexec=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertIn(f"ulimit -v is {limit >> 10}", message)
        self.assertIn("--memory=1G is too much", message)

    def test_without_threads_it_does_not_start_and_names_the_limit(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user, whom the limit binds")
        nobody = pwd.getpwnam("nobody")
        prefix = ("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "prlimit",
                  "--nproc=1", "--")
        if subprocess.run([*prefix, BIN / "memnode", "--help"], capture_output=True, check=False).returncode != 0:
            self.skipTest("another user may not run programs of this folder")
        for metrics, thread in ([], "rc_acceptor"), (["--metrics=127.0.0.1:0"], "metrics"):
            message = self.refused("--memory=64M", *metrics, prefix=prefix)
            self.assertIn(f"cannot start thread '{thread}': Resource temporarily unavailable", message)
            self.assertIn("ulimit -u is 1", message)

    def test_more_memory_than_its_control_group_has_is_refused(self):
        own = {line.split(":")[1]: line.strip().split(":", 2)[2]
               for line in pathlib.Path("/proc/self/cgroup").read_text("utf-8").splitlines()}
        v1 = "memory" in own
        group = pathlib.Path("/sys/fs/cgroup") / ("memory" if v1 else "") / own["memory" if v1 else ""].lstrip("/")
        group = group / f"surgekv-{self.fabric}"
        limit = group / ("memory.limit_in_bytes" if v1 else "memory.max")
        try:
            group.mkdir()
            self.addCleanup(group.rmdir)
            limit.write_text(f"{128 * MIB}", "utf-8")
        except OSError as error:
            self.skipTest(f"no control group with a limit can be made here: {error}")
        message = self.refused("--memory=256M", preexec=lambda: (group / "cgroup.procs").write_text("0", "utf-8"))
        self.assertIn(f"{limit.name} of {group} is {128 * MIB}, of which", message)
        self.assertIn("--memory=256M is too much", message)

    def test_without_dev_shm_it_says_so(self):
        hide = "mount -t tmpfs none /dev && exec \"$@\""
        prefix = ("unshare", "--mount", "sh", "-c", hide, "sh")
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no file system can be hidden here")
        message = self.refused("--memory=64M", prefix=prefix)
        self.assertIn("there is no /dev/shm", message)
        self.assertIn("mount a tmpfs on it", message)

    def test_silent_scrapers_do_not_keep_health_from_answering(self):
        address = metrics_address(self.start_memnode(1, "--metaserver"))
        host, port = address.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(100)]
        for one in silent[::2]:
            one.sendall(b"GET /metrics HT")
        begin = time.monotonic()
        for _ in range(10):
            self.assertEqual(self.ask(address, "/healthz"), (200, "ok\n"))
        self.assertLess(time.monotonic() - begin, PATIENCE_S / 2)
        for one in silent:
            one.close()

    def test_a_program_that_runs_out_of_descriptors_does_not_spin_and_answers_when_it_has_some_again(self):
        memnode = self.start_memnode(1, "--metaserver")
        address = metrics_address(memnode)
        host, port = address.split(":")
        self.wait_for_health(address, 200, "ok")
        before = resource.prlimit(memnode.popen.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(memnode.popen.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        with socket.create_connection((host, int(port))) as waiting:
            waiting.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            used, begin = cpu_s(memnode.popen.pid), time.monotonic()
            time.sleep(2)  # what it would use if it were spinning shows in no other way
            share = (cpu_s(memnode.popen.pid) - used) / (time.monotonic() - begin)
            self.assertLess(share, 0.3)
            resource.prlimit(memnode.popen.pid, resource.RLIMIT_NOFILE, before)
            waiting.settimeout(PATIENCE_S)
            self.assertTrue(waiting.recv(64).startswith(b"HTTP/1.1 200 "))
        wait_for(lambda: self.ask(address, "/healthz")[0] == 200, memnode.text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
