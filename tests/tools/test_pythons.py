"""`tools/pythons.py` against small programs that answer as interpreters do."""

import sys
import tomllib
from pathlib import Path

import pytest

import pythons

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def make_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_supported_versions_are_those_of_the_distribution() -> None:
    required = tomllib.loads(PYPROJECT.read_text())["project"]["requires-python"]
    first, last = pythons.SUPPORTED[0], pythons.SUPPORTED[-1]
    assert required == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"


def test_an_interpreter_says_its_own_version() -> None:
    found = pythons.inspect(sys.executable)
    assert found is not None
    assert found.version == sys.version_info[:2]
    assert found.is_supported


def test_a_shim_whose_version_is_switched_off_is_no_python(tmp_path: Path) -> None:
    assert (
        pythons.inspect(make_program(tmp_path / "python3.12", "echo 'command not found' >&2; exit 127"))
        is None
    )


def test_a_program_that_answers_something_else_is_no_python(tmp_path: Path) -> None:
    assert pythons.inspect(make_program(tmp_path / "python3", "echo hello there")) is None


def test_a_path_without_a_program_is_no_python(tmp_path: Path) -> None:
    assert pythons.inspect(str(tmp_path / "python3")) is None


def test_an_old_python_is_found_but_not_supported(tmp_path: Path) -> None:
    found = pythons.inspect(make_program(tmp_path / "python3", "echo 3 10"))
    assert found is not None
    assert not found.is_supported
    assert str(found) == f"Python 3.10 ({tmp_path}/python3)"


def test_the_default_python_is_asked_before_newer_ones_and_pyenvs_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path, of_pyenv = tmp_path / "bin", tmp_path / "pyenv" / "versions" / "3.12.1" / "bin"
    for folder, name in [(on_path, "python3"), (on_path, "python3.13"), (of_pyenv, "python3")]:
        folder.mkdir(parents=True, exist_ok=True)
        make_program(folder / name, "exit 1")
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert pythons.candidates() == [
        str(on_path / "python3"),
        str(on_path / "python3.13"),
        str(of_pyenv / "python3"),
    ]


@pytest.mark.parametrize(
    ("asked", "answer"), [([], "newest"), (["3.11", "3.12"], "middle"), (["3.11"], "")], ids=str
)
def test_the_newest_of_the_versions_asked_for_is_printed(
    asked: list[str],
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    programs = {"middle": "echo 3 12", "newest": "echo 3 13", "old": "echo 3 9"}
    paths = [make_program(tmp_path / name, text) for name, text in programs.items()]
    monkeypatch.setattr(pythons, "candidates", lambda: paths)
    assert pythons.main(asked) == (0 if answer else 1)
    assert capsys.readouterr().out.strip() == (str(tmp_path / answer) if answer else "")
