"""Which steps verify what was drafted, and what these cost: the table is priced by them.

A length is looked up by the requests of one step, and its drafts are verified in the *next* one. That one may
have another batch size, since requests end and begin, and it may be shared with a prompt. Both decide which
CUDA graph it finds (`ENGINE.md` 1 and 2): three drafts for each of 64 requests find none where the next step
has 63 of them, or a prompt of 256 tokens besides. A table that prices a length by steps of its own batch size
alone chose three drafts for 128 requests on an H200, which keep 29% less than one draft does where 512 tokens
are captured (`docs/concepts/method.md`).

A document knows how long prompts and outputs are said to be, so it can tell how many steps a prompt joins
(:func:`expected_goodput`). The plugin sees which steps follow which (:class:`Following`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tabletune.acceptance import Rates, expected_tokens_of
from tabletune.costs import CostModel, Floats

REACH = 8
"""Most by which the batch size of the next step is told apart; a larger change counts as this one."""

EXPECTED_STEPS = 16.0
"""Seen steps after which what was seen weighs as much as what the prompts' and outputs' lengths tell."""

HALF_LIFE = 600.0
"""Seconds after which a seen step counts half. Long, so that a batch size which has not come lately keeps
what is known of it, and the table its length; what has changed since shows as soon as it comes again."""

HALF_STEPS = 500.0
"""Steps of the same batch size after which a seen step counts half: how many requests are open changes within
seconds, and so does what follows."""

LEAST_SHARE = 0.25
"""Least of a pure step's time that a step with a prompt is taken for."""

LEAST_GOODPUT = 1e-6
"""Least share of the best goodput that a length is told to have."""

MOST_COUNT = 1e9
"""Most steps of a kind that are counted, whatever a window says."""


@dataclass(frozen=True, eq=False)
class Following:
    """How often a step of each batch size was followed by which, faded.

    Arrays have shape ``(max_batch_size, 2 · REACH + 1)``: row ``b - 1`` for steps of ``b`` requests, column
    ``REACH + d`` for next steps of ``b + d``.
    """

    pure: Floats
    """Next steps without a prompt."""
    mixed: Floats
    """Next steps that a prompt shares."""
    prompts: Floats
    """Steps that a prompt shares by how many prompt tokens they have, one entry per bound of
    :func:`prompt_bounds`."""

    @classmethod
    def none(cls, max_batch_size: int, bounds: int) -> Self:
        """Return that nothing was seen."""
        shape = (max_batch_size, 2 * REACH + 1)
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(bounds))

    def added(self, new: Following, seconds: float) -> Following:
        """Return what is left after ``seconds``, and ``new``; each batch size fades by what is new of it."""
        elapsed = seconds / HALF_LIFE
        rows = 0.5 ** (elapsed + (new.pure + new.mixed).sum(axis=1, keepdims=True) / HALF_STEPS)
        prompts = 0.5 ** (elapsed + new.prompts.sum() / HALF_STEPS)
        return Following(
            self.pure * rows + new.pure, self.mixed * rows + new.mixed, self.prompts * prompts + new.prompts
        )


@dataclass(frozen=True)
class NextSteps:
    """Steps seen in a window that have the same batch size, step before and prompt."""

    before: int
    """Requests of the step before, in which their drafts were made."""
    batch_size: int
    """Their own requests."""
    prompt_tokens: int
    """Prompt tokens that they computed, as :func:`rounded_up`; 0 without a prompt."""
    count: int
    """How many."""


