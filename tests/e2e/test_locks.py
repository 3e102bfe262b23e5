"""Two commands on one cluster: the second waits, and takes over also from one that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.local import locks
from e2e.local.machines import MachineError
from e2e.settings import REPOSITORY

HOLD = """
import pathlib, sys, subprocess, time
from e2e.local import locks
locks.hold(lambda text: print(text, flush=True), pathlib.Path(sys.argv[1]))
# A child that lives on, as the cluster's programs do; it has let go of what it inherited once this returns.
subprocess.Popen(["sleep", "5"], stdout=subprocess.DEVNULL)
print("held", flush=True)
sys.stdin.read()
"""


def test_second_command_waits_and_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": REPOSITORY, "text": True}
    with subprocess.Popen(command, **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == "held\n"
        with subprocess.Popen(command, **pipes) as second:  # type: ignore[call-overload]
            assert f"(process {first.pid}): waiting" in second.stdout.readline()
            first.kill()
            assert second.stdout.readline() == "held\n"
            second.kill()
    said: list[str] = []
    os.close(locks.hold(said.append, file))
    assert not said


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MachineError, match="needs root"):
        locks.hold(print, tmp_path / "lock")
