"""How long profiles took, from the logs that `session.sh` leaves beside the results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.analysis.runs import Run

ENDED = re.compile(r"profile of (\S+) ended with (\d+) after (\d+) s")


@dataclass(frozen=True)
class ProfileTimes:
    """One `tabletune profile`, in seconds."""

    name: str
    succeeded: bool
    whole: float | None
    """From the command to its end, engine start included; None where no lane's log tells."""
    start: float | None
    """Engine starts; None where the profile's log does not tell, as are the others."""
    sweep: float | None
    excluded: int | None
    """Cells without a time."""


def read(folder: Path) -> list[ProfileTimes]:
    """Return the profiles whose logs lie in ``folder``, by name."""
    ended = {
        name: (int(status), float(seconds))
        for path in sorted(folder.glob("lane-*.log"))
        for name, status, seconds in ENDED.findall(path.read_text(errors="replace"))
    }
    finished = {
        path.name.removesuffix("-profile.log"): event
        for path in sorted(folder.glob("*-profile.log"))
        for event in _finished(path)
    }
    found = []
    for name in sorted({*ended, *finished}):
        event = finished.get(name, {})
        found.append(
            ProfileTimes(
                name,
                bool(event) and ended.get(name, (0, 0.0))[0] == 0,
                ended[name][1] if name in ended else None,
                event.get("secondsStart"),
                event.get("secondsSweep"),
                event.get("excluded"),
            )
        )
    return found


def served(runs: Iterable[Run]) -> list[ProfileTimes]:
    """Return the profiles that engines took before they served, with what the engine took to start.

    Other engines started beside it. What the process took before, to import vLLM, is not in them.
    """
    found = []
    for run in runs:
        start = run.result.get("secondsStart", 0.0)
        for record in run.of("profile"):
            excluded = len(run.document.profile.excluded) if run.document is not None else None
            whole = start + record["seconds"]
            found.append(ProfileTimes(run.name, True, whole, start, record["secondsSweep"], excluded))
    return found


def _finished(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the event that ends a profile, from among lines of other kinds."""
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith('{"event": "finished"'):
            yield json.loads(line)
