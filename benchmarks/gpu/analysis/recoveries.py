"""Timelines: how mode adapt finds its way from a wrong start, or after a switch of the workload.

Each slice is told as a share of what the right table keeps. That was measured in windows before and after the
timeline, and in later runs between its late slices, on a host that drifts: between these the reference moves
on straight lines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from gpu.analysis import ratios
from gpu.analysis.ratios import Estimate
from gpu.analysis.runs import Record, Run, constant_length

from tabletune import tables

LATE_SECONDS = 22.5
"""Slices that begin then or later tell what is reached within 30 s: the last three of a timeline of 30 s."""
SHORT_SECONDS = 27.5
"""Timelines that end before it tell nothing of that."""
SMOOTHED = 3
"""Slices to a running mean: single ones of 2.5 s scatter by as much as a goal's margin."""
GOALS = {"mistuned": 0.97, "switch": 0.96, "wrong profile": 0.95}
"""Shares of the right table; of a stale table's loss for a switch."""
STAYS = {"mistuned": 0.97, "switch": 0.97, "wrong profile": 0.95}
"""Shares of the right table from which a timeline counts as recovered."""


@dataclass(frozen=True)
class Recovery:
    """One timeline with its references."""

    run: str
    kind: str
    """``mistuned`` (its table, or the drafter that it was made for), ``wrong profile`` (its times) or
    ``switch`` (of the workload)."""
    open: int
    start: str
    rates: tuple[float, ...]
    seconds: tuple[float, ...]
    """When each slice ended."""
    shares: tuple[float, ...]
    """Each slice's tokens per second over the right table's."""
    right_before: float
    right_after: float | None
    """The right table's tokens per second; None where the run ended before."""
    right_spread: float | None
    """Standard deviation of one of its windows about the reference, as a share."""
    constants: dict[str, float]
    """Shares of constant lengths, means within rounds."""
    stale: Estimate | None
    """The stale table's share of the right one, after a switch."""
    recovered_after: float | None
    """Seconds after which the share stays at the goal or above; None where it does not."""
    within_30_seconds: Estimate | None
    """Mean share of the slices from 22.5 s on; None where the timeline is too short."""
    recovered: Estimate | None
    """Share of the stale table's loss that is back then; None where it loses nothing to speak of."""
    lengths: tuple[int, ...]
    """Draft length that the plugin had in force for the open requests after each slice."""

    @property
    def stays(self) -> float:
        """The share that counts as recovered."""
        return STAYS[self.kind]


def kind_of(comparison: str, start: str) -> str:
    """Return which goal a timeline is for."""
    if comparison == "switch":
        return "switch"
    return "wrong profile" if start.startswith("times") else "mistuned"


def recovered_after(
    seconds: Sequence[float], shares: Sequence[float], least: float, smoothed: int = SMOOTHED
) -> float | None:
    """Return the end of the slice from which on the share stays at ``least`` or above.

    Stays: no running mean of ``smoothed`` slices that begins there or later is below. None where the last of
    them is.
    """
    reached = None
    for first in range(max(0, len(shares) - smoothed), -1, -1):
        if statistics.fmean(shares[first : first + smoothed]) < least:
            break
        reached = first
    # A running mean may be lifted by what follows: recovery begins with a slice that is there itself.
    while reached is not None and reached < len(shares) and shares[reached] < least:
        reached += 1
    return seconds[reached] if reached is not None and reached < len(shares) else None


def reference_at(moment: float, references: Sequence[tuple[float, float]]) -> float:
    """Return the reference at a moment, from mean moments and rates in their order."""
    moments, rates = zip(*references, strict=True)
    return float(np.interp(moment, moments, rates))


def of_run(run: Run) -> list[Recovery]:
    """Return the timelines of a run."""
    return [
        recovery
        for comparison in ("recovery", "switch")
        for records in _grouped(run.of(comparison))
        if (recovery := recover(run.name, records)) is not None
    ]


