"""The operator's decisions: from what is seen of one DraftTable to what is to be done and said about it.

``reconciling`` calls :func:`plan` after every change of anything that belongs to a DraftTable, and nothing
but what it is given decides. So it does not matter what happened before, in which order, or whether the
operator died in between: the same cluster makes the same plan.

Rules, in their order. 5 and 6 are in ``profiling``; 3, 7, 8 and 11 in ``generations``; 9 and 10 in
``mounting``; what is said of serving pods is in ``fleets``:

1. Spec: one that cannot be read or contradicts itself changes nothing; the last table stays in force.
2. Conflict: of two DraftTables for one ConfigMap the older writes it. The younger does nothing at all.
3. Ownership: a ConfigMap that somebody else made is taken only where ``spec.table.adopt`` says so. One of its
   own that is newer than the history puts that right.
4. Paused: nothing is done; what is seen is still said.
5. Profile: due where the digest of the inputs is not that of the last accepted profile. Inputs whose profile
   is still in the history need no new one. Otherwise there is one Job, named after its inputs; every other
   unfinished one is superseded. A Job that failed is not tried again until its inputs change.
6. Acceptance: the report of a completed Job becomes a generation once it is valid. Until then the old one
   serves.
7. Rollback: ``spec.table.rollbackTo`` and the guard repeat an older generation as a new one, since pods never
   go back by number. While one holds, nothing is corrected. Where pods follow a higher number already, the
   newest generation is repeated above it.
8. Correction: what live traffic proposes becomes a generation, if it was computed from the one in force.
9. Settings: a table that comes out otherwise under the spec's table settings becomes a generation; no
   profile.
10. Serving: the mounted ConfigMap is the newest generation's copy, and is written again where it is not.
11. History: more than ``historyLimit`` entries are deleted, the oldest first; never the one rolled back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tabletune.api import drafttables, reasons
from tabletune.api.drafttables import Spec, SpecError
from tabletune_operator import fleets, generations, mounting, profiling, statuses, times
from tabletune_operator.looks import Look, MissingError
from tabletune_operator.observations import DraftTable, Served
from tabletune_operator.plans import Need, Observed, Plan


def plan(seen: Observed, fetched: Mapping[Need, Any], refused: Mapping[str, str], now: datetime) -> Plan:
    """Return the plan for ``seen`` at ``now``.

    ``fetched`` holds what earlier plans asked for: a :class:`Served` or :class:`Entry`, a :class:`Document`,
    a list of messages, a :class:`DocumentError` where there is no usable document, or ``None`` where there is
    no such object. ``refused`` holds what the API server said to Jobs that it did not take, by name.
    """
    if seen.table.deleting:
        # The garbage collector takes all that it owns.
        return Plan()
    try:
        return _decide(Look(seen, fetched, refused, now))
    except MissingError as missing:
        return Plan(needs=(missing.need,))


def _decide(look: Look) -> Plan:
    table = look.seen.table
    profiling.keep(look)
    try:
        look.spec = drafttables.parse(table.spec)
        _check(look.spec)
    except SpecError as error:
        return _finish(look, reasons.INVALID_SPEC, str(error))
    look.story.paused = look.spec.paused
    if older := _older_writer(look):
        return _finish(
            look,
            reasons.CONFIG_MAP_CONFLICT,
            f"DraftTable {older.name}, which is older, writes ConfigMap {table.config_map_name} too. Set"
            " another spec.table.configMapName, or delete one of the two.",
            in_force=False,
        )
    look.served = _served(look)
    generations.find_newest(look)
    if look.served is not None:
        if not look.is_own(look.served) and not look.may_adopt(look.served):
            return _finish(
                look,
                reasons.CONFIG_MAP_NOT_OWNED,
                f"ConfigMap {look.served.name} is there already and is not this DraftTable's. Choose"
                " another spec.table.configMapName, delete it, or set spec.table.adopt: true to take it"
                " over.",
                in_force=False,
            )
        generations.adopt(look, look.served)
    profiling.decide(look)
    generations.roll_back(look)
    generations.overtake(look)
    generations.correct(look)
    mounting.serve(look)
    generations.prune(look)
    fleets.judge(look)
    return _finish(look)


def _check(spec: Spec) -> None:
    """Raise :class:`SpecError` for what the API server cannot see."""
    taken = sorted(set(spec.drafter.config) & set(drafttables.RESERVED_DRAFTER_KEYS))
    if taken:
        raise SpecError(
            [
                f"spec.drafter.config: must not have {', '.join(taken)}, which fields of spec.drafter set, or"
                " TableTune itself (the table)"
            ]
        )


def _older_writer(look: Look) -> DraftTable | None:
    """Return the oldest other DraftTable that writes the same ConfigMap, if it is older than this one."""
    table = look.seen.table
    rivals = [
        other
        for other in look.seen.siblings
        if other.config_map_name == table.config_map_name
        and not other.deleting
        and other.seniority < table.seniority
    ]
    return min(rivals, key=lambda other: other.seniority, default=None)


def _served(look: Look) -> Served | None:
    if look.seen.served is not None:
        return look.seen.served
    found = look.fetch(Need("served", look.seen.table.config_map_name))
    return found if isinstance(found, Served) else None


def _finish(look: Look, problem: str = "", message: str = "", in_force: bool = True) -> Plan:
    story = look.story
    if problem:
        story.problems.insert(0, (problem, message))
    if look.newest is not None and in_force:
        story.in_force, story.source = look.newest.generation, look.newest.source
        story.restored_from = look.newest.restored_from
        if look.document is None and (
            look.before.get("generation") != look.newest.generation or "table" not in look.before
        ):
            look.newest_document()
        story.document = look.document
        if look.document is not None and "fingerprint" not in story.profile:
            story.profile["fingerprint"] = statuses.fingerprint(look.document)
    story.history = [entry.generation for entry in look.entries]
    status, events = statuses.tell(story, look.before, times.text_of(look.now))
    return Plan(
        actions=tuple(look.actions),
        status=status,
        events=tuple(events),
        again_seconds=min(look.again, default=None),
        in_force=story.in_force,
    )
