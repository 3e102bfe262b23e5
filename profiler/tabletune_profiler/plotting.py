"""The picture of a table document: step times, goodput with the table over it, survival.

``tabletune plot`` and the end of ``tabletune profile`` call it. A table alone does not show whether it
can be believed: the picture shows the cliff at the capture limit, how much the lengths differ, and how
well acceptance is known. Figures are made by matplotlib's objects, without pyplot, so that nothing is
kept between calls and no display is needed; equal documents give equal SVG bytes.
"""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import ArrayLike, NDArray

from tabletune import tables
from tabletune.acceptance import expected_tokens_of
from tabletune.documents import Document, Graph, Measure, Profile
from tabletune_profiler import consoles

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": "#5a5a5a",
    "axes.labelcolor": "#3a3a3a",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": "#3a3a3a",
    "ytick.color": "#3a3a3a",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "text.parse_math": False,
    "svg.hashsalt": "tabletune",
}

WIDTH = 12.0
"""Inches."""
DPI = 150
MOST_COLUMNS_WITH_TIMES = 20
"""Beyond, the cells of the heat map are too small to hold their number."""
MOST_ROWS_WITH_TIMES = 16
MOST_POSITIONS_LABELLED = 8
RANGES_BOTTOM, RANGES_HEIGHT = 1.025, 0.06
"""Where the table's strip lies, in heights of the goodput panel."""

INK = "#1c1c1c"
FAINT = "#6b6b6b"
LIMIT = "#c8102e"
TABLE = "#f2a900"
MARKERS = "osD^vPX*<>"

TIME_COLOURS = mpl.colormaps["cividis"]
LENGTH_COLOURS = mpl.colormaps["viridis"]
"""Both go from dark to light evenly, also for the colour-blind and in print."""

EXCLUDED: dict[str, Any] = {"facecolor": "#f4f4f4", "edgecolor": "#a0a0a0", "hatch": "////", "lw": 0}

GRAPH_NOTES = {Graph.FULL: "", Graph.PIECEWISE: "piecewise", Graph.NONE: "no graph"}
MEASURES = {Measure.GPU_SPAN: "GPU span", Measure.QUIET_INTERVAL: "quiet intervals"}


def png(document: Document) -> bytes:
    """Return the picture of ``document`` as PNG."""
    return _save(document, "png")


def svg(document: Document) -> bytes:
    """Return the picture of ``document`` as SVG, without the date that matplotlib writes by itself."""
    return _save(document, "svg", metadata={"Date": None})


def _save(document: Document, picture_format: str, **options: Any) -> bytes:
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A model's name may be in any script; the font shows a box for what it lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        file = io.BytesIO()
        draw(document).savefig(file, format=picture_format, dpi=DPI, **options)
    return file.getvalue()


def draw(document: Document) -> Figure:
    """Return the figure of three panels; drawn and saved under :data:`STYLE`."""
    heat_height = min(1.3 + 0.4 * len(document.profile.draft_lengths), 6.5)
    lower_height = 4.3
    figure = Figure(figsize=(WIDTH, 0.8 + heat_height + lower_height), layout="constrained")
    parts: Any = figure.subfigures(3, 1, height_ratios=[0.8, heat_height, lower_height])
    head, heat, lower = parts
    _write_head(head, document)
    _draw_step_times(heat.subplots(), document)
    goodput, survival = lower.subplots(1, 2, width_ratios=[2.6, 1])
    _draw_goodput(goodput, document)
    _draw_survival(survival, document)
    return figure


def _write_head(head: SubFigure, document: Document) -> None:
    fingerprint, profile = document.fingerprint, document.profile
    drafter = f"{fingerprint.drafter_method} {_short(fingerprint.drafter, 40)}".strip()
    count = f"{fingerprint.gpu_count} x " if fingerprint.gpu_count > 1 else ""
    measured = (
        f"{count}{_short(fingerprint.gpu, 50)}, vLLM {_short(fingerprint.vllm, 20)},"
        f" {fingerprint.runner} runner; step times by {MEASURES[profile.measure]}"
        f" at {profile.context_length} tokens of context; generation {document.generation},"
        f" {document.created_at:%Y-%m-%d}"
    )
    head.text(
        0.012, 0.82, f"{_short(fingerprint.model, 50)} with {drafter}", fontsize=14, weight="bold", va="top"
    )
    head.text(0.012, 0.36, measured, fontsize=9, color=FAINT, va="top")


