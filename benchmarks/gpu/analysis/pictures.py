"""The report's pictures. Each has to be read at half a page's width, and without telling red from green."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from gpu.analysis import goals
from gpu.analysis.closed_loops import LoopResult
from gpu.analysis.goals import Findings
from gpu.analysis.recoveries import Recovery
from gpu.analysis.runs import constant_length
from gpu.analysis.stepping import Cell
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

COLOURS = {
    "tuned": "#0072b2",
    "adapt": "#56b4e9",
    "turbo": "#e69f00",
    "nightjar": "#cc79a7",
    "documented": "#d55e00",
}
"""Those of Okabe and Ito, which remain apart for the colour-blind; markers tell them apart too."""
MARKERS = {"tuned": "o", "adapt": "D", "turbo": "s", "nightjar": "^", "documented": "v"}
LENGTH_COLOURS = ("#000000", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
LENGTH_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SHAPES = ("-", "--", "-.", ":")
LOWEST, HIGHEST = 0.5, 1.3
"""Limits of shares that are drawn: one bad policy is not to flatten all else."""


def draw(found: Findings, folder: Path) -> list[Path]:
    """Draw what there is and return the paths."""
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        drawn = [
            _loads(found, folder / "loads.png"),
            _recoveries(found, folder / "recovery.png"),
            _predicted(found, folder / "predicted.png"),
        ]
    return [path for path in drawn if path is not None]


def _loads(found: Findings, path: Path) -> Path | None:
    panels: dict[tuple[str, str, int, tuple[int, int]], list[LoopResult]] = {}
    for result in found.all_loops:
        if any(name in COLOURS for name in result.shares):
            loop = result.loop
            key = result.run, loop.comparison, loop.prompt_tokens, loop.output_tokens
            panels.setdefault(key, []).append(result)
    if not panels:
        return None
    figure, axes = _grid(len(panels), 2.5)
    shown = [
        share
        for own in panels.values()
        for result in own
        for name, share in result.shares.items()
        if name in COLOURS
    ]
    lowest = min(share.mean - (share.error or 0.0) for share in shown)
    highest = max(share.mean + (share.error or 0.0) for share in shown)
    limits = max(LOWEST, min(0.88, lowest - 0.02)), min(HIGHEST, max(1.05, highest + 0.01))
    for axis, (key, own) in zip(axes, panels.items(), strict=True):
        several = sum(other[0] == key[0] for other in panels) > 1
        title = f"{key[0]}, prompts of {key[2]:,}" if several else _titles(found)[key[0]]
        _loads_panel(axis, own, title, limits)
    _finish(figure, axes, "tokens/s, share of the best constant", "open requests", path)
    return path


def _loads_panel(axis: Axes, own: Sequence[LoopResult], title: str, limits: tuple[float, float]) -> None:
    loads = [result.loop.open for result in own]
    names = {name for result in own for name in result.shares}
    constants = [name for name in names if constant_length(name) is not None]
    axis.axhspan(0.98, 1.02, color="#000000", alpha=0.07, linewidth=0, label="a tie (2%)")
    axis.axhline(0.97, color="#444444", linewidth=0.8, linestyle=(0, (1, 2)), label="goal, 97%")
    for name in sorted(constants, key=constant_length_of):
        length = constant_length_of(name)
        longest = length == max(map(constant_length_of, constants))
        shares = np.array([_mean_of(result, name) for result in own])
        if np.nanmax(shares) < limits[0]:
            continue
        axis.plot(
            np.arange(len(own)), shares, color="#000000" if longest else "#9a9a9a", zorder=2,
            linewidth=1.2 if longest else 0.9, linestyle=SHAPES[length % len(SHAPES)],
            # A single load has no line.
            marker=f"${length}$", markersize=5, markeredgewidth=0.3, label=f"constant {length}",
        )  # fmt: skip
    drawn = [name for name in COLOURS if name in names]
    for place, name in enumerate(drawn):
        # Side by side, or error bars would hide each other.
        aside = 0.03 * len(own) * (place - (len(drawn) - 1) / 2)
        errors = [(result.shares[name].error or 0.0) if name in result.shares else 0.0 for result in own]
        axis.errorbar(
            np.arange(len(own)) + aside, [_mean_of(result, name) for result in own], yerr=errors,
            color=COLOURS[name], marker=MARKERS[name], markersize=4, label=name, elinewidth=0.9, capsize=2,
            linewidth=2.0 if name == "tuned" else 1.2, zorder=4 if name == "tuned" else 3,
        )  # fmt: skip
    axis.set_xticks(range(len(loads)), [str(load) for load in loads])
    axis.set_xlim(-0.2 - 0.05 * len(own), len(own) - 0.8 + 0.05 * len(own))
    axis.set_title(title)
    axis.set_ylim(*limits)
    axis.yaxis.set_major_formatter(FuncFormatter(_percent))


def _titles(found: Findings) -> dict[str, str]:
    """Return each run's name with what sets its engine apart."""
    graphs = {"advised": "advised sizes", "default": "vLLM's sizes", "full": "FULL"}
    return {run.name: f"{run.name} ({graphs.get(run.graphs, run.graphs)})" for run in found.runs}


