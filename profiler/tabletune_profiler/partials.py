"""What a profile has measured so far, on disk, so that nothing measured is ever lost.

``profiling`` writes it after every batch size and whenever it stops early; a rerun goes on from it where
it was measured on the same thing in the same way. It lies beside the output (``table.json.partial``) and
is removed when the document is complete.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tabletune import documents
from tabletune.documents import Fingerprint, Graph, Model
from tabletune_profiler import files
from tabletune_profiler.exit_codes import InputError
from tabletune_profiler.messages import AcceptanceCounted, Sample

MAX_BYTES = 64_000_000


class SampleRow(Model):
    """One :class:`~messages.Sample`."""

    interval_ms: float
    gpu_span_ms: float | None = None
    drafted_tokens: int
    graph: Graph | None = None


class CellRecord(Model):
    """The samples of one cell, or why there are none."""

    batch_size: int
    draft_length: int
    samples: tuple[SampleRow, ...] = ()
    visits: Annotated[int, Field(ge=0)] = 0
    """How often it was timed; the plan says how often it should be."""
    excluded: str = ""
    """Reason; empty where the cell was timed."""
    fatal: bool = False
    """Whether the engine died or hung there."""


class OffRecord(Model):
    """The samples of one batch size with speculation off."""

    batch_size: int
    samples: tuple[SampleRow, ...]


class MixedRecord(Model):
    """What prompts added in one mixed cell."""

    batch_size: int
    draft_length: int
    prompt_tokens: int
    added_ms: tuple[float, ...]


class AcceptanceRecord(Model):
    """Counts of the acceptance run."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    requests_drafted: int
    requests_decoded: int


class Partial(Model):
    """One profile, as far as it got."""

    format_version: Literal[1] = 1
    fingerprint: Fingerprint
    settings: Annotated[str, Field(max_length=64)]
    """Hash of everything else that decides what the numbers mean (:func:`settings_hash`)."""
    acceptance: AcceptanceRecord | None = None
    cells: tuple[CellRecord, ...] = ()
    off: tuple[OffRecord, ...] = ()
    mixed: tuple[MixedRecord, ...] = ()


def settings_hash(*parts: object) -> str:
    """Return a hash of ``parts`` (what ``json`` can write), for telling two profiles apart."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=list).encode()).hexdigest()[:32]


def path_of(output: Path) -> Path:
    """Return where the partial file of ``output`` lies."""
    return output.with_name(output.name + ".partial")


def read(path: Path) -> Partial | None:
    """Return the partial profile at ``path``; ``None`` where there is none.

    Raises :class:`~exit_codes.InputError` for a file that is there and cannot be used.
    """
    if not path.exists():
        return None
    data = files.read(path, MAX_BYTES)
    try:
        return documents.validate_as(Partial, json.loads(data))
    except (ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0][:300]
        raise InputError(
            f"{path} is no partial profile that can be gone on from: {problem}. Remove it to start anew."
        ) from error


def write(path: Path, partial: Partial) -> None:
    """Put ``partial`` at ``path``, whole or not at all."""
    files.write_atomically(path, documents.dump(partial))


def put_aside(path: Path) -> Path:
    """Rename the partial profile at ``path`` to a name that is free, and return that."""
    aside = path.with_name(path.name + ".old")
    for number in itertools.count(2):
        if not aside.exists():
            break
        aside = path.with_name(f"{path.name}.old.{number}")
    return path.replace(aside)


def rows(samples: Sequence[Sample]) -> tuple[SampleRow, ...]:
    """Return ``samples`` as they are stored."""
    return tuple(
        SampleRow(
            interval_ms=round(sample.interval_ms, 6),
            gpu_span_ms=None if sample.gpu_span_ms is None else round(sample.gpu_span_ms, 6),
            drafted_tokens=sample.drafted_tokens,
            graph=sample.graph,
        )
        for sample in samples
    )


def samples(record: CellRecord | OffRecord) -> list[Sample]:
    """Return the samples of ``record``."""
    return [Sample(row.interval_ms, row.gpu_span_ms, row.drafted_tokens, row.graph) for row in record.samples]


def acceptance_record(counted: AcceptanceCounted) -> AcceptanceRecord:
    """Return ``counted`` as it is stored."""
    return AcceptanceRecord(
        drafted=counted.drafted,
        accepted=counted.accepted,
        requests_drafted=counted.requests_drafted,
        requests_decoded=counted.requests_decoded,
    )