def _draw_step_times(axes: Axes, document: Document) -> None:
    """Draw the grid as cells: colour and number for the time, a note for steps without a full graph."""
    profile = document.profile
    times = _grid(profile)
    rows, columns = times.shape
    norm = _norm(times)
    axes.set_title("Step time, ms (median of pure decode steps)")
    axes.set_facecolor(EXCLUDED["facecolor"])
    image = axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        times,
        cmap=TIME_COLOURS,
        norm=norm,
        edgecolors="white" if _has_room(times) else "none",
        linewidth=0.8,
    )
    for row, column in zip(*np.nonzero(np.isnan(times)), strict=True):
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, label="excluded", **EXCLUDED))
    if _has_room(times):
        _write_times(axes, profile, times, norm)
    _draw_choice(axes, document)
    handles: list[Artist] = [Patch(facecolor="none", edgecolor=INK, lw=1.6, label="the table's choice")]
    limit = max(document.fingerprint.cudagraph_capture_sizes, default=0)
    if _draw_capture_limit(axes, profile, limit):
        label = f"beyond it more than {limit} tokens, the largest size captured"
        handles.append(Line2D([], [], color=LIMIT, lw=2.2, label=label))
    if np.isnan(times).any():
        handles.append(Patch(label="excluded", **EXCLUDED))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)
    axes.set_xticks(*_labels_of_columns(profile.batch_sizes))
    axes.set_yticks(range(rows), [f"K={draft_length}" for draft_length in profile.draft_lengths])
    axes.set_xlabel("batch size B, requests in the step")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, aspect=14 + 2 * rows, fraction=0.03)
    bar.outline.set_visible(False)
    ticks = [float(norm.inverse(place)) for place in (0.02, 0.26, 0.5, 0.74, 0.98)]
    bar.set_ticks(ticks, labels=[_milliseconds(tick) for tick in ticks])
    bar.minorticks_off()


def _has_room(times: NDArray[np.float64]) -> bool:
    """Whether the cells are large enough for a number and a border of their own."""
    rows, columns = times.shape
    return bool(columns <= MOST_COLUMNS_WITH_TIMES and rows <= MOST_ROWS_WITH_TIMES)


def _write_times(axes: Axes, profile: Profile, times: NDArray[np.float64], norm: Normalize) -> None:
    kinds = {graph for row in profile.graph for graph in row if graph is not None}
    for row, column in zip(*np.nonzero(~np.isnan(times)), strict=True):
        graph = profile.graph[row][column]
        note = "" if graph is None or len(kinds) == 1 else GRAPH_NOTES[graph]
        time = times[row, column]
        colour = _readable_on(TIME_COLOURS(norm(time)))
        centre: dict[str, Any] = {"ha": "center", "va": "center", "color": colour}
        axes.text(column, row + (0.14 if note else 0), _milliseconds(time), fontsize=8, **centre)
        if note:
            axes.text(column, row - 0.27, note, fontsize=5.8, **centre)


def _draw_choice(axes: Axes, document: Document) -> None:
    """Frame the length that the table takes at each batch size, one frame for neighbours of one length."""
    profile = document.profile
    chosen = [tables.length_at(document.table, batch_size) for batch_size in profile.batch_sizes]
    start = 0
    for draft_length, run in itertools.groupby(chosen):
        columns = len(list(run))
        corner = (start - 0.46, profile.draft_lengths.index(draft_length) - 0.44)
        for colour, width in (("white", 3.4), (INK, 1.7)):
            axes.add_patch(
                Rectangle(
                    corner, columns - 0.08, 0.88, fill=False, edgecolor=colour, lw=width, label="choice"
                )
            )
        start += columns


def _draw_capture_limit(axes: Axes, profile: Profile, limit: int) -> bool:
    """Draw the edge between cells with at most ``limit`` tokens and larger ones; say whether there is one."""
    if limit == 0:
        return False
    edges = [
        sum(batch_size * (draft_length + 1) <= limit for batch_size in profile.batch_sizes) - 0.5
        for draft_length in profile.draft_lengths
    ]
    last = len(profile.batch_sizes) - 0.5
    if all(edge == last for edge in edges):
        return False
    x = np.repeat(edges, 2)
    y = np.concatenate([[row - 0.5, row + 0.5] for row in range(len(edges))])
    inside = x < last
    axes.plot(x[inside], y[inside], color="white", lw=4.5, solid_joinstyle="miter", zorder=3)
    axes.plot(x[inside], y[inside], color=LIMIT, lw=2.2, solid_joinstyle="miter", zorder=4)
    return True


