"""``tabletune show``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tabletune import tables
from tabletune.documents import Acceptance, Document, Graph, Measure, Prediction, Profile, RecommendationKind
from tabletune_profiler import consoles, files, pages
from tabletune_profiler.commands.parameters import DocumentArgument

LENGTHS_ABREAST = 6
"""Columns of the step-time grid that fit on 80 characters."""

GRAPH_MARKS = {Graph.PIECEWISE: "p", Graph.NONE: "n"}
GRAPH_NAMES = {
    Graph.FULL: "a full CUDA graph",
    Graph.PIECEWISE: "a piecewise CUDA graph",
    Graph.NONE: "no CUDA graph",
}

MEASURES = {
    Measure.GPU_SPAN: "work on the GPU, by CUDA events",
    Measure.QUIET_INTERVAL: "from one step's result to the next, with no prompt near",
}


def show(source: DocumentArgument) -> None:
    """Show a table document to a person.

    The table, what it is worth, the times and acceptance behind it, engine settings worth changing, and
    what it was measured on. A program reads the document itself, which is JSON.

    Example:

    ```
    tabletune show table.json
    ```
    """
    consoles.show(*sections(files.read_document(source)))


def sections(document: Document) -> Iterator[RenderableType]:
    """Yield the parts of the page, each readable at 80 columns."""
    profile = document.profile
    yield Group(*_recommendation(document))
    yield pages.section("Table", _ranges(document))
    yield pages.section("Predicted goodput, kept tokens per second", _goodput(document, document.prediction))
    yield pages.section("Step times of pure decode steps, milliseconds", *_step_times(document, profile))
    if profile.mixed:
        yield pages.section("Steps that share a prompt, milliseconds", _mixed(profile))
    yield pages.section("Acceptance", *_acceptance(document.acceptance))
    yield pages.section("Engine settings", *_advice(document))
    yield pages.section("Measured on", _fingerprint(document))


def _recommendation(document: Document) -> Iterator[RenderableType]:
    recommendation = document.recommendation
    served = {
        RecommendationKind.TABLE: "the table",
        RecommendationKind.FIXED: f"the fixed draft length {recommendation.draft_length}",
        RecommendationKind.OFF: "speculation off",
    }[recommendation.kind]
    yield Text.assemble("Serve with ", (served, "bold green"), ".")
    if recommendation.kind is not RecommendationKind.OFF:
        yield Text(
            f"Predicted gain in goodput over speculation off: {pages.percent(recommendation.predicted_gain)}"
        )
    if recommendation.reason:
        yield pages.text(recommendation.reason)
    moment = f"{document.created_at:%Y-%m-%d %H:%M %Z}"
    yield Text(f"Generation {document.generation}, computed from a {document.source}, {moment}", style="dim")


def _ranges(document: Document) -> RenderableType:
    grid = pages.grid("batch size", "K")
    for first, last, draft_length in document.table:
        grid.add_row(str(first) if first == last else f"{first}-{last}", str(draft_length))
    return grid


def _goodput(document: Document, prediction: Prediction) -> RenderableType:
    fixed = f"always K={prediction.fixed_length}"
    grid = pages.grid("batch size", "K", "table", "best", "of K", fixed, "off", "table/off")
    for index, batch_size in enumerate(prediction.batch_sizes):
        table, off = prediction.table[index], prediction.off[index]
        grid.add_row(
            str(batch_size),
            str(tables.length_at(document.table, batch_size)),
            f"{table:,.0f}",
            f"{prediction.best[index]:,.0f}",
            str(prediction.best_length[index]),
            f"{prediction.fixed[index]:,.0f}",
            f"{off:,.0f}",
            pages.percent(table / off - 1) if off else "",
        )
    return grid


def _step_times(document: Document, profile: Profile) -> Iterator[RenderableType]:
    kinds = [kind for kind in Graph if any(kind in row for row in profile.graph)]
    rows = range(len(profile.draft_lengths))
    for start in range(0, len(rows), LENGTHS_ABREAST):
        block = rows[start : start + LENGTHS_ABREAST]
        with_off = bool(profile.off_ms) and start == 0
        grid = pages.grid("batch size", *(["off"] if with_off else []))
        for row in block:
            grid.add_column(f"{f'K={profile.draft_lengths[row]}':>7}", min_width=9, overflow="fold")
        for column, batch_size in enumerate(profile.batch_sizes):
            chosen = tables.length_at(document.table, batch_size)
            cells = [
                _cell(
                    profile.step_time_ms[row][column],
                    profile.graph[row][column] if len(kinds) > 1 else None,
                    chosen=profile.draft_lengths[row] == chosen,
                )
                for row in block
            ]
            off = [_cell(profile.off_ms[column], None, chosen=False)] if with_off else []
            grid.add_row(str(batch_size), *off, *cells)
        yield grid
    if len(kinds) > 1:
        graphs = [f"{mark} with {GRAPH_NAMES[kind]}" for kind, mark in GRAPH_MARKS.items() if kind in kinds]
    else:
        graphs = [f"all with {GRAPH_NAMES[kind]}" for kind in kinds]
    yield Text("; ".join(["* the table's choice", *graphs]), style="dim")
    yield Text(f"Medians, {MEASURES[profile.measure]}; context {profile.context_length} tokens", style="dim")
    for (reason, draft_length), batch_sizes in _excluded(profile).items():
        where = f"K={draft_length} at {pages.spans(sorted(batch_sizes))}: "
        yield Text.assemble((f"No time for {where}", "yellow"), pages.text(reason))


def _cell(milliseconds: float | None, graph: Graph | None, *, chosen: bool) -> Text:
    number = "-" if milliseconds is None else f"{milliseconds:.{1 if milliseconds >= 100 else 2}f}"
    mark = "" if graph is None else GRAPH_MARKS.get(graph, "")
    style = "bold green" if chosen else "yellow" if mark else ""
    return Text(f"{number:>7}{'*' if chosen else ' '}{mark}", style=style)


def _excluded(profile: Profile) -> dict[tuple[str, int], list[int]]:
    """Return the batch sizes left out, by reason and draft length."""
    cells: dict[tuple[str, int], list[int]] = {}
    for cell in profile.excluded:
        cells.setdefault((cell.reason, cell.draft_length), []).append(cell.batch_size)
    return cells


def _mixed(profile: Profile) -> RenderableType:
    grid = pages.grid("batch size", "K", "prompt tokens", "time", "prompts")
    for step in profile.mixed:
        grid.add_row(
            str(step.batch_size),
            str(step.draft_length),
            str(step.prompt_tokens),
            f"{step.step_time_ms:.2f}",
            str(step.samples),
        )
    return grid


def _acceptance(acceptance: Acceptance) -> Iterator[RenderableType]:
    grid = pages.grid("position", "survival", "std. error", "drafted", "accepted")
    for index, survival in enumerate(acceptance.survival):
        drafted = acceptance.drafted[index]
        error = f"{math.sqrt(survival * (1 - survival) / drafted):.3f}" if drafted else ""
        grid.add_row(
            str(index + 1), f"{survival:.3f}", error, f"{drafted:,}", f"{acceptance.accepted[index]:,}"
        )
    yield grid
    proposed = (
        "" if acceptance.proposal_rate == 1 else f"; {acceptance.proposal_rate:.1%} of steps got a draft"
    )
    yield Text(f"From {acceptance.prompts} prompts{proposed}", style="dim")


def _advice(document: Document) -> Iterator[RenderableType]:
    advice = document.engine
    if advice.reason:
        yield pages.text(advice.reason)
    for change in advice.changes:
        gain = "" if change.predicted_gain is None else f" ({pages.percent(change.predicted_gain)})"
        yield Text.assemble(
            (consoles.plain(change.setting), "bold"),
            f": {pages.short(change.current)} -> {pages.short(change.recommended)}{gain}",
        )
        yield Padding(pages.text(change.reason), (0, 0, 0, 2), expand=False)
    if advice.predicted_gain is not None:
        yield Text(
            f"Together {pages.percent(advice.predicted_gain)} output tokens per second predicted,"
            f" for prompts of {advice.prompt_tokens} and outputs of {advice.output_tokens} tokens."
        )
    for gap in advice.without_full_graph:
        if gap.batch_sizes:
            yield Text(
                f"Without a full graph at K={gap.draft_length}: {len(gap.batch_sizes)} batch sizes,"
                f" {pages.short(pages.spans(gap.batch_sizes))}"
            )
    if not (advice.reason or advice.changes or advice.without_full_graph):
        yield Text("Nothing to change.")


def _fingerprint(document: Document) -> RenderableType:
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for field, value in document.fingerprint.model_dump(by_alias=True).items():
        if isinstance(value, tuple | list):
            value = pages.spans(value)
        grid.add_row(Text(field, style="dim"), pages.text(str(value) if value != "" else "-"))
    return grid
