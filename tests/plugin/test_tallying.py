"""What is counted and timed of a run of steps."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from tabletune.controlling import LengthChange, StepTimes, Window
from tabletune.traffic import NextSteps
from tabletune_plugin import tallying
from tabletune_plugin.tallying import DECODE, MIXED, Tally
from tests.plugin import engines


def tally(**changes: Any) -> Tally:
    fields: dict[str, Any] = {
        "uniform_drafts": True,
        "asynchronous": False,
        "gpu_span_ms": lambda number: None,
    }
    return Tally(8, 3, **fields | changes)


def add(counter: Tally, *steps: dict[str, Any]) -> None:
    """Add steps numbered from 0, each taking its number in milliseconds, to tell them apart."""
    for number, fields in enumerate(steps):
        counter.add(engines.step(number, **{"interval_ms": float(number)} | fields))


def times(window: Window) -> dict[tuple[int, int], tuple[float, ...]]:
    return {(cell.batch_size, cell.draft_length): cell.times_ms for cell in window.step_times}


PLAIN: dict[str, Any] = {"batch_size": 2, "length": 2}
MORE_PLAIN = (PLAIN,) * 12


# Buckets


def test_buckets_are_single_sizes_first_and_then_about_half_an_octave() -> None:
    labels = tallying.buckets(256)
    assert labels[:9] == ("", "1", "2", "3", "4", "5-6", "5-6", "7-8", "7-8")
    assert labels[256] == "193-256"
    assert len(labels) == 257
    assert len(set(labels)) == 17


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100, 1_000])
def test_buckets_end_at_the_largest_batch_size(size: int) -> None:
    labels = tallying.buckets(size)
    assert len(labels) == size + 1
    assert labels[-1].rpartition("-")[2] == str(size)


# Drafts


def test_drafts_count_at_every_position_that_the_length_in_force_reached() -> None:
    counter = tally()
    # The first step drafts 3 for the second, of whose two requests one accepts two guesses.
    add(
        counter,
        {"length": 0, "next_length": 3},
        {"length": 3, "requests_drafted": 2, "accepted": (1, 1, 0)},
    )
    counts = counter.take(1.0).counts
    assert counts.drafted == (2, 2, 2)
    assert counts.accepted == (1, 1, 0)
    assert (counts.proposed, counts.not_proposed) == (2, 0)


def test_short_length_says_nothing_about_later_positions() -> None:
    counter = tally()
    add(
        counter,
        {"length": 0, "next_length": 1},
        # vLLM's lists have an entry for each position of the longest length.
        {"length": 1, "requests_drafted": 2, "accepted": (2, 0, 0), "next_length": 1},
    )
    counts = counter.take(1.0).counts
    assert (counts.drafted, counts.accepted) == ((2, 0, 0), (2, 0, 0))


def test_requests_without_a_draft_count_where_drafts_vary_and_only_old_ones() -> None:
    counter = tally(uniform_drafts=False)
    add(
        counter,
        {"length": 0, "next_length": 2},
        {"batch_size": 5, "length": 2, "requests_drafted": 1, "new_requests": 2},
    )
    counts = counter.take(1.0).counts
    assert (counts.proposed, counts.not_proposed) == (1, 2)


def test_nothing_is_counted_where_the_length_in_force_was_0() -> None:
    counter = tally(uniform_drafts=False)
    add(counter, *({"length": 0},) * 5)
    counts = counter.take(1.0).counts
    assert (counts.drafted, counts.proposed, counts.not_proposed) == ((0, 0, 0), 0, 0)


def test_window_starts_over_and_totals_do_not() -> None:
    counter = tally()
    add(counter, {"length": 0, "next_length": 2}, PLAIN)
    before = counter.totals()
    assert counter.take(1.0).counts.drafted == (2, 2, 0)
    assert counter.take(1.0).counts.drafted == (0, 0, 0)
    assert counter.totals() == before
    assert before.drafted == (2, 2, 0)
    assert before.proposed == 2


# Steps


def test_steps_are_told_by_bucket_length_in_force_and_kind() -> None:
    counter = tally()
    add(
        counter,
        {"batch_size": 5, "length": 0, "next_length": 2, "prompt_tokens": 9, "new_requests": 5},
        {"batch_size": 6, "length": 2, "accepted": (1, 1), "next_length": 2},
        {"batch_size": 5, "length": 2, "accepted": (0, 0), "next_length": 0},
    )
    assert counter.totals().steps == {
        ("5-6", 0, MIXED): (1, 0.0, 5),
        ("5-6", 2, DECODE): (2, pytest.approx(0.003), 13),
    }
    window = counter.take(1.0)
    assert (window.steps, window.kept_tokens) == (3, 18)


def test_step_after_an_idle_engine_counts_without_time() -> None:
    counter = tally()
    add(counter, {"interval_ms": math.nan}, {"interval_ms": 4.0})
    assert counter.totals().steps == {
        ("2", 0, DECODE): (1, 0.0, 3),
        ("2", 2, DECODE): (1, pytest.approx(0.004), 3),
    }


# Times: the profile's rule


def test_first_steps_after_a_change_of_length_and_the_last_step_are_not_timed() -> None:
    counter = tally()
    add(counter, *MORE_PLAIN)
    # Step 0 changed the length, so 0 to 3 are dropped; step 11 has none after it yet.
    assert times(counter.take(1.0)) == {(2, 2): tuple(map(float, range(4, 11)))}


def test_asynchronous_scheduling_shows_the_change_a_step_later() -> None:
    counter = tally(asynchronous=True)
    add(counter, *MORE_PLAIN)
    assert times(counter.take(1.0)) == {(2, 2): tuple(map(float, range(3, 11)))}


@pytest.mark.parametrize(
    "disturbed",
    [{"prompt_tokens": 5}, {"new_requests": 1}, {"batch_size": 3}],
    ids=lambda fields: next(iter(fields)),
)
def test_step_near_a_disturbed_one_is_not_timed(disturbed: dict[str, Any]) -> None:
    counter = tally()
    steps = [dict(PLAIN) for _ in range(16)]
    steps[8] |= disturbed
    add(counter, *steps)
    # Not the one before the disturbed step, not itself, not the two after it.
    assert times(counter.take(1.0))[2, 2] == (4.0, 5.0, 6.0, 11.0, 12.0, 13.0, 14.0)


def test_step_that_followed_an_idle_engine_is_not_timed() -> None:
    counter = tally()
    steps = [dict(PLAIN) for _ in range(10)]
    steps[6]["interval_ms"] = math.nan
    add(counter, *steps)
    assert times(counter.take(1.0))[2, 2] == (4.0, 5.0, 7.0, 8.0)


def test_shortened_drafts_are_not_timed_where_drafts_are_uniform() -> None:
    steps = [dict(PLAIN) for _ in range(10)]
    steps[6]["requests_drafted"] = 1
    uniform, varying = tally(), tally(uniform_drafts=False)
    add(uniform, *steps)
    add(varying, *steps)
    assert times(uniform.take(1.0))[2, 2] == (4.0, 5.0, 7.0, 8.0)
    assert times(varying.take(1.0))[2, 2] == (4.0, 5.0, 6.0, 7.0, 8.0)


def test_times_of_a_window_are_bounded() -> None:
    counter = tally()
    add(counter, *(PLAIN,) * 500)
    assert len(times(counter.take(1.0))[2, 2]) == tallying.MOST_TIMES
    assert len(counter.totals().recent_ms["2", 2]) == tallying.RECENT_TIMES


# Changes of length


def test_steps_after_a_change_of_length_are_told_once_there_are_eight() -> None:
    counter = tally()
    add(counter, *(PLAIN,) * 3, {**PLAIN, "next_length": 1}, *({"batch_size": 2, "length": 1},) * 10)
    (change,) = [change for change in counter.take(1.0).changes if change.before == 2]
    assert change == LengthChange(before=2, after=1, batch_size=2, times_ms=tuple(map(float, range(4, 12))))


def test_change_ends_with_the_next_one_and_with_another_batch_size() -> None:
    counter = tally()
    add(
        counter,
        *(PLAIN,) * 3,
        {**PLAIN, "next_length": 1},
        {"batch_size": 2, "length": 1},
        {"batch_size": 2, "length": 1, "next_length": 0},
        {"batch_size": 2, "length": 0},
        {"batch_size": 1, "length": 0},
    )
    found = {(change.before, change.after): change.times_ms for change in counter.take(1.0).changes}
    assert found[2, 1] == (4.0,)
    assert found[1, 0] == (6.0,)


def test_change_that_the_table_makes_with_another_batch_size_is_told_too() -> None:
    counter = tally()
    add(counter, *({"batch_size": 1, "length": 2},) * 3, *({"batch_size": 2, "length": 1},) * 10)
    (change,) = counter.take(1.0).changes
    assert change == LengthChange(before=2, after=1, batch_size=2, times_ms=tuple(map(float, range(4, 12))))


def test_change_that_is_not_complete_waits_for_the_next_window() -> None:
    counter = tally()
    add(counter, *(PLAIN,) * 3, {**PLAIN, "next_length": 1}, *({"batch_size": 2, "length": 1},) * 4)
    assert [change for change in counter.take(1.0).changes if change.after == 1] == []
    for number in range(8, 20):
        counter.add(engines.step(number, batch_size=2, length=1, interval_ms=float(number)))
    (change,) = counter.take(1.0).changes
    assert change.times_ms == tuple(map(float, range(4, 12)))


def test_changes_of_a_window_are_bounded() -> None:
    counter = tally()
    for number in range(2_000):
        counter.add(engines.step(number, length=(number // 3) % 2, next_length=((number + 1) // 3) % 2))
    assert len(counter.take(1.0).changes) == tallying.MOST_CHANGES


# GPU spans


class Recorder:
    """Spans that come some steps late."""

    def __init__(self) -> None:
        self.spans: dict[int, float] = {}

    def __call__(self, number: int) -> float | None:
        return self.spans.get(number)


def test_spans_are_taken_when_they_have_come() -> None:
    recorder = Recorder()
    counter = tally(gpu_span_ms=recorder)
    counter.measure_spans(True)
    for number in range(20):
        counter.add(engines.step(number, batch_size=2, length=2))
        if number >= 3:
            recorder.spans[number - 3] = 1_000.0 + number - 3
    window = counter.take(1.0)
    # The last span that had come when step 19 was counted is that of step 15.
    assert times(window) == {(2, 2): tuple(1_000.0 + number for number in range(4, 16))}


def test_span_of_the_last_window_counts_in_the_next() -> None:
    recorder = Recorder()
    counter = tally(gpu_span_ms=recorder)
    counter.measure_spans(True)
    for number in range(8):
        counter.add(engines.step(number, batch_size=2, length=2))
    assert times(counter.take(1.0)) == {}
    recorder.spans = dict.fromkeys(range(8), 5.0)
    counter.add(engines.step(8, batch_size=2, length=2))
    counter.add(engines.step(9, batch_size=2, length=2))
    assert times(counter.take(1.0)) == {(2, 2): (5.0,) * 4}


def test_span_that_never_comes_is_given_up_and_holds_nothing_back() -> None:
    recorder = Recorder()
    counter = tally(gpu_span_ms=recorder)
    counter.measure_spans(True)
    for number in range(400):
        if number % 2:
            recorder.spans[number] = 2.0
        counter.add(engines.step(number, batch_size=2, length=2))
    assert 50 <= len(times(counter.take(1.0))[2, 2]) <= tallying.MOST_TIMES
    assert len(counter._pending) <= tallying.MOST_PENDING


def test_single_span_that_never_comes_holds_others_back_for_a_while_only() -> None:
    recorder = Recorder()
    recorder.spans = {number: 2.0 for number in range(200) if number != 10}
    counter = tally(gpu_span_ms=recorder)
    counter.measure_spans(True)
    for number in range(10 + tallying.SPAN_STEPS):
        counter.add(engines.step(number, batch_size=2, length=2))
    assert len(times(counter.take(1.0))[2, 2]) == 6  # of steps 4 to 9
    for number in range(10 + tallying.SPAN_STEPS, 110):
        counter.add(engines.step(number, batch_size=2, length=2))
    assert len(times(counter.take(1.0))[2, 2]) == tallying.MOST_TIMES


def test_spans_of_a_change_are_told_too() -> None:
    recorder = Recorder()
    recorder.spans = {number: 100.0 + number for number in range(40)}
    counter = tally(gpu_span_ms=recorder)
    counter.measure_spans(True)
    add(counter, *(PLAIN,) * 3, {**PLAIN, "next_length": 1}, *({"batch_size": 2, "length": 1},) * 12)
    (change,) = [change for change in counter.take(1.0).changes if change.before == 2]
    assert change.times_ms == tuple(100.0 + number for number in range(4, 12))


@pytest.mark.parametrize(
    ("disturbed", "timed"),
    [({"prompt_tokens": 5}, False), ({"new_requests": 1}, False), ({"batch_size": 3}, True)],
    ids=lambda fields: next(iter(fields)) if isinstance(fields, dict) else None,
)
def test_span_of_a_step_near_a_disturbed_one_counts(disturbed: dict[str, Any], timed: bool) -> None:
    # A span holds the step's own work, an interval what the host did for its neighbours too.
    counter = tally(gpu_span_ms=float)
    counter.measure_spans(True)
    steps = [dict(PLAIN) for _ in range(16)]
    steps[8] |= disturbed
    add(counter, *steps)
    found = times(counter.take(1.0))
    assert found[2, 2] == tuple(float(number) for number in range(4, 15) if number != 8)
    assert found.get((3, 2)) == ((8.0,) if timed else None)


def test_another_measure_starts_the_times_over() -> None:
    counter = tally()
    add(counter, *MORE_PLAIN)
    counter.measure_spans(True)
    assert counter.take(1.0).step_times == ()
    assert counter.totals().recent_ms == {}


# Several threads


def test_no_step_is_lost_or_counted_twice_while_windows_are_taken() -> None:
    counter = tally()
    taken: list[Window] = []
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            taken.append(counter.take(0.0))

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(3_000):
        counter.add(engines.step(number, batch_size=2, length=2))
    done.set()
    thread.join()
    taken.append(counter.take(0.0))
    assert sum(window.steps for window in taken) == 3_000
    # The first step verified nothing.
    assert sum(window.counts.drafted[0] for window in taken) == 2 * 2_999 == counter.totals().drafted[0]


def test_window_is_what_the_core_takes() -> None:
    counter = tally()
    add(counter, *MORE_PLAIN)
    window = counter.take(1.5)
    assert window.seconds == 1.5
    assert window.step_times == (StepTimes(2, 2, tuple(map(float, range(4, 11)))),)


# Which steps follow which


def test_next_steps_are_counted_by_batch_size_before_own_and_prompt() -> None:
    counter = tally()
    add(
        counter,
        PLAIN,
        PLAIN,
        {"batch_size": 3, "length": 2, "prompt_tokens": 255, "new_requests": 1},
        {"batch_size": 3, "length": 2},
        {"batch_size": 3, "length": 2},
        {"batch_size": 2, "length": 2},
    )
    assert set(counter.take(1.0).next_steps) == {
        NextSteps(2, 2, 0, 1),
        NextSteps(2, 3, 256, 1),
        NextSteps(3, 3, 0, 2),
        NextSteps(3, 2, 0, 1),
    }
    assert counter.take(1.0).next_steps == ()


def test_prompt_of_one_token_is_a_prompt_and_no_step_follows_an_idle_engine() -> None:
    counter = tally()
    add(counter, PLAIN, {"batch_size": 2, "length": 2, "new_requests": 1, "interval_ms": math.nan}, PLAIN)
    add(counter, {"batch_size": 2, "length": 2, "new_requests": 1})
    assert set(counter.take(1.0).next_steps) == {NextSteps(2, 2, 0, 1), NextSteps(2, 2, 1, 1)}


def test_kinds_of_next_step_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallying, "MOST_NEXT_STEPS", 3)
    counter = tally()
    add(counter, *({"batch_size": 1 + number % 8, "length": 0} for number in range(40)))
    found = counter.take(1.0).next_steps
    assert len(found) == 3
    assert sum(step.count for step in found) < 39
