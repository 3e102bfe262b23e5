"""Good and bad arguments of ``vllm serve``, read by a real vLLM for ``check`` and ``profile``.

Importing vLLM is most of a check's time, so all but one of these command lines run here and share the
process that would read the arguments.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner, Result

from tabletune_profiler import main, messages, profiling, supervising
from tabletune_profiler.exit_codes import ExitCode
from tests.engine import profiles

pytestmark = pytest.mark.engine

TableTune = Callable[..., Result]


class Kept:
    """An engine process that outlives the command that uses it."""

    def __init__(self, process: supervising.EngineProcess) -> None:
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def close(self) -> None:
        pass

    def ask(self, command: messages.Command, timeout: float) -> Iterator[messages.Message]:
        return self._process.ask(command, timeout)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[supervising.EngineProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        with supervising.EngineProcess(tmp_path_factory.mktemp("process") / "engine.log") as process:
            yield process


@pytest.fixture
def tabletune(process: supervising.EngineProcess, monkeypatch: pytest.MonkeyPatch) -> TableTune:
    """Run a command line here, with the one process behind it."""
    for module in (supervising, profiling):
        monkeypatch.setattr(module, "EngineProcess", lambda log_path: Kept(process))
    return lambda *arguments: CliRunner().invoke(main.app, [str(argument) for argument in arguments])


@pytest.fixture
def serve(model_folder: Path) -> tuple[str | Path, ...]:
    return (model_folder, *profiles.SERVE, "--speculative-config", profiles.NGRAM)


def test_good_arguments_can_serve_a_table(serve: tuple[str | Path, ...]) -> None:
    checked = profiles.tabletune("check", "--", *serve)
    assert checked.returncode == ExitCode.OK, checked.stderr
    assert "with ngram, draft lengths 0, 1, 2, up to 4 requests" in " ".join(checked.stdout.split())
    assert checked.stdout.splitlines()[-1] == "A table can be served."


def test_report_for_programs_names_what_would_be_measured(
    tabletune: TableTune, serve: tuple[str | Path, ...]
) -> None:
    result = tabletune("check", "--json", "--lengths", "2", "--", *serve)
    assert result.exit_code == ExitCode.OK, result.stderr
    report = json.loads(result.stdout)
    assert report["servable"] is True
    assert report["draftLengths"] == [0, 2]
    assert report["fingerprint"]["maxNumSeqs"] == profiles.MAX_NUM_SEQS
    assert report["fingerprint"]["drafterMethod"] == "ngram"


def test_unknown_argument_is_named(tabletune: TableTune, serve: tuple[str | Path, ...]) -> None:
    result = tabletune("check", "--", *serve, "--max-num-sequences", "4")
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "unrecognized arguments: --max-num-sequences" in result.stderr


def test_missing_model_folder_is_named(tabletune: TableTune, tmp_path: Path) -> None:
    folder = tmp_path / "no-model"
    result = tabletune("check", "--", folder, *profiles.SERVE, "--speculative-config", profiles.NGRAM)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert f"There is no model at {folder}." in result.stderr


def test_missing_drafter_is_asked_for(tabletune: TableTune, model_folder: Path) -> None:
    result = tabletune("check", "--", model_folder, *profiles.SERVE)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "--speculative-config is missing" in result.stderr


def test_data_parallel_engine_is_refused_with_a_remedy(
    tabletune: TableTune, serve: tuple[str | Path, ...]
) -> None:
    result = tabletune("check", "--", *serve, "--data-parallel-size", "2")
    assert result.exit_code == ExitCode.NOT_SERVABLE
    assert "DataParallel" in result.stdout
    assert "Serve several single-rank replicas" in result.stdout
    assert result.stdout.splitlines()[-1] == "A table cannot be served."


def test_length_above_the_drafters_is_refused_with_what_is_right(
    tabletune: TableTune, serve: tuple[str | Path, ...]
) -> None:
    result = tabletune("check", "--lengths", "0,5", "--", *serve)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "draft length 5 is above num_speculative_tokens 2" in result.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--batch-sizes", "1,8"), "--batch-sizes has 8, above --max-num-seqs 4"),
        (("--context-length", "500"), "--context-length 500 does not fit"),
        (("--lengths", "0,5"), "draft length 5 is above num_speculative_tokens 2"),
    ],
)
def test_profile_that_does_not_fit_the_engine_ends_before_it_starts(
    tabletune: TableTune,
    serve: tuple[str | Path, ...],
    tmp_path: Path,
    options: tuple[str, ...],
    complaint: str,
) -> None:
    result = tabletune("profile", "--output", tmp_path / "table.json", *options, "--", *serve)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert complaint in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_profile_of_a_refused_engine_ends_before_it_starts(
    tabletune: TableTune, serve: tuple[str | Path, ...], tmp_path: Path
) -> None:
    output = tmp_path / "table.json"
    result = tabletune("profile", "--output", output, "--", *serve, "--data-parallel-size", "2")
    assert result.exit_code == ExitCode.NOT_SERVABLE
    assert "DataParallel: data_parallel_size is 2" in result.stderr
    assert list(tmp_path.iterdir()) == []
