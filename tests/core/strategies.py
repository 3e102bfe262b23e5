"""Random valid documents and their parts, for property tests of any component; and one small fixed one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, get_args

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tabletune import acceptance, assembling, documents, tables
from tabletune.documents import Graph

CREATED_AT = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
GRAPH_MODES: tuple[GraphMode, ...] = get_args(GraphMode)

positive = st.floats(min_value=0.05, max_value=500.0)
shares = st.floats(min_value=0.0, max_value=1.0)
tolerances = st.floats(min_value=0.0, max_value=0.2)
texts = st.text(max_size=12)


@st.composite
def draft_lengths(draw: st.DrawFn, longest: int = 5) -> tuple[int, ...]:
    """Ascending draft lengths, 0 among them, as the profiler measures."""
    return (0, *sorted(draw(st.sets(st.integers(1, longest), min_size=1, max_size=4))))


@st.composite
def fingerprints(draw: st.DrawFn, max_num_seqs: int | None = None) -> documents.Fingerprint:
    """Engines with and without a GPU, of both runners and all graph modes."""
    return documents.Fingerprint(
        gpu=draw(texts),
        gpu_count=draw(st.integers(0, 8)),
        driver=draw(texts),
        vllm=draw(texts),
        torch=draw(texts),
        runner=draw(st.sampled_from(["V1", "V2"])),
        model=draw(texts),
        drafter_method=draw(st.sampled_from(["ngram", "draft_model", "eagle3", "mtp"]) | texts),
        drafter=draw(texts),
        dtype=draw(texts),
        quantization=draw(texts),
        tensor_parallel_size=draw(st.integers(1, 8)),
        pipeline_parallel_size=draw(st.integers(1, 4)),
        max_num_seqs=max_num_seqs or draw(st.integers(1, 64)),
        max_num_batched_tokens=draw(st.integers(1, 100_000)),
        async_scheduling=draw(st.booleans()),
        cudagraph_mode=draw(st.sampled_from(GRAPH_MODES)),
        cudagraph_capture_sizes=tuple(sorted(draw(st.sets(st.integers(1, 512), max_size=8)))),
    )


@st.composite
def profiles(
    draw: st.DrawFn, lengths: tuple[int, ...] | None = None, max_batch_size: int = 64
) -> documents.Profile:
    """Grids with excluded cells in them, but for length 0, so that gains can always be told."""
    rows = lengths or draw(draft_lengths())
    columns = tuple(sorted(draw(st.sets(st.integers(1, max_batch_size), min_size=1, max_size=5))))
    cells = [(batch_size, draft_length) for draft_length in rows for batch_size in columns]
    excluded = draw(st.sets(st.sampled_from(cells), max_size=3).map(lambda found: {c for c in found if c[1]}))
    kinds = st.sampled_from(list(Graph))
    measured = [[(size, length) not in excluded for size in columns] for length in rows]
    return documents.Profile(
        batch_sizes=columns,
        draft_lengths=rows,
        measure=draw(st.sampled_from(list(documents.Measure))),
        step_time_ms=tuple(tuple(draw(positive) if yes else None for yes in row) for row in measured),
        spread_ms=tuple(tuple(draw(positive) if yes else None for yes in row) for row in measured),
        samples=tuple(tuple(draw(st.integers(1, 999)) if yes else 0 for yes in row) for row in measured),
        graph=tuple(tuple(draw(kinds) if yes else None for yes in row) for row in measured),
        context_length=draw(st.integers(1, 100_000)),
        mixed=tuple(
            documents.MixedStep(
                batch_size=draw(st.sampled_from(columns)),
                draft_length=draw(st.sampled_from(rows)),
                prompt_tokens=draw(st.integers(1, 8_192)),
                step_time_ms=draw(positive),
                samples=draw(st.integers(1, 99)),
            )
            for _ in range(draw(st.integers(0, 2)))
        ),
        excluded=tuple(
            documents.ExcludedCell(
                batch_size=batch_size,
                draft_length=draft_length,
                reason=draw(texts),
                fatal=draw(st.booleans()),
            )
            for batch_size, draft_length in sorted(excluded)
        ),
    )


@st.composite
def counts(draw: st.DrawFn, positions: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drafted and accepted per position, in any order: not all that is counted is plausible."""
    drafted = draw(st.lists(st.integers(0, 10_000), min_size=positions, max_size=positions))
    return tuple(drafted), tuple(draw(st.integers(0, count)) for count in drafted)


@st.composite
def acceptances(draw: st.DrawFn, positions: int = 5) -> documents.Acceptance:
    """Acceptance as it comes out of counts."""
    drafted, accepted = draw(counts(positions))
    return documents.Acceptance(
        survival=acceptance.survival(drafted, accepted),
        drafted=drafted,
        accepted=accepted,
        proposal_rate=draw(shares),
        prompts=draw(st.integers(0, 999)),
    )


@st.composite
def ranges(draw: st.DrawFn, lengths: tuple[int, ...], max_batch_size: int) -> documents.Table:
    """Tables that cover 1 to ``max_batch_size``."""
    by_size = draw(st.lists(st.sampled_from(lengths), min_size=max_batch_size, max_size=max_batch_size))
    return tables.from_lookup([0, *by_size])


@st.composite
def pinned_ranges(draw: st.DrawFn, lengths: tuple[int, ...], max_batch_size: int) -> documents.Table:
    """Up to two ranges that do not overlap; the second may reach beyond the table."""
    edges = sorted(draw(st.sets(st.integers(1, max_batch_size + 3), max_size=4)))
    pairs = zip(edges[::2], edges[1::2], strict=False)
    return tuple((first, last, draw(st.sampled_from(lengths))) for first, last in pairs)


