"""What live step times say about the profile's: the cost correction.

The controller calls it about once a second with the times of pure quiet decode steps, in the profile's own
measure. A profile is taken in one engine, at one context length, on one day: single cells move by 14%
between two engines, all of them with the host's speed (ENGINE.md 4 and 6, benchmarks/results/gpu), and a
table computed from it keeps its mistakes for good, since acceptance alone is corrected. But live times are
treacherous too. Only the length in force is seen all the time; were its times simply believed over the
profile's, then a slow minute would make it look dear and drive the table away from it.

So all is told in ratios of live to profiled time, and three things are kept apart:

- *Drift*: how the times of a batch size move together. Every known cell of the column moves with it, so it
  leaves the order of the lengths as it is.
- *Contrasts*: how lengths of one batch size differ from what the profile says of them. They are learnt only
  from times of the same window or against a cell that followed the drift since. How well each is known is
  kept with it (:func:`contrast_times`), so that chance in a cell's times is not taken for drift.
- *Shape*: whether lengths that were not seen live moved by the same factor or by the same milliseconds.

All arrays are ``(draft lengths, batch sizes)``, column ``b - 1`` being batch size b.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tabletune.acceptance import drafts_are_uniform
from tabletune.documents import MIN_MILLISECONDS

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FACTOR = "factor"
"""Times that were not seen live move by the factor that seen ones moved by."""
OFFSET = "offset"
"""They move by the same number of milliseconds."""

MIN_TIMES = 3
"""Times of a cell that make a quantile: with fewer, one step of the long tail would speak for the cell."""

MEDIAN, LOWER_QUARTILE = 0.5, 0.25
"""What a cell's times count as (:func:`quantile_for`)."""

MOST_MILLISECONDS = 3_600_000.0
"""An hour: longer times are a clock's mistake, as a document's own bound says."""

SLOW_TIME = 1.25
"""A single time that is slower than believed by this factor waits for another: only slow steps lie. Two
that differ by it count as the faster one."""

STEP_SPREAD = 0.03
"""Relative error of a single live time: steps vary by 2 to 3% (ENGINE.md 6)."""

DRIFT_SPREAD = 0.0077
"""Relative change of a batch size's times in a second, growing with the root of the seconds: all move
together by 3% within half a minute (ENGINE.md 6)."""

CELL_SPREAD = 0.0002
"""Relative change of a single cell against its batch size in a second, likewise: 0.5% in ten minutes."""

JUMP_ERRORS = 3.0
"""Standard errors beyond which a batch size's times did not drift but jump, as a slow minute begins: then
as far as was seen. Nothing else bounds how slow a machine can become within a second."""

MOST_VARIANCE = 4.0
"""Largest squared error of a cell's logarithm: after an idle night nothing more can be forgotten."""

MOST_TIMES = 16.0
"""Most that one window's times of a cell weigh: steps of one second share its luck (ENGINE.md 6)."""

HALF_LIFE = 600.0
"""Seconds until live cost evidence weighs one half. Ten minutes, so that a slow minute is a small part of
what is known of a cell."""

MOST_WEIGHT = 240.0
"""Most times that a cell's evidence weighs: one that ran for an hour still learns."""

OWN_DOUBT = 0.25
"""Times that the estimate from elsewhere (profile, column, neighbours) weighs against a cell's own. Cells
move by up to 14% between engines, single steps by 2 to 3% and all of a second together by as much, so one
live time says more than the profile."""

NEIGHBOUR_DOUBT = 1.0
"""Times that the profile weighs against what other batch sizes say about a cell."""

REACH_OCTAVES = 0.5
"""Distance in batch size, in doublings, at which evidence weighs one half."""

STEPS_PER_OCTAVE = 8
"""Batch sizes within an eighth of a doubling are one place when evidence is shared between neighbours."""

LARGEST_RATIO = 20.0
"""Largest live time as a multiple of the profiled one, and of the inverse, that is believed."""

LEAST_OFFSET_ERROR = 0.01
"""Root mean square deviation of a common factor below which nothing else is looked for."""

OFFSET_ADVANTAGE = 3.0
"""How many times smaller the squared deviations of a common offset must be than those of a factor. By a
factor the order of the lengths stays; so it is the answer in doubt."""

LEARNT_TIMES = 8.0
"""Times after which a cell that the profile does not price has a price."""


