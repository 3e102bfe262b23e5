"""How a profile's progress is told: bars on a terminal, one JSON object per line elsewhere.

The lines are for the operator, which shows them in the DraftTable's status, and for logs; their form is
in docs/reference/cli.md. An estimate of the rest is given once a phase has shown its pace.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tabletune_profiler import consoles

PHASES = {
    "start": "Starting the engine",
    "acceptance": "Acceptance",
    "sweep": "Step times",
    "repeat": "Wide cells again",
    "mixed": "Steps with prompts",
    "verify": "Predictions",
}
"""Phases in their order, and what they are called for a person."""

MIN_SECONDS_BETWEEN_EVENTS = 1.0


class Reporter(Protocol):
    """Told by ``profiling`` what happens."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """A phase begins (a key of :data:`PHASES`), with so many units of work, some done already."""

    def advance(self, done: int, **about: int) -> None:
        """So many units of the phase are done; ``about`` names the cell."""

    def note(self, message: str) -> None:
        """Something worth knowing."""

    def warn(self, message: str) -> None:
        """Something that may surprise."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def reporter(stream: TextIO | None = None) -> Reporter:
    """Return bars where ``stream`` (standard error by default) is a terminal, JSON lines elsewhere."""
    stream = stream or sys.stderr
    return Bars() if stream.isatty() else JsonLines(stream)


class Bars:
    """Progress bars for a person."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[about]}"),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Show a bar for the phase."""
        self._task = self._progress.add_task(PHASES[name], total=total, completed=done, about="")

    def advance(self, done: int, **about: int) -> None:
        """Move the phase's bar."""
        if self._task is not None:
            cell = "B={batch_size} K={draft_length}".format(**about) if "batch_size" in about else ""
            self._progress.update(self._task, completed=done, about=cell)

    def note(self, message: str) -> None:
        """Print above the bars."""
        self._progress.console.print(consoles.plain(message), markup=False, highlight=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """Print above the bars."""
        self.note(f"Warning: {message}")

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bars as they are."""
        self._progress.stop()


class JsonLines:
    """One JSON object per line, at most one a second within a phase."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._phase, self._total, self._first = "", 0, 0
        self._started = clock()
        self._began = self._told = 0.0

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Tell that the phase begins."""
        self._phase, self._total, self._first = name, total, done
        self._began = self._told = self._clock()
        self._tell("phase", phase=name, done=done, total=total)

    def advance(self, done: int, **about: int) -> None:
        """Tell how far the phase is and, from its pace so far, how many seconds are left of it."""
        now = self._clock()
        if now - self._told < MIN_SECONDS_BETWEEN_EVENTS and done < self._total:
            return
        self._told = now
        made = done - self._first
        remaining = round((now - self._began) / made * (self._total - done), 1) if made > 0 else None
        cell = {"batchSize" if key == "batch_size" else "draftLength": value for key, value in about.items()}
        self._tell(
            "progress", phase=self._phase, done=done, total=self._total, remainingSeconds=remaining, **cell
        )

    def note(self, message: str) -> None:
        """Tell the message."""
        self._tell("note", message=message)

    def warn(self, message: str) -> None:
        """Tell the message."""
        self._tell("warning", message=message)

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to give back."""

    def _tell(self, event: str, **content: object) -> None:
        seconds = round(self._clock() - self._started, 1)
        self._stream.write(json.dumps({"event": event, "seconds": seconds, **content}) + "\n")
        self._stream.flush()
