"""What a step costs at every batch size and draft length, from a profile that measured some of them.

The table, the prediction and engine advice ask it. Step time is no smooth function of batch size: a batch
of 33 runs the graph that was captured for more, single batch sizes lose their full graph and cost 11 ms
more, and past the largest captured size a step takes 30 to 50 ms instead of 5 to 12 (`ENGINE.md`). A
straight line between two measured batch sizes runs across all of these, and a table computed from it puts
batch sizes on lengths that are several times dearer than predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from tabletune import graphs
from tabletune.documents import Fingerprint, Profile
from tabletune.graphs import GraphSettings, Integers

Floats = npt.NDArray[np.float64]


class CostError(ValueError):
    """A step that the profile cannot price."""


class Evidence(IntEnum):
    """How a step time was come by, the best founded first."""

    MEASURED = 0
    """The cell's own median."""
    INTERPOLATED = 1
    """From measured cells of the same kind and length on both sides (or in the same graph)."""
    EXTRAPOLATED = 2
    """Beyond the measured cells of the same kind and length."""
    BORROWED = 3
    """No such cell at this length: what the kind costs more was taken from other lengths."""
    UNPRICED = 4
    """No cell of the kind was measured at any length."""


@dataclass(frozen=True)
class Prices:
    """Step times and what they rest on; a row per draft length, a column per batch size asked for."""

    step_times_ms: Floats
    """Milliseconds of a pure decode step; NaN where there is no price."""
    evidence: npt.NDArray[np.int8]
    """Values of :class:`Evidence`."""


@dataclass(frozen=True)
class _Curve:
    """Measured times by token count, ascending and without repeats."""

    tokens: Floats
    times: Floats

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Self:
        """Return the curve through ``(tokens, ms)``; of several points with equal tokens, their mean."""
        tokens, times = np.array(sorted(points), dtype=np.float64).T
        places, inverse, counts = np.unique(tokens, return_inverse=True, return_counts=True)
        return cls(places, np.bincount(inverse, weights=times) / counts)

    def at(self, tokens: Floats | Integers) -> Floats:
        """Return the times: straight between points, level below the first, by the last slope above.

        The last slope is that of the last two points, and never downwards: noise would turn large steps
        free.
        """
        times: Floats = np.interp(tokens, self.tokens, self.times)
        if len(self.tokens) > 1:
            slope = (self.times[-1] - self.times[-2]) / (self.tokens[-1] - self.tokens[-2])
            times += max(0.0, slope) * np.maximum(0.0, tokens - self.tokens[-1])
        return times

    def nearest(self, tokens: Floats | Integers) -> Floats:
        """Return each token count, or the end of the curve that it lies beyond."""
        nearest: Floats = np.clip(tokens, self.tokens[0], self.tokens[-1])
        return nearest


@dataclass(frozen=True)
class _Row:
    """One draft length's measured cells."""

    batch_sizes: Integers
    """Batch sizes with a time, ascending."""
    times: Floats
    """Their step times in milliseconds."""
    curves: dict[int, _Curve]
    """By kind of graph: times by padded token count."""

    @property
    def base(self) -> int | None:
        """The kind with the most measured graphs, of equal ones the fullest; None without cells."""
        return max(self.curves, key=lambda kind: (len(self.curves[kind].tokens), -kind), default=None)


@dataclass(frozen=True)
class _Prompts:
    """What prompts added to steps of one draft length and batch size, all of the same kinds of graph."""

    pure_kind: int
    """Kind of graph of the step without the prompt."""
    kind: int
    """Kind of graph of the step with it."""
    draft_length: int
    batch_size: int
    curve: _Curve
    """Milliseconds added, by prompt tokens."""


