"""Takes a profile of the engine that is to be served, by the product's own profiler.

A Job of the operator's has an engine to itself and starts it. Here the profiler asks the one that runs
already, between two comparisons: it takes less than a minute instead of four, and the profile is of the
very engine, host and hour that it is compared with.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpu import inside
from gpu.engines import Engine

from tabletune.documents import Control
from tabletune_profiler import engine_process, messages, profiling, progress, prompts
from tabletune_profiler.planning import Options
from tabletune_profiler.profiling import Outcome


class Served:
    """In the place of the profiler's engine process: what needs the engine is done in the one that serves."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._worker = engine_process.EngineWorker(lambda _: None)
        self._facts: messages.Configured | None = None

    def ask(self, command: messages.Command, timeout: float) -> Iterator[messages.Message]:  # noqa: ARG002
        """Yield the answers to ``command``. An engine that dies or fails raises vLLM's own error: there is
        no other to go on with."""
        match command:
            case messages.Configure():
                (answer,) = self._worker.carry_out(command)
                assert isinstance(answer, messages.Configured)
                self._facts = answer
                yield answer
            case messages.Tokenize():
                yield from self._worker.carry_out(command)
            case messages.Start():
                spans = self._engine.call(inside.measures_spans)
                yield messages.Started(self._engine.seconds_start, spans)
            case _:
                assert self._facts is not None
                known = self._facts.uniform_drafts, self._facts.vocabulary
                answers = self._engine.call(inside.sweep, pickle.dumps(command), *known)
                yield from pickle.loads(answers)  # noqa: S301

    def close(self) -> None:
        """The engine goes on serving."""


def take(engine: Engine, serve: Sequence[str], options: Options, output: Path) -> Outcome:
    """Return the profile of ``engine``, which was started with ``serve`` and has no requests.

    What was measured is kept beside ``output`` while it is taken, as ``tabletune profile`` does.
    """
    request = profiling.Request(tuple(serve), prompts.bundled(), options, Control(), output)
    with progress.JsonLines(sys.stdout) as reporter:
        return profiling.take(request, reporter, lambda: datetime.now(UTC), lambda _: Served(engine))
