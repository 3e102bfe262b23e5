"""Comparisons across engine starts of the same model: advice taken, graph modes, engines with a fixed length.

Two starts share no round, so host drift between them is not in the errors (up to 17% in single windows,
ENGINE.md 6). Of several runs to compare with, the one nearest in time is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from gpu.analysis import ratios
from gpu.analysis.closed_loops import LoopResult
from gpu.analysis.ratios import Estimate
from gpu.analysis.runs import Graphs, Loop, Run, by_policy, constant_length

from tabletune import advice
from tabletune.costs import CostModel
from tabletune.graphs import GraphSettings
from tabletune.workloads import Workload

ADVISED_MODE = "cudagraph_mode"


@dataclass(frozen=True)
class Across:
    """One policy of a run over one of another run, in the same closed loop."""

    run: str
    other: str
    loop: Loop
    policy: str
    other_policy: str
    ratio: Estimate
    predicted: float | None = None
    """The ratio that the other run's document predicts for these graph settings; None where it cannot."""


@dataclass(frozen=True)
class ModeAdvice:
    """What the default engine's document says of cudagraph_mode FULL for such requests, and what is true."""

    run: str
    other: str
    prompt_tokens: int
    ratio: Estimate
    """Geometric mean over loops of the best policy in mode FULL over the best in the default mode."""
    advised: str | None
    """The mode advised; None where the advice names none."""
    experiment: bool
    """Whether the advice has FULL as an experiment, with the most that it may gain."""
    right: bool | None
    """None where mode and default tie."""


@dataclass(frozen=True)
class Agreement:
    """The same ratio in two runs of one setting."""

    run: str
    other: str
    loop: Loop
    policy: str
    share: Estimate
    other_share: Estimate
    agrees: bool


def advice_taken(runs: Sequence[Run], loops: dict[str, list[LoopResult]]) -> list[Across]:
    """Return the tuned table on advised sizes over the best constant on the default settings."""
    found = []
    for run, other in _pairs(runs, "advised", "default"):
        for own, reference in _common(loops[run.name], loops[other.name]):
            if "tuned" in own.tokens_per_second and reference.best is not None:
                found.append(_across(own, "tuned", reference, reference.best))
    return found


def sizes_taken(runs: Sequence[Run], loops: dict[str, list[LoopResult]]) -> list[Across]:
    """Return the tuned table on advised sizes over the tuned table on the default ones, and as predicted."""
    found = []
    for run, other in _pairs(runs, "advised", "default"):
        for own, reference in _common(loops[run.name], loops[other.name]):
            if "tuned" in own.tokens_per_second and "tuned" in reference.tokens_per_second:
                predicted = predicted_ratio(run, other, own.loop)
                found.append(_across(own, "tuned", reference, "tuned", predicted))
    return found


def full_mode(runs: Sequence[Run], loops: dict[str, list[LoopResult]]) -> list[Across]:
    """Return each policy in mode FULL over the same one in the default mode, capture sizes being alike.

    Where no run has the same capture sizes, with those that there are.
    """
    found = []
    for run in runs:
        if run.graphs != "full":
            continue
        others = [own for own in runs if own.model == run.model and own.graphs in ("advised", "default")]
        alike = [own for own in others if own.advised_sizes == run.advised_sizes] or others
        if not alike:
            continue
        other = min(alike, key=lambda own: _apart(own, run))
        for own, reference in _common(loops[run.name], loops[other.name]):
            for policy in own.tokens_per_second:
                if policy in reference.tokens_per_second:
                    found.append(_across(own, policy, reference, policy))
    return found


def mode_advice(
    runs: Sequence[Run], loops: dict[str, list[LoopResult]], full: Sequence[Across]
) -> list[ModeAdvice]:
    """Return, by prompt length, whether the advice on cudagraph_mode was right: FULL is named where it gains.

    In each loop the best policy in mode FULL is held against the best of the same ones in the default mode.
    """
    by_name = {run.name: run for run in runs}
    found = []
    keys = sorted({(row.run, row.other, row.loop.prompt_tokens) for row in full})
    for name, other, prompt_tokens in keys:
        rows = [
            row
            for row in full
            if (row.run, row.other, row.loop.prompt_tokens) == (name, other, prompt_tokens)
        ]
        ratio = geometric_mean(best_of_both(rows, loops))
        document = by_name[other].document
        if document is None:
            continue
        told = advice.advise(
            document.fingerprint,
            document.profile,
            document.acceptance,
            document.table,
            prompt_tokens,
            round(sum(rows[0].loop.output_tokens) / 2),
        )
        changes = [change for change in told.changes if change.setting == ADVISED_MODE]
        experiment = told.cudagraph_mode is None and any(change.recommended == "FULL" for change in changes)
        worth = experiment or told.cudagraph_mode == "FULL"
        right = None if ratio.ties() else (ratio.mean > 1) == worth
        found.append(ModeAdvice(name, other, prompt_tokens, ratio, told.cudagraph_mode, experiment, right))
    return found


def best_of_both(rows: Sequence[Across], loops: dict[str, list[LoopResult]]) -> list[Estimate]:
    """Return, for each loop of ``rows``, the ratio of the best policies of both runs."""
    found = []
    for loop in sorted({row.loop for row in rows}):
        own = [row for row in rows if row.loop == loop]
        result = next(result for result in loops[own[0].run] if result.loop == loop)
        others = (other for other in _common([result], loops[own[0].other]))
        reference = next(other for _, other in others)
        policies = [row.policy for row in own]
        best, best_other = (
            max((rates.tokens_per_second[policy] for policy in policies), key=lambda rate: rate.mean)
            for rates in (result, reference)
        )
        found.append(ratios.across(best, best_other))
    return found


