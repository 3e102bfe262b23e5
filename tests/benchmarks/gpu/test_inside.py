"""What the benchmark does inside the engine core, on stand-ins for its scheduler and its model runner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tabletune_plugin.engine import steps
from tabletune_plugin.engine.steps import Step
from tests.benchmarks.gpu import made  # noqa: F401  # makes the benchmarks importable
from tests.plugin.test_spans import Gpu, Runner
from tests.plugin.test_steps import Scheduler, returned, scheduled

from gpu import inside  # isort: skip


class Core:
    """An engine core whose results come one step late, as with asynchronous scheduling."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.scheduler = Scheduler()
        self.model_executor = self
        self._runner = Runner(gpu)
        self._in_flight: list[Any] = []
        self.seen: list[Step] = []
        self.tap = steps.attach(self.scheduler, self.seen.append)
        assert self.tap.record_spans(self)

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = ()) -> list[Any]:
        return [method(SimpleNamespace(model_runner=self._runner, rank=0), *args)]

    def step(self, takes: float, tokens: int = 1) -> None:
        """Run a step that takes so many milliseconds, and hand in the result of the one before."""
        output = scheduled({"a": tokens} if tokens else {})
        self._runner.takes = takes
        self._runner.execute_model(output)
        self._runner.sample_tokens(None)
        self.gpu.done = self.gpu.now
        self._in_flight.append(output)
        if len(self._in_flight) > 1:
            self.scheduler.update_from_output(self._in_flight.pop(0), returned())


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch())
    monkeypatch.setattr(inside, "_recorder", None)
    core = Core(gpu)
    inside.record(core)
    yield core
    core.tap.detach()


def test_without_spans_no_event_is_recorded_and_steps_are_still_seen(core: Core) -> None:
    inside.bypass(core, "spans")
    for _ in range(5):
        core.step(takes=4.0)
    assert core.gpu.events == 0
    assert [step.number for step in core.seen] == [0, 1, 2, 3]


def test_without_the_plugin_no_step_is_seen_and_no_event_recorded(core: Core) -> None:
    inside.bypass(core, "plugin")
    for _ in range(5):
        core.step(takes=4.0)
    assert (core.gpu.events, core.seen, core.scheduler.updates) == (0, [], 4)
    assert core.tap.own_seconds == core.tap.span_seconds() == 0.0


def test_spans_stay_with_their_steps_whatever_was_out_in_between(core: Core) -> None:
    takes = 0
    for part in ("", "spans", "", "plugin", "", "plugin", "spans", ""):
        inside.bypass(core, part)
        for tokens in (1, 1, 0, 1):  # of one step nothing was scheduled
            takes += 1
            core.step(takes=float(takes), tokens=tokens)
    core.step(takes=0.0)
    with_model = [number for number in range(1, takes + 1) if number % 4 != 3]
    known = {
        step.number: core.tap.gpu_span_ms(step.number)
        for step in core.seen
        if core.tap.gpu_span_ms(step.number) is not None
    }
    # Three steps of each of the four turns with spans, each with the time that it took, but for those whose
    # result came in the next turn, without the plugin.
    assert known == {number: float(with_model[number]) for number in known}
    assert len(known) == 4 * 3 - 2


def test_no_interval_is_as_long_as_the_plugin_was_out(core: Core) -> None:
    for part in ("", "plugin", ""):
        inside.bypass(core, part)
        core.step(takes=1.0)
        core.step(takes=1.0)
    # The first step after it has no interval, as after an idle engine.
    assert [step.interval_ms != step.interval_ms for step in core.seen] == [True, True, False]


def test_own_seconds_are_the_plugins_without_the_benchmarks(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    for module in (inside, steps):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    recorder = inside._recording()
    keep = recorder._keep

    def slowly(step: Step) -> None:
        clock.now += 1.0
        keep(step)

    def plugin(step: Step) -> None:
        clock.now += 0.25

    monkeypatch.setattr(recorder, "_keep", slowly)
    monkeypatch.setattr(recorder, "plugin", plugin)
    snapshot = SimpleNamespace(own_seconds={})
    monkeypatch.setattr(inside, "_runtime", lambda _: SimpleNamespace(snapshot=lambda: snapshot))
    for _ in range(3):
        core.step(takes=1.0)
    snapshot.own_seconds = {"scheduler": core.tap.own_seconds, "spans": 0.5, "control": 0.125}
    assert core.tap.own_seconds == 2.5
    assert inside.own_seconds(core) == {"scheduler": 0.5, "spans": 0.5, "control": 0.125}
