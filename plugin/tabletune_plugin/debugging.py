"""What ``/debug/table`` says: the table in force and everything behind it, as JSON for a person.

Metrics say that something changed; this says why, with the numbers that the decision was made on. Without it
one would have to guess from counters what a controller inside an engine believed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum

import numpy as np
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from tabletune import controlling, tables
from tabletune_plugin import settings
from tabletune_plugin.metrics import Graphs, Snapshot


def describe(snapshot: Snapshot) -> dict[str, object]:
    """Return the content of ``/debug/table``: plain values, no NaN, names in camelCase as a document's."""
    report, engine = snapshot.report, snapshot.engine
    document = report.document
    return {
        "active": report.active,
        "reason": report.reason,
        "reasons": list(report.reasons),
        "message": report.message,
        "mode": plain(report.mode),
        "table": _ranges(report.lookup),
        "documentTable": _ranges(report.document_lookup),
        "generation": document.generation if document is not None else None,
        "createdAt": document.created_at.isoformat() if document is not None else None,
        "source": plain(document.source) if document is not None else None,
        "digest": report.digest,
        "lastReload": plain(report.reload),
        "lastLookAt": plain(snapshot.looked_at),
        "reloads": plain(report.reloads),
        "differences": plain(report.differences),
        "corrections": report.corrections,
        "shifts": report.shifts,
        "explorations": snapshot.explorations,
        "failures": report.failures,
        "ownSeconds": plain(snapshot.own_seconds),
        "stepTimesComparable": report.comparable,
        "decision": _decision(report.outcome),
        "settings": settings.shown(snapshot.settings),
        "engine": plain(engine),
        "graphs": plain(Graphs.of(engine)) if engine is not None else None,
    }


def _ranges(lookup: tuple[int, ...]) -> list[list[int]]:
    return [list(entry) for entry in tables.from_lookup(lookup)] if len(lookup) > 1 else []


def _decision(outcome: controlling.Outcome | None) -> object:
    """Return what the last window led to, the large grids by measured batch sizes only."""
    if outcome is None:
        return None
    costs = outcome.costs
    seen = np.asarray(costs.seen)
    columns = np.flatnonzero((seen > 0).any(axis=0)) if seen.ndim == 2 else np.array([], dtype=np.intp)
    return {
        "reason": outcome.decision.reason,
        "changes": plain(outcome.decision.changes),
        "drafts": plain(outcome.decision.drafts),
        "draftsNeeded": plain(outcome.decision.needed),
        "largestGain": plain(outcome.decision.largest_gain),
        "shifted": outcome.shifted,
        "avoidedChanges": plain(outcome.avoided_changes),
        "estimate": plain(outcome.estimate),
        "stalePositions": plain(outcome.exploration.stale_positions),
        "explored": _ranges(outcome.exploration.lengths),
        "costs": {
            "shape": costs.shape,
            "offsetMs": plain(costs.offset_ms),
            "batchSizes": (columns + 1).tolist(),
            "stepTimeMs": plain(costs.step_times_ms[:, columns]),
            "profiledMs": plain(costs.profiled_ms[:, columns]),
            "liveTimes": plain(seen[:, columns]),
        },
    }


def plain(value: object) -> object:
    """Return ``value`` as JSON can hold it: what is not finite becomes null."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {to_camel(name.name): plain(getattr(value, name.name)) for name in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
