"""A profile reports its progress and document, and an API server that is away ends no measurement."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer

from tabletune_profiler import reporting
from tabletune_profiler.commands import report
from tabletune_profiler.exit_codes import InputError, OutputError

EXAMPLE = Path(__file__).parents[1] / "data" / "example-document.json"


class Desk:
    """Takes reports, has a clock that only sleeping moves, and may be closed for a number of tries."""

    def __init__(self, closed: int = 0) -> None:
        self.data: list[dict[str, str]] = []
        self.said: list[str] = []
        self.closed = closed
        self.now = 0.0
        self.reporter = reporting.Reporter(self._patch, self.said.append, lambda: self.now, self._sleep)

    def _patch(self, data: Mapping[str, str]) -> None:
        if self.closed:
            self.closed -= 1
            raise OSError("connection refused")
        self.data.append(dict(data))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def event(kind: str, **content: object) -> str:
    return json.dumps({"event": kind, **content}) + "\n"


def test_progress_is_sent_at_most_every_few_seconds_and_phases_at_once() -> None:
    desk = Desk()
    desk.reporter.line(event("phase", phase="sweep", done=0, total=10))
    for done in range(1, 10):
        desk.now += 1
        desk.reporter.line(event("progress", phase="sweep", done=done, total=10))
    desk.reporter.line(event("phase", phase="mixed", done=0, total=2))
    sent = [json.loads(data["progress.json"]) for data in desk.data]
    assert [(one["phase"], one["done"]) for one in sent] == [("sweep", 0), ("sweep", 5), ("mixed", 0)]


@pytest.mark.parametrize(
    "line", ["", "INFO vllm", "{", "[" * 9_999, '{"event": "note"}', "{}", "3", '{"event": []}']
)
def test_what_is_no_progress_is_passed_over(line: str) -> None:
    desk = Desk()
    desk.reporter.line(line)
    assert desk.data == []


def test_progress_that_cannot_be_sent_is_told_once() -> None:
    desk = Desk(closed=3)
    for done in range(5):
        desk.now += 10
        desk.reporter.line(event("progress", phase="sweep", done=done, total=10))
    assert len(desk.said) == 1
    assert len(desk.data) == 2


def test_the_document_is_tried_until_it_is_there() -> None:
    desk = Desk(closed=4)
    desk.reporter.document(EXAMPLE)
    assert desk.data == [{"table.json": EXAMPLE.read_text()}]
    assert desk.now == 4 * reporting.RETRY_SECONDS


def test_a_document_that_never_arrives_fails_the_command() -> None:
    desk = Desk(closed=10**9)
    with pytest.raises(OutputError, match="connection refused"):
        desk.reporter.document(EXAMPLE)
    assert desk.now >= reporting.PATIENCE_SECONDS


def test_what_is_no_document_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("{}")
    desk = Desk()
    for name in ("table.json", "missing.json"):
        with pytest.raises(InputError, match="holds no table document"):
            desk.reporter.document(tmp_path / name)
    assert desk.data == []


def test_outside_a_pod_it_says_what_to_use_instead(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Use `tabletune profile` here"):
        reporting.Cluster("x", {}, tmp_path)


def test_the_commands_exit_code_and_the_engines_errors_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    desk = Desk()

    class Cluster:
        def __init__(self, name: str) -> None:
            self.patch = desk._patch

    monkeypatch.setattr(reporting, "Cluster", Cluster)
    (tmp_path / "table.json.engine.log").write_text("INFO fine\nERROR CUDA error: no memory\n")
    script = 'import sys; print(\'{"event": "phase", "phase": "start"}\', file=sys.stderr); sys.exit(4)'
    with pytest.raises(typer.Exit) as ended:
        report.report([sys.executable, "-c", script], "x", tmp_path / "table.json")
    assert ended.value.exit_code == 4
    assert json.loads(desk.data[0]["progress.json"])["phase"] == "start"
    assert capfd.readouterr().err.splitlines()[-1] == "ERROR CUDA error: no memory"


def test_a_command_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Cluster:
        def __init__(self, name: str) -> None:
            self.patch = Desk()._patch

    monkeypatch.setattr(reporting, "Cluster", Cluster)
    with pytest.raises(InputError, match="cannot be run"):
        report.report(["/no/such/command"], "x", tmp_path / "table.json")
