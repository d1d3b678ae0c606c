#!/usr/bin/env python3
"""bench/results/README.md is what make_page.py makes of the recorded runs, and files that do not fit are found.

Usage: results_page_test.py [unittest's arguments]
"""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"


def check(folder):
    return subprocess.run([folder / "make_page.py", "--check"], capture_output=True, text=True, check=False)


class ResultsPageTest(unittest.TestCase):
    def test_the_page_is_what_is_made_of_the_recorded_runs(self):
        done = check(RESULTS)
        self.assertEqual(done.returncode, 0, f"run bench/results/make_page.py\n{done.stderr}")

    def test_files_that_do_not_fit_are_found(self):
        def edit(name, old, new):
            def change(folder):
                text = (folder / name).read_text("utf-8")
                self.assertIn(old, text)
                (folder / name).write_text(text.replace(old, new, 1), "utf-8")
            return change

        for change, said in ((edit("messages.csv", "64,2.2,", "64,2.3,"), "+| 64 | 2.3 |"),
                             (edit("README.md", "| 64 | 2.2 |", "| 64 | 2.3 |"), "-| 64 | 2.3 |"),
                             (edit("messages.csv", "64,2.2,", "64,"), "2 cells instead of 3"),
                             (edit("runs.csv", "messages.csv,", "message.csv,"), "no row for messages.csv"),
                             (edit("README.md.in", "{table messages.csv}\n", ""), "messages.csv is not exactly once"),
                             (lambda folder: (folder / "new.csv").write_text("a\n1\n"), "new.csv is not in runs.csv")):
            with self.subTest(said=said), tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name) / "results"
                shutil.copytree(RESULTS, folder)
                change(folder)
                done = check(folder)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
