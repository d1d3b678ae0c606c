#!/usr/bin/env python3
"""Makes README.md of this folder: the text of README.md.in, and the tables of the csv files with where they come from.

Usage: bench/results/make_page.py            writes README.md
       bench/results/make_page.py --check    changes nothing; exit status 1 if README.md is not what would be written

A line `{table FILE.csv}` of README.md.in becomes the origin of that file (its row of runs.csv) and its table;
`{origin FILE.csv}` becomes the origin alone, for a table that is too long for a page.
"""

import csv
import difflib
import pathlib
import re
import sys

NOTE = "<!-- Made by make_page.py from README.md.in, runs.csv and the csv files. Do not edit. -->\n"
PLACEHOLDER = re.compile(r"^\{(table|origin) (\S+)\}\n", re.MULTILINE)


class Wrong(Exception):
    """The folder's files do not fit together; says how."""


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    for row in rows:
        if len(row) != len(header):
            raise Wrong(f"{path.name}: {len(row)} cells instead of {len(header)}: {row}")
    return header, rows


def markdown_table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def origin(run, run_before):
    """What the file is, and which run it comes from. `run_before`: of the origin before this one on the page."""
    def which(a_run):
        return [a_run[name] for name in ("date", "machine", "commit", "command")]

    said = "the same run" if run_before and which(run) == which(run_before) else (
        f"{run['date']}, {run['machine']}, commit {run['commit']}: `{run['command']}`")
    return f"[{run['file']}]({run['file']}): {run['what']}. {said[0].upper()}{said[1:]}.\n"


def page(folder):
    header, rows = rows_of(folder / "runs.csv")
    runs = {row[0]: dict(zip(header, row)) for row in rows}
    shown = []

    def fill(match):
        kind, name = match.groups()
        if name not in runs:
            raise Wrong(f"README.md.in: runs.csv has no row for {name}")
        text = origin(runs[name], runs[shown[-1]] if shown else None)
        shown.append(name)
        return text + ("\n" + markdown_table(*rows_of(folder / name)) if kind == "table" else "")

    text = PLACEHOLDER.sub(fill, (folder / "README.md.in").read_text("utf-8"))
    files = {path.name for path in folder.glob("*.csv")} - {"runs.csv"}
    for what, names in (("is not in runs.csv", files - runs.keys()), ("is in runs.csv, and there is no such file",
                                                                     runs.keys() - files),
                        ("is not exactly once in README.md.in", {name for name in runs if shown.count(name) != 1})):
        if names:
            raise Wrong(f"{', '.join(sorted(names))} {what}")
    return NOTE + text


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    folder = pathlib.Path(__file__).resolve().parent
    try:
        wanted = page(folder)
    except Wrong as wrong:
        print(f"make_page.py: {wrong}", file=sys.stderr)
        return 1
    path = folder / "README.md"
    if not arguments:
        path.write_text(wanted, "utf-8")
        return 0
    found = path.read_text("utf-8")
    sys.stderr.writelines(difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), "README.md", "made"))
    return 0 if found == wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
