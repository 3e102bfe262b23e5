"""A DraftTable's status from what is known of it: conditions, phase, numbers, and the Events of a change.

``planning`` calls it last. It says the whole story each time instead of patching a word here and there, so
a status that somebody edited, or an operator that died half-way, is put right by the next look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tabletune.api import reasons
from tabletune.api.reasons import Condition, Phase
from tabletune.documents import Document
from tabletune_operator import conditions, live
from tabletune_operator.actions import Happened
from tabletune_operator.conditions import FALSE, TRUE, UNKNOWN, Said

MAX_RANGES = 200
"""Ranges of the table that the status shows; the ConfigMap has them all."""

SILENT = frozenset(
    {
        reasons.NO_TABLE,
        reasons.HEALTHY,
        reasons.NO_SELECTOR,
        reasons.NOT_OBSERVED,
        reasons.NO_PODS,
        reasons.OBSERVING_OFF,
        reasons.PAUSED,
        reasons.PODS_REFRESHING,
        reasons.PROFILE_STARTING,
        reasons.PROFILE_NEEDS_ATTENTION,
    }
)
"""Reasons that get no Event: they are where everything starts, or repeat what another Event says."""


@dataclass
class Story:
    """What planning found out, piece by piece."""

    generation: int
    """Of the DraftTable."""
    config_map: str
    paused: bool = False
    in_force: int | None = None
    """Generation of the table in force."""
    restored_from: int | None = None
    source: str = ""
    document: Document | None = None
    """The document in force, where it had to be read; else the status says it already."""
    due: bool = False
    running: bool = False
    failed: bool = False
    profiled: Said = field(default_factory=lambda: Said(UNKNOWN, reasons.PROFILE_STARTING))
    profile: dict[str, Any] = field(default_factory=dict)
    history: Sequence[int] = ()
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Reasons of the condition Degraded with their messages, the gravest first."""
    serving: Said = field(default_factory=lambda: Said(UNKNOWN, reasons.NOT_OBSERVED))
    seen: live.Seen | None = None


def tell(story: Story, before: Mapping[str, Any], now: str) -> tuple[dict[str, Any], list[Happened]]:
    """Return the status to write and the Events of what changed since ``before``, the status that is
    there."""
    problems = list(story.problems)
    attention = story.profiled.reason in reasons.WARNINGS and story.profiled.status != TRUE
    if attention:
        told = f"{story.profiled.reason}: see the condition Profiled."
        problems.append((reasons.PROFILE_NEEDS_ATTENTION, told))
    degraded = (
        Said(TRUE, *problems[0]) if problems else Said(FALSE, reasons.HEALTHY, "Nothing needs a person.")
    )
    said = {
        Condition.READY: _ready(story),
        Condition.PROFILED: story.profiled,
        Condition.SERVING: story.serving,
        Condition.DEGRADED: degraded,
    }
    old = before.get("conditions") or ()
    status: dict[str, Any] = {
        "observedGeneration": story.generation,
        "phase": str(_phase(story, bool(problems))),
        "conditions": conditions.put(old, said, now, story.generation),
        "configMap": story.config_map,
        "history": list(story.history),
        **_table(story, before),
    }
    if story.profile:
        status["profile"] = {key: value for key, value in story.profile.items() if value is not None}
    if story.seen is not None:
        status["serving"] = _serving(story.seen)
    elif "serving" in before and story.serving.reason not in (reasons.NO_SELECTOR, reasons.OBSERVING_OFF):
        status["serving"] = before["serving"]
    return status, _events(said, old, story, before)


def _ready(story: Story) -> Said:
    if story.in_force is not None:
        restored = f", which repeats generation {story.restored_from}" if story.restored_from else ""
        return Said(
            TRUE,
            reasons.TABLE_IN_FORCE,
            f"ConfigMap {story.config_map} holds generation {story.in_force}{restored}.",
        )
    if story.problems:
        return Said(FALSE, *story.problems[0])
    if story.paused:
        return Said(FALSE, reasons.PAUSED, "spec.paused is set, and there is no table yet.")
    return Said(FALSE, reasons.NO_TABLE, "No profile has succeeded yet. See the condition Profiled.")


def _phase(story: Story, degraded: bool) -> Phase:
    if story.paused:
        return Phase.PAUSED
    if story.in_force is not None:
        if degraded:
            return Phase.DEGRADED
        return Phase.PROFILING if story.due else Phase.READY
    if story.running and not story.problems:
        return Phase.PROFILING
    return Phase.FAILED if story.failed or story.problems else Phase.PENDING


def _table(story: Story, before: Mapping[str, Any]) -> dict[str, Any]:
    latest = max(int(before.get("latestGeneration") or 0), story.in_force or 0)
    if story.in_force is None:
        return {"latestGeneration": latest} if latest else {}
    shown: dict[str, Any] = {
        "generation": story.in_force,
        "latestGeneration": latest,
        "source": story.source,
    }
    if story.restored_from:
        shown["restoredFrom"] = story.restored_from
    document = story.document
    if document is None:
        kept = ("table", "recommendation", "predictedGain", "gain", "acceptance")
        return shown | {key: before[key] for key in kept if key in before}
    recommendation = document.recommendation
    told: dict[str, Any] = {"kind": recommendation.kind.value, "reason": recommendation.reason}
    if recommendation.draft_length is not None:
        told["draftLength"] = recommendation.draft_length
    return shown | {
        "table": [
            {"first": first, "last": last, "draftLength": length}
            for first, last, length in document.table[:MAX_RANGES]
        ],
        "recommendation": told,
        "predictedGain": round(recommendation.predicted_gain, 6),
        "gain": f"{recommendation.predicted_gain:+.1%}",
        "acceptance": {
            "survival": [round(rate, 6) for rate in document.acceptance.survival],
            "proposalRate": round(document.acceptance.proposal_rate, 6),
            "source": document.source.value,
        },
    }


def fingerprint(document: Document) -> dict[str, Any]:
    """Return the fingerprint for the status, without the long list of capture sizes."""
    found = document.fingerprint.model_dump(mode="json", by_alias=True)
    return {key: value for key, value in found.items() if key != "cudagraphCaptureSizes" and value != ""}


def _serving(seen: live.Seen) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pods": seen.pods,
        "upToDate": seen.up_to_date,
        "unreachable": seen.unreachable,
        "ready": f"{seen.up_to_date}/{seen.pods}",
        "drafts": seen.drafts,
        "attention": [dict(pod) for pod in seen.attention],
    }
    optional = {
        "predictedGain": None if seen.predicted_gain is None else round(seen.predicted_gain, 4),
        "decision": seen.decision,
        "lastSeen": seen.last_seen or None,
        "guard": None if seen.guard is None else dict(seen.guard),
    }
    return found | {key: value for key, value in optional.items() if value is not None}


def _events(
    said: Mapping[Condition, Said],
    old: Sequence[Mapping[str, Any]],
    story: Story,
    before: Mapping[str, Any],
) -> list[Happened]:
    found = []
    for kind, new in said.items():
        changed = conditions.find(old, kind).get("reason") != new.reason
        if kind is Condition.READY and story.in_force is not None:
            changed = before.get("generation") != story.in_force
        if changed and new.reason not in SILENT:
            found.append(Happened(new.reason, new.message, new.reason in reasons.WARNINGS))
    return found
