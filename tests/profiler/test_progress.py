from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from tabletune_profiler import progress
from tabletune_profiler.progress import Bars, JsonLines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(stream: io.StringIO, clock: Clock) -> JsonLines:
    return JsonLines(stream, clock)


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    text = stream.getvalue()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_each_line_is_one_json_object(lines: JsonLines, stream: io.StringIO, clock: Clock) -> None:
    with lines as reporter:
        reporter.phase("start", 1)
        clock.now += 150.0
        reporter.advance(1)
        reporter.note('Two\nlines, "quoted", ünïcode')
        reporter.warn("careful")
    assert events(stream) == [
        {"event": "phase", "seconds": 0.0, "phase": "start", "done": 0, "total": 1},
        {
            "event": "progress", "seconds": 150.0, "phase": "start", "done": 1, "total": 1,
            "remainingSeconds": 0.0,
        },
        {"event": "note", "seconds": 150.0, "message": 'Two\nlines, "quoted", ünïcode'},
        {"event": "warning", "seconds": 150.0, "message": "careful"},
    ]  # fmt: skip


def test_cell_is_named(lines: JsonLines, stream: io.StringIO) -> None:
    lines.phase("sweep", 2)
    lines.advance(2, batch_size=8, draft_length=3)
    told = events(stream)[-1]
    assert (told["batchSize"], told["draftLength"]) == (8, 3)


def test_rest_is_estimated_from_the_pace_of_this_run(
    lines: JsonLines, stream: io.StringIO, clock: Clock
) -> None:
    # 10 of 50 were done by an earlier run. 20 more took 30 s, so the other 20 take 30 s as well.
    lines.phase("sweep", 50, 10)
    clock.now += 30.0
    lines.advance(30)
    assert events(stream)[-1]["remainingSeconds"] == 30.0


def test_rest_is_unknown_before_anything_is_done(lines: JsonLines, stream: io.StringIO, clock: Clock) -> None:
    lines.phase("sweep", 50, 10)
    clock.now += 30.0
    lines.advance(10)
    assert events(stream)[-1]["remainingSeconds"] is None


def test_at_most_one_line_a_second_but_always_the_last(
    lines: JsonLines, stream: io.StringIO, clock: Clock
) -> None:
    # 100 units at 0.25 s each: 25 s. One line each second, the last at 25 s with all of them.
    lines.phase("acceptance", 100)
    for done in range(1, 101):
        clock.now += 0.25
        lines.advance(done)
    told = events(stream)[1:]
    assert [event["done"] for event in told] == list(range(4, 101, 4))
    clock.now += 0.01
    lines.advance(100)
    assert len(events(stream)) == 2 + len(told)


def test_phase_is_told_at_once(lines: JsonLines, stream: io.StringIO) -> None:
    lines.phase("acceptance", 2)
    lines.advance(2)
    lines.phase("sweep", 9, 3)
    assert events(stream)[-1] == {"event": "phase", "seconds": 0.0, "phase": "sweep", "done": 3, "total": 9}


def test_lines_are_flushed_as_they_come() -> None:
    class Buffered(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed = len(self.getvalue())

    stream = Buffered()
    JsonLines(stream).note("now")
    assert stream.flushed == len(stream.getvalue()) > 0


def test_terminal_gets_bars_and_everything_else_lines(stream: io.StringIO) -> None:
    assert isinstance(progress.reporter(Terminal()), Bars)
    assert isinstance(progress.reporter(stream), JsonLines)


def test_bars_show_phase_cell_and_messages_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.reporter() as reporter:
        assert isinstance(reporter, Bars)
        reporter.advance(1)  # before any phase: nothing to move
        for name in progress.PHASES:
            reporter.phase(name, 4, 1)
            reporter.advance(3, batch_size=8, draft_length=2)
            reporter.advance(4)
            reporter.phase(name, 4)
            reporter.advance(2, batch_size=16, draft_length=1)
        reporter.note("Going on from [bold]there[/bold]")
        reporter.warn("hostile \x1b[2J text")
    shown = terminal.getvalue()
    for text in (*progress.PHASES.values(), "4/4", "2/4", "B=16 K=1", "Going on from [bold]there[/bold]"):
        assert text in shown
    assert "Warning: hostile \ufffd[2J text" in shown
    assert "\x1b[2J" not in shown


def test_every_phase_that_is_told_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        Bars().phase("unheard of", 1)
