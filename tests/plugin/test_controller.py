"""What the controller puts in force, refuses and tells; the file is real, the engine is not."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tabletune import controlling, correcting, documents
from tabletune.documents import Control, Document, Measure, Mode
from tabletune_plugin import controller, following, settings, states
from tabletune_plugin.controller import Controller
from tabletune_plugin.states import Engine
from tabletune_plugin.steering import Steering
from tabletune_plugin.tallying import Tally
from tests.plugin import engines

OWN = (0, 2, 2, 2, 2)
TABLE = (0, 2, 2, 1, 0)


class Rig:
    """A controller with all around it; ``tick`` lets half a second pass."""

    def __init__(self, path: Path, engine: Engine | None = None, *, spans: bool = False, **variables: str):
        self.path = path
        self.engine = engine or engines.engine()
        self.tap = engines.Tap()
        self.tally = Tally(
            self.engine.max_num_seqs,
            self.engine.longest,
            uniform_drafts=self.engine.uniform_drafts,
            asynchronous=self.engine.asynchronous,
            gpu_span_ms=lambda number: None,
        )
        self.steering = Steering(self.tap, correcting.LOWER_QUARTILE)
        chosen, complaints = settings.read({"TABLETUNE_TABLE": str(path)} | variables)
        assert not complaints
        self.settings = chosen
        self.controller = Controller(
            self.engine,
            chosen,
            self.tally,
            self.steering,
            measures_spans=lambda: spans,
            wall_clock=lambda: 1e9,
        )
        self.controller.start()
        self.now = 50.0
        self.number = 0

    @property
    def report(self) -> states.Report:
        return self.controller.report

    def write(self, document: Document) -> None:
        self.path.write_bytes(documents.dump(document))

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.5
            self.controller.tick(self.now)

    def serve(self, steps: int, **fields: Any) -> None:
        for _ in range(steps):
            self.number += 1
            step = engines.step(self.number, **fields)
            self.tally.add(step)
            self.steering.add(step)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A processor on which looking at what was counted takes no time, or as much as a test says."""
    used = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(controller, "time", SimpleNamespace(thread_time=lambda: used.seconds))
    return used


# The file


def test_until_there_is_a_document_the_engine_serves_as_without_tabletune(path: Path) -> None:
    rig = Rig(path)
    rig.tick(4)
    assert rig.tap.lookup == OWN
    assert (rig.report.active, rig.report.reason) == (False, states.NO_DOCUMENT)
    assert rig.report.reloads == {following.MISSING: 1}


def test_document_is_followed(path: Path) -> None:
    rig = Rig(path)
    rig.write(engines.document())
    rig.tick()
    assert rig.tap.lookup == rig.report.lookup == TABLE
    assert (rig.report.active, rig.report.reason, rig.report.mode) == (True, states.FOLLOWING, Mode.FOLLOW)
    assert rig.report.document == engines.document()
    assert rig.report.reload == states.Reload("Loaded", "generation 1, mode follow", 1e9)


def test_deleted_or_broken_document_stays_in_force(path: Path) -> None:
    rig = Rig(path)
    rig.write(engines.document())
    rig.tick()
    path.unlink()
    rig.tick(4)
    path.write_text("broken")
    rig.tick(6)
    assert rig.tap.lookup == TABLE
    assert (rig.report.active, rig.report.reason) == (True, states.FOLLOWING)
    assert rig.report.reloads == {"Loaded": 1, "Missing": 1, "Invalid": 1}


def test_document_for_more_and_for_fewer_requests_fits(path: Path) -> None:
    rig = Rig(path)
    rig.write(engines.document((2, 1)))
    rig.tick()
    assert rig.tap.lookup == (0, 2, 1, 1, 1)
    rig.write(engines.document((0, 1, 2, 1, 0, 0), max_num_seqs=6))
    rig.tick()
    assert rig.tap.lookup == (0, 0, 1, 2, 1)


