"""A profile on the real engine that is cut off in the middle of its sweep, in each way that happens.

An engine start takes most of the time here, so two runs are struck twice each, and the tests look at
different sides of what came of it.
"""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tabletune import documents
from tabletune.documents import Document
from tabletune_profiler.exit_codes import ExitCode
from tests.engine import profiles
from tests.engine.profiles import RunningProfile

pytestmark = pytest.mark.engine

STEPS_A_CELL = 8
HUNG_SECONDS = "30"


@pytest.fixture(scope="module")
def options(few_prompts: Path) -> tuple[str | Path, ...]:
    return (*profiles.QUICK, "--batch-sizes", "1,2,4", "--prompts", few_prompts)


@pytest.fixture(scope="module")
def serve(model_folder: Path) -> tuple[str | Path, ...]:
    return (model_folder, *profiles.SERVE, profiles.EAGER, "--speculative-config", profiles.NGRAM)


@pytest.fixture(scope="module")
def uninterrupted(
    options: tuple[str | Path, ...], serve: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Document:
    """What the command measures when nothing happens to it."""
    finished = profiles.run(tmp_path_factory.mktemp("uninterrupted") / "table.json", options, serve)
    assert finished.exit_code == 0, "".join(finished.lines)
    return finished.document


@pytest.fixture(scope="module")
def struck_engines(
    options: tuple[str | Path, ...], serve: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> profiles.Finished:
    """A profile whose first engine is stopped in the sweep, so that it hangs, and whose second is killed."""
    output = tmp_path_factory.mktemp("struck") / "table.json"
    with RunningProfile(output, (*options, "--answer-timeout", HUNG_SECONDS), serve) as running:
        running.wait_for("progress", phase="sweep")
        first = running.engine
        profiles.send(first, signal.SIGSTOP)
        hung = running.wait_for_warning("The engine hung")
        # At another batch size: a cell that two engines die in is left out. Progress is told once a second,
        # so that the machine decides which cell it is.
        while f"B={running.wait_for('progress', phase='sweep')['batchSize']} " in hung:
            pass
        assert profiles.group_is_gone(first)
        profiles.send(running.engine, signal.SIGKILL)
        return running.finish()


@dataclass(frozen=True)
class Resumed:
    """A profile that was terminated, begun again and killed, and begun again."""

    terminated: profiles.Finished
    partial_after_termination: dict[str, Any]
    engine_ended_with_termination: bool
    killed: profiles.Finished
    partial_after_kill: dict[str, Any]
    engine_ended_with_kill: bool
    finished: profiles.Finished


@pytest.fixture(scope="module")
def resumed(
    options: tuple[str | Path, ...], serve: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Resumed:
    output = tmp_path_factory.mktemp("resumed") / "table.json"
    partial = output.with_name("table.json.partial")
    with RunningProfile(output, options, serve) as running:
        running.wait_for("progress", phase="sweep")
        engine = running.engine
        running.send(signal.SIGTERM)
        terminated = running.finish()
    assert not output.exists()
    after_termination = json.loads(partial.read_text())
    engine_ended_with_termination = profiles.group_is_gone(engine)
    with RunningProfile(output, options, serve) as running:
        running.wait_for("progress", phase="sweep")
        engine = running.engine
        running.send(signal.SIGKILL)
        engine_ended_with_kill = profiles.group_is_gone(engine)
        killed = running.finish()
    return Resumed(
        terminated,
        after_termination,
        engine_ended_with_termination,
        killed,
        json.loads(partial.read_text()),
        engine_ended_with_kill,
        profiles.run(output, options, serve),
    )


def without_times(document: Document) -> dict[str, Any]:
    """Return what two profiles of one thing have in common: all but times and what follows of them."""
    content: dict[str, Any] = json.loads(documents.dump(document))
    for name in ("createdAt", "table", "prediction", "recommendation"):
        del content[name]
    for name in ("stepTimeMs", "intervalMs", "spreadMs"):
        del content["profile"][name]
    for cell in content["profile"]["mixed"]:
        del cell["stepTimeMs"]
    return content


def samples_of(partial: dict[str, Any]) -> dict[tuple[int, int], int]:
    return {(cell["batchSize"], cell["draftLength"]): len(cell["samples"]) for cell in partial["cells"]}


def test_hung_engine_is_noticed_killed_and_started_again(struck_engines: profiles.Finished) -> None:
    hung = [warning for warning in struck_engines.messages("warning") if "hung" in warning]
    assert len(hung) == 1
    assert hung[0].startswith(f"The engine hung: nothing heard for {HUNG_SECONDS} s at B=")
    assert struck_engines.messages("note").count("Starting the engine again.") == 2


def test_killed_engine_is_started_again(struck_engines: profiles.Finished) -> None:
    died = [warning for warning in struck_engines.messages("warning") if "died" in warning]
    assert len(died) == 1
    assert died[0].startswith("The engine died: by SIGKILL")
    assert str(struck_engines.output) + ".engine.log" in died[0]


def test_progress_goes_on_where_it_was_after_a_restart(struck_engines: profiles.Finished) -> None:
    done = [
        told["done"]
        for told in struck_engines.events
        if told["event"] in {"progress", "phase"} and told["phase"] == "sweep"
    ]
    assert done == sorted(done)
    assert done[-1] == 18
    assert {told["total"] for told in struck_engines.events if told.get("phase") == "sweep"} == {18}


def test_deaths_of_the_engine_cost_no_cell_and_no_sample(
    struck_engines: profiles.Finished, uninterrupted: Document
) -> None:
    assert struck_engines.exit_code == ExitCode.OK, "".join(struck_engines.lines)
    profile = struck_engines.document.profile
    assert profile.excluded == ()
    # A cell measured before a death and again after it would have more.
    assert profile.samples == ((STEPS_A_CELL,) * 3,) * 3
    assert without_times(struck_engines.document) == without_times(uninterrupted)


def test_sigterm_ends_a_profile_with_its_own_code(resumed: Resumed) -> None:
    assert resumed.terminated.exit_code == ExitCode.INTERRUPTED
    assert "the same command goes on from it" in resumed.terminated.lines[-1]
    assert resumed.terminated.stdout == ""


def test_sigterm_leaves_the_measured_cells_and_no_engine(resumed: Resumed) -> None:
    assert resumed.engine_ended_with_termination
    assert resumed.partial_after_termination["acceptance"]
    assert sum(samples_of(resumed.partial_after_termination).values()) > 0


def test_engine_ends_with_a_killed_profiler(resumed: Resumed) -> None:
    assert resumed.killed.exit_code == -signal.SIGKILL
    assert resumed.engine_ended_with_kill


def test_rerun_tells_that_it_goes_on(resumed: Resumed) -> None:
    for rerun, partial in (
        (resumed.killed, resumed.partial_after_termination),
        (resumed.finished, resumed.partial_after_kill),
    ):
        (note,) = [note for note in rerun.messages("note") if note.startswith("Going on from")]
        assert f"table.json.partial: {len(partial['cells'])} cells" in note
        assert "acceptance" not in rerun.phases


def test_rerun_loses_none_of_the_earlier_samples(resumed: Resumed) -> None:
    before = samples_of(resumed.partial_after_termination)
    after = samples_of(resumed.partial_after_kill)
    assert all(after[cell] >= samples for cell, samples in before.items())


def test_resumed_document_equals_an_uninterrupted_one_in_all_but_times(
    resumed: Resumed, uninterrupted: Document
) -> None:
    assert resumed.finished.exit_code == ExitCode.OK, "".join(resumed.finished.lines)
    assert resumed.finished.document.profile.samples == ((STEPS_A_CELL,) * 3,) * 3
    assert without_times(resumed.finished.document) == without_times(uninterrupted)


def test_finished_profile_leaves_neither_partial_file_nor_lock(resumed: Resumed) -> None:
    left = {path.name for path in resumed.finished.output.parent.iterdir()}
    assert left == {"table.json", "table.json.engine.log"}
