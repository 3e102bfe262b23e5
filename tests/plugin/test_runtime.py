"""The plugin's threads around an engine that is not there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tabletune import documents
from tabletune_plugin import following, runtime, settings, states
from tabletune_plugin.controller import Controller
from tabletune_plugin.runtime import Runtime
from tests.plugin import engines, hanging
from tests.plugin.test_serving import PATIENCE_SECONDS, get, wait_for, wait_until
from tests.ports import free_port

Start = Callable[..., Runtime]


@pytest.fixture
def tap() -> engines.Tap:
    return engines.Tap()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


@pytest.fixture
def start(path: Path, tap: engines.Tap, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    # The first look comes; where the machine pauses, later.
    monkeypatch.setattr(runtime, "FIRST_TICK_SECONDS", PATIENCE_SECONDS)
    started: list[Runtime] = []

    def begin(**variables: str) -> Runtime:
        chosen, complaints = settings.read(
            {"TABLETUNE_TABLE": str(path), "TABLETUNE_METRICS_PORT": "0"} | variables
        )
        assert not complaints
        started.append(
            Runtime.start(
                engines.engine(),
                chosen,
                tap,
                measures_spans=lambda: False,
            )
        )
        return started[-1]

    yield begin
    for running in started:
        running.stop()


def test_table_is_in_force_when_start_returns(start: Start, path: Path, tap: engines.Tap) -> None:
    path.write_bytes(documents.dump(engines.document()))
    assert start().report.reason == states.FOLLOWING
    assert tap.lookup == (0, 2, 2, 1, 0)


def test_changed_file_is_in_force_at_the_next_look_and_looks_are_two_a_second(
    start: Start, path: Path, tap: engines.Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[int, ...]] = []
    tick = Controller.tick

    def look(self: Controller, now: float) -> None:
        tick(self, now)
        looks.append(tap.lookup)

    monkeypatch.setattr(Controller, "tick", look)
    path.write_bytes(documents.dump(engines.document()))
    running = start()
    path.write_bytes(documents.dump(engines.document((0, 0, 0, 0), generation=2)))
    before = len(looks)
    changed = (0, 0, 0, 0, 0)
    wait_until(lambda: changed in looks)
    # The look that was under way when the file was written may have been too early.
    assert looks.index(changed) <= before + 1
    assert running.snapshot().settings.poll_seconds == 0.5


def test_steps_are_counted_and_shown(start: Start) -> None:
    running = start()
    for number in range(5):
        running.on_step(engines.step(number))
    totals = running.snapshot().totals
    assert totals is not None
    assert sum(total[0] for total in totals.steps.values()) == 5


def test_own_seconds_are_by_part_and_the_control_threads_its_own(
    start: Start, tap: engines.Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: Controller, now: float) -> None:
        time.sleep(0.05)
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(Controller, "tick", work)
    began = time.monotonic()
    running = start(TABLETUNE_POLL_SECONDS="0.1")
    wait_until(lambda: running.snapshot().own_seconds["control"] >= 0.03)
    tap.own_seconds = 0.75
    found = running.snapshot().own_seconds
    assert (found["scheduler"], found["spans"]) == (0.75, 0.5)
    # Waiting is no work.
    assert found["control"] < (time.monotonic() - began) / 2


def test_threads_are_daemons_and_end_with_stop(start: Start) -> None:
    before = set(threading.enumerate())
    running = start(TABLETUNE_METRICS_PORT=str(free_port()))
    ours = set(threading.enumerate()) - before
    assert {thread.name for thread in ours} >= {"tabletune-control", "tabletune-metrics"}
    assert all(thread.daemon for thread in ours)
    running.stop()
    wait_until(lambda: not any(thread.is_alive() for thread in ours))


def test_metrics_are_served(start: Start, path: Path) -> None:
    path.write_bytes(documents.dump(engines.document()))
    port = free_port()
    start(TABLETUNE_METRICS_PORT=str(port))
    wait_for(port)
    assert b'tabletune_active{reason="Following"} 1.0' in get(port, "/metrics")[2]
    assert json.loads(get(port, "/debug/table")[2])["table"] == [[1, 2, 2], [3, 3, 1], [4, 4, 0]]


def test_inactive_runtime_serves_its_reason(path: Path) -> None:
    port = free_port()
    chosen, _ = settings.read({"TABLETUNE_TABLE": str(path), "TABLETUNE_METRICS_PORT": str(port)})
    running = Runtime.inactive(chosen, states.NO_LOOKUP, "there is none")
    try:
        wait_for(port)
        assert b'tabletune_active{reason="NoLookup"} 0.0' in get(port, "/metrics")[2]
        assert running.snapshot().own_seconds == {}
        running.on_step(engines.step())  # nothing to count it, and nothing raises
    finally:
        running.stop()


def test_hanging_file_system_delays_the_engines_start_by_no_more_than_the_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch, tap: engines.Tap, tmp_path: Path
) -> None:
    monkeypatch.setattr(runtime, "FIRST_TICK_SECONDS", 0.2)
    with hanging.mounted(tmp_path / "mount") as mount:
        began = time.monotonic()
        running = start(TABLETUNE_TABLE=str(mount / "table.json"))
        # It came back at all: the file system never answers.
        assert time.monotonic() - began >= 0.2
        assert tap.lookup == (0, 2, 2, 2, 2)
        for number in range(5):
            running.on_step(engines.step(number))
        assert running.snapshot().report.reason == states.NO_DOCUMENT
        started = running.snapshot().looked_at
        time.sleep(0.3)
        # What hangs is seen by the time of the last look.
        assert running.snapshot().looked_at == started is not None
    # When the file system is gone for good, that is found out and told.
    wait_until(lambda: running.report.reload is not None)
    wait_until(lambda: (running.snapshot().looked_at or 0.0) > started)
    assert running.report.reload is not None
    assert running.report.reload.result in (following.MISSING, following.UNREADABLE)


def test_tick_that_raises_is_not_the_last(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = []

    def fail(self: Controller, now: float) -> None:
        ticks.append(now)
        raise MemoryError

    monkeypatch.setattr(Controller, "tick", fail)
    start(TABLETUNE_POLL_SECONDS="0.01")
    wait_until(lambda: len(ticks) > 3)
