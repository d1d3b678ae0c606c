#!/usr/bin/python3
"""Draws what build/bin/bench_peers --json wrote.

Usage: bench/peers/plot.py RESULTS.json OUT       writes OUT.png and OUT.svg
"""

import json
import pathlib
import statistics
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
from report import COLORS, number, pyplot  # noqa: E402  (found in the folder above)

STYLES = {"surgekv": COLORS["krcore"], "bound": "#555555", "bound-unsafe": "#aaaaaa", "tbb": "#2a9d5c",
          "absl": "#7bbf6a", "boost": "#8a5fb0", "lmdb": COLORS["lite"], "memcached": COLORS["verbs"],
          "redis": "#d9756a"}


def plot_rates(rows):
    """Draws a panel for each number of workers and requests in flight, with a group of bars for each load."""
    panels = sorted({(row["workers"], row["in_flight"]) for row in rows})
    loads = list(dict.fromkeys(row["load"] for row in rows))
    peers = [peer for peer in STYLES if any(row["peer"] == peer for row in rows)]
    rates = {(row["peer"], row["load"], row["workers"], row["in_flight"]): statistics.median(row["ops_per_s"]) / 1e6
             for row in rows if row["ops_per_s"]}
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(11, 3 * len(panels) + 1), squeeze=False)
    width = 0.8 / len(peers)
    for axis, (workers, in_flight) in zip(axes[:, 0], panels):
        for index, peer in enumerate(peers):
            heights = [rates.get((peer, load, workers, in_flight), 0) for load in loads]
            axis.bar([place + index * width for place in range(len(loads))], heights, width, label=peer,
                     color=STYLES[peer])
        axis.set_yscale("log")
        axis.set_xticks([place + 0.4 - width / 2 for place in range(len(loads))], loads)
        axis.set_ylabel("million operations a second")
        axis.set_title(f"workers: {workers}, requests in flight: {in_flight}", fontsize="medium")
    axes[0][0].legend(fontsize="small", ncols=len(peers), loc="lower center", bbox_to_anchor=(0.5, 1.1), frameon=False)
    return figure


def plot_goals(goals):
    """Draws how much of each goal is reached: 1 is the goal, more is better."""
    goals = [goal for goal in goals if goal.get("measured")]
    shares = [goal["measured"] / goal["goal"] if goal["at_least"] else goal["goal"] / goal["measured"] for goal in goals]
    figure, axis = pyplot.subplots(figsize=(11, 0.5 * len(goals) + 1.5))
    places = range(len(goals))
    axis.barh(places, shares, color=[COLORS["krcore"] if goal["met"] else COLORS["verbs"] for goal in goals])
    for place, goal, share in zip(places, goals, shares):
        axis.text(share, place, f" {number(goal['measured'], 2)}", va="center", fontsize="small")
    axis.set_yticks(places, [f"{goal['measure']} ({'>=' if goal['at_least'] else '<='} {goal['goal']:g})" for goal in goals],
                    fontsize="small", wrap=True)
    axis.axvline(1, color="#222222", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlabel("measured over goal (for an upper bound: goal over measured)")
    axis.invert_yaxis()
    return figure


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    rows = [row for row in results["rows"] if not row["timed"]]
    figure = plot_goals(results["goals"]) if results["goals"] else plot_rates(rows)
    shape = results["shape"]
    figure.suptitle(f"{shape['records']:,} records of {shape['key_bytes']} B/{shape['value_bytes']} B, medians of "
                    f"{results['repetitions']}", fontsize="medium")
    figure.tight_layout()
    for suffix in ("png", "svg"):
        figure.savefig(f"{sys.argv[2]}.{suffix}", dpi=120)


if __name__ == "__main__":
    main()
