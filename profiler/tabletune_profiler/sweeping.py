"""The measuring itself: drives the engine and yields what its steps took. Runs in the engine process.

Rules for the steps that count:

- exactly B requests decode, none of them on its first step, and no prompt shares the step;
- the lookup gave this length two steps ago or longer, so that both the tokens verified and the tokens
  drafted are this length's;
- the first steps of a visit are dropped: caches and the memory allocator still follow the change;
- a step next to one that shared a prompt is dropped: with asynchronous scheduling the prompt's host
  time shows in the interval before it (ENGINE.md 1).

Lengths change inside the running batch and all requests are aborted at the end, because batches that
drain have killed engines (ENGINE.md 3).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tabletune_plugin.engine.driving import DrivenEngine
from tabletune_plugin.engine.steps import DROPPED_STEPS, QUIET_ROW, SETTLE_STEPS, Step
from tabletune_profiler import messages, planning

MOST_VERIFY_TIMES = 10.0
"""A verification takes at most so many times the seconds of pure steps that it is after."""
VERIFY_BLOCKS = 10
"""Blocks that a verification's steps are cut into, to tell how sure their mean is."""


ALIVE_SECONDS = 1.0
"""Seconds between signs of life."""


class CannotFillBatchError(Exception):
    """The engine never ran as many requests at once as the cell needs."""


class OutOfTimeError(Exception):
    """The requests of a batch did not all decode within the time for it."""


class StepLog:
    """The steps since it was last emptied; the tap appends to it, and a sign of life follows from it."""

    def __init__(self, alive: Callable[[], None] = lambda: None) -> None:
        self.steps: list[Step] = []
        self._alive = alive
        self._told_at = 0.0

    def __call__(self, step: Step) -> None:
        """Take a step in; called by the tap."""
        self.steps.append(step)
        if step.result_at - self._told_at >= ALIVE_SECONDS:
            self._told_at = step.result_at
            self._alive()


