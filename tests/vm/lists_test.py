#!/usr/bin/env python3
"""The lists of expected results, *.expected beside this file, name the very tests that their programs have. Told without a
guest, in a moment: who adds or renames a test learns here that the list is to be written again, as the output says.

Usage: tests/vm/lists_test.py TESTS_FOLDER
"""

import os
import pathlib
import subprocess
import sys

import suite_test

SUITES = {**suite_test.PROGRAMS, "krcore_kernel": ["krcore_kernel_test"]}


def names(listing):
    """The full names of the tests in what --gtest_list_tests prints: a suite, and indented its tests, with comments."""
    found, suite = set(), None
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith(" "):
            found.add(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return found


def main(arguments):
    folder = pathlib.Path(arguments[0])
    surprises, count = [], 0
    for suite, programs in SUITES.items():
        present = set()
        for program in programs:
            listed = subprocess.run([folder / program, "--gtest_list_tests"], check=True, capture_output=True, text=True,
                                    env={**os.environ, "SURGEKV_TEST_RNIC": "verbs"})
            present |= names(listed.stdout)
        listed = {line.split(" ", 1)[1] for line in suite_test.expectations(suite).read_text(encoding="utf-8").splitlines()}
        script = "kmod_test.py" if suite == "krcore_kernel" else f"suite_test.py {suite}"
        for names_of, what in ((present - listed, "is not in the list"), (listed - present, "is in the list, and no test")):
            surprises += [f"{suite}.expected: {name} {what}" for name in sorted(names_of)]
        count += len(present)
        if present != listed:
            surprises.append(f"write it again: tests/vm/{script} {folder} --write")
    print(*surprises or [f"{count} tests, each in its list"], sep="\n")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
