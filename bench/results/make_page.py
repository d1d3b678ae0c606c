#!/usr/bin/env python3
"""Makes README.md of this folder: the text of README.md.in, and the tables of the csv files with where they come from.

Usage: bench/results/make_page.py            writes README.md
       bench/results/make_page.py --check    changes nothing; exit status 1 if README.md is not what would be written

A line `{table FILE.csv}` of README.md.in becomes the origin of that file (its row of runs.csv) and its table;
`{origin FILE}` becomes the origin alone: of a plot, or of a table that is too long for a page.
"""

import collections
import csv
import difflib
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(1, str(FOLDER.parent / "common"))
from markdown_table import markdown_table  # noqa: E402  (found in the folder above)

NOTE = "<!-- Made by make_page.py from README.md.in, runs.csv and the csv files. Do not edit. -->\n"
PLACEHOLDER = re.compile(r"^\{(table|origin) (\S+)\}\n", re.MULTILINE)


class Wrong(Exception):
    """The folder's files do not fit together; says how."""


def text_of(path):
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise Wrong(f"{path.name} is missing") from None


def rows_of(path):
    header, *rows = list(csv.reader(text_of(path).splitlines(True))) or [[]]
    if not header:
        raise Wrong(f"{path.name} is empty")
    for row in rows:
        if len(row) != len(header):
            raise Wrong(f"{path.name}: {len(row)} cells instead of {len(header)}: {row}")
    return header, rows


def origin(run, run_before):
    """What the file is, and which run it comes from. `run_before`: of the origin before this one on the page."""
    def which(a_run):
        return [a_run[name] for name in ("date", "machine", "commit", "command")]

    # Two files of several commands, or of several commits, may be of different runs.
    one = "; " not in run["command"] and " and " not in run["commit"]
    commands = "; ".join(f"`{command}`" for command in run["command"].split("; "))
    said = "the same run" if one and run_before and which(run) == which(run_before) else (
        f"{run['date']}, {run['machine']}, commit {run['commit']}: {commands}")
    return f"[{run['file']}]({run['file']}): {run['what']}. {said[0].upper()}{said[1:]}.\n"


def check_names(recorded, shown, found):
    """Raises Wrong unless runs.csv, README.md.in and the folder name the same files, each of the first two once.

    `recorded`, `shown`: how often runs.csv and README.md.in name each file; `found`: the folder's files.
    """
    for what, names in (("is in runs.csv more than once", {name for name in recorded if recorded[name] > 1}),
                        ("is in runs.csv, and there is no such file", recorded.keys() - found),
                        ("is not in runs.csv", (found | shown.keys()) - recorded.keys()),
                        ("is not exactly once in README.md.in", {name for name in recorded if shown[name] != 1})):
        if names:
            raise Wrong(f"{', '.join(sorted(names))} {what}")


def page():
    text = text_of(FOLDER / "README.md.in")
    header, rows = rows_of(FOLDER / "runs.csv")
    runs = {row[0]: dict(zip(header, row)) for row in rows}
    shown = [name for _, name in PLACEHOLDER.findall(text)]
    check_names(collections.Counter(row[0] for row in rows), collections.Counter(shown),
                {path.name for kind in ("*.csv", "*.svg") for path in FOLDER.glob(kind)} - {"runs.csv"})
    tables = {name: markdown_table(*rows_of(FOLDER / name)) for name in runs if name.endswith(".csv")}
    run_before = dict(zip(shown, [None, *(runs[name] for name in shown)]))

    def fill(match):
        kind, name = match.groups()
        if kind == "table" and name not in tables:
            raise Wrong(f"README.md.in: {name} is no table")
        return origin(runs[name], run_before[name]) + (f"\n{tables[name]}\n" if kind == "table" else "")

    return NOTE + PLACEHOLDER.sub(fill, text)


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    path = FOLDER / "README.md"
    try:
        wanted = page()
        if not arguments:
            path.write_text(wanted, "utf-8")
            return 0
        found = text_of(path)
    except Wrong as wrong:
        print(f"make_page.py: {wrong}", file=sys.stderr)
        return 1
    sys.stderr.writelines(difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), "README.md", "made"))
    return 0 if found == wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
