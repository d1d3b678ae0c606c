#!/usr/bin/env python3
"""The kernel module: built without a warning against the headers of the guests' kernel, by the compiler and by sparse; then
tests/vm/kmod_guest.sh in a guest, or two guests whose modules connect to one another.

Usage: tests/vm/kmod_test.py TESTS_FOLDER [--debug] [--cycles N] [--fuzz SECONDS] [--seed N] [--write]
       tests/vm/kmod_test.py TESTS_FOLDER --pair [--debug]
       tests/vm/kmod_test.py --newer
       --write: write which of krcore's tests passed and which were skipped to krcore_kernel.expected, which they must be
                exactly
       --debug: on a kernel that looks for mistakes (KASAN, lockdep, kmemleak), which must be in the folder that
                SURGEKV_DEBUG_KERNEL names, or surgekv-vm/debug in the user's cache: bzImage, lib/modules/VERSION, and
                headers/, what a module is built against
       --newer: only build it, against the headers of the newest kernel that Debian has packages of, if that is newer than
                the guests'. They are unpacked in the user's cache, not installed: their packages want that kernel's image.
checkpatch --strict judges the sources, too, where there is such a folder: what Debian's headers lack, its headers/ has.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import suite_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lib"))
import kernel_module  # noqa: E402  pylint: disable=wrong-import-position

VM = ROOT / "tools/vm"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "surgekv-vm"
IMPOSSIBLE = 77
SUITE = "krcore_kernel"
HARMLESS = ("Skipping BTF generation",)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(IMPOSSIBLE)


def run(*arguments, **options):
    return subprocess.run([str(argument) for argument in arguments], text=True, check=False, **options)


def debug_folder():
    return pathlib.Path(os.environ.get("SURGEKV_DEBUG_KERNEL") or CACHE / "debug")


def kernel(options):
    """The options of tools/vm that choose the kernel, and the headers that belong to it."""
    choice, found = [], None
    if options.debug:
        folder = debug_folder()
        if not (folder / "bzImage").exists() or not (folder / "headers/Makefile").exists():
            skip(f"no debug kernel in {folder} (tools/vm debug-kernel builds one); SURGEKV_DEBUG_KERNEL names another folder")
        choice, found = ["-k", folder], folder / "headers"
    try:
        return choice, kernel_module.headers(choice, found)
    except kernel_module.Impossible as reason:
        return skip(str(reason))
    except RuntimeError as error:
        return sys.exit(str(error))


def newer_headers(than):
    """The headers of the newest kernel in the registry, unpacked; `than`: those that are not wanted again."""
    suffix = "-" + run("dpkg", "--print-architecture", capture_output=True).stdout.strip()
    listed = run("apt-cache", "search", "--names-only", "^linux-headers-[0-9]", capture_output=True).stdout
    versions = {}
    for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
        plain = re.fullmatch(r"linux-headers-(\d+)\.(\d+)\.(\d+)[^-]*(-\d+)?" + re.escape(suffix), name)  # no -rt, no -cloud
        if plain:
            versions[tuple(int(part) for part in plain.groups()[:3])] = name
    newest = max(versions, default=(0, 0, 0))
    present = tuple(int(part) for part in re.match(r"linux-headers-(\d+)\.(\d+)", than.name).groups())
    if newest[:2] <= present:
        skip(f"the registry has no headers of a kernel that is newer than {than.name}'s")
    name = versions[newest]
    folder = CACHE / name
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        depends = run("apt-cache", "depends", name, capture_output=True).stdout
        parts = [name, *re.findall(r"Depends: (linux-headers-\S+-common|linux-kbuild-\S+)", depends)]
        with tempfile.TemporaryDirectory(prefix=".headers.", dir=CACHE) as unpacked:
            got = run("apt-get", "download", *parts, cwd=unpacked, capture_output=True)
            if got.returncode != 0:
                skip(f"{', '.join(parts)} could not be fetched: {got.stderr.strip()}")
            for package in pathlib.Path(unpacked).glob("*.deb"):
                if run("dpkg-deb", "-x", package, pathlib.Path(unpacked) / "tree").returncode != 0:
                    sys.exit(f"{package.name} could not be unpacked")
            makefile = pathlib.Path(unpacked) / "tree/usr/src" / name / "Makefile"
            makefile.write_text(makefile.read_text().replace("/usr/src/", f"{folder}/usr/src/"))
            (pathlib.Path(unpacked) / "tree").rename(folder)
    return folder / "usr/src" / name


def build(folder, headers, *options):
    """krcore.ko; every warning is a failure."""
    sources = kernel_module.copy_sources(folder)
    checks = ["C=2", "CF=-D__CHECK_ENDIAN__"] if shutil.which("sparse") else []
    if not checks:
        print("not checked by sparse, which is not installed")
    done = kernel_module.make(folder, headers, *checks, *options)
    warnings = [line for line in done.stderr.splitlines() if line and not line.startswith(HARMLESS)]
    if done.returncode != 0 or warnings:
        print(done.stdout, done.stderr, sep="\n")
        sys.exit("building the module failed, or warned")
    print(f"built against {headers}, no warning of W=1" + (" and sparse" if checks else ""))
    # Only whole kernel sources have it, Debian's packages of headers do not; the debug kernel's have.
    checkpatch = next((script for script in (each / "scripts/checkpatch.pl" for each in (headers, debug_folder() / "headers"))
                       if script.exists()), None)
    if checkpatch is None:
        print(f"not judged by checkpatch --strict: scripts/checkpatch.pl is in neither {headers} nor {debug_folder()}/headers")
    else:
        for name in sources:
            # What user space has, too, is written as the rest of user space is.
            if name.startswith("kmod/") and name.endswith((".c", ".h")):
                # Tracepoints are written as the kernel's own are, which it does not like.
                ignored = ["--ignore", "PARENTHESIS_ALIGNMENT,OPEN_ENDED_LINE"] if name.endswith("/trace.h") else []
                done = run("perl", checkpatch, "--strict", "--no-tree", "--terse", "--show-types", *ignored, "-f", ROOT / name,
                           capture_output=True)
                if done.returncode != 0:
                    print(done.stdout, done.stderr)
                    sys.exit("checkpatch --strict complains")
        print("checkpatch --strict: clean")
    return folder / "kmod/krcore.ko"


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("tests", nargs="?")
    parser.add_argument("--newer", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--fuzz", type=int, default=3)
    parser.add_argument("--seed", default="")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--limit", type=int, default=900)
    options = parser.parse_args()
    if not options.newer and options.tests is None:
        parser.error("name the folder of the tests")
    choice, headers = kernel(options)
    if options.newer:
        with tempfile.TemporaryDirectory(prefix="surgekv-kmod.") as name:
            build(pathlib.Path(name), newer_headers(headers), "CONFIG_DEBUG_INFO_BTF_MODULES=")  # which would want pahole
        return 0
    with tempfile.TemporaryDirectory(prefix="surgekv-kmod.") as name:
        module = build(pathlib.Path(name), headers)
        sys.stdout.flush()
        # Where KASAN does not watch the slabs, they watch themselves: sanity, red zones, poison.
        slabs = [] if options.debug else ["-a", "slub_debug=FZP"]
        if options.pair:
            commands = [f"tests/vm/guest/{name} {module} 10.7.0.1 {pathlib.Path(options.tests).resolve()}"
                        for name in ("kmod_memory_nodes", "kmod_compute_nodes")]
            return run(VM, "pair", "-t", options.limit, *choice, *slabs, *commands, cwd=ROOT).returncode
        arguments = [module, pathlib.Path(options.tests).resolve(), options.cycles, options.fuzz]
        if options.seed:
            arguments.append(options.seed)
        done = run(VM, "run", "-t", options.limit, *choice, *slabs, ROOT / "tests/vm/kmod_guest.sh", *arguments, cwd=ROOT,
                   stdout=subprocess.PIPE)
        print(done.stdout, end="")
        if done.returncode != 0:
            return done.returncode
        # Of krcore's suites; the module's own tests are told in brief.
        found = suite_test.results(done.stdout)
        if options.write:
            suite_test.write(SUITE, found)
        surprises = suite_test.compare(SUITE, found)
        print(*surprises, sep="\n")
        return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