@st.composite
def controls(draw: st.DrawFn, lengths: tuple[int, ...], max_batch_size: int) -> documents.Control:
    """Control sections that a table of ``lengths`` can follow."""
    allowed = draw(
        st.just(()) | st.sets(st.sampled_from(lengths), min_size=1).map(lambda s: tuple(sorted(s)))
    )
    return documents.Control(
        mode=draw(st.sampled_from(list(documents.Mode))),
        half_life=draw(st.floats(min_value=0.1, max_value=3_600)),
        prior_drafts=draw(st.floats(min_value=0, max_value=10_000)),
        hysteresis=draw(tolerances),
        exploration_share=draw(tolerances),
        min_drafts=draw(st.integers(0, 10_000)),
        allowed_lengths=allowed,
        pinned=draw(pinned_ranges(lengths, max_batch_size)),
        tie_tolerance=draw(tolerances),
        narrow_range=draw(shares),
        merge_tolerance=draw(tolerances),
    )


@st.composite
def goodputs(draw: st.DrawFn, lengths: tuple[int, ...], max_batch_size: int) -> NDArray[np.float64]:
    """Goodput from near ties to cliffs, with cells that have no price but for length 0."""
    seed = draw(st.integers(0, 2**32 - 1))
    noise = draw(st.sampled_from([0.0, 0.005, 0.02, 0.5]))
    gaps = draw(st.sampled_from([0.0, 0.2]))
    slope = draw(st.floats(min_value=-0.02, max_value=0.02))
    random = np.random.default_rng(seed)
    sizes = np.arange(1, max_batch_size + 1)
    rows = np.asarray(lengths)[:, np.newaxis]
    goodput: NDArray[np.float64] = 100.0 * sizes * np.exp(rows * (0.2 + slope * sizes))
    goodput *= np.exp(noise * random.standard_normal(goodput.shape))
    goodput[1:][random.random(goodput[1:].shape) < gaps] = np.nan
    return goodput


@st.composite
def whole_documents(draw: st.DrawFn) -> documents.Document:
    """Documents that were never computed: every part is random, and fits the others."""
    fingerprint = draw(fingerprints())
    profile = draw(profiles(max_batch_size=fingerprint.max_num_seqs))
    lengths = profile.draft_lengths
    columns = len(profile.batch_sizes)
    row = st.lists(positive, min_size=columns, max_size=columns).map(tuple)
    kind = draw(st.sampled_from(list(documents.RecommendationKind)))
    fixed = kind is documents.RecommendationKind.FIXED
    return documents.Document(
        generation=draw(st.integers(1, 2**53)),
        created_at=draw(st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC))),
        source=draw(st.sampled_from(list(documents.Source))),
        fingerprint=fingerprint,
        speculative_config=draw(
            st.dictionaries(texts, texts | st.booleans() | st.integers(0, 9), max_size=3)
        ),
        profile=profile,
        acceptance=draw(acceptances(lengths[-1])),
        table=draw(ranges(lengths, fingerprint.max_num_seqs)),
        recommendation=documents.Recommendation(
            kind=kind,
            draft_length=draw(st.sampled_from(lengths)) if fixed else None,
            predicted_gain=draw(st.floats(min_value=-1, max_value=10)),
            reason=draw(texts),
        ),
        control=draw(controls(lengths, fingerprint.max_num_seqs)),
        prediction=documents.Prediction(
            batch_sizes=profile.batch_sizes,
            table=draw(row),
            best=draw(row),
            best_length=tuple(draw(st.sampled_from(lengths)) for _ in range(columns)),
            fixed=draw(row),
            fixed_length=draw(st.sampled_from(lengths)),
            off=draw(row),
        ),
    )


def fingerprint(**changes: object) -> documents.Fingerprint:
    """The engine of :func:`example`, with some fields changed."""
    fields: dict[str, object] = {
        "gpu": "NVIDIA H200",
        "gpu_count": 1,
        "driver": "580.1",
        "vllm": "0.33.0",
        "torch": "2.11.0",
        "runner": "V2",
        "model": "org/model",
        "drafter_method": "eagle3",
        "drafter": "org/drafter",
        "dtype": "bfloat16",
        "max_num_seqs": 16,
        "max_num_batched_tokens": 8_192,
        "async_scheduling": True,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": (6, 12, 18, 24, 30, 36, 42, 48),
    }
    return documents.Fingerprint.model_validate(fields | changes)


def example(
    control: documents.Control | None = None, engine: documents.Fingerprint | None = None
) -> documents.Document:
    """A small computed document: lengths 0 to 2 at 1, 4 and 16 requests, one cell excluded."""
    profile = documents.Profile(
        batch_sizes=(1, 4, 16),
        draft_lengths=(0, 1, 2),
        measure=documents.Measure.GPU_SPAN,
        step_time_ms=((4.0, 4.2, 6.0), (4.4, 4.8, 9.0), (4.8, None, 14.0)),
        spread_ms=((0.1, 0.1, 0.2), (0.1, 0.1, 0.3), (0.1, None, 0.4)),
        samples=((30, 30, 30), (30, 30, 30), (30, 0, 30)),
        graph=((Graph.FULL,) * 3, (Graph.FULL,) * 3, (Graph.FULL, None, Graph.FULL)),
        context_length=512,
        excluded=(documents.ExcludedCell(batch_size=4, draft_length=2, reason="engine died"),),
    )
    measured = documents.Acceptance(
        survival=(0.8, 0.5), drafted=(9_000, 9_000), accepted=(7_200, 4_500), proposal_rate=1.0, prompts=160
    )
    return assembling.assemble(
        engine or fingerprint(),
        profile,
        measured,
        control or documents.Control(),
        CREATED_AT,
        prompt_tokens=256,
        output_tokens=256,
        speculative_config={"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 2},
    )
