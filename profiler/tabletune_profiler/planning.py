"""What to measure: batch sizes, the order of cells, prompts of a given length. Pure functions.

The order matters: an engine's speed drifts (ENGINE.md 6), and drift along an ordered sweep looks like a
slope. Batch sizes come in a shuffled order; within one, lengths go up and down again in a shuffled
order, so that a steady drift cancels between lengths, which is where tables are decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tabletune import graphs, hazards
from tabletune.graphs import GraphSettings
from tabletune_profiler.messages import Configured

VISITS = 2
"""Times that each length is visited within a batch size: on the way up and on the way down."""
SPARE_TOKENS = 4_096
"""Output tokens of a request that is to decode until it is aborted; the model's length may end it before."""
LEAST_CONTEXT = 16
"""The shortest context that may be asked for."""
KV_BLOCK = 16
"""Tokens of a block of the KV cache, as vLLM has them on GPUs. Prompts share all blocks before the first
that differs, and larger blocks differ where these do."""
LEAST_PROMPT = 8
"""The shortest prompt that the sweep's requests start from."""


class PlanError(ValueError):
    """The options do not fit the engine; the message names option, value and what would be right."""


@dataclass(frozen=True)
class Options:
    """The options of ``tabletune profile`` that decide what is measured."""

    batch_sizes: tuple[int, ...] | None = None
    """``None``: powers and half-powers of two up to max_num_seqs, and a few without a full graph."""
    draft_lengths: tuple[int, ...] | None = None
    """``None``: 0 to the longest that the drafter is configured for."""
    context_length: int | None = None
    """Tokens of context per request around which steps are timed. ``None``: ``usual_context``, or what fits
    into the model's length."""
    steps: int = 40
    """Steps that count, per cell. Each visit drops four first steps, so fewer waste more of the time."""
    repeats: int = 2
    """Most times that a cell with a wide spread is timed again."""
    acceptance_tokens: int = 96
    """Most output tokens per prompt of the acceptance run."""
    acceptance_concurrency: int = 16
    """Prompts completed at a time."""
    mixed: bool = True
    """Whether to time steps that share a prompt."""
    mixed_prompt_tokens: tuple[int, ...] = (64, 256)
    """Prompt lengths of the mixed sweep."""
    prompt_tokens: int = 256
    """Prompt length that the table and the engine advice are for."""
    output_tokens: int = 256
    """Output length that the table and the engine advice are for."""

    @property
    def usual_context(self) -> int:
        """Tokens of context that a request of the usual lengths has while it decodes, on average."""
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def wanted_context(self) -> int:
        """The context asked for, or else the usual one."""
        return self.usual_context if self.context_length is None else self.context_length


@dataclass(frozen=True)
class Column:
    """All cells of one batch size, in the order to visit them."""

    batch_size: int
    visits: tuple[int, ...]


@dataclass(frozen=True)
class MixedCell:
    """One mixed step to time."""

    batch_size: int
    draft_length: int
    prompt_tokens: int


@dataclass(frozen=True)
class Plan:
    """Everything that one profile measures."""

    batch_sizes: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    columns: tuple[Column, ...]
    avoided: tuple[tuple[int, int], ...]
    """(batch size, draft length) of the cells that are not timed because engines have died in such."""
    mixed: tuple[MixedCell, ...]
    steps_per_visit: int
    prompt_length: int
    """Tokens that the sweep's requests start with."""
    context_length: int
    """Tokens of context per request around which steps are timed: those that requests have halfway through
    a column."""


