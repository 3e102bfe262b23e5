"""What the tests of the plugin share: engines, documents and steps without vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tabletune import assembling
from tabletune.documents import Acceptance, Control, Document, Fingerprint, Graph, Measure, Profile
from tabletune_plugin.engine.steps import Step
from tabletune_plugin.states import Engine

MAX_NUM_SEQS = 4
LENGTHS = (0, 1, 2)
BATCH_SIZES = (1, 2, 4)
STEP_MS = {0: 10.0, 1: 11.0, 2: 12.0}
"""By draft length, whatever the batch size."""


def fingerprint(**changes: Any) -> Fingerprint:
    """The engine of these tests: n-gram drafting on a processor."""
    fields: dict[str, Any] = {
        "gpu": "CPU",
        "gpu_count": 0,
        "driver": "",
        "vllm": "0.33.0",
        "torch": "2.11.0",
        "runner": "V1",
        "model": "org/model",
        "drafter_method": "ngram",
        "drafter": "",
        "dtype": "float32",
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": 2_048,
        "async_scheduling": False,
        "cudagraph_mode": "NONE",
        "cudagraph_capture_sizes": (),
    }
    return Fingerprint(**fields | changes)


def document(
    lookup: Sequence[int] = (2, 2, 1, 0),
    *,
    generation: int = 1,
    control: Control | None = None,
    survival: Sequence[float] = (0.8, 0.6),
    measure: Measure = Measure.QUIET_INTERVAL,
    **changes: Any,
) -> Document:
    """A document whose table is ``lookup``, from batch size 1; changes are of its fingerprint."""
    return assembled(
        fingerprint(**changes),
        lookup,
        {length: (STEP_MS[length],) * len(BATCH_SIZES) for length in LENGTHS},
        batch_sizes=BATCH_SIZES,
        generation=generation,
        control=control or Control(),
        survival=survival,
        measure=measure,
    )


def assembled(
    fingerprint: Fingerprint,
    lookup: Sequence[int],
    step_ms: Mapping[int, Sequence[float]],
    *,
    batch_sizes: Sequence[int],
    generation: int,
    control: Control,
    survival: Sequence[float],
    measure: Measure = Measure.QUIET_INTERVAL,
    spread_ms: float = 0.1,
) -> Document:
    """A document of an engine without graphs: step times by draft length, the table whatever they say."""
    count = len(batch_sizes)
    made = assembling.assemble(
        fingerprint=fingerprint,
        profile=Profile(
            batch_sizes=tuple(batch_sizes),
            draft_lengths=tuple(step_ms),
            measure=measure,
            step_time_ms=tuple(map(tuple, step_ms.values())),
            spread_ms=((spread_ms,) * count,) * len(step_ms),
            samples=((30,) * count,) * len(step_ms),
            graph=((Graph.NONE,) * count,) * len(step_ms),
            context_length=128,
        ),
        acceptance=Acceptance(
            survival=tuple(survival),
            drafted=(1_000,) * len(survival),
            accepted=tuple(round(1_000 * rate) for rate in survival),
            proposal_rate=1.0,
            prompts=10,
        ),
        control=control,
        created_at=datetime(2026, 11, 30, tzinfo=UTC),
        prompt_tokens=64,
        output_tokens=64,
    )
    table = tuple((size, size, length) for size, length in enumerate(lookup, start=1))
    return made.model_copy(update={"table": table, "generation": generation})


def engine(**changes: Any) -> Engine:
    """An engine that :func:`document` was profiled on, started with lengths 0 to 2."""
    fields: dict[str, Any] = {
        "fingerprint": fingerprint(),
        "max_num_seqs": MAX_NUM_SEQS,
        "longest": 2,
        "lengths": LENGTHS,
        "own_lookup": (0, 2, 2, 2, 2),
        "users_table": False,
        "asynchronous": False,
        "uniform_drafts": True,
        "statistics": True,
    }
    return Engine(**fields | changes)


class Tap:
    """The tap on a scheduler that is not there; remembers the lookups that were put in force."""

    def __init__(self) -> None:
        self.lookups: list[tuple[int, ...]] = []
        self.spans: dict[int, float] = {}
        """GPU spans by step, milliseconds."""
        self.own_seconds = 0.25

    @property
    def lookup(self) -> tuple[int, ...]:
        return self.lookups[-1]

    def set_lookup(self, lookup: Sequence[int]) -> None:
        if len(lookup) != MAX_NUM_SEQS + 1:
            raise ValueError(f"a lookup of {len(lookup)} entries")
        self.lookups.append(tuple(lookup))

    def gpu_span_ms(self, number: int) -> float | None:
        return self.spans.get(number)

    def span_seconds(self) -> float:
        return 0.5


def step(
    number: int = 0,
    *,
    batch_size: int = 2,
    length: int = 2,
    next_length: int | None = None,
    interval_ms: float = 12.0,
    prompt_tokens: int = 0,
    new_requests: int = 0,
    requests_drafted: int | None = None,
    accepted: Sequence[int] | None = None,
) -> Step:
    """A step that verified ``length`` drafts per request, half of the first ones accepted."""
    drafted = batch_size if requests_drafted is None else requests_drafted
    drafted = drafted if length else 0
    return Step(
        number=number,
        result_at=number * 0.012,
        interval_ms=interval_ms,
        batch_size=batch_size,
        drafted_tokens=drafted * length,
        prompt_tokens=prompt_tokens,
        new_requests=new_requests,
        next_draft_length=length if next_length is None else next_length,
        requests_drafted=drafted,
        drafted=(drafted,) * length,
        accepted=tuple(accepted) if accepted is not None else (drafted // 2, *(0,) * (length - 1))[:length],
        graph=None,
    )
