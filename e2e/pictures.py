"""The demonstration's picture: what servers draft and keep, before and after the operator's correction.

Drawn from the record of ``e2e/timelines.py``, in the style of ``tabletune plot``:

    python -m e2e picture demo/cluster/timeline.json docs/pictures/demo-cluster
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from e2e.timelines import Record, rates
from tabletune_profiler.plotting import FAINT, INK, STYLE

DPI = 150
DRAFTED, KEPT, WASTED = "#1c1c1c", "#35938c", "#f6dcc8"
TITLE = "The requests change, and the operator shortens the drafts"


def draw(record: Record, path: Path) -> list[Path]:
    """Write the picture as PNG and SVG, ``path`` with their endings; return both."""
    written = []
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        for ending in ("png", "svg"):
            written.append(path.with_suffix(f".{ending}"))
            # An SVG has its date in it otherwise.
            metadata = {"Date": None} if ending == "svg" else None
            _figure(record).savefig(written[-1], dpi=DPI, metadata=metadata)
    return written


def _figure(record: Record) -> Figure:
    pods = sorted(record["samples"][-1]["pods"])
    figure = Figure(figsize=(12, 0.9 + 2.0 * len(pods)), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[0.9, 2.0 * len(pods)])
    head, body = parts
    _write_head(head, record)
    every: Any = body.subplots(len(pods), 1, sharex=True, squeeze=False)
    for number, (pod, axes) in enumerate(zip(pods, every[:, 0], strict=True), 1):
        _draw_server(axes, record, pod, f"Server {number}")
    every[-1, 0].set_xlabel("seconds")
    _write_marks(every[0, 0], record)
    handles = [
        Line2D([], [], color=DRAFTED, lw=1.8, label="tokens drafted"),
        Patch(color=KEPT, label="of them accepted"),
        Patch(color=WASTED, label="computed in vain"),
    ]
    head.legend(handles=handles, loc="upper right", ncols=3)
    return figure


def _write_head(head: Any, record: Record) -> None:
    on = record["conditions"]
    answered = sum(one["answered"] for one in record["requests"].values())
    failed = sum(one["failed"] for one in record["requests"].values())
    head.text(0.012, 0.92, TITLE, fontsize=14, weight="bold", va="top")
    told = (
        f"{on['model']} with {on['drafter']} drafts, vLLM {on['vllm']}, two servers on Kubernetes"
        f" {on['kubernetes']}; {answered} requests answered, {failed} failed\n"
        f"{on['machine']}; `{on['command']}`, {on['date']}"
    )
    head.text(0.012, 0.52, told, fontsize=9, color=FAINT, va="top", linespacing=1.5)


def _draw_server(axes: Axes, record: Record, pod: str, name: str) -> None:
    seconds, drafted, accepted = rates(record, pod)
    axes.fill_between(seconds, accepted, drafted, color=WASTED, lw=0)
    axes.fill_between(seconds, 0, accepted, color=KEPT, lw=0)
    axes.plot(seconds, drafted, color=DRAFTED, lw=1.8)
    axes.set_ylabel(f"{name}\ntokens per draft")
    axes.set_ylim(0, 1.15 * max(drafted))
    axes.set_yticks(range(int(max(drafted)) + 1))
    axes.set_xlim(seconds[0], seconds[-1])
    for mark in _shown(record, axes):
        axes.axvline(mark["seconds"], color=INK, lw=1.0, ls=(0, (4, 3)))


def _shown(record: Record, axes: Axes) -> list[Record]:
    start, end = axes.get_xlim()
    return [mark for mark in record["marks"] if start <= mark["seconds"] <= end]


def _write_marks(axes: Axes, record: Record) -> None:
    """Write what happened above the panels, each beside its line; of two that are close one goes higher."""
    start, end = axes.get_xlim()
    last, height = start - (end - start), 0
    for mark in _shown(record, axes):
        near = (mark["seconds"] - last) / (end - start) < 0.2
        height = height + 1 if near else 0
        last = mark["seconds"]
        axes.annotate(
            mark["what"],
            (mark["seconds"], 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(4, 3 + 13 * height),
            textcoords="offset points",
            fontsize=9,
            color=INK,
        )
