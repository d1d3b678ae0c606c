"""The report of tools/reproduce: one HTML page that needs nothing else, Markdown, JSON, and each plot as PNG and SVG."""

import html
import json

from bootstraps import KINDS, PLANES
from figures import FIGURES, FOUND, field
from markdown_table import markdown_table
from report import COLORS, html_page, html_table, number, pyplot, svg_element

STYLES = {"bare RC": "#555555", "krcore DC": COLORS["krcore"], "krcore RC": "#2a9d5c", "copy": "#d98c21",
          "zero-copy": COLORS["krcore"], **COLORS}
NOTE = ("Numbers are medians over rounds; each round measures all configurations in turns. Everything under “Measured” is "
        "elapsed time on this machine, on the sw provider, which is software over shared memory in place of a NIC. So it "
        "contains no costs of a device or a network, and the control paths of verbs and lite are this project's own "
        "software. Published numbers are of ConnectX NICs, and are in the text only. “Exchange QP” is a queue in place of "
        "the kernel's connection manager; worker and total include it.")


def cells(name, figure):
    """Headings, and rows of strings."""
    columns = FIGURES[name].columns
    return [heading for heading, _, _ in columns], [
        [field(row, path) if digits is None else number(field(row, path), digits) for _, path, digits in columns]
        for row in figure["rows"]]


def lines(axis, rows, x, y, by, title="", ylabel="", style="-", scale=1e-6):
    """Draws a line for each value of `by`. y is multiplied by `scale`."""
    for value in dict.fromkeys(row[by] for row in rows):
        points = sorted((row[x], field(row, y) * scale) for row in rows if row[by] == value)
        label = value if style == "-" else None
        axis.plot(*zip(*points), style, color=STYLES[value], marker=".", linewidth=1, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(title, fontsize="medium")
    axis.set_ylabel(ylabel)


def chosen(rows, **wanted):
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def plot_many_to_one(rows):
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    for column, kind in enumerate(("thread", "process")):
        some = chosen(rows, worker_kind=kind)
        lines(axes[0][column], some, "in_flight", "worker_us.p50", "control_plane", f"worker: {kind}",
              "until connected, us\np50, dashed p99", scale=1)
        lines(axes[0][column], some, "in_flight", "worker_us.p99", "control_plane", f"worker: {kind}",
              "until connected, us\np50, dashed p99", "--", scale=1)
        lines(axes[1][column], some, "in_flight", "connects_per_s", "control_plane", "", "connects a second", scale=1)
        axes[1][column].set_xlabel("workers at the same time")
    axes[0][0].legend(fontsize="small")
    return figure


def plot_full_mesh(rows):
    figure, (time, rate) = pyplot.subplots(1, 2, figsize=(10, 4))
    lines(time, rows, "nodes", "mesh_us.p50", "control_plane", "", "mesh complete, us, p50", scale=1)
    lines(rate, rows, "nodes", "connects_per_s", "control_plane", "", "connects a second", scale=1)
    for axis in (time, rate):
        axis.set_xlabel("nodes")
    time.legend(fontsize="small")
    return figure


def plot_one_sided(rows):
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    for column, op in enumerate(("READ", "WRITE")):
        one, *batches = sorted({row["in_flight"] for row in rows})
        label = "one at a time, us\np50, dashed p99"
        lines(axes[0][column], chosen(rows, op=op, in_flight=one), "bytes", "latency_us.p50", "transport", op, label, scale=1)
        lines(axes[0][column], chosen(rows, op=op, in_flight=one), "bytes", "latency_us.p99", "transport", op, label, "--",
              scale=1)
        for style, batch in zip(("-", "--"), batches):
            lines(axes[1][column], chosen(rows, op=op, in_flight=batch), "bytes", "ops_per_s", "transport", "",
                  f"million a second\n{batches[0]:.0f}, dashed {batches[-1]:.0f} in flight", style)
        axes[1][column].set_xlabel("bytes")
    axes[0][0].legend(fontsize="small")
    return figure


def plot_two_sided(rows):
    figure, (time, rate) = pyplot.subplots(1, 2, figsize=(10, 4))
    one, many = sorted({row["in_flight"] for row in rows})
    lines(time, chosen(rows, in_flight=one), "bytes", "latency_us.p50", "mode", "", "one at a time, us, p50", scale=1)
    lines(rate, chosen(rows, in_flight=many), "bytes", "ops_per_s", "mode", "", f"million a second, {many:.0f} under way")
    for axis in (time, rate):
        axis.set_xlabel("bytes")
    time.legend(fontsize="small")
    return figure


def bars(axis, rows, parts, names):
    """Draws a bar for each row, of the stacked medians of the parts."""
    bottom = [0.0] * len(rows)
    for part, label in parts:
        heights = [row[part]["p50"] for row in rows]
        axis.bar(names, heights, bottom=bottom, label=label, width=0.7)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axis.tick_params(axis="x", labelsize="small")


def plot_race_bootstrap(rows):
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 4))
    parts = (("spawn_us", "spawn"), ("store_us", "open store"), ("client_us", "client"), ("lanes_us", "lanes"),
             ("first_reply_us", "first reply"))
    for axis, kind in zip(axes, KINDS):
        some = [row for plane in PLANES for row in chosen(rows, worker_kind=kind, control_plane=plane)]
        bars(axis, some, parts, [row["control_plane"] for row in some])
        axis.set_title(f"worker: {kind}", fontsize="medium")
    axes[0].set_ylabel("until the first reply, us\np50 of the parts")
    axes[0].legend(fontsize="small")
    return figure


