"""Timelines against the right table."""

from __future__ import annotations

import pytest

from tests.benchmarks.gpu import made

from gpu.analysis import recoveries  # isort: skip
from gpu.analysis.ratios import Estimate  # isort: skip
from gpu.analysis.runs import Record  # isort: skip

RISING = [0.5, 0.7, 0.9, 0.98] + [0.99] * 8


def recovered(records: list[Record]) -> recoveries.Recovery:
    (found,) = recoveries.of_run(made.run(records))
    return found


def test_recovery_time_is_the_end_of_the_first_slice_that_stays() -> None:
    found = recovered(made.timeline(RISING))
    assert found.recovered_after == 10.0
    assert found.within_30_seconds is not None
    assert found.within_30_seconds.mean == pytest.approx(0.99)
    assert found.lengths == (2,) * 12


def test_relapse_begins_the_count_anew_and_one_noisy_slice_does_not() -> None:
    seconds = [2.5 * place for place in range(1, 11)]
    steady = [0.8, 1.0, 1.0, 0.96, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    relapse = [0.8, 1.0, 1.0, 1.0, 0.8, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert recoveries.recovered_after(seconds, steady, 0.97) == 5.0
    assert recoveries.recovered_after(seconds, relapse, 0.97) == 17.5
    assert recoveries.recovered_after(seconds, [0.9] * 10, 0.97) is None
    # The mean of the first three is there, the first one is not.
    assert recoveries.recovered_after(seconds, [0.95] + [1.0] * 9, 0.97) == 5.0
    assert recoveries.recovered_after(seconds, [1.0] * 9 + [0.9], 0.97) is None


def test_reference_moves_from_before_to_after() -> None:
    # The host slows down evenly from 1000 to 800; adapting keeps what the right table does all along.
    before, after = (92.0 + 1.0, 1000.0), (137.0 + 1.0, 800.0)
    assert recoveries.reference_at(93.0, [before, after]) == 1000.0
    assert recoveries.reference_at(115.5, [before, after]) == pytest.approx(900.0)
    assert recoveries.reference_at(500.0, [before, after]) == 800.0
    assert recoveries.reference_at(115.5, [before]) == 1000.0
    found = recovered(made.timeline([1.0] * 12, right=((1000.0, 1000.0), (800.0, 800.0))))
    assert found.shares[0] == pytest.approx(1000 / (1000 - 200 * (101.25 - 93) / 45))
    assert found.shares[-1] > found.shares[0] > 1.0


def test_late_slices_are_held_against_the_right_table_between_them() -> None:
    # The host is a fifth slower while the timeline runs, and as it was before it and after it.
    shares = [0.4] * 4 + [0.8] * 8
    slower = recovered(made.timeline(shares)).within_30_seconds
    assert slower is not None
    assert slower.mean == pytest.approx(0.8)
    found = recovered(made.timeline(shares, between=800.0))
    assert found.within_30_seconds is not None
    assert found.within_30_seconds.mean == pytest.approx(1.0, abs=0.01)
    assert found.within_30_seconds.rounds == 3
    assert found.seconds[-1] == 30.0


def test_short_timeline_tells_nothing_of_30_seconds() -> None:
    found = recovered(made.timeline(RISING[:6]))
    assert found.within_30_seconds is None
    assert found.recovered_after == 10.0


def test_spread_of_the_reference_is_the_error_of_few_slices() -> None:
    right = ((990.0, 1010.0), (1010.0, 990.0))
    found = recovered(made.timeline([1.0] * 12, right))
    # Deviations of 1% with one degree of freedom a side: sqrt(4 · 0.01² / 2).
    assert found.right_spread == pytest.approx(0.01 * 2**0.5)
    # Three late slices, and a reference of four windows.
    assert found.within_30_seconds is not None
    assert found.within_30_seconds.error == pytest.approx(0.01 * 2**0.5 * (1 / 3 + 1 / 4) ** 0.5)


def test_switch_tells_the_share_of_the_stale_loss_that_is_back() -> None:
    found = recovered(made.timeline([0.8] * 3 + [0.98] * 10, comparison="switch", start="tuned", stale=0.8))
    assert found.kind == "switch"
    assert found.stale is not None
    assert found.stale.mean == pytest.approx(0.8)
    assert found.recovered is not None
    assert found.recovered.mean == pytest.approx(0.9)
    assert found.recovered_after == 10.0


def test_no_loss_is_no_recovery() -> None:
    assert recoveries.recovered_share(Estimate(1.0, 0.01, 3), Estimate(0.99, 0.001, 4)) is None
    assert recoveries.recovered_share(Estimate(1.0, 0.01, 3), Estimate(1.1, 0.001, 4)) is None


@pytest.mark.parametrize(
    ("comparison", "start", "kind"),
    [
        ("recovery", "all longest", "mistuned"),
        ("recovery", "drafter 0.3,0.1", "mistuned"),
        ("recovery", "times 2 length 3", "wrong profile"),
        ("switch", "tuned", "switch"),
    ],
)
def test_kind_of_start_decides_the_goal(comparison: str, start: str, kind: str) -> None:
    assert recoveries.kind_of(comparison, start) == kind


def test_same_timeline_twice_is_two_timelines() -> None:
    assert len(recoveries.of_run(made.run(made.timeline(RISING) * 2))) == 2


def test_run_that_ended_in_the_timeline_has_none() -> None:
    records = [record for record in made.timeline(RISING) if record["when"] == "before"]
    assert recoveries.of_run(made.run(records)) == []


def test_run_that_ended_after_it_has_only_the_reference_before() -> None:
    records = [record for record in made.timeline(RISING) if record["when"] != "after"]
    found = recovered(records)
    assert found.right_after is None
    assert found.shares == pytest.approx(RISING)
