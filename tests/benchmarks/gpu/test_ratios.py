"""Ratios, their errors, and ties."""

from __future__ import annotations

import pytest

from tests.benchmarks.gpu import made  # noqa: F401

from gpu.analysis import ratios  # isort: skip
from gpu.analysis.ratios import Estimate  # isort: skip


def test_drift_common_to_a_round_leaves_no_error() -> None:
    drift = {0: 1.0, 1: 0.8, 2: 1.3}
    best = {number: 1000 * factor for number, factor in drift.items()}
    own = {number: 950 * factor for number, factor in drift.items()}
    found = ratios.within_rounds(own, best)
    assert found is not None
    assert found.mean == pytest.approx(0.95)
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert not found.ties()
    # Of means without rounds the same drift makes a tie.
    assert ratios.across(ratios.estimate(own.values()), ratios.estimate(best.values())).ties()


def test_rounds_that_only_one_has_do_not_count() -> None:
    found = ratios.within_rounds({0: 90.0, 1: 110.0, 7: 1.0}, {0: 100.0, 1: 100.0, 2: 5.0})
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    assert found.rounds == 2
    assert ratios.within_rounds({0: 1.0}, {1: 1.0}) is None


def test_estimate_has_the_standard_error_of_the_mean() -> None:
    # Deviations -1, 0, 1: variance 2/2, error 1/sqrt(3).
    found = ratios.estimate([9.0, 10.0, 11.0])
    assert found.error == pytest.approx(3**-0.5)
    assert found.spread == pytest.approx(0.1)
    assert ratios.estimate([9.0]).error is None


@pytest.mark.parametrize(
    ("mean", "error", "ties"),
    [
        (0.985, 0.001, True),  # under 2%
        (0.975, 0.001, False),
        (0.95, 0.03, True),  # under two standard errors
        (1.05, 0.01, False),
        (0.50, None, True),  # a single round
    ],
)
def test_tie_is_under_two_percent_or_two_errors(mean: float, error: float | None, ties: bool) -> None:
    assert Estimate(mean, error, 3).ties() is ties


@pytest.mark.parametrize(
    ("mean", "error", "status"),
    [(0.97, 0.5, "met"), (0.96, 0.004, "missed"), (0.96, 0.006, "tie"), (0.5, None, "tie")],
)
def test_goal_is_missed_only_where_the_error_allows_it(mean: float, error: float | None, status: str) -> None:
    assert Estimate(mean, error, 3).reaches(0.97) == status


def test_one_miss_misses_a_goal_for_every_case() -> None:
    assert ratios.worst(["met", "tie", "missed"]) == "missed"
    assert ratios.worst(["met", "tie"]) == "tie"
    assert ratios.worst(["met"]) == "met"
    assert ratios.worst([]) == "not run"


def test_ratio_across_runs_adds_both_errors() -> None:
    found = ratios.across(Estimate(110.0, 3.3, 4), Estimate(100.0, 4.0, 3))
    assert found.mean == pytest.approx(1.1)
    assert found.error == pytest.approx(1.1 * 0.05)


def test_runs_agree_within_their_errors() -> None:
    assert ratios.agree(Estimate(0.95, 0.03, 3), Estimate(1.02, 0.03, 3))
    assert not ratios.agree(Estimate(0.95, 0.01, 3), Estimate(1.02, 0.01, 3))
    assert ratios.agree(Estimate(0.99, 0.0, 3), Estimate(1.005, 0.0, 3))


def test_rounds_for_an_error_grow_with_its_square() -> None:
    # Windows differ by 4%: sixteen of them have an error of 1%, four as long windows as well.
    own = Estimate(0.99, 0.04 / 3**0.5, 3)
    assert own.rounds_for(0.01) == 16
    assert own.rounds_for(0.02) == 4
    assert own.rounds_for(0.01, longer=4.0) == 4
    assert Estimate(0.99, None, 1).rounds_for(0.01) is None
