"""Generations: which is the newest, going back, corrections, how many are kept. Rules 3, 7, 8 and 11 of
``planning``.

The history's entries are the truth. What they hold comes into the mounted ConfigMap by ``mounting``.
"""

from __future__ import annotations

from tabletune.api import reasons
from tabletune.api.drafttables import ServingMode
from tabletune.documents import Document
from tabletune_operator import configmaps
from tabletune_operator.actions import Delete, Merge
from tabletune_operator.configmaps import Origin
from tabletune_operator.looks import BY_GUARD, BY_SPEC, Look
from tabletune_operator.observations import Entry, Served
from tabletune_operator.plans import Need


def find_newest(look: Look) -> None:
    """Look for the newest generation by its name, where it is not seen though there must be one: without
    its label it is hidden, and pods that follow it would take no older one."""
    known = [int(look.before.get("generation") or 0)]
    if look.served is not None and look.is_own(look.served) and look.served.intact:
        known.append(look.served.generation)
    if max(known) <= (look.newest.generation if look.newest else 0):
        return
    hidden = look.fetch(Need("entry", configmaps.history_name(look.owner, max(known))))
    if isinstance(hidden, Entry) and hidden.owner == look.owner.uid:
        look.newest, look.entries = hidden, [*look.entries, hidden]
        if not look.paused:
            look.actions.append(Merge("ConfigMap", hidden.name, {"metadata": {"labels": look.owner.labels}}))


def adopt(look: Look, served: Served) -> None:
    """Take over what a ConfigMap holds as a generation: as the first one, where a profile stays due, or
    as the newest where somebody took that one out of the history."""
    lost = look.is_own(served) and served.intact
    if look.newest is not None and not (lost and served.generation > look.newest.generation):
        return
    document = look.fetch(Need("table", served.name))
    if not isinstance(document, Document):
        return
    # Where the history is gone and the table is our own, the status still knows what was accepted.
    known = look.is_own(served) and look.before.get("generation") == document.generation
    accepted = str(look.story.profile.get("acceptedDigest") or "") if known else ""
    # One that was orphaned has left its history too.
    taken = document.generation in {entry.generation for entry in look.seen.entries}
    look.append(document, Origin(accepted, accepted), None if taken else document.generation)


def roll_back(look: Look) -> None:
    """Go back where the spec says so, or the guard found the newest generation worse."""
    wanted, newest = look.spec.table.rollback_to, look.newest
    if wanted is not None:
        if newest is None or wanted not in {entry.generation for entry in look.entries}:
            if newest is not None and newest.restored_from == wanted:
                return
            kept = ", ".join(str(entry.generation) for entry in look.entries) or "none"
            told = f"spec.table.rollbackTo is {wanted}, and kept are {kept}. Choose one of them."
            look.story.problems.append((reasons.ROLLBACK_UNKNOWN, told))
        elif wanted not in (newest.generation, newest.restored_from):
            _repeat(look, wanted, BY_SPEC)
        return
    verdict = look.seen.live.rollback if look.seen.live else None
    if verdict and newest and verdict.generation == newest.generation:
        _repeat(look, verdict.to, BY_GUARD)
        told = reasons.advise(reasons.ROLLED_BACK, verdict.message)
        look.story.problems.append((reasons.ROLLED_BACK, told))


def _repeat(look: Look, generation: int, reason: str) -> None:
    """Put an older generation in force as a new one."""
    entry = next((entry for entry in look.entries if entry.generation == generation), None)
    if entry is None or look.newest is None:
        return
    document = look.fetch(Need("history", entry.name))
    if not isinstance(document, Document):
        told = f"Generation {generation} cannot be read any more: {str(document)[:500]}."
        look.story.problems.append((reasons.ROLLBACK_UNKNOWN, told))
        return
    origin = Origin(entry.profile_digest, look.newest.accepted_digest, generation, reason)
    look.append(document, origin)


def overtake(look: Look) -> None:
    """Give the table a number above the one that pods follow already, who would refuse it else.

    So it is after a DraftTable was made anew while its pods went on serving.
    """
    seen, newest = look.seen.live, look.newest
    if seen is None or newest is None or not newest.generation == seen.generation < seen.followed:
        return
    document = look.newest_document()
    if document is not None:
        origin = Origin(
            newest.profile_digest,
            newest.accepted_digest,
            newest.restored_from,
            newest.rollback_reason,
        )
        look.append(document, origin)


def correct(look: Look) -> None:
    """Put in force what live traffic proposes, unless one is held or it was computed from another."""
    proposal = look.seen.live.correction if look.seen.live else None
    newest = look.newest
    if proposal is None or newest is None or proposal.base != newest.generation or look.held:
        return
    if look.spec.serving.mode is ServingMode.CORRECT:
        look.append(proposal.document, Origin(newest.profile_digest, newest.accepted_digest))


def prune(look: Look) -> None:
    """Delete the oldest entries beyond the limit; never the one that the spec goes back to."""
    if look.paused:
        return
    kept = {entry.generation for entry in look.entries[-look.spec.table.history_limit :]}
    if look.spec.table.rollback_to is not None:
        kept.add(look.spec.table.rollback_to)
    for entry in look.entries:
        if entry.generation not in kept:
            look.actions.append(Delete("ConfigMap", entry.name))
    look.entries = [entry for entry in look.entries if entry.generation in kept]
