"""Documents made from this project's own measurements on an H200 (`tests/data`, copied unchanged)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabletune import documents, graphs
from tabletune.documents import Graph

DATA = Path(__file__).parents[1] / "data"

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 500
"""Prompts of 256 tokens, outputs of 300 to 700, as the files say."""


def fingerprint(**changes: Any) -> documents.Fingerprint:
    """The engine of the live file: default capture sizes up to 1,024 tokens, 256 requests."""
    fields: dict[str, Any] = {
        "gpu": "NVIDIA H200",
        "gpu_count": 1,
        "driver": "",
        "vllm": "0.33.0",
        "torch": "2.11.0+cu130",
        "runner": "V2",
        "model": "Qwen3-4B architecture, random weights",
        "drafter_method": "eagle3",
        "drafter": "EAGLE-3 head for it, random weights",
        "dtype": "bfloat16",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "async_scheduling": True,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": graphs.default_capture_sizes(1024),
    }
    return documents.Fingerprint(**fields | changes)


def profile(
    batch_sizes: Sequence[int],
    draft_lengths: Sequence[int],
    times: Sequence[Sequence[float | None]],
    kinds: Sequence[Sequence[Graph | None]],
    mixed: Sequence[documents.MixedStep] = (),
) -> documents.Profile:
    """A profile of these times; cells without one are excluded."""
    counts = [[28] * len(batch_sizes)] * len(draft_lengths)
    excluded = [
        documents.ExcludedCell(batch_size=batch_size, draft_length=draft_length, reason="engine died")
        for row, draft_length in enumerate(draft_lengths)
        for column, batch_size in enumerate(batch_sizes)
        if times[row][column] is None
    ]
    return documents.Profile(
        batch_sizes=tuple(batch_sizes),
        draft_lengths=tuple(draft_lengths),
        measure=documents.Measure.QUIET_INTERVAL,
        step_time_ms=tuple(map(tuple, times)),
        spread_ms=tuple((0.1,) * len(batch_sizes) for _ in draft_lengths),
        samples=tuple(map(tuple, counts)),
        graph=tuple(map(tuple, kinds)),
        context_length=128,
        mixed=tuple(mixed),
        excluded=tuple(excluded),
    )


def live_profile(with_prompts: bool = True) -> documents.Profile:
    """The live file's profile, with its one gap cell: B=4, K=2 at 15.477 ms, among full graphs.

    The intervals before a mixed step (median of two windows) are its measure of what prompts add.
    """
    data = json.loads((DATA / "h200-qwen3-4b-eagle3-live.json").read_text())
    grid = data["profile"]
    kinds = [
        [Graph.PIECEWISE if (size, length) == (4, 2) else Graph.FULL for size in grid["batch_sizes"]]
        for length in grid["draft_lengths"]
    ]
    windows: dict[tuple[int, int], list[float]] = {}
    for row in data["live"]:
        windows.setdefault((row["open_requests"], row["draft_length"]), []).append(row["ms_before_mixed"])
    mixed = [
        documents.MixedStep(
            batch_size=batch_size,
            draft_length=draft_length,
            prompt_tokens=PROMPT_TOKENS,
            step_time_ms=statistics.median(times),
            samples=len(times),
        )
        for (batch_size, draft_length), times in windows.items()
    ]
    return profile(
        grid["batch_sizes"], grid["draft_lengths"], grid["step_time_ms"], kinds, mixed if with_prompts else []
    )


def steps_profile() -> documents.Profile:
    """The steps file: lengths 0 to 5, captured up to 512 tokens; above, steps had no graph.

    Its capture sizes were not written down. B=4, K=2 had a full graph (4.4 ms), which the default sizes
    do not give it, so the grid of kinds says what was measured.
    """
    data = json.loads((DATA / "h200-qwen3-4b-eagle3-steps.json").read_text())
    kinds = [
        [Graph.NONE if size * (length + 1) > 512 else Graph.FULL for size in data["batch_sizes"]]
        for length in data["draft_lengths"]
    ]
    return profile(data["batch_sizes"], data["draft_lengths"], data["step_time_ms"], kinds)


def steps_fingerprint() -> documents.Fingerprint:
    """The engine of the steps file."""
    return fingerprint(cudagraph_capture_sizes=graphs.default_capture_sizes(512))


def acceptance(survival: Sequence[float] = (0.76, 0.56, 0.42)) -> documents.Acceptance:
    """The acceptance that the measured engines were given."""
    return documents.Acceptance(
        survival=tuple(survival),
        drafted=(1000,) * len(survival),
        accepted=tuple(round(1000 * rate) for rate in survival),
        proposal_rate=1.0,
        prompts=160,
    )
