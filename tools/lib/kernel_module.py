"""Builds krcore.ko for the guests of tools/vm, outside the source tree. For tools/spike and tests/vm/kmod_test.py."""

import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
VM = ROOT / "tools/vm"
IMPOSSIBLE = 77


class Impossible(Exception):
    """There can be no guest, or no module for it. The message says why."""


def headers(choice=(), folder=None):
    """The folder of headers to build a module for the kernel that the options `choice` of tools/vm name. `folder`: where
    they are, if not where Debian's packages put them."""
    asked = subprocess.run([VM, "kernel", *choice], capture_output=True, text=True, check=False)
    if asked.returncode == IMPOSSIBLE:
        raise Impossible(asked.stderr.strip())
    if asked.returncode != 0:
        raise RuntimeError(asked.stderr.strip())
    found = folder or pathlib.Path("/usr/src") / f"linux-headers-{asked.stdout.strip()}"
    if not found.is_dir():
        raise Impossible(f"no {found} to build a module against: the package linux-headers-amd64 has it (tools/setup vm), if it "
                         "is of the guests' kernel (tools/vm setup)")
    return found


def copy_sources(folder):
    """Copies the module's sources of the working tree, and those that it shares with user space. Returns their names."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "kmod", "krcore/rnic/sdc"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return names


def make(folder, against, *checks):
    """Builds what copy_sources copied. Returns make's result; the module is kmod/krcore.ko."""
    return subprocess.run(["make", "-C", str(folder / "kmod"), f"KDIR={against}", "W=1", *checks], capture_output=True,
                          text=True, check=False)
