#!/usr/bin/env python3
"""Loads a kernel module again and again, each time letting another of the allocations fail that loading it needs: of the
last ones, which are the module's own.

Usage (as root, on a kernel with failslab): kmod_load_failing.py MODULE [HOW_MANY]
"""

import ctypes
import errno
import os
import subprocess
import sys

FINIT_MODULE = 313  # x86-64
FAIL_NTH = "/proc/thread-self/fail-nth"
MOST = 1 << 16


class Loader:
    def __init__(self, module):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.module = os.open(module, os.O_RDONLY)
        self.nth = os.open(FAIL_NTH, os.O_RDWR)

    def load(self, number):
        """Lets allocation `number` fail. Whether it was loaded (it is unloaded again), and whether there were so many."""
        os.pwrite(self.nth, str(number).encode(), 0)
        result = self.libc.syscall(FINIT_MODULE, self.module, b"", 0)
        error = ctypes.get_errno()
        left = int(os.pread(self.nth, 32, 0).decode().strip(" \0\n") or 0)
        os.pwrite(self.nth, b"0", 0)
        if result == 0:
            subprocess.run(["rmmod", "krcore"], check=True)
        elif error != errno.ENOMEM:
            sys.exit(f"allocation {number}: {os.strerror(error)}")
        return result == 0, left == 0


def main():
    loader = Loader(sys.argv[1])
    how_many = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    low, high = 1, MOST  # the number of allocations is at least `low` and below `high`
    while high - low > 1:
        middle = (low + high) // 2
        _, reached = loader.load(middle)
        low, high = (middle, high) if reached else (low, middle)
    first = max(1, low - how_many + 1)
    tried = low - first + 1
    loaded = sum(loader.load(number)[0] for number in range(first, low + 1))
    print(f"of {low} allocations the last {tried} failed in turn; {loaded} times the module went without")
    if loaded == tried:
        sys.exit("it was loaded every time: no allocation was made to fail")
    return 0


if __name__ == "__main__":
    sys.exit(main())
