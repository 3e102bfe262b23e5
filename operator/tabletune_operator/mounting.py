"""The mounted ConfigMap: the newest generation's copy under the spec's settings. Rules 9 and 10 of
``planning``.

Deleted, edited, of an older generation or rendered with other settings, it is written again; a table that
comes out otherwise under the settings is a generation of its own, since pods tell tables apart by number.
"""

from __future__ import annotations

from tabletune import assembling
from tabletune.api import reasons
from tabletune.api.drafttables import Spec
from tabletune.documents import Control, Document, Mode
from tabletune.rendering import RenderingError
from tabletune_operator import configmaps, digests
from tabletune_operator.actions import Apply
from tabletune_operator.configmaps import Origin
from tabletune_operator.looks import Look

RENDERED = "1"
"""Counts up where the same document is to be rendered otherwise by a newer operator."""


def control(spec: Spec) -> Control:
    """Return the document's control section that ``spec`` asks for."""
    table, serving = spec.table, spec.serving
    pinned = sorted((entry.first, entry.last, entry.draft_length) for entry in table.pinned)
    return Control(
        mode=Mode(serving.plugin_mode.value.lower()),
        half_life=float(serving.half_life_seconds),
        hysteresis=serving.hysteresis,
        min_drafts=serving.min_drafts,
        allowed_lengths=tuple(sorted(table.allowed_lengths or _asked_for(spec))),
        pinned=tuple(pinned),
        tie_tolerance=table.tie_tolerance,
        narrow_range=table.narrow_range,
        merge_tolerance=table.merge_tolerance,
    )


def _asked_for(spec: Spec) -> tuple[int, ...]:
    """Return the lengths of a drafter that is not to be turned off; empty: all that were timed.

    A profile always times length 0 too, for the comparison.
    """
    lengths = spec.drafter.draft_lengths
    return () if 0 in lengths else lengths


def serve(look: Look) -> None:
    """Write the mounted ConfigMap where it is not the newest generation under the spec's settings."""
    if look.newest is None or look.paused:
        return
    wanted, served = control(look.spec), look.served
    whole = (
        served if served is not None and look.is_own(served) and served.intact and served.managed else None
    )
    digest = _control_digest(look, wanted)
    if whole and (whole.generation, whole.control_digest) == (look.newest.generation, digest):
        return
    document = look.newest_document()
    if document is None:
        return
    if not look.held and document.control != wanted:
        computed = _recomputed(look, document, wanted)
        # Where the settings do not fit, they are tried again at each look, so that it is said as long.
        document, digest = (document, "") if computed is None else (computed, _control_digest(look, wanted))
    try:
        body = configmaps.served(look.owner, look.seen.table.config_map_name, document, digest)
    except RenderingError as error:
        look.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, str(error)))
        return
    if whole and (whole.content_digest, whole.control_digest) == (digests.content(body["data"]), digest):
        return
    look.actions.append(Apply(body))


def _control_digest(look: Look, wanted: Control) -> str:
    generation = look.newest.generation if look.newest else 0
    plain = wanted.model_dump(mode="json", by_alias=True)
    return digests.digest([RENDERED, generation, None if look.held else plain])


def _recomputed(look: Look, document: Document, wanted: Control) -> Document | None:
    """Return ``document`` under other settings, ``None`` where they do not fit what was profiled.

    Another table is another generation.
    """
    newest = look.newest
    try:
        computed = assembling.recompute(document, wanted, look.now)
    except assembling.NOT_COMPUTABLE as error:
        look.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, str(error)))
        return None
    if newest is None or computed.generation == document.generation:
        return computed
    look.append(computed, Origin(newest.profile_digest, newest.accepted_digest))
    return look.document or computed
