"""``tabletune diff``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue
from rich.console import RenderableType
from rich.text import Text

from tabletune import comparing, documents
from tabletune.comparing import Comparison, FieldChange
from tabletune.documents import Recommendation, RecommendationKind
from tabletune_profiler import consoles, files, pages
from tabletune_profiler.commands.parameters import JsonOption
from tabletune_profiler.exit_codes import ExitCode

MOST_CELLS = 10
"""Cells shown of those whose step time moved, those that moved most."""
NOTABLE = 0.05
"""Step times that moved less are left out: two windows of one cell differ by as much (ENGINE.md 6)."""


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Table document.", show_default=False)],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Table document; `-` is standard input.", show_default=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Compare two table documents.

    Which batch sizes draft otherwise, and what moved behind it: step times, survival, the engine that was
    measured, settings. Ends with 1 where the documents differ, as diff(1) does.

    Example:

    ```
    tabletune diff old.json new.json
    ```
    """
    before, after = files.read_document(old), files.read_document(new)
    comparison = comparing.compare(before, after)
    if as_json:
        consoles.write(documents.dump(comparison))
    elif before != after:
        consoles.show(*sections(comparison))
    if before != after:
        raise typer.Exit(ExitCode.DIFFERENT)
    consoles.note("The documents are equal.")


def sections(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the parts of the page; what did not change is a line or nothing."""
    yield Text(f"Generation {comparison.old_generation} -> {comparison.new_generation}")
    old, new = _served(comparison.old_recommendation), _served(comparison.new_recommendation)
    yield Text(f"Serve with {new}, as before." if old == new else f"Serve with {new}, before with {old}.")
    if comparison.same_engine:
        yield Text("Both were measured on the same engine.")
    else:
        yield pages.section("Measured on another engine", *_fields(comparison.fingerprint))
    if not comparison.same_measure:
        yield Text("Step times were taken in different ways: their ratios mean little.", style="yellow")
    if comparison.old_context_length != comparison.new_context_length:
        yield Text(
            f"Steps were timed at {comparison.new_context_length:,} tokens of context per request, before at"
            f" {comparison.old_context_length:,}: longer contexts take longer steps.",
            style="yellow",
        )
    yield pages.section("Table", _table(comparison))
    yield pages.section("Step times, new over old", *_step_times(comparison))
    yield pages.section("Survival", _survival(comparison))
    yield pages.section("Predicted goodput, each with its own table", _goodput(comparison))
    for title, changes in (
        ("Speculative config", comparison.speculative_config),
        ("How the table is computed", comparison.control),
        ("Engine advice", comparison.engine),
    ):
        if changes:
            yield pages.section(title, *_fields(changes))


def _served(recommendation: Recommendation) -> str:
    match recommendation.kind:
        case RecommendationKind.TABLE:
            return "the table"
        case RecommendationKind.FIXED:
            return f"the fixed draft length {recommendation.draft_length}"
        case RecommendationKind.OFF:
            return "speculation off"


def _fields(changes: Sequence[FieldChange]) -> Iterator[RenderableType]:
    for change in changes:
        old, new = _value(change.old), _value(change.new)
        told = "changed" if old is None or new is None else f"{old} -> {new}"
        yield Text.assemble((consoles.plain(change.field), "bold"), f": {told}")


def _value(value: JsonValue) -> str | None:
    """Return a setting in short; ``None`` for what is no setting but a text, or a list of several."""
    numbers = [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
    if numbers and numbers == value:
        return pages.short(f"[{pages.spans(numbers)}]")
    told = json.dumps(value, ensure_ascii=False)
    return consoles.plain(told) if len(told) <= pages.LONGEST_VALUE else None


def _table(comparison: Comparison) -> RenderableType:
    if not comparison.table:
        return Text("The same ranges.")
    grid = pages.grid("batch size", "old K", "new K")
    for change in comparison.table:
        sizes = str(change.first) if change.first == change.last else f"{change.first}-{change.last}"
        grid.add_row(sizes, *("-" if length is None else str(length) for length in (change.old, change.new)))
    return grid


def _step_times(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.step_time_ratio is None:
        yield Text("The profiles have no cell in common.")
        return
    cells = len(comparison.step_times)
    yield Text(f"{comparison.step_time_ratio:.3f} in the geometric mean of {cells} common cells")
    moved = [change for change in comparison.step_times if abs(math.log(change.ratio)) > math.log1p(NOTABLE)]
    if not moved:
        return
    grid = pages.grid("batch size", "K", "old ms", "new ms", "ratio")
    for change in sorted(moved, key=lambda change: -abs(math.log(change.ratio)))[:MOST_CELLS]:
        grid.add_row(
            str(change.batch_size),
            str(change.draft_length),
            f"{change.old_ms:.2f}",
            f"{change.new_ms:.2f}",
            f"{change.ratio:.3f}",
        )
    yield grid
    if len(moved) > MOST_CELLS:
        yield Text(f"and {len(moved) - MOST_CELLS} more that moved by over {NOTABLE:.0%}", style="dim")


def _survival(comparison: Comparison) -> RenderableType:
    rates = ""
    if comparison.old_proposal_rate != comparison.new_proposal_rate:
        rates = f"proposal rate {comparison.old_proposal_rate:.3f} -> {comparison.new_proposal_rate:.3f}"
    if not comparison.survival:
        return Text(rates or "The same.")
    grid = pages.grid("position", "old", "new")
    for change in comparison.survival:
        grid.add_row(str(change.position), f"{change.old:.3f}", f"{change.new:.3f}")
    if rates:
        grid.caption = Text(rates)
        grid.caption_justify = "left"
    return grid


def _goodput(comparison: Comparison) -> RenderableType:
    grid = pages.grid("batch size", "old", "new", "change")
    for change in comparison.goodput:
        grid.add_row(
            str(change.batch_size),
            f"{change.old:,.0f}",
            f"{change.new:,.0f}",
            pages.percent(change.ratio - 1),
        )
    if comparison.goodput_ratio is not None:
        grid.caption = Text(f"{pages.percent(comparison.goodput_ratio - 1)} in the geometric mean")
        grid.caption_justify = "left"
    return grid
