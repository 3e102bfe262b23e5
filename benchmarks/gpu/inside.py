"""What the benchmark does inside the engine core's process, between two steps.

A plugin of the benchmark's own (`engines.declare`) makes these functions callable from the loading process;
they run on the engine's thread. They see the objects that TableTune's plugin made there: its tap records
every step, and through it a rival's control can steer the engine in the plugin's place.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from control import controllers

from tabletune import documents, tables
from tabletune_plugin import metrics
from tabletune_plugin.engine import hooking, spans
from tabletune_plugin.engine.driving import DrivenEngine
from tabletune_plugin.engine.steps import Step, Tap
from tabletune_plugin.runtime import Runtime
from tabletune_profiler.sweeping import StepLog, Sweep

FIELDS = (
    "result_at", "interval_ms", "span_ms", "batch_size", "drafted_tokens", "prompt_tokens", "new_requests",
    "next_draft_length", "accepted_tokens", "graph",
)  # fmt: skip
"""Columns of the step log; NaN where a number is not known, graphs by their place in ``GRAPHS``."""
GRAPHS = ("", "full", "piecewise", "none")
SPAN_LAG = 16
"""Steps after which a step's GPU span has come, or never does."""


class Recorder:
    """Keeps every step as a row of numbers, and lets a rival steer while one is chosen."""

    def __init__(self, tap: Tap) -> None:
        self.tap, self.plugin = tap, tap.on_step
        self.rows: list[list[float]] = []
        self.late: deque[tuple[int, list[float]]] = deque()
        self.rivals: dict[str, Rival] = {}
        self.rival: Rival | None = None
        self.held: list[int] | None = None
        """The plugin's lookup while another is held; it sees no steps then."""
        self.own_seconds = 0.0
        """Seconds on the engine's thread that are the benchmark's and not the plugin's."""
        tap.on_step = self.on_step

    def on_step(self, step: Step) -> None:
        """Take in one step after the plugin has."""
        if self.held is None:
            self.plugin(step)
        began = time.perf_counter()
        self._keep(step)
        self.own_seconds += time.perf_counter() - began

    def _keep(self, step: Step) -> None:
        if self.rival is not None:
            self.rival.on_step(step)
        row = [
            step.result_at, step.interval_ms, float("nan"), step.batch_size, step.drafted_tokens,
            step.prompt_tokens, step.new_requests, step.next_draft_length, sum(step.accepted),
            GRAPHS.index(step.graph or ""),
        ]  # fmt: skip
        self.rows.append(row)
        self.late.append((step.number, row))
        if len(self.late) > SPAN_LAG:
            number, late = self.late.popleft()
            span = self.tap.gpu_span_ms(number)
            late[2] = float("nan") if span is None else span


class Rival:
    """Drives a control of ``benchmarks/control/controllers.py`` from real steps."""

    def __init__(self, control: controllers.Lookup, tap: Tap, every_step: bool) -> None:
        self.control, self.tap, self.every_step = control, tap, every_step
        self.last_second = 0.0
        lookup = tap.lookup
        assert lookup is not None
        self.lookup = list(lookup)
        self.buckets: dict[int, list[int]] = {}
        if every_step:
            for size in range(1, len(self.lookup)):
                self.buckets.setdefault(controllers.Nightjar.bucket(size), []).append(size)

    def on_step(self, step: Step) -> None:
        """Show the step to the control and put what it chooses in force."""
        size = step.batch_size
        length, rest = divmod(step.drafted_tokens, size)
        pure = step.prompt_tokens == 0 and rest == 0 and step.interval_ms == step.interval_ms
        if pure:
            self.control.see(size, length, step.kept_tokens, step.interval_ms, True)
        if self.every_step:
            chosen = self.control.length(size, step.interval_ms)
            for member in self.buckets[controllers.Nightjar.bucket(size)]:
                self.lookup[member] = chosen
            self.tap.set_lookup(self.lookup)
        elif step.result_at - self.last_second >= 1:
            self.last_second = step.result_at
            self.control.second(None, step.result_at)  # type: ignore[arg-type]
            self.tap.set_lookup(self.control.lookup)