def fixed_engines(runs: Sequence[Run], loops: dict[str, list[LoopResult]]) -> list[Across]:
    """Return the constant length on an engine with a table over the same length on an engine without."""
    found = []
    for run in runs:
        if run.graphs != "fixed":
            continue
        policy = f"constant {run.fixed_length}"
        others = [
            own
            for own in runs
            if own.model == run.model
            and own.graphs in ("advised", "default")
            and any(policy in loop.tokens_per_second for loop in loops[own.name])
        ]
        alike = [own for own in others if own.advised_sizes == run.advised_sizes] or others
        if not alike:
            continue
        table = min(alike, key=lambda own: _apart(own, run))
        for own, reference in _common(loops[table.name], loops[run.name]):
            if policy in own.tokens_per_second and policy in reference.tokens_per_second:
                found.append(_across(own, policy, reference, policy))
    return found


def adaptive_verification(runs: Sequence[Run], loops: dict[str, list[LoopResult]]) -> list[Across]:
    """Return the tuned table over the best that an engine with vLLM's adaptive verification keeps.

    Mode adapt stands in for the table where there was no profile to make one from.
    """
    found = []
    for run in runs:
        if run.graphs != "adaptive verification":
            continue
        others = [own for own in runs if own.model == run.model and own.graphs in ("advised", "default")]
        for other in sorted(others, key=lambda own: _apart(own, run))[:1]:
            for own, reference in _common(loops[other.name], loops[run.name]):
                rates = reference.tokens_per_second
                served = next((name for name in ("tuned", "adapt") if name in own.tokens_per_second), None)
                if served is not None:
                    best = max(rates, key=lambda policy: rates[policy].mean)
                    found.append(_across(own, served, reference, best))
    return found


def repeats(runs: Sequence[Run], loops: dict[str, list[LoopResult]]) -> list[Agreement]:
    """Return whether runs of one setting agree on each policy's share of the first run's best constant."""
    found = []
    for place, other in enumerate(runs):
        for run in runs[:place]:
            if run.model != other.model or run.setting != other.setting or run.graphs != other.graphs:
                continue
            # Real weights are made for a lease by the rule of its day: arguments do not tell them apart.
            if "dummy" not in run.setting:
                continue
            # Each profile has a table of its own; a constant length is the same by any.
            profiled_anew = run.result["document"] != other.result["document"]
            for first, second in _common(loops[run.name], loops[other.name]):
                if first.best is None:
                    continue
                again = by_policy(other.loops[second.loop])
                for policy, share in first.shares.items():
                    if profiled_anew and constant_length(policy) is None:
                        continue
                    own = ratios.within_rounds(again.get(policy, {}), again.get(first.best, {}))
                    if policy != first.best and own is not None:
                        agrees = ratios.agree(share, own)
                        found.append(Agreement(run.name, other.name, first.loop, policy, share, own, agrees))
    return found


def geometric_mean(ratio: Sequence[Estimate]) -> Estimate:
    """Return the geometric mean of independent ratios."""
    count = len(ratio)
    mean = math.exp(sum(math.log(own.mean) for own in ratio) / count)
    if any(own.error is None for own in ratio):
        return Estimate(mean, None, count)
    error = math.sqrt(sum(((own.error or 0.0) / own.mean) ** 2 for own in ratio)) / count
    return Estimate(mean, mean * error, count)


def predicted_ratio(run: Run, other: Run, loop: Loop) -> float | None:
    """Return how many times the tokens of ``other`` its document predicts with the graph settings of ``run``.

    At as many requests as are open, or the nearest batch size that the table has. None where a document is
    missing or a cell or prompt of such a kind was never measured.
    """
    if run.document is None or other.document is None:
        return None
    document = other.document
    workload = Workload.of(
        CostModel.from_profile(document.profile, document.fingerprint),
        document.profile,
        document.acceptance,
        document.table,
        loop.prompt_tokens,
        round(sum(loop.output_tokens) / 2),
    )
    settings = GraphSettings.from_fingerprint(run.document.fingerprint, document.profile.draft_lengths)
    before, after = workload.served(workload.model.settings), workload.served(settings)
    place = min(loop.open, len(before), len(after)) - 1
    ratio = float(before[place] / after[place])
    return ratio if np.isfinite(ratio) else None


def _pairs(runs: Sequence[Run], kind: Graphs, other: Graphs) -> Iterator[tuple[Run, Run]]:
    for run in runs:
        references = [own for own in runs if own.graphs == other and own.model == run.model]
        if run.graphs == kind and references:
            yield run, min(references, key=lambda own: _apart(own, run))


def _common(
    own: Sequence[LoopResult], other: Sequence[LoopResult]
) -> Iterator[tuple[LoopResult, LoopResult]]:
    """Yield loops of the same requests; names of comparisons may differ between plans."""
    for result in own:
        for reference in other:
            one, two = result.loop, reference.loop
            if (one.open, one.prompt_tokens, one.output_tokens) == (
                two.open,
                two.prompt_tokens,
                two.output_tokens,
            ):
                yield result, reference
                break


def _across(
    own: LoopResult, policy: str, other: LoopResult, other_policy: str, predicted: float | None = None
) -> Across:
    ratio = ratios.across(own.tokens_per_second[policy], other.tokens_per_second[other_policy])
    return Across(own.run, other.run, own.loop, policy, other_policy, ratio, predicted)


def _apart(one: Run, other: Run) -> float:
    dates = [datetime.fromisoformat(run.result["conditions"]["date"]) for run in (one, other)]
    return abs((dates[0] - dates[1]).total_seconds())
