"""What the simulated engines are: truths from measured grids, wrong profiles of them, and traffic.

Acceptances are those of the measured engine (EAGLE-3 shape) and three more to switch to: boilerplate, which
the drafter guesses well, prose, which it guesses badly, and what it does not guess at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from control.engine import Machine

from tabletune import assembling, costs, documents, graphs
from tabletune.documents import Document, Profile

RESULTS = Path(__file__).parents[1] / "results"
DOCUMENTS = {
    "h200-default": RESULTS / "gpu" / "h200-qwen3-4b-eagle3-default.json",
    "h200-512": RESULTS / "gpu" / "h200-qwen3-4b-eagle3-advised.json",
    "h200-advised": RESULTS / "off-h200-eagle3-document.json",
    "cpu-ngram": RESULTS / "profile-ngram-document.json",
    "cpu-draft-model": RESULTS / "profile-draft_model-document.json",
}
"""vLLM's default capture sizes; aligned ones up to 512 tokens; aligned ones up to 1,280, as advised now; and
the CPU's engines."""
PROMPT_TOKENS = 256
GRAPH_MS = np.array([0.0, 11.7, 28.2])
"""What steps take more by kind of graph (full, piecewise, none), as the default sizes' document says."""
PROMPT_MS = {"h200": 1.0, "cpu-ngram": 170.0, "cpu-draft-model": 330.0}
"""What a prompt takes besides: on the H200 what is left of the 11 to 13 ms of ENGINE.md 1, on the CPU, which
has no graphs, the documents' prompts of 256 tokens."""

CODE = (0.76, 0.56, 0.42)
PROSE = (0.35, 0.12, 0.04)
BOILERPLATE = (0.93, 0.87, 0.81)
HOPELESS = (0.03, 0.0, 0.0)


def document(name: str) -> Document:
    """Return a measured document with the table of today's computation, its control in mode adapt."""
    found = documents.parse(DOCUMENTS[name].read_bytes())
    control = found.control.model_copy(update={"mode": documents.Mode.ADAPT})
    return _assembled(found.model_copy(update={"control": control}), found.profile, found.acceptance)


def machine(name: str) -> Machine:
    """Return the engine whose true times are the document's.

    A step with a prompt runs the graph that it finds, one request of it being the prompt's: it costs more
    than a pure step what its graph does, and what the prompt takes besides.
    """
    found = document(name)
    model = costs.CostModel.from_profile(found.profile, found.fingerprint)
    sizes = np.arange(1, found.max_batch_size + 1)
    lengths = found.profile.draft_lengths
    pure, mixed = (
        np.array([graphs.dispatch_batches(model.settings, decoding, own, tokens).kinds for own in lengths])
        for decoding, tokens in ((sizes, 0), (sizes - 1, PROMPT_TOKENS))
    )
    own = next(added for engine, added in PROMPT_MS.items() if name.startswith(engine))
    prompts = np.maximum(0.0, GRAPH_MS[mixed] - GRAPH_MS[pure]) + own
    spans = found.profile.measure is documents.Measure.GPU_SPAN
    return Machine(lengths, model.step_times(found.max_batch_size), prompts, PROMPT_TOKENS, spans=spans)


def with_profile(found: Document, profile: Profile) -> Document:
    """Return the document that would have been assembled from ``profile``."""
    return _assembled(found, profile, found.acceptance)


def with_survival(found: Document, survival: tuple[float, ...], rate: float = 1.0) -> Document:
    """Return the document that would have been assembled from another acceptance."""
    drafted = found.acceptance.drafted
    acceptance = documents.Acceptance(
        survival=survival,
        drafted=drafted,
        accepted=tuple(round(share * count) for share, count in zip(survival, drafted, strict=True)),
        proposal_rate=rate,
        prompts=found.acceptance.prompts,
    )
    return _assembled(found, found.profile, acceptance)


def _assembled(found: Document, profile: Profile, acceptance: documents.Acceptance) -> Document:
    return assembling.assemble(
        found.fingerprint,
        profile,
        acceptance,
        found.control,
        datetime(2026, 11, 30, tzinfo=UTC),
        found.engine.prompt_tokens,
        found.engine.output_tokens,
    )


def changed(profile: Profile, change: Callable[[int, int, float], float]) -> Profile:
    """Return the profile with each time through ``change(draft length, batch size, ms)``."""
    return profile.model_copy(
        update={
            "step_time_ms": tuple(
                tuple(
                    None if time is None else max(change(length, size, time), 0.05)
                    for size, time in zip(profile.batch_sizes, row, strict=True)
                )
                for length, row in zip(profile.draft_lengths, profile.step_time_ms, strict=True)
            )
        }
    )


def wrong_row(profile: Profile, length: int, factor: float) -> Profile:
    """Return the profile with all times of one draft length wrong."""
    return changed(profile, lambda k, _, time: time * factor if k == length else time)


def wrong_column(profile: Profile, batch_size: int, factor: float) -> Profile:
    """Return the profile with all times of one batch size wrong."""
    return changed(profile, lambda _, size, time: time * factor if size == batch_size else time)


def wrong_cell(profile: Profile, length: int, batch_size: int, factor: float) -> Profile:
    """Return the profile with one cell wrong."""
    return changed(
        profile, lambda k, size, time: time * factor if (k, size) == (length, batch_size) else time
    )


def scaled(profile: Profile, factor: float) -> Profile:
    """Return the profile with all times wrong by a factor."""
    return changed(profile, lambda _k, _b, time: time * factor)


def shifted(profile: Profile, milliseconds: float) -> Profile:
    """Return the profile with all times wrong by a constant per step."""
    return changed(profile, lambda _k, _b, time: time + milliseconds)


def noisy(profile: Profile, spread: float, seed: int) -> Profile:
    """Return the profile with every cell wrong by a factor of its own, as between two engines."""
    factors = np.exp(spread * np.random.default_rng([seed, 5]).standard_normal((65, 513)))
    columns = {size: column for column, size in enumerate(profile.batch_sizes)}
    return changed(profile, lambda k, size, time: time * float(factors[k, columns[size]]))
