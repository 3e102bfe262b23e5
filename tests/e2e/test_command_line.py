"""What CI relies on: nothing of a cluster is left, and the machine's faults are told from the product's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e import __main__ as command_line
from e2e import commands, settings
from e2e.local import locks, machines, packages
from e2e.settings import REPOSITORY, Settings

# `python -m e2e ci`, with a cluster that only notes what is asked of it, and scenarios of one line.
PROGRAM = """
import sys
from e2e import __main__ as command_line
from e2e import commands

class Cluster:
    def __getattr__(self, name):
        def note():
            with open(NOTES, "a") as file:
                file.write(name + "\\n")
            if name == FAILS:
                raise commands.CommandError("no such image")
        return note

NOTES, FAILS = sys.argv[1:3]
command_line._cluster = Cluster
command_line.SCENARIOS = [sys.executable, "-c", sys.argv[3], sys.argv[1]]
sys.argv[1:] = ["ci"]
command_line.main()
"""
PATIENCE_SECONDS = 60.0
"""Most that anything is waited for, on a machine that may pause for a while."""
NOTE = "import sys; open(sys.argv[1], 'a').write('scenarios\\n');"


def _start(notes: Path, scenarios: str, fails: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(notes), fails, scenarios]
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("code", [0, 1])
def test_cluster_is_ended_before_and_after_and_the_scenarios_decide(tmp_path: Path, code: int) -> None:
    notes = tmp_path / "notes"
    with _start(notes, f"{NOTE} sys.exit({code})") as process:
        assert process.wait(PATIENCE_SECONDS) == code
    assert notes.read_text().split() == ["down", "up", "build", "scenarios", "down"]


def test_cluster_that_comes_up_in_part_is_ended(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with _start(notes, NOTE, fails="build") as process:
        _, words = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "no such image" in words
    assert "Traceback" not in words
    assert notes.read_text().split() == ["down", "up", "build", "down"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_interrupted_run_ends_its_scenarios_and_its_cluster(tmp_path: Path, number: signal.Signals) -> None:
    notes, child = tmp_path / "notes", tmp_path / "child"
    sleeping = f"import os, time; open({str(child)!r}, 'w').write(str(os.getpid())); {NOTE} time.sleep(120)"
    deadline = time.monotonic() + PATIENCE_SECONDS
    with _start(notes, sleeping) as process:
        while "scenarios" not in (notes.read_text() if notes.exists() else ""):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) != 0
    assert notes.read_text().split() == ["down", "up", "build", "scenarios", "down"]
    # Killed and perhaps not reaped yet, by the machine's first process.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{child.read_text()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Return settings for a machine that lacks nothing, until a test takes something from it."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "version_info", (*machines.PYTHON, 0))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(packages, "missing", lambda: [])
    monkeypatch.setattr(machines, "_too_small", lambda _: "")
    monkeypatch.setattr(machines, "_forbidden", lambda _: "")
    return Settings(state=tmp_path)


def test_machine_that_lacks_nothing_is_possible(able: Settings) -> None:
    assert machines.why_not(able) == ""


def test_everything_that_a_machine_may_lack_is_named(able: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def why_not(target: object, name: str, value: object) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            return machines.why_not(able)

    assert "root" in why_not(os, "geteuid", lambda: 1000)
    assert "Python 3.13" in why_not(sys, "version_info", (3, 13, 1))
    assert "Go is not" in why_not(shutil, "which", lambda _: None)
    assert "no namespaces" in why_not(machines, "_forbidden", lambda _: "no namespaces")
    monkeypatch.setattr(packages, "missing", lambda: ["buildah", "runc"])
    without = {"go": "/bin/go"}
    assert "no apt-get: buildah runc" in why_not(shutil, "which", without.get)


def test_a_full_disk_is_named_before_anything_is_made(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free / 2**30
    chosen = Settings(state=tmp_path / "state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "DISK_GIB", free + 1)
        assert f"{tmp_path} has " in machines._too_small(chosen)
        chosen.state.mkdir()
        assert machines._too_small(chosen) == "" or free < machines.DISK_AGAIN_GIB


def test_packages_that_cannot_be_fetched_are_the_machines_fault(
    able: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise commands.CommandError("apt-get ended with 100")

    monkeypatch.setattr(packages, "install", fail)
    monkeypatch.setattr(locks, "hold", lambda _: 0)
    monkeypatch.setattr(settings, "read", lambda: able)
    monkeypatch.setattr(sys, "argv", ["e2e", "prepare"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == command_line.UNFIT
    assert "apt-get ended with 100" in capsys.readouterr().out
