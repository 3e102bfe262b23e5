"""What a profile has measured so far, in memory; its stored form is :class:`partials.Partial`.

``profiling`` adds to it and asks what is left to do, ``results`` makes the document's numbers of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tabletune_profiler import messages, partials
from tabletune_profiler.partials import CellRecord, MixedRecord, OffRecord, Partial
from tabletune_profiler.planning import Column, MixedCell

OUT_OF_TIME = "--time-budget"
"""How the reason of a cell starts that there was no time for."""


@dataclass
class State:
    """What is known so far; its stored form is :class:`Partial`."""

    acceptance: partials.AcceptanceRecord | None = None
    cells: dict[tuple[int, int], CellRecord] = field(default_factory=dict)
    off: dict[int, OffRecord] = field(default_factory=dict)
    mixed: dict[MixedCell, MixedRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, partial: Partial) -> State:
        """Return what an earlier run left."""
        return cls(
            acceptance=partial.acceptance,
            # What the earlier run had no time for is this one's to do.
            cells={
                (cell.batch_size, cell.draft_length): cell
                for cell in partial.cells
                if not cell.excluded.startswith(OUT_OF_TIME)
            },
            off={record.batch_size: record for record in partial.off},
            mixed={
                MixedCell(record.batch_size, record.draft_length, record.prompt_tokens): record
                for record in partial.mixed
            },
        )

    def add_samples(self, timed: messages.CellTimed) -> None:
        """Add one visit to a cell."""
        key = (timed.batch_size, timed.draft_length)
        earlier = self.cells.get(key)
        self.cells[key] = CellRecord(
            batch_size=timed.batch_size,
            draft_length=timed.draft_length,
            samples=(*(earlier.samples if earlier else ()), *partials.rows(timed.samples)),
            visits=1 + (earlier.visits if earlier else 0),
        )

    def add_off(self, timed: messages.OffTimed) -> None:
        """Take in the steps of one batch size with speculation off."""
        rows = partials.rows(timed.samples)
        self.off[timed.batch_size] = OffRecord(batch_size=timed.batch_size, samples=rows)

    def visits_left(self, column: Column) -> tuple[int, ...]:
        """Return the visits of ``column`` that were not made yet, in their order."""
        left = []
        made = {k: cell.visits for (b, k), cell in self.cells.items() if b == column.batch_size}
        for length in column.visits:
            record = self.cells.get((column.batch_size, length))
            if record is not None and record.excluded:
                continue
            if made.get(length, 0) > 0:
                made[length] -= 1
            else:
                left.append(length)
        return tuple(left)

    def exclude(self, batch_size: int, draft_length: int, reason: str, *, fatal: bool = False) -> None:
        """Leave the cell out; samples that it has stay on disk."""
        earlier = self.cells.get((batch_size, draft_length))
        record = earlier or CellRecord(batch_size=batch_size, draft_length=draft_length)
        self.cells[batch_size, draft_length] = record.model_copy(update={"excluded": reason, "fatal": fatal})
