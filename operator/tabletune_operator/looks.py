"""One look at one DraftTable while its plan is made: what is seen, and what was decided so far.

``planning`` makes one and hands it to one module after the other (``generations``, ``profiling``,
``mounting``, ``fleets``), each of which adds actions and its part of the story. What more than one of them
needs to know or do is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tabletune.api import reasons
from tabletune.api.drafttables import Spec
from tabletune.api.reasons import Condition
from tabletune.documents import Document
from tabletune_operator import conditions, configmaps, statuses, times
from tabletune_operator.actions import Action, Create
from tabletune_operator.configmaps import Origin
from tabletune_operator.observations import Entry, Served
from tabletune_operator.plans import Need, Observed

BY_SPEC, BY_GUARD, BY_REUSE = "spec", "guard", "reuse"
"""Who repeated an older generation."""


class MissingError(Exception):
    """The plan cannot be made before something was read."""

    def __init__(self, need: Need) -> None:
        self.need = need
        super().__init__(need)


class Look:
    """A look under way."""

    spec: Spec
    """The spec, once it was read."""
    served: Served | None = None
    """The ConfigMap under the name that the spec gives, whosever it is."""
    document: Document | None = None
    """The newest entry's document, where it was read or made."""

    def __init__(
        self, seen: Observed, fetched: Mapping[Need, Any], refused: Mapping[str, str], now: datetime
    ) -> None:
        self.seen, self.fetched, self.refused, self.now = seen, fetched, refused, now
        self.actions: list[Action] = []
        self.again: list[float] = []
        """Times until another look, of which the shortest counts."""
        table = seen.table
        self.before = table.status
        self.owner = table.owner
        # A DraftTable of the same name that is gone may have left some; they are the garbage collector's.
        owners = [(job.name, job.owner) for job in seen.jobs]
        # Without an owner they were orphaned, and stay for good.
        owners += [(report.name, report.owner) for report in seen.reports if report.owner]
        owners += [(entry.name, entry.owner) for entry in seen.entries if entry.owner]
        self.left = sorted(name for name, owner in owners if owner != table.uid)
        self.jobs = [job for job in seen.jobs if job.owner == table.uid]
        self.reports = [report for report in seen.reports if report.owner == table.uid]
        self.entries = sorted(
            (entry for entry in seen.entries if entry.owner == table.uid),
            key=lambda entry: entry.generation,
        )
        self.newest = self.entries[-1] if self.entries else None
        self.story = statuses.Story(generation=table.generation, config_map=table.config_map_name)
        self.story.profile = dict(table.status.get("profile") or {})

    @property
    def paused(self) -> bool:
        """Whether nothing is to be changed."""
        return self.spec.paused

    @property
    def held(self) -> bool:
        """Whether a rollback holds the table."""
        if self.spec.table.rollback_to is not None:
            return True
        return self.newest is not None and self.newest.rollback_reason == BY_GUARD

    def fetch(self, need: Need) -> Any:
        """Return what was read; raises :class:`MissingError` where it was not yet."""
        if need not in self.fetched:
            raise MissingError(need)
        return self.fetched[need]

    def last(self, kind: Condition) -> Mapping[str, Any]:
        """Return what the status says of one condition; empty where it says nothing."""
        return conditions.find(self.before.get("conditions") or (), kind)

    def is_own(self, served: Served) -> bool:
        """Whether this DraftTable made it, or took it over."""
        return served.controller == self.seen.table.uid

    def may_adopt(self, served: Served) -> bool:
        """Whether it may be taken over: nobody else controls it, and the spec says so."""
        return self.spec.table.adopt and served.controller is None

    def newest_document(self) -> Document | None:
        """Return the newest generation's document; ``None`` where there is none that can be read."""
        if self.document is not None or self.newest is None:
            return self.document
        found = self.fetch(Need("history", self.newest.name))
        if isinstance(found, Document):
            self.document = found
            return found
        # Somebody's edit cannot happen to an immutable object; what is left is a version that cannot be read.
        told = f"Generation {self.newest.generation} cannot be read: {str(found)[:500]}."
        self.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, told))
        return None

    def append(self, document: Document, origin: Origin, generation: int | None = None) -> None:
        """Make a generation; with ``spec.paused`` none is made."""
        if self.paused:
            return
        number = generation if generation is not None else self.next_generation()
        made: dict[str, Any] = {"generation": number}
        if origin.restored_from is not None:
            made["created_at"] = self.now.replace(microsecond=0)
        self.document = document.model_copy(update=made)
        self.actions.append(Create(configmaps.history(self.owner, self.document, origin)))
        self.newest = Entry(
            name=configmaps.history_name(self.owner, number),
            owner=self.owner.uid,
            generation=number,
            source=self.document.source.value,
            profile_digest=origin.profile_digest,
            accepted_digest=origin.accepted_digest,
            restored_from=origin.restored_from,
            rollback_reason=origin.rollback_reason,
            created=times.text_of(self.now),
        )
        self.entries = [*self.entries, self.newest]

    def next_generation(self) -> int:
        """Return a number above every one that a pod may have seen, also after a history that was deleted."""
        # Those of an earlier DraftTable of this name too, whose pods may serve on.
        known = [entry.generation for entry in (*self.seen.entries, *self.entries)]
        known.append(int(self.before.get("latestGeneration") or 0))
        if self.seen.live is not None:
            known.append(self.seen.live.followed)
        if self.served is not None and (self.is_own(self.served) or self.may_adopt(self.served)):
            known.append(self.served.generation)
        return max(known) + 1
