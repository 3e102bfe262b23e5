"""Draws the dashboard's panels from pages that were scraped, as docs/operations/monitoring.md shows it.

Grafana cannot be built from a Go module, and a dashboard that nobody has seen is full of empty panels. So
Prometheus' own engine evaluates every query of every panel (tools/controlplane/promql) at each scrape, and
matplotlib draws the results the way Grafana would, as plainly as it gets.

    python tools/drawing_dashboard.py PAGES.json.gz PICTURE.png
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

import dashboards
from dashboards import Panel

PROGRAM = Path(__file__).parents[1] / ".cache" / "controlplane" / "promql"
CHOSEN = {"$__rate_interval": "60s", "$namespace": "ml", "$draft_table": "qwen"}
"""What Grafana's variables would be."""
Samples = Sequence[Mapping[str, Any]]


def draw(pages: Sequence[Mapping[str, Any]], picture: Path) -> None:
    """Draw all panels as they were at the last of ``pages``, with the time before."""
    moments = sorted({page["seconds"] for page in pages})
    rows = list(dashboards.ROWS.items())
    figure = pyplot.figure(figsize=(20, 3.4 * len(rows)), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, (title, row) in zip(parts, rows, strict=True):
        part.suptitle(_chosen(title), x=0.01, ha="left", fontweight="bold")
        for axes, panel in zip(part.subplots(1, len(row), squeeze=False)[0], row, strict=True):
            axes.set_title(panel.title, fontsize=10)
            _draw_panel(axes, panel, pages, moments[-1:] if panel.instant else moments)
    figure.savefig(picture, dpi=80)


def _draw_panel(
    axes: Axes, panel: Panel, pages: Sequence[Mapping[str, Any]], moments: Sequence[float]
) -> None:
    expressions = [_chosen(query.expression) for query in panel.queries]
    results = _evaluate(pages, expressions, moments)
    if panel.kind == "timeseries":
        _draw_lines(axes, panel, _lines(panel, results, moments), moments)
    elif panel.kind == "state-timeline":
        _draw_states(axes, _lines(panel, results, moments), moments)
    elif panel.kind == "barchart":
        bars = sorted(results[0][0], key=lambda sample: float(sample["labels"]["first"]))
        axes.bar([bar["labels"]["batch"] for bar in bars], [float(bar["value"]) for bar in bars])
    elif panel.kind == "stat":
        words = [f"{sample['labels']['phase']}  {sample['value']}" for sample in results[0][0]]
        axes.text(0.5, 0.5, "\n".join(words), ha="center", va="center", fontsize=12)
        axes.set_axis_off()
    else:
        _draw_table(axes, panel, [result[0] for result in results])


Line = dict[float, float]
"""Values by moment."""


def _lines(panel: Panel, results: Sequence[Sequence[Samples]], moments: Sequence[float]) -> dict[str, Line]:
    """Return a panel's series by their legend."""
    lines: dict[str, Line] = {}
    for query, result in zip(panel.queries, results, strict=True):
        for moment, samples in zip(moments, result, strict=True):
            for sample in samples:
                legend = _legend(query.legend, sample["labels"])
                lines.setdefault(legend, {})[moment] = float(sample["value"])
    return lines


def _draw_states(axes: Axes, lines: Mapping[str, Line], moments: Sequence[float]) -> None:
    """Draw a line for each series, coloured by its value, which stands at its start."""
    for place, line in enumerate(reversed(list(lines.values()))):
        values = [line.get(moment, float("nan")) for moment in moments]
        axes.scatter(
            [moment - moments[0] for moment in moments],
            [place] * len(moments),
            c=values,
            marker="s",
            cmap="BuPu",
            vmin=0,
            vmax=4,
        )
        for moment, before, now in zip(moments, [None, *values], values, strict=False):
            if now != before:
                axes.text(moment - moments[0], place + 0.2, f"{now:.0f}", fontsize=8)
    axes.set_yticks(range(len(lines)), list(reversed(list(lines))))


def _draw_lines(axes: Axes, panel: Panel, lines: Mapping[str, Line], moments: Sequence[float]) -> None:
    times = [moment - moments[0] for moment in moments]
    if panel.stacked:
        heights = [[line.get(moment, 0.0) for moment in moments] for line in lines.values()]
        axes.stackplot(times, *heights, labels=list(lines), alpha=0.7)
    else:
        for legend, line in lines.items():
            axes.plot(times, [line.get(moment, float("nan")) for moment in moments], label=legend)
    axes.set_ylim(bottom=0)
    if 0 < len(lines) <= 12:
        axes.legend(fontsize=7)


def _draw_table(axes: Axes, panel: Panel, results: Sequence[Samples]) -> None:
    """Draw a table with a row per set of labels, and a column per query."""
    rows: dict[tuple[str, ...], list[str]] = {}
    names: list[str] = []
    for number, samples in enumerate(results):
        for sample in samples:
            names = [name for name in sorted(sample["labels"]) if name != "first"]
            first = float(sample["labels"].get("first", 0))
            key = (f"{first:09.0f}", *(sample["labels"][name] for name in names))
            cells = rows.setdefault(key, [""] * len(results))
            cells[number] = f"{float(sample['value']) * 1e3:.1f} ms" if panel.unit == "s" else ""
    axes.set_axis_off()
    complete = {key: cells for key, cells in sorted(rows.items()) if len(results) == 1 or all(cells)}
    body = [[*key[1:], *(cells if len(results) > 1 else [])] for key, cells in complete.items()]
    head = [*names, *([query.legend for query in panel.queries] if len(results) > 1 else [])]
    if body:
        table = axes.table(body[:14], colLabels=head, loc="center")
        table.auto_set_font_size(False)
        table.set_fontsize(7)


def _legend(template: str, labels: Mapping[str, str]) -> str:
    """Return Grafana's ``{{name}}`` filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template)


def _chosen(text: str) -> str:
    for name, value in CHOSEN.items():
        text = text.replace(name, value)
    return text


def _evaluate(
    pages: Sequence[Mapping[str, Any]], expressions: Sequence[str], moments: Sequence[float]
) -> list[list[Samples]]:
    """Return the samples of each expression at each moment."""
    queries = [
        {"expression": expression, "seconds": moment} for expression in expressions for moment in moments
    ]
    request = json.dumps({"pages": pages, "queries": queries})
    done = subprocess.run([PROGRAM], input=request, capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)["results"]
    errors = {result["error"] for result in results} - {""}
    if errors:
        sys.exit("\n".join(sorted(errors)))
    samples = [result["samples"] for result in results]
    return [samples[place * len(moments) : (place + 1) * len(moments)] for place in range(len(expressions))]


def run() -> None:
    """Draw the pages that the command line names."""
    source, picture = map(Path, sys.argv[1:3])
    draw(json.loads(gzip.decompress(source.read_bytes()))["pages"], picture)
    print(f"Written: {picture}")


if __name__ == "__main__":
    run()
