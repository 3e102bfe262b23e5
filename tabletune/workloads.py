"""The user's requests on a profiled engine: what a token takes them under given graph settings.

Engine advice weighs settings with it. Step times alone would overrate whatever makes pure decode steps
cheaper: a request also brings a prompt, whose step costs several times as much and is shared out over
the request's output (`ENGINE.md` 5). And a coarse grid of batch sizes would miss single batch sizes that
have no full graph, or see little else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tabletune import tables
from tabletune.acceptance import expected_tokens_of
from tabletune.costs import CostModel, Evidence, Floats
from tabletune.documents import Acceptance, Profile, Table
from tabletune.graphs import GraphSettings, Integers

SWITCH_GAIN = 0.02
"""Other settings make another table. A batch size is taken to change to another of the table's lengths where
that takes this much less time per token, twice the default tie tolerance."""


@dataclass(frozen=True)
class Workload:
    """Requests of one prompt and output length, served with a table; arrays have an entry per batch size.

    Time per token is ``T(B, K) / (B · E[K]) + c`` (`ENGINE.md` 5), with c what prompts add
    (:meth:`prompt_times`).
    """

    model: CostModel
    """Prices of the engine's steps."""
    weights: Floats
    """How much each batch size from 1 to the table's last counts for a gain; the sum is 1."""
    draft_lengths: tuple[int, ...]
    """Lengths that the table uses, ascending."""
    chosen: npt.NDArray[np.intp]
    """By batch size: the table's length, as an index into ``draft_lengths``."""
    expected_tokens: Floats
    """By length of ``draft_lengths``."""
    prompt_tokens: int
    """Tokens of a request's prompt."""
    output_tokens: int
    """Tokens of its output."""

    @classmethod
    def of(
        cls,
        model: CostModel,
        profile: Profile,
        acceptance: Acceptance,
        table: Table,
        prompt_tokens: int,
        output_tokens: int,
    ) -> Self:
        """Return the workload of requests with ``prompt_tokens`` and ``output_tokens`` each."""
        lookup = np.array(tables.lookup(table, table[-1][1])[1:])
        draft_lengths = np.unique(lookup)
        return cls(
            model,
            _weights(profile.batch_sizes, len(lookup)),
            tuple(draft_lengths.tolist()),
            np.searchsorted(draft_lengths, lookup),
            expected_tokens_of(acceptance.survival, acceptance.proposal_rate, draft_lengths.tolist()),
            prompt_tokens,
            output_tokens,
        )

    @property
    def batch_sizes(self) -> Integers:
        """1 to the table's last."""
        return np.arange(1, len(self.chosen) + 1)

    def decode_times(self, settings: GraphSettings) -> Floats:
        """Return ``T / (B · E[K])`` in milliseconds, a row per length; NaN without a price."""
        prices = self.model.under(settings).prices(self.batch_sizes)
        rows = [self.model.draft_lengths.index(draft_length) for draft_length in self.draft_lengths]
        times = np.where(prices.evidence == Evidence.UNPRICED, np.nan, prices.step_times_ms)[rows]
        decode: Floats = times / (self.batch_sizes * self.expected_tokens[:, np.newaxis])
        return decode

    def prompt_times(self, settings: GraphSettings) -> Floats:
        """Return c, what prompts add to a token, in milliseconds; a row per length.

        A step keeps ``B · E[K]`` tokens and so, as requests come and go, sees ``B · E[K] / output_tokens``
        new prompts on average, n, and none with probability ``exp(-n)`` (arrivals at random). Each prompt
        brings its own work; that the step then runs another kind of graph, it bears once.
        """
        model = self.model.under(settings)
        rows = []
        for draft_length, expected in zip(self.draft_lengths, self.expected_tokens, strict=True):
            sizes = self.batch_sizes
            added = np.maximum(0.0, model.prompt_costs(sizes, draft_length, self.prompt_tokens))
            change = np.minimum(added, model.graph_change_costs(sizes, draft_length, self.prompt_tokens))
            kept = sizes * expected
            prompts = kept / self.output_tokens
            rows.append((-np.expm1(-prompts) * change + prompts * (added - change)) / kept)
        return np.array(rows)

    def of_table(self, times: Floats) -> Floats:
        """Return, by batch size, the entry of the table's own length in ``times`` (a row per length)."""
        chosen: Floats = times[self.chosen, self.batch_sizes - 1]
        return chosen

    def served(self, settings: GraphSettings, prompts: bool = True) -> Floats:
        """Return the time per token with the table that the engine would have under ``settings``."""
        times = self.decode_times(settings) + (self.prompt_times(settings) if prompts else 0.0)
        own = self.of_table(times)
        best = np.min(np.where(np.isnan(times), np.inf, times), axis=0)
        times = np.where(best < own * (1 - SWITCH_GAIN), best, own)
        served: Floats = times[np.minimum(self.batch_sizes, settings.max_num_seqs) - 1]
        return served

    def gain(
        self, settings: GraphSettings, over: GraphSettings | None = None, prompts: bool = True
    ) -> float | None:
        """Return what ``settings`` gain over those in force (or ``over``); None where either has no price.

        Without ``prompts`` decode steps alone count, which can be told although no prompt was measured.
        """
        before = self.served(over or self.model.settings, prompts)
        return self.mean_gain(before, self.served(settings, prompts))

    def mean_gain(self, before: Floats, after: Floats) -> float | None:
        """Return the weighted geometric mean of ``before / after``, less 1; None where any is NaN."""
        mean = float(np.sum(self.weights * np.log(before / after)))
        return None if np.isnan(mean) else float(np.expm1(mean))

    def pays(self, settings: GraphSettings, over: GraphSettings, least: float = 0.0) -> bool:
        """Return whether ``settings`` gain more than ``least``, or nothing measured tells."""
        gains = (self.gain(settings, over, prompts) for prompts in (True, False))
        return next((gain > least for gain in gains if gain is not None), True)


def _weights(grid: Sequence[int], max_batch_size: int) -> Floats:
    """Return how much each batch size from 1 counts: grid sizes alike, each shared out to its surroundings.

    Single batch sizes have no full graph, and a coarse grid hits few of them or many, as it happens. So
    every batch size counts, together with the others that are nearest to the same grid size.
    """
    sizes = np.array([size for size in grid if size <= max_batch_size] or [max_batch_size])
    nearest = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, np.arange(1, max_batch_size + 1))
    weights: Floats = 1.0 / (len(sizes) * np.bincount(nearest)[nearest])
    return weights
