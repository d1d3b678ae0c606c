"""What the reports of tools/spike, tools/reproduce and tools/peers have in common: tables, colors and drawings."""

import html
import io
import itertools

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
from matplotlib import pyplot  # noqa: E402  (the backend is chosen first: there may be no display)

COLORS = {"krcore": "#1b6ca8", "lite": "#d98c21", "verbs": "#a83232", "kernel": "#2f7d4f"}
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}
td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}.modelled{background:#fbf6ea;padding:.5em 1em;overflow-x:auto}
svg{max-width:100%;height:auto}pre{font-size:13px}"""


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def table(header, rows):
    """Lines for a terminal. A name of a column may have several lines."""
    names = [name.split("\n") for name in header]
    lines = [*itertools.zip_longest(*names, fillvalue=""), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines]


def html_table(header, rows):
    head = "".join(f"<th>{html.escape(' '.join(name.split()))}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def html_page(title, body):
    """A page that needs no other file."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>SurgeKV: {title}</title><style>{STYLE}</style></head><body>
{body}
</body></html>
"""


def svg_element(figure):
    """Returns the figure as an SVG element and closes it."""
    text = io.StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]
