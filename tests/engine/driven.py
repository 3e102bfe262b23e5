"""What ``test_driving`` has done in the engine's own process.

An engine core in the process of the tests would stay there: its threads, its pinned processor cores and
a gigabyte. So one process holds the engine, and the tests send it these functions. They return plain
values and vLLM's numbers as they are.
"""

from __future__ import annotations

import logging.handlers
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabletune_plugin.engine import arguments, steps
from tabletune_plugin.engine.driving import DrivenEngine
from tabletune_plugin.engine.steps import Step
from tests.engine import profiles

LENGTHS = (0, 1, 2, 3)
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'

_engine: DrivenEngine
_config: Any
_steps: list[Step] = []


def start(model: Path) -> None:
    """Start the engine; runs once, first."""
    global _engine, _config
    os.environ.update(profiles.environment(), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    # float32: in bfloat16 a step that verifies three tokens may round otherwise than three steps of one, so
    # that another token wins.
    serve = (str(model), *profiles.SERVE, profiles.EAGER, "--dtype", "float32")
    _config = arguments.vllm_config(arguments.parse([*serve, "--speculative-config", NGRAM]), LENGTHS)
    _engine = DrivenEngine.start(_config, _steps.append)


def tables() -> tuple[list[list[int]], list[int]]:
    """Return the table that the engine was configured with, and the lookup that its scheduler has."""
    lookup = _engine.tap.lookup
    assert lookup is not None
    return [list(entry) for entry in _config.speculative_config.num_speculative_tokens_per_batch_size], lookup


def decode(prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[list[Step], list[list[int]]]:
    """Decode all prompts together with one step per entry of ``lengths``, the draft length set before it.

    Returns the steps, and the token ids of each request's output.
    """
    _steps.clear()
    ids = [_engine.add(prompt, 400, ignore_eos=True) for prompt in prompts]
    for length in lengths:
        _engine.set_draft_length(length)
        _engine.step()
    # A request's id in the scheduler is the given one with a suffix of vLLM's own, or without.
    requests = _engine._scheduler.requests
    outputs = [list(requests[request].output_token_ids) for request in ids]
    _engine.abort_all()
    return list(_steps), outputs


def decode_while_requests_end(
    prompts: Sequence[Sequence[int]], outputs: Sequence[int], lookup: Sequence[int]
) -> list[Step]:
    """Decode all prompts with ``lookup`` in force, each for its own number of tokens; return the steps."""
    _steps.clear()
    _engine.tap.set_lookup(lookup)
    for prompt, tokens in zip(prompts, outputs, strict=True):
        _engine.add(prompt, tokens, ignore_eos=True)
    while _engine.busy:
        _engine.step()
    return list(_steps)


def decode_in_turn(prompt: Sequence[int], together: int) -> list[Step]:
    """Complete one request more than run together, all of the same length; return the steps."""
    _steps.clear()
    _engine.set_draft_length(0)
    for _ in range(together + 1):
        _engine.add(prompt, 3, ignore_eos=True)
    while _engine.busy:
        _engine.step()
    return list(_steps)


def fail_on_every_step(prompt: Sequence[int], count: int) -> tuple[int, int]:
    """Decode while the tap's listener raises: return output tokens, and how often that was logged."""

    def fail(step: Step) -> None:
        raise RuntimeError(f"listener failed at step {step.number}")

    handler = logging.handlers.BufferingHandler(1_000)
    steps.logger.addHandler(handler)
    _engine.tap.on_step = fail
    try:
        _, (output,) = decode([prompt], [0] * count)
    finally:
        _engine.tap.on_step = _steps.append
        steps.logger.removeHandler(handler)
    return len(output), len(handler.buffer)


def abort(prompts: Sequence[Sequence[int]]) -> tuple[int, int, bool, float]:
    """Abort requests that run and wait: return how many there were before and after, and what they left.

    The last two are whether the engine is still busy, and the share of its KV cache that is in use.
    """
    for prompt in prompts:
        _engine.add(prompt, 400, ignore_eos=True)
    for _ in range(3):
        _engine.step()
    before = _engine.unfinished
    _engine.abort_all()
    return before, _engine.unfinished, _engine.busy, _engine._scheduler.kv_cache_manager.usage


def refuse_lookup(entries: int) -> str:
    """Set a lookup of the wrong length; return the complaint."""
    try:
        _engine.tap.set_lookup([0] * entries)
    except ValueError as error:
        return str(error)
    return ""


def attach_and_detach() -> bool:
    """Put a second tap on the scheduler and take it off: return whether it is as before."""
    scheduler = _engine._scheduler
    before = scheduler.update_from_output, scheduler.dynamic_sd_lookup
    tap = steps.attach(scheduler, lambda step: None)
    tap.set_lookup([1] * len(before[1]))
    tap.detach()
    return (scheduler.update_from_output, scheduler.dynamic_sd_lookup) == before


def shut_down() -> None:
    """Give everything back."""
    _engine.shutdown()
