"""The tap on a scheduler that has what vLLM's has, and no engine behind it."""

from __future__ import annotations

import itertools
import logging
import math
import time
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace
from typing import Any

import pytest

from tabletune.documents import Graph
from tabletune_plugin.engine import spans, steps
from tabletune_plugin.engine.steps import Step, Tap

TABLE_LOOKUP = [0, 2, 2, 1, 0]
"""vLLM's own, for up to 4 requests."""


class Scheduler:
    """What the tap touches of vLLM's scheduler."""

    def __init__(self) -> None:
        self.dynamic_sd_lookup: list[int] | None = list(TABLE_LOOKUP)
        self.waiting: list[str] = []
        self.updates = 0

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        self.updates += 1
        stats = model_runner_output.stats
        return {
            0: SimpleNamespace(scheduler_stats=None),
            1: SimpleNamespace(scheduler_stats=SimpleNamespace(spec_decoding_stats=stats)),
        }


def scheduled(
    tokens: dict[str, int],
    drafts: dict[str, list[int]] | None = None,
    new: tuple[str, ...] = (),
    next_: int = 2,
) -> Any:
    """A step's ``SchedulerOutput``: tokens and drafts by request."""
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens=drafts or {},
        scheduled_new_reqs=list(new),
        num_spec_tokens_to_schedule=next_,
    )


def returned(stats: Any = None, mode: str | None = None) -> Any:
    """A step's ``ModelRunnerOutput``."""
    graph = SimpleNamespace(runtime_mode=mode) if mode is not None else None
    return SimpleNamespace(stats=stats, cudagraph_stats=graph)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def seen() -> list[Step]:
    return []


@pytest.fixture
def tap(scheduler: Scheduler, seen: list[Step]) -> Tap:
    return steps.attach(scheduler, seen.append)