class Sweep:
    """Measurements on one running engine."""

    def __init__(self, engine: DrivenEngine, log: StepLog, *, uniform_drafts: bool, vocabulary: int) -> None:
        self._engine, self._log = engine, log
        self._uniform_drafts = uniform_drafts
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(0)
        self._added = 0

    def carry_out(self, command: messages.Command) -> Iterator[messages.Message]:
        """Yield the answers to a command that measures."""
        match command:
            case messages.TimeCells():
                yield from self.time_cells(command)
            case messages.TimePrompts():
                yield self.time_prompts(command)
            case messages.CountAcceptance():
                yield from self.count_acceptance(command)
            case messages.MeasureGoodput():
                if (measured := self.measure_goodput(command)) is not None:
                    yield measured
            case _:
                raise TypeError(f"{type(command).__name__} measures nothing")

    def time_cells(self, command: messages.TimeCells) -> Iterator[messages.Message]:
        """Yield a :class:`~messages.CellTimed` per visit of ``command``, or why a cell has none.

        Speculation off is timed in the middle, where a steady drift of the engine's speed gives it the mean
        of what it gives the visits before and after.
        """
        batch_size, length = command.batch_size, command.visits[0]
        yield messages.CellStarted(batch_size, length)
        try:
            self._engine.set_draft_length(length)
            self._fill(batch_size, command.prompts, time.monotonic() + command.seconds)
            unreachable: set[int] = set()
            for done, length in enumerate(command.visits):
                if command.off_steps and done == len(command.visits) // 2:
                    yield from self._visit_off(command, length)
                if length in unreachable:
                    continue
                yield messages.CellStarted(batch_size, length)
                try:
                    samples = self._visit(batch_size, length, command.steps, command.prompts)
                except CannotFillBatchError as error:
                    # Longer drafts need more of the KV cache and of the token budget; others may fit.
                    unreachable.add(length)
                    yield messages.CellUnreachable(batch_size, length, str(error))
                    continue
                yield messages.CellTimed(batch_size, length, samples, _seconds(samples))
        except CannotFillBatchError as error:
            for length in dict.fromkeys(command.visits):
                yield messages.CellUnreachable(batch_size, length, str(error))
        except OutOfTimeError:
            yield messages.OutOfTime(batch_size)
        finally:
            self._engine.abort_all()

    def time_prompts(self, command: messages.TimePrompts) -> messages.PromptsTimed:
        """Return what prompts of ``command.prompt_tokens`` tokens added to a batch that decodes.

        A prompt's cost is the time of all steps from the one before it to the one after it, less as many
        ordinary steps: with asynchronous scheduling part of it shows before the prompt's own step, and a
        long prompt takes several.
        """
        added: list[float] = []
        try:
            self._engine.set_draft_length(command.draft_length)
            self._fill(command.batch_size, command.prompts)
            for _ in range(command.repeats):
                added.append(self._prompt_cost(command))
        except CannotFillBatchError:
            pass  # what was timed so far counts; no reason to end the engine
        finally:
            self._engine.abort_all()
        return messages.PromptsTimed(tuple(added))

    def count_acceptance(self, command: messages.CountAcceptance) -> Iterator[messages.Message]:
        """Complete all prompts and yield the counts; requests end by themselves here, as in serving."""
        engine, log = self._engine, self._log
        engine.set_draft_length(command.draft_length)
        waiting = list(reversed(list(zip(command.prompts, command.max_tokens, strict=True))))
        drafted = np.zeros(command.draft_length, np.int64)
        accepted = np.zeros(command.draft_length, np.int64)
        requests_drafted = requests_decoded = 0
        try:
            while waiting or engine.busy:
                while waiting and engine.unfinished < command.concurrency:
                    prompt, max_tokens = waiting.pop()
                    engine.add(prompt, max_tokens, ignore_eos=False)
                log.steps.clear()
                engine.step()
                for step in log.steps:
                    requests_decoded += step.batch_size - step.new_requests
                    requests_drafted += step.requests_drafted
                    if step.drafted:
                        drafted += np.asarray(step.drafted[: command.draft_length])
                        accepted += np.asarray(step.accepted[: command.draft_length])
                done = len(command.prompts) - len(waiting) - engine.unfinished
                yield messages.AcceptanceProgress(done, len(command.prompts))
        finally:
            engine.abort_all()
        yield messages.AcceptanceCounted(
            tuple(drafted.tolist()), tuple(accepted.tolist()), requests_drafted, requests_decoded
        )

    def measure_goodput(self, command: messages.MeasureGoodput) -> messages.GoodputMeasured | None:
        """Serve the prompts over and over with a constant number open, and count what pure steps keep.

        Requests end by themselves and the next takes their place, as in serving. Steps that share a prompt
        are left out, since a prediction is for pure steps; with asynchronous scheduling also those next to
        them, where the prompt's host time shows. ``None`` where hardly any step is left: a large batch of
        short requests always has a prompt in it.
        """
        engine, log = self._engine, self._log
        engine.set_draft_length(command.draft_length)
        prompts = itertools.cycle(command.prompts)
        # Of so many pure steps in a row the one to count has two before it and one after it.
        row = QUIET_ROW if engine.asynchronous else 1
        kept: list[tuple[float, int]] = []
        measured = 0.0
        log.steps.clear()
        deadline = time.monotonic() + MOST_VERIFY_TIMES * command.seconds
        added = 0
        try:
            while measured < command.seconds or added - engine.unfinished < command.complete:
                if time.monotonic() > deadline and not command.complete:
                    break
                for _ in range(command.batch_size - engine.unfinished):
                    engine.add(next(prompts), command.max_tokens, ignore_eos=False)
                    added += 1
                seen = len(log.steps)
                engine.step()
                near = log.steps[-row:]
                pure = all(_is_pure(step, command.batch_size) for step in near)
                if pure and len(near) == row and len(log.steps) > seen:
                    step = near[row // 2]
                    kept.append((step.interval_ms, step.kept_tokens))
                    measured += step.interval_ms / 1e3
        finally:
            engine.abort_all()
        if len(kept) < VERIFY_BLOCKS:
            return None
        blocks = np.array_split(np.array(kept), VERIFY_BLOCKS)
        return messages.GoodputMeasured(
            kept_tokens=sum(tokens for _, tokens in kept),
            step_ms=1e3 * measured / len(kept),
            steps=len(kept),
            block_goodput=tuple(float(1e3 * block[:, 1].sum() / block[:, 0].sum()) for block in blocks),
        )

    def _fill(self, batch_size: int, prompts: Sequence[Sequence[int]], deadline: float = math.inf) -> None:
        """Add requests until ``batch_size`` of them decode together."""
        self._log.steps.clear()
        self._top_up(batch_size, prompts)
        # Prefills take as many steps as the token budget makes of them; what is waited for comes on top.
        waited, prefill_tokens = 0, batch_size * max(map(len, prompts))
        while waited < 50 + 4 * batch_size:
            seen = len(self._log.steps)
            self._engine.step()
            if self._log.steps and _is_pure(self._log.steps[-1], batch_size):
                return
            self._require_no_preemption(batch_size)
            if time.monotonic() > deadline:
                raise OutOfTimeError
            prefilled = sum(step.prompt_tokens for step in self._log.steps[seen:])
            prefill_tokens -= prefilled
            waited += prefilled == 0 or prefill_tokens < 0
        seen = max((step.batch_size for step in self._log.steps), default=0)
        raise CannotFillBatchError(
            f"at most {seen} of {batch_size} requests ran together: the KV cache or the step's token budget"
            " (max_num_batched_tokens) does not hold them"
        )

    def _require_no_preemption(self, batch_size: int, before: int = 0) -> None:
        """Raise where requests were preempted: they come back, others go, and the batch is never whole.

        Waiting for it took a minute for each length, with steps of 45 ms and 192 requests.
        """
        if self._engine.preemptions > before:
            raise CannotFillBatchError(
                f"requests were preempted: the KV cache does not hold {batch_size} with the tokens that they"
                " have by then"
            )

    def _top_up(self, batch_size: int, prompts: Sequence[Sequence[int]]) -> None:
        for _ in range(batch_size - self._engine.unfinished):
            self._added += 1
            prompt = prompts[self._added % len(prompts)]
            self._engine.add(prompt, planning.SPARE_TOKENS, ignore_eos=True)

    def _visit_off(self, command: messages.TimeCells, following: int) -> Iterator[messages.Message]:
        """Yield the steps of the batch without the drafter's pass, where it can be left out.

        It is left out before the first step of length 0 and taken in after the last: a batch size at which
        the drafter's pass may kill the engine (``hazards``) can be timed without it.
        """
        engine = self._engine
        if not engine.skip_drafter(True):
            return
        yield messages.OffStarted(command.batch_size)
        try:
            with contextlib.suppress(CannotFillBatchError):  # then length 0 stands in
                samples = self._visit(command.batch_size, 0, command.off_steps, command.prompts)
                yield messages.OffTimed(command.batch_size, samples, _seconds(samples))
            engine.set_draft_length(following)
            for _ in range(SETTLE_STEPS):
                engine.step()
        finally:
            engine.skip_drafter(False)

    def _visit(
        self, batch_size: int, length: int, most: int, prompts: Sequence[Sequence[int]]
    ) -> tuple[messages.Sample, ...]:
        """Return ``most`` steps that count, all of ``batch_size`` requests at draft length ``length``."""
        engine, log = self._engine, self._log
        engine.set_draft_length(length)
        log.steps.clear()
        counted: list[Step] = []
        before = engine.preemptions
        for _ in range(most * 3 + 50 + 4 * batch_size):
            engine.step()
            if log.steps and log.steps[-1].batch_size < batch_size:
                self._require_no_preemption(batch_size, before)
            self._top_up(batch_size, prompts)
            # Looked at only once there can be enough: what happens between two steps is in their interval.
            if len(self._log.steps) >= most + DROPPED_STEPS:
                counted = self._steps_that_count(batch_size, length)
                if len(counted) >= most:
                    break
        else:
            raise CannotFillBatchError(
                f"only {len(counted)} of {most} steps ran with {batch_size} requests decoding at"
                f" draft length {length}: the length was not used, or other requests took their places"
            )
        return tuple(
            messages.Sample(step.interval_ms, span, step.drafted_tokens, step.graph)
            for step, span in zip(counted, self._spans(counted), strict=True)
        )

    def _steps_that_count(self, batch_size: int, length: int) -> list[Step]:
        steps = self._log.steps
        last = len(steps) - 1
        return [
            step
            for index, step in enumerate(steps)
            if index >= DROPPED_STEPS
            and all(_is_pure(near, batch_size) for near in steps[index - 2 : min(index + 1, last) + 1])
            and all(near.next_draft_length == length for near in steps[index - 2 : index + 1])
            and (not self._uniform_drafts or step.drafted_tokens == batch_size * length)
            and not math.isnan(step.interval_ms)
        ]

    def _spans(self, counted: Sequence[Step]) -> list[float | None]:
        """Return the GPU spans of ``counted``; the last are known only a few steps later."""
        if not self._engine.measures_gpu_span:
            return [None] * len(counted)
        for _ in range(3):
            self._engine.step()
        return [self._engine.tap.gpu_span_ms(step.number) for step in counted]

    def _prompt_cost(self, command: messages.TimePrompts) -> float:
        engine, log = self._engine, self._log
        log.steps.clear()
        ordinary_before = 6
        for _ in range(ordinary_before):
            engine.step()
        # Random tokens: a prompt that the prefix cache knows would cost nothing.
        prompt = self._random.integers(
            min(100, self._vocabulary - 1), self._vocabulary, command.prompt_tokens
        )
        engine.add([int(token) for token in prompt], 1, ignore_eos=True)
        joined: int | None = None
        for _ in range(50 + command.prompt_tokens):
            engine.step()
            self._top_up_to_decode(command)
            mixed = [index for index, step in enumerate(log.steps) if step.prompt_tokens or step.new_requests]
            if mixed and len(log.steps) >= mixed[-1] + 4:
                joined = mixed[0]
                break
        if joined is None:
            raise CannotFillBatchError(
                f"a prompt of {command.prompt_tokens} tokens did not join {command.batch_size} requests"
            )
        ordinary = statistics.median(step.interval_ms for step in log.steps[2 : joined - 1])
        around = log.steps[joined - 1 :]
        return sum(step.interval_ms for step in around) - ordinary * len(around)

    def _top_up_to_decode(self, command: messages.TimePrompts) -> None:
        """Replace batch members that reached the model's length, and never the prompt itself."""
        if self._engine.unfinished < command.batch_size:
            self._top_up(command.batch_size, command.prompts)


def _seconds(samples: Sequence[messages.Sample]) -> float:
    return sum(sample.interval_ms for sample in samples) / 1e3


def _is_pure(step: Step, batch_size: int) -> bool:
    return step.batch_size == batch_size and step.prompt_tokens == 0 and step.new_requests == 0
