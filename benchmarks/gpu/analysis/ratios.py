"""Ratios with their errors, and when a difference is one.

Everything that the report compares goes through here. The host's speed drifts by up to 17% (ENGINE.md 6), so
policies are compared within a round, whose windows lie seconds apart, and only the ratios are averaged. Two
engine starts have no round in common: their ratio is one of means, and the drift is in its error only in so
far as the rounds show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

TIE = 0.02
"""Differences below it are called ties, as in the paper."""
ERRORS = 2.0
"""Standard errors within which nothing can be told."""

Status = Literal["met", "missed", "tie", "not run"]


@dataclass(frozen=True)
class Estimate:
    """A mean over rounds."""

    mean: float
    error: float | None
    """Standard error of the mean; None of a single round."""
    rounds: int

    @property
    def spread(self) -> float | None:
        """Standard deviation between rounds, as a share of the mean."""
        if self.error is None or not self.mean:
            return None
        return self.error * math.sqrt(self.rounds) / abs(self.mean)

    def percent(self, digits: int = 1) -> str:
        """Return the mean in percent with its error."""
        error = "" if self.error is None else f" ± {100 * self.error:.{digits}f}"
        return f"{100 * self.mean:.{digits}f}{error}"

    def rounds_for(self, error: float, longer: float = 1.0) -> int | None:
        """Return how many rounds, of windows ``longer`` times as long, bring the error down to ``error``.

        As if windows differed by chance alone: then twice the seconds do as much as twice the rounds. None
        of a single round.
        """
        if self.error is None:
            return None
        return math.ceil(self.rounds * (self.error / error) ** 2 / longer)

    def reaches(self, least: float) -> Status:
        """Return whether the mean is ``least`` or more; a tie where it is not, within two standard errors."""
        if self.mean >= least:
            return "met"
        return "tie" if self.error is None or least - self.mean < ERRORS * self.error else "missed"

    def ties(self, other: float = 1.0) -> bool:
        """Return whether a ratio is no different from ``other``: by less than 2%, or two standard errors.

        A single round has no error, so it differs from nothing.
        """
        difference = abs(self.mean - other)
        return self.error is None or difference < max(TIE, ERRORS * self.error)

    def plus(self, shift: float, times: float = 1.0) -> Estimate:
        """Return the estimate of ``times · x + shift``."""
        error = None if self.error is None else self.error * abs(times)
        return Estimate(self.mean * times + shift, error, self.rounds)


def estimate(values: Iterable[float]) -> Estimate:
    """Return mean and standard error; ``ValueError`` without values."""
    known = list(values)
    if not known:
        raise ValueError("no values were given, at least one is needed")
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Estimate(statistics.fmean(known), error, len(known))


def within_rounds(values: Mapping[int, float], reference: Mapping[int, float]) -> Estimate | None:
    """Return the mean of ``values / reference`` over the rounds that both have; None where there are none."""
    common = [values[number] / reference[number] for number in sorted(values) if reference.get(number)]
    return estimate(common) if common else None


def across(value: Estimate, reference: Estimate) -> Estimate:
    """Return the ratio of two means without a round in common."""
    ratio = value.mean / reference.mean
    rounds = min(value.rounds, reference.rounds)
    if value.error is None or reference.error is None:
        return Estimate(ratio, None, rounds)
    error = math.hypot(value.error, ratio * reference.error) / abs(reference.mean)
    return Estimate(ratio, error, rounds)


def agree(one: Estimate, other: Estimate) -> bool:
    """Return whether two estimates of the same ratio differ by less than a tie or two standard errors."""
    error = math.hypot(one.error or 0.0, other.error or 0.0)
    return abs(one.mean - other.mean) < max(TIE, ERRORS * error)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the status of a goal that must hold in every case: one miss is a miss."""
    found = set(statuses)
    order: tuple[Status, ...] = ("missed", "tie", "met")
    return next((status for status in order if status in found), "not run")
