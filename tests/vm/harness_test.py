#!/usr/bin/env python3
"""tools/vm itself: statuses, output, limits, what the guest sees of its host, two guests on a wire."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

VM = pathlib.Path(__file__).resolve().parents[2] / "tools/vm"
PATIENCE_S = 400  # of a run whose own limit is shorter
IMPOSSIBLE = 77
archive_reason = ""  # why the archive gives no kernel; guests may run from what is cached


def vm(*arguments, **options):
    return subprocess.run([VM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)


def needs_archive(test):
    def run(self):
        if archive_reason:
            self.skipTest(archive_reason)
        test(self)

    return run


class HarnessTest(unittest.TestCase):
    def test_output_status_and_folder_are_those_of_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            done = vm("run", "echo out; echo err >&2; pwd; exit 7", cwd=folder)
            self.assertEqual(done.returncode, 7, done.stderr)
            self.assertEqual(done.stdout, f"out\n{folder}\n")
            self.assertIn("err\n", done.stderr)

    def test_no_status_of_the_command_passes_for_a_lack_of_guests(self):
        done = vm("run", "exit 77")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("exit status was 77", done.stderr)

    def test_several_arguments_are_one_command_not_a_line_of_bash(self):
        done = vm("run", "printf", "%s|", "two words", "$HOME")
        self.assertEqual((done.returncode, done.stdout), (0, "two words|$HOME|"), done.stderr)

    def test_a_large_output_arrives_whole(self):
        done = vm("run", "seq 200000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "".join(f"{i}\n" for i in range(1, 200001)))

    def test_the_host_is_seen_and_not_written(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "file"
            file.write_text("the host's\n")
            done = vm("run", f"cat {file} && echo the guest\\'s > {file} && rm -r {folder}")
            self.assertEqual((done.returncode, done.stdout), (0, "the host's\n"), done.stderr)
            self.assertEqual(file.read_text(), "the host's\n")

    def test_what_is_written_to_out_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            done = vm("run", "-o", folder, "echo from the guest > /out/file")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((pathlib.Path(folder) / "file").read_text(), "from the guest\n")

    def test_a_guest_that_does_not_end_is_ended(self):
        done = vm("run", "-t", "25", "echo before; sleep 10000")
        self.assertEqual((done.returncode, done.stdout), (124, "before\n"), done.stderr)
        self.assertIn("did not end within 25 s", done.stderr)
        self.assertIn("kernel's log", done.stderr)

    def test_a_guest_that_panics_gives_no_status_but_its_log(self):
        done = vm("run", "echo c > /proc/sysrq-trigger; sleep 1000")
        self.assertEqual(done.returncode, 125, done.stderr)
        self.assertIn("sysrq triggered crash", done.stderr)

    def test_the_device_is_what_the_verbs_tools_expect(self):
        done = vm("run", "ibv_devinfo -v -d rxe0 && ibv_rc_pingpong -d rxe0 -g 1 -n 50 > /dev/null & "
                  "until ibv_rc_pingpong -d rxe0 -g 1 -n 50 localhost; do sleep 0.2; done; wait")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("PORT_ACTIVE", "::ffff:10.9.0.1", "ATOMIC_HCA", "50 iters in"):
            self.assertIn(text, done.stdout)

    @needs_archive
    def test_two_runs_at_once_and_with_a_cache_of_their_own_disturb_nobody(self):
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, XDG_CACHE_HOME=cache)
            runs = [subprocess.Popen([VM, "run", f"exit {status}"], env=environment, stderr=subprocess.PIPE, text=True)
                    for status in (3, 4)]
            ended = [(run.communicate(timeout=PATIENCE_S)[1], run.returncode) for run in runs]
            self.assertEqual([status for _, status in ended], [3, 4], ended)
            self.assertEqual(sum("unpacking" in text for text, _ in ended), 1, ended)

    @unittest.skipIf(os.geteuid() != 0, "sudo would take its own apt-get")
    @needs_archive
    def test_package_lists_older_than_the_archive_are_updated(self):
        with tempfile.TemporaryDirectory() as cache:
            # Until it has updated, this apt-get finds no package in the archive.
            fake = pathlib.Path(cache) / "apt-get"
            real = shutil.which("apt-get")
            fake.write_text(f"#!/bin/bash\nfor a; do [[ $a == update ]] && {{ touch {cache}/updated; exit; }}; done\n"
                            f'[[ $* == *download* && ! -e {cache}/updated ]] && {{ echo "E: 404 Not Found" >&2; exit 100; }}\n'
                            f'exec {real} "$@"\n')
            fake.chmod(0o755)
            environment = dict(os.environ, XDG_CACHE_HOME=cache, PATH=f"{cache}:{os.environ['PATH']}")
            done = vm("run", "exit 5", env=environment)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertTrue((pathlib.Path(cache) / "updated").exists())

    def test_a_pair_talks_over_its_wire_and_its_common_folder(self):
        done = vm("pair", "echo I am $NODE at $MYIP; until [ -e /common/done ]; do sleep 0.1; done",
                  "until ip neigh show | grep -q $PEERIP; do echo > /dev/udp/$PEERIP/9; sleep 0.1; done; "
                  "echo I am $NODE, my peer $PEERIP; touch /common/done; exit 9")
        self.assertEqual(done.returncode, 9, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         ["[0] I am 0 at 10.7.0.1", "[1] I am 1, my peer 10.7.0.1"])

    def test_mistakes_are_answered_and_start_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            no_modules = pathlib.Path(folder) / "kernel"
            no_modules.mkdir()
            (no_modules / "bzImage").touch()
            for arguments in ([], ["boot"], ["run"], ["pair", "one"], ["run", "-t", "soon", "true"], ["setup", "x"],
                              ["run", "-k", folder, "true"], ["run", "-k", no_modules, "true"], ["run", "-o", no_modules / "bzImage", "true"],
                              ["pair", "-o", folder, "true", "true"], ["debug-kernel", "one", "two"]):
                done = vm(*arguments)
                self.assertEqual(done.returncode, 2, arguments)
                self.assertIn("tools/vm --help", done.stderr)
            # One that is there is not built again.
            done = vm("debug-kernel", folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("is there already", done.stderr)
        self.assertIn("Usage: tools/vm run", vm("--help").stdout)


if __name__ == "__main__":
    ready = vm("run", "true")
    if ready.returncode == IMPOSSIBLE:
        print(ready.stderr)
        sys.exit(IMPOSSIBLE)
    fresh = vm("setup")
    archive_reason = fresh.stderr if fresh.returncode == IMPOSSIBLE else ""
    unittest.main(verbosity=2)