def prompt_bounds(largest_capture_size: int) -> tuple[int, ...]:
    """Return the numbers of prompt tokens that are told apart: powers of two and the middles between them.

    The last is the first beyond the largest capture size: with more, a step finds no other graph.

    >>> prompt_bounds(8)
    (1, 2, 3, 4, 6, 8, 12)
    """
    bounds = sorted({size for power in range(31) for size in (2**power, 3 * 2**power // 2)})
    last = next(index for index, bound in enumerate(bounds) if bound > largest_capture_size)
    return tuple(bounds[: last + 1])


def rounded_up(prompt_tokens: int) -> int:
    """Return the least bound that holds ``prompt_tokens``, from 1; quick, for the engine's thread.

    >>> rounded_up(1), rounded_up(256), rounded_up(257), rounded_up(385)
    (1, 256, 384, 512)
    """
    power = 1 << (prompt_tokens - 1).bit_length()
    middle = 3 * power // 4
    return middle if middle >= prompt_tokens else power


def place(bounds: tuple[int, ...], prompt_tokens: int) -> int:
    """Return the index of the bound that holds ``prompt_tokens``: the last one holds all beyond, too."""
    return min(bisect_left(bounds, prompt_tokens), len(bounds) - 1)


def observe(
    following: Following, steps: Iterable[NextSteps], bounds: tuple[int, ...], seconds: float
) -> Following:
    """Return ``following`` after a window of ``seconds`` with ``steps``; what is impossible is left out."""
    found = Following.none(len(following.pure), len(bounds))
    size = len(found.pure)
    for step in steps:
        if not (1 <= step.before <= size and 1 <= step.batch_size <= size and step.count > 0):
            continue
        count = min(float(step.count), MOST_COUNT)
        column = REACH + min(max(step.batch_size - step.before, -REACH), REACH)
        if step.prompt_tokens > 0:
            found.mixed[step.before - 1, column] += count
            found.prompts[place(bounds, step.prompt_tokens)] += count
        else:
            found.pure[step.before - 1, column] += count
    return following.added(found, seconds)


@dataclass(frozen=True)
class Requests:
    """What requests are said to be like."""

    prompt_tokens: int
    """Prompt tokens in a step that computes a prompt or a part of one."""
    tokens_per_prompt_step: float
    """Output tokens for each such step."""

    @classmethod
    def of(cls, prompt_tokens: int, output_tokens: int, max_num_batched_tokens: int) -> Self:
        """Return requests of prompts that vLLM cuts to steps of at most ``max_num_batched_tokens``.

        >>> Requests.of(5000, 300, 2048)
        Requests(prompt_tokens=1667, tokens_per_prompt_step=100.0)
        """
        steps = -(-prompt_tokens // max_num_batched_tokens)
        return cls(-(-prompt_tokens // steps), output_tokens / steps)


def mixed_times(step_times_ms: Floats, prompt_graph_ms: Floats) -> Floats:
    """Return the times of steps that a prompt shares, less what the prompt takes at any length.

    ``step_times_ms`` are those of pure steps, ``prompt_graph_ms`` :meth:`CostModel.prompt_graph_costs`.
    """
    times: Floats = np.maximum(step_times_ms + prompt_graph_ms, LEAST_SHARE * step_times_ms)
    return times


def goodput(step_times_ms: Floats, mixed_ms: Floats, expected_tokens: Floats, requests: Requests) -> Floats:
    """Return kept tokens per second while ``requests`` come and go at random.

    Arrays have shape ``(lengths, batch sizes)``, ``expected_tokens``, ``E[K]``, has ``(lengths,)``.
    ``mixed_ms`` are :func:`mixed_times` with the requests' prompts.

    With each step of B requests come n = ``B · E[K] / tokens_per_prompt_step`` prompts, and the next step
    is shared by none with the probability ``exp(-n)``. What a prompt takes at any length is left out: it is
    the same for each kept token (`ENGINE.md` 5), so it moves no choice. Not finite where the cell has no
    price.
    """
    kept = np.arange(1, step_times_ms.shape[1] + 1) * expected_tokens[:, np.newaxis]
    shared = -np.expm1(-kept / requests.tokens_per_prompt_step)
    found: Floats = kept / (step_times_ms + (mixed_ms - step_times_ms) * shared) * 1e3
    return found


def seen_goodput(
    expected: Floats,
    step_times_ms: Floats,
    mixed_ms: Floats,
    expected_tokens: Floats,
    seen: Following,
    usable: npt.NDArray[np.bool_],
) -> Floats:
    """Return goodput by the steps that were ``seen`` to follow, blended with the ``expected`` one.

    Shapes as in :func:`goodput`, whose result ``expected`` is; ``usable`` are cells that a table may use.

    A length drafted at B keeps tokens in the next steps, and takes their time. That time is worth the tokens
    that it would yield otherwise, in steps without a prompt at about this batch size: of these there are as
    many as it takes to keep the tokens that requests ask for, while how many steps a prompt joins is given.
    So a length loses the share

        ``(V[best] - V[K]) / tokens[best]``, with ``V[K] = tokens[K] - rate · time[K]``

    Its goodput is the best one less that share, which is blended with the loss by ``expected``: half of each
    after :data:`EXPECTED_STEPS` seen steps, as expected where none were seen.
    """
    count = (seen.pure + seen.mixed).sum(axis=1)
    if not count.any():
        return expected
    pure = _tokens_and_times(step_times_ms, expected_tokens, seen.pure)
    mixed = _tokens_and_times(mixed_ms, expected_tokens, seen.mixed)
    tokens, times = pure[0] + mixed[0], pure[1] + mixed[1]
    known = np.isfinite(expected)
    priced = usable & known
    best_expected = np.max(np.where(priced, expected, 0.0), axis=0)
    value = tokens - times * _rate(*pure, priced, best_expected / 1e3)
    best, columns = np.where(priced, value, -np.inf).argmax(axis=0), np.arange(len(count))
    at_best = tokens[best, columns]
    share = np.where(at_best > 0, count / (count + EXPECTED_STEPS), 0.0)
    seen_loss = np.minimum((value[best, columns] - value) / np.where(at_best > 0, at_best, 1.0), 1.0)
    expected_loss = 1 - np.where(known, expected, 0.0) / np.where(best_expected > 0, best_expected, 1.0)
    kept = 1 - share * seen_loss - (1 - share) * expected_loss
    blended = best_expected * np.maximum(kept, LEAST_GOODPUT)
    return np.where((share > 0) & (best_expected > 0) & known, blended, expected)


def _tokens_and_times(step_ms: Floats, expected_tokens: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return tokens and milliseconds of next steps of one kind, each as often as ``weights`` say.

    One without a price counts as one that keeps nothing and takes as long as the dearest length there. If it
    did not count, a length would be held to be good for nobody knowing how long its steps take.
    """
    sizes = np.arange(1, step_ms.shape[1] + 1)
    known = np.isfinite(step_ms)
    dearest = np.where(known, step_ms, 0.0).max(axis=0)
    kept = known * expected_tokens[:, np.newaxis]
    taken = np.where(known, step_ms, dearest)
    tokens, times = np.zeros_like(step_ms), np.zeros_like(step_ms)
    for column in np.flatnonzero(weights.any(axis=0)).tolist():
        next_sizes = np.clip(sizes + column - REACH, 1, len(sizes))
        tokens += weights[:, column] * np.minimum(sizes, next_sizes) * kept[:, next_sizes - 1]
        times += weights[:, column] * taken[:, next_sizes - 1]
    return tokens, times


def _rate(tokens: Floats, times: Floats, usable: npt.NDArray[np.bool_], otherwise: Floats) -> Floats:
    """Return tokens per millisecond around each batch size, each at its best length.

    Around is an eighth of the batch size, at most :data:`REACH`: four requests yield twice what two do in
    the same time, and what two yield would count for little if it were weighed by that.
    """
    rates = np.where(usable & (times > 0), tokens / np.where(times > 0, times, 1.0), -np.inf)
    best, columns = rates.argmax(axis=0), np.arange(rates.shape[1])
    known = np.isfinite(rates[best, columns])
    reach = np.minimum((columns + 1) // 8, REACH)
    first, last = np.maximum(columns - reach, 0), np.minimum(columns + reach, len(columns) - 1)
    sums = (
        np.concatenate(([0.0], np.cumsum(np.where(known, own[best, columns], 0.0))))
        for own in (tokens, times)
    )
    around_tokens, around_times = (of_all[last + 1] - of_all[first] for of_all in sums)
    seen = around_times > 0
    rate: Floats = np.where(seen, around_tokens / np.where(seen, around_times, 1.0), otherwise)
    return rate


def expected_goodput(model: CostModel, acceptance: Rates, requests: Requests, max_batch_size: int) -> Floats:
    """Return :func:`goodput` of a profiled engine at every batch size."""
    sizes = np.arange(1, max_batch_size + 1)
    tokens = expected_tokens_of(acceptance.survival, acceptance.proposal_rate, model.draft_lengths)
    pure = model.step_times(max_batch_size)
    mixed = mixed_times(pure, model.prompt_graph_costs(sizes, requests.prompt_tokens))
    return goodput(pure, mixed, tokens, requests)
