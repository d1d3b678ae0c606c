"""Runs the programs of build/bin as a user does."""

import argparse
import glob
import json
import pathlib
import random
import re
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = ROOT / "build" / "bin"
WORKLOADS = ROOT / "ycsb" / "workloads"
PATIENCE_S = 120  # that it passes is always a failure


class Unexpected(AssertionError):
    """A program did what it must not, or nothing at all."""


def wait_for(condition, message):
    """Waits until the condition is true, and returns what it was."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise Unexpected(message())


def clean_fabric(fabric):
    """Removes what killed programs have left of a fabric. All its programs must have ended."""
    subprocess.run([BIN / "memnode", f"--fabric={fabric}", "--clean"], capture_output=True, check=False)
    left = glob.glob(f"/dev/shm/*{fabric}*")
    if left:
        raise Unexpected(f"left behind: {left}")


class Program:
    """A child process, with its stdout and its log (stderr) in files of `folder`."""

    def __init__(self, folder, program, *arguments, stdout=None):
        self.name = pathlib.Path(program).name
        self.out = folder / f"{self.name}-{time.monotonic_ns()}.out"
        self.log = self.out.with_suffix(".log")
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.popen = subprocess.Popen([BIN / program, *arguments], stdin=subprocess.PIPE, stdout=stdout or out, stderr=log,
                                          cwd=ROOT, start_new_session=True)

    def text(self):
        return f"{self.out.read_text('utf-8', 'replace')}\n---- log\n{self.log.read_text('utf-8', 'replace')}"

    def alive(self):
        return self.popen.poll() is None

    def wait_for(self, pattern, path=None):
        """Waits until the file (its stdout) has a match, which is returned."""
        def look():
            ended = not self.alive()
            found = re.search(pattern, (path or self.out).read_text("utf-8", "replace"), re.MULTILINE)
            if ended and not found:
                raise Unexpected(f"{self.name} ended with {self.popen.returncode}, no {pattern!r}\n{self.text()}")
            return found
        return wait_for(look, lambda: f"{self.name}: no {pattern!r}\n{self.text()}")

    def command(self, text):
        self.popen.stdin.write(text.encode() + b"\n")
        self.popen.stdin.flush()

    def ended(self):
        """Its exit status, when it has ended."""
        try:
            return self.popen.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as expired:
            raise Unexpected(f"{self.name} does not end\n{self.text()}") from expired

    def stop(self):
        self.popen.terminate()
        return self.ended()

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def close(self):
        """However it stands."""
        if self.alive():
            self.kill()
        self.popen.stdin.close()
        if self.popen.stdout:
            self.popen.stdout.close()


def run_seeded(name, what, make, parser, unit="seconds", amount=40.0):
    """Parses the command line of a test that does `what` at random, runs it on make(folder, seed, arguments), which
    has torment(how many units), finish() and clean_up(), and returns the exit status."""
    parser.description = what
    parser.add_argument(f"--{unit}", type=type(amount), default=amount, help=f"default: {amount:g}")
    parser.add_argument("--seed", type=int, default=None, help="of what is done (default: another one each time)")
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"surgekv-{name}-") as folder:
        tormented = make(pathlib.Path(folder), seed, arguments)
        try:
            tormented.torment(getattr(arguments, unit))
            tormented.finish()
        except Unexpected as failed:
            print(f"FAILED (seed {seed}): {failed}", flush=True)
            return 1
        finally:
            tormented.clean_up()
    return 0


def metrics_address(program):
    return program.wait_for(r"metrics at (\S+)", program.log).group(1)


def a_worker_of(computenode):
    """The pid of a worker process, as soon as one is reported."""
    def look():
        computenode.command("status")
        statuses = re.findall(r'^.*"event":"status".*$', computenode.out.read_text("utf-8", "replace"), re.MULTILINE)
        return statuses and json.loads(statuses[-1])["pids"]
    return wait_for(look, lambda: f"no worker's pid\n{computenode.text()}")[0]
