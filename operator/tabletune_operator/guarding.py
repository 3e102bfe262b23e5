"""The guard: whether pods keep fewer tokens per second with a new generation than before it.

A prediction may be wrong, and nobody would see it but users. Throughput alone does not tell: it follows the
load. So like is compared with like: kept tokens per second of step time, batch bucket by batch bucket, each
weighing as much as it is served now. Buckets that were not served enough on both sides say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tabletune_operator.pooling import Growth

MAX_BUCKETS = 64
WATCHING, KEPT, ROLLED_BACK = "Watching", "Kept", "RolledBack"


@dataclass(frozen=True)
class Verdict:
    """What the comparison says."""

    change: float | None
    """Change of kept tokens per second; -0.1 is 10% fewer. ``None`` where nothing can be compared yet."""
    seconds: float
    """Time of the steps that were compared, now."""
    worse: bool


def rates(served: Growth, min_steps: float) -> dict[str, float]:
    """Return kept tokens per second of step time by batch bucket, of those with ``min_steps`` steps."""
    found = {
        bucket: served.tokens.get(bucket, 0.0) / seconds
        for bucket, seconds in served.seconds.items()
        if seconds > 0 and served.steps.get(bucket, 0.0) >= min_steps
    }
    most = sorted(found, key=lambda bucket: served.seconds[bucket], reverse=True)[:MAX_BUCKETS]
    return {bucket: round(found[bucket], 3) for bucket in sorted(most)}


def compare(baseline: Mapping[str, float], served: Growth, tolerance: float, min_steps: float) -> Verdict:
    """Return whether ``served`` is worse than ``baseline`` (rates by bucket) by more than ``tolerance``.

    >>> before = {"8": 1000.0}
    >>> compare(before, Growth(steps={"8": 600}, seconds={"8": 10.0}, tokens={"8": 9000.0}), 0.05, 500).change
    -0.1
    """
    now = rates(served, min_steps)
    common = [bucket for bucket in now if baseline.get(bucket, 0.0) > 0]
    seconds = sum(served.seconds[bucket] for bucket in common)
    if not common or seconds <= 0:
        return Verdict(None, 0.0, False)
    kept = sum(now[bucket] * served.seconds[bucket] for bucket in common)
    before = sum(baseline[bucket] * served.seconds[bucket] for bucket in common)
    change = round(kept / before - 1, 6)
    return Verdict(change, seconds, change < -tolerance)
