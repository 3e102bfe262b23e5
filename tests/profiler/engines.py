"""Engines for the profiler's tests: a configuration, and a process that answers from a script.

The script stands in for ``supervising.EngineProcess`` where a test needs faults at places of its choice,
which a real engine does not produce on demand. Its numbers depend on the cell alone, so that two runs
measure the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabletune.documents import Control
from tabletune_profiler import messages
from tabletune_profiler.messages import Configured, Sample
from tabletune_profiler.planning import MixedCell, Options
from tabletune_profiler.profiling import Request
from tabletune_profiler.prompts import Prompt
from tabletune_profiler.supervising import EngineLostError
from tests.core import strategies

Place = tuple[int, int] | MixedCell | str
"""Where something happens: a cell (batch size, draft length), a mixed cell, or a command by its name."""

DEATH = EngineLostError("the engine died: by SIGSEGV", "CUDA error: an illegal memory access")

COUNTED = messages.AcceptanceCounted((600, 600), (480, 300), requests_drafted=600, requests_decoded=640)
"""Survival 0.8 and 0.5; a proposal rate of 600/640 where that is counted."""


def configured(**changes: Any) -> Configured:
    """An engine on the CPU with a draft model; changes are fields of it or of its fingerprint."""
    fingerprint: dict[str, Any] = {
        "gpu": "a processor",
        "gpu_count": 0,
        "driver": "",
        "runner": "V1",
        "drafter_method": "draft_model",
        "max_num_seqs": 8,
        "cudagraph_mode": "NONE",
        "cudagraph_capture_sizes": (),
    }
    fields: dict[str, Any] = {
        "speculative_config": {"method": "draft_model", "num_speculative_tokens": 2},
        "draft_lengths": (0, 1, 2),
        "max_model_len": 1_024,
        "vocabulary": 49_152,
        "obstacles": (),
        "had_table": False,
        "uniform_drafts": True,
    }
    fields |= {name: value for name, value in changes.items() if name in fields}
    fingerprint |= {name: value for name, value in changes.items() if name not in fields}
    return Configured(fingerprint=strategies.fingerprint(**fingerprint), **fields)


def sample(interval_ms: float, drafted_tokens: int = 0, gpu_span_ms: float | None = None) -> Sample:
    """One step without a CUDA graph's kind."""
    return Sample(interval_ms, gpu_span_ms, drafted_tokens, None)


def request(folder: Path, **changes: Any) -> Request:
    """A small profile: batch sizes 1, 2 and 4, no mixed steps; changes are fields of it or options."""
    options: dict[str, Any] = {"batch_sizes": (1, 2, 4), "mixed": False, "steps": 4, "repeats": 0}
    options |= {name: value for name, value in changes.items() if name in Options.__dataclass_fields__}
    fields = {name: value for name, value in changes.items() if name not in options}
    given: dict[str, Any] = {
        "arguments": ("model",),
        "prompts": (Prompt(prompt="One"), Prompt(prompt="Two")),
        "control": Control(),
        "output": folder / "table.json",
    }
    return Request(options=Options(**options), **given | fields)


class Reports:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, int]] = []
        self.advances: list[tuple[str, int]] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def phase(self, name: str, total: int, done: int = 0) -> None:
        self.phases.append((name, total, done))

    def advance(self, done: int, **about: int) -> None:
        self.advances.append((self.phases[-1][0], done))

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def __enter__(self) -> Reports:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def step_ms(batch_size: int, draft_length: int) -> float:
    """What a step of the scripted engine takes: 10 ms, 1 ms per request and 2 ms per draft length."""
    return 10.0 + batch_size + 2.0 * draft_length


def steady(batch_size: int, draft_length: int, steps: int) -> tuple[Sample, ...]:
    """Steps that differ by a thousandth."""
    time = step_ms(batch_size, draft_length)
    return tuple(sample(time * (1 + index / 1e4), batch_size * draft_length) for index in range(steps))


