"""`tools/bootstrapping.py` up to the point where packages would be downloaded."""

import os
from pathlib import Path

import pytest

import bootstrapping
import pythons
from bootstrapping import SetupError, SystemPackage

PYTHON = pythons.Python("/usr/bin/python3", (3, 12))


def package(name: str, *answers: bool) -> SystemPackage:
    """A package that is found missing or present in the order of `answers`."""
    remaining = iter(answers)
    return SystemPackage(name, f"what {name} is for", lambda: next(remaining))


def use_packages(monkeypatch: pytest.MonkeyPatch, *packages: SystemPackage) -> None:
    monkeypatch.setattr(bootstrapping, "system_packages", lambda _: list(packages))


def fake_apt_get(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put an apt-get on the PATH that notes its arguments, then runs `script`; returns the notes."""
    notes = folder / "notes"
    program = folder / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return notes


def test_an_unsupported_python_is_named_with_those_that_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "inspect", lambda path: pythons.Python(path, (3, 10)))
    with pytest.raises(
        SetupError, match=r"Found: Python 3\.10 \(/opt/python\).*runs on Python 3\.11, 3\.12, 3\.13"
    ):
        bootstrapping.choose_python("/opt/python")


def test_a_requested_python_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="absent, which does not run"):
        bootstrapping.choose_python(str(tmp_path / "absent"))


def test_without_a_request_the_first_supported_python_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"old": (3, 9), "good": (3, 12), "newer": (3, 13)}
    monkeypatch.chdir(tmp_path)  # no .venv here
    monkeypatch.setattr(pythons, "candidates", lambda: list(versions))
    monkeypatch.setattr(pythons, "inspect", lambda path: pythons.Python(path, versions[path]))
    assert bootstrapping.choose_python("").path == "good"


def test_an_environment_keeps_its_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bootstrapping.VENV_UV.parent.mkdir(parents=True)
    bootstrapping.VENV_UV.touch()
    monkeypatch.setattr(pythons, "inspect", lambda path: pythons.Python(path, (3, 11)))
    assert bootstrapping.choose_python("").path == str(bootstrapping.VENV_PYTHON)


def test_a_machine_that_lacks_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    use_packages(monkeypatch, package("g++", True), package("libnuma1", True))
    monkeypatch.setattr(bootstrapping, "_apt_get_install", lambda names: pytest.fail(f"installed {names}"))
    bootstrapping.provide_system_packages(PYTHON)


def test_without_root_everything_missing_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = fake_apt_get(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    use_packages(monkeypatch, package("g++", False), package("make", True), package("libnuma1", False))
    with pytest.raises(SetupError, match=r"sudo apt-get update && sudo apt-get install g\+\+ libnuma1$"):
        bootstrapping.provide_system_packages(PYTHON)
    assert "what g++ is for" in capsys.readouterr().err
    assert not notes.exists()


def test_where_there_is_no_apt_get_the_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    use_packages(monkeypatch, package("libnuma1", False))
    with pytest.raises(SetupError, match="the names are Debian's"):
        bootstrapping.provide_system_packages(PYTHON)
    assert "libnuma1" in capsys.readouterr().err


def test_root_gets_all_missing_packages_in_one_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = fake_apt_get(tmp_path, monkeypatch, "exit 0")
    use_packages(monkeypatch, package("g++", False, True), package("libnuma1", False, True))
    bootstrapping.provide_system_packages(PYTHON)
    assert notes.read_text() == "install --yes --no-install-recommends --quiet=2 g++ libnuma1\n"


def test_empty_package_lists_are_updated_and_the_installation_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The first installation fails as it does without lists; once there was an update it succeeds.
    notes = fake_apt_get(tmp_path, monkeypatch, f"grep -q update {tmp_path}/notes || exit 100")
    use_packages(monkeypatch, package("libnuma1", False, True))
    bootstrapping.provide_system_packages(PYTHON)
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["install", "update", "install"]


def test_a_package_that_did_not_help_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Debian's python3.12-dev does not give its Python.h to a Python built elsewhere.
    fake_apt_get(tmp_path, monkeypatch, "exit 0")
    use_packages(monkeypatch, package("python3.12-dev", False, False))
    with pytest.raises(SetupError, match=r"Still missing after the installation: python3\.12-dev"):
        bootstrapping.provide_system_packages(PYTHON)


def test_a_failed_command_is_named_and_ends_the_setup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_apt_get(tmp_path, monkeypatch, "exit 100")
    use_packages(monkeypatch, package("libnuma1", False, False))
    monkeypatch.setattr(bootstrapping, "choose_python", lambda _: PYTHON)
    assert bootstrapping.main() == 1
    assert "Set-up stopped: `apt-get update --quiet=2` ended with exit code 100." in capsys.readouterr().err


def test_the_machine_running_these_tests_has_what_the_engine_needs() -> None:
    python = bootstrapping.choose_python("")
    missing = [item.name for item in bootstrapping.system_packages(python) if not item.is_present()]
    assert missing == []
