"""From what a profile measured to the numbers of its document. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from tabletune import acceptance
from tabletune.documents import Acceptance, ExcludedCell, Graph, Measure, MixedStep, Profile
from tabletune_profiler import cells, messages, partials
from tabletune_profiler.planning import Plan
from tabletune_profiler.states import State


def timed_cells(state: State, configured: messages.Configured) -> dict[tuple[int, int], cells.Cell]:
    """Return the numbers of every cell that has samples, by (batch size, draft length)."""
    timed = {
        key: partials.samples(record)
        for key, record in state.cells.items()
        if record.samples and not record.excluded
    }
    measure = _measure(timed)
    found: dict[tuple[int, int], cells.Cell] = {}
    for (batch_size, length), samples in sorted(timed.items(), key=lambda item: item[0][1]):
        if configured.uniform_drafts or length == 0 or state.acceptance is None:
            cell = cells.summarise(samples, measure)
        else:
            record = state.acceptance
            per_request = sum(record.drafted[:length]) / max(1, record.requests_decoded)
            off = found.get((batch_size, 0))
            cell = cells.summarise_varying(
                samples, measure, batch_size * per_request, off.step_time_ms if off else None
            )
        if cell is not None:
            found[batch_size, length] = cell
    return found


def _measure(timed: Mapping[tuple[int, int], Sequence[messages.Sample]]) -> Measure:
    return cells.measure_of([sample for samples in timed.values() for sample in samples])


def profile(plan: Plan, state: State, configured: messages.Configured) -> Profile:
    """Return the grids of ``state`` in the order of ``plan``."""
    found = timed_cells(state, configured)
    measure = _measure({key: partials.samples(record) for key, record in state.cells.items()})
    without_graphs = configured.fingerprint.cudagraph_mode == "NONE"

    def grid(value: Callable[[cells.Cell], object], missing: object) -> tuple[tuple[object, ...], ...]:
        return tuple(
            tuple(
                value(found[batch_size, length]) if (batch_size, length) in found else missing
                for batch_size in plan.batch_sizes
            )
            for length in plan.draft_lengths
        )

    return Profile.model_validate(
        {
            "batchSizes": plan.batch_sizes,
            "draftLengths": plan.draft_lengths,
            "measure": measure,
            "stepTimeMs": grid(lambda cell: round(cell.step_time_ms, 4), None),
            "intervalMs": grid(lambda cell: round(cell.interval_ms, 4), None)
            if measure is Measure.GPU_SPAN
            else (),
            "offMs": _off(plan, state, measure),
            "spreadMs": grid(lambda cell: round(cell.spread_ms, 4), None),
            "samples": grid(lambda cell: cell.samples, 0),
            "graph": grid(lambda cell: Graph.NONE if without_graphs else cell.graph, None),
            "contextLength": plan.context_length,
            "mixed": tuple(_mixed_steps(state, found)),
            "excluded": tuple(
                ExcludedCell(
                    batch_size=batch_size,
                    draft_length=length,
                    reason=state.cells[batch_size, length].excluded or "none of its steps has a GPU span",
                    fatal=state.cells[batch_size, length].fatal,
                )
                for length in plan.draft_lengths
                for batch_size in plan.batch_sizes
                if (batch_size, length) not in found
            ),
        }
    )


def _off(plan: Plan, state: State, measure: Measure) -> tuple[float | None, ...]:
    """Return the step time with speculation off at each batch size; nothing where none was timed."""
    timed = {
        batch_size: cells.summarise(partials.samples(record), measure)
        for batch_size, record in state.off.items()
    }
    if not any(timed.values()):
        return ()
    return tuple(
        round(cell.step_time_ms, 4) if (cell := timed.get(batch_size)) is not None else None
        for batch_size in plan.batch_sizes
    )


def _mixed_steps(state: State, found: dict[tuple[int, int], cells.Cell]) -> Iterator[MixedStep]:
    for cell, record in state.mixed.items():
        pure = found.get((cell.batch_size, cell.draft_length))
        if pure is None or not record.added_ms:
            continue
        # A prompt that the noise makes free still takes the pure step's time.
        added = max(0.0, statistics.median(record.added_ms))
        yield MixedStep(
            batch_size=cell.batch_size,
            draft_length=cell.draft_length,
            prompt_tokens=cell.prompt_tokens,
            step_time_ms=round(pure.step_time_ms + added, 4),
            samples=len(record.added_ms),
        )


def counted_acceptance(
    record: partials.AcceptanceRecord, prompts: int, *, uniform_drafts: bool
) -> Acceptance:
    """Return the document's acceptance.

    A draft that the drafter itself cut short was not accepted beyond its end, so all positions are over
    the same drafts: the longest length was in force throughout (``acceptance.survival`` says why).
    """
    drafted = (record.requests_drafted,) * len(record.accepted)
    # A drafter that is a model drafts in every step but a request's first, which belongs to its prompt.
    rate = 1.0 if uniform_drafts else record.requests_drafted / max(1, record.requests_decoded)
    return Acceptance(
        survival=acceptance.survival(drafted, record.accepted),
        drafted=drafted,
        accepted=record.accepted,
        proposal_rate=min(1.0, rate),
        prompts=prompts,
    )