@dataclass
class ScriptedEngine:
    """Answers every command at once. Lives as long as the test, its processes shorter."""

    configured: Configured = field(default_factory=configured)
    faults: dict[Place, list[BaseException]] = field(default_factory=dict)
    """What is raised at each place, one after the other; afterwards it works."""
    unreachable: set[tuple[int, int]] = field(default_factory=set)
    """Cells whose batch the engine never fills."""
    never_full: set[int] = field(default_factory=set)
    """Batch sizes that take longer to fill than there is time for."""
    samples: Callable[[int, int, int], tuple[Sample, ...]] = steady
    counted: messages.AcceptanceCounted = COUNTED
    added_ms: tuple[float, ...] = (3.0, 5.0, 4.0)
    off_ms: float | None = 1.0
    """What a step of length 0 takes less without the drafter's pass; None where that cannot be left out."""
    tokens: tuple[int, ...] = tuple(range(500, 520))
    """Token ids of every prompt; empty for an engine without a tokenizer."""

    asked: list[messages.Command] = field(default_factory=list)
    visits: list[tuple[int, int]] = field(default_factory=list)
    """Cells timed, in their order."""
    off_timed: list[int] = field(default_factory=list)
    """Batch sizes timed with speculation off, in their order."""
    reported: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Samples that the profiler was given, by cell."""
    processes: list[ScriptedProcess] = field(default_factory=list)

    def start_process(self, _log_path: Path) -> ScriptedProcess:
        """Stands in for the class ``EngineProcess``."""
        self.processes.append(ScriptedProcess(self))
        return self.processes[-1]

    def asked_for(self, kind: type) -> list[Any]:
        return [command for command in self.asked if isinstance(command, kind)]

    def dies(self, place: Place, times: int = 1) -> None:
        self.faults.setdefault(place, []).extend([DEATH] * times)


class ScriptedProcess:
    """One life of a scripted engine."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._configured = self._started = False
        self.closed = self.lost = False

    def ask(self, command: messages.Command, timeout: float) -> Iterator[messages.Message]:
        assert not self.closed
        assert not self.lost
        assert timeout > 0
        self._engine.asked.append(command)
        engine = self._engine
        match command:
            case messages.Configure():
                self._pass("configure")
                self._configured = True
                yield engine.configured
            case messages.Start():
                assert self._configured
                self._pass("start")
                self._started = True
                yield messages.Started(2.0, measures_gpu_span=False)
            case messages.Tokenize(prompts):
                assert self._configured
                self._pass("tokenize")
                yield messages.Tokenized((engine.tokens,) * len(prompts))
            case messages.CountAcceptance():
                assert self._started
                yield messages.AcceptanceProgress(1, 2)
                self._pass("acceptance")
                yield engine.counted
            case messages.TimeCells():
                assert self._started
                yield from self._time_cells(command)
            case messages.TimePrompts(batch_size, draft_length, prompt_tokens):
                assert self._started
                self._pass(MixedCell(batch_size, draft_length, prompt_tokens))
                yield messages.PromptsTimed(engine.added_ms)
            case messages.MeasureGoodput(batch_size, draft_length):
                assert self._started
                self._pass(f"verify {batch_size} {draft_length}")
                # As fast as the cells were timed, and every guess accepted: a tenth above the prediction of
                # (1 + 0.8 + 0.5) tokens a step for length 2, and so on.
                kept = 1.1 * batch_size * (1.0, 1.8, 2.3)[draft_length]
                goodput = 1e3 * kept / step_ms(batch_size, draft_length)
                blocks = (0.99 * goodput, 1.01 * goodput)
                yield messages.GoodputMeasured(
                    round(1_000 * kept), step_ms(batch_size, draft_length), 1_000, blocks
                )
            case messages.Shutdown():
                raise AssertionError("the profiler ends a process by closing it")

    def close(self) -> None:
        self.closed = True

    def _pass(self, place: Place) -> None:
        if self._engine.faults.get(place):
            fault = self._engine.faults[place].pop(0)
            self.lost = isinstance(fault, EngineLostError)
            raise fault

    def _time_cells(self, command: messages.TimeCells) -> Iterator[messages.Message]:
        engine, batch_size = self._engine, command.batch_size
        if batch_size in engine.never_full:
            yield messages.CellStarted(batch_size, command.visits[0])
            yield messages.OutOfTime(batch_size)
            return
        for index, length in enumerate(command.visits):
            cell = (batch_size, length)
            if command.off_steps and index == len(command.visits) // 2 and engine.off_ms is not None:
                yield messages.OffStarted(batch_size)
                self._pass(f"off {batch_size}")
                time = step_ms(batch_size, 0) - engine.off_ms
                engine.off_timed.append(batch_size)
                yield messages.OffTimed(batch_size, (sample(time, 0),) * command.off_steps, 0.0)
                self._pass(f"after off {batch_size}")
            yield messages.CellStarted(*cell)
            if cell in engine.unreachable:
                for missing in dict.fromkeys(command.visits[index:]):
                    yield messages.CellUnreachable(batch_size, missing, "at most 3 requests ran together")
                return
            self._pass(cell)
            found = engine.samples(batch_size, length, command.steps)
            engine.visits.append(cell)
            engine.reported[cell] += len(found)
            yield messages.CellTimed(*cell, found, sum(sample.interval_ms for sample in found) / 1e3)
