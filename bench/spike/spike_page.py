"""The report of tools/spike: tables, timelines as SVG, one HTML page that needs nothing else, and JSON."""

import html
import json

import numpy

from report import COLORS, html_page, html_table, number, pyplot, svg_element

# Names of columns; a terminal shows them on several lines.
BOOTSTRAP_HEADER = ("control\nplane", "worker\nis a", "first reply\nafter, us\nmedian", "\n\n99% within", "start the\nworker\nmedian",
                    "open the\nstore\nmedian", "make a\nclient\nmedian", "connect\n(of client)\nmedian", "\n\n99% within",
                    "serve the\nfirst request\nmedian")


def bootstrap_cells(row):
    parts = row["bootstrap_us"]
    return (row["control_plane"], row["worker_kind"], number(parts["bootstrap"]["p50"]), number(parts["bootstrap"]["p99"]),
            number(parts["spawn"]["p50"]), number(parts["store"]["p50"]), number(parts["client"]["p50"]),
            number(parts["connect"]["p50"], 1), number(parts["connect"]["p99"], 1), number(parts["first_reply"]["p50"]))


HEADER = ("control\nplane", "worker\nis a", "90% of the new\nload served\nafter, ms\nmedian", "\n\n\n99% within",
          "new worker's\nfirst reply\nafter, us\nmedian", "\n\n\n99% within", "99% of the\nrequests before\nthe spike\nwithin, us",
          "99% of those\nin the spike\nwithin, us", "in the spike\nto before", "seconds of\nworkers used", "CPU of the\nmachine")


def cells(row):
    whole = row["bootstrap_us"]["bootstrap"]
    reach = [None if row["to_plateau_s"][p] is None else row["to_plateau_s"][p] * 1e3 for p in ("p50", "p99")]
    return (row["control_plane"], row["worker_kind"], number(reach[0]), number(reach[1]), number(whole["p50"]),
            number(whole["p99"]), number(row["steady_p99_us"]), number(row["spike_p99_us"]),
            number(row["spike_p99_us"] / row["steady_p99_us"], 1), number(row["worker_seconds"], 1),
            f"{row['cpu']:.0%}{'' if row['valid'] else ' INVALID'}")


def plot(runs, load, title):
    """Draws the three timelines of the runs, one above the other. Returns an SVG element."""
    figure, (rate, tail, workers) = pyplot.subplots(3, 1, figsize=(10, 8), sharex=True)
    for run in runs:
        line = run["timeline"]
        at = numpy.arange(len(line["workers"])) * line["bin_s"]
        style = {"color": COLORS[run["control_plane"]], "linewidth": 1, "label": run["control_plane"]}
        if run is runs[0]:
            rate.plot(at, line["due_per_s"], color="#bbb", linewidth=1, label="due")
        rate.plot(at, line["replies_per_s"], **style)
        tail.plot(at, [numpy.nan if p99 is None else p99 / 1e3 for p99 in line["p99_us"]], **style)
        workers.step(at, line["workers"], where="post", **style)
    tail.axhline(load["slo_us"] / 1e3, color="#888", linestyle=":", linewidth=1)
    tail.set_yscale("log")
    rate.set_ylabel("replies a second")
    tail.set_ylabel("p99, ms")
    workers.set_ylabel("workers that serve")
    workers.set_xlabel("seconds")
    rate.set_title(title)
    rate.legend(loc="upper right", fontsize="small")
    figure.tight_layout()
    return svg_element(figure)


def in_short(section):
    """Header and rows of the summary, for one kind of worker."""
    kind = shown_kind(section)
    rows = [row for row in section["measured"] if row["worker_kind"] == kind]
    return (("workers connect by", "a new worker's first reply after: median", "99% of them within",
             "99% of the requests in the spike within"),
            [(row["control_plane"], *(f"{number(us / 1e3, 2)} ms" if us is not None else "-" for us in (
                row["bootstrap_us"]["bootstrap"]["p50"], row["bootstrap_us"]["bootstrap"]["p99"], row["spike_p99_us"])))
             for row in rows])


def shown_kind(section):
    """The kind of worker that the summary shows: fork, if it was measured, as compute nodes are processes."""
    kinds = [row["worker_kind"] for row in section["measured"]]
    return "fork" if "fork" in kinds else kinds[0]


