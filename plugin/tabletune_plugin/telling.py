"""Log lines that a file or a workload can cause again and again.

The engine's log is read by people, and kept for money. Whoever rewrites the mounted file each second, or
serves traffic that turns the table back and forth, must not fill it; metrics count all that happens. So of
each kind some lines a minute are written, and the next one says how many were not.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

MOST_LINES = 5
"""Lines of a kind within :data:`LINES_SECONDS`."""
LINES_SECONDS = 60.0


@dataclass(slots=True)
class _Kind:
    """What was written of one kind lately, and what was not."""

    written_at: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    left_out: int = 0


class Telling:
    """Writes to one logger. Kinds are few: they are names in the code, not texts."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}

    def tell(self, now: float, kind: str, level: int, message: str, *values: object) -> None:
        """Write a line of ``kind`` at ``now`` (seconds, monotonic), unless there were too many."""
        found = self._kinds.setdefault(kind, _Kind())
        if len(found.written_at) == MOST_LINES and now - found.written_at[0] < LINES_SECONDS:
            found.left_out += 1
            return
        found.written_at.append(now)
        if found.left_out:
            message, values = f"{message} (%d more lines like it were left out)", (*values, found.left_out)
            found.left_out = 0
        self._logger.log(level, message, *values)
