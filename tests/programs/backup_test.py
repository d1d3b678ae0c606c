#!/usr/bin/env python3
"""`surge backup` and `surge restore`, between stores of other shapes, under load, and with damaged files.

Usage: backup_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import re
import signal
import subprocess
import unittest

from fabric_case import FabricCase
from program import BIN, PATIENCE_S, ROOT, WORKLOADS, Program, clean_fabric

RECORDS = 100_000


class BackupTest(FabricCase):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "store.backup"
        self.other = self.fabric.replace("operating", "restored")

    def clean_up(self):
        super().clean_up()
        clean_fabric(self.other)

    def run_surge(self, *arguments, status=0, limit=None):
        """`limit`: options of the shell's ulimit."""
        limited = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh"] if limit else []
        done = subprocess.run([*limited, BIN / "surge", *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
                              check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr

    def backup(self, *arguments, fabric=None, **how):
        return self.run_surge("backup", f"--fabric={fabric or self.fabric}", f"--out={self.file}", *arguments, **how)

    def restore(self, *arguments, fabric=None, file=None, **how):
        return self.run_surge("restore", f"--fabric={fabric or self.other}", f"--in={file or self.file}", *arguments,
                              **how)

    def start_other(self, node, *arguments):
        """A memory node of another store."""
        self.programs.append(Program(self.folder, "memnode", f"--fabric={self.other}", f"--node={node}", "--hugepages=off",
                                     *arguments))
        self.programs[-1].wait_for("^ready ")

    def ycsb(self, command, fabric, workload, *properties, records=RECORDS):
        done = subprocess.run([BIN / "ycsb", command, f"--fabric={fabric}", "-P", WORKLOADS / workload, "-p",
                               f"recordcount={records}", *properties], capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def expect_all_in(self, fabric, records=RECORDS):
        """Reads keys of all parts of the store; ycsb verifies every value, and fails where there is none."""
        self.ycsb("run", fabric, "workloadc", "-p", f"operationcount={3 * records}", "-p", "requestdistribution=sequential",
                  records=records)

    def records_in(self, text):
        return int(re.search(r" (\d+) records, ", text).group(1))

    def test_a_store_under_load_is_restored_to_one_of_another_shape(self):
        records = 1_000_000
        self.start_memnode(1, "--metaserver", "--memory=512M")
        self.start_memnode(2, "--memory=512M")
        self.ycsb("load", self.fabric, "workloada", records=records)
        with subprocess.Popen([BIN / "ycsb", "run", f"--fabric={self.fabric}", "-P", WORKLOADS / "workloada", "-p",
                               f"recordcount={records}", "-p", "operationcount=1000000000"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, cwd=ROOT) as load:
            try:
                said = self.backup()
                self.assertIsNone(load.poll())
            finally:
                load.send_signal(signal.SIGINT)
                load.wait(PATIENCE_S)
        self.assertEqual(self.records_in(said), records)
        self.start_other(7, "--memory=1G", "--metaserver")
        self.assertEqual(self.records_in(self.restore()), records)
        self.expect_all_in(self.other, records)
        # What is there already gets the file's values, and is there once.
        self.assertEqual(self.records_in(self.restore()), records)
        self.assertEqual(self.records_in(self.backup("--overwrite", fabric=self.other)), records)

    def test_a_mirrored_store_is_restored_too(self):
        self.start_memnode(1, "--metaserver", "--memory=256M")
        self.ycsb("load", self.fabric, "workloada")
        self.backup()
        for node in 1, 2:
            self.start_other(node, "--memory=256M", "--metaserver", "--replicas=2")
        self.assertEqual(self.records_in(self.restore()), RECORDS)
        self.expect_all_in(self.other)
        self.assertEqual(self.records_in(self.backup("--overwrite", fabric=self.other)), RECORDS)

    def test_a_damaged_or_cut_file_is_refused_with_the_place_and_what_was_restored(self):
        self.start_memnode(1, "--metaserver", "--memory=256M")
        self.ycsb("load", self.fabric, "workloada")
        self.backup()
        whole = self.file.read_bytes()
        self.assertIn("is complete: ", self.run_surge("restore", f"--in={self.file}", "--check"))
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 16
        self.start_other(1, "--memory=256M", "--metaserver")
        for what, content in ("is damaged at byte", bytes(flipped)), ("is cut at byte", whole[:-40]):
            with self.subTest(what):
                damaged = self.folder / "damaged"
                damaged.write_bytes(content)
                said = self.run_surge("restore", f"--in={damaged}", "--check", status=1)
                self.assertRegex(said, rf"^surge: .*damaged {what} \d+")
                said = self.restore(file=damaged, status=1)
                self.assertRegex(said, rf"^surge: .*damaged {what} \d+")
                restored = int(re.search(r"Restored so far, and kept: (\d+) records", said).group(1))
                self.assertEqual(self.records_in(self.backup("--overwrite", fabric=self.other)), restored)
                self.assertGreater(restored, RECORDS // 4)

    def test_an_existing_file_is_refused_and_a_failed_backup_leaves_none(self):
        memnode = self.start_memnode(1, "--metaserver", "--memory=256M")
        self.ycsb("load", self.fabric, "workloada")
        self.file.write_text("precious", "utf-8")
        self.assertIn("exists (--overwrite replaces it)", self.backup(status=1))
        self.assertEqual(self.file.read_text("utf-8"), "precious")
        memnode.kill()
        self.backup("--overwrite", "--operation_timeout_ms=300", "--open_timeout_ms=300", status=1)
        self.assertEqual(self.file.read_text("utf-8"), "precious")
        self.assertEqual([path.name for path in self.folder.glob("*partial*")], [])

    def test_a_signal_stops_it_and_leaves_no_file(self):
        self.start_memnode(1, "--metaserver", "--memory=1G")
        self.ycsb("load", self.fabric, "workloada", "-p", "recordcount=1000000")
        with subprocess.Popen([BIN / "surge", "backup", f"--fabric={self.fabric}", f"--out={self.file}"],
                              stderr=subprocess.PIPE, text=True) as backup:
            # The scan is under way.
            while not any(path.stat().st_size > 1_000_000 for path in self.folder.glob("*partial*")):
                self.assertIsNone(backup.poll())
            backup.send_signal(signal.SIGINT)
            _, said = backup.communicate(timeout=PATIENCE_S)
        self.assertEqual(backup.returncode, 130, said)
        self.assertEqual([path.name for path in self.folder.glob("store.backup*")], [])

    def test_a_file_that_gets_too_long_is_told_and_removed(self):
        self.start_memnode(1, "--metaserver", "--memory=256M")
        self.ycsb("load", self.fabric, "workloada")
        self.assertIn("File too large", self.backup(status=1, limit="-f 4096"))  # blocks of 512 bytes
        self.assertEqual([path.name for path in self.folder.glob("store.backup*")], [])

    def test_a_restore_of_large_and_small_values_keeps_no_large_buffers(self):
        for start in self.start_memnode, self.start_other:
            start(1, "--metaserver", "--memory=512M")
        self.ycsb("load", self.fabric, "workloada")
        self.ycsb("load", self.fabric, "workloada", "-p", f"insertstart={RECORDS}", "-p", f"recordcount={RECORDS + 100}",
                  "-p", "insertcount=100", "-p", "fieldcount=1", "-p", "fieldlength=2000000")
        self.backup()
        # Half of what the hundred large values have.
        self.assertEqual(self.records_in(self.restore(limit="-d 100000")), RECORDS + 100)

    def test_a_full_store_refuses_the_rest_of_a_restore(self):
        self.start_memnode(1, "--metaserver", "--memory=256M")
        self.ycsb("load", self.fabric, "workloada")
        self.backup()
        self.start_other(1, "--memory=8M", "--metaserver")
        said = self.restore(status=1)
        self.assertRegex(said, r"(?s)^surge: .*no room.*Restored so far, and kept: \d+ records")

    def test_mistakes_are_told(self):
        for arguments, told in ((["backup", "--fabric=x"], "--out is missing"),
                                (["restore", "--fabric=x"], "--in is missing"),
                                (["backup", f"--out={self.file}"], "--fabric"),
                                (["backup", "--fabric=x", "--out=/dev/null", "--overwrite"], "is no regular file"),
                                (["restore", "--fabric=x", "--in=/bin/sh"], "/bin/sh is no file of surge backup")):
            with self.subTest(told):
                self.assertIn(told, self.run_surge(*arguments, status=2))


if __name__ == "__main__":
    unittest.main()
