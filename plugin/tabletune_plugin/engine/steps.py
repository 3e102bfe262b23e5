"""The tap on vLLM's scheduler: set the lookup, and see every step's result as plain numbers.

Both the profiler's sweep and the plugin's controller stand on it. It wraps one bound method of one
scheduler object, ``update_from_output``, which vLLM calls once per step with what was scheduled and
what the model returned. The wrapper runs on the engine's own thread between two steps, so it must be
quick (it loops over requests only in C) and must never raise: whatever goes wrong in TableTune is
logged once and the step goes on.

What a step costs depends on the tokens it verifies, which the lookup of the step *before* decided, and
on the drafting for the step after; both are in the record, so that steps around a change of length can
be told apart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tabletune.documents import Graph
from tabletune_plugin.engine import spans as gpu_spans

logger = logging.getLogger("tabletune")

SETTLE_STEPS = 2
"""Steps until both verifying and drafting follow a changed lookup."""
WARMUP_STEPS = 2
"""Steps after these in which caches and the memory allocator still follow it."""
DROPPED_STEPS = SETTLE_STEPS + WARMUP_STEPS
"""Steps after a change of length that are not timed, by the profiler and by the plugin."""
QUIET_ROW = 4
"""Pure steps in a row of which the third is timed: two before it, one after it."""

_GRAPHS = {"FULL": Graph.FULL, "PIECEWISE": Graph.PIECEWISE, "NONE": Graph.NONE}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, seen when its result arrived."""

    number: int
    """Counts the steps that ran the model, from 0."""
    result_at: float
    """When the result arrived, in seconds of ``time.perf_counter``."""
    interval_ms: float
    """Milliseconds since the previous result; NaN where the engine had been idle."""
    batch_size: int
    """Requests in the step."""
    drafted_tokens: int
    """Draft tokens verified in the step, all requests together."""
    prompt_tokens: int
    """Prompt tokens beyond one per request; 0 in a pure decode step."""
    new_requests: int
    """Requests whose first step this is."""
    next_draft_length: int
    """Length that the lookup gave for the drafts made in this step."""
    requests_drafted: int
    """Requests that had a draft verified."""
    drafted: Sequence[int]
    """Requests whose draft reached each position."""
    accepted: Sequence[int]
    """Requests whose guesses up to each position were all accepted."""
    graph: Graph | None
    """Kind of CUDA graph that the step ran as; ``None`` where the engine does not tell."""

    @property
    def kept_tokens(self) -> int:
        """Output tokens that the step yielded, all requests together, if none shared a prompt."""
        return self.batch_size + sum(self.accepted)


