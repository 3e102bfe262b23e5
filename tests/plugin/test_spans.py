"""GPU spans: the memory between two processes, and the recorder with events that a test moves."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tabletune_plugin.engine import spans
from tabletune_plugin.engine.spans import CAPACITY, Spans
from tests.plugin import stand_ins


@pytest.fixture
def table() -> Iterator[Spans]:
    table = Spans.create()
    yield table
    table.close()
    table.unlink()


# The memory


def test_span_is_unknown_until_it_is_written(table: Spans) -> None:
    assert table.read(0) is None
    table.write(0, 4.25)
    assert table.read(0) == 4.25
    assert table.read(1) is None


def test_old_span_is_gone_once_its_slot_is_taken(table: Spans) -> None:
    table.write(3, 1.0)
    assert table.read(3 + CAPACITY) is None  # the slot is still step 3's
    table.write(3 + CAPACITY, 2.0)
    assert table.read(3) is None
    assert table.read(3 + CAPACITY) == 2.0


def test_last_steps_are_all_kept(table: Spans) -> None:
    for step in range(2 * CAPACITY):
        table.write(step, float(step))
    assert table.read(CAPACITY - 1) is None
    assert all(table.read(step) == step for step in range(CAPACITY, 2 * CAPACITY))


def test_another_process_writes_what_this_one_reads(table: Spans) -> None:
    # As a worker of tensor parallelism does: spawned, and given the name alone.
    context = multiprocessing.get_context("spawn")
    written = {0: 1.5, 7: 2.5, CAPACITY: 3.5}
    worker = context.Process(target=stand_ins.write_spans, args=(table.name, written, 0.125))
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0
    assert [table.read(step) for step in (0, 7, CAPACITY, 8)] == [None, 2.5, 3.5, None]
    assert table.own_seconds() == 0.125
    table.write(8, 4.5)  # the memory outlives the writer
    assert table.read(8) == 4.5


@pytest.mark.parametrize("left", [-1.0, math.nan, math.inf])
def test_what_is_no_time_is_not_taken_for_one(table: Spans, left: float) -> None:
    table.write_own_seconds(left)
    assert table.own_seconds() == 0.0


def test_seconds_of_recording_are_no_steps_span(table: Spans) -> None:
    for step in range(CAPACITY):
        table.write(step, 1.0)
    assert table.own_seconds() == 0.0
    table.write_own_seconds(2.5)
    assert all(table.read(step) == 1.0 for step in range(CAPACITY))
    assert table.own_seconds() == 2.5


def test_unlinked_memory_is_gone_but_for_those_who_have_it() -> None:
    table = Spans.create()
    worker = Spans(SharedMemory(name=table.name))
    table.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemory(name=table.name)
    worker.write(3, 1.5)
    assert table.read(3) == 1.5
    worker.close()
    table.close()


ENDING = """
import os, sys
from tabletune_plugin.engine.spans import Spans
table = Spans.create()
print(table.name, flush=True)
table.unlink()
table.write(0, 1.0)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_engine_that_ends_leaves_no_memory_and_no_complaint(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, how],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert not Path("/dev/shm", done.stdout.strip().lstrip("/")).exists()


# The recorder


class Gpu:
    """A GPU whose work is done when the test says so."""

    def __init__(self) -> None:
        self.now = self.done = 0.0
        self.events = 0
        self.seconds = 0.0
        """On the host's clock."""
        self.call_seconds = 0.0
        """What each call of an event takes of it."""

    def torch(self, available: bool = True) -> Any:
        """What stands in for the module."""
        return SimpleNamespace(
            cuda=SimpleNamespace(is_available=lambda: available, Event=lambda enable_timing: Event(self))
        )


class Event:
    def __init__(self, gpu: Gpu) -> None:
        gpu.events += 1
        self._gpu, self._at = gpu, -1.0

    def record(self) -> None:
        self._gpu.seconds += self._gpu.call_seconds
        self._at = self._gpu.now

    def query(self) -> bool:
        self._gpu.seconds += self._gpu.call_seconds
        return self._gpu.done >= self._at

    def elapsed_time(self, end: Event) -> float:
        self._gpu.seconds += self._gpu.call_seconds
        return end._at - self._at


