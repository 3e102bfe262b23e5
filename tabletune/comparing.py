"""What differs between two documents: the data behind ``tabletune diff`` and the operator's history.

A text diff of two documents shows a thousand changed numbers and hides the three that matter. This says
which batch sizes draft otherwise, whether steps became slower, and whether the two were measured on the
same thing at all, since a table that changed with the GPU is no news and a table that changed without
any visible reason is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import JsonValue

from tabletune import tables
from tabletune.documents import Document, Model, Recommendation


class FieldChange(Model):
    """A field with another value."""

    field: str
    """Its name in the document."""
    old: JsonValue
    """Value in the old document; null where it has none."""
    new: JsonValue
    """Value in the new one; null where it has none."""


class RangeChange(Model):
    """Batch sizes that get another draft length."""

    first: int
    """First batch size."""
    last: int
    """Last batch size."""
    old: int | None
    """Draft length of the old table; null beyond its last batch size."""
    new: int | None
    """Draft length of the new table; null beyond its last batch size."""


class StepTimeChange(Model):
    """A cell that both profiles measured."""

    batch_size: int
    """Batch size."""
    draft_length: int
    """Draft length."""
    old_ms: float
    """Step time in the old profile, milliseconds."""
    new_ms: float
    """Step time in the new one, milliseconds."""
    ratio: float
    """New over old: 1.1 is 10% slower."""


class SurvivalChange(Model):
    """Survival at a draft position that both documents know."""

    position: int
    """Draft position, the first is 1."""
    old: float
    """Survival in the old document."""
    new: float
    """Survival in the new one."""


class GoodputChange(Model):
    """Predicted goodput with each document's own table, at a batch size that both predict for."""

    batch_size: int
    """Batch size."""
    old: float
    """Kept tokens per second by the old document."""
    new: float
    """Kept tokens per second by the new one."""
    ratio: float
    """New over old: 1.1 is 10% more."""


class Comparison(Model):
    """All that differs between an old and a new document; empty tuples where nothing does."""

    old_generation: int
    """Generation of the old document."""
    new_generation: int
    """Generation of the new one."""
    same_engine: bool
    """Whether both have the same fingerprint."""
    same_measure: bool
    """Whether step times were taken the same way; if not, their ratios mean little."""
    old_context_length: int
    """Tokens of context per request at which the old profile's steps were timed."""
    new_context_length: int
    """The same of the new one. Attention takes longer in longer contexts, at some batch sizes more than at
    others."""
    fingerprint: tuple[FieldChange, ...]
    """Fields of the fingerprint that differ."""
    speculative_config: tuple[FieldChange, ...]
    """Fields of vLLM's speculative config that differ."""
    control: tuple[FieldChange, ...]
    """Fields of the control section that differ."""
    engine: tuple[FieldChange, ...]
    """Fields of the engine advice that differ."""
    table: tuple[RangeChange, ...]
    """Batch sizes that draft otherwise."""
    old_recommendation: Recommendation
    """What the old document recommends."""
    new_recommendation: Recommendation
    """What the new one recommends."""
    step_times: tuple[StepTimeChange, ...]
    """Every cell that both profiles measured, changed or not."""
    step_time_ratio: float | None
    """Geometric mean of their ratios; null without a common cell."""
    survival: tuple[SurvivalChange, ...]
    """Positions whose survival differs."""
    old_proposal_rate: float
    """Proposal rate of the old document."""
    new_proposal_rate: float
    """Proposal rate of the new one."""
    goodput: tuple[GoodputChange, ...]
    """Every batch size that both predict for, changed or not."""
    goodput_ratio: float | None
    """Geometric mean of their ratios; null without a common batch size. Where fingerprint, step times or
    survival differ it tells what changed in the world, not what the new table is worth."""


