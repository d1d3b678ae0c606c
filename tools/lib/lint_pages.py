#!/usr/bin/env python3
"""Checks the Markdown pages: each link leads somewhere, each file and program that a page names exists, and lines are
short. `tools/lint links` runs it over the repository's pages.

Usage: tools/lib/lint_pages.py PAGE...     prints a line for each finding; exit status 1 if there is any
"""

import fnmatch
import pathlib
import re
import subprocess
import sys

COLUMNS = 100  # except in tables, links and code
LONG_LINES = {"kmod/README.md"}
SOURCE = re.compile(r"[\w*]\.(h|cc|c|py|md|cmake|def|expected|svg)$")
FOREIGN = {"rxe_comp.c"}  # files of Linux
PATH = re.compile(r"[\w.*+-]+(/[\w.*+-]+)*/?")


def listed():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    return [name for name in names.stdout.splitlines() if pathlib.Path(name).exists()]


FILES = listed()
FOLDERS = {str(folder) for name in FILES for folder in pathlib.Path(name).parents}
TOP = {name.split("/")[0] for name in FILES if "/" in name} | {"build"}
TARGETS = set(re.findall(r"\w+", "".join(
    pathlib.Path(name).read_text("utf-8") for name in FILES if name.endswith("CMakeLists.txt"))))


def exists(name, page):
    """Whether a file or folder has this name: in the repository, next to the page, or at the end of a longer path."""
    name = name.rstrip("/").rstrip(".")
    if name.startswith(("build/bin/", "build/tests/")):
        return name.split("/")[-1] in TARGETS
    if name in ("build", "build/bin", "build/tests") or (pathlib.Path(page).parent / name).exists():
        return True
    return any(known == name or known.endswith("/" + name) or fnmatch.fnmatch(known, name)
               or fnmatch.fnmatch(known, "*/" + name) for known in [*FILES, *FOLDERS])


def is_name(word, in_code):
    """Whether a word in backquotes, or of a block of code, means a file of the repository."""
    if not PATH.fullmatch(word) or word in FOREIGN:
        return False
    ours = "/" in word and word.split("/")[0] in TOP
    if in_code:
        return ours and bool(SOURCE.search(word) or re.match(r"build/(bin|tests)/|tools/", word))
    return (ours and not word.endswith(".ko")) or bool(SOURCE.search(word))


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", pathlib.Path(page).read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_link(page, link):
    target, _, anchor = link.partition("#")
    path = (pathlib.Path(page).parent / target) if target else pathlib.Path(page)
    if not path.exists():
        return f"no such file: {link}"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"no such heading: {link}"
    return None


def check(page):
    fenced = indented = False
    after_blank = True
    for number, line in enumerate(pathlib.Path(page).read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        indented = line.startswith("    ") and (after_blank or indented) and not re.match(r"\s+([-*]|\d+\.) ", line)
        after_blank = not line.strip()
        code = fenced or indented
        words = line.split() if code else [word for quoted in re.findall(r"`([^`]+)`", line) for word in quoted.split()]
        for word in words:
            word = word.strip("()[],;:\"'")
            if is_name(word, code) and not exists(word, page):
                yield number, f"no such file or program: {word}"
        if code:
            continue
        for link in re.findall(r"\]\(([^)\s]+)\)", line):
            if not re.match(r"[a-z]+:", link) and (found := check_link(page, link)):
                yield number, found
        free = line.startswith("|") or re.search(r"\]\(|https?://", line) or page in LONG_LINES
        if len(line) > COLUMNS and not free:
            yield number, f"{len(line)} columns, more than {COLUMNS}"


def main(pages):
    findings = [f"{page}:{number}: {text}" for page in pages if pathlib.Path(page).exists() for number, text in check(page)]
    print("\n".join(findings), end="\n" if findings else "", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
