"""The profiler's end of the engine process: starts it, asks it, and notices when it dies or hangs.

An engine's death is an outcome like any other here (:class:`EngineLostError` with the engine's last
words), since sweeps have killed engines (ENGINE.md 3) and what was measured must survive it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tabletune_profiler import engine_process, messages

LAST_WORDS_LINES = 20
LAST_WORDS_BYTES = 16_384
SHUTDOWN_SECONDS = 15.0
"""Given to an engine to end by itself, when asked to."""
ENDING_SECONDS = 10.0
"""Waited for the exit code of a process whose pipe has closed."""


class EngineLostError(Exception):
    """The engine process died, hung or failed; ``last_words`` holds the last lines that it printed."""

    def __init__(self, what: str, last_words: str) -> None:
        self.what, self.last_words = what, last_words
        super().__init__(what)


class RefusedError(Exception):
    """The engine process cannot carry a command out, and trying again gives the same."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class EngineProcess:
    """One engine process. Use as a context manager: it is gone afterwards, whatever happened."""

    def __init__(
        self, log_path: Path, make_worker: engine_process.WorkerMaker = engine_process.EngineWorker
    ) -> None:
        """Start the process, in which what ``make_worker`` returns carries out the commands."""
        self._log_path = log_path
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=engine_process.main, args=(theirs, log_path, make_worker), name="tabletune-engine"
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id, which is also its process group's."""
        return self._process.pid or 0

    def ask(self, command: messages.Command, timeout: float) -> Iterator[messages.Message]:
        """Yield the answers to ``command``, without the closing one.

        ``timeout`` is in seconds and counts from message to message. Raises :class:`EngineLostError` or
        :class:`RefusedError`.
        """
        try:
            self._pipe.send(command)
            while True:
                if not self._pipe.poll(timeout):
                    self._kill()
                    raise self._lost(f"the engine hung: nothing heard for {timeout:g} s")
                message = self._pipe.recv()
                if isinstance(message, messages.Alive):
                    continue
                if isinstance(message, messages.Done):
                    return
                if isinstance(message, messages.Failed):
                    if message.kind == "internal":
                        raise self._lost(f"the engine failed: {message.message}")
                    raise RefusedError(message.kind, message.message)
                yield message
        except (EOFError, ConnectionResetError, BrokenPipeError) as error:
            self._process.join(ENDING_SECONDS)
            raise self._lost(f"the engine died: {_ending(self._process.exitcode)}") from error

    def close(self) -> None:
        """End the process: by asking, then by force."""
        try:
            with contextlib.suppress(OSError, BrokenPipeError):
                self._pipe.send(messages.Shutdown())
            self._process.join(SHUTDOWN_SECONDS)
        finally:  # also at a second Ctrl-C, from somebody who will not wait for that
            self._kill()
            self._pipe.close()

    def _kill(self) -> None:
        """End the process and its workers. Asking it first would wait for what hangs."""
        # Its own group exists once it has run its first lines (before that there are no workers), and for as
        # long as any worker lives, also where the engine itself has died.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(ENDING_SECONDS)

    def _lost(self, what: str) -> EngineLostError:
        return EngineLostError(what, last_words(self._log_path))


def last_words(log_path: Path) -> str:
    """Return the last lines of an engine's log, where its reason to die is; empty where there is none."""
    try:
        with log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LAST_WORDS_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(lines[-LAST_WORDS_LINES:])


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "its pipe closed"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = " (the kernel's memory limit, or somebody's kill)" if name == "SIGKILL" else ""
        return f"by {name}{hint}"
    return f"with exit code {exit_code}"