_recorder: Recorder | None = None


def register() -> None:
    """Let a client call the functions below: vLLM calls this where it loads plugins, in each process.

    A client's ``call_utility`` runs a method of the engine core, between two steps.
    """
    from vllm.v1.engine.core import EngineCore

    def benchmark(core: Any, name: str, arguments: Sequence[Any]) -> Any:
        return FUNCTIONS[name](core, *arguments)

    setattr(EngineCore, "benchmark", benchmark)  # noqa: B010


def record(core: Any) -> int:
    """Begin to record steps; returns the process id of the engine core."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(_tap(core))
    return os.getpid()


def keep(_core: Any, path: str) -> int:
    """Write all steps recorded so far to ``path``; returns their number."""
    rows = _recording().rows
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(FIELDS)).T
    kept = {
        name: column.astype(np.float32 if name.endswith("_ms") else np.int32)
        for name, column in zip(FIELDS[1:], columns[1:], strict=True)
    }
    np.savez_compressed(Path(path), allow_pickle=False, result_at=columns[0], **kept)
    return len(rows)


def following(core: Any) -> int:
    """Return the generation that the plugin has in force; 0 while there is none."""
    document = _runtime(core).report.document
    return 0 if document is None else document.generation


def report(core: Any) -> dict[str, Any]:
    """Return what the plugin says of itself."""
    runtime = _runtime(core)
    told = runtime.report
    return {
        "active": told.active,
        "reason": told.reason,
        "comparable": told.comparable,
        "corrections": told.corrections,
        "failures": told.failures,
        "explorations": runtime.snapshot().explorations,
        "lookup": list(told.lookup),
    }


def own_seconds(core: Any) -> dict[str, float]:
    """Return the seconds that the plugin has counted as its own, by part, without the benchmark's."""
    found = dict(_runtime(core).snapshot().own_seconds)
    found[metrics.SCHEDULER] -= _recording().own_seconds
    return found


def steer(_core: Any, name: str, document: bytes) -> None:
    """Let a rival steer from now on (``turbo``, ``nightjar``), or none (the empty name).

    A rival keeps what it has learnt while others have their turn; :func:`forget` takes it away.
    """
    recorder = _recording()
    recorder.rival = None
    if not name:
        return
    if name not in recorder.rivals:
        parsed, last = documents.parse(document), len(recorder.tap.lookup or ()) - 1
        control = (
            controllers.Turbo(parsed, last)
            if name == "turbo"
            else controllers.Nightjar(parsed.profile.draft_lengths, seed=1)
        )
        recorder.rivals[name] = Rival(control, recorder.tap, every_step=name == "nightjar")
    recorder.rival = recorder.rivals[name]


def forget(_core: Any) -> None:
    """Have rivals begin anew, knowing nothing."""
    recorder = _recording()
    recorder.rivals.clear()
    recorder.rival = None


def unlearn(core: Any) -> None:
    """Have the plugin's control begin its next document as in a server that has just started."""
    controller = _runtime(core)._controller
    if controller is None:
        raise RuntimeError("the plugin controls nothing in this engine")
    controller._state = None


def hold(_core: Any, table: list[documents.Range]) -> None:
    """Serve with ``table``, of which the plugin learns nothing, or with the plugin's again (an empty one)."""
    recorder = _recording()
    in_force = recorder.tap.lookup
    assert in_force is not None
    if table:
        recorder.held = recorder.held or in_force
        recorder.tap.set_lookup(tables.lookup(table, len(in_force) - 1))
    elif recorder.held is not None:
        recorder.tap.set_lookup(recorder.held)
        recorder.held = None


def accept(core: Any, rates: list[float]) -> None:
    """Have synthetic rejection sampling accept with these unconditional rates from now on."""
    core.model_executor.collective_rpc(_accept_in_worker, args=(rates,))


