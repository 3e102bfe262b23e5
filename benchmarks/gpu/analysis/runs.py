"""What `serve.py` wrote: one run is one engine start, with its records, its steps and its document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tabletune import acceptance, documents
from tabletune.documents import Document

Record = dict[str, Any]
Graphs = Literal["default", "advised", "full", "fixed", "adaptive verification"]

COMPARED_OTHERWISE = ("profile", "arrivals", "jumps", "recovery", "switch", "cost", "bursts")
KV_CACHE = "--kv-cache-memory-bytes"
MOST_SLIPPED = 32
"""Steps by which spans may have slipped: one each time that the plugin was taken out or put back."""
CLEARLY = 0.02
"""By so much the best correlation must stand out."""


@dataclass(frozen=True)
class Steps:
    """The step log: a column per field of `inside.FIELDS`."""

    result_at: NDArray[np.float64]
    interval_ms: NDArray[np.float64]
    span_ms: NDArray[np.float64]
    batch_size: NDArray[np.int64]
    drafted_tokens: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    new_requests: NDArray[np.int64]
    next_draft_length: NDArray[np.int64]
    accepted_tokens: NDArray[np.int64]
    graph: NDArray[np.int64]
    """Places in `inside.GRAPHS`: 0 not told, 1 full, 2 piecewise, 3 none."""

    @classmethod
    def read(cls, path: Path) -> Steps:
        """Return the steps that `inside.keep` wrote."""
        with np.load(path) as columns:
            return cls(
                **{
                    name: columns[name].astype(np.float64 if columns[name].dtype.kind == "f" else np.int64)
                    for name in cls.__dataclass_fields__
                }
            )

    def __len__(self) -> int:
        return len(self.result_at)

    def between(self, began: float, ended: float) -> Steps:
        """Return the steps whose result came between two moments."""
        first, last = np.searchsorted(self.result_at, (began, ended))
        return self.taken(slice(int(first), int(last)))

    def taken(self, chosen: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Steps:
        """Return some of the steps."""
        return Steps(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens that each step computed, padding left out."""
        return self.batch_size + self.drafted_tokens + self.prompt_tokens

    def with_spans_moved(self, places: int) -> Steps:
        """Return the same steps, each with the span that was logged ``places`` later."""
        moved = np.full(len(self), np.nan)
        if places >= 0:
            moved[: len(self) - places] = self.span_ms[places:]
        else:
            moved[-places:] = self.span_ms[:places]
        return replace(self, span_ms=moved)

    @property
    def kept_tokens(self) -> NDArray[np.int64]:
        """Output tokens of each step, if none shared a prompt."""
        return self.batch_size + self.accepted_tokens

    @property
    def mixed(self) -> NDArray[np.bool_]:
        """Whether a prompt shared the step."""
        return (self.prompt_tokens > 0) | (self.new_requests > 0)


@dataclass(frozen=True)
class Window:
    """One policy's turn in a closed loop."""

    policy: str
    round: int
    began: float
    seconds: float
    tokens_per_second: float
    steps: Steps | None

    @property
    def constant(self) -> int | None:
        """The draft length of a constant policy."""
        return constant_length(self.policy)


@dataclass(frozen=True, order=True)
class Loop:
    """A closed loop: what was open, and what the requests were like."""

    comparison: str
    prompt_tokens: int
    output_tokens: tuple[int, int]
    open: int

    @property
    def mean_output_tokens(self) -> float:
        """Outputs are as likely to have any length between the two."""
        return sum(self.output_tokens) / 2

    def __str__(self) -> str:
        return f"{self.open} open, prompts of {self.prompt_tokens:,}"


