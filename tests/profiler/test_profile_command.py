"""``tabletune profile`` and ``tabletune check``, with an engine that answers from a script."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tabletune import documents
from tabletune_plugin.engine.facts import Obstacle, Severity
from tabletune_profiler import files, main, messages, plotting, profiling, supervising
from tabletune_profiler.commands import profile as command
from tabletune_profiler.exit_codes import ExitCode, OutputError
from tabletune_profiler.supervising import RefusedError
from tests.core import strategies
from tests.profiler import engines
from tests.profiler.engines import ScriptedEngine

OPTIONS = ("--batch-sizes", "1,2", "--no-mixed", "--steps", "4", "--repeats", "0")
SERVE = ("--", "model", "--speculative-config", "{}")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    engine = ScriptedEngine()
    monkeypatch.setattr(profiling, "EngineProcess", engine.start_process)
    return engine


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No lock, and SIGTERM does what it did."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert not list(tmp_path.rglob(".*.lock"))
    assert signal.getsignal(signal.SIGTERM) is before


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main.app, [str(argument) for argument in arguments])


def profile(output: Path, *options: str | Path) -> Result:
    return run("profile", "--output", output, *OPTIONS, *options, *SERVE)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# A profile


def test_finished_profile_leaves_the_document_and_nothing_else(engine: ScriptedEngine, output: Path) -> None:
    result = profile(output)
    assert result.exit_code == ExitCode.OK, result.output
    document = documents.parse(output.read_bytes())
    assert document.profile.batch_sizes == (1, 2)
    assert names(output.parent) == {"table.json"}
    assert engine.asked_for(messages.Configure)[0].arguments == SERVE[1:]


def test_standard_output_is_one_json_line_for_programs(engine: ScriptedEngine, output: Path) -> None:
    told = json.loads(profile(output).stdout)
    document = documents.parse(output.read_bytes())
    assert (told["event"], told["output"]) == ("finished", str(output))
    assert told["table"] == [list(entry) for entry in document.table]
    assert told["recommendation"]["kind"] == document.recommendation.kind
    assert told["excluded"] == 0
    assert told["verified"] == []


def test_progress_on_standard_error_is_json_lines(engine: ScriptedEngine, output: Path) -> None:
    lines = [json.loads(line) for line in profile(output).stderr.splitlines()]
    assert [line["phase"] for line in lines if line["event"] == "phase"] == [
        "start",
        "acceptance",
        "sweep",
        "mixed",
    ]
    assert lines[-1].pop("seconds") >= 0
    assert lines[-1] == {"event": "note", "message": f"Written: {output}"}


def test_options_reach_the_plan_and_the_document(
    engine: ScriptedEngine, output: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "One"}\n{"prompt": "Two", "max_tokens": 7}\n{"prompt": "Three"}\n')
    engine.configured = engines.configured(draft_lengths=(0, 2))
    result = profile(
        output,
        *("--lengths", "2", "--prompts", mine, "--acceptance-tokens", "50", "--context-length", "300"),
        *("--prompt-tokens", "900", "--output-tokens", "40", "--tie-tolerance", "0.03"),
        *("--narrow-range", "0.5", "--merge-tolerance", "0.04"),
    )
    assert result.exit_code == ExitCode.OK, result.output
    document = documents.parse(output.read_bytes())
    assert engine.asked_for(messages.Configure)[0].draft_lengths == (2,)
    assert engine.asked_for(messages.CountAcceptance)[0].max_tokens == (50, 7, 50)
    assert document.acceptance.prompts == 3
    assert document.profile.context_length == 300
    assert (document.engine.prompt_tokens, document.engine.output_tokens) == (900, 40)
    control = document.control
    assert (control.tie_tolerance, control.narrow_range, control.merge_tolerance) == (0.03, 0.5, 0.04)


def test_context_not_given_follows_from_the_usual_lengths(engine: ScriptedEngine, output: Path) -> None:
    assert profile(output, "--prompt-tokens", "500", "--output-tokens", "60").exit_code == ExitCode.OK
    assert documents.parse(output.read_bytes()).profile.context_length == 530


def test_context_that_does_not_fit_is_cut_where_it_was_not_given_and_refused_where_it_was(
    engine: ScriptedEngine, output: Path
) -> None:
    result = profile(output, "--prompt-tokens", "8192")
    assert result.exit_code == ExitCode.OK
    told = documents.parse(output.read_bytes()).profile.context_length
    assert 500 < told < 1_024
    assert f"Steps are timed around {told} tokens of context per request instead of 8320" in result.stderr
    result = profile(output, "--context-length", "8192")
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "--context-length 8192 does not fit" in result.stderr
    assert len(engine.asked_for(messages.Start)) == 1


def test_plot_is_drawn_beside_the_document(engine: ScriptedEngine, output: Path) -> None:
    assert profile(output, "--plot").exit_code == ExitCode.OK
    assert names(output.parent) == {"table.json", "table.png", "table.svg"}


def test_verification_is_in_the_summary(engine: ScriptedEngine, output: Path) -> None:
    told = json.loads(profile(output, "--verify", "2").stdout)
    assert [(cell["batchSize"], cell["draftLength"]) for cell in told["verified"]] == [
        (size, length) for size in (1, 2) for length in (0, 1, 2)
    ]
    assert told["verified"][0]["predicted"] == pytest.approx(1_000 / 11.0, rel=1e-3)


# How it ends


def test_interrupt_ends_with_5_and_a_rerun_goes_on(engine: ScriptedEngine, output: Path) -> None:
    engine.faults[2, 1] = [KeyboardInterrupt()]
    result = profile(output)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "Stopped. What was measured is in" in result.stderr
    assert names(output.parent) == {"table.json.partial"}
    assert profile(output).exit_code == ExitCode.OK
    assert names(output.parent) == {"table.json"}
    assert len(engine.visits) == 12


def test_interrupt_before_anything_was_measured_says_so(engine: ScriptedEngine, output: Path) -> None:
    engine.faults["configure"] = [KeyboardInterrupt()]
    result = profile(output)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert "Stopped before anything was measured." in result.stderr
    assert names(output.parent) == set()


def test_sigterm_ends_as_an_interrupt_does(engine: ScriptedEngine, output: Path) -> None:
    def terminated(batch_size: int, length: int, steps: int) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return engines.steady(batch_size, length, steps)

    engine.samples = terminated
    assert profile(output).exit_code == ExitCode.INTERRUPTED
    assert names(output.parent) == {"table.json.partial"}


def test_sigterm_while_plotting_ends_as_an_interrupt_does_and_a_rerun_only_plots(
    engine: ScriptedEngine, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(document: documents.Document) -> bytes:
        os.kill(os.getpid(), signal.SIGTERM)
        return b""

    with monkeypatch.context() as patched:
        patched.setattr(plotting, "png", terminated)
        assert profile(output, "--plot").exit_code == ExitCode.INTERRUPTED
    assert names(output.parent) == {"table.json", "table.json.partial"}
    visits = len(engine.visits)
    assert profile(output, "--plot").exit_code == ExitCode.OK
    assert len(engine.visits) == visits
    assert names(output.parent) == {"table.json", "table.png", "table.svg"}


@pytest.mark.parametrize(
    ("kind", "code"), [("arguments", ExitCode.BAD_INPUT), ("unsupported", ExitCode.NOT_SERVABLE)]
)
def test_refusal_ends_with_its_code_and_nothing_written(
    engine: ScriptedEngine, output: Path, kind: str, code: ExitCode
) -> None:
    engine.faults["configure"] = [RefusedError(kind, "vLLM does not take these arguments: --nope")]
    result = profile(output)
    assert result.exit_code == code
    assert "Error: vLLM does not take these arguments: --nope" in result.stderr
    assert names(output.parent) == set()


def test_engine_that_keeps_dying_ends_with_4_and_its_last_words(engine: ScriptedEngine, output: Path) -> None:
    engine.dies("acceptance", times=2)
    result = profile(output)
    assert result.exit_code == ExitCode.ENGINE_FAILED
    assert "an illegal memory access" in result.stderr


def test_document_that_cannot_be_written_ends_with_6_and_keeps_the_partial(
    engine: ScriptedEngine, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OutputError(f"{path} could not be written: No space left on device.")

    monkeypatch.setattr(files, "write", full)
    result = profile(output)
    assert result.exit_code == ExitCode.OUTPUT_FAILED
    assert names(output.parent) == {"table.json.partial"}


# What is refused before an engine starts


def refused(result: Result, code: ExitCode, message: str, engine: ScriptedEngine) -> None:
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert engine.processes == []


@pytest.mark.parametrize("sizes", ["", "0,1", "one", "1,,2", "-4"])
def test_batch_sizes_that_are_none_are_refused(engine: ScriptedEngine, output: Path, sizes: str) -> None:
    result = run("profile", "--output", output, f"--batch-sizes={sizes}", *SERVE)
    refused(result, ExitCode.BAD_INPUT, f"--batch-sizes {sizes}", engine)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lengths=0,x", "--lengths 0,x: expected draft lengths as in 0,1,3"),
        ("--tie-tolerance=2", "tieTolerance: input should be less than or equal to 1 (found 2.0)"),
        ("--narrow-range=nan", "narrowRange"),
        ("--context-length=15", "Invalid value for '--context-length'"),
        ("--steps=3", "Invalid value for '--steps'"),
        ("--prompts=/nowhere/mine.jsonl", "/nowhere/mine.jsonl"),
    ],
)
def test_option_that_cannot_be_is_named(
    engine: ScriptedEngine, output: Path, option: str, message: str
) -> None:
    refused(profile(output, option), ExitCode.BAD_INPUT, message, engine)


def test_standard_output_is_no_place_for_a_profile(engine: ScriptedEngine) -> None:
    refused(profile(Path("-")), ExitCode.BAD_INPUT, "--output -: a profile needs a file", engine)


def test_missing_folder_is_refused(engine: ScriptedEngine, tmp_path: Path) -> None:
    result = profile(tmp_path / "nowhere" / "table.json")
    refused(result, ExitCode.OUTPUT_FAILED, "is no folder. Create it", engine)


def test_folder_in_place_of_the_document_is_refused(engine: ScriptedEngine, tmp_path: Path) -> None:
    refused(profile(tmp_path), ExitCode.OUTPUT_FAILED, "is a folder. Name a file", engine)


def test_read_only_place_is_refused(engine: ScriptedEngine) -> None:
    # /proc takes no new file from anyone, root included.
    refused(
        profile(Path("/proc/table.json")), ExitCode.OUTPUT_FAILED, "Nothing can be written beside", engine
    )


def test_what_is_no_regular_file_is_refused(engine: ScriptedEngine) -> None:
    refused(profile(Path("/dev/full")), ExitCode.OUTPUT_FAILED, "is no regular file", engine)


@pytest.mark.parametrize("target", ["table.json", "nowhere/table.json"], ids=["circle", "no folder"])
def test_link_that_leads_nowhere_is_refused(engine: ScriptedEngine, output: Path, target: str) -> None:
    output.symlink_to(output.parent / target)
    refused(profile(output), ExitCode.OUTPUT_FAILED, f"{output} leads ", engine)


def test_output_that_would_replace_another_file_of_the_profile_is_refused(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "One"}\n')
    refused(profile(mine, "--prompts", mine), ExitCode.BAD_INPUT, "is the input itself", engine)
    refused(
        profile(tmp_path / "table.png", "--plot"), ExitCode.BAD_INPUT, "would draw over the document", engine
    )


@pytest.mark.parametrize("name", ["profile", "check"])
def test_vllm_argument_without_the_dashes_before_it_gets_a_hint(engine: ScriptedEngine, name: str) -> None:
    result = run(name, "model", "--max-num-seqs", "4")
    told = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "Put the model and vLLM's arguments after `--`" in told


def test_refusal_leaves_no_empty_log(engine: ScriptedEngine, output: Path) -> None:
    engine.faults["configure"] = [RefusedError("arguments", "no.")]
    output.with_name("table.json.engine.log").touch()
    profile(output)
    assert names(output.parent) == set()


def test_nearly_full_disk_is_refused(
    engine: ScriptedEngine, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MIN_FREE_BYTES", 10**18)
    refused(profile(output), ExitCode.OUTPUT_FAILED, "bytes free", engine)


def test_second_profile_of_the_same_output_is_refused(engine: ScriptedEngine, output: Path) -> None:
    lock = output.with_name(".table.json.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(profile(output), ExitCode.BAD_INPUT, "Another tabletune profile is writing", engine)
        assert lock.exists(), "the other profile's lock must stay"
    lock.unlink()


def test_person_gets_the_verification_as_a_table(engine: ScriptedEngine, output: Path) -> None:
    request = engines.request(output.parent, batch_sizes=(1, 2), verify_seconds=1.0)
    outcome = profiling.take(request, engines.Reports(), lambda: strategies.CREATED_AT)
    console = Console(file=io.StringIO(), width=100)
    console.print(*command._verification(outcome))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "predicted" in text
    assert "the table's length loses at most 0.0%" in " ".join(text.split())


# Check


def check(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    class Process:
        """The context manager that ``check`` uses."""

        def __init__(self, log: Path) -> None:
            self._process = engine.start_process(log)

        def __enter__(self) -> Any:
            return self._process

        def __exit__(self, *exception: object) -> None:
            self._process.close()

    monkeypatch.setattr(supervising, "EngineProcess", Process)
    result = run("check", *options, *SERVE)
    assert all(process.closed for process in engine.processes)
    assert not engine.asked_for(messages.Start)
    return result


def test_engine_without_obstacles_can_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check(ScriptedEngine(), monkeypatch)
    assert result.exit_code == ExitCode.OK
    assert "A table can be served." in result.stdout


def test_refused_engine_ends_with_3_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Obstacle("DataParallel", Severity.REFUSED, "Two ranks.", "Serve replicas.")
    warning = Obstacle("Slow", Severity.WARNING, "It is slow.", "Be fast.")
    engine = ScriptedEngine(configured=engines.configured(obstacles=(warning, refusal)))
    result = check(engine, monkeypatch)
    assert result.exit_code == ExitCode.NOT_SERVABLE
    told = result.stdout
    assert told.index("DataParallel") < told.index("Slow")
    assert all(text in told for text in ("Two ranks.", "Serve replicas.", "A table cannot be served."))


def test_report_for_programs_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Obstacle("DataParallel", Severity.REFUSED, "Two ranks.", "Serve replicas.")
    engine = ScriptedEngine(configured=engines.configured(obstacles=(refusal,)))
    told = json.loads(check(engine, monkeypatch, "--json", "--lengths", "0,2").stdout)
    assert told["servable"] is False
    assert told["obstacles"] == [
        {"name": "DataParallel", "severity": "refused", "reason": "Two ranks.", "remedy": "Serve replicas."}
    ]
    assert told["fingerprint"]["maxNumSeqs"] == 8
    assert engine.asked_for(messages.Configure)[0].draft_lengths == (0, 2)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (RefusedError("arguments", "no."), ExitCode.BAD_INPUT),
        (RefusedError("unsupported", "no."), ExitCode.NOT_SERVABLE),
        (engines.DEATH, ExitCode.ENGINE_FAILED),
    ],
    ids=["arguments", "unsupported", "death"],
)
def test_check_ends_with_the_code_of_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException, code: ExitCode
) -> None:
    assert check(ScriptedEngine(faults={"configure": [fault]}), monkeypatch).exit_code == code