def test_step_is_counted_as_plain_numbers(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    # Request a verifies 2 drafts, b none, c is new with a prompt of 10 tokens: 3 + 1 + 10 tokens.
    stats = SimpleNamespace(num_drafts=1, num_draft_tokens_per_pos=[1, 1], num_accepted_tokens_per_pos=[1, 0])
    output = scheduled({"a": 3, "b": 1, "c": 10}, {"a": [7, 8]}, new=("c",), next_=1)
    scheduler.update_from_output(output, returned(stats, "CUDAGraphMode.PIECEWISE"))
    (step,) = seen
    assert (step.number, step.batch_size, step.drafted_tokens) == (0, 3, 2)
    assert (step.prompt_tokens, step.new_requests) == (9, 1)
    assert step.next_draft_length == 1
    assert (step.requests_drafted, list(step.drafted), list(step.accepted)) == (1, [1, 1], [1, 0])
    assert step.graph is Graph.PIECEWISE
    assert step.kept_tokens == 3 + 1


def test_step_without_drafts_has_no_counts(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    scheduler.update_from_output(scheduled({"a": 1, "b": 1}), returned())
    (step,) = seen
    assert (step.requests_drafted, step.drafted, step.accepted, step.kept_tokens) == (0, (), (), 2)
    assert step.graph is None


@pytest.mark.parametrize(
    ("mode", "graph"),
    [("FULL", Graph.FULL), ("CUDAGraphMode.NONE", Graph.NONE), ("PIECEWISE", Graph.PIECEWISE), ("NEW", None)],
)
def test_graph_is_read_in_both_spellings(
    tap: Tap, scheduler: Scheduler, seen: list[Step], mode: str, graph: Graph | None
) -> None:
    scheduler.update_from_output(scheduled({"a": 1}), returned(mode=mode))
    assert seen[0].graph is graph


def test_interval_is_from_result_to_result(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    began = time.perf_counter()
    for _ in range(3):
        time.sleep(0.01)
        scheduler.update_from_output(scheduled({"a": 1}), returned())
    assert math.isnan(seen[0].interval_ms)
    for before, step in itertools.pairwise(seen):
        assert step.interval_ms == pytest.approx((step.result_at - before.result_at) * 1e3)
        assert step.interval_ms >= 10.0
    assert began < seen[0].result_at < seen[2].result_at <= time.perf_counter()


def test_idle_engine_leaves_a_gap_and_not_an_interval(
    tap: Tap, scheduler: Scheduler, seen: list[Step]
) -> None:
    # After the second result a and b are gone, ended or aborted. c comes whenever somebody asks.
    scheduler.update_from_output(scheduled({"a": 1, "b": 1}), returned())
    scheduler.update_from_output(scheduled({"a": 1, "b": 1}), returned())
    scheduler.update_from_output(scheduled({"c": 9}, new=("c",)), returned())
    scheduler.update_from_output(scheduled({"c": 1}), returned())
    assert [math.isnan(step.interval_ms) for step in seen] == [True, False, True, False]


def test_request_that_joins_others_leaves_no_gap(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    scheduler.update_from_output(scheduled({"a": 1, "c": 9}, new=("c",)), returned())
    assert not math.isnan(seen[1].interval_ms)


def test_request_that_had_queued_leaves_no_gap(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    # d waits while a ends, so that the engine goes straight on to it.
    scheduler.waiting.append("d")
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    scheduler.waiting.clear()
    scheduler.update_from_output(scheduled({"d": 9}, new=("d",)), returned())
    assert not math.isnan(seen[1].interval_ms)


def test_steps_that_run_no_model_are_not_counted(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    scheduler.update_from_output(scheduled({}), returned())
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    assert [step.number for step in seen] == [0, 1]
    assert scheduler.updates == 3


# Serving comes first


def test_exception_never_reaches_the_engine_and_is_logged_once(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fail(step: Step) -> None:
        calls.append(step.number)
        raise RuntimeError("ours")

    steps.attach(scheduler, fail)
    with caplog.at_level(logging.DEBUG, "tabletune"):
        for _ in range(3):
            outputs = scheduler.update_from_output(scheduled({"a": 1}), returned())
            assert set(outputs) == {0, 1}
    assert calls == [0, 1, 2]
    (record,) = caplog.records
    assert "serving goes on" in record.getMessage()
    assert record.exc_info is not None


def test_step_that_cannot_be_read_does_not_stop_the_next(
    tap: Tap, scheduler: Scheduler, seen: list[Step], caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = scheduled({"a": 1})
    del unreadable.scheduled_new_reqs
    scheduler.update_from_output(unreadable, returned())
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    # The step was one: the recorder of GPU spans has counted it too.
    assert [step.number for step in seen] == [1]
    assert len(caplog.records) == 1


def test_engines_own_exception_is_the_engines(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    with pytest.raises(AttributeError):
        scheduler.update_from_output(scheduled({"a": 1}), None)
    assert seen == []


# The lookup


def test_lookup_is_put_in_force_as_a_copy(tap: Tap, scheduler: Scheduler) -> None:
    mine = [0, 1, 1, 1, 1]
    tap.set_lookup(mine)
    mine[2] = 9
    assert scheduler.dynamic_sd_lookup == tap.lookup == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("lookup", [[], [0, 1, 1, 1], [0, 1, 1, 1, 1, 1]], ids=len)
def test_lookup_of_another_length_is_refused_and_the_old_one_stays(
    tap: Tap, scheduler: Scheduler, lookup: list[int]
) -> None:
    with pytest.raises(ValueError, match=f"a lookup of {len(lookup)} entries was given, 5 are needed"):
        tap.set_lookup(lookup)
    assert scheduler.dynamic_sd_lookup == TABLE_LOOKUP


def test_engine_without_a_table_is_refused(scheduler: Scheduler) -> None:
    scheduler.dynamic_sd_lookup = None
    with pytest.raises(ValueError, match="started without num_speculative_tokens_per_batch_size"):
        steps.attach(scheduler, lambda step: None)


def test_detached_scheduler_is_as_it_was(tap: Tap, scheduler: Scheduler, seen: list[Step]) -> None:
    original = scheduler.dynamic_sd_lookup
    tap.set_lookup([0, 0, 0, 0, 0])
    tap.detach()
    assert scheduler.dynamic_sd_lookup is original
    assert scheduler.update_from_output == Scheduler.update_from_output.__get__(scheduler)
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    assert seen == []
    steps.attach(scheduler, seen.append)  # and can be tapped again
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    assert [step.number for step in seen] == [0]


# What it takes


def test_tap_counts_its_own_seconds_and_none_of_the_schedulers(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    plain = scheduler.update_from_output

    def update(*args: Any) -> Any:
        clock.now += 1.0
        return plain(*args)

    def on_step(step: Step) -> None:
        clock.now += 0.001
        if step.number == 1:
            raise RuntimeError

    monkeypatch.setattr(scheduler, "update_from_output", update)
    tap = steps.attach(scheduler, on_step)
    # A step that raises took its time, too.
    for number in range(1, 4):
        scheduler.update_from_output(scheduled({"a": 1}), returned())
        assert tap.own_seconds == pytest.approx(number * 0.001)


# GPU spans


class Executor:
    """An executor whose workers take the spans' name, or have no GPU."""

    def __init__(self, *records: bool) -> None:
        self._records = list(records)
        self.names: list[str] = []
        self.recorders: list[spans.Spans] = []
        self.detached = 0

    def collective_rpc(self, method: Any, args: tuple[str, ...] = ()) -> list[bool]:
        if method is spans.detach_in_worker:
            self.detached += 1
            return []
        assert method is spans.attach_in_worker
        self.names += args
        if any(self._records):
            self.recorders.append(spans.Spans(SharedMemory(name=args[0])))  # as the worker does
        return self._records


def test_without_a_gpu_there_are_no_spans(tap: Tap) -> None:
    executor = Executor(False)
    assert tap.record_spans(executor) is False
    assert tap.gpu_span_ms(0) is None
    tap.detach()
    assert executor.detached == 0
    with pytest.raises(FileNotFoundError):
        SharedMemory(name=executor.names[0])


def test_spans_of_rank_0_are_read_by_step_counted_from_the_moment_of_attaching(
    tap: Tap, scheduler: Scheduler, seen: list[Step]
) -> None:
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    executor = Executor(True, False)
    assert tap.record_spans(executor) is True
    scheduler.update_from_output(scheduled({"a": 1}), returned())
    assert [step.number for step in seen] == [0, 0]
    assert tap.gpu_span_ms(0) is None
    # Whoever ends, and however, leaves no memory behind.
    with pytest.raises(FileNotFoundError):
        SharedMemory(name=executor.names[0])
    (recorder,) = executor.recorders
    recorder.write(0, 4.5)
    assert tap.gpu_span_ms(0) == 4.5
    assert tap.span_seconds() == 0.0
    recorder.write_own_seconds(1.5)
    assert tap.span_seconds() == 1.5
    recorder.close()
    tap.detach()
    assert tap.gpu_span_ms(0) is None
    assert tap.span_seconds() == 0.0


def test_workers_record_until_the_tap_is_detached(tap: Tap) -> None:
    executor = Executor(True)
    tap.record_spans(executor)
    assert executor.detached == 0
    tap.detach()
    tap.detach()
    assert executor.detached == 1
    executor.recorders[0].close()
