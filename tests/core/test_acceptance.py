from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabletune import acceptance
from tests.core import strategies


def test_survival_is_the_share_of_drafts_accepted_up_to_the_position() -> None:
    assert acceptance.survival([1000, 1000], [800, 500]) == (0.8, 0.5)


def test_rising_positions_are_pooled_by_what_they_weigh() -> None:
    # 50/100 then 6/10 rises: (50 + 6) / (100 + 10). The 10 drafts move the 100 by 0.009 only.
    assert acceptance.survival([100, 100, 10], [80, 50, 6]) == pytest.approx((0.8, 56 / 110, 56 / 110))


def test_pooling_reaches_back_as_far_as_it_must() -> None:
    # 3/10, then 8/10 pools to 11/20, which is above the first: 12/20 -> all of 5 + 3 + 8 over 30.
    assert acceptance.survival([10, 10, 10], [5, 3, 8]) == pytest.approx((16 / 30,) * 3)


def test_position_never_drafted_takes_the_next_ones_value() -> None:
    assert acceptance.survival([100, 0, 50], [80, 0, 20]) == (0.8, 0.4, 0.4)


def test_positions_never_drafted_at_the_end_survive_nothing() -> None:
    assert acceptance.survival([100, 0, 0], [80, 0, 0]) == (0.8, 0.0, 0.0)
    assert acceptance.survival([], []) == ()


@given(st.integers(0, 8).flatmap(strategies.counts))
def test_survival_is_non_increasing_and_keeps_the_accepted_tokens(
    counted: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    drafted, accepted = counted
    survival = acceptance.survival(drafted, accepted)
    assert len(survival) == len(drafted)
    assert all(0 <= rate <= 1 for rate in survival)
    assert all(before >= after for before, after in itertools.pairwise(survival))
    # Isotonic regression keeps each pool's weighted mean, hence the accepted drafts in all.
    kept = sum(rate * count for rate, count in zip(survival, drafted, strict=True))
    assert kept == pytest.approx(sum(accepted))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_survival_is_closer_to_the_ratios_than_any_other_non_increasing_sequence(
    drafted: list[int], random: Random
) -> None:
    accepted = [random.randint(0, count) for count in drafted]
    ratios = np.divide(accepted, drafted)
    other = np.sort(np.array([random.random() for _ in drafted]))[::-1]
    fitted = np.asarray(acceptance.survival(drafted, accepted))
    assert np.dot(drafted, (fitted - ratios) ** 2) <= np.dot(drafted, (other - ratios) ** 2) + 1e-9


@pytest.mark.parametrize(
    ("drafted", "accepted", "told"),
    [
        ([10], [11], "Position 0: 11 of 10"),
        ([10, -1], [5, 0], "Position 1: 0 of -1"),
        ([10, 10], [5], "2 positions drafted and 1 accepted"),
        ([math.nan], [0], "Position 0: 0 of nan"),
        ([math.inf], [0], "Position 0: 0 of inf"),
        ([10], [math.nan], "Position 0: nan of 10"),
    ],
)
def test_impossible_counts_are_refused(drafted: list[float], accepted: list[float], told: str) -> None:
    with pytest.raises(acceptance.AcceptanceError, match=told):
        acceptance.survival(drafted, accepted)


def test_expected_tokens_are_one_and_the_survival_up_to_the_length() -> None:
    # 1 + 0.8 + 0.5; half of that with drafts for half of the requests.
    assert acceptance.expected_tokens((0.8, 0.5, 0.3), 1.0, 2) == pytest.approx(2.3)
    assert acceptance.expected_tokens((0.8, 0.5, 0.3), 0.5, 2) == pytest.approx(1.65)
    assert acceptance.expected_tokens((0.8, 0.5, 0.3), 1.0, 0) == 1.0


def test_expected_tokens_of_all_lengths_come_at_once() -> None:
    expected = acceptance.expected_tokens_of((0.8, 0.5, 0.3), 1.0, (0, 1, 3))
    assert expected == pytest.approx([1.0, 1.8, 2.6])


@pytest.mark.parametrize("draft_length", [-1, 3])
def test_length_without_survival_is_refused(draft_length: int) -> None:
    with pytest.raises(acceptance.AcceptanceError, match=f"length {draft_length} has no survival"):
        acceptance.expected_tokens((0.8, 0.5), 1.0, draft_length)


def test_standard_error_is_that_of_simulated_drafts() -> None:
    random = np.random.default_rng(7)
    survival, proposal_rate, requests = np.array([0.8, 0.5, 0.3]), 0.6, 500
    means = []
    for _ in range(2_000):
        drafts = random.binomial(requests, proposal_rate)
        # One uniform number decides how far a draft is accepted: P(length >= i) = a_i.
        lengths = (random.random(drafts)[:, np.newaxis] < survival).sum(axis=1)
        means.append(1 + lengths.sum() / requests)
    drafted = [300.0] * 3
    found = acceptance.evidence(drafted, (survival * 300).tolist(), proposal_rate, 3)
    assert found.expected_tokens == pytest.approx(np.mean(means), rel=0.01)
    assert found.standard_error == pytest.approx(np.std(means), rel=0.08)


def test_position_that_fewer_drafts_reached_adds_to_the_error() -> None:
    many = acceptance.evidence([10_000, 10_000], [8_000, 5_000], 1.0, 2)
    fewer = acceptance.evidence([10_000, 100], [8_000, 50], 1.0, 2)
    assert fewer.standard_error > 4 * many.standard_error
    assert fewer.expected_tokens == many.expected_tokens


def test_as_many_drafts_as_needed_are_enough() -> None:
    # A draft keeps 1.3 more tokens with variance 0.8 + 3 · 0.5 - 1.3² = 0.61, and E = 2.3:
    # 0.61 / (0.023)² = 1153 drafts for 1%, a few more since one hit and one miss are added to each rate.
    few = acceptance.evidence([100, 100], [80, 50], 1.0, 2, precision=0.01)
    assert not few.enough
    assert few.needed == pytest.approx(1153, rel=0.05)
    scale = few.needed
    enough = acceptance.evidence([scale] * 2, [0.8 * scale, 0.5 * scale], 1.0, 2, precision=0.01)
    assert enough.enough
    assert enough.relative_error == pytest.approx(0.01, rel=0.05)


def test_three_hits_of_three_are_no_certainty() -> None:
    found = acceptance.evidence([3], [3], 1.0, 1)
    assert not found.enough
    assert found.standard_error > 0.1


def test_without_any_draft_the_need_is_that_of_the_worst_case() -> None:
    # Half of all drafts accepted to the end, the others not at all: (2 / 2 / 0.01)².
    found = acceptance.evidence([500, 0], [400, 0], 1.0, 2)
    assert (found.enough, found.needed, found.drafts) == (False, 10_000, 500)


def test_speculation_off_needs_no_draft() -> None:
    found = acceptance.evidence([], [], 0.0, 0)
    assert (found.enough, found.expected_tokens, found.needed) == (True, 1.0, 0)


@pytest.mark.parametrize("drafts", [5e-324, 1.7e-320, 1e-300, 1e-10])
def test_counts_that_have_faded_away_are_none(drafts: float) -> None:
    faded = acceptance.evidence((drafts,), (drafts / 2,), 0.9, 1)
    none = acceptance.evidence((0,), (0,), 0.9, 1)
    assert not faded.enough
    assert (faded.standard_error, faded.needed) == (none.standard_error, none.needed)
