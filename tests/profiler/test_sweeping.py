"""Which steps count, on an engine whose steps cost what its rules say, and no model behind it.

A step takes 10 ms, 1 ms per request, 2 ms per draft token that each request verifies and 1 ms per token that
is drafted for the next. A prompt adds 5 ms to its own step, 7 ms to the one before it, as with asynchronous
scheduling, and 2 ms to the one after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tabletune_plugin.engine.steps import DROPPED_STEPS, SETTLE_STEPS, WARMUP_STEPS, Step
from tabletune_profiler import messages
from tabletune_profiler.messages import (
    CellStarted,
    CellTimed,
    CellUnreachable,
    CountAcceptance,
    OffStarted,
    OffTimed,
    TimeCells,
)
from tabletune_profiler.sweeping import StepLog, Sweep

PROMPTS = ((1, 2, 3, 4), (5, 6, 7, 8))


@dataclass
class Running:
    prompt_tokens: int
    left: int
    """Tokens until it ends."""
    new: bool = True
    kept: int = 0
    """Tokens that it has so far."""


class Engine:
    """Stands in for ``DrivenEngine``: requests join two steps after they were added."""

    def __init__(
        self,
        *,
        capacity: int = 64,
        lifetimes: tuple[int, ...] = (10_000,),
        spans: bool = False,
        drafter_ms: float | None = None,
        cache_tokens: int = 10**9,
        chunk: int = 10**9,
    ) -> None:
        """``drafter_ms`` is a drafter's first pass, run at each length, which can be left out at length 0.

        A request is preempted where all together have more than ``cache_tokens`` tokens. A step processes
        ``chunk`` tokens of prompts.
        """
        self._chunk, self._prefilling = chunk, 0
        self._cache_tokens = cache_tokens
        self.preemptions = 0
        self._drafter_ms = drafter_ms
        self._skipped = False
        self.skips: list[bool] = []
        self.passes_at_zero = 0
        self.log = StepLog()
        self.measures_gpu_span = spans
        self.asynchronous = True
        self.tap = self
        self.aborted = 0
        self.unused_lengths: set[int] = set()
        self._capacity, self._lifetimes = capacity, itertools.cycle(lifetimes)
        self._running: list[Running] = []
        self._waiting: list[Running] = []
        self._joining: list[Running] = []
        self._length = self._proposed = 0
        self._since_change = 0
        self._after_prompt = False
        self._number = 0

    def skip_drafter(self, skip: bool) -> bool:
        if self._drafter_ms is None:
            return False
        self._skipped = skip
        self.skips.append(skip)
        return True

    def set_draft_length(self, length: int) -> None:
        self._since_change = 0 if length != self._length else self._since_change
        self._length = length

    def add(self, token_ids: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> None:
        self._waiting.append(Running(len(token_ids), min(max_tokens, next(self._lifetimes))))

    @property
    def unfinished(self) -> int:
        return len(self._running) + len(self._waiting) + len(self._joining)

    @property
    def busy(self) -> bool:
        return self.unfinished > 0

    def abort_all(self) -> None:
        self.aborted += 1
        self._running, self._waiting, self._joining = [], [], []

    def gpu_span_ms(self, number: int) -> float | None:
        # Known three steps later, as on a GPU that is not waited for.
        return 4.0 if number + 3 <= self._number - 1 else None

    def step(self) -> None:
        joined = self._joining
        self._running += joined
        room = self._capacity - len(self._running)
        self._joining, self._waiting = self._waiting[:room], self._waiting[room:]
        if not self._running:
            return
        self._prefilling += sum(request.prompt_tokens for request in joined)
        prefilled = min(self._prefilling, self._chunk)
        self._prefilling -= prefilled
        decoding = [request for request in self._running if not request.new]
        verified = 0 if self._proposed in self.unused_lengths else self._proposed
        # Caches follow a change of length for two steps more than the change itself takes.
        warming = 3.0 if self._since_change < 4 else 0.0
        drafter = 0.0 if self._skipped and self._length == 0 else self._drafter_ms or 0.0
        self.passes_at_zero += self._length == 0 and drafter > 0
        self.log(
            Step(
                number=self._number,
                result_at=0.0,
                interval_ms=drafter
                + 10.0
                + len(self._running)
                + 2.0 * verified
                + self._length
                + warming
                + 5.0 * bool(joined)
                + 7.0 * bool(self._joining)
                + 2.0 * self._after_prompt,
                batch_size=len(self._running),
                drafted_tokens=verified * len(decoding),
                prompt_tokens=max(0, prefilled - len(joined)),
                new_requests=len(joined),
                next_draft_length=self._length,
                requests_drafted=len(decoding) if verified else 0,
                drafted=(len(decoding),) * verified,
                accepted=(len(decoding),) * min(verified, 1) + (0,) * max(0, verified - 1),
                graph=None,
            )
        )
        for request in self._running:
            more = 1 if request.new else 1 + min(verified, 1)
            request.left -= more
            request.kept += more
            request.new = False
        self._running = [request for request in self._running if request.left > 0]
        while sum(request.prompt_tokens + request.kept for request in self._running) > self._cache_tokens:
            preempted = self._running.pop()
            self._waiting.insert(0, replace(preempted, new=True))
            self.preemptions += 1
        self._proposed, self._after_prompt = self._length, bool(joined)
        self._since_change += 1
        self._number += 1


def sweep(engine: Engine, *, uniform: bool = True) -> Sweep:
    stand_in: Any = engine
    return Sweep(stand_in, engine.log, uniform_drafts=uniform, vocabulary=1_000)


def pure_ms(batch_size: int, length: int) -> float:
    return 10.0 + batch_size + 3.0 * length


def timed(engine: Engine, batch_size: int, *visits: int, steps: int = 6) -> list[messages.Message]:
    return list(sweep(engine).time_cells(TimeCells(batch_size, visits, steps, PROMPTS)))


def cells(found: list[messages.Message]) -> list[CellTimed]:
    return [message for message in found if isinstance(message, CellTimed)]


# Speculation off


def test_speculation_off_is_timed_without_the_drafter_in_the_middle_of_the_visits() -> None:
    engine = Engine(drafter_ms=2.0)
    command = TimeCells(3, (1, 0, 0, 1), 6, PROMPTS, off_steps=12)
    found = list(sweep(engine).time_cells(command))
    assert [type(message) for message in found if not isinstance(message, CellStarted)] == [
        CellTimed,
        CellTimed,
        OffStarted,
        OffTimed,
        CellTimed,
        CellTimed,
    ]
    (off,) = [message for message in found if isinstance(message, OffTimed)]
    assert off.batch_size == 3
    assert [sample.interval_ms for sample in off.samples] == [pure_ms(3, 0)] * 12
    # The other visits have the drafter, before and after.
    for cell in cells(found):
        assert {sample.interval_ms for sample in cell.samples} == {pure_ms(3, cell.draft_length) + 2.0}
    assert engine.skips == [True, False]


def test_drafter_never_runs_at_length_0_around_steps_without_it() -> None:
    # Where its pass at length 0 may kill the engine, that length has no visit, and off can be timed still.
    engine = Engine(drafter_ms=2.0)
    list(sweep(engine).time_cells(TimeCells(2, (1, 2, 2, 1), 4, PROMPTS, off_steps=4)))
    assert engine.passes_at_zero == 0


def test_drafter_that_cannot_be_left_out_has_no_steps_without_it() -> None:
    found = timed(Engine(), 2, 0, 1)
    asked = list(sweep(Engine()).time_cells(TimeCells(2, (0, 1), 6, PROMPTS, off_steps=8)))
    assert asked == found


def test_speculation_off_is_timed_also_where_the_length_in_the_middle_cannot_be() -> None:
    engine = Engine(drafter_ms=2.0)
    engine.unused_lengths = {2}
    found = list(sweep(engine).time_cells(TimeCells(2, (1, 2, 2, 1), 4, PROMPTS, off_steps=4)))
    assert [m.draft_length for m in found if isinstance(m, CellUnreachable)] == [2]
    assert len([m for m in found if isinstance(m, OffTimed)]) == 1


def test_drafter_is_back_when_the_batch_cannot_be_held() -> None:
    engine = Engine(drafter_ms=2.0, lifetimes=(12,))
    list(sweep(engine).time_cells(TimeCells(2, (0, 0), 2, PROMPTS, off_steps=500)))
    assert engine.skips == [True, False]


# The rules for the steps that count


@pytest.mark.parametrize("batch_size", [1, 4])
def test_counted_steps_are_pure_settled_and_warm(batch_size: int) -> None:
    # Any step with a prompt in or after it, of the old length, or right after the change takes another time.
    found = cells(timed(Engine(), batch_size, 0, 2, 1, 1, 2, 0))
    assert [cell.draft_length for cell in found] == [0, 2, 1, 1, 2, 0]
    for cell in found:
        assert {sample.interval_ms for sample in cell.samples} == {pure_ms(batch_size, cell.draft_length)}
        assert {sample.drafted_tokens for sample in cell.samples} == {batch_size * cell.draft_length}
        assert len(cell.samples) == 6
        assert cell.seconds_counted == pytest.approx(6 * pure_ms(batch_size, cell.draft_length) / 1e3)


def test_steps_next_to_a_prompt_do_not_count() -> None:
    # Requests end after 15 to 40 tokens, now one and now another, and each is replaced by one with a prompt.
    engine = Engine(lifetimes=(15, 40, 23, 31))
    for cell in cells(timed(engine, 3, 0, 1, steps=20)):
        assert {sample.interval_ms for sample in cell.samples} == {pure_ms(3, cell.draft_length)}
    assert sum(step.new_requests > 0 for step in engine.log.steps) > 2


def test_each_visit_is_announced_before_it_is_timed() -> None:
    kinds = [(type(message), message.draft_length) for message in timed(Engine(), 2, 1, 0)]  # type: ignore[union-attr]
    assert kinds == [(CellStarted, 1), (CellStarted, 1), (CellTimed, 1), (CellStarted, 0), (CellTimed, 0)]


def test_requests_are_aborted_at_the_end_and_not_drained() -> None:
    engine = Engine()
    timed(engine, 4, 0)
    assert engine.aborted == 1
    assert min(step.batch_size for step in engine.log.steps) == 4


def test_requests_are_aborted_also_where_the_profiler_goes_away() -> None:
    engine = Engine()
    answers = sweep(engine).time_cells(TimeCells(2, (0, 1), 4, PROMPTS))
    next(answers)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert engine.aborted == 1


def test_spans_of_the_last_steps_are_waited_for() -> None:
    (cell,) = cells(timed(Engine(spans=True), 2, 1))
    assert [sample.gpu_span_ms for sample in cell.samples] == [4.0] * 6


def test_drafts_that_vary_count_whatever_was_found() -> None:
    # A drafter that finds nothing at length 2: for a model's drafts the length would not be in force.
    engine = Engine()
    engine.unused_lengths = {2}
    found = list(sweep(engine, uniform=False).time_cells(TimeCells(2, (2,), 4, PROMPTS)))
    (cell,) = cells(found)
    assert {sample.drafted_tokens for sample in cell.samples} == {0}


# Cells that cannot be


def test_batch_that_the_kv_cache_cannot_hold_is_given_up_at_once() -> None:
    # Three requests with prompts of four tokens fit at first, and no longer once each has 20 tokens.
    engine = Engine(cache_tokens=60)
    found = timed(engine, 3, 0, 1, 0, 1, steps=40)
    assert cells(found) == []
    unreachable = [message for message in found if isinstance(message, CellUnreachable)]
    assert {message.draft_length for message in unreachable} == {0, 1}
    assert all("preempted: the KV cache does not hold 3" in message.reason for message in unreachable)
    assert engine._number < 60


def test_batch_that_the_kv_cache_cannot_hold_from_the_start_is_given_up_at_once() -> None:
    engine = Engine(cache_tokens=10)
    found = timed(engine, 3, 0, 1, steps=40)
    assert [message.draft_length for message in found if isinstance(message, CellUnreachable)] == [0, 1]
    assert engine._number < 20


def test_visit_before_the_kv_cache_was_full_counts() -> None:
    engine = Engine(cache_tokens=90)
    found = timed(engine, 3, 0, 0, 0, steps=10)
    assert 0 < len(cells(found)) < 3


def test_batch_that_never_fills_is_unreachable_at_every_length() -> None:
    found = timed(Engine(capacity=3), 4, 0, 2, 2, 0)
    assert found[0] == CellStarted(4, 0)
    reason = "at most 3 of 4 requests ran together: the KV cache or the step's token budget"
    unreachable = found[1:]
    assert [(type(m), m.draft_length) for m in unreachable] == [(CellUnreachable, 0), (CellUnreachable, 2)]  # type: ignore[union-attr]
    assert all(isinstance(m, CellUnreachable) and m.reason.startswith(reason) for m in unreachable)


def test_long_prompts_take_the_steps_that_they_need() -> None:
    # 3 prompts of 400 tokens, 10 a step: 120 steps, far more than the 62 that are waited for.
    engine = Engine(chunk=10)
    command = TimeCells(3, (0, 1), 6, ((7,) * 400,) * 3)
    assert len(cells(list(sweep(engine).time_cells(command)))) == 2
    assert sum(step.prompt_tokens > 0 for step in engine.log.steps) == 0


def test_steps_that_never_are_without_a_prompt_are_waited_for_no_longer_than_the_prompts_take() -> None:
    class Busy(Engine):
        """Always has another prompt."""

        def step(self) -> None:
            self._prefilling += 1
            super().step()

    engine = Busy(chunk=1)
    found = list(sweep(engine).time_cells(TimeCells(3, (0,), 6, PROMPTS)))
    assert [type(message) for message in found] == [CellStarted, CellUnreachable]
    assert engine._number < 3 * 4 + 50 + 4 * 3 + 5


def test_batch_that_takes_longer_than_there_is_time_is_given_up() -> None:
    engine = Engine(chunk=10)
    command = TimeCells(3, (0, 1, 1, 0), 6, ((7,) * 400,) * 3, seconds=0.0)
    assert list(sweep(engine).time_cells(command)) == [CellStarted(3, 0), messages.OutOfTime(3)]
    assert engine.aborted == 1
    assert engine._number < 5


def test_length_that_cannot_be_timed_leaves_the_others_their_visits() -> None:
    engine = Engine()
    engine.unused_lengths = {2}
    found = timed(engine, 2, 1, 2, 3, 3, 2, 1)
    assert [cell.draft_length for cell in cells(found)] == [1, 3, 3, 1]
    assert [m.draft_length for m in found if isinstance(m, CellUnreachable)] == [2]


def test_length_that_is_not_used_is_unreachable() -> None:
    engine = Engine()
    engine.unused_lengths = {2}
    found = timed(engine, 2, 1, 2)
    assert [cell.draft_length for cell in cells(found)] == [1]
    last = found[-1]
    assert isinstance(last, CellUnreachable)
    assert (last.batch_size, last.draft_length) == (2, 2)
    assert last.reason.startswith("only 0 of 6 steps ran with 2 requests decoding at draft length 2")
    assert engine.aborted == 1


# Prompts


def test_prompt_costs_what_it_adds_to_the_steps_around_it() -> None:
    # 7 ms before, 5 in its own step and 1 there for one request more, 2 after.
    engine = Engine()
    found = sweep(engine).time_prompts(messages.TimePrompts(4, 1, 50, 3, PROMPTS))
    assert found.added_ms == pytest.approx((15.0, 15.0, 15.0))
    assert engine.aborted == 1


def test_prompt_that_finds_no_room_ends_with_what_was_timed() -> None:
    engine = Engine(capacity=4)
    assert sweep(engine).time_prompts(messages.TimePrompts(4, 1, 50, 3, PROMPTS)).added_ms == ()
    assert engine.aborted == 1


# Acceptance


def test_acceptance_counts_all_prompts_to_their_end() -> None:
    # 5 prompts of 7 tokens, 2 at a time. A request's first step yields 1 token, each later one 2, its first
    # guess: 1 + 2 · 3. Of 3 decoding steps all but the very first of the run have drafts of 2.
    engine = Engine()
    command = CountAcceptance(2, PROMPTS * 2 + PROMPTS[:1], (7,) * 5, 2)
    *progress, counted = list(sweep(engine).count_acceptance(command))
    assert isinstance(counted, messages.AcceptanceCounted)
    assert counted.requests_decoded == 5 * 3
    assert counted.requests_drafted == 5 * 3
    assert (counted.drafted, counted.accepted) == ((15, 15), (15, 0))
    done = [message.done for message in progress if isinstance(message, messages.AcceptanceProgress)]
    assert done == sorted(done)
    assert done[-1] == 5
    assert engine.unfinished == 0


def test_acceptance_keeps_the_concurrency_asked_for() -> None:
    engine = Engine()
    seen = []
    for _ in sweep(engine).count_acceptance(CountAcceptance(1, PROMPTS * 4, (9,) * 4 * len(PROMPTS), 3)):
        seen.append(engine.unfinished)
    assert max(seen) <= 3


def test_first_steps_dropped_are_the_settling_and_the_warming() -> None:
    # The stand-in's rule above, four steps after a change, is what the sweep drops.
    assert SETTLE_STEPS + WARMUP_STEPS == DROPPED_STEPS == 4


# Signs of life


def test_steps_tell_that_the_engine_lives_once_a_second_at_most() -> None:
    told: list[float] = []
    engine = Engine()
    engine.add(PROMPTS[0], 9, ignore_eos=True)
    while not engine.log.steps:
        engine.step()
    step = engine.log.steps[0]
    log = StepLog(lambda: told.append(len(log.steps)))
    for tenth in range(35):
        log(replace(step, result_at=100.0 + tenth / 10))
    assert told == [1, 11, 21, 31]
    assert len(log.steps) == 35