@dataclass(frozen=True, eq=False)
class Grid:
    """What stays while one profile is in force."""

    profiled_ms: Floats
    """Step times by the profile's cost model; NaN where there is no price."""
    kinds: Integers
    """Kind of graph of each cell, a code of :data:`tabletune.graphs.KINDS`: only cells of one kind tell
    about each other, since without a graph other things cost time."""
    quantile: float = MEDIAN
    """What a cell's live times count as (:func:`typical`)."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What live times have said so far. Bounded: a few arrays, and a time a cell."""

    ratios: Floats
    """Logarithm of live over profiled time of each cell, as of now; 0 where none was seen."""
    weights: Floats
    """Times behind it, faded."""
    learnt_ms: Floats
    """Base of cells that the profile does not price: their first live typical time; else NaN."""
    covariances: Floats
    """``(draft lengths, draft lengths, batch sizes)``: squared errors of ``ratios``, and what the errors of
    two lengths have in common, the drift since they were seen; 0 where none was seen."""
    waiting: Mapping[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)
    """Single slow times by row and column that wait for another."""

    @classmethod
    def none(cls, grid: Grid) -> Evidence:
        """Return the evidence before the first step."""
        shape = grid.profiled_ms.shape
        together = np.zeros((shape[0], *shape))
        return cls(np.zeros(shape), np.zeros(shape), np.full(shape, np.nan), together)


@dataclass(frozen=True, eq=False)
class Correction:
    """Step times as believed now."""

    step_times_ms: Floats
    """Corrected times; NaN where there is no price."""
    profiled_ms: Floats
    """What the profile says."""
    seen: Floats
    """Live times behind each cell, those of its neighbours counted less."""
    offset_ms: float = 0.0
    """The common offset, milliseconds; 0 with a factor."""

    @property
    def shape(self) -> str:
        """``FACTOR`` or ``OFFSET``."""
        return OFFSET if self.offset_ms else FACTOR

    @property
    def column_factors(self) -> Floats:
        """By batch size, the geometric mean of corrected over profiled time; 1 without prices."""
        return np.exp(_column_mean(np.log(self.step_times_ms / self.profiled_ms)))


Cell = tuple[int, int]
"""Row and column."""


def observe(
    grid: Grid,
    evidence: Evidence,
    believed: Correction,
    times_ms: Iterable[tuple[Cell, Sequence[float]]],
    elapsed_seconds: float,
) -> Evidence:
    """Return the evidence after a window of ``elapsed_seconds``; ``times_ms`` are its times by cell.

    1. What is no time (:func:`is_time`) is passed over. A cell's times count as their :func:`typical` one; a
       single one that is slower than believed waits for others.
    2. Evidence fades by :data:`HALF_LIFE`.
    3. Known cells move together and each on its own, as far as drift, jumps and chance make likely
       (:func:`_follow`). So a cell that was seen an hour ago still compares with one seen now, a slow minute,
       in which one length runs, moves the column and no contrast in it, and two lengths that run in turns
       come to be known against each other.
    4. A cell seen for the first time takes what was seen. One without a profiled time is learnt so.
    """
    ratios, learnt = evidence.ratios.copy(), evidence.learnt_ms.copy()
    weights = evidence.weights * 0.5 ** (elapsed_seconds / HALF_LIFE)
    # What faded to nothing is forgotten, and seen for the first time again.
    alive = weights > 0
    together = np.where(alive[:, np.newaxis] & alive, evidence.covariances, 0.0)
    waiting = dict(evidence.waiting)
    found: list[tuple[int, int, float, float]] = []
    for (row, column), times in times_ms:
        usable = [time for time in times if is_time(time)]
        usable = [*waiting.pop((row, column), ()), *usable]
        if not usable:
            continue
        if len(usable) == 1 and not usable[0] <= SLOW_TIME * believed.step_times_ms[row, column]:
            waiting[row, column] = (usable[0],)
            continue
        found.append((row, column, typical(usable, grid.quantile), min(float(len(usable)), MOST_TIMES)))
    if not found:
        together = _less_sure(together, alive, DRIFT_SPREAD**2 * elapsed_seconds, elapsed_seconds)
        return Evidence(ratios, weights, learnt, together, waiting)
    rows, columns = np.array([one[0] for one in found]), np.array([one[1] for one in found])
    typicals, counts = np.array([one[2] for one in found]), np.array([one[3] for one in found])

    base = grid.profiled_ms[rows, columns]
    unpriced = ~np.isfinite(base)
    known = weights[rows, columns] > 0
    base = np.where(unpriced, learnt[rows, columns], base)
    base = np.where(np.isfinite(base), base, typicals)
    learnt[rows[unpriced], columns[unpriced]] = base[unpriced]
    limit = math.log(LARGEST_RATIO)
    seen = np.clip(np.log(typicals / base), -limit, limit)
    errors = STEP_SPREAD**2 / counts

    observed = np.full(ratios.shape, np.nan)
    observed[rows[known], columns[known]] = seen[known]
    variances = np.full(ratios.shape, np.inf)
    variances[rows[known], columns[known]] = errors[known]
    ratios, together = _follow(ratios, together, alive, observed, variances, elapsed_seconds)
    ratios = np.clip(ratios, -limit, limit)
    rows_new, columns_new = rows[~known], columns[~known]
    ratios[rows_new, columns_new] = seen[~known]
    together[rows_new, rows_new, columns_new] = errors[~known]
    weights[rows, columns] = np.minimum(weights[rows, columns] + counts, MOST_WEIGHT)
    return Evidence(ratios, weights, learnt, together, waiting)


