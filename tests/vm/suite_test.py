#!/usr/bin/env python3
"""GoogleTest programs on provider verbs, in a guest. Which tests pass and which are skipped must be exactly what the
list SUITE.expected beside this file says, so that no skip creeps in.

Usage: tests/vm/suite_test.py SUITE TESTS_FOLDER [--write]     --write: write the list instead of comparing
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {
    "rnic": ["rnic_conformance_test", "rnic_concurrency_test", "rnic_verbs_death_test", "rnic_verbs_dc_test",
             "rnic_verbs_words_test"],
    "krcore": ["krcore_verbs_test"],
}
# What else has to end well in the suite's guest, from the folder bin next to that of the tests.
ALSO = {"rnic": ["example_rnic_cc --verbs"], "krcore": []}
LIMIT_S = 900
IMPOSSIBLE = 77


def results(output):
    """"passed NAME" and "skipped NAME", as GoogleTest printed them, and whatever else became of a test."""
    words = {"OK": "passed", "SKIPPED": "skipped", "FAILED": "failed"}
    found = set()
    for word, name in re.findall(r"^\[ +(OK|SKIPPED|FAILED) +\] ([^\s,]+)(?:, where .*?)? \(\d+ ms\)$", output, re.MULTILINE):
        found.add(f"{words[word]} {name}")
    started = re.findall(r"^\[ RUN +\] (\S+)", output, re.MULTILINE)
    ended = {entry.split(" ", 1)[1] for entry in found}
    return sorted(found | {f"unfinished {name}" for name in started if name not in ended})


def expectations(suite):
    return pathlib.Path(__file__).with_name(f"{suite}.expected")


def write(suite, found):
    expectations(suite).write_text("".join(f"{entry}\n" for entry in found), encoding="utf-8")


def compare(suite, found):
    """What is in one of the two alone, the results `found` and the list of the suite."""
    expected = expectations(suite).read_text(encoding="utf-8").splitlines()
    return ([f"not expected: {entry}" for entry in found if entry not in expected] +
            [f"missing: {entry}" for entry in expected if entry not in found])


def main(arguments):
    suite, folder = arguments[0], pathlib.Path(arguments[1]).resolve()
    programs = [str(folder / name) for name in PROGRAMS[suite]]
    programs += [str(folder.parent / "bin" / command) for command in ALSO[suite]]
    runs = "".join(f"{program} || status=$?; " for program in programs)
    line = f"export SURGEKV_TEST_RNIC=verbs; status=0; {runs}exit $status"
    done = subprocess.run([ROOT / "tools/vm", "run", "-t", str(LIMIT_S), line], capture_output=True, text=True, check=False)
    if done.returncode == IMPOSSIBLE:
        print(done.stderr)
        return IMPOSSIBLE
    found = results(done.stdout)
    if arguments[2:] == ["--write"]:
        write(suite, found)
        return done.returncode
    surprises = compare(suite, found)
    if done.returncode != 0 or surprises:
        if done.returncode != 0:
            print(done.stdout, done.stderr, sep="\n")
        print(f"exit status {done.returncode}", *surprises, sep="\n")
        return 1
    passed = sum(entry.startswith("passed") for entry in found)
    print(f"{passed} passed, {len(found) - passed} skipped, as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
