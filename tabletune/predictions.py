"""What a table, one fixed length and no speculation are predicted to bring.

Called when a document is assembled, and by whoever weighs a new table against the one in force. All
of them compare goodput, kept tokens per second: comparing step times would favour short drafts and
comparing accepted tokens long ones.

Arrays of step times and goodput have a row per draft length and a column per batch size, the first
column being batch size 1. A value that is not finite stands for a cell that nobody can price; no
choice may fall on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tabletune import documents, tables
from tabletune.acceptance import Rates, expected_tokens_of
from tabletune.documents import Graph, Profile


class PredictionError(ValueError):
    """A profile that does not support a prediction."""


def goodput(
    step_times_ms: NDArray[np.float64], acceptance: Rates, draft_lengths: Sequence[int]
) -> NDArray[np.float64]:
    """Return kept tokens per second, ``G[B, K] = B · E[K] / T[B, K]``, in the shape of ``step_times_ms``.

    Raises :class:`PredictionError` where the rows are not one per draft length.
    """
    if step_times_ms.ndim != 2 or step_times_ms.shape[0] != len(draft_lengths):
        raise PredictionError(
            f"Step times have shape {step_times_ms.shape}. They need a row for each of"
            f" {len(draft_lengths)} draft lengths."
        )
    tokens = expected_tokens_of(acceptance.survival, acceptance.proposal_rate, draft_lengths)
    batch_sizes = np.arange(1, step_times_ms.shape[1] + 1)
    kept: NDArray[np.float64] = batch_sizes * tokens[:, np.newaxis] / step_times_ms * 1000.0
    return kept


def off_goodput(profile: Profile) -> NDArray[np.float64]:
    """Return kept tokens per second with speculation off at the profile's batch sizes; empty if not timed.

    An engine without speculation has but one draft length, so its graphs have no gap (ENGINE.md 2). Where
    length 0 found no full graph and other batch sizes did, the time is therefore not that of ``off_ms``
    but interpolated between its neighbours with one. Nor is off ever slower than length 0, which does all
    that it does and more; where it was measured so, that is noise. NaN where nothing is known.
    """
    if not profile.off_ms:
        return np.array([])
    batch_sizes = np.asarray(profile.batch_sizes, dtype=np.float64)
    times = np.array([np.nan if time is None else time for time in profile.off_ms], dtype=np.float64)
    known = np.isfinite(times)
    if 0 in profile.draft_lengths:
        kinds = profile.graph[profile.draft_lengths.index(0)]
        full = known & np.array([kind is Graph.FULL for kind in kinds])
        gap = known & ~full & (batch_sizes < np.max(batch_sizes[full], initial=0.0))
        if gap.any():
            times[gap] = np.interp(batch_sizes[gap], batch_sizes[full], times[full])
        zero = profile.step_time_ms[profile.draft_lengths.index(0)]
        times = np.fmin(times, [np.nan if time is None else time for time in zero])
    return batch_sizes / times * 1000.0


def predict(
    goodput: NDArray[np.float64],
    draft_lengths: Sequence[int],
    batch_sizes: Sequence[int],
    table: documents.Table,
    allowed: Sequence[int] = (),
    off: Sequence[float] | NDArray[np.float64] = (),
) -> documents.Prediction:
    """Return the predicted goodput at ``batch_sizes``, those of the profile's grid.

    ``off`` is the goodput with speculation off at each of ``batch_sizes`` (:func:`off_goodput`); that of
    length 0 stands in where it is empty or not finite.

    ``best`` and ``fixed`` choose among the ``allowed`` lengths (all of ``draft_lengths`` where empty).
    ``fixed`` is the length with the highest geometric mean over ``batch_sizes``: in it a loss of 10% at
    one request weighs as much as one at 256, where tokens per second are a hundred times as many.

    A batch size where the table or length 0 has no price is left out: nothing can be told against it.

    Raises :class:`PredictionError` where length 0 was not profiled, since gains are told against it; where a
    batch size lies beyond the table; and where no batch size or no length is left.
    """
    lengths = tables.allowed_lengths(draft_lengths, allowed)
    if 0 not in draft_lengths:
        raise PredictionError(
            f"Draft lengths {list(draft_lengths)} lack 0, speculation off, which gains are told against."
            " Profile length 0 too."
        )
    max_batch_size = min(goodput.shape[1], table[-1][1])
    if batch_sizes[-1] > max_batch_size:
        raise PredictionError(
            f"Batch size {batch_sizes[-1]} is above {max_batch_size}, the last one of the table."
            " Lower the profile's batch sizes or raise --max-num-seqs."
        )
    rows = {draft_length: row for row, draft_length in enumerate(draft_lengths)}
    by_size = tables.lookup(table, max_batch_size)
    told = [
        batch_size
        for batch_size in batch_sizes
        if np.isfinite(goodput[[rows[0], rows[by_size[batch_size]]], batch_size - 1]).all()
    ]
    if not told:
        raise PredictionError(
            f"At none of the batch sizes {list(batch_sizes)} both length 0 and the table's length have a step"
            " time. Profile the excluded cells again, or pin other lengths."
        )
    columns = np.asarray(told, dtype=np.intp) - 1
    at_zero = goodput[rows[0], columns]
    if len(off):
        without = np.asarray(off)[np.searchsorted(batch_sizes, told)]
        at_zero = np.where(np.isfinite(without), without, at_zero)
    # No choice may fall on a cell without a price, and its logarithm is minus infinity.
    known = np.where(np.isfinite(goodput), goodput, 0.0)[[rows[length] for length in lengths]][:, columns]
    whole = np.flatnonzero(np.all(known > 0, axis=1))
    if not whole.size:
        raise PredictionError(
            f"None of the allowed draft lengths {list(lengths)} has a step time at each of the batch sizes"
            f" {told}. Profile the excluded cells again."
        )
    fixed = int(whole[np.argmax(np.mean(np.log(known[whole]), axis=1))])
    return documents.Prediction(
        batch_sizes=tuple(told),
        table=tuple(goodput[[rows[by_size[size]] for size in told], columns].tolist()),
        best=tuple(np.max(known, axis=0).tolist()),
        best_length=tuple(lengths[row] for row in np.argmax(known, axis=0)),
        fixed=tuple(known[fixed].tolist()),
        fixed_length=lengths[fixed],
        off=tuple(at_zero.tolist()),
    )


def gain(new: Sequence[float], old: Sequence[float]) -> float:
    """Return what ``new`` goodput gains over ``old``, by the geometric mean; 0.2 is 20%.

    >>> gain([150.0, 300.0], [100.0, 300.0])  # sqrt(1.5 · 1) - 1
    0.224...
    """
    return float(np.exp(np.mean(np.log(np.asarray(new) / np.asarray(old)))) - 1.0)