class Runner:
    """A model runner whose steps take what the test says."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.takes = 4.0

    def execute_model(self, scheduler_output: Any, intermediate: Any = None) -> str:
        self._gpu.seconds += 1.0
        return "executed"

    def sample_tokens(self, grammar: Any) -> str:
        self._gpu.seconds += 1.0
        self._gpu.now += self.takes
        return "sampled"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch())
    return gpu


@pytest.fixture
def runner(gpu: Gpu) -> Runner:
    return Runner(gpu)


@pytest.fixture
def worker(runner: Runner, table: Spans) -> Iterator[Any]:
    """vLLM's wrapper around a worker whose runner records."""
    worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner), rank=0)
    assert spans.attach_in_worker(worker, table.name)
    yield worker
    spans.detach_in_worker(worker)


def step(runner: Runner, tokens: int = 1, takes: float = 4.0) -> None:
    runner.takes = takes
    output = SimpleNamespace(total_num_scheduled_tokens=tokens)
    assert runner.execute_model(output, intermediate=None) == "executed"
    assert runner.sample_tokens(None) == "sampled"


def test_span_is_from_the_models_start_to_the_end_of_sampling(
    worker: Any, runner: Runner, gpu: Gpu, table: Spans
) -> None:
    step(runner, takes=4.0)
    gpu.now += 100.0  # the host's own time between steps
    step(runner, takes=5.5)
    gpu.done = gpu.now
    step(runner)
    assert [table.read(number) for number in range(3)] == [4.0, 5.5, None]


def test_span_is_not_waited_for(worker: Any, runner: Runner, gpu: Gpu, table: Spans) -> None:
    step(runner)
    step(runner)
    step(runner)
    assert table.read(0) is None
    gpu.done = 4.0  # the first is through
    step(runner)
    assert [table.read(number) for number in range(2)] == [4.0, None]
    gpu.done = gpu.now
    step(runner)
    assert all(table.read(number) == 4.0 for number in range(4))


def test_steps_without_the_model_are_not_counted(worker: Any, runner: Runner, gpu: Gpu, table: Spans) -> None:
    step(runner, takes=1.0)
    step(runner, tokens=0, takes=50.0)
    step(runner, takes=2.0)
    gpu.done = gpu.now
    step(runner)
    assert [table.read(number) for number in range(3)] == [1.0, 2.0, None]


def test_recording_counts_its_own_seconds_and_none_of_the_models(
    worker: Any, runner: Runner, gpu: Gpu, table: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "time", SimpleNamespace(perf_counter=lambda: gpu.seconds))
    gpu.call_seconds = 0.001
    step(runner)
    # Two events recorded; the model's two seconds are its own.
    assert table.own_seconds() == pytest.approx(0.002)
    gpu.done = gpu.now
    step(runner)
    # Beside its own two, the first step's end asked for and its time read.
    assert table.own_seconds() == pytest.approx(0.006)
    step(runner, tokens=0)  # the second, which has not come, asked for; nothing recorded
    assert table.own_seconds() == pytest.approx(0.007)


def test_events_are_used_again(worker: Any, runner: Runner, gpu: Gpu) -> None:
    for _ in range(50):
        step(runner)
        gpu.done = gpu.now
    # Two of the step under way, two of the one before it.
    assert gpu.events <= 4


def test_gpu_that_never_finishes_is_no_leak(worker: Any, runner: Runner, gpu: Gpu, table: Spans) -> None:
    for _ in range(1_000):
        step(runner)
    gpu.done = gpu.now
    step(runner)
    # The oldest were given up; the last 64 are there.
    assert table.read(999 - 64) is None
    assert table.read(999) == 4.0


def test_detached_runner_is_as_it_was(worker: Any, runner: Runner, gpu: Gpu, table: Spans) -> None:
    spans.detach_in_worker(worker)
    assert runner.execute_model == Runner.execute_model.__get__(runner)
    assert runner.sample_tokens == Runner.sample_tokens.__get__(runner)
    step(runner)
    assert gpu.events == 0
    assert table.read(0) is None
    spans.detach_in_worker(worker)  # again, which is no trouble


def test_only_rank_0_with_a_gpu_records(
    runner: Runner, gpu: Gpu, table: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not spans.attach_in_worker(SimpleNamespace(model_runner=runner, rank=1), table.name)
    assert not spans.attach_in_worker(SimpleNamespace(rank=0), table.name)
    monkeypatch.setitem(sys.modules, "torch", gpu.torch(available=False))
    assert not spans.attach_in_worker(SimpleNamespace(model_runner=runner, rank=0), table.name)
    assert runner.execute_model == Runner.execute_model.__get__(runner)