def compare(old: Document, new: Document) -> Comparison:
    """Return what differs between ``old`` and ``new``, which may come from different engines."""
    step_times, goodput = _step_times(old, new), _goodput(old, new)
    fingerprint = _fields(_content(old.fingerprint), _content(new.fingerprint))
    return Comparison(
        old_generation=old.generation,
        new_generation=new.generation,
        same_engine=not fingerprint,
        same_measure=old.profile.measure == new.profile.measure,
        old_context_length=old.profile.context_length,
        new_context_length=new.profile.context_length,
        fingerprint=fingerprint,
        speculative_config=_fields(old.speculative_config, new.speculative_config),
        control=_fields(_content(old.control), _content(new.control)),
        engine=_fields(_content(old.engine), _content(new.engine)),
        table=_ranges(old, new),
        old_recommendation=old.recommendation,
        new_recommendation=new.recommendation,
        step_times=step_times,
        step_time_ratio=_geometric_mean([change.ratio for change in step_times]),
        survival=tuple(
            SurvivalChange(position=position, old=before, new=after)
            for position, (before, after) in enumerate(
                zip(old.acceptance.survival, new.acceptance.survival, strict=False), start=1
            )
            if before != after
        ),
        old_proposal_rate=old.acceptance.proposal_rate,
        new_proposal_rate=new.acceptance.proposal_rate,
        goodput=goodput,
        goodput_ratio=_geometric_mean([change.ratio for change in goodput]),
    )


def _content(model: Model) -> dict[str, JsonValue]:
    content: dict[str, JsonValue] = model.model_dump(mode="json", by_alias=True)
    return content


def _fields(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(field=field, old=old.get(field), new=new.get(field))
        for field in sorted({*old, *new})
        if old.get(field) != new.get(field)
    )


def _ranges(old: Document, new: Document) -> tuple[RangeChange, ...]:
    """Return the batch sizes with another length, those next to each other with the same change as one."""
    size = max(old.max_batch_size, new.max_batch_size)
    lengths = [
        (*tables.lookup(document.table, document.max_batch_size), *[None] * (size - document.max_batch_size))
        for document in (old, new)
    ]
    pairs = zip(range(1, size + 1), lengths[0][1:], lengths[1][1:], strict=True)
    changes = []
    for (before, after), alike in itertools.groupby(pairs, key=lambda pair: pair[1:]):
        sizes = [batch_size for batch_size, _, _ in alike]
        if before != after:
            changes.append(RangeChange(first=sizes[0], last=sizes[-1], old=before, new=after))
    return tuple(changes)


def _step_times(old: Document, new: Document) -> tuple[StepTimeChange, ...]:
    before, after = _cells(old), _cells(new)
    return tuple(
        StepTimeChange(
            batch_size=batch_size,
            draft_length=draft_length,
            old_ms=before[draft_length, batch_size],
            new_ms=after[draft_length, batch_size],
            ratio=after[draft_length, batch_size] / before[draft_length, batch_size],
        )
        for draft_length, batch_size in sorted(before.keys() & after.keys())
    )


def _cells(document: Document) -> dict[tuple[int, int], float]:
    """Return the measured step times in milliseconds by draft length and batch size."""
    profile = document.profile
    return {
        (draft_length, batch_size): time
        for draft_length, row in zip(profile.draft_lengths, profile.step_time_ms, strict=True)
        for batch_size, time in zip(profile.batch_sizes, row, strict=True)
        if time is not None
    }


def _goodput(old: Document, new: Document) -> tuple[GoodputChange, ...]:
    before = dict(zip(old.prediction.batch_sizes, old.prediction.table, strict=True))
    after = dict(zip(new.prediction.batch_sizes, new.prediction.table, strict=True))
    changes = []
    for batch_size in sorted(before.keys() & after.keys()):
        told, tells = before[batch_size], after[batch_size]
        # Documents may be anyone's: a goodput of 0 or 1e-320 is valid in one and makes no ratio.
        if told > 0 and math.isfinite(ratio := tells / told):
            changes.append(GoodputChange(batch_size=batch_size, old=told, new=tells, ratio=ratio))
    return tuple(changes)


def _geometric_mean(ratios: Sequence[float]) -> float | None:
    if not ratios or min(ratios) <= 0:
        return None
    return float(np.exp(np.mean(np.log(ratios))))
