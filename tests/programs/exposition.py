"""Prometheus's text format."""

import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
KINDS = {"counter", "gauge", "histogram", "summary", "untyped"}


class Exposition:
    """Parses Prometheus's text format 0.0.4, strictly: whatever a parser might not accept is an error."""

    def __init__(self, text):
        self.families = {}  # name -> kind
        self.samples = {}   # (name, labels as a sorted tuple) -> value
        if not text.endswith("\n"):
            raise ValueError("the last line has no end")
        current, helped = None, set()
        for line in text[:-1].split("\n"):
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                if not re.fullmatch(NAME, name) or name in helped or len(line.split(" ", 3)) != 4:
                    raise ValueError(f"HELP: {line}")
                helped.add(name)
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                if name in self.families or kind not in KINDS or name not in helped:
                    raise ValueError(f"TYPE: {line}")
                self.families[name] = kind
                current = name
            else:
                self._sample(line, current)
        for name, kind in self.families.items():
            if kind == "histogram":
                self._check_histogram(name)

    def _sample(self, line, current):
        match = SAMPLE.fullmatch(line)
        if not match or current is None:
            raise ValueError(f"not a sample: {line}")
        name, labels, value = match.groups()
        kind = self.families[current]
        suffixes = ["_bucket", "_sum", "_count"] if kind == "histogram" else [""]
        if name not in [current + suffix for suffix in suffixes]:
            raise ValueError(f"{line}: stands among the samples of {current}")
        if kind == "counter" and not name.endswith("_total"):
            raise ValueError(f"{name}: a counter's name ends with _total")
        pairs = tuple(sorted(re.findall(LABEL, labels or "")))
        if len({pair.split("=")[0] for pair in pairs}) != len(pairs) or (name, pairs) in self.samples:
            raise ValueError(f"{line}: twice")
        number = float(value)
        if math.isnan(number) or (number < 0 and kind != "gauge"):
            raise ValueError(f"{line}: not a number that counts something")
        self.samples[(name, pairs)] = number

    def _check_histogram(self, name):
        series = {}
        for (sample, pairs), value in self.samples.items():
            if sample != name + "_bucket":
                continue
            bounds = [pair for pair in pairs if pair.startswith('le="')]
            rest = tuple(pair for pair in pairs if not pair.startswith('le="'))
            series.setdefault(rest, []).append((float(bounds[0][4:-1]), value))
        if not series:
            raise ValueError(f"{name} has no buckets")
        for rest, buckets in series.items():
            buckets.sort()
            counts = [count for _, count in buckets]
            if counts != sorted(counts) or buckets[-1][0] != math.inf:
                raise ValueError(f"{name}{rest}: buckets {buckets}")
            if self.samples[(name + "_count", rest)] != counts[-1] or (name + "_sum", rest) not in self.samples:
                raise ValueError(f"{name}{rest}: _count or _sum")

    def value(self, name, **labels):
        return self.samples[(name, tuple(sorted(f'{key}="{value}"' for key, value in labels.items())))]

    def counters(self):
        names = {name for name, kind in self.families.items() if kind in ("counter", "histogram")}
        return {key: value for key, value in self.samples.items()
                if key[0] in names or re.sub("_(bucket|count)$", "", key[0]) in names}