@dataclass(frozen=True)
class Run:
    """One engine start."""

    name: str
    result: Record
    steps: Steps | None = None
    document: Document | None = None

    @property
    def records(self) -> list[Record]:
        """The records in the order in which they were kept."""
        records: list[Record] = self.result["records"]
        return records

    @property
    def stolen_cpus(self) -> float | None:
        """Of the machine's CPUs so many were taken by its host during windows; None where nobody looked."""
        told = [record for record in self.records if "stolenSeconds" in record]
        if not told:
            return None
        stolen, seconds = (
            sum(float(record[name]) for record in told) for name in ("stolenSeconds", "seconds")
        )
        return stolen / seconds

    @property
    def serve(self) -> str:
        """The engine's arguments."""
        return " ".join(self.result["serve"])

    @property
    def setting(self) -> tuple[str, ...]:
        """The engine's arguments but for the size of its KV cache, by which no step takes longer."""
        arguments = list(self.result["serve"])
        if KV_CACHE in arguments:
            place = arguments.index(KV_CACHE)
            del arguments[place : place + 2]
        return tuple(arguments)

    @property
    def model(self) -> tuple[str, str, str]:
        """Target, method and drafter: runs of the same are comparable."""
        own = self.result["fingerprint"]
        return Path(own["model"]).name, own["drafterMethod"], Path(own.get("drafter") or "").name

    @property
    def graphs(self) -> Graphs:
        """What sets this engine apart from others of the same model.

        A fixed length is told by the name only (``…-fixed3``), since no engine here is started with a table:
        the plugin puts it in. The rest is in the arguments.
        """
        if self.fixed_length is not None:
            return "fixed"
        if re.search(r"adaptive[-_ ]?verif", f"{self.name} {self.serve}", re.IGNORECASE):
            return "adaptive verification"
        mode = re.search(r"cudagraph[-_]mode\W+(\w+)", self.serve)
        if mode is not None and mode[1] == "FULL":
            return "full"
        return "advised" if re.search(r"cudagraph[-_]capture[-_]size", self.serve) else "default"

    @property
    def advised_sizes(self) -> bool:
        """Whether the engine was given capture sizes, whatever else sets it apart."""
        return re.search(r"cudagraph[-_]capture[-_]size", self.serve) is not None

    @property
    def as_profiled(self) -> bool:
        """Whether the engine runs in the graph mode that its document was profiled in."""
        profiled_full = self.result["fingerprint"]["cudagraphMode"] == "FULL"
        return self.graphs in ("advised", "default") or (self.graphs == "full" and profiled_full)

    @property
    def fixed_length(self) -> int | None:
        """The fixed length of an engine without a table, which its name tells; None of others."""
        found = re.search(r"fixed-?(\d+)", self.name)
        return int(found[1]) if found else None

    @property
    def uniform_drafts(self) -> bool:
        """Whether every request gets a draft of the full length."""
        return acceptance.drafts_are_uniform(self.model[1])

    @cached_property
    def loops(self) -> dict[Loop, list[Window]]:
        """The windows of closed loops. A loop that a plan has twice gets rounds of its own."""
        found: dict[Loop, list[Window]] = {}
        seen: dict[tuple[Loop, str, int], int] = {}
        steps, since = self.steps, None
        for record in self.records:
            if record["comparison"] == "cost" and "began" not in record:
                since = "the next"
            elif since == "the next" and self.steps is not None and "began" in record:
                since = None
                steps = realigned(self.steps.between(record["began"], np.inf))
            if record["comparison"] in COMPARED_OTHERWISE:
                continue
            loop = Loop(
                record["comparison"], record["promptTokens"], tuple(record["outputTokens"]), record["open"]
            )
            key = loop, record["policy"], record["round"]
            seen[key] = seen.get(key, -1) + 1
            found.setdefault(loop, []).append(
                Window(
                    record["policy"],
                    record["round"] + 1000 * seen[key],
                    record["began"],
                    record["seconds"],
                    record["tokensPerSecond"],
                    steps and steps.between(record["began"], record["began"] + record["seconds"]),
                )
            )
        return found

    def of(self, comparison: str) -> list[Record]:
        """Return the records of one comparison."""
        return [record for record in self.records if record["comparison"] == comparison]


def realigned(steps: Steps) -> Steps:
    """Return steps with each span at its step again, where they have slipped by a constant number of steps.

    Where the plugin's cost was measured before records of it told their beginning, a step in flight while the
    plugin was taken out of the engine's path or put back may be counted on one side only. Spans follow the
    tokens of their own step more closely than those of any other; where no place stands out there is no
    telling, and no span is known.
    """
    fits = {}
    for places in range(-MOST_SLIPPED, MOST_SLIPPED + 1):
        moved = steps.with_spans_moved(places)
        known = np.isfinite(moved.span_ms)
        if known.sum() > 10 * MOST_SLIPPED and np.ptp(moved.tokens[known]) and np.ptp(moved.span_ms[known]):
            fits[places] = float(np.corrcoef(moved.tokens[known], moved.span_ms[known])[0, 1])
    first, second = [*sorted(fits, key=lambda places: -fits[places]), None, None][:2]
    if first is None or second is None or fits[first] - fits[second] < CLEARLY:
        return replace(steps, span_ms=np.full(len(steps), np.nan))
    return steps.with_spans_moved(first)


def constant_length(policy: str) -> int | None:
    """Return the draft length of a constant policy; None of any other."""
    return int(policy.removeprefix("constant ")) if policy.startswith("constant ") else None


def by_policy(windows: Iterable[Window]) -> dict[str, dict[int, float]]:
    """Return tokens per second by policy and round."""
    found: dict[str, dict[int, float]] = {}
    for window in windows:
        found.setdefault(window.policy, {})[window.round] = window.tokens_per_second
    return found


def read(folder: Path, results: Path) -> list[Run]:
    """Return the runs of ``folder``, by name; their documents lie there or anywhere below ``results``."""
    return [
        Run(path.stem, result, _steps(path), _document(result["document"], (folder, results)))
        for path in sorted(folder.glob("*.json"), key=lambda own: own.stem)
        for result in [json.loads(path.read_text())]
        if isinstance(result, dict) and "records" in result and "serve" in result
    ]


def _steps(path: Path) -> Steps | None:
    steps = path.with_name(f"{path.stem}-steps.npz")
    return Steps.read(steps) if steps.exists() else None


def _document(name: str, folders: Sequence[Path]) -> Document | None:
    def found() -> Iterator[Path]:
        for folder in folders:
            yield from sorted(folder.rglob(Path(name).name))

    path = next(found(), None)
    return documents.parse(path.read_bytes()) if path is not None else None