def _mean_of(result: LoopResult, name: str) -> float:
    return result.shares[name].mean if name in result.shares else float("nan")


def constant_length_of(name: str) -> int:
    """Return the length of a constant; -1 of any other policy."""
    length = constant_length(name)
    return -1 if length is None else length


def _recoveries(found: Findings, path: Path) -> Path | None:
    panels: dict[tuple[str, str, int], list[Recovery]] = {}
    for recovery in found.recoveries:
        panels.setdefault((recovery.run, recovery.kind, recovery.open), []).append(recovery)
    if not panels:
        return None
    figure, axes = _grid(len(panels), 2.7)
    shares = [share for recovery in found.recoveries for share in recovery.shares]
    stale = [recovery.stale.mean for recovery in found.recoveries if recovery.stale is not None]
    bottom = min(0.9, math.floor(10 * max(min(*shares, *stale, 0.9), 0.3)) / 10)
    top = min(HIGHEST, max(1.05, max(shares) + 0.02))
    for axis, ((run, kind, open_requests), own) in zip(axes, panels.items(), strict=False):
        spread = max((recovery.right_spread or 0.0) for recovery in own)
        axis.axhspan(1 - spread, 1 + spread, color="#000000", alpha=0.08, linewidth=0)
        axis.axhline(own[0].stays, color="#444444", linewidth=0.8, linestyle=(0, (1, 2)))
        for place, recovery in enumerate(own):
            colour = LENGTH_COLOURS[(place + 1) % len(LENGTH_COLOURS)]
            axis.plot(recovery.seconds, recovery.shares, color=colour, linewidth=1.2, label=_start(recovery))
            points = np.array((recovery.seconds, recovery.shares))
            for length in sorted(set(recovery.lengths)):
                there = points[:, np.array(recovery.lengths) == length]
                # On white, or the line would hide the digit.
                for marker, size, shade in (("o", 7.5, "#ffffff"), (f"${length}$", 5.5, colour)):
                    axis.plot(
                        *there, color=shade, marker=marker, markersize=size, markeredgewidth=0.3,
                        linestyle="none", zorder=3,
                    )  # fmt: skip
            if recovery.stale is not None:
                axis.axhline(recovery.stale.mean, color=colour, linewidth=1.0, linestyle="--")
        axis.set_title(f"{run}: {kind}, {open_requests} open")
        axis.set_ylim(bottom, top)
        axis.set_xlim(left=0)
        axis.yaxis.set_major_formatter(FuncFormatter(_percent))
        axis.legend(loc="lower right", fontsize=7.5, handlelength=1.6, labelspacing=0.25)
    told = (
        "digits: length in force at the load\ngrey: spread of one window of the right table, dotted: the goal"
    )
    figure.supxlabel(f"seconds from the start, or the switch; {told}", fontsize=9)
    figure.supylabel("tokens/s, share of the right table", fontsize=9)
    figure.savefig(path, dpi=180)
    plt.close(figure)
    return path