def tables(section):
    """Header and rows of a provider's tables: the spike's, and that of workers added alone, if there were such."""
    alone = [bootstrap_cells(row) for row in section["one_at_a_time"]]
    return ((HEADER, [cells(row) for row in section["measured"]]), *([(BOOTSTRAP_HEADER, alone)] if alone else []))


def side_by_side(sections):
    """Header and rows of the table that has the providers side by side, each in columns of its own. kernel has
    figures on verbs only."""
    header = ["control plane", "worker"]
    columns = []
    for section in sections:
        provider = section["provider"]
        header += [f"{provider}: first reply of a worker added alone after, us", f"{provider}: 90% of the new load served after, ms",
                   f"{provider}: 99% of the requests in the spike within, us"]
        alone = {(row["control_plane"], row["worker_kind"]): row["bootstrap_us"]["bootstrap"]["p50"]
                 for row in section["one_at_a_time"]}
        found = {}
        for row in section["measured"]:
            key = row["control_plane"], row["worker_kind"]
            reach = row["to_plateau_s"]["p50"]
            found[key] = (number(alone.get(key)), number(None if reach is None else reach * 1e3), number(row["spike_p99_us"]))
        columns.append(found)
    keys = dict.fromkeys(key for found in columns for key in found)
    return header, [[*key, *(cell for found in columns for cell in found.get(key, ("-", "-", "-")))] for key in keys]


WHAT = {
    "sw": "software over shared memory in place of a NIC. Here the control paths of verbs and lite are this project's own "
          "software, without a device's costs; the modelled figures have those.",
    "verbs": "libibverbs. Where the device is Soft-RoCE in a virtual machine, everything is emulated. Its figures are then good "
             "for ratios only, and the load is small: a few requests a second. The control plane kernel is krcore.ko over the "
             "same device.",
}


def measured_html(section, folder):
    """A provider's part of the page; writes its timelines to `folder`."""
    load, where, provider = section["load"], section["machine"], section["provider"]
    figures = []
    for kills in (False, True):
        kinds = dict.fromkeys(run["worker_kind"] for run in section["runs"])
        for kind in sorted(kinds, key=lambda kind: kind != shown_kind(section)):
            runs = {run["control_plane"]: run for run in section["runs"]
                    if run["worker_kind"] == kind and run["kills"] == kills}
            if not runs:
                continue
            title = f"{provider}, workers: {kind}"
            title += f", one killed every {load['kill_every_s']:g} s of the spike" if kills else ""
            svg = plot(list(runs.values()), load, title)
            (folder / f"timeline-{provider}-{kind}{'-kills' if kills else ''}.svg").write_text(svg, "utf-8")
            figures.append(f"<figure>{svg}</figure>")
    spike, *alone = (html_table(header, rows) for header, rows in tables(section))
    source = "Clients of Redis sent the requests, over TCP. " if section.get("redis") else ""
    return f"""<h2>Measured on {provider}</h2>
<p>Load rose from {load['base']:,g} to {load['peak']:,g} requests a second at second {load['start_s']:g}, for
{load['length_s']:g} s. {source}Workers here are of the kind <code>{shown_kind(section)}</code>.</p>
{html_table(*in_short(section))}
{''.join(figures)}
<h3>The spike in detail</h3>
{spike}
{''.join('<h3>Workers added one at a time, to a service that is not busy</h3>' + table for table in alone)}
<p>Provider <code>{provider}</code>: {WHAT[provider]} {html.escape(where['cpu'])}, {where['cpus']} CPUs, Linux
{html.escape(where['kernel'])}, commit {html.escape(where['commit'])}. Arrivals are a Poisson process. A worker is {
'taken to serve' if section.get("redis") else 'given'} {load['capacity']:,g} requests a second whatever its control plane, the autoscaler an SLO of {load['slo_us']:,} us of queueing.
Latency counts from when a request was due.</p>"""


def write(folder, report, model_text):
    """Writes index.html, spike.json and the timelines to `folder`, which it makes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spike.json").write_text(json.dumps(report, indent=1), "utf-8")
    sections = report["sections"]
    body = f"""<h1>A load spike, and the compute nodes that follow it</h1>
{'<p>With --quick.</p>' if report['quick'] else ''}
{'<h2>The providers side by side</h2>' + html_table(*side_by_side(sections)) if len(sections) > 1 else ''}
{chr(10).join(measured_html(section, folder) for section in sections)}
<h2>Modelled</h2>
<div class="modelled"><pre>{html.escape(model_text)}</pre></div>"""
    (folder / "index.html").write_text(html_page("the spike", body), "utf-8")
