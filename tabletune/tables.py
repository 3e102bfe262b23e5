"""The draft-length table: from goodput to ranges of batch sizes, and between ranges and vLLM's lookup.

Called to compute a document's table and, in the plugin, a corrected one. The plain choice, the best
length at each batch size, follows the noise of the profile: near a crossing it flips back and forth
and yields dozens of ranges that differ by nothing. Smoothing it the plain way loses true ranges: a
single batch size without a full CUDA graph costs 11 ms more at one length (ENGINE.md 2) and needs a
range of its own. So the computation below bounds the loss at every batch size, and nowhere else is a
range given up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tabletune.documents import Control, Range, Table

NARROW_TIES = 2.0
"""Tie tolerances that a narrow range may lose when it is merged. Such a range rests on one column of the
grid or two, where the profile's noise does not average out; at the default it is 2%, below which the
paper calls two measurements a tie."""


class TableError(ValueError):
    """A table that cannot be computed, or ranges that are none."""


def compute(goodput: NDArray[np.float64], draft_lengths: Sequence[int], control: Control) -> Table:
    """Return the table for ``goodput``, ``(len(draft_lengths), max_batch_size)`` kept tokens per second.

    The loss of a length at a batch size is what it predicts below the best allowed length there.

    1. Pinned: a pinned batch size keeps its length.
    2. Allowed: every other takes an allowed length with a known goodput (a finite one).
    3. Tie and merge tolerance: a length is acceptable where it loses at most the larger of the two.
    4. Of the tables of acceptable lengths, take those with the fewest ranges: a batch size keeps its
       neighbour's length where another gains too little, and a range extends while it loses little.
    5. Of these, take the one that loses least in all, so ranges meet where their lengths are equally
       good; of equal ones the shorter drafts.
    6. Narrow: then, from the first range on, one narrower than ``narrow_range`` of its first batch size
       takes the length of the neighbour with which it loses less, where that loss is at most
       :data:`NARROW_TIES` tie tolerances (or the merge tolerance, if larger) at each of its batch sizes.

    So no batch size that is not pinned loses more than ``max(2 · tie_tolerance, merge_tolerance)``, and
    outside of merged narrow ranges not more than ``max(tie_tolerance, merge_tolerance)``.

    Raises :class:`TableError` where a rule can't be followed: an allowed or pinned length that is not
    among ``draft_lengths``, or a batch size without any goodput.
    """
    loss = _losses(goodput, draft_lengths, control)
    tolerance = max(control.tie_tolerance, control.merge_tolerance)
    chosen = _fewest_ranges(np.where(loss <= tolerance, loss, np.inf))
    limit = max(NARROW_TIES * control.tie_tolerance, control.merge_tolerance)
    chosen = _merge_narrow(chosen, np.where(loss <= limit, loss, np.inf), control.narrow_range)
    return from_lookup([0, *(draft_lengths[row] for row in chosen)])


def _losses(
    goodput: NDArray[np.float64], draft_lengths: Sequence[int], control: Control
) -> NDArray[np.float64]:
    """Return the loss of each length at each batch size as a share; infinite where it must not be taken."""
    allowed = allowed_lengths(draft_lengths, control.allowed_lengths)
    rows = [row for row, draft_length in enumerate(draft_lengths) if draft_length in allowed]
    priced = np.where(np.isfinite(goodput), goodput, 0.0)
    best = np.max(priced[rows], axis=0)
    loss = np.full(goodput.shape, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss[rows] = np.where(priced[rows] > 0, 1.0 - priced[rows] / best, np.inf)
    for first, last, draft_length in control.pinned:
        if draft_length not in draft_lengths:
            raise TableError(
                f"Pinned range [{first}, {last}, {draft_length}] has a length that was not profiled."
                f" Pin one of {list(draft_lengths)}, or profile that length too."
            )
        loss[:, first - 1 : last] = np.inf
        loss[list(draft_lengths).index(draft_length), first - 1 : last] = 0.0
    lost = np.flatnonzero(np.all(np.isinf(loss), axis=0))
    if lost.size:
        raise TableError(
            f"Batch size {lost[0] + 1} has no goodput with any allowed draft length, {list(allowed)}."
            " Profile it again, or allow a length that was profiled there."
        )
    return loss


def _fewest_ranges(loss: NDArray[np.float64]) -> list[int]:
    """Return the row of each column so that rows change least often, and at the least total loss then.

    Shortest path over the columns, from the last to the first: ``cost[k]`` is what the columns from here
    on cost if this one takes row k. A change costs more than all losses together, each at most 1.
    """
    columns = np.ascontiguousarray(loss.T)
    change = 2.0 * len(columns)
    cost = columns[-1]
    steps = []
    for column in columns[-2::-1]:
        best = cost.argmin()
        changed = cost[best] + change
        steps.append((cost <= changed, best))
        cost = np.minimum(cost, changed) + column
    row = int(cost.argmin())
    chosen = [row]
    for stays, best in reversed(steps):
        row = row if stays[row] else int(best)
        chosen.append(row)
    return chosen


def _merge_narrow(chosen: list[int], loss: NDArray[np.float64], narrow_range: float) -> list[int]:
    """Return ``chosen`` after rule 6 of :func:`compute`, from the first batch size to the last."""
    ranges = [[first - 1, last, row] for first, last, row in from_lookup([0, *chosen])]
    index = 0
    while index < len(ranges):
        start, stop, _ = ranges[index]
        neighbours = [ranges[at] for at in (index - 1, index + 1) if 0 <= at < len(ranges)]
        losses = [float(np.sum(loss[row, start:stop])) for _, _, row in neighbours]
        if stop - start >= narrow_range * (start + 1) or min(losses, default=np.inf) == np.inf:
            index += 1
            continue
        ranges[index][2] = neighbours[losses.index(min(losses))][2]
        for left in (index, index - 1):
            if 0 <= left < len(ranges) - 1 and ranges[left][2] == ranges[left + 1][2]:
                ranges[left][1] = ranges.pop(left + 1)[1]
        index = max(index - 1, 0)
    return [row for start, stop, row in ranges for _ in range(start, stop)]


def allowed_lengths(draft_lengths: Sequence[int], allowed: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths that a table may use: ``allowed``, or all ``draft_lengths`` where it is empty.

    Raises :class:`TableError` for an allowed length that was not profiled: its cost is not known.
    """
    missing = sorted(set(allowed) - set(draft_lengths))
    if missing:
        raise TableError(
            f"Allowed lengths {missing} were not profiled, {list(draft_lengths)} were."
            " Profile them too, or leave them out of the allowed lengths."
        )
    return tuple(allowed) or tuple(draft_lengths)