def plot_transfer(rows):
    figure, axes = pyplot.subplots(2, 3, figsize=(10, 7), sharex="row")
    parts = (("spawn_us", "spawn"), ("open_us", "device, memory, pool"), ("datagrams_us", "exchange QP"),
             ("connect_us", "connect"), ("transfer_us", "transfer"))
    smallest = min(row["bytes"] for row in rows)
    for column, kind in enumerate(KINDS):
        lines(axes[0][column], chosen(rows, worker_kind=kind), "bytes", "total_us.p50", "control_plane",
              f"worker: {kind}", "from wanted to written, us, p50" if column == 0 else "", scale=1)
        axes[0][column].set_xlabel("bytes")
        some = [row for plane in PLANES for row in chosen(rows, worker_kind=kind, control_plane=plane, bytes=smallest)]
        bars(axes[1][column], some, parts, [row["control_plane"] for row in some])
    axes[1][0].set_ylabel(f"parts for {smallest:.0f} bytes, us, p50")
    axes[0][0].legend(fontsize="small")
    axes[1][0].legend(fontsize="small")
    return figure


PLOTS = {"many_to_one": plot_many_to_one, "full_mesh": plot_full_mesh, "one_sided": plot_one_sided,
         "two_sided": plot_two_sided, "race_bootstrap": plot_race_bootstrap, "transfer": plot_transfer}


def plot(folder, name, figure):
    """Draws a figure into a PNG and an SVG file. Returns the SVG element."""
    drawn = PLOTS[name](figure["rows"])
    if not figure["valid"]:
        drawn.text(0.5, 0.5, "INVALID", color="#a83232", alpha=0.25, fontsize=60, ha="center", va="center", rotation=20)
    drawn.suptitle(f"{FIGURES[name].title} (measured on sw)", fontsize="medium")
    drawn.tight_layout()
    drawn.savefig(folder / f"{name}.png", dpi=120)
    svg = svg_element(drawn)
    (folder / f"{name}.svg").write_text(svg, "utf-8")
    return svg


def validity(figure):
    share = f"Others used {figure['cpu_of_others']:.0%} of the machine during this figure."
    return share if figure["valid"] else f"INVALID, the machine was busy: {share}"


def sentences(name, figure):
    """What was published, how it was measured here, what the result is, and whether it counts."""
    return (("Published", FIGURES[name].published), ("Here", FIGURES[name].measured), ("Found", FOUND[name](figure["rows"])),
            ("Machine", validity(figure)))


def origin(report):
    where = report["machine"]
    return (f"{where['cpu']}, {where['cpus']} CPUs, Linux {where['kernel']}; commit {where['commit']}; {report['when']}; "
            f"provider {report['provider']}; {report['rounds']} rounds, seed {report['seed']}; flags: "
            f"{' '.join(report['flags']) or 'none'}")


def markdown(report):
    text = ["# The evaluation, repeated", origin(report), NOTE]
    for name, figure in report["figures"].items():
        text += [f"## {FIGURES[name].title}", *(f"{label}: {said}" for label, said in sentences(name, figure)),
                 f"![{FIGURES[name].title}]({name}.png)", markdown_table(*cells(name, figure))]
    for model in report["modelled"].values():
        text += [f"## Modelled: `{model['command']}`", f"```\n{model['text'].strip()}\n```"]
    return "\n\n".join(text) + "\n"


def html_report(report, drawings):
    body = []
    for name, figure in report["figures"].items():
        said = "".join(f"<p><b>{label}.</b> {html.escape(text)}</p>" for label, text in sentences(name, figure))
        body.append(f"<h3>{html.escape(FIGURES[name].title)}</h3>{said}<figure>{drawings[name]}</figure>"
                    f"{html_table(*cells(name, figure))}")
    modelled = "".join(f"<h3><code>{html.escape(model['command'])}</code></h3><pre>{html.escape(model['text'])}</pre>"
                       for model in report["modelled"].values())
    return html_page("the evaluation", f"""<h1>The evaluation, repeated</h1><p>{html.escape(origin(report))}.</p>
<h2>Measured</h2><p>{html.escape(NOTE)}</p>{''.join(body)}
{f'<h2>Modelled</h2><div class="modelled"><p>In virtual time, from published constants. Nothing of this was measured.</p>{modelled}</div>'
 if modelled else ''}""")


def write(folder, report):
    """Writes report.html, report.md, report.json and the plots to `folder`, which it makes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {name: plot(folder, name, figure) for name, figure in report["figures"].items()}
    (folder / "report.html").write_text(html_report(report, drawings), "utf-8")
    (folder / "report.md").write_text(markdown(report), "utf-8")
    (folder / "report.json").write_text(json.dumps(report, indent=1), "utf-8")