def _draw_goodput(axes: Axes, document: Document) -> None:
    """Draw each length's goodput over that of speculation off; in tokens per second all would be one line.

    A line is dotted from a step with one kind of graph to one with another: between the two lies a cliff
    at a batch size that was not measured.
    """
    profile, prediction = document.profile, document.prediction
    batch_sizes = np.asarray(profile.batch_sizes, dtype=np.float64)
    relative = _relative_goodput(document)
    line: dict[str, Any] = {"color": TABLE, "alpha": 0.6, "label": "table", "solid_capstyle": "round"}
    axes.plot(prediction.batch_sizes, _ratio(prediction.table, prediction.off), lw=9, zorder=1, **line)
    handles: list[Artist] = [Line2D([], [], lw=7, **line)]
    marked = len(batch_sizes) <= MOST_COLUMNS_WITH_TIMES
    for row in reversed(range(len(profile.draft_lengths))):
        draft_length = profile.draft_lengths[row]
        kinds = profile.graph[row]
        changes = [column for column in range(1, len(kinds)) if kinds[column] != kinds[column - 1]]
        line = {
            "color": _length_colour(profile.draft_lengths, draft_length),
            "label": f"K={draft_length}",
            "marker": MARKERS[row % len(MARKERS)] if marked else None,
            "markersize": 5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
        }
        axes.plot(
            np.insert(batch_sizes, changes, math.nan),
            np.insert(relative[row], changes, math.nan),
            lw=1.5,
            **line,
        )
        axes.plot(batch_sizes, relative[row], lw=1.2, ls=":", color=line["color"])
        handles.append(Line2D([], [], lw=1.5, **line))
    if any(len(set(kinds) - {None}) > 1 for kinds in profile.graph):
        handles.append(Line2D([], [], color=FAINT, lw=1.2, ls=":", label="change of graph"))
    axes.set_title("Predicted goodput, relative to speculation off", pad=24)
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), ncols=1 + len(handles) // 17)
    axes.set_xscale("log", base=2)
    axes.set_xlim(profile.batch_sizes[0] / 1.15, document.max_batch_size * 1.15)
    axes.minorticks_off()
    axes.set_xticks(*_labels_on_log_axis(document))
    axes.grid(axis="y", color="#e4e4e4", lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("batch size B; below, kept tokens per second with the table")
    axes.set_ylabel("times the goodput without speculation")
    _draw_ranges(axes, document)


def _relative_goodput(document: Document) -> NDArray[np.float64]:
    """Return each measured cell's goodput over that of speculation off, rows K and columns B."""
    profile, prediction, acceptance = document.profile, document.prediction, document.acceptance
    tokens = expected_tokens_of(acceptance.survival, acceptance.proposal_rate, profile.draft_lengths)
    goodput = np.asarray(profile.batch_sizes) * tokens[:, np.newaxis] / _grid(profile) * 1000.0
    off = dict(zip(prediction.batch_sizes, prediction.off, strict=True))
    return _ratio(goodput, [off.get(batch_size, math.nan) for batch_size in profile.batch_sizes])


def _ratio(part: ArrayLike, whole: ArrayLike) -> NDArray[np.float64]:
    """Return ``part / whole``, NaN where ``whole`` is 0."""
    divisor = np.asarray(whole, dtype=np.float64)
    ratio: NDArray[np.float64] = np.asarray(part) / np.where(divisor == 0, math.nan, divisor)
    return ratio


def _draw_ranges(axes: Axes, document: Document) -> None:
    """Draw the table itself as a strip above the panel, its lengths written where there is room."""
    place = axes.get_xaxis_transform()
    left, right = np.log2(axes.get_xlim())
    for first, last, draft_length in document.table:
        start, end = np.clip(np.log2([first - 0.5, last + 0.5]), left, right)
        room = (end - start) / (right - left)
        colour = _length_colour(document.profile.draft_lengths, draft_length)
        axes.add_patch(
            Rectangle(
                (2**start, RANGES_BOTTOM),
                2**end - 2**start,
                RANGES_HEIGHT,
                transform=place,
                facecolor=colour,
                edgecolor="white",
                lw=1 if room > 0.01 else 0,
                clip_on=False,
                label="range",
            )
        )
        if room > 0.03:
            axes.text(
                2 ** ((start + end) / 2),
                RANGES_BOTTOM + 0.46 * RANGES_HEIGHT,
                f"K={draft_length}" if room > 0.045 else str(draft_length),
                transform=place,
                ha="center",
                va="center",
                fontsize=8,
                weight="bold",
                color=_readable_on(colour),
            )


def _draw_survival(axes: Axes, document: Document) -> None:
    """Draw survival by position with its standard error, and below it the drafts that it comes from."""
    acceptance = document.acceptance
    survival = np.asarray(acceptance.survival)
    drafted = np.asarray(acceptance.drafted)
    positions = np.arange(1, len(survival) + 1)
    counted = drafted > 0
    error = np.sqrt(survival * (1 - survival) / np.maximum(drafted, 1))
    axes.set_title("Survival", pad=24)
    axes.bar(positions, survival, width=0.62, color="#9db7d5", label="survival")
    axes.errorbar(
        positions[counted],
        survival[counted],
        yerr=error[counted],
        fmt="none",
        ecolor=INK,
        elinewidth=1.2,
        capsize=3,
    )
    shown = range(0, len(positions), math.ceil(len(positions) / MOST_POSITIONS_LABELLED) or 1)
    for index in shown:
        top = min(survival[index] + (error[index] if counted[index] else 0), 1.0)
        axes.text(
            positions[index], top + 0.015, f"{survival[index]:.2f}", ha="center", va="bottom", fontsize=8
        )
    axes.set_xticks(
        [index + 1 for index in shown], [f"{index + 1}\n{_count(float(drafted[index]))}" for index in shown]
    )
    axes.set_xlim(0.4, max(len(positions), 2) + 0.6)
    axes.set_ylim(0, 1.08)
    share = acceptance.proposal_rate
    drafts = "" if share == 1 else f"\n{share:.0%} of requests and steps got a draft"
    axes.set_xlabel(f"draft position; below, drafts counted{drafts}")
    axes.set_ylabel("share accepted up to the position")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", color="#e4e4e4", lw=0.8)
    axes.set_axisbelow(True)


def _grid(profile: Profile) -> NDArray[np.float64]:
    """Return the step times in milliseconds, rows K and columns B, NaN where excluded."""
    return np.array([[math.nan if time is None else time for time in row] for row in profile.step_time_ms])


def _norm(times: NDArray[np.float64]) -> Normalize:
    """Return a logarithmic colour scale over the times, of some width also where all are equal."""
    known = times[~np.isnan(times)]
    low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
    return LogNorm(low / 1.05, high * 1.05)


def _length_colour(draft_lengths: Sequence[int], draft_length: int) -> Any:
    """Return the colour of a length: grey for 0, then from dark to light."""
    if draft_length == 0:
        return "#7a7a7a"
    speculative = [length for length in draft_lengths if length]
    place = speculative.index(draft_length) / max(len(speculative) - 1, 1)
    return LENGTH_COLOURS(0.86 * place)


def _readable_on(colour: Any) -> str:
    red, green, blue = mpl.colors.to_rgb(colour)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _labels_of_columns(batch_sizes: Sequence[int], most: int = 40) -> tuple[list[int], list[str]]:
    step = math.ceil(len(batch_sizes) / most)
    columns = list(range(0, len(batch_sizes), step))
    return columns, [str(batch_sizes[column]) for column in columns]


def _labels_on_log_axis(document: Document, most: float = 22.0) -> tuple[list[int], list[str]]:
    """Return the measured batch sizes that have room for a label, the largest always among them."""
    prediction = document.prediction
    whole = math.log2(prediction.batch_sizes[-1] / prediction.batch_sizes[0]) or 1.0
    ticks: list[int] = []
    for batch_size in reversed(prediction.batch_sizes):
        if not ticks or math.log2(ticks[-1] / batch_size) >= whole / most:
            ticks.append(batch_size)
    table = dict(zip(prediction.batch_sizes, prediction.table, strict=True))
    return ticks, [f"{batch_size}\n{_count(table[batch_size])}" for batch_size in ticks]


def _count(number: float) -> str:
    """Return a count in at most four characters or so: 616, 2.4k, 37k, 1.2M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.{1 if number < 10 * unit else 0}f}{name}"
    return f"{number:.0f}"


def _milliseconds(time: float) -> str:
    return f"{time:.0f}" if time >= 100 else f"{time:.{1 if time >= 10 else 2}f}"


def _short(text: str, most: int) -> str:
    """Return ``text`` on one line, cut in the middle: both ends of a path or a product's name matter."""
    text = " ".join(consoles.plain(text).split())
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"