class Tap:
    """Holds on to one scheduler. Made by :func:`attach`; ``detach`` gives the scheduler back as it was."""

    def __init__(self, scheduler: Any, on_step: Callable[[Step], None]) -> None:
        self.on_step = on_step
        self.own_seconds = 0.0
        """Seconds that reading steps has taken on the engine's thread, ``on_step`` included."""
        self._scheduler = scheduler
        self._number = 0
        self._previous: float | None = None
        self._queued = False
        self._complained = False
        self._spans: gpu_spans.Spans | None = None
        self._executor: Any = None
        self._original_lookup = scheduler.dynamic_sd_lookup
        self._update_from_output = scheduler.update_from_output
        scheduler.update_from_output = self._on_update

    @property
    def lookup(self) -> list[int] | None:
        """The lookup in force: entry ``B`` is the length for ``B`` requests; ``None`` without a table."""
        lookup: list[int] | None = self._scheduler.dynamic_sd_lookup
        return lookup

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Put ``lookup`` in force from the next scheduled step on.

        It has ``max_num_seqs + 1`` entries, the first unused, as vLLM's own. vLLM replaces nothing in
        it, so the swap of one reference is atomic for the engine.
        """
        expected = len(self._original_lookup)
        if len(lookup) != expected:
            raise ValueError(f"a lookup of {len(lookup)} entries was given, {expected} are needed")
        self._scheduler.dynamic_sd_lookup = list(lookup)

    def record_spans(self, executor: Any) -> bool:
        """Have the workers of ``executor`` record GPU spans; no step may be in flight. Whether one does."""
        spans = gpu_spans.Spans.create()
        try:
            records = any(executor.collective_rpc(gpu_spans.attach_in_worker, args=(spans.name,)))
        except Exception:
            spans.close()
            raise
        finally:
            spans.unlink()
        if not records:
            spans.close()
            return False
        self._spans, self._executor = spans, executor
        self._number = 0
        return True

    def gpu_span_ms(self, number: int) -> float | None:
        """Return the span of step ``number`` in milliseconds; ``None`` while, or where, it is not known."""
        return self._spans.read(number) if self._spans is not None else None

    def span_seconds(self) -> float:
        """Return the seconds that recording spans has taken where the model runs; 0 where none are."""
        return self._spans.own_seconds() if self._spans is not None else 0.0

    def detach(self) -> None:
        """Give the scheduler its own method and lookup back, and the workers theirs."""
        self._scheduler.update_from_output = self._update_from_output
        self._scheduler.dynamic_sd_lookup = self._original_lookup
        if self._spans is not None:
            self._executor.collective_rpc(gpu_spans.detach_in_worker)
            self._spans.close()
            self._spans = None

    def _on_update(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        arrived = time.perf_counter()
        outputs = self._update_from_output(scheduler_output, model_runner_output)
        began = time.perf_counter()
        try:
            if scheduler_output.total_num_scheduled_tokens > 0:
                self.on_step(self._step(arrived, scheduler_output, model_runner_output, outputs))
        except Exception:
            # Serving comes first: the engine must never see an exception of ours.
            if not self._complained:
                self._complained = True
                logger.exception("TableTune could not read a step; serving goes on")
        self.own_seconds += time.perf_counter() - began
        return outputs

    def _step(self, arrived: float, scheduled: Any, returned: Any, outputs: Any) -> Step:
        number, previous = self._number, self._previous
        self._number += 1
        batch_size = len(scheduled.num_scheduled_tokens)
        # Only new requests, none of which had queued: the others ended or were aborted, and the time since
        # then is mostly waiting.
        if len(scheduled.scheduled_new_reqs) == batch_size and not self._queued:
            previous = None
        self._previous, self._queued = arrived, bool(self._scheduler.waiting)
        drafted_tokens = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        stats = _spec_decoding_stats(outputs)
        graph = getattr(returned, "cudagraph_stats", None)
        return Step(
            number=number,
            result_at=arrived,
            interval_ms=(arrived - previous) * 1e3 if previous is not None else float("nan"),
            batch_size=batch_size,
            drafted_tokens=drafted_tokens,
            prompt_tokens=scheduled.total_num_scheduled_tokens - batch_size - drafted_tokens,
            new_requests=len(scheduled.scheduled_new_reqs),
            next_draft_length=scheduled.num_spec_tokens_to_schedule,
            requests_drafted=stats.num_drafts if stats is not None else 0,
            drafted=stats.num_draft_tokens_per_pos if stats is not None else (),
            accepted=stats.num_accepted_tokens_per_pos if stats is not None else (),
            graph=_GRAPHS.get(graph.runtime_mode.rpartition(".")[2]) if graph is not None else None,
        )


def attach(scheduler: Any, on_step: Callable[[Step], None]) -> Tap:
    """Wrap ``scheduler`` (vLLM's ``Scheduler``) so that ``on_step`` sees each step; returns the tap.

    ``on_step`` runs on the engine's thread. Raises ``ValueError`` where the scheduler has no lookup
    (the engine was started without a table), which cannot be added later: no graphs were captured for it.
    """
    if scheduler.dynamic_sd_lookup is None:
        raise ValueError("the engine was started without num_speculative_tokens_per_batch_size")
    return Tap(scheduler, on_step)


def _spec_decoding_stats(outputs: Any) -> Any:
    """Return the step's ``SpecDecodingStats``: vLLM hands a step's statistics to one client only."""
    for output in outputs.values():
        if output.scheduler_stats is not None:
            return output.scheduler_stats.spec_decoding_stats
    return None
