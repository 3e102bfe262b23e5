"""Made runs, small enough that the right answer is known by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu.analysis.runs import Record, Run, Steps

from tabletune import documents
from tabletune.documents import Document

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "benchmarks" / "results" / "gpu" / "h200-qwen3-4b-eagle3-advised.json"
SERVE = ["/root/shapes/qwen3-4b", "--load-format", "dummy", "--max-num-seqs", "252"]
ADVISED = [*SERVE, "--cudagraph-capture-sizes", "12", "24"]


def document() -> Document:
    return documents.parse(DOCUMENT.read_bytes())


def run(
    records: Sequence[Record],
    name: str = "made",
    serve: Sequence[str] = SERVE,
    steps: Steps | None = None,
    with_document: bool = False,
    date: str = "2026-11-30T14:00:00+00:00",
) -> Run:
    own = document()
    result: dict[str, Any] = {
        "conditions": {"date": date, "command": "made", "machine": {"cpus": 16}, "versions": {}},
        "serve": list(serve),
        "document": DOCUMENT.name,
        "table": [list(entry) for entry in own.table],
        "fingerprint": own.fingerprint.model_dump(mode="json", by_alias=True),
        "records": list(records),
        "failures": [],
        "secondsStart": 60.0,
        "secondsMeasured": 100.0,
    }
    return Run(name, result, steps, own if with_document else None)


def window(policy: str, number: int, rate: float, open_requests: int = 8, **changed: Any) -> Record:
    return {
        "comparison": "loads",
        "open": open_requests,
        "round": number,
        "promptTokens": 256,
        "outputTokens": [300, 700],
        "policy": policy,
        "began": 0.0,
        "seconds": 2.0,
        "tokensPerSecond": rate,
        "finished": 0,
        **changed,
    }


def windows(rates: Mapping[str, Sequence[float]], **changed: Any) -> list[Record]:
    """A loop's windows from each policy's rates by round."""
    return [
        window(policy, number, rate, **changed)
        for policy, own in rates.items()
        for number, rate in enumerate(own)
    ]


def timeline(
    shares: Sequence[float],
    right: tuple[Sequence[float], Sequence[float]] = ((1000.0, 1000.0), (1000.0, 1000.0)),
    comparison: str = "recovery",
    start: str = "all 0",
    stale: float | None = None,
    open_requests: int = 64,
    between: float | None = None,
) -> list[Record]:
    """A timeline of slices of 2.5 s from 100 s on, two windows of the right table before and after it.

    ``between`` is the right table's rate between the late slices: 2.5 s after each that begins after 22.5 s.
    """
    policy = "retuned" if comparison == "switch" else "tuned"
    common = {"comparison": comparison, "open": open_requests, "start": start, "rates": [0.7, 0.5, 0.4]}
    ends = [2.5 * (place + 1) for place in range(len(shares))]
    records: list[Record] = []
    for when, rates, began in (("before", right[0], 90.0), ("after", right[1], 100.0 + ends[-1] + 5.0)):
        for number, rate in enumerate(rates):
            own = {**common, "when": when, "round": number, "began": began + 4 * number, "seconds": 2.0}
            records.append({**own, "policy": policy, "tokensPerSecond": rate})
            if stale is not None:
                records.append({**own, "policy": "tuned", "tokensPerSecond": rate * stale})
        if when == "before":
            reports: list[Record] = [{"at": end, "ranges": [[1, 32, 3], [33, 252, 2]]} for end in ends]
            references: list[Record] = []
            for place, report in enumerate(reports if between is not None else []):
                report["ended"] = 100.0 + report["at"] + 2.5 * max(0, place - 9)
                if place >= 9:
                    reference = {"began": report["ended"], "seconds": 2.5, "tokensPerSecond": between}
                    references.append(reference)
            records.append(
                {
                    **common,
                    **({"references": references} if references else {}),
                    "when": "timeline",
                    "policy": "adapt",
                    "began": 100.0,
                    "tokensPerSecond": [1000.0 * share for share in shares],
                    "reports": reports,
                }
            )
    return records


def steps(
    count: int,
    batch_size: int = 8,
    length: int = 2,
    span_ms: float = 4.0,
    host_ms: float = 1.0,
    accepted: int = 8,
    began: float = 0.0,
    graph: int = 1,
) -> Steps:
    """Equal pure steps one after the other."""
    interval = span_ms + host_ms

    def all_of(value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.full(count, value, dtype=np.int64)

    return Steps(
        result_at=(began + np.arange(1, count + 1) * interval / 1e3).astype(np.float64),
        interval_ms=np.full(count, interval),
        span_ms=np.full(count, span_ms),
        batch_size=all_of(batch_size),
        drafted_tokens=all_of(batch_size * length),
        prompt_tokens=all_of(0),
        new_requests=all_of(0),
        next_draft_length=all_of(length),
        accepted_tokens=all_of(accepted),
        graph=all_of(graph),
    )


def changed(own: Steps, places: Sequence[int], **columns: float) -> Steps:
    """Return steps with some columns set at some places; results come when the intervals say."""
    new = {name: getattr(own, name).copy() for name in columns}
    for name, value in columns.items():
        new[name][list(places)] = value
    found = replace(own, **new)
    began = own.result_at[0] - own.interval_ms[0] / 1e3
    return replace(found, result_at=began + np.cumsum(found.interval_ms) / 1e3)
