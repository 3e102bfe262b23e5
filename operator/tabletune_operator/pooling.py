"""From the counters of many pods to one window of serving, and from windows to a correction.

Counters only grow, and a pod's start over when it restarts: what counts is the growth since the last look,
pod by pod, or all of it where it shrank. Pooled over the pods, the growth is a window for the core's
controller, the same that each pod's plugin runs on its own traffic. One pod alone may see too little, or an
odd hour; the operator's table is for all of them.

A bucket's median stands for the batch size in its middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from tabletune import assembling, controlling, estimating, tables
from tabletune.documents import Acceptance, Document, Source, validate_as
from tabletune_operator import live
from tabletune_operator.expositions import Reading, middle

MEDIAN_TIMES = 4
"""Single times that a pod's median of a cell weighs as: it is of up to 65, most of them told before."""
MOST_TIMES = 64


@dataclass(frozen=True)
class Growth:
    """What pods served between two looks."""

    drafted: Mapping[int, float] = field(default_factory=dict)
    accepted: Mapping[int, float] = field(default_factory=dict)
    proposed: float = 0.0
    not_proposed: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)


def growth(before: Reading | None, after: Reading) -> Growth:
    """Return what a pod served since ``before``; nothing at the first look, which has no beginning.

    Where any counter shrank the pod has restarted, and all of ``after`` is new.
    """
    if before is None:
        return Growth()
    if _restarted(before, after):
        before = Reading()
    return Growth(
        drafted=_less(after.drafted, before.drafted),
        accepted=_less(after.accepted, before.accepted),
        proposed=after.proposed - before.proposed,
        not_proposed=after.not_proposed - before.not_proposed,
        steps=_less(after.steps, before.steps),
        seconds=_less(after.seconds, before.seconds),
        tokens=_less(after.tokens, before.tokens),
    )


def total(growths: Iterable[Growth]) -> Growth:
    """Return the sum over pods."""
    summed = Growth()
    for one in growths:
        summed = Growth(
            drafted=_more(summed.drafted, one.drafted),
            accepted=_more(summed.accepted, one.accepted),
            proposed=summed.proposed + one.proposed,
            not_proposed=summed.not_proposed + one.not_proposed,
            steps=_more(summed.steps, one.steps),
            seconds=_more(summed.seconds, one.seconds),
            tokens=_more(summed.tokens, one.tokens),
        )
    return summed


def window(found: Growth, readings: Iterable[Reading], seconds: float, positions: int) -> controlling.Window:
    """Return the growth as a window of ``seconds`` for draft lengths up to ``positions``."""
    places = range(1, positions + 1)
    times: dict[tuple[int, int], list[float]] = {}
    for reading in readings:
        for (bucket, length), median in reading.medians_ms.items():
            # Only where the pods served lately: an old median says nothing of today.
            if found.steps.get(bucket, 0) > 0:
                times.setdefault((middle(bucket), length), []).extend([median] * MEDIAN_TIMES)
    drafted = tuple(found.drafted.get(place, 0.0) for place in places)
    return controlling.Window(
        seconds=seconds,
        counts=estimating.Counts(
            drafted=drafted,
            accepted=tuple(min(found.accepted.get(place, 0.0), drafted[place - 1]) for place in places),
            proposed=found.proposed,
            not_proposed=found.not_proposed,
        ),
        step_times=tuple(
            controlling.StepTimes(size, length, tuple(found_times[:MOST_TIMES]))
            for (size, length), found_times in sorted(times.items())
        ),
        steps=int(sum(found.steps.values())),
        kept_tokens=int(sum(found.tokens.values())),
    )


def correction(document: Document, outcome: controlling.Outcome, now: datetime) -> live.Correction | None:
    """Return what is to be in force instead of ``document``; ``None`` where it stays.

    The table is the controller's, with live costs in it; acceptance, predictions and advice are of the live
    estimate. A document that cannot be put together is no reason to stop: the table stays.
    """
    decision = outcome.decision
    if decision.reason != estimating.CORRECTED or decision.drafts < decision.needed:
        return None
    table = tables.from_lookup(outcome.lookup)
    if table == document.table:
        return None
    estimate = outcome.estimate
    longest = max(document.profile.draft_lengths)
    drafted = tuple(round(count) for count in estimate.drafted[:longest])
    survival = estimate.survival[:longest]
    acceptance = Acceptance(
        survival=survival,
        drafted=drafted,
        accepted=tuple(
            min(count, round(count * rate)) for count, rate in zip(drafted, survival, strict=True)
        ),
        proposal_rate=estimate.proposal_rate,
        prompts=0,
    )
    try:
        corrected = assembling.assemble(
            document.fingerprint,
            document.profile,
            acceptance,
            document.control,
            now,
            document.engine.prompt_tokens,
            document.engine.output_tokens,
            document.generation + 1,
            Source.CORRECTION,
            document.speculative_config,
        )
        made = corrected.model_copy(update={"table": table})
        made = validate_as(Document, made.model_dump(mode="json", by_alias=True))
    except (*assembling.NOT_COMPUTABLE, ValueError):
        return None
    gains = ", ".join(_told(change) for change in decision.changes[:5])
    told = f"Over {decision.drafts:,.0f} live drafts, batch sizes {gains} are predicted to gain."
    return live.Correction(document.generation, made, told)


def _told(change: estimating.Change) -> str:
    sizes, lengths = f"{change.first} to {change.last}", f"from {change.before} to {change.after}"
    return f"{sizes} {lengths} ({change.predicted_gain:+.1%})"


KeyT = TypeVar("KeyT", int, str)


def _restarted(before: Reading, after: Reading) -> bool:
    return (
        _shrank(before.drafted, after.drafted)
        or _shrank(before.steps, after.steps)
        or after.proposed + after.not_proposed < before.proposed + before.not_proposed
    )


def _shrank(before: Mapping[KeyT, float], after: Mapping[KeyT, float]) -> bool:
    return any(after.get(key, 0.0) < value for key, value in before.items())


def _less(after: Mapping[KeyT, float], before: Mapping[KeyT, float]) -> dict[KeyT, float]:
    return {key: max(0.0, value - before.get(key, 0.0)) for key, value in after.items()}


def _more(one: Mapping[KeyT, float], other: Mapping[KeyT, float]) -> dict[KeyT, float]:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}