def is_time(milliseconds: float) -> bool:
    """Return whether a number can be a step's time: finite, above 0 and no longer than an hour."""
    return MIN_MILLISECONDS <= milliseconds <= MOST_MILLISECONDS


def quantile_for(drafter_method: str) -> float:
    """Return which quantile of a cell's live times the steps of this drafter are known by.

    Where each request verifies as many drafts, a step is much slower than its work for many reasons and
    faster for none. On an H200 whose host was behind, GPU spans were up to a third longer wherever a prompt
    was near, and the lower quartile of a cell scattered from second to second by a tenth to a half less than
    its median, by 2 to 7% instead of 3 to 9%; where the host kept up, both by 0.1 to 1%
    (docs/concepts/control.md). Where drafts vary, it would be that of the steps that verified few.
    """
    return LOWER_QUARTILE if drafts_are_uniform(drafter_method) else MEDIAN


def typical(times_ms: Sequence[float], quantile: float = MEDIAN) -> float:
    """Return what the steps of one cell took, given the times of some: NaN without any.

    A quantile, so that long-tail steps, compile and capture hiccups are outvoted. Two count as that if they
    agree, else as the faster one.
    """
    if not times_ms:
        return math.nan
    agree = len(times_ms) >= MIN_TIMES or max(times_ms) <= SLOW_TIME * min(times_ms)
    return _quantile(times_ms, quantile) if agree else min(times_ms)


def correct(grid: Grid, evidence: Evidence) -> Correction:
    """Return the step times that profile and evidence together say.

    1. Shape: seen cells moved by a common factor, unless a common offset explains them
       :data:`OFFSET_ADVANTAGE` times better.
    2. Column: a batch size moves by what its seen cells moved by beyond the shape; one without any by what
       its neighbours did, less the further they are. Cells that run another kind of graph than all that
       were seen do not become cheaper by it: without a graph the host's work costs time, not the GPU's.
    3. Row: what a length moves by beyond its columns is shared with neighbouring batch sizes in which its
       steps run the same kind of graph.
    4. Own: a cell's own live times count against all that with their number.
    5. A cell without a profiled time has its live one, once it was seen :data:`LEARNT_TIMES` times.

    So where one length alone was seen and no length's contrast is known, its whole column moves by one
    factor and the order of the lengths is the profile's.
    """
    priced = np.isfinite(grid.profiled_ms)
    # Filled with a time that limits no offset.
    profiled = np.where(priced, grid.profiled_ms, np.max(grid.profiled_ms, where=priced, initial=1.0))
    weights = np.where(priced, evidence.weights, 0.0)
    places = _places(profiled.shape[1])
    if not weights.any():
        times = _with_learnt(grid, evidence, grid.profiled_ms.copy())
        return Correction(times, grid.profiled_ms, np.where(priced, 0.0, evidence.weights))
    offset = _offset(profiled, evidence.ratios, weights)
    shape = np.log1p(offset / profiled)
    beyond = evidence.ratios - shape
    total = weights.sum(axis=0)
    contrast = np.zeros_like(profiled)
    column = np.zeros(profiled.shape[1])
    row_weights = _shared(weights, grid.kinds, places)
    lone = _around(total, places)
    for _ in range(3):
        # Alternately what the columns and what the rows say beyond the other (backfitting).
        sums = (weights * (beyond - contrast)).sum(axis=0)
        column = sums / np.maximum(total, 1e-9)
        column = np.where(total > 0, column, _around(sums, places) / (lone + NEIGHBOUR_DOUBT))
        contrast = _shared(weights * (beyond - column), grid.kinds, places) / (row_weights + NEIGHBOUR_DOUBT)
    alike = _alike(weights, grid.kinds, places)
    elsewhere = shape + alike * column + (1 - alike) * np.maximum(column, 0.0) + contrast
    own = weights / (weights + OWN_DOUBT)
    ratio = own * evidence.ratios + (1 - own) * elsewhere
    limit = math.log(LARGEST_RATIO)
    times = np.where(priced, profiled * np.exp(np.clip(ratio, -limit, limit)), np.nan)
    return Correction(
        step_times_ms=_with_learnt(grid, evidence, times),
        profiled_ms=grid.profiled_ms,
        seen=np.where(priced, row_weights, evidence.weights),
        offset_ms=offset,
    )