def test_every_reload_is_logged_with_its_result(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(path)
    with caplog.at_level(logging.INFO, "tabletune"):
        rig.tick()
        rig.write(engines.document())
        rig.tick()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "Missing" in caplog.messages[0]
    assert "Loaded: generation 1, mode follow" in caplog.messages[1]


def test_bad_file_that_is_rewritten_each_second_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(path)
    for _ in range(300):
        path.write_text("broken")
        rig.tick(2)
    assert len(caplog.records) == 1
    assert rig.report.reloads == {"Invalid": 1}


def test_files_that_change_with_each_look_do_not_fill_the_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Ten minutes of a file that is there, gone, broken otherwise each time, and another engine's.
    rig = Rig(path, engines.engine(lengths=(0, 2)))
    with caplog.at_level(logging.INFO, "tabletune"):
        for number in range(300):
            rig.write(engines.document((1, 1, 1, 0), generation=number + 1, gpu=f"GPU {number}"))
            rig.tick()
            path.write_text("{" * number)
            rig.tick()
            path.unlink()
            rig.tick()
            rig.now += 0.5
    assert rig.report.reloads["Loaded"] == rig.report.reloads["Missing"] == 300
    # Loaded, missing, profiled elsewhere, lengths left out: five times a minute each.
    assert 100 < len(caplog.records) <= 4 * 11 * 5


# Fingerprint


def test_another_engine_is_warned_of_and_followed(path: Path) -> None:
    rig = Rig(path)
    rig.write(engines.document(gpu="NVIDIA H200"))
    rig.tick()
    assert rig.tap.lookup == TABLE
    assert (rig.report.active, rig.report.reason) == (True, states.FINGERPRINT_DIFFERS)
    assert "gpu is 'CPU', profiled was 'NVIDIA H200'" in rig.report.message


def test_another_engine_is_refused_by_policy(path: Path) -> None:
    rig = Rig(path, TABLETUNE_FINGERPRINT_POLICY="refuse")
    rig.write(engines.document(model="org/other"))
    rig.tick()
    assert rig.tap.lookup == OWN
    assert (rig.report.active, rig.report.reason) == (False, states.FINGERPRINT_REFUSED)
    assert [found.field for found in rig.report.differences] == ["model"]
    # The right one is taken, and a wrong one afterwards leaves it in force.
    rig.write(engines.document())
    rig.tick()
    rig.write(engines.document((0, 0, 0, 0), model="org/other"))
    rig.tick()
    assert rig.tap.lookup == TABLE
    assert (rig.report.active, rig.report.reason) == (True, states.FOLLOWING)
    assert rig.report.reloads == {states.FINGERPRINT_REFUSED: 2, "Loaded": 1}


def test_another_driver_is_told_and_no_reason_to_refuse(path: Path) -> None:
    rig = Rig(path, TABLETUNE_FINGERPRINT_POLICY="refuse")
    rig.write(engines.document(driver="580.95"))
    rig.tick()
    assert (rig.report.active, rig.report.reason) == (True, states.FOLLOWING)
    assert [found.field for found in rig.report.differences] == ["driver"]


# What the engine can run


def test_lengths_that_the_engine_was_not_started_for_are_left_out(path: Path) -> None:
    rig = Rig(path, engines.engine(lengths=(0, 2)))
    rig.write(engines.document((1, 1, 1, 0)))
    rig.tick()
    assert rig.report.active
    assert set(rig.tap.lookup) <= {0, 2}


def test_document_of_none_of_the_engines_lengths_is_unusable(path: Path) -> None:
    rig = Rig(path, engines.engine(lengths=(5,)))
    rig.write(engines.document())
    rig.tick()
    assert rig.tap.lookup == OWN
    assert (rig.report.active, rig.report.reason) == (False, states.DOCUMENT_UNUSABLE)
    assert "restart the engine" in rig.report.message


@pytest.mark.parametrize(
    "variables",
    [{"TABLETUNE_ALLOWED_LENGTHS": "7"}, {"TABLETUNE_PINNED": "[[1, 2, 7]]"}],
    ids=["allowed", "pinned"],
)
def test_setting_that_does_not_fit_the_document_is_told_and_the_last_stays(
    path: Path, variables: dict[str, str]
) -> None:
    rig = Rig(path, **dict[str, Any](variables))
    rig.write(engines.document())
    rig.tick()
    assert rig.tap.lookup == OWN
    assert rig.report.reason == states.DOCUMENT_UNUSABLE
    assert rig.report.reloads == {states.DOCUMENT_UNUSABLE: 1}


def test_users_own_table_stays_and_is_observed(path: Path) -> None:
    rig = Rig(path, engines.engine(users_table=True, own_lookup=(0, 1, 1, 1, 1)), TABLETUNE_MODE="adapt")
    rig.write(engines.document(control=Control(min_drafts=0)))
    rig.serve(50, batch_size=1, length=1)
    rig.tick(6)
    assert rig.tap.lookups == []
    assert (rig.report.active, rig.report.reason) == (False, states.USER_TABLE)
    assert rig.report.lookup == (0, 1, 1, 1, 1)
    assert "TABLETUNE_REPLACE_TABLE=1" in rig.report.message


# Modes


def test_observing_leaves_the_engines_table_and_shows_what_adapting_would_do(path: Path) -> None:
    rig = Rig(path, TABLETUNE_MODE="observe")
    rig.write(engines.document((0, 0, 0, 0), control=Control(min_drafts=0)))
    rig.serve(50, length=2, accepted=(2, 2))
    rig.tick(4)
    rig.serve(50, length=2, accepted=(2, 2))
    rig.tick(4)
    assert set(rig.tap.lookups) == {OWN}
    assert (rig.report.active, rig.report.reason) == (True, states.OBSERVING)
    assert rig.report.outcome is not None
    assert rig.report.outcome.lookup[2] == 2


def test_adapting_corrects_a_table_that_drafts_what_nobody_accepts(path: Path) -> None:
    rig = Rig(path, TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100)))
    rig.tick()
    assert rig.tap.lookup == (0, 2, 2, 2, 2)
    for _ in range(6):
        rig.serve(200, length=2, accepted=(0, 0))
        rig.tick(2)
    assert rig.steering.lookup == (0, 0, 0, 0, 0)
    assert rig.report.lookup == (0, 0, 0, 0, 0)
    assert (rig.report.active, rig.report.reason) == (True, states.ADAPTING)
    assert rig.report.corrections >= 1
    assert rig.report.document_lookup == (0, 2, 2, 2, 2)


