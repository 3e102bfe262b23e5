"""From the samples of a cell to its numbers. Pure functions.

A drafter that is a model drafts for every request in every step, so a cell's steps differ only by noise
and their median is its time. A drafter that looks drafts up in text (n-gram, suffix) finds some in some
steps, and a step's time follows the tokens it has to verify: at one request, half the steps may take
20 ms and half 40. Their median is the time of neither mix, and the mix of a cell's few steps is not the
workload's. So the time is taken from the line through (tokens drafted, step time), at the share of
tokens that the acceptance run drafted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tabletune.documents import Graph, Measure
from tabletune_profiler.messages import Sample

OUTLIER_DEVIATIONS = 4.0
"""Steps further than this many median absolute deviations from the line are left out of the fit."""


@dataclass(frozen=True)
class Cell:
    """One cell's numbers, as the document has them."""

    step_time_ms: float
    interval_ms: float
    """Median interval between results, whatever the measure."""
    spread_ms: float
    """Interquartile range; around the line for drafters whose drafts vary."""
    samples: int
    graph: Graph | None


def measure_of(samples: Sequence[Sample]) -> Measure:
    """Return the measure that ``samples`` allow: GPU spans where nearly every step has one."""
    with_span = sum(sample.gpu_span_ms is not None for sample in samples)
    return Measure.GPU_SPAN if samples and with_span >= 0.9 * len(samples) else Measure.QUIET_INTERVAL


def times(samples: Sequence[Sample], measure: Measure) -> list[tuple[float, int]]:
    """Return ``(milliseconds, drafted tokens)`` of each sample that has the ``measure``."""
    if measure is Measure.GPU_SPAN:
        return [(s.gpu_span_ms, s.drafted_tokens) for s in samples if s.gpu_span_ms is not None]
    return [(s.interval_ms, s.drafted_tokens) for s in samples]


def summarise(samples: Sequence[Sample], measure: Measure) -> Cell | None:
    """Return the cell of a drafter whose steps are all alike; ``None`` without a sample."""
    values = np.array([milliseconds for milliseconds, _ in times(samples, measure)])
    if values.size == 0:
        return None
    return Cell(
        float(np.median(values)),
        _interval(samples),
        _interquartile_range(values),
        values.size,
        _graph(samples),
    )


def summarise_varying(
    samples: Sequence[Sample], measure: Measure, drafted_tokens: float, without_drafts_ms: float | None
) -> Cell | None:
    """Return the cell of a drafter whose drafts vary, at ``drafted_tokens`` per step on average.

    ``without_drafts_ms`` is the step time at length 0, ``None`` where it is unknown: it stands in for steps
    without drafts where the cell's own steps lie all on one side of ``drafted_tokens``. ``None`` without a
    sample.
    """
    pairs = times(samples, measure)
    if not pairs:
        return None
    values = np.array([milliseconds for milliseconds, _ in pairs])
    drafted = np.array([tokens for _, tokens in pairs], float)
    weights = np.ones(values.size)
    x, y = drafted, values
    if without_drafts_ms is not None and not drafted.min() <= drafted_tokens <= drafted.max():
        # As many times as there are samples: the line then goes through both clouds.
        x, y = np.append(drafted, 0.0), np.append(values, without_drafts_ms)
        weights = np.append(weights, float(values.size))
    slope, at_mean, mean = _robust_line(x, y, weights)
    residuals = values - (at_mean + slope * (drafted - mean))
    time = at_mean + slope * (drafted_tokens - mean)
    # A line through few, noisy points may leave the range of what was seen; the time must not.
    time = float(np.clip(time, y.min(), y.max()))
    return Cell(time, _interval(samples), _interquartile_range(residuals), values.size, _graph(samples))


def relative_error(cell: Cell) -> float:
    """Return the standard error of the cell's median relative to it, from the interquartile range.

    For normal noise the standard deviation is IQR / 1.349, and a median's error 1.2533 / sqrt(n) of it.
    """
    return 1.2533 * (cell.spread_ms / 1.349) / math.sqrt(cell.samples) / cell.step_time_ms


def _robust_line(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> tuple[float, float, float]:
    """Return slope, value at the mean, and the mean, of a weighted fit without outliers; slope >= 0."""
    keep = np.ones(x.size, bool)
    slope, at_mean, mean = 0.0, float(np.median(y)), float(np.median(x))
    for _ in range(2):
        w = weights[keep]
        mean = float(np.average(x[keep], weights=w))
        at_mean = float(np.average(y[keep], weights=w))
        variance = float(np.average((x[keep] - mean) ** 2, weights=w))
        covariance = float(np.average((x[keep] - mean) * (y[keep] - at_mean), weights=w))
        # Verifying more tokens never takes less time; a falling line is noise.
        slope = max(0.0, covariance / variance) if variance > 0 else 0.0
        residuals = y - (at_mean + slope * (x - mean))
        deviation = float(np.median(np.abs(residuals - np.median(residuals))))
        keep = np.abs(residuals - np.median(residuals)) <= max(OUTLIER_DEVIATIONS * deviation, 1e-9)
    return slope, at_mean, mean


def _interval(samples: Sequence[Sample]) -> float:
    return float(np.median([sample.interval_ms for sample in samples]))


def _interquartile_range(values: npt.NDArray[np.float64]) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def _graph(samples: Sequence[Sample]) -> Graph | None:
    """Return the kind of graph that most steps ran as."""
    kinds = [sample.graph for sample in samples if sample.graph is not None]
    return max(set(kinds), key=kinds.count) if kinds else None