def default_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return powers and half-powers of two up to ``max_num_seqs``, and that itself: 1, 2, 3, 4, 6, 8, 12…"""
    sizes = {max_num_seqs}
    power = 1
    while power <= max_num_seqs:
        sizes |= {power, power + power // 2}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= max_num_seqs))


def make(options: Options, configured: Configured, seed: int = 0) -> Plan:
    """Return the plan for ``options`` on the engine that was ``configured``; the same for equal input.

    Raises :class:`PlanError` for options that this engine cannot do.
    """
    fingerprint = configured.fingerprint
    lengths = configured.draft_lengths
    avoided = hazards.mismatched(fingerprint, lengths)
    batch_sizes = _batch_sizes(options, configured, avoided)
    order = np.random.default_rng(seed)
    columns = []
    for batch_size in order.permutation(batch_sizes).tolist():
        there = [k for k in order.permutation(lengths).tolist() if batch_size not in avoided[k]]
        columns.append(Column(batch_size, (*there, *reversed(there))))
    steps_per_visit = max(1, options.steps // VISITS)
    # Speculation off is timed like a length of its own (`profiling`).
    timed = (*lengths, 0) if configured.uniform_drafts else lengths
    growth = _growth(timed, steps_per_visit)
    prompt_length = _prompt_length(options, growth, configured.max_model_len)
    # Where the model's length ends requests before they have grown so far, new ones take their places.
    grown = min(growth, configured.max_model_len - prompt_length)
    return Plan(
        batch_sizes=batch_sizes,
        draft_lengths=lengths,
        columns=tuple(columns),
        avoided=tuple((b, k) for k in lengths for b in batch_sizes if b in avoided[k]),
        mixed=_mixed(options, batch_sizes, avoided, fingerprint.max_num_seqs, configured.max_model_len),
        steps_per_visit=steps_per_visit,
        prompt_length=prompt_length,
        context_length=prompt_length + grown // 2,
    )


def sweep_prompts(
    token_ids: Sequence[Sequence[int]], length: int, vocabulary: int, seed: int = 0, count: int = 8
) -> tuple[tuple[int, ...], ...]:
    """Return ``count`` different prompts of exactly ``length`` tokens, cut from the sample prompts.

    Natural text, so that drafters that look into it find what they find in serving. Prompts with the same
    first block would share KV cache, so texts that are used again are cut at other places: of 252 prompts
    of 2,048 tokens, from the bundled texts, a fifth would otherwise be another one's twin. Random tokens
    where there is no text (an engine without a tokenizer).
    """
    if not token_ids:
        random = np.random.default_rng(seed)
        low = min(100, vocabulary - 1)
        return tuple(tuple(random.integers(low, vocabulary, length).tolist()) for _ in range(count))
    prompts: list[tuple[int, ...]] = []
    known: set[tuple[int, ...]] = set()
    uses = count // len(token_ids)
    for start in range(count):
        text: list[int] = []
        position = start
        first_cut = start // len(token_ids)
        # Texts may repeat themselves, so another place is not looked for without end.
        for cut in range(first_cut, first_cut + uses + KV_BLOCK):
            while len(text) < length + cut:
                text += token_ids[position % len(token_ids)]
                position += count
            begin = len(text) - cut - length
            block = tuple(text[begin : begin + min(length, KV_BLOCK)])
            if block not in known:
                break
        known.add(block)
        prompts.append(tuple(text[begin : begin + length]))
    return tuple(prompts)


def _batch_sizes(
    options: Options, configured: Configured, avoided: Mapping[int, Set[int]]
) -> tuple[int, ...]:
    max_num_seqs = configured.fingerprint.max_num_seqs
    if options.batch_sizes is None:
        grid = default_batch_sizes(max_num_seqs)
        # A coarse grid misses the batch sizes without a full graph (ENGINE.md 2), or takes one for the rule.
        settings = GraphSettings.from_fingerprint(configured.fingerprint, configured.draft_lengths)
        return tuple(sorted({*grid, *graphs.batch_sizes_to_add(settings, grid, avoided)}))
    above = [size for size in options.batch_sizes if size > max_num_seqs]
    if above:
        raise PlanError(
            f"--batch-sizes has {above[0]}, above --max-num-seqs {max_num_seqs}, the most requests that the"
            " engine runs at once. Lower the one or raise the other."
        )
    return tuple(sorted(set(options.batch_sizes)))


def _growth(lengths: Sequence[int], steps_per_visit: int) -> int:
    """Return how many tokens a request grows by in a column if about half the guesses are kept."""
    steps = VISITS * (steps_per_visit + 6)
    return sum(steps * (1 + length // 2) for length in lengths)


def _prompt_length(options: Options, growth: int, max_model_len: int) -> int:
    """Return how long prompts must be for requests that grow by ``growth`` to pass through the context."""
    longest = max_model_len - growth
    if options.context_length is not None and not LEAST_CONTEXT <= options.context_length <= longest:
        raise PlanError(
            f"--context-length {options.context_length} does not fit: with {growth} tokens that requests grow"
            f" by while they are timed, it must be from {LEAST_CONTEXT} to {longest} (--max-model-len"
            f" {max_model_len})."
        )
    # A short model is profiled all the same: its requests cannot have more context either.
    context = min(options.wanted_context, longest)
    return max(LEAST_PROMPT, context - growth // 2)


def _mixed(
    options: Options,
    batch_sizes: Sequence[int],
    avoided: Mapping[int, Set[int]],
    max_num_seqs: int,
    max_model_len: int,
) -> tuple[MixedCell, ...]:
    """Return a few mixed cells: a small, a middle and a large batch; off and the longest length."""
    if not options.mixed:
        return ()
    lengths = sorted({min(avoided), max(avoided)})
    # The prompt's own request needs a place in the batch.
    usable = [
        size
        for size in batch_sizes
        if size < max_num_seqs and not any(size in avoided[length] for length in lengths)
    ]
    if not usable:
        return ()
    chosen = sorted({usable[0], usable[len(usable) // 2], usable[-1]})
    prompts = [tokens for tokens in options.mixed_prompt_tokens if tokens < max_model_len]
    return tuple(
        MixedCell(batch_size, length, tokens)
        for batch_size in chosen
        for length in lengths
        for tokens in prompts
    )