def test_following_corrects_nothing(path: Path) -> None:
    rig = Rig(path)
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=0)))
    for _ in range(6):
        rig.serve(200, length=2, accepted=(0, 0))
        rig.tick(2)
    assert rig.tap.lookup == (0, 2, 2, 2, 2)
    assert rig.report.outcome is None


def test_document_may_change_the_mode(path: Path) -> None:
    rig = Rig(path)
    rig.write(engines.document(control=Control(mode=Mode.OBSERVE)))
    rig.tick()
    assert rig.tap.lookup == OWN
    rig.write(engines.document(generation=2, control=Control(mode=Mode.ADAPT)))
    rig.tick()
    assert rig.tap.lookup == TABLE
    assert rig.report.reason == states.ADAPTING


def test_engine_without_statistics_follows_instead_of_adapting(path: Path) -> None:
    rig = Rig(path, engines.engine(statistics=False), TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=0)))
    for _ in range(4):
        rig.serve(100, length=2, requests_drafted=0, accepted=())
        rig.tick(2)
    assert rig.tap.lookup == (0, 2, 2, 2, 2)
    assert (rig.report.active, rig.report.reason) == (True, states.STATISTICS_OFF)
    assert rig.report.mode is Mode.FOLLOW


def test_every_reason_is_told_and_gone_with_its_cause(path: Path) -> None:
    rig = Rig(path, engines.engine(statistics=False), TABLETUNE_MODE="adapt")
    rig.write(engines.document(gpu="NVIDIA H200"))
    rig.tick()
    assert list(rig.report.reasons) == [states.FINGERPRINT_DIFFERS, states.STATISTICS_OFF]
    assert "profiled was 'NVIDIA H200'; the engine counts no drafts" in rig.report.message
    rig.write(engines.document(generation=2))
    rig.tick()
    assert list(rig.report.reasons) == [states.STATISTICS_OFF]
    assert rig.report.message.startswith("the engine counts no drafts")


def test_new_document_keeps_what_traffic_has_shown(path: Path) -> None:
    rig = Rig(path, TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100)))
    for _ in range(4):
        rig.serve(200, length=2, accepted=(0, 0))
        rig.tick(2)
    rig.write(engines.document((2, 2, 2, 2), generation=2, control=Control(min_drafts=100)))
    rig.tick()
    rig.serve(10, length=0, interval_ms=10.0)
    rig.tick(3)
    assert rig.report.outcome is not None
    assert rig.report.outcome.estimate.survival[0] < 0.2
    assert rig.steering.lookup == (0, 0, 0, 0, 0)


# Measures


@pytest.mark.parametrize(
    ("measure", "spans", "comparable"),
    [
        (Measure.QUIET_INTERVAL, False, True),
        (Measure.QUIET_INTERVAL, True, True),
        (Measure.GPU_SPAN, True, True),
        (Measure.GPU_SPAN, False, False),
    ],
)
def test_costs_are_corrected_only_in_the_profiles_measure(
    path: Path, monkeypatch: pytest.MonkeyPatch, measure: Measure, spans: bool, comparable: bool
) -> None:
    windows: list[controlling.Window] = []
    advance = controlling.advance

    def watched(plan: Any, state: Any, window: controlling.Window) -> Any:
        windows.append(window)
        return advance(plan, state, window)

    monkeypatch.setattr(controlling, "advance", watched)
    rig = Rig(path, spans=spans, TABLETUNE_MODE="observe")
    rig.write(engines.document(measure=measure))
    rig.tick(3)
    rig.serve(50)
    rig.tick(3)
    assert rig.report.comparable is windows[-1].timed is comparable
    assert rig.steering.measure is (measure if comparable else None)
    # Spans that are recorded never come in this test, so there are none to give.
    assert bool(windows[-1].step_times) is (measure is Measure.QUIET_INTERVAL)


