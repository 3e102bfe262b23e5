"""Closed loops: what each policy keeps, relative to the best constant length of the same round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu.analysis import ratios
from gpu.analysis.ratios import Estimate
from gpu.analysis.runs import Loop, Run, Window, by_policy, constant_length

RIVALS = ("turbo", "nightjar")


@dataclass(frozen=True)
class LoopResult:
    """One closed loop's policies."""

    run: str
    loop: Loop
    tokens_per_second: dict[str, Estimate]
    best: str | None
    """The constant length that kept most, by mean over rounds; None without constants."""
    tied: tuple[str, ...]
    """The other constants that tie with it."""
    shares: dict[str, Estimate]
    """Of the best constant's tokens per second, within rounds; empty where only one policy was served."""
    against: dict[str, Estimate]
    """The tuned table's tokens per second over each other policy's, within rounds."""

    @property
    def longest(self) -> str | None:
        """The constant of the longest length."""
        lengths = {name: constant_length(name) for name in self.tokens_per_second}
        known = [(length, name) for name, length in lengths.items() if length is not None]
        return max(known)[1] if known else None


def compare(run: str, loop: Loop, windows: Iterable[Window]) -> LoopResult:
    """Return how the policies of one loop compare."""
    rounds = by_policy(windows)
    best = best_constant(rounds)
    shares = {}
    if best is not None and len(rounds) > 1:
        for name, own in rounds.items():
            share = ratios.within_rounds(own, rounds[best])
            if share is not None:
                shares[name] = share
    against = {}
    for name, own in rounds.items():
        ratio = ratios.within_rounds(rounds["tuned"], own) if "tuned" in rounds else None
        if name != "tuned" and ratio is not None:
            against[name] = ratio
    return LoopResult(
        run,
        loop,
        {name: ratios.estimate(own.values()) for name, own in rounds.items()},
        best,
        tuple(
            name
            for name in sorted(shares)
            if name != best and constant_length(name) is not None and shares[name].ties()
        ),
        shares,
        against,
    )


def best_constant(rounds: dict[str, dict[int, float]]) -> str | None:
    """Return the constant with the highest mean over the rounds that all constants have.

    It is chosen and compared with by the same windows, so luck is on its side: of constants that tie, the
    luckiest. None without constants.
    """
    constants = {name: own for name, own in rounds.items() if constant_length(name) is not None}
    if not constants:
        return None
    common = set.intersection(*(set(own) for own in constants.values()))

    def mean(name: str) -> float:
        own = constants[name]
        return statistics.fmean([own[number] for number in common] or own.values())

    return max(sorted(constants), key=mean)


def of_windows(run: str, loops: Mapping[Loop, Iterable[Window]]) -> list[LoopResult]:
    """Return closed loops of one run, in the order of prompts and open requests."""
    return [compare(run, loop, windows) for loop, windows in sorted(loops.items())]


def of_run(run: Run) -> list[LoopResult]:
    """Return the closed loops of one run."""
    return of_windows(run.name, run.loops)


def losses(results: Iterable[LoopResult], policy: str) -> list[tuple[LoopResult, Estimate]]:
    """Return what a policy loses to the best constant, the worst first; gains are negative losses.

    ``fixed 3`` is constant 3. Loops without the policy are left out.
    """
    name = policy.replace("fixed", "constant")
    found = [
        (result, result.shares[name].plus(1.0, times=-1.0)) for result in results if name in result.shares
    ]
    return sorted(found, key=lambda own: -own[1].mean)