def bypass(core: Any, part: str) -> None:
    """Take a part of the plugin out of the engine's path, or nothing (the empty name).

    ``spans``: no GPU spans are recorded. ``plugin``: nothing runs there, its lookup aside; steps are not
    recorded then either. Whatever is out, steps are counted on both sides, so that spans stay with theirs.
    """
    tap = _recording().tap
    if part == "plugin":
        core.scheduler.update_from_output = functools.partial(_count_update, tap)
        # The next interval would be as long as the plugin was out.
        tap._previous = None
    else:
        core.scheduler.update_from_output = tap._on_update
    core.model_executor.collective_rpc(_bypass_in_worker, args=(part != "",))


def measures_spans(core: Any) -> bool:
    """Return whether steps have GPU spans."""
    return _tap(core)._spans is not None


def sweep(core: Any, command: bytes, uniform_drafts: bool, vocabulary: int) -> bytes:
    """Carry out a command of the profiler's (``messages``, pickled) and return the answers, pickled.

    The engine must have no requests. Neither the plugin nor the step log sees the steps.
    """
    tap = _tap(core)
    log = StepLog()
    recorded, lookup = tap.on_step, tap.lookup
    assert lookup is not None
    driven = DrivenEngine(core, tap, measures_gpu_span=measures_spans(core))
    measuring = Sweep(driven, log, uniform_drafts=uniform_drafts, vocabulary=vocabulary)
    tap.on_step = log
    try:
        # From the loading process, which started this one.
        return pickle.dumps(list(measuring.carry_out(pickle.loads(command))))  # noqa: S301
    finally:
        tap.on_step = recorded
        tap.set_lookup(lookup)


def quiet(_core: Any) -> None:
    """Collect garbage once, and set aside what lives, so that no collection falls into a window."""
    gc.collect()
    gc.freeze()


FUNCTIONS = {
    function.__name__: function
    for function in (
        record, keep, following, report, own_seconds, steer, forget, unlearn, hold, accept, bypass,
        measures_spans, sweep, quiet,
    )
}  # fmt: skip


def _accept_in_worker(worker: Any, rates: list[float]) -> None:
    import torch
    from vllm.v1.spec_decode.utils import unconditional_to_conditional_rates

    held = spans.runner_of(worker).rejection_sampler.synthetic_conditional_rates
    if held is None:
        raise RuntimeError("the engine was not started with rejection_sample_method=synthetic")
    # In place: kernels, and graphs if they hold any, have its address.
    held.copy_(torch.tensor(unconditional_to_conditional_rates(rates), dtype=held.dtype))


def _count_update(tap: Tap, scheduled: Any, returned: Any) -> Any:
    """Do what vLLM does with a step's result, and count the step as the tap would."""
    outputs = tap._update_from_output(scheduled, returned)
    if scheduled.total_num_scheduled_tokens > 0:
        tap._number += 1
    return outputs


def _bypass_in_worker(worker: Any, without: bool) -> None:
    runner = spans.runner_of(worker)
    recorder = getattr(runner, spans._RECORDER, None)
    if recorder is None:
        return
    if without:
        counting = _Counting(recorder)
        runner.execute_model, runner.sample_tokens = counting.execute_model, counting.sample_tokens
    else:
        runner.execute_model = recorder._on_execute_model
        runner.sample_tokens = recorder._on_sample_tokens


class _Counting:
    """In a recorder's place: counts the steps that run the model, and records nothing."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._runs = False

    def execute_model(self, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
        self._runs = scheduler_output.total_num_scheduled_tokens > 0
        return self._recorder._execute_model(scheduler_output, *arguments, **named)

    def sample_tokens(self, *arguments: Any, **named: Any) -> Any:
        output = self._recorder._sample_tokens(*arguments, **named)
        self._recorder._step += self._runs
        self._runs = False
        return output


def _recording() -> Recorder:
    if _recorder is None:
        raise RuntimeError("nothing is recorded yet: call record first")
    return _recorder


def _tap(core: Any) -> Tap:
    tap = getattr(core.scheduler.update_from_output, "__self__", None)
    if not isinstance(tap, Tap):
        raise TypeError("the plugin is not in this engine: is TABLETUNE_TABLE set, and is it installed?")
    return tap


def _runtime(core: Any) -> Runtime:
    hook = getattr(core.scheduler, hooking._RUNTIME)
    runtime: Runtime = getattr(hook, "_runtime", hook)
    return runtime