def contrast_times(grid: Grid, evidence: Evidence, rows: Sequence[int]) -> Floats:
    """Return how many live times' worth each cell is known against that of its column's row in ``rows``.

    The squared error of a single time over that of the two cells' contrast, what both drifted by in common
    left out, at most :data:`MOST_WEIGHT`; those of neighbouring batch sizes, where the cell's row runs the
    same kind of graph, are added the less the further they are. Times of the column's own row count as they
    are, and so do all while that was never seen: there is nothing to compare them with.
    """
    row, column = np.asarray(rows, dtype=np.int64), np.arange(evidence.weights.shape[1])
    together = evidence.covariances
    variance = np.einsum("iib->ib", together) + together[row, row, column]
    variance = variance - 2 * together[:, row, column]
    known = (evidence.weights > 0) & (evidence.weights[row, column] > 0)
    known[row, column] = False
    times = STEP_SPREAD**2 / np.maximum(variance, STEP_SPREAD**2 / MOST_WEIGHT)
    times = np.where(known, times, evidence.weights)
    priced = np.isfinite(grid.profiled_ms)
    shared = _shared(np.where(priced, times, 0.0), grid.kinds, _places(len(column)))
    return np.where(priced, shared, times)


def _quantile(times: Sequence[float], quantile: float) -> float:
    """Return the quantile, straight between two times; for a handful of them NumPy's takes far longer."""
    ordered = sorted(times)
    low, part = divmod(quantile * (len(ordered) - 1), 1)
    nearest = ordered[int(low)]
    return nearest + part * (ordered[min(int(low) + 1, len(ordered) - 1)] - nearest)


def _less_sure(
    together: Floats, known: npt.NDArray[np.bool_], common: Floats | float, seconds: float
) -> Floats:
    """Return the covariances after columns moved by ``common``, a variance, and each cell by its own."""
    largest = np.max(np.einsum("iib->ib", together), axis=0)
    room = np.maximum(MOST_VARIANCE - largest, 0.0)
    common = np.minimum(common, room)
    grown: Floats = together + np.where(known[:, np.newaxis] & known, common, 0.0)
    own = np.minimum(CELL_SPREAD**2 * seconds, room - common)
    places = np.arange(len(known))
    grown[places, places] += np.where(known, own, 0.0)
    return grown


def _follow(
    ratios: Floats,
    together: Floats,
    known: npt.NDArray[np.bool_],
    observed: Floats,
    variances: Floats,
    seconds: float,
) -> tuple[Floats, Floats]:
    """Return known cells' ratios and their covariances after ``observed`` (NaN: not seen) of ``variances``.

    A Kalman filter for each batch size: between two windows its known cells move together by the drift and
    each by a little of its own; what is then seen of one corrects the others by what their errors have in
    common. Drift is small, so most of what a few times deviate by is chance, and stays out of the column;
    where all that was seen around deviates by more than :data:`JUMP_ERRORS` standard errors, it jumped, and
    the column follows as far. What neighbouring batch sizes moved by moves the column before its own times
    do, so batch sizes that come and go are followed too.
    """
    places = _places(known.shape[1])
    own_variance = np.einsum("iib->ib", together)
    precision = 1 / (own_variance + variances)
    beyond = np.where(np.isfinite(variances), observed - ratios, 0.0)
    sure, moved = precision.sum(axis=0), (precision * beyond).sum(axis=0)
    sure_around, moved_around = _around(sure, places), _around(moved, places)
    drift = DRIFT_SPREAD**2 * seconds
    squared = (moved_around / np.maximum(sure_around, 1e-9)) ** 2
    jumped = squared > JUMP_ERRORS**2 * (drift + 1 / np.maximum(sure_around, 1e-9))
    common = np.where(jumped, squared, drift)

    elsewhere = np.maximum(sure_around - sure, 0.0)
    left = common / (1 + elsewhere * common)
    shift = left * (moved_around - moved)
    ratios = np.where(known, ratios + shift, ratios)
    together = _less_sure(together, known, left, seconds)
    for row in np.flatnonzero(np.isfinite(variances).any(axis=1)).tolist():
        gain = together[row] / (together[row, row] + variances[row])
        missed = np.where(np.isfinite(variances[row]), observed[row] - ratios[row], 0.0)
        ratios = ratios + gain * missed
        together = together - gain[:, np.newaxis] * together[row]
    return ratios, together


