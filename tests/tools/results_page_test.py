#!/usr/bin/env python3
"""bench/results/README.md is what make_page.py makes of the recorded runs, and files that do not fit are found.

Usage: results_page_test.py [unittest's arguments]
"""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
RESULTS = BENCH / "results"


def make_page(folder, *arguments):
    return subprocess.run([folder / "make_page.py", *arguments], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def copied():
    """A copy of the recorded runs that may be changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "results"
        shutil.copytree(RESULTS, folder)
        shutil.copytree(BENCH / "common", folder.parent / "common")
        yield folder


def edit(name, old, new):
    def change(folder):
        text = (folder / name).read_text("utf-8")
        assert old in text, (name, old)
        (folder / name).write_text(text.replace(old, new, 1), "utf-8")
    return change


def twice(name, start):
    """Repeats the line of the file that begins with `start`."""
    def change(folder):
        lines = (folder / name).read_text("utf-8").splitlines(True)
        lines += [line for line in lines if line.startswith(start)]
        (folder / name).write_text("".join(lines), "utf-8")
    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def write(name, text):
    return lambda folder: (folder / name).write_text(text, "utf-8")


class ResultsPageTest(unittest.TestCase):
    def test_the_page_is_what_is_made_of_the_recorded_runs(self):
        done = make_page(RESULTS, "--check")
        self.assertEqual(done.returncode, 0, f"run bench/results/make_page.py\n{done.stderr}")

    def test_the_page_is_written(self):
        page = (RESULTS / "README.md").read_text("utf-8")
        for change in (remove("README.md"), write("README.md", "old\n")):
            with copied() as folder:
                change(folder)
                done = make_page(folder)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
                self.assertEqual((folder / "README.md").read_text("utf-8"), page)

    def test_a_page_that_is_not_what_would_be_made_is_found_and_left_alone(self):
        for change, said in ((edit("messages.csv", "64,2.2,", "64,2.3,"), "+| 64 | 2.3 |"),
                             (edit("README.md", "| 64 | 2.2 |", "| 64 | 2.3 |"), "-| 64 | 2.3 |")):
            with self.subTest(said=said), copied() as folder:
                change(folder)
                page = (folder / "README.md").read_text("utf-8")
                done = make_page(folder, "--check")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertEqual((folder / "README.md").read_text("utf-8"), page)

    def test_files_that_do_not_fit_are_named_in_one_line(self):
        missing = "is in runs.csv, and there is no such file"
        for change, said in (
                (edit("messages.csv", "64,2.2,", "64,"), "messages.csv: 2 cells instead of 3: ['64', '"),
                (edit("runs.csv", "messages.csv,", "message.csv,"), f"message.csv {missing}"),
                (remove("messages.csv"), f"messages.csv {missing}"),
                (remove("peers.svg"), f"peers.svg {missing}"),
                (write("messages.csv", ""), "messages.csv is empty"),
                (write("runs.csv", ""), "runs.csv is empty"),
                (remove("runs.csv"), "runs.csv is missing"),
                (remove("README.md.in"), "README.md.in is missing"),
                (remove("README.md"), "README.md is missing"),
                (twice("runs.csv", "messages.csv,"), "messages.csv is in runs.csv more than once"),
                (edit("README.md.in", "{table messages.csv}\n", ""), "messages.csv is not exactly once in README.md.in"),
                (twice("README.md.in", "{table messages.csv}"), "messages.csv is not exactly once in README.md.in"),
                (edit("README.md.in", "{table messages.csv}", "{table message.csv}"), "message.csv is not in runs.csv"),
                (edit("README.md.in", "{origin peers.svg}", "{table peers.svg}"), "README.md.in: peers.svg is no table"),
                (write("new.csv", "a\n1\n"), "new.csv is not in runs.csv"),
                (write("new.svg", "<svg/>"), "new.svg is not in runs.csv")):
            with self.subTest(said=said), copied() as folder:
                change(folder)
                done = make_page(folder, "--check")
                self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                self.assertTrue(done.stderr.startswith(f"make_page.py: {said}"), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_only_what_comes_from_one_run_is_said_to_come_from_the_same(self):
        def page_of(change):
            with copied() as folder:
                change(folder)
                self.assertEqual(make_page(folder).returncode, 0)
                return (folder / "README.md").read_text("utf-8")

        same = "[spike_model_back_test.csv](spike_model_back_test.csv): MODELLED: compared with what KRCORE published. The same run.\n"
        self.assertIn(same, page_of(lambda folder: None))
        row = "compared with what KRCORE published,2026-11-22,virtual time,e059b3c,spike_model --seed="
        self.assertNotIn(same, page_of(edit("runs.csv", row + "1", row + "2")))
        self.assertNotIn(same, page_of(edit("runs.csv", row, row.replace("e059b3c", "e059b3d"))))
        commands = "`tools/spike --repeats 3 --kinds thread,fork`; `tools/spike --repeats 3 --kinds exec`.\n"
        self.assertEqual(page_of(lambda folder: None).count(commands), 2)  # which of them made which file is not known


if __name__ == "__main__":
    unittest.main()
