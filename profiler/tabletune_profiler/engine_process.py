"""The engine's process: carries out commands from a pipe, one after the other, until told to stop.

Started by ``supervising``. Whatever vLLM prints goes to a log file, whose last lines tell why an engine
died. The process ends with its parent, so that a killed profiler leaves no GPU occupied.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tabletune_profiler import messages

_PR_SET_PDEATHSIG = 1


class Worker(Protocol):
    """Carries out commands in the engine's process."""

    def carry_out(self, command: messages.Command) -> Iterator[messages.Message]:
        """Yield the answers to ``command``, without the closing one."""

    def shutdown(self) -> None:
        """Give back what the engine holds."""


WorkerMaker = Callable[[Callable[[messages.Message], None]], Worker]
"""Makes a worker of a function that tells the profiler something at any time."""


def main(pipe: Connection, log_path: Path, make_worker: WorkerMaker) -> None:
    """Serve ``pipe`` until it closes; the target of the spawned process."""
    _become_engine_process(log_path)
    worker = make_worker(pipe.send)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while not isinstance(command := pipe.recv(), messages.Shutdown):
            for message in _answers(worker, command):
                pipe.send(message)
    worker.shutdown()


def _become_engine_process(log_path: Path) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    # A group of its own: Ctrl-C is for the profiler, which then ends this process in order.
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The engine core must live here, where the tap is, without the plugin following a table in the engine
    # that one is measured on, and nothing may be told behind our back.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.pop("TABLETUNE_TABLE", None)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def _answers(worker: Worker, command: messages.Command) -> Iterator[messages.Message]:
    from tabletune_plugin.engine.arguments import ArgumentsError
    from tabletune_plugin.engine.driving import EngineStartError
    from tabletune_plugin.engine.versions import UnsupportedEngineError

    try:
        yield from worker.carry_out(command)
        yield messages.Done()
    except ArgumentsError as error:
        yield messages.Failed("arguments", str(error))
    except UnsupportedEngineError as error:
        yield messages.Failed("unsupported", str(error))
    except EngineStartError as error:
        traceback.print_exc()
        yield messages.Failed("start", str(error))
    except (BrokenPipeError, EOFError):
        raise
    except Exception as error:
        # An engine that raised is not to be trusted with the next cell: the parent restarts the process.
        traceback.print_exc()
        # The first line says it; CUDA's errors go on with general advice.
        first_line = str(error).partition("\n")[0]
        yield messages.Failed("internal", f"{type(error).__name__}: {first_line}")


class EngineWorker:
    """What the process holds between commands: the configuration, then the engine."""

    def __init__(self, tell: Callable[[messages.Message], None]) -> None:
        self._tell = tell
        self._config: Any = None
        self._facts: messages.Configured | None = None
        self._engine: Any = None
        self._sweep: Any = None

    def carry_out(self, command: messages.Command) -> Iterator[messages.Message]:
        """Yield the answers to ``command``."""
        match command:
            case messages.Configure():
                yield self._configure(command)
            case messages.Start():
                yield self._start()
            case messages.Tokenize():
                yield self._tokenize(command)
            case messages.Shutdown():
                pass
            case _:
                yield from self._sweep.carry_out(command)

    def shutdown(self) -> None:
        """End the engine, if one was started."""
        if self._engine is not None:
            self._engine.shutdown()

    def _configure(self, command: messages.Configure) -> messages.Configured:
        from tabletune_plugin.engine import arguments, facts, versions

        versions.require_supported(versions.installed())
        versions.require_hooks()
        parsed = arguments.parse(command.arguments)
        # 0 is always among them: speculation off is what every gain is measured against.
        lengths = tuple(sorted({0, *(command.draft_lengths or range(parsed.longest_draft + 1))}))
        if max(lengths) > parsed.longest_draft:
            raise arguments.ArgumentsError(
                f"draft length {max(lengths)} is above num_speculative_tokens {parsed.longest_draft} of"
                " --speculative-config. Raise that, or profile shorter lengths."
            )
        self._config = arguments.vllm_config(parsed, lengths)
        self._facts = messages.Configured(
            fingerprint=facts.fingerprint(self._config),
            speculative_config=parsed.speculative_config,
            draft_lengths=lengths,
            max_model_len=self._config.model_config.max_model_len,
            vocabulary=self._config.model_config.get_vocab_size(),
            obstacles=facts.obstacles(self._config),
            had_table=parsed.had_table,
            uniform_drafts=facts.drafts_are_uniform(self._config),
        )
        return self._facts

    def _start(self) -> messages.Started:
        from tabletune_plugin.engine.driving import DrivenEngine
        from tabletune_profiler.sweeping import StepLog, Sweep

        assert self._facts is not None
        began = time.perf_counter()
        log = StepLog(lambda: self._tell(messages.Alive()))
        self._engine = DrivenEngine.start(self._config, log)
        self._sweep = Sweep(
            self._engine,
            log,
            uniform_drafts=self._facts.uniform_drafts,
            vocabulary=self._facts.vocabulary,
        )
        return messages.Started(time.perf_counter() - began, self._engine.measures_gpu_span)

    def _tokenize(self, command: messages.Tokenize) -> messages.Tokenized:
        from tabletune_plugin.engine import driving
        from tabletune_profiler import prompts

        tokenizer = driving.tokenizer(self._config)
        if tokenizer is None:
            # The user serves token ids (skip_tokenizer_init); only prompts of that kind can be used.
            return messages.Tokenized(tuple(tuple(p.prompt_token_ids or ()) for p in command.prompts))
        return messages.Tokenized(
            tuple(tuple(prompts.as_token_ids(prompt, tokenizer)) for prompt in command.prompts)
        )
