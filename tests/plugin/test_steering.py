"""The lookup in force, and explorations that go back by themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tabletune import correcting, estimating
from tabletune.documents import Measure
from tabletune.estimating import ExplorationPlan
from tabletune_plugin.steering import Steering
from tests.plugin import engines

LOOKUP = (0, 0, 0, 0, 0)


def plan(cost_ms: float = 1.0, steps: int = 3) -> ExplorationPlan:
    """Length 2 is worth exploring at batch size 2 only."""
    return ExplorationPlan(
        lookup=LOOKUP,
        lengths=(0, 0, 2, 0, 0),
        costs_ms=(math.inf, math.inf, cost_ms, math.inf, math.inf),
        dearest_ms=cost_ms,
        stale_positions=(0, 1),
        steps=steps,
        needed_ms=(math.inf, math.inf, cost_ms, math.inf, math.inf),
        per_token_ms=(math.inf, 12.0, 12.0, 12.0, 12.0),
    )


@pytest.fixture
def tap() -> engines.Tap:
    return engines.Tap()


@pytest.fixture
def steering(tap: engines.Tap) -> Steering:
    made = Steering(tap, correcting.LOWER_QUARTILE)
    made.measure = Measure.QUIET_INTERVAL
    return made


def test_lookup_is_put_in_force(tap: engines.Tap, steering: Steering) -> None:
    assert steering.lookup is None
    steering.put_in_force([0, 1, 1, 1, 1])
    assert tap.lookup == steering.lookup == (0, 1, 1, 1, 1)


def test_lookup_of_another_size_is_refused_and_the_old_one_stays(
    tap: engines.Tap, steering: Steering
) -> None:
    steering.put_in_force(LOOKUP)
    with pytest.raises(ValueError, match="a lookup of 2 entries"):
        steering.put_in_force([0, 1])
    assert steering.lookup == tap.lookup == LOOKUP


def test_without_a_plan_nothing_is_explored(tap: engines.Tap, steering: Steering) -> None:
    steering.put_in_force(LOOKUP)
    for number in range(100):
        steering.add(engines.step(number))
    assert tap.lookups == [LOOKUP]


def test_exploration_starts_when_it_is_paid_for_and_goes_back_after_its_steps(
    tap: engines.Tap, steering: Steering
) -> None:
    steering.put_in_force(LOOKUP, plan(cost_ms=1.0, steps=3), share=0.01)
    # 12 ms a step earn 0.12 ms each: the ninth pays.
    for number in range(8):
        steering.add(engines.step(number))
    assert tap.lookups == [LOOKUP]
    steering.add(engines.step(8))
    assert tap.lookup == (0, 0, 2, 0, 0)
    assert steering.exploring
    assert steering.lookup == LOOKUP
    for number in range(9, 11):
        steering.add(engines.step(number))
    assert tap.lookup == (0, 0, 2, 0, 0)
    steering.add(engines.step(11))
    assert tap.lookup == LOOKUP
    assert steering.explorations == 1


def test_explorations_take_no_more_than_their_share_and_one(tap: engines.Tap, steering: Steering) -> None:
    # A step keeps 2 tokens of 12 ms each per request: 10 ms would be a gain, so it is given what it costs.
    steering.put_in_force(LOOKUP, plan(cost_ms=6.0, steps=3), share=0.005)
    served = lost = 0.0
    length = 0
    for number in range(10_000):
        explored = tap.lookup[2]
        interval = 15.0 if length == 2 else 12.0
        steering.add(
            engines.step(
                number, length=length, next_length=explored, interval_ms=interval, accepted=(0, 0)[:length]
            )
        )
        served += interval
        lost += interval - 12.0
        length = explored
    assert steering.explorations > 50
    assert lost <= 0.005 * served + 9.0


def test_exploration_that_cost_less_than_its_price_is_paid_back(tap: engines.Tap, steering: Steering) -> None:
    steering.put_in_force(LOOKUP, plan(cost_ms=12.0, steps=3), share=0.005)

    def serve(steps: int, explored_ms: float) -> int:
        before, length = steering.explorations, 0
        for number in range(steps):
            explored = tap.lookup[2]
            interval = explored_ms if length == 2 else 12.0
            steering.add(
                engines.step(
                    number,
                    length=length,
                    next_length=explored,
                    interval_ms=interval,
                    accepted=(0, 0)[:length],
                )
            )
            length = explored
        return steering.explorations - before

    assert serve(5_000, explored_ms=12.1) > 1.5 * serve(5_000, explored_ms=16.0) > 0


def settled(
    tap: engines.Tap,
    steering: Steering,
    monkeypatch: pytest.MonkeyPatch,
    intervals_ms: tuple[float, float, float],
    late: int = 1,
) -> tuple[float, float]:
    """Explore once, by three steps that take ``intervals_ms``; returns what it is settled by."""
    found: list[tuple[float, float]] = []

    def settle(balance_ms: float, plan: ExplorationPlan, *given: Any) -> float:
        batch_size, draft_length, *rest = given
        assert (batch_size, draft_length) == (2, 2)
        found.append((rest[0], rest[1]))
        return -1e9  # never again

    monkeypatch.setattr(estimating, "settle", settle)
    steering.put_in_force(LOOKUP, plan(cost_ms=0.0, steps=3), share=0.01)
    # A step drafts what the lookup said when it was scheduled; the next one verifies it.
    scheduled, length, left = [0] * late, 0, list(intervals_ms)
    for number in range(30):
        next_length = scheduled.pop(0)
        interval = left.pop(0) if length else 12.0
        step = engines.step(
            number, length=length, next_length=next_length, interval_ms=interval, accepted=(1, 0)[:length]
        )
        steering.add(step)
        scheduled.append(tap.lookup[2])
        length = next_length
    assert not left
    (only,) = found
    return only


@pytest.mark.parametrize("late", [1, 2], ids=["synchronous", "asynchronous"])
def test_exploration_is_settled_by_all_steps_that_verified_its_drafts(
    tap: engines.Tap, steering: Steering, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    # Three tokens of the two requests in each; the long tail has no say in the lower quartile.
    assert settled(tap, steering, monkeypatch, (11.0, 12.0, 60.0), late) == (11.5, 3.0)


def test_exploration_is_settled_in_the_profiles_measure(
    tap: engines.Tap, steering: Steering, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By GPU spans, of which one never came; intervals hold what the host did.
    steering.measure = Measure.GPU_SPAN
    tap.spans = {number: 8.0 for number in range(30) if number != 3}
    assert settled(tap, steering, monkeypatch, (50.0, 50.0, 50.0)) == (8.0, 3.0)


def test_exploration_whose_steps_cannot_be_timed_keeps_its_price(
    tap: engines.Tap, steering: Steering, monkeypatch: pytest.MonkeyPatch
) -> None:
    steering.measure = None
    step_ms, kept_tokens = settled(tap, steering, monkeypatch, (50.0, 50.0, 50.0))
    assert math.isnan(step_ms)
    assert kept_tokens == 3.0


def wide(steps: int) -> ExplorationPlan:
    """The same, held at batch sizes 2 and 3."""
    return replace(plan(cost_ms=0.0, steps=steps), around=((0, 0), (1, 1), (2, 3), (3, 3), (4, 4)))


def test_exploration_is_held_while_requests_come_and_go(tap: engines.Tap, steering: Steering) -> None:
    # Under load a request ends every few steps: at one batch size alone hardly a step would be timed.
    steering.put_in_force(LOOKUP, wide(steps=6), share=0.01)
    steering.add(engines.step(0))
    assert tap.lookup == (0, 0, 2, 2, 0)
    for number, batch_size in enumerate((3, 2, 3, 3, 2), start=1):
        steering.add(engines.step(number, batch_size=batch_size))
        assert tap.lookup == (0, 0, 2, 2, 0)
    steering.add(engines.step(6, batch_size=3))
    assert tap.lookup == LOOKUP


def test_exploration_ends_with_a_batch_size_out_of_its_reach(tap: engines.Tap, steering: Steering) -> None:
    steering.put_in_force(LOOKUP, wide(steps=50), share=0.01)
    steering.add(engines.step(0))
    steering.add(engines.step(1, batch_size=4))
    assert tap.lookup == LOOKUP


def test_tokens_of_other_batch_sizes_count_as_those_of_the_first(
    tap: engines.Tap, steering: Steering, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[float] = []

    def settle(_balance_ms: float, *given: Any) -> float:
        found.append(given[-1])
        return -1e9  # never again

    monkeypatch.setattr(estimating, "settle", settle)
    steering.put_in_force(LOOKUP, wide(steps=3), share=0.01)
    for number in range(20):
        # Each request keeps two tokens, of two requests and of three.
        size = 2 + number % 2
        steering.add(engines.step(number, batch_size=size, length=2, next_length=2, accepted=(size, 0)))
    assert found == [pytest.approx(4.0)]


def test_exploration_ends_with_another_batch_size(tap: engines.Tap, steering: Steering) -> None:
    steering.put_in_force(LOOKUP, plan(cost_ms=0.0, steps=50), share=0.01)
    steering.add(engines.step(0))
    assert steering.exploring
    steering.add(engines.step(1, batch_size=3))
    assert not steering.exploring
    assert tap.lookup == LOOKUP


def test_exploration_goes_on_when_the_same_lookup_is_put_in_force_again(
    tap: engines.Tap, steering: Steering
) -> None:
    steering.put_in_force(LOOKUP, plan(cost_ms=0.0, steps=3), share=0.01)
    steering.add(engines.step(0))
    steering.put_in_force(LOOKUP, plan(cost_ms=0.0, steps=3), share=0.01)
    assert steering.exploring
    assert tap.lookup == (0, 0, 2, 0, 0)


@pytest.mark.parametrize(
    ("lookup", "explored"), [((0, 1, 1, 1, 1), plan(0.0)), (LOOKUP, None)], ids=["lookup", "none"]
)
def test_other_lookup_or_none_to_explore_ends_it(
    tap: engines.Tap, steering: Steering, lookup: tuple[int, ...], explored: ExplorationPlan | None
) -> None:
    steering.put_in_force(LOOKUP, plan(0.0, steps=50), share=0.01)
    steering.add(engines.step(0))
    assert steering.exploring
    steering.put_in_force(lookup, explored, share=0.01)
    assert not steering.exploring
    assert tap.lookup == lookup
    steering.add(engines.step(1))
    assert tap.lookup == lookup


def test_idle_time_earns_nothing(tap: engines.Tap, steering: Steering) -> None:
    steering.put_in_force(LOOKUP, plan(cost_ms=0.1), share=0.01)
    for number in range(100):
        steering.add(engines.step(number, interval_ms=math.nan))
    assert steering.explorations == 0
