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

from tabletune import graphs, tables, traffic
from tabletune.acceptance import expected_tokens_of
from tabletune.costs import CostModel, Evidence, Floats
from tabletune.documents import Acceptance, Profile, Table
from tabletune.graphs import GraphSettings, Integers

SWITCH_GAIN = 0.02
"""Other settings make another table. A batch size is taken to change to another of the table's lengths where
that has this much more goodput, twice the default tie tolerance."""

MOST_ENDING = 8
"""Most requests that are reckoned to end in one step."""

UNLIKELY = 1e-4
"""Share of steps below which one that has no price is passed over."""


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
        kept = self.batch_sizes * self.expected_tokens[:, np.newaxis]
        decode: Floats = self._step_times(self.model.under(settings)) / kept
        return decode

    def _step_times(self, model: CostModel) -> Floats:
        """Return the milliseconds of decode steps, a row per length; NaN without a price."""
        prices = model.prices(self.batch_sizes)
        times: Floats = np.where(prices.evidence == Evidence.UNPRICED, np.nan, prices.step_times_ms)
        return times[self._rows]

    @property
    def _rows(self) -> list[int]:
        """The model's rows of the lengths that the table uses."""
        return [self.model.draft_lengths.index(draft_length) for draft_length in self.draft_lengths]

    def prompt_times(self, settings: GraphSettings) -> Floats:
        """Return c, what prompts add to a token, in milliseconds; a row per length.

        A step keeps ``B · E[K]`` tokens and so, as requests come and go, sees ``B · E[K] / output_tokens``
        new prompts on average, n, and none with probability ``exp(-n)`` (arrivals at random). Each prompt
        brings its own work; that the step then runs another kind of graph, it bears once.
        """
        change, own = self._prompt_costs(self.model.under(settings))
        kept = self.batch_sizes * self.expected_tokens[:, np.newaxis]
        prompts = kept / self.output_tokens
        times: Floats = (-np.expm1(-prompts) * change + prompts * own) / kept
        return times

    def _prompt_costs(self, model: CostModel) -> tuple[Floats, Floats]:
        """Return what a step with prompts costs more, a row per length, and what each prompt costs besides.

        The first is the change of graph and what else was measured to come once a step. What prompts added
        was measured a few times at a few lengths, and differs between these by more than prompts can; so all
        but the change of graph is the median over the lengths.
        """
        sizes, tokens = self.batch_sizes, self.prompt_tokens
        added = np.array([model.prompt_costs(sizes, length, tokens) for length in self.draft_lengths])
        change = np.array([model.graph_change_costs(sizes, length, tokens) for length in self.draft_lengths])
        rest, known = np.full(len(sizes), np.nan), np.isfinite(added).any(axis=0)
        rest[known] = np.maximum(0.0, np.nanmedian((added - change)[:, known], axis=0))
        work = model.prompt_work(tokens)
        own = rest if work is None else np.minimum(work, rest)
        return change + (rest - own), np.broadcast_to(own, change.shape)

    @property
    def piecewise_beside_prompts(self) -> npt.NDArray[np.bool_]:
        """Which steps run piecewise where a prompt shares them, a row per length."""
        kinds = [
            graphs.dispatch_batches(self.model.settings, self.batch_sizes, length, self.prompt_tokens).kinds
            for length in self.draft_lengths
        ]
        piecewise: npt.NDArray[np.bool_] = np.array(kinds) == graphs.PIECEWISE
        return piecewise

    def served_by_full_graphs(self) -> Floats:
        """Return :meth:`served` under the settings in force if prompts made no step run piecewise.

        Those steps run full graphs instead, which are taken to be as quick as those of pure steps. Where the
        tokens of their prompts would take longer so than piecewise, they count as piecewise: the tokens of
        decoding requests, which tell, are dearer than those of prompts.
        """
        change, own = piecewise_costs = self._prompt_costs(self.model)
        full = np.array(
            [
                self.model.full_graph_prompt_costs(self.batch_sizes, length, self.prompt_tokens)
                for length in self.draft_lengths
            ]
        )
        piecewise = self.piecewise_beside_prompts
        full_costs = np.where(piecewise, 0.0, change), np.where(piecewise, full, own)
        rows = self._preferred(self.model.settings, prompts=True)
        return self._closed_loops(self.model, rows, piecewise_costs, full_costs)

    def of_table(self, times: Floats) -> Floats:
        """Return, by batch size, the entry of the table's own length in ``times`` (a row per length)."""
        chosen: Floats = times[self.chosen, self.batch_sizes - 1]
        return chosen

    def served(self, settings: GraphSettings, prompts: bool = True) -> Floats:
        """Return the time per token with the table that the engine would have under ``settings``.

        With as many requests open as each batch size says, in a closed loop (:meth:`_closed_loops`); without
        ``prompts`` that of decode steps of the batch size.
        """
        rows = self._preferred(settings, prompts)
        if prompts:
            model = self.model.under(settings)
            served = self._closed_loops(model, rows, self._prompt_costs(model))
        else:
            served = self.decode_times(settings)[rows, self.batch_sizes - 1]
        limited: Floats = served[np.minimum(self.batch_sizes, settings.max_num_seqs) - 1]
        return limited

    def _preferred(self, settings: GraphSettings, prompts: bool) -> npt.NDArray[np.intp]:
        """Return the table's length by batch size, or the best of the table's where that gains more.

        More than :data:`SWITCH_GAIN`, by what tables are computed from: with other settings there would be
        another table. Also under those in force, so that one which was pinned, say, makes no gain of them.
        """
        model = self.model.under(settings)
        pure = self._step_times(model)
        more = model.prompt_graph_costs(self.batch_sizes, self.prompt_tokens)[self._rows]
        mixed = traffic.mixed_times(pure, more)
        requests = traffic.Requests(self.prompt_tokens, self.output_tokens if prompts else np.inf)
        found = traffic.goodput(pure, mixed, self.expected_tokens, requests)
        known = np.where(np.isnan(found), 0.0, found)
        better = self.of_table(known) < known.max(axis=0) * (1 - SWITCH_GAIN)
        return np.where(better, known.argmax(axis=0), self.chosen)

    def _closed_loops(
        self, model: CostModel, rows: npt.NDArray[np.intp], *costs: tuple[Floats, Floats]
    ) -> Floats:
        """Return the time per token, in milliseconds, with N requests open, for each N from 1.

        ``rows`` is the length by batch size, an index into ``draft_lengths``; ``costs`` are what prompts cost
        (:meth:`_prompt_costs`), of which each step has the least.

        Of N requests n end in each step, as many as its tokens are over a request's, at random (Poisson). A
        place is taken a step later. So a step has N less those that ended in the step before, and prompts for
        those that ended two steps before; and its drafts are of the length for the batch size between. That a
        length is drafted at one batch size and verified at another, or beside a prompt, is what single batch
        sizes without a full graph, and few captured sizes, cost in service: a third of the goodput on an H200
        (docs/performance.md), of which steps of one batch size show nothing.
        """
        sizes, kept = self.batch_sizes, self.expected_tokens[rows]
        pure = self._step_times(model)
        ending = sizes * kept / (self.output_tokens + kept)
        counts = np.arange(MOST_ENDING + 1)[:, np.newaxis]
        chances = ending**counts / np.cumprod(np.maximum(counts, 1), axis=0)
        chances /= chances.sum(axis=0)
        times, tokens = np.zeros(len(sizes)), np.zeros(len(sizes))
        for before in range(MOST_ENDING + 1):
            row = rows[np.maximum(sizes - before, 1) - 1]
            for now in range(MOST_ENDING + 1):
                batch = np.maximum(sizes - now, 1)
                time = pure[row, batch - 1]
                if before:
                    added = [change[row, batch - 1] + before * own[row, batch - 1] for change, own in costs]
                    time = time + np.min(added, axis=0)
                chance = chances[before] * chances[now]
                drafted = np.maximum(batch - before, 0)
                # Far below N nothing may be priced, and is hardly ever met.
                unlikely = np.isnan(time) & (chance < UNLIKELY)
                times += np.where(unlikely, 0.0, chance * time)
                tokens += np.where(
                    unlikely, 0.0, chance * (batch + drafted * (self.expected_tokens[row] - 1))
                )
        return times / tokens

    def gain(
        self, settings: GraphSettings, over: GraphSettings | None = None, prompts: bool = True
    ) -> float | None:
        """Return what ``settings`` gain over those in force (or ``over``); None where either has no price.

        Without ``prompts`` decode steps alone count, which can be told although no prompt was measured.
        """
        before = self.served(over or self.model.settings, prompts)
        return self.mean_gain(before, self.served(settings, prompts))

    def most(self, settings: GraphSettings) -> tuple[int, float] | None:
        """Return with how many requests open ``settings`` gain most, and what; None where that is unknown."""
        return most_gained(self.served(self.model.settings), self.served(settings))

    def mean_gain(self, before: Floats, after: Floats) -> float | None:
        """Return the weighted geometric mean of ``before / after``, less 1; None where any is NaN."""
        mean = float(np.sum(self.weights * np.log(before / after)))
        return None if np.isnan(mean) else float(np.expm1(mean))

    def pays(self, settings: GraphSettings, over: GraphSettings, least: float = 0.0) -> bool:
        """Return whether ``settings`` gain more than ``least``, or nothing measured tells."""
        gains = (self.gain(settings, over, prompts) for prompts in (True, False))
        return next((gain > least for gain in gains if gain is not None), True)


def most_gained(before: Floats, after: Floats) -> tuple[int, float] | None:
    """Return with how many requests open times ``after`` gain most, and what; None where any is NaN."""
    gains = before / after - 1
    return None if np.isnan(gains).any() else (int(gains.argmax()) + 1, float(gains.max()))


def _weights(grid: Sequence[int], max_batch_size: int) -> Floats:
    """Return how much each batch size from 1 counts: grid sizes alike, each shared out to its surroundings.

    Single batch sizes have no full graph, and a coarse grid hits few of them or many, as it happens. So
    every batch size counts, together with the others that are nearest to the same grid size.
    """
    sizes = np.array([size for size in grid if size <= max_batch_size] or [max_batch_size])
    nearest = np.searchsorted((sizes[1:] + sizes[:-1]) / 2, np.arange(1, max_batch_size + 1))
    weights: Floats = 1.0 / (len(sizes) * np.bincount(nearest)[nearest])
    return weights