def _start(recovery: Recovery) -> str:
    match recovery.start.split():
        case ["times", factor]:
            return f"all times x {factor}"
        case ["times", factor, "length", length]:
            return f"times at K={length} x {factor}"
    if recovery.kind != "switch":
        return recovery.start
    rates = "acceptance " + " ".join(f"{rate:g}" for rate in recovery.rates)
    return rates if recovery.stale is None else f"{rates}; dashed: stale"


def _predicted(found: Findings, path: Path) -> Path | None:
    panels: dict[str, list[Cell]] = {}
    for cell in goals.profiled_cells(found):
        if cell.interval_ratio is not None:
            panels.setdefault(cell.run, []).append(cell)
    if not panels:
        return None
    figure, axes = _grid(len(panels), 2.5)
    lengths = sorted({cell.draft_length for own in panels.values() for cell in own})
    for axis, (run, own) in zip(axes, panels.items(), strict=False):
        axis.axhspan(0.95, 1.05, color="#000000", alpha=0.08, linewidth=0)
        axis.axhline(1.0, color="#444444", linewidth=0.8)
        for length in lengths:
            cells = [cell for cell in own if cell.draft_length == length]
            colour = LENGTH_COLOURS[length % len(LENGTH_COLOURS)]
            marker = LENGTH_MARKERS[length % len(LENGTH_MARKERS)]
            quiet = [
                (cell.batch_size, cell.quiet_ratio.mean) for cell in cells if cell.quiet_ratio is not None
            ]
            users = [(cell.batch_size, cell.interval_ratio.mean) for cell in cells if cell.interval_ratio]
            # Drawn for the legend also where this run has no such cell.
            axis.plot(*_columns(users), marker, color=colour, markersize=3.5, markerfacecolor="none",
                      markeredgewidth=0.7, alpha=0.6)  # fmt: skip
            axis.plot(*_columns(quiet), marker, color=colour, markersize=3.5, label=f"K = {length}")
        axis.set_xscale("log", base=2)
        sizes = [cell.batch_size for cell in own]
        ticks = [2**power for power in range(int(math.log2(max(sizes))) + 2)]
        ticks = [tick for tick in ticks if min(sizes) / 2 <= tick <= 2 * max(sizes)]
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
        axis.set_title(run)
        axis.yaxis.set_major_formatter(FuncFormatter(_percent))
        all_ratios = [cell.interval_ratio.mean for cell in own if cell.interval_ratio is not None]
        all_ratios += [cell.quiet_ratio.mean for cell in own if cell.quiet_ratio is not None]
        lowest, highest = min(all_ratios) - 0.03, max(all_ratios) + 0.03
        axis.set_ylim(max(0.3, min(0.85, lowest)), min(1.8, max(1.12, highest)))
    below = "batch size (filled: GPU spans of quiet steps, hollow: intervals)"
    _finish(figure, axes, "measured over predicted tokens/s", below, path)
    return path


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [size for size, _ in points], [ratio for _, ratio in points]


def _grid(panels: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = 1 if panels == 1 else 2
    rows = -(-panels // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(7.2, height * rows + 0.7), squeeze=False, layout="constrained"
    )
    flat = list(axes.flat)
    for axis in flat[panels:]:
        axis.remove()
    return figure, flat[:panels]


def _finish(figure: Figure, axes: Sequence[Axes], left: str, below: str, path: Path) -> None:
    """Put one legend of all panels below, and write the picture."""
    legend: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.supxlabel(below, fontsize=9)
    figure.supylabel(left, fontsize=9)
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=min(5, len(legend)))
    figure.savefig(path, dpi=180)
    plt.close(figure)


def _percent(share: float, _place: int) -> str:
    return f"{100 * share:.0f}%"
