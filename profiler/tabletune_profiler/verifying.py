"""Whether a document's predictions come true: each constant length served, and compared. Pure functions.

``profiling`` has the engine serve the prompts at one batch size and length after the other, in the same
run as the profile; ``benchmarks/truth`` keeps the result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tabletune import predictions
from tabletune.documents import Document
from tabletune_profiler.messages import GoodputMeasured


@dataclass(frozen=True)
class VerifiedCell:
    """One batch size and constant length: kept tokens per second, predicted and measured."""

    batch_size: int
    draft_length: int
    predicted: float
    measured: float
    standard_error: float
    """Of the measured value, relative; from its spread over successive blocks of steps."""
    predicted_step_ms: float
    measured_step_ms: float
    steps: int

    @property
    def error(self) -> float:
        """Predicted over measured, less one: 0.02 is a prediction 2% too high."""
        return self.predicted / self.measured - 1.0


def compare(
    document: Document, batch_size: int, draft_length: int, measured: GoodputMeasured
) -> VerifiedCell | None:
    """Return prediction and measurement of a cell; ``None`` where the document has no time for it."""
    profile = document.profile
    row, column = profile.draft_lengths.index(draft_length), profile.batch_sizes.index(batch_size)
    step_ms = profile.step_time_ms[row][column]
    if step_ms is None:
        return None
    goodput = predictions.goodput(np.full((1, batch_size), step_ms), document.acceptance, [draft_length])
    value = 1e3 * measured.kept_tokens / (measured.step_ms * measured.steps)
    blocks = measured.block_goodput
    return VerifiedCell(
        batch_size=batch_size,
        draft_length=draft_length,
        predicted=float(goodput[0, batch_size - 1]),
        measured=value,
        standard_error=statistics.stdev(blocks) / math.sqrt(len(blocks)) / value,
        predicted_step_ms=step_ms,
        measured_step_ms=measured.step_ms,
        steps=measured.steps,
    )


@dataclass(frozen=True)
class Choice:
    """The table's length at one batch size against the length that measured best there."""

    batch_size: int
    table_length: int
    best_length: int
    loss: float
    """Share of the best measured goodput that the table's length gives up; 0 where it is the best."""


def choices(document: Document, cells: Sequence[VerifiedCell]) -> tuple[Choice, ...]:
    """Return, for every batch size with measurements, what the table's choice costs by measurement."""
    found = []
    for batch_size in sorted({cell.batch_size for cell in cells}):
        measured = {cell.draft_length: cell.measured for cell in cells if cell.batch_size == batch_size}
        chosen = next(length for first, last, length in document.table if first <= batch_size <= last)
        if chosen in measured:
            best = max(measured, key=lambda length: measured[length])
            found.append(Choice(batch_size, chosen, best, 1.0 - measured[chosen] / measured[best]))
    return tuple(found)