def lookup(table: Sequence[Range], max_batch_size: int) -> tuple[int, ...]:
    """Return the draft length by batch size, ``max_batch_size + 1`` entries, as vLLM's scheduler reads it.

    The meaning is that of ``build_dynamic_sd_schedule_lookup`` in vLLM's
    ``vllm/v1/spec_decode/dynamic/utils.py``: entry 0 is unused and 0, a batch size between or behind the
    ranges has the length of the range before it, ranges beyond ``max_batch_size`` are cut.

    >>> lookup([(1, 2, 3), (4, 5, 1)], 6)
    (0, 3, 3, 3, 1, 1, 1)

    Raises :class:`TableError` where ranges overlap or the first does not start at 1.
    """
    dense = [0]
    for first, last, draft_length in table:
        if first < len(dense) or last < first or (first > 1 and len(dense) == 1):
            raise TableError(
                f"Range [{first}, {last}, {draft_length}] is out of place. Ranges start at 1, ascend and do"
                " not overlap."
            )
        dense.extend([dense[-1]] * (first - len(dense)))
        dense.extend([draft_length] * (last - first + 1))
    if len(dense) == 1:
        raise TableError("The table has no range. It needs at least one, which starts at batch size 1.")
    dense.extend([dense[-1]] * (max_batch_size + 1 - len(dense)))
    return tuple(dense[: max_batch_size + 1])


def from_lookup(lookup: Sequence[int]) -> Table:
    """Return the ranges of a lookup whose entry 0 is unused: contiguous, neighbours of unequal length.

    >>> from_lookup([0, 3, 3, 1])
    ((1, 2, 3), (3, 3, 1))
    """
    changes = [size for size in range(1, len(lookup)) if size == 1 or lookup[size] != lookup[size - 1]]
    ends = [*(size - 1 for size in changes[1:]), len(lookup) - 1]
    return tuple((first, last, lookup[first]) for first, last in zip(changes, ends, strict=False))


def length_at(table: Sequence[Range], batch_size: int) -> int:
    """Return the draft length at ``batch_size``, from 1; behind the last range that range's length."""
    return lookup(table, batch_size)[batch_size]


def constant(draft_length: int, max_batch_size: int) -> Table:
    """Return the table that uses one length at every batch size."""
    return ((1, max_batch_size, draft_length),)
