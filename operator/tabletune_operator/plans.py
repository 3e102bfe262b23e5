"""What planning is given and what comes of it: plain values, so that a test needs no cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune_operator import live
from tabletune_operator.actions import Action, Happened
from tabletune_operator.observations import DraftTable, Entry, Job, Pod, Report, Served


@dataclass(frozen=True)
class Need:
    """Something that must be read before the plan can be made."""

    kind: str
    """``served`` or ``entry`` (a ConfigMap that is not in sight), ``history`` or ``report`` or ``table`` (a
    document), or ``events`` (why a Job has no pod)."""
    name: str


@dataclass(frozen=True)
class Observed:
    """All that is seen of one DraftTable."""

    table: DraftTable
    siblings: tuple[DraftTable, ...] = ()
    """The namespace's other DraftTables."""
    served: Served | None = None
    entries: tuple[Entry, ...] = ()
    reports: tuple[Report, ...] = ()
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    live: live.Seen | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be done and said."""

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None
    """The whole status; ``None`` where there is nobody to say it to."""
    events: tuple[Happened, ...] = ()
    again_seconds: float | None = None
    """Time until another look even if nothing changes; ``None`` for none."""
    needs: tuple[Need, ...] = ()
    """What to read first; then everything else is empty."""
    in_force: int | None = None
    """Generation in force once the actions are done."""
