"""Batch sizes at which a draft length may kill the engine, so that no table uses it there.

``assembling`` keeps the table off them and the profiler does not time them. An illegal memory access ends
every request of a serving engine, so a length that is a few percent slower is always the better choice.

Two kinds are known:

- Mismatched: target and drafter would run different graphs (:func:`graphs.mismatched_batch_sizes`). On an
  H200 engines died there (ENGINE.md 3), one of them while this profiler timed B=117, K=1
  (benchmarks/results/gpu).
- Fatal: the engine died or hung twice while the profile timed the cell. What lies between it and its
  measured neighbours is as likely to be as bad, and nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tabletune import graphs
from tabletune.documents import Fingerprint, Profile
from tabletune.graphs import GraphSettings

MOST_ENDING = 2
"""Most requests that end in a step and are reckoned with. At 64 requests with outputs of 500 tokens more end
in one step of 188, at 240 in one of 18."""

Flags = npt.NDArray[np.bool_]


def mismatched(fingerprint: Fingerprint, draft_lengths: Sequence[int]) -> dict[int, frozenset[int]]:
    """Return, by draft length, the batch sizes whose target and drafter would run different graphs.

    Empty for drafters and runners that do not do so.
    """
    if (
        fingerprint.runner != "V2"
        or fingerprint.drafter_method not in graphs.DRAFTERS_ON_THE_TARGETS_BATCH
        or fingerprint.cudagraph_mode == "NONE"
    ):
        return {length: frozenset() for length in draft_lengths}
    settings = GraphSettings.from_fingerprint(fingerprint, draft_lengths)
    return {length: frozenset(sizes) for length, sizes in graphs.mismatched_batch_sizes(settings).items()}


def cells(
    profile: Profile, fingerprint: Fingerprint, max_batch_size: int, captured: Sequence[int] = ()
) -> Flags:
    """Return which cells are hazardous, shape ``(len(draft_lengths), max_batch_size)``.

    Column ``b - 1`` is batch size ``b``. ``captured`` are the lengths that the engine's start-up table named;
    the profiled ones where it is empty.
    """
    found = np.zeros((len(profile.draft_lengths), max_batch_size), np.bool_)
    for length, sizes in mismatched(fingerprint, captured or profile.draft_lengths).items():
        if length not in profile.draft_lengths:
            continue
        row = profile.draft_lengths.index(length)
        found[row, [size - 1 for size in sizes if size <= max_batch_size]] = True
    for cell in profile.excluded:
        if cell.fatal:
            row = profile.draft_lengths.index(cell.draft_length)
            below = [b for b in profile.batch_sizes if b < cell.batch_size]
            above = [b for b in profile.batch_sizes if b > cell.batch_size]
            first = below[-1] + 1 if below else 1
            last = above[0] - 1 if above else max_batch_size
            found[row, first - 1 : last] = True
    return found


def drafted(hazardous: Flags) -> Flags:
    """Return the cells of a table that lead to ``hazardous`` ones, in the same shape.

    What is drafted at a batch size is verified in the next step, when requests may have ended: a cell is in
    it if it is hazardous itself or with up to :data:`MOST_ENDING` requests fewer.
    """
    found = hazardous.copy()
    for fewer in range(1, MOST_ENDING + 1):
        found[:, fewer:] |= hazardous[:, :-fewer]
    return found


def keep_off(
    goodput: npt.NDArray[np.float64],
    hazardous: Flags,
    draft_lengths: Sequence[int],
    allowed: Sequence[int] = (),
) -> npt.NDArray[np.float64]:
    """Return ``goodput`` with NaN in the ``hazardous`` cells, so that no table uses them.

    A batch size where this leaves none of the ``allowed`` lengths (all where empty) with a goodput keeps
    what it had: the engine will meet it all the same, and then the fastest is as good as any.
    """
    left = np.where(hazardous, np.nan, goodput)
    usable = [row for row, length in enumerate(draft_lengths) if not allowed or length in allowed]
    lost = ~np.isfinite(left[usable]).any(axis=0)
    left[:, lost] = goodput[:, lost]
    return left