def test_windows_that_take_long_to_look_at_are_looked_at_less_often(
    path: Path, monkeypatch: pytest.MonkeyPatch, processor: SimpleNamespace
) -> None:
    seen: list[float] = []
    advance = controlling.advance

    def slow(plan: Any, state: Any, window: controlling.Window) -> Any:
        seen.append(window.seconds)
        processor.seconds += 0.1
        return advance(plan, state, window)

    monkeypatch.setattr(controlling, "advance", slow)
    rig = Rig(path, TABLETUNE_MODE="observe")
    rig.write(engines.document())
    for _ in range(40):
        rig.serve(5)
        rig.tick()
    # A tenth of a second is 2% of five.
    assert seen[0] == 1.0
    assert len(seen) == 4
    assert all(5.0 <= seconds < 7.0 for seconds in seen[1:])


def test_idle_engine_costs_nothing_and_time_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    advance = controlling.advance

    def watched(plan: Any, state: Any, window: controlling.Window) -> Any:
        seen.append(window.seconds)
        return advance(plan, state, window)

    monkeypatch.setattr(controlling, "advance", watched)
    rig = Rig(path, TABLETUNE_MODE="observe")
    rig.write(engines.document())
    rig.tick(1)
    rig.tick(20)
    assert seen == []
    rig.serve(5)
    rig.tick(1)
    assert seen == [pytest.approx(10.5)]


# Its own failures


def test_failing_control_keeps_the_corrected_table_and_goes_on_from_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    rig = Rig(path, TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100)))
    for _ in range(6):
        rig.serve(200, length=2, accepted=(0, 0))
        rig.tick(2)
    corrected = (0, 0, 0, 0, 0)
    assert rig.report.lookup == corrected != rig.report.document_lookup
    with monkeypatch.context() as patched:
        patched.setattr(controlling, "advance", fail)
        rig.serve(5, length=0, interval_ms=10.0)
        rig.tick(3)
    assert "the table in force stays" in caplog.text
    for _ in range(3):
        # By the document's acceptance it would go back to 2.
        rig.serve(5, length=0, interval_ms=10.0)
        rig.tick(3)
        assert rig.steering.lookup == rig.report.lookup == corrected
    assert (rig.report.reason, rig.report.failures) == (states.ADAPTING, 1)


def test_failing_control_is_told_and_in_the_end_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    rig = Rig(path, TABLETUNE_MODE="adapt")
    rig.write(engines.document())
    rig.tick()
    monkeypatch.setattr(controlling, "advance", fail)
    for _ in range(20):
        rig.serve(5)
        rig.tick(2)
    assert rig.tap.lookup == TABLE
    assert (rig.report.active, rig.report.reason) == (False, states.CONTROLLER_FAILED)
    assert rig.report.failures == controller.MOST_FAILURES
    failures = [record for record in caplog.records if record.exc_info]
    assert len(failures) == controller.MOST_FAILURES


def test_another_document_starts_the_control_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    rig = Rig(path, TABLETUNE_MODE="adapt")
    rig.write(engines.document())
    rig.tick()
    with monkeypatch.context() as patched:
        patched.setattr(controlling, "advance", fail)
        for _ in range(20):
            rig.serve(5)
            rig.tick(2)
    rig.write(engines.document((1, 1, 1, 1), generation=2))
    rig.tick()
    assert (0, 1, 1, 1, 1) in rig.tap.lookups
    assert rig.report.failures == controller.MOST_FAILURES
    assert (rig.report.active, rig.report.reason) == (True, states.ADAPTING)
    rig.serve(5)
    rig.tick(2)
    assert rig.report.outcome is not None


def test_failing_plan_is_told_and_the_last_document_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    rig = Rig(path)
    rig.write(engines.document())
    rig.tick()
    monkeypatch.setattr(controlling, "plan", fail)
    rig.write(engines.document((0, 0, 0, 0), generation=2))
    rig.tick()
    assert rig.tap.lookup == TABLE
    assert rig.report.reload is not None
    assert rig.report.reload.message == "ZeroDivisionError: ours"
