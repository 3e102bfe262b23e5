"""Runs programs of the machine. A failure carries the command and the program's last words."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST_WORDS = 3_000
"""Characters of a failed program's output that its error shows."""


class CommandError(RuntimeError):
    """A program failed, or was not there."""


def run(
    command: Sequence[str | Path],
    *,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 900.0,
    shown: bool = False,
) -> str:
    """Return what ``command`` wrote to its standard output; raises :class:`CommandError`.

    ``shown`` lets people see its standard error as it goes, for what takes minutes.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=subprocess.PIPE,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            cwd=folder,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]} is not there: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{typed(command)} did not end within {timeout:.0f} s.") from error
    if done.returncode:
        words = ((done.stderr or "").strip() or done.stdout.strip())[-LAST_WORDS:]
        raise CommandError(f"{typed(command)} ended with {done.returncode}:\n{words}")
    return done.stdout


def typed(command: Sequence[str | Path]) -> str:
    """Return ``command`` as a person would type it, cut to a line's length."""
    text = shlex.join(str(part) for part in command)
    return text if len(text) <= 200 else f"{text[:197]}..."
