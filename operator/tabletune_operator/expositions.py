"""Reads the plugin's metrics of one serving pod: text from the network, hence anything at all.

``scraping`` fetches it. A page may be huge, binary, half, somebody else's, or made to hurt, so only lines
that are a sample of a known metric count, and only numbers that a counter can have; everything else is
passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_BYTES = 2_000_000
"""Most that is read of a page; the plugin's own has some 30 kB."""
MAX_SAMPLES = 20_000
MAX_POSITIONS = 64
MAX_REASONS = 8
MAX_CELLS = 4_096
MAX_COUNT = 1e15

NAMES = tuple(
    f"tabletune_{name}"
    for name in (
        "table_generation",
        "active",
        "fingerprint_differs",
        "drafted_total",
        "accepted_total",
        "requests_total",
        "steps_total",
        "step_seconds_total",
        "kept_tokens_total",
        "step_median_seconds",
    )
)
"""Metrics that are read."""
LABELS = frozenset(
    {"__name__", "reason", "field", "minor", "position", "proposed", "batch", "length", "kind"}
)
"""Their own labels; what else a sample has, whoever scraped it has put there."""

_SAMPLE = re.compile(
    r"(tabletune_[a-z_]{1,60})(?:\{([^\n]{0,2000})\})? ([-+0-9.eE]{1,40}|\+Inf|NaN)(?: -?\d+)?\Z"
)
_LABEL = re.compile(r'([a-zA-Z_]\w{0,60})="((?:[^"\\]|\\.){0,400})"')
_BUCKET = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z")

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value."""
Cell = tuple[str, int]
"""Batch bucket and draft length."""


@dataclass(frozen=True)
class Reading:
    """What one pod's counters say at one moment."""

    generation: int | None = None
    """Generation of the table that it follows; ``None`` where there is none."""
    active: bool | None = None
    """Whether the plugin does what it should; ``None`` where the page is not the plugin's."""
    reason: str = ""
    """Why, or what else holds; several with commas between."""
    differs: tuple[str, ...] = ()
    """Important fields of the fingerprint in which the engine is not what was profiled."""
    drafted: Mapping[int, float] = field(default_factory=dict)
    """Drafts by position, from 1."""
    accepted: Mapping[int, float] = field(default_factory=dict)
    proposed: float = 0.0
    not_proposed: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    """Steps by batch bucket."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Their time."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Tokens that they kept."""
    medians_ms: Mapping[Cell, float] = field(default_factory=dict)
    """Median time of quiet pure steps by cell, milliseconds, in the profile's measure."""


def parse(text: str) -> Reading:
    """Return what the page ``text`` says; an empty reading where it is nobody's we know."""
    return read(samples(text))


def samples(text: str) -> Iterator[Sample]:
    """Yield the samples of TableTune's metrics in a page of Prometheus' text format."""
    count = 0
    for line in text[:MAX_BYTES].splitlines():
        if not line.startswith("tabletune_") or len(line) > 3_000:
            continue
        found = _SAMPLE.match(line)
        if found is None:
            continue
        count += 1
        if count > MAX_SAMPLES:
            return
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield found[1], dict(_LABEL.findall(found[2] or "")), value


def read(found: Iterable[Sample]) -> Reading:
    """Return what ``found`` says, from a page or from Prometheus."""
    generation: int | None = None
    active: bool | None = None
    told: set[str] = set()
    differs: set[str] = set()
    positions: dict[str, dict[int, float]] = {"drafted": {}, "accepted": {}}
    requests = {"yes": 0.0, "no": 0.0}
    totals: dict[str, dict[str, float]] = {"steps": {}, "step_seconds": {}, "kept_tokens": {}}
    medians: dict[Cell, float] = {}
    for name, labels, value in found:
        if not math.isfinite(value) or not 0 <= value <= MAX_COUNT:
            continue
        kind = name.removeprefix("tabletune_").removesuffix("_total")
        match kind:
            case "table_generation":
                generation = int(value)
            case "active":
                active = value > 0
                if len(told) < MAX_REASONS:
                    told.add(labels.get("reason", "")[:64])
            case "fingerprint_differs" if labels.get("minor") == "no" and value > 0:
                differs.add(labels.get("field", "")[:64])
            case "drafted" | "accepted":
                position = _number(labels.get("position"))
                if 1 <= position <= MAX_POSITIONS:
                    positions[kind][position] = value
            case "requests" if labels.get("proposed") in requests:
                requests[labels["proposed"]] = value
            case "steps" | "step_seconds" | "kept_tokens":
                bucket = labels.get("batch", "")
                if _BUCKET.match(bucket) and len(totals[kind]) < MAX_CELLS:
                    totals[kind][bucket] = totals[kind].get(bucket, 0.0) + value
            case "step_median_seconds":
                cell = (labels.get("batch", ""), _number(labels.get("length")))
                if _BUCKET.match(cell[0]) and 0 <= cell[1] <= MAX_POSITIONS and len(medians) < MAX_CELLS:
                    medians[cell] = value * 1e3
    return Reading(
        generation=generation,
        active=active,
        reason=", ".join(sorted(told - {""})),
        differs=tuple(sorted(differs)),
        drafted=positions["drafted"],
        accepted=positions["accepted"],
        proposed=requests["yes"],
        not_proposed=requests["no"],
        steps=totals["steps"],
        seconds=totals["step_seconds"],
        tokens=totals["kept_tokens"],
        medians_ms=medians,
    )


def middle(bucket: str) -> int:
    """Return the batch size in the middle of a bucket, in ratio.

    >>> middle("33-48"), middle("7")
    (40, 7)
    """
    found = _BUCKET.match(bucket)
    if found is None:
        return 0
    first = int(found[1])
    return round(math.sqrt(first * int(found[2] or first)))


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 8 else -1