@dataclass(frozen=True)
class CostModel:
    """Prices steps from a profile's cells and the graphs that steps find.

    Rules for a pure step:

    - A measured cell costs what was measured.
    - Any other costs what its graph costs: it is looked up by padded tokens among the measured cells of
      the same length and the same kind of graph, and interpolated between two of them. Without graphs
      nothing is padded, so that is interpolation by batch size.
    - Outside of the cells of its kind, the length's base kind (the one with most cells, as a rule full)
      says how the time changes with the tokens; the base kind itself stays level below its cells and
      follows its last slope above them. No step costs less than the length's cheapest cell.
    - A kind without a cell at this length costs what it costs above the base kind at the other lengths,
      the median over their cells.
    - A kind without a cell at any length has no price: NaN, so that no choice falls on it. Only where no
      length has a price at a batch size, each costs what its base kind would: too little, but alike.

    The profile's own word on a cell's kind counts, not the simulation's. Nothing is smoothed or made
    monotone: neighbours differ by noise, and nobody knows which of them is right.
    """

    settings: GraphSettings
    """The engine's graph settings that steps are priced under."""
    measured_under: GraphSettings
    """Those in force when the profile was taken."""
    draft_lengths: tuple[int, ...]
    """Draft lengths that have a price, ascending: the rows."""
    disagreements: tuple[tuple[int, int], ...]
    """Cells ``(batch size, draft length)`` whose measured kind is not the simulated one. Any shows that
    the engine's dispatch is not the one of :mod:`tabletune.graphs`."""
    _rows: tuple[_Row, ...]
    _prompts: tuple[_Prompts, ...]

    @classmethod
    def from_profile(cls, profile: Profile, fingerprint: Fingerprint) -> CostModel:
        """Return the cost model of a measured engine. Excluded cells are passed over."""
        settings = GraphSettings.from_fingerprint(fingerprint, profile.draft_lengths)
        rows, disagreements = [], []
        for index, draft_length in enumerate(profile.draft_lengths):
            columns = [column for column, time in enumerate(profile.step_time_ms[index]) if time is not None]
            batch_sizes = np.array([profile.batch_sizes[column] for column in columns], dtype=np.int64)
            times = np.array([profile.step_time_ms[index][column] for column in columns], dtype=np.float64)
            found = graphs.dispatch_batches(settings, batch_sizes, draft_length)
            points: dict[int, list[tuple[float, float]]] = {}
            for place, column in enumerate(columns):
                kind, tokens = int(found.kinds[place]), float(found.padded_tokens[place])
                measured = profile.graph[index][column]
                if measured is not None and graphs.KINDS[kind] is not measured:
                    # The padding of a graph that the simulation did not find is unknown.
                    kind, tokens = (
                        graphs.KINDS.index(measured),
                        float(batch_sizes[place] * (draft_length + 1)),
                    )
                    disagreements.append((int(batch_sizes[place]), draft_length))
                points.setdefault(kind, []).append((tokens, float(times[place])))
            curves = {kind: _Curve.through(of_kind) for kind, of_kind in points.items()}
            rows.append(_Row(batch_sizes, times, curves))
        model = cls(settings, settings, profile.draft_lengths, tuple(disagreements), tuple(rows), ())
        return replace(model, _prompts=model._measured_prompts(profile))

    @property
    def measured_batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes with a measured cell at any length, ascending."""
        return tuple(np.unique(np.concatenate([row.batch_sizes for row in self._rows])).tolist())

    def under(self, settings: GraphSettings) -> CostModel:
        """Return the model of the same engine with other capture sizes or max_num_seqs.

        A cell whose step runs the same graph as before keeps its measured time. Raises :class:`CostError`
        for another mode or runner: its graphs have other times, which only a profile can tell.
        """
        if (settings.mode, settings.runner) != (self.measured_under.mode, self.measured_under.runner):
            raise CostError(
                f"The profile was taken in mode {self.measured_under.mode} with runner"
                f" {self.measured_under.runner} and cannot price mode {settings.mode} with runner"
                f" {settings.runner}. Profile the engine with these settings."
            )
        return replace(self, settings=settings)

    def step_times(self, max_batch_size: int) -> Floats:
        """Return milliseconds of pure decode steps, ``(len(draft_lengths), max_batch_size)``.

        Column ``b - 1`` is batch size b. NaN where there is no price.
        """
        return self.prices(np.arange(1, max_batch_size + 1)).step_times_ms

    def step_time(self, batch_size: int, draft_length: int) -> float:
        """Return milliseconds of one pure decode step; NaN where there is no price."""
        row = self._row_of(draft_length)
        return float(self.prices(np.array([batch_size])).step_times_ms[row, 0])

    def prices(self, batch_sizes: Integers) -> Prices:
        """Return the step times of every draft length at ``batch_sizes``, and what they rest on."""
        shape = len(self.draft_lengths), len(batch_sizes)
        times = np.full(shape, np.nan)
        evidence = np.full(shape, Evidence.UNPRICED, dtype=np.int8)
        tokens = np.zeros(shape, dtype=np.int64)
        for row, draft_length in enumerate(self.draft_lengths):
            found = graphs.dispatch_batches(self.settings, batch_sizes, draft_length)
            tokens[row] = found.padded_tokens
            for kind in np.unique(found.kinds).tolist():
                of_kind = found.kinds == kind
                times[row, of_kind], evidence[row, of_kind] = self._graph_times(
                    row, kind, found.padded_tokens[of_kind]
                )
            self._put_measured(row, batch_sizes, found, times[row], evidence[row])
        nowhere = np.flatnonzero(np.isnan(times).all(axis=0))
        for row, measured in enumerate(self._rows):
            if nowhere.size and measured.base is not None:
                times[row, nowhere] = measured.curves[measured.base].at(tokens[row, nowhere])
        return Prices(times, evidence)

    def mixed_step_time(self, batch_size: int, draft_length: int, prompt_tokens: int) -> float:
        """Return milliseconds of a step that a prompt joins, with what it adds to the steps around it.

        NaN where either the pure step or :meth:`prompt_costs` has no price.
        """
        added = self.prompt_cost(batch_size, draft_length, prompt_tokens)
        return self.step_time(batch_size, draft_length) + added

    def prompt_cost(self, batch_size: int, draft_length: int, prompt_tokens: int) -> float:
        """Return the milliseconds that a prompt adds to the steps of a batch: :meth:`prompt_costs` of one."""
        return float(self.prompt_costs(np.array([batch_size]), draft_length, prompt_tokens)[0])

    def prompt_costs(self, batch_sizes: Integers, draft_length: int, prompt_tokens: int) -> Floats:
        """Return the milliseconds that a prompt of ``prompt_tokens`` adds, for each of ``batch_sizes``.

        - A prompt adds its own work, and makes the step run as another kind of graph. So only measured
          prompts count that changed the kind in the same way (from full to piecewise, say).
        - Of these, those at the nearest draft length (the shorter of two), interpolated by prompt tokens,
          then by batch size; level outside of the measured, but by the last slope for longer prompts.
        - Without any of that change: those of another, less what that one costs between pure steps, plus
          what this one does, where both were measured (it is host time, which a prompt does not change).
        - NaN where neither is known.
        """
        self._row_of(draft_length)
        costs = np.full(len(batch_sizes), np.nan)
        pure = graphs.dispatch_batches(self.settings, batch_sizes, draft_length).kinds
        mixed = graphs.dispatch_batches(self.settings, batch_sizes, draft_length, prompt_tokens).kinds
        for change in sorted(set(zip(pure.tolist(), mixed.tolist(), strict=True))):
            of_change = (pure == change[0]) & (mixed == change[1])
            costs[of_change] = self._prompt_costs(change, batch_sizes[of_change], draft_length, prompt_tokens)
        return costs

    def graph_change_costs(self, batch_sizes: Integers, draft_length: int, prompt_tokens: int) -> Floats:
        """Return the milliseconds of a step that come from its prompt changing the kind of its graph.

        A part of :meth:`prompt_costs`, for each of ``batch_sizes``: the step bears it once, however many
        prompts share it. 0 where the kind stays the same.
        """
        return self._change_of_graph(batch_sizes, batch_sizes, draft_length, prompt_tokens)[0]

    def full_graph_prompt_costs(self, batch_sizes: Integers, draft_length: int, prompt_tokens: int) -> Floats:
        """Return the milliseconds that a prompt would add to a step that ran a full graph all the same.

        As many as the tokens of so many more decoding requests do: one prompt reads the KV cache of one
        request, so it may be less. NaN where no full graph was measured at this length.
        """
        curve = self._rows[self._row_of(draft_length)].curves.get(graphs.FULL)
        if curve is None:
            return np.full(len(batch_sizes), np.nan)
        tokens = batch_sizes * (draft_length + 1)
        added: Floats = np.maximum(0.0, curve.at(tokens + prompt_tokens) - curve.at(tokens))
        return added

    def prompt_work(self, prompt_tokens: int) -> float | None:
        """Return the milliseconds that each prompt's own tokens take; None where that was not measured.

        What prompts add grows with their tokens by this, the median over the batches in which several lengths
        were measured. The rest comes once a step, however many prompts share it.
        """
        slopes = [
            float((own.curve.times[-1] - own.curve.times[0]) / (own.curve.tokens[-1] - own.curve.tokens[0]))
            for own in self._prompts
            if len(own.curve.tokens) > 1
        ]
        return max(0.0, float(np.median(slopes))) * prompt_tokens if slopes else None

    def prompt_graph_costs(self, batch_sizes: Integers, prompt_tokens: int) -> Floats:
        """Return what the graph of a step with a prompt costs beyond that of a pure one, by length.

        ``batch_sizes`` count the prompt's request too, all others decode. Milliseconds, ``(draft lengths,
        batch sizes)``, above what it costs at the length where it costs least: a prompt's step has to run at
        some length, and that much is the prompt's own. So it is 0 where prompts find the same kind of graph
        at every length; 16 ms where this length's tokens and the prompt's together are above the largest
        capture size and another length's are not; below 0 where pure steps lack the graph already that a
        prompt's step lacks in any case.
        """
        found = [
            self._change_of_graph(batch_sizes, batch_sizes - 1, length, prompt_tokens)
            for length in self.draft_lengths
        ]
        least = np.min([mixed for _, mixed in found], axis=0)
        above: Floats = np.array([more for more, _ in found]) - least
        return above

    def _change_of_graph(
        self, batch_sizes: Integers, decoding: Integers, draft_length: int, prompt_tokens: int
    ) -> tuple[Floats, Floats]:
        """Return what steps cost more where a prompt changes the kind of their graph, and that kind's cost.

        Pure steps have ``batch_sizes`` requests, with the prompt ``decoding`` of them decode.
        """
        pure = graphs.dispatch_batches(self.settings, batch_sizes, draft_length).kinds
        mixed = graphs.dispatch_batches(self.settings, decoding, draft_length, prompt_tokens).kinds
        costs = self._kind_costs
        return np.maximum(0.0, costs[mixed] - costs[pure]), costs[mixed]

    @cached_property
    def _kind_costs(self) -> Floats:
        """Return what each kind of graph costs above the first one of :data:`graphs.KINDS` that was measured.

        Of a kind that no pure step was measured with, a measured prompt tells that made steps run it: all but
        about a millisecond of what it adds is the graph's (ENGINE.md 1). Else it costs what the one before
        does, since no graph is quicker than a piecewise one.
        """
        base = min((kind for row in self._rows for kind in row.curves), default=graphs.FULL)
        costs = [0.0] * len(graphs.KINDS)
        for kind in range(base + 1, len(graphs.KINDS)):
            of_prompts = [
                float(np.median(own.curve.times))
                for own in self._prompts
                if (own.pure_kind, own.kind) == (base, kind)
            ]
            told = float(np.median(of_prompts)) if of_prompts else costs[kind - 1]
            more = self.kind_costs_more(kind, base)
            costs[kind] = max(costs[kind - 1], told if more is None else more)
        return np.array(costs)

    def kind_costs_more(self, kind: int, than: int) -> float | None:
        """Return the milliseconds that a pure step of ``kind`` costs above one of kind ``than``.

        Codes of :data:`tabletune.graphs.KINDS`. The median over the measured cells of ``kind`` at lengths
        that have cells of both; None where there is none.
        """
        if kind == than:
            return 0.0
        differences = [
            row.curves[kind].times - row.curves[than].at(row.curves[kind].tokens)
            for row in self._rows
            if kind in row.curves and than in row.curves
        ]
        return float(np.median(np.concatenate(differences))) if differences else None

    def _row_of(self, draft_length: int) -> int:
        if draft_length not in self.draft_lengths:
            raise CostError(
                f"Draft length {draft_length} was not profiled, only {list(self.draft_lengths)}."
                " Profile it, or ask for one of these."
            )
        return self.draft_lengths.index(draft_length)

    def _graph_times(self, row: int, kind: int, tokens: Integers) -> tuple[Floats, Integers]:
        """Return times and evidence of steps of one length that run graphs of one kind."""
        curves, base = self._rows[row].curves, self._rows[row].base
        if base is None:
            return np.full(len(tokens), np.nan), np.full(len(tokens), Evidence.UNPRICED)
        if kind not in curves:
            more = self.kind_costs_more(kind, base)
            if more is None:
                return np.full(len(tokens), np.nan), np.full(len(tokens), Evidence.UNPRICED)
            times = np.maximum(curves[base].at(tokens) + more, self._rows[row].times.min())
            return times, np.full(len(tokens), Evidence.BORROWED)
        own, nearest = curves[kind], curves[kind].nearest(tokens)
        times = own.at(tokens)
        if kind != base:
            times = own.at(nearest) + (curves[base].at(tokens) - curves[base].at(nearest))
        times = np.maximum(times, self._rows[row].times.min())
        return times, np.where(nearest == tokens, Evidence.INTERPOLATED, Evidence.EXTRAPOLATED)

    def _put_measured(
        self,
        row: int,
        batch_sizes: Integers,
        found: graphs.StepGraphs,
        times: Floats,
        evidence: npt.NDArray[np.int8],
    ) -> None:
        """Put measured times over computed ones, where the step runs the graph that was measured."""
        measured = self._rows[row]
        places = np.flatnonzero(np.isin(batch_sizes, measured.batch_sizes))
        if self.settings != self.measured_under:
            before = graphs.dispatch_batches(
                self.measured_under, batch_sizes[places], self.draft_lengths[row]
            )
            places = places[
                (before.kinds == found.kinds[places]) & (before.padded_tokens == found.padded_tokens[places])
            ]
        cells = np.searchsorted(measured.batch_sizes, batch_sizes[places])
        times[places] = measured.times[cells]
        evidence[places] = Evidence.MEASURED

    def _measured_prompts(self, profile: Profile) -> tuple[_Prompts, ...]:
        points: dict[tuple[int, int, int, int], list[tuple[float, float]]] = {}
        for step in profile.mixed:
            if step.draft_length not in self.draft_lengths:
                continue
            added = step.step_time_ms - self.step_time(step.batch_size, step.draft_length)
            pure = graphs.dispatch(self.settings, step.batch_size, step.draft_length)
            mixed = graphs.dispatch(self.settings, step.batch_size, step.draft_length, step.prompt_tokens)
            if np.isfinite(added):
                kinds = graphs.KINDS.index(pure.kind), graphs.KINDS.index(mixed.kind)
                key = (*kinds, step.draft_length, step.batch_size)
                points.setdefault(key, []).append((float(step.prompt_tokens), added))
        return tuple(_Prompts(*key, _Curve.through(of_key)) for key, of_key in sorted(points.items()))

    def _prompt_costs(
        self, change: tuple[int, int], batch_sizes: Integers, draft_length: int, prompt_tokens: int
    ) -> Floats | float:
        """Return what a prompt adds that makes steps of kind ``change[0]`` ones of kind ``change[1]``."""
        measured_changes = {(prompts.pure_kind, prompts.kind) for prompts in self._prompts}
        # The same change first, then one that ends in the same kind, then any.
        for measured in sorted(measured_changes, key=lambda own: (own != change, own[1] != change[1], own)):
            more = self._changes_between(change, measured)
            if more is not None:
                of_change = [own for own in self._prompts if (own.pure_kind, own.kind) == measured]
                return _interpolate_prompts(of_change, batch_sizes, draft_length, prompt_tokens) + more
        return np.nan

    def _changes_between(self, change: tuple[int, int], measured: tuple[int, int]) -> float | None:
        """Return what one change of kind costs above another, both told by pure steps; None if unknown."""
        if change == measured:
            return 0.0
        costs = [self.kind_costs_more(kind, graphs.FULL) for kind in (*change, *measured)]
        own_pure, own_mixed, measured_pure, measured_mixed = costs
        if own_pure is None or own_mixed is None or measured_pure is None or measured_mixed is None:
            return None
        return (own_mixed - own_pure) - (measured_mixed - measured_pure)


def _interpolate_prompts(
    measured: Sequence[_Prompts], batch_sizes: Integers, draft_length: int, prompt_tokens: int
) -> Floats:
    """Return what a prompt adds, from measured prompts of one kind: nearest length, then by batch size."""
    nearest = min(
        (prompts.draft_length for prompts in measured), key=lambda own: (abs(own - draft_length), own)
    )
    costs = {
        prompts.batch_size: float(prompts.curve.at(np.array([float(prompt_tokens)]))[0])
        for prompts in measured
        if prompts.draft_length == nearest
    }
    interpolated: Floats = np.interp(batch_sizes, sorted(costs), [costs[size] for size in sorted(costs)])
    return interpolated
