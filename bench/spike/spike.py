#!/usr/bin/env python3
"""The spike experiment: load rises tenfold within a moment, and compute nodes scale out and in, once with each control
plane and each kind of worker. tools/spike builds first and then runs this; bench/results/README.md says what is measured.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(BENCH / "common"), str(BENCH.parent / "tools/lib")]
import kernel_module  # noqa: E402  (found in the folders above)
from bootstraps import KINDS, PLANES  # noqa: E402
from cluster import BIN, ROOT, Screen, run_story  # noqa: E402
from measure import KERNEL, SCALES, Spike  # noqa: E402

PROVIDERS = ("sw", "verbs")
GUEST_LIMIT_S = 3600
# The fields of Scale that are flags.
SCALE_OPTIONS = {"repeats": int, "base": float, "peak": float, "capacity": float, "max_workers": int, "slo_us": int}


class Failed(Exception):
    """A part failed and has printed the reason. The argument is the exit status."""


def scale_of(provider, options):
    given = {name: getattr(options, name) for name in SCALE_OPTIONS if getattr(options, name) is not None}
    return dataclasses.replace(SCALES[provider, options.quick], **given)


def planes_of(provider, options):
    """The control planes to measure. The kernel's needs an RDMA device."""
    return tuple(plane for plane in options.planes if plane != KERNEL or provider == "verbs")


def build_module(folder, screen):
    screen.line("==> building kmod/ for the guest")
    try:
        headers = kernel_module.headers()
    except kernel_module.Impossible as reason:
        screen.line(f"there can be no kernel module here: {reason}")
        raise Failed(kernel_module.IMPOSSIBLE) from None
    kernel_module.copy_sources(folder)
    done = kernel_module.make(folder, headers)
    if done.returncode != 0:
        screen.line(f"FAILED: {done.stderr.strip()}")
        raise Failed(1)


def measure(provider, options, screen):
    """Measures a provider on this machine. Returns its section of the report."""
    if options.module:
        for command in (("modprobe", "rdma_cm"), ("insmod", options.module)):
            if subprocess.run(command, check=False).returncode != 0:
                screen.line(f"FAILED: {' '.join(command)}")
                raise Failed(1)
    spike = Spike(provider, scale_of(provider, options), planes_of(provider, options), options.kinds, screen,
                  options.redis)
    status = run_story(spike, screen, spike.tell)
    if status != 0:
        raise Failed(status)
    return spike.section()


def measure_in_guest(provider, options, screen):
    """Measures a provider in a virtual machine that has an RDMA device. Returns its section of the report."""
    screen.line(f"==> {provider}: this machine has no RDMA device, but tools/vm has one")
    with tempfile.TemporaryDirectory(prefix="surgekv-spike-") as folder:
        line = [ROOT / "tools/vm", "run", "-t", str(GUEST_LIMIT_S), "-o", folder, sys.executable, "bench/spike/spike.py",
                f"--rnic={provider}", "--section=/out/section.json", f"--planes={','.join(options.planes)}",
                f"--kinds={','.join(options.kinds)}", *(["--quick"] if options.quick else []),
                *(["--redis"] if options.redis else [])]
        if KERNEL in options.planes:
            build_module(pathlib.Path(folder), screen)
            line.append("--module=/out/kmod/krcore.ko")
        line += [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in SCALE_OPTIONS
                 if getattr(options, name) is not None]
        status = subprocess.run(line, cwd=ROOT, check=False).returncode
        if status != 0:
            raise Failed(status)
        return json.loads((pathlib.Path(folder) / "section.json").read_text("utf-8"))


def has_rdma_device():
    devices = pathlib.Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


def run_model(options, screen):
    screen.line("==> the modelled spike")
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        scale = "1" if options.quick else "1,10,100"
        done = subprocess.run([BIN / "spike_model", f"--json={report.name}", f"--scale={scale}"], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            screen.line(f"FAILED: spike_model: {done.stderr.strip()}")
            raise Failed(1)
        return {"text": done.stdout, "data": json.loads(report.read())}


def parse_options():
    parser = argparse.ArgumentParser(prog="tools/spike", description="The spike experiment; see tools/spike --help.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--rnic")
    parser.add_argument("--planes", default=",".join(PLANES))
    parser.add_argument("--control_plane", choices=(KERNEL,))
    parser.add_argument("--kinds", default=",".join(KINDS))
    for name, kind in SCALE_OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("spike-report"))
    parser.add_argument("--section", type=pathlib.Path, help="internal: only measure, and write the section of the report to this file")
    parser.add_argument("--module", help="internal: load this kernel module first")
    options = parser.parse_args()
    if options.control_plane == KERNEL and KERNEL not in options.planes.split(","):
        options.planes += f",{KERNEL}"
    if options.rnic is None:
        options.rnic = "verbs" if options.control_plane == KERNEL else "sw"
    for name, known in (("rnic", PROVIDERS), ("planes", (*PLANES, KERNEL)), ("kinds", KINDS)):
        chosen = tuple(getattr(options, name).split(","))
        unknown = [word for word in chosen if word not in known]
        if unknown:
            parser.error(f"--{name}: {', '.join(unknown)}: expected some of {', '.join(known)}")
        setattr(options, name, chosen)
    if options.redis:
        options.kinds = ("thread",)
    if KERNEL in options.planes and "verbs" not in options.rnic:
        parser.error(f"{KERNEL} needs an RDMA device: --rnic=verbs")
    for scale in (scale_of(provider, options) for provider in options.rnic):
        if scale.repeats < 1 or not 0 < scale.base < scale.peak or scale.capacity <= 0:
            parser.error("--repeats is at least 1, --capacity above 0, and --base is above 0 and below --peak")
    return options


def main():
    options = parse_options()
    screen = Screen()
    begin = time.monotonic()
    try:
        if options.section:
            options.section.write_text(json.dumps(measure(options.rnic[0], options, screen)), "utf-8")
            return 0
        sections = [(measure_in_guest if provider == "verbs" and not has_rdma_device() else measure)(provider, options, screen)
                    for provider in options.rnic]
        model = run_model(options, screen)
    except Failed as failed:
        return failed.args[0]
    # These load matplotlib, which takes seconds and may be missing in a guest.
    import spike_page  # pylint: disable=import-outside-toplevel
    from report import table  # pylint: disable=import-outside-toplevel

    report = {"quick": options.quick, "sections": sections, "modelled": model["data"]}
    spike_page.write(options.output, report, model["text"])
    for section in sections:
        screen.line(f"\n{section['provider']}, measured; first of all, workers of the kind {spike_page.shown_kind(section)}")
        for header, rows in (spike_page.in_short(section), *spike_page.tables(section)):
            for line in table(header, rows):
                screen.line(line)
            screen.line()
    screen.line(f"Every request got one right reply. {options.output}/index.html; {time.monotonic() - begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
