"""What vLLM calls in each process: nothing where nobody asked, and never an exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tabletune_plugin import registering
from tabletune_plugin.engine import hooking

ROOT = Path(__file__).parents[2]


def test_without_the_variable_nothing_is_imported() -> None:
    code = """
import sys
from tabletune_plugin.registering import register
before = set(sys.modules)
register(); register()
assert set(sys.modules) == before, set(sys.modules) - before
heavy = {"pydantic", "numpy", "prometheus_client", "logging", "tabletune", "vllm", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {"PYTHONPATH": f"{ROOT}/plugin:{ROOT}", "PATH": "/usr/bin"}
    # -S and isolated from .pth files, which import what they like.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_with_the_variable_the_hooks_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setenv("TABLETUNE_TABLE", "/t.json")
    monkeypatch.setattr(hooking, "install", lambda: calls.append(1))
    registering.register()
    registering.register()
    assert calls == [1, 1]


def test_exception_is_logged_and_not_vllms(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ImportError("ours")

    monkeypatch.setenv("TABLETUNE_TABLE", "/t.json")
    monkeypatch.setattr(hooking, "install", fail)
    registering.register()
    assert "serving goes on without it" in caplog.text


def test_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLETUNE_TABLE", "")
    monkeypatch.setattr(hooking, "install", lambda: pytest.fail("hooked"))
    registering.register()
