"""Sets conditions as Kubernetes wants them: the transition time changes with the status alone.

The one place that does. ``planning`` says what is true; a condition whose time moved at every look would wake
everybody who watches, and tell them nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tabletune.api.reasons import Condition

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MAX_MESSAGE = 8_000
"""Characters of a message, whatever names and errors are in it: the API server refuses a status with one that
is too long, and then all of it."""


@dataclass(frozen=True)
class Said:
    """What is to be said of one condition."""

    status: str
    """``TRUE``, ``FALSE`` or ``UNKNOWN``."""
    reason: str
    message: str = ""

    @classmethod
    def of(cls, condition: Mapping[str, Any]) -> Self:
        """Return what a condition in a status says."""
        return cls(
            str(condition.get("status")), str(condition.get("reason")), str(condition.get("message", ""))
        )


def put(
    before: Sequence[Mapping[str, Any]], said: Mapping[Condition, Said], now: str, generation: int
) -> list[dict[str, Any]]:
    """Return the conditions to write, in the order of :class:`tabletune.api.reasons.Condition`.

    ``before`` are those in the object, ``now`` is a time as Kubernetes writes it, ``generation`` that of the
    DraftTable. A condition about which nothing is said stays as it was.
    """
    old = {condition.get("type"): condition for condition in before}
    found = []
    for kind in Condition:
        last = old.get(kind.value, {})
        if kind not in said:
            if last:
                found.append(dict(last))
            continue
        new = said[kind]
        same = last.get("status") == new.status and last.get("lastTransitionTime")
        found.append(
            {
                "type": kind.value,
                "status": new.status,
                "reason": new.reason,
                "message": new.message[:MAX_MESSAGE],
                "lastTransitionTime": last["lastTransitionTime"] if same else now,
                "observedGeneration": generation,
            }
        )
    return found


def find(conditions: Sequence[Mapping[str, Any]], kind: Condition) -> Mapping[str, Any]:
    """Return one condition; empty where it is not there."""
    return next((condition for condition in conditions if condition.get("type") == kind.value), {})
