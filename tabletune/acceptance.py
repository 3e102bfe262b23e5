"""From counts of drafted and accepted tokens to the tokens that a step is expected to keep.

The profiler calls it with the counts of its acceptance sweep, the plugin and the operator with live
counts. Raw ratios per position are no survival: a late position, reached by few drafts, often seems
to be accepted more often than an earlier one, which is impossible and makes long drafts look good.
And no ratio tells how many drafts stand behind it, so a table could be made from a handful.

What counts as drafted decides whether the expectation is true. ``drafted[i]`` must count each request
and step that got a draft *while the length in force reached position i*, also where the drafter
stopped before i (n-gram and suffix drafting near the end of a match): there the guesses up to i were
not all accepted. Counting only the drafts that are long enough would predict more tokens than come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PRECISION = 0.01
"""Relative standard error of the expected tokens that a profile should reach: the tie tolerance's default."""


VARYING_DRAFTS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that look drafts up in text, and find none, or shorter ones, for some requests."""


def drafts_are_uniform(drafter_method: str) -> bool:
    """Return whether every request gets a draft of the full length each step: drafters that are models do."""
    return drafter_method not in VARYING_DRAFTS


class Rates(Protocol):
    """Acceptance from anywhere: a document's, or the plugin's estimate."""

    @property
    def survival(self) -> tuple[float, ...]:
        """Survival per position, non-increasing."""

    @property
    def proposal_rate(self) -> float:
        """Share of requests and steps that get a draft."""


class AcceptanceError(ValueError):
    """Counts or rates that no drafter can produce."""


def survival(drafted: Sequence[float], accepted: Sequence[float]) -> tuple[float, ...]:
    """Return the survival per position, non-increasing, from counts per position.

    1. A position's survival is its share of drafts accepted up to it, ``accepted / drafted``.
    2. Where that rises from one position to the next, neighbours are pooled until it does not, each
       weighing as much as it was drafted (isotonic regression by pooling adjacent violators), so a
       position that few drafts reached moves little.
    3. A position that was never drafted takes the next drafted position's value, 0 at the end. Nothing
       is known about it, and a table must not choose a length for tokens that nobody has seen.

    >>> survival([100, 100, 10], [80, 50, 6])  # 0.8, 0.5, 0.6: pooled (50 + 6) / (100 + 10)
    (0.8, 0.509..., 0.509...)

    Raises :class:`AcceptanceError` for counts that differ in number, are negative or not finite, or
    for more accepted than drafted.
    """
    _check_counts(drafted, accepted)
    pools: list[tuple[float, float, int]] = []  # drafted, accepted, positions
    undrafted = 0
    for tried, kept in zip(drafted, accepted, strict=True):
        if tried == 0:
            undrafted += 1
            continue
        pool = (tried, kept, 1 + undrafted)
        undrafted = 0
        while pools and pools[-1][1] * pool[0] <= pool[1] * pools[-1][0]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    rates = [min(1.0, kept / tried) for tried, kept, positions in pools for _ in range(positions)]
    # Rounding in the division can lift a pool above the one before it by one unit in the last place.
    return tuple(np.minimum.accumulate(rates + [0.0] * undrafted).tolist())


def expected_tokens(survival: Sequence[float], proposal_rate: float, draft_length: int) -> float:
    """Return the tokens kept per request and step, ``E[K] = 1 + p · (a_1 + … + a_K)`` (DESIGN 1).

    ``1`` is the token that the model itself adds to every step.

    >>> expected_tokens((0.8, 0.5), 1.0, 2)
    2.3
    """
    return float(expected_tokens_of(survival, proposal_rate, [draft_length])[0])


def expected_tokens_of(
    survival: Sequence[float], proposal_rate: float, draft_lengths: Sequence[int]
) -> NDArray[np.float64]:
    """Return :func:`expected_tokens` of each of ``draft_lengths``, shape ``(len(draft_lengths),)``.

    Raises :class:`AcceptanceError` where a length is negative or has no survival.
    """
    for draft_length in draft_lengths:
        if not 0 <= draft_length <= len(survival):
            raise AcceptanceError(
                f"Draft length {draft_length} has no survival: it is known for lengths 0 to {len(survival)}."
                " Measure acceptance at the longest length that the table may use."
            )
    totals = np.concatenate(([0.0], np.cumsum(np.asarray(survival, dtype=np.float64))))
    expected: NDArray[np.float64] = 1.0 + proposal_rate * totals[np.asarray(draft_lengths, dtype=np.intp)]
    return expected


@dataclass(frozen=True)
class Evidence:
    """How well the counts support the expected tokens of one draft length."""

    enough: bool
    """Whether the relative standard error is at most the precision asked for."""
    expected_tokens: float
    """Tokens kept per request and step."""
    standard_error: float
    """Standard error of the expected tokens, as if every draft were independent of the others."""
    precision: float
    """Relative standard error asked for; 0.01 is 1%."""
    drafts: int
    """Drafts counted at the first position."""
    needed: int
    """Drafts needed for that precision, at the acceptance seen so far."""

    @property
    def relative_error(self) -> float:
        """Standard error as a share of the expected tokens."""
        return self.standard_error / self.expected_tokens


_FADED = 1e-9
"""Drafts below which there are none: counts that fade never reach 0, and their inverse overflows."""


def evidence(
    drafted: Sequence[float],
    accepted: Sequence[float],
    proposal_rate: float,
    draft_length: int,
    precision: float = PRECISION,
) -> Evidence:
    """Return how well the counts support ``E[K]`` at ``draft_length``.

    A draft accepted through position j is accepted through every i < j, so with ``n_i`` drafts at
    position i the covariance of two rates is ``a_j (1 - a_i) / n_i`` and

    ``Var(sum of a) = sum over i of (1 - a_i) / n_i · (a_i + 2 · sum over j > i of a_j)``,

    to which the proposal rate adds its own, over ``n_1 / p`` requests and steps. Drafts of one request
    resemble each other, so the real error is larger: read ``needed`` as the least.

    Rates enter with one more hit and one more miss each: three accepted of three are no certainty.
    A length of 0 needs no draft; a position of the length without any makes the error that of a guess
    (half of all drafts accepted to the end).
    """
    rates = survival(drafted, accepted)
    expected = expected_tokens(rates, proposal_rate, draft_length)
    drafts = drafted[0] if drafted else 0
    if draft_length == 0:
        return Evidence(True, expected, 0.0, precision, math.floor(drafts), 0)
    tried = np.asarray(drafted[:draft_length], dtype=np.float64)
    if np.min(tried) < _FADED:
        needed = math.ceil((draft_length / 2 / precision) ** 2)
        return Evidence(False, expected, draft_length / 2, precision, math.floor(drafts), needed)
    smoothed = np.minimum.accumulate((np.asarray(rates[:draft_length]) * tried + 1) / (tried + 2))
    later = np.cumsum(smoothed[::-1])[::-1] - smoothed
    draft_variance = float(np.sum((1 - smoothed) / tried * (smoothed + 2 * later)))
    proposal_variance = float(np.sum(smoothed)) ** 2 * (1 - proposal_rate) * proposal_rate**2 / drafts
    error = math.sqrt(proposal_rate**2 * draft_variance + proposal_variance)
    relative = error / expected
    return Evidence(
        enough=relative <= precision,
        expected_tokens=expected,
        standard_error=error,
        precision=precision,
        drafts=math.floor(drafts),
        needed=math.ceil(drafts * (relative / precision) ** 2),
    )


def _check_counts(drafted: Sequence[float], accepted: Sequence[float]) -> None:
    if len(drafted) != len(accepted):
        raise AcceptanceError(
            f"{len(drafted)} positions drafted and {len(accepted)} accepted. Both need a count per position."
        )
    for position, (tried, kept) in enumerate(zip(drafted, accepted, strict=True)):
        if not (math.isfinite(tried) and 0 <= kept <= tried):
            raise AcceptanceError(
                f"Position {position}: {kept} of {tried} drafts accepted. Counts are finite, not negative,"
                " and no more are accepted than drafted."
            )
