"""The time of each step on the GPU, measured where the model runs, read where the scheduler runs.

The interval between two results depends on the host, whose speed drifts; the span on the GPU does not
(ENGINE.md 4: choosing by median spans lost nothing against the best constant length). A span runs from
the start of a step's work on the engine's own stream to its end, drafting included, by two CUDA events.
Nothing waits for them: they are read at a later step, when they have completed by themselves.

With tensor parallelism the model runs in other processes than the scheduler; rank 0 then records, and
shared memory carries the numbers over. Steps are matched by counting: both sides count the steps that
run the model, from a moment when none is in flight.
"""

from __future__ import annotations

import math
import time
from collections import deque
from multiprocessing import shared_memory
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

CAPACITY = 4_096
"""Steps whose spans are kept; a reader that is later than this finds none."""

_RECORDER = "_tabletune_spans"


class Spans:
    """Milliseconds on the GPU of the last steps, in memory that several processes share.

    Slot ``n % CAPACITY`` holds ``(n, milliseconds)`` of step ``n``; the number tells a reader whether
    the slot is still, or already, that step's. One row more holds the seconds that recording itself took.
    """

    def __init__(self, memory: shared_memory.SharedMemory) -> None:
        self._memory = memory
        self._slots: npt.NDArray[np.float64] = np.ndarray((CAPACITY + 1, 2), np.float64, memory.buf)

    @classmethod
    def create(cls) -> Spans:
        """Return an empty table of spans in new shared memory."""
        spans = cls(shared_memory.SharedMemory(create=True, size=(CAPACITY + 1) * 16))
        spans._slots[:CAPACITY] = -1.0
        spans._slots[CAPACITY] = 0.0
        return spans

    @property
    def name(self) -> str:
        """Name by which another process opens the memory."""
        return self._memory.name

    def write(self, step: int, milliseconds: float) -> None:
        """Store the span of step number ``step``. The number goes last, so a reader never sees half."""
        slot = self._slots[step % CAPACITY]
        slot[0] = -1.0
        slot[1] = milliseconds
        slot[0] = step

    def read(self, step: int) -> float | None:
        """Return the span of step number ``step`` in milliseconds; ``None`` while it is not known."""
        slot = self._slots[step % CAPACITY]
        return float(slot[1]) if slot[0] == step else None

    def write_own_seconds(self, seconds: float) -> None:
        """Store the seconds that recording has taken so far."""
        self._slots[CAPACITY, 0] = seconds

    def own_seconds(self) -> float:
        """Return the seconds that recording has taken; 0 where another process left what is no time."""
        seconds = float(self._slots[CAPACITY, 0])
        return seconds if math.isfinite(seconds) and seconds > 0 else 0.0

    def close(self) -> None:
        """Let go of the memory."""
        del self._slots
        self._memory.close()

    def unlink(self) -> None:
        """Take its name away, once all who need it have it: however they end, nothing is left behind."""
        self._memory.unlink()


class _Event(Protocol):
    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any) -> float: ...


class _Recorder:
    """Wraps one model runner's two calls per step; lives on the runner that it wraps."""

    def __init__(self, runner: Any, spans: Spans) -> None:
        self._runner, self._spans = runner, spans
        self._step = 0
        self._own_seconds = 0.0
        self._start: _Event | None = None
        self._pending: deque[tuple[int, _Event, _Event]] = deque(maxlen=64)
        self._free: list[_Event] = []
        self._execute_model, self._sample_tokens = runner.execute_model, runner.sample_tokens
        runner.execute_model, runner.sample_tokens = self._on_execute_model, self._on_sample_tokens

    def _on_execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        self._collect()
        if scheduler_output.total_num_scheduled_tokens > 0:
            self._start = self._event()
            self._start.record()
        self._own_seconds += time.perf_counter() - began
        return self._execute_model(scheduler_output, *args, **kwargs)

    def _on_sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        output = self._sample_tokens(*args, **kwargs)
        began = time.perf_counter()
        if self._start is not None:
            end = self._event()
            end.record()
            self._pending.append((self._step, self._start, end))
            self._start = None
            self._step += 1
        self._own_seconds += time.perf_counter() - began
        self._spans.write_own_seconds(self._own_seconds)
        return output

    def _collect(self) -> None:
        while self._pending and self._pending[0][2].query():
            step, start, end = self._pending.popleft()
            self._spans.write(step, start.elapsed_time(end))
            self._free += (start, end)

    def _event(self) -> _Event:
        if self._free:
            return self._free.pop()
        import torch

        event: _Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return event

    def detach(self) -> None:
        self._runner.execute_model, self._runner.sample_tokens = self._execute_model, self._sample_tokens
        self._spans.close()


def attach_in_worker(worker: Any, name: str) -> bool:
    """Start recording in a worker process (``collective_rpc`` calls it there); only rank 0 does.

    Returns whether this worker records: ``False`` on other ranks and where there is no CUDA.
    """
    import torch

    runner = runner_of(worker)
    if getattr(worker, "rank", 0) != 0 or runner is None or not torch.cuda.is_available():
        return False
    setattr(runner, _RECORDER, _Recorder(runner, Spans(shared_memory.SharedMemory(name=name))))
    return True


def detach_in_worker(worker: Any) -> None:
    """Undo :func:`attach_in_worker`."""
    runner = runner_of(worker)
    recorder = getattr(runner, _RECORDER, None)
    if recorder is not None:
        recorder.detach()
        delattr(runner, _RECORDER)


def runner_of(worker: Any) -> Any:
    """Return the model runner of ``worker``, which may be vLLM's wrapper around the real worker."""
    return getattr(getattr(worker, "worker", worker), "model_runner", None)