@dataclass(frozen=True, eq=False)
class _Places:
    """Batch sizes on a logarithmic scale, and how much a place tells about another."""

    of_column: Integers
    kernel: Floats


@lru_cache(maxsize=8)
def _places(size: int) -> _Places:
    octaves = np.log2(np.arange(1, size + 1))
    places = np.rint(octaves * STEPS_PER_OCTAVE).astype(np.int64)
    used, of_column = np.unique(places, return_inverse=True)
    distance = np.abs(used[:, np.newaxis] - used) / STEPS_PER_OCTAVE
    return _Places(of_column.astype(np.int64), 0.5 ** (distance / REACH_OCTAVES))


def _shared(values: Floats, kinds: Integers, places: _Places) -> Floats:
    """Return the sum of ``values`` over all batch sizes of the same row and kind, the further the less."""
    size = len(places.kernel)
    rows = np.arange(len(values))[:, np.newaxis]
    found = np.unique(kinds)
    cells = (np.searchsorted(found, kinds) * len(values) + rows) * size + places.of_column
    sums = np.bincount(cells.ravel(), weights=values.ravel(), minlength=len(found) * len(values) * size)
    shared: Floats = (sums.reshape(-1, size) @ places.kernel).ravel()[cells]
    return shared


def _around(values: Floats, places: _Places) -> Floats:
    """Return, by batch size, the sum of ``values`` over all batch sizes, the further the less."""
    around: Floats = _shared(values[np.newaxis], np.zeros((1, len(values)), dtype=np.int64), places)[0]
    return around


def _alike(weights: Floats, kinds: Integers, places: _Places) -> Floats:
    """Return how far each cell moves with its column: 1 where cells of its kind of graph were seen there."""
    alike = np.zeros_like(weights)
    for kind in np.unique(kinds).tolist():
        here = np.where(kinds == kind, weights, 0.0).sum(axis=0)
        around = _around(here, places)
        share = np.where(here > 0, 1.0, around / (around + NEIGHBOUR_DOUBT))
        alike = np.where(kinds == kind, share, alike)
    return alike


def _offset(profiled: Floats, ratios: Floats, weights: Floats) -> float:
    """Return the common offset in milliseconds, 0 where a common factor explains the seen cells as well."""
    seen = weights >= MIN_TIMES
    if np.count_nonzero(seen) < 2:
        return 0.0
    base, moved, weight = profiled[seen], ratios[seen], weights[seen]
    live = base * np.exp(moved)
    factor = float(np.average(moved, weights=weight))
    by_factor = float(np.average((moved - factor) ** 2, weights=weight))
    if by_factor < LEAST_OFFSET_ERROR**2:
        return 0.0
    offset = float(np.average(live - base, weights=weight / live**2))
    offset = max(offset, -0.9 * float(np.min(profiled)))
    by_offset = float(np.average(np.log(live / (base + offset)) ** 2, weights=weight))
    return offset if by_offset * OFFSET_ADVANTAGE < by_factor else 0.0


def _with_learnt(grid: Grid, evidence: Evidence, times: Floats) -> Floats:
    learnt = ~np.isfinite(grid.profiled_ms) & (evidence.weights >= LEARNT_TIMES)
    times[learnt] = evidence.learnt_ms[learnt] * np.exp(evidence.ratios[learnt])
    return times


def _column_mean(values: Floats) -> Floats:
    known = np.isfinite(values)
    mean: Floats = np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean
