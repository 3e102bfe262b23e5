"""What the correction loop knows of a DraftTable's serving pods; planning takes it as given.

It is kept in memory and not in the cluster: after a restart the pods are looked at again, and counting starts
over. Only what must outlast a restart (the guard's baseline) is written into the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.documents import Document


@dataclass(frozen=True)
class Correction:
    """A document that live traffic asks for instead of the one in force."""

    base: int
    """Generation that it was computed from; worthless once another is in force."""
    document: Document
    message: str
    """Why, with the numbers behind it."""


@dataclass(frozen=True)
class Rollback:
    """The guard's verdict that a generation must go."""

    generation: int
    """Generation that keeps fewer tokens."""
    to: int
    """Generation to go back to."""
    message: str


@dataclass(frozen=True)
class Seen:
    """The serving pods as they were last looked at."""

    pods: int = 0
    up_to_date: int = 0
    unreachable: int = 0
    inactive: int = 0
    drafts: int = 0
    predicted_gain: float | None = None
    decision: str | None = None
    last_seen: str = ""
    attention: tuple[Mapping[str, Any], ...] = ()
    """Pods that are not as they should be, as the status shows them and no more than it may name."""
    drifted: tuple[str, ...] = ()
    """Differences between pods and profile, each once."""
    conflicts: tuple[str, ...] = ()
    """Older DraftTables that select the same pods."""
    guard: Mapping[str, Any] | None = None
    correction: Correction | None = None
    rollback: Rollback | None = None
    generation: int = 0
    """Generation that the pods were compared with."""
    followed: int = 0
    """Highest generation that a pod follows: none takes a lower one afterwards."""