def recover(run: str, records: Sequence[Record]) -> Recovery | None:
    """Return one timeline from its records; None where it, or what came before it, is missing."""
    line = next((record for record in records if record["when"] == "timeline"), None)
    right = "retuned" if records[0]["comparison"] == "switch" else "tuned"
    references = [record for record in records if record["when"] != "timeline"]
    own = [record for record in references if record["policy"] == right]
    if line is None or not line["tokensPerSecond"] or not any(record["when"] == "before" for record in own):
        return None
    before = _mean_window(record for record in own if record["when"] == "before")
    ends = [record for record in own if record["when"] == "after"]
    after = _mean_window(ends) if ends else None
    seconds = [float(report["at"]) for report in line["reports"]]
    lasting = [end - start for start, end in zip([0.0, *seconds], seconds, strict=False)]
    between = [_mean_window([reference]) for reference in line.get("references", ())]
    points = [before, *between, *([after] if after is not None else [])]
    shares = [
        rate / reference_at(report.get("ended", line["began"] + report["at"]) - length / 2, points)
        for rate, report, length in zip(line["tokensPerSecond"], line["reports"], lasting, strict=True)
    ]
    spread = _spread(own)
    late = [
        share
        for share, end, length in zip(shares, seconds, lasting, strict=True)
        if end - length >= LATE_SECONDS - 0.1 and seconds[-1] >= SHORT_SECONDS
    ]
    reached = ratios.estimate(late) if between and late else _late(late, spread)
    stale = _within(references, "tuned", right) if right == "retuned" else None
    kind = kind_of(line["comparison"], line["start"])
    constants = {
        name: share.mean
        for name in sorted({record["policy"] for record in references})
        if constant_length(name) is not None and (share := _within(references, name, right)) is not None
    }
    return Recovery(
        run=run,
        kind=kind,
        open=line["open"],
        start=line["start"],
        rates=tuple(line["rates"]),
        seconds=tuple(seconds),
        shares=tuple(shares),
        right_before=before[1],
        right_after=after[1] if after is not None else None,
        right_spread=spread,
        constants=constants,
        stale=stale,
        recovered_after=recovered_after(seconds, shares, STAYS[kind]),
        within_30_seconds=reached,
        recovered=recovered_share(reached, stale),
        lengths=tuple(
            tables.length_at([tuple(entry) for entry in report["ranges"]], line["open"])
            for report in line["reports"]
        ),
    )


def recovered_share(share: Estimate | None, stale: Estimate | None) -> Estimate | None:
    """Return the share of the stale table's loss that is back; None where there is no loss but a tie."""
    if share is None or stale is None or stale.ties() or stale.mean >= 1:
        return None
    loss = 1.0 - stale.mean
    back = (share.mean - stale.mean) / loss
    if share.error is None or stale.error is None:
        return Estimate(back, None, share.rounds)
    # d(back)/d(share) = 1/loss, d(back)/d(stale) = (back - 1)/loss.
    return Estimate(back, math.hypot(share.error, (back - 1) * stale.error) / loss, share.rounds)


def _grouped(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records of each timeline; the same one may come twice in a plan."""
    group: list[Record] = []
    for record in records:
        same = bool(group) and all(record[name] == group[0][name] for name in ("open", "start", "rates"))
        again = bool(group) and record["when"] == "before" and group[-1]["when"] != "before"
        if group and (not same or again):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _mean_window(records: Iterable[Record]) -> tuple[float, float]:
    own = list(records)
    return (
        statistics.fmean(record["began"] + record["seconds"] / 2 for record in own),
        statistics.fmean(record["tokensPerSecond"] for record in own),
    )


def _spread(own: Sequence[Record]) -> float | None:
    """Return the standard deviation of a window about the mean of its side, as a share."""
    squares, free = 0.0, 0
    for when in ("before", "after"):
        rates = [record["tokensPerSecond"] for record in own if record["when"] == when]
        if len(rates) > 1:
            mean = statistics.fmean(rates)
            squares += sum((rate / mean - 1) ** 2 for rate in rates)
            free += len(rates) - 1
    return math.sqrt(squares / free) if free else None


def _late(late: Sequence[float], spread: float | None) -> Estimate | None:
    """Return the mean of the late slices. Slices and reference windows are as long, so their spread is one.

    The few late slices tell it badly by themselves; the larger of the two estimates counts, and the
    reference's own error from its four windows is added.
    """
    if not late:
        return None
    own = ratios.estimate(late)
    if spread is None:
        return own
    of_slices = max(spread / math.sqrt(len(late)), own.error or 0.0)
    return Estimate(own.mean, math.hypot(of_slices, spread / 2), len(late))


def _within(references: Sequence[Record], policy: str, right: str) -> Estimate | None:
    sides = {"before": 0, "after": 1000}
    rounds: dict[str, dict[int, float]] = {policy: {}, right: {}}
    for record in references:
        if record["policy"] in rounds:
            rounds[record["policy"]][record["round"] + sides[record["when"]]] = record["tokensPerSecond"]
    return ratios.within_rounds(rounds[policy], rounds[right])
