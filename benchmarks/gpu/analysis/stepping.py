"""What the step logs tell: predicted against measured, the host's share, what prompts do, why a table loses.

Only windows of closed loops count. In those of constant lengths a step's length is known, so its time can be
held against the profile's cell; a *pure* step has no prompt and the whole batch verifies that length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gpu.analysis.ratios import Estimate
from gpu.analysis.runs import Loop, Run, Steps, Window, constant_length
from numpy.typing import NDArray

from tabletune import correcting, costs, predictions
from tabletune.documents import Document

LEAST_STEPS = 50
"""Pure steps from which a cell is told."""
QUIET_STEPS = 20
"""Quiet steps from which a cell's quiet time is a reference for its neighbours of prompts."""
QUANTILES = (correcting.MEDIAN, correcting.LOWER_QUARTILE)
PROMPT_TOKENS = 256
"""Of the loops whose scatter is told."""
LEAST_CHANGES = 8
"""Steps after a change of length from which their time is told."""
SAME_LENGTH = 0.98
"""Share of time from which a policy is taken to serve one length."""
CLOSE = 0.05
"""Predictions are to be as close."""
RANGES = ((1, 4), (5, 16), (17, 64), (65, 128), (129, 100_000))
"""Batch sizes that are told together."""
GRAPHS = ("not told", "full", "piecewise", "none")
"""`inside.GRAPHS`, in words."""

Booleans = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """Pure decode steps of one batch size and constant length, predicted and measured."""

    run: str
    prompt_tokens: int
    batch_size: int
    draft_length: int
    graph: str
    """The kind of most of the steps."""
    steps: int
    tokens_per_request: float
    """E[K] as measured: kept tokens per request and step."""
    predicted: float | None
    """Tokens per second by the document; None without one, without a price, or in another graph mode."""
    by_span: Estimate | None
    """Kept tokens over GPU time; None where spans are not known."""
    by_quiet_span: Estimate | None
    """The same of quiet steps alone (:func:`quiet`), as the profiler times them; None where they are few."""
    by_interval: Estimate
    """Kept tokens over time from result to result: what users get."""
    span_ms: float | None
    """Median."""
    interval_ms: float

    @property
    def span_ratio(self) -> Estimate | None:
        """Measured by span over predicted."""
        return self._over_predicted(self.by_span)

    @property
    def quiet_ratio(self) -> Estimate | None:
        """Measured by span of quiet steps over predicted."""
        return self._over_predicted(self.by_quiet_span)

    @property
    def interval_ratio(self) -> Estimate | None:
        """Measured by interval over predicted."""
        return self.by_interval.plus(0.0, times=1 / self.predicted) if self.predicted is not None else None

    def _over_predicted(self, measured: Estimate | None) -> Estimate | None:
        if measured is None or self.predicted is None:
            return None
        return measured.plus(0.0, times=1 / self.predicted)


@dataclass(frozen=True)
class Closeness:
    """How close predictions of several cells are: measured over predicted."""

    cells: int
    median: float
    farthest: float
    within: int
    """Cells within :data:`CLOSE` of the prediction."""


@dataclass(frozen=True)
class CellGroup:
    """Cells of one length and kind of graph in a range of batch sizes."""

    run: str
    prompt_tokens: int
    draft_length: int
    graph: str
    batch_sizes: tuple[int, int]
    """The first and the last that is there."""
    tokens_per_request: float
    by_span: Closeness | None
    by_quiet_span: Closeness | None
    by_interval: Closeness | None


@dataclass(frozen=True)
class HostShare:
    """Interval less span of quiet pure steps, by a range of batch sizes."""

    run: str
    batch_sizes: tuple[int, int]
    steps: int
    interval_ms: float
    """Median, as are the others."""
    span_ms: float
    host_ms: float

    @property
    def share(self) -> float:
        """Of the interval."""
        return self.host_ms / self.interval_ms


@dataclass(frozen=True)
class Neighbour:
    """Pure steps beside a step with a prompt, over quiet ones of the same batch size and length."""

    run: str
    place: str
    steps: int
    span: Estimate | None
    """Mean ratio of spans; None where spans are not known."""
    span_median: float | None
    """Median ratio of spans to the quiet median, which is what profile and plugin compare."""
    interval: Estimate


@dataclass(frozen=True)
class Scatter:
    """How what the plugin sees of a cell in a second differs from second to second."""

    run: str
    open: int
    length: int
    seconds: int
    """Cells and seconds with :data:`correcting.MIN_TIMES` spans or more."""
    milliseconds: dict[float, float]
    """Geometric mean of the cell's quantile, by quantile."""
    deviation: dict[float, float]
    """Standard deviation of its logarithm."""
    undisturbed_ms: float
    """5th percentile of all spans of the most frequent batch size."""
    profiled_ms: float | None
    """What the profile says of that cell."""


@dataclass(frozen=True)
class Slowness:
    """How the same steps with a prompt differ from one window to another."""

    run: str
    open: int
    graph: str
    windows: int
    lowest_ms: float
    """Lowest median GPU span of a window."""
    highest_ms: float


@dataclass(frozen=True)
class AfterChange:
    """Pure steps that are the first to verify another length, over settled ones of that length.

    Settled steps ran a full graph, verified and drafted one length, and so did the step before them.
    """

    run: str
    graph: str
    """The kind that the steps after the change ran."""
    downwards: bool
    """Whether the length became shorter."""
    steps: int
    span: float
    """Median ratio of GPU spans."""
    settled_without: float | None
    """The same of settled steps that ran this kind of graph: what the kind alone does."""
    from_two_to_one: int
    """Those of the steps whose length went from 2 to 1, where the paper saw stalls."""


@dataclass(frozen=True)
class MixedSteps:
    """What prompts take beyond quiet steps of the decoding requests.

    Told by episodes: prompts that share a step, or several in a row (a long one is cut into pieces), with
    three pure steps or more before and after.
    """

    run: str
    prompt_tokens: int
    graph: str
    """Of the step with most prompt tokens."""
    episodes: int
    mean_batch: float
    steps: float
    """Mixed steps an episode, mean."""
    prompts: float
    """New requests an episode, mean."""
    more_span_ms: float | None
    """Median over episodes of the mixed steps' spans less quiet ones; None where spans are not known."""
    more_interval_ms: float
    """Median of the intervals from the step before to the step after, less quiet ones."""


@dataclass(frozen=True)
class Anatomy:
    """What a policy's windows in one closed loop were made of."""

    run: str
    loop: Loop
    policy: str
    steps: int
    mean_batch: float
    """Live batch, mean over time."""
    mixed_share: float
    """Of steps, as are the other shares."""
    without_full_graph: float | None
    """Of pure steps; None where the engine does not tell."""
    tokens_per_request: float
    """Kept tokens per request in a pure step."""
    step_ms: float
    """Mean interval of all steps."""
    pure_ms: float
    """Mean interval of pure steps."""
    span_ms: float | None
    """Mean span of pure steps."""
    lengths: dict[int, float]
    """Share of time of each length that drafts were made with."""


@dataclass(frozen=True)
class Explanation:
    """Where a policy's tokens per second differ from another's; factors multiply to about the ratio."""

    policy: str
    reference: str
    loop: Loop
    ratio: Estimate
    tokens_factor: float
    """Kept tokens per request and step."""
    batch_factor: float
    step_factor: float
    """Steps per second."""
    own: Anatomy
    other: Anatomy

    @property
    def cause(self) -> str:
        """The largest factor in the direction of the difference, in words."""
        length = constant_length(self.reference)
        if length is not None and self.own.lengths.get(length, 0.0) > SAME_LENGTH:
            return "the same length was served, so it is not the table's doing"
        factors = {
            "kept tokens per request": self.tokens_factor,
            "live batch": self.batch_factor,
            "step time": self.step_factor,
        }
        choose = min if self.ratio.mean < 1 else max
        name = choose(factors, key=lambda factor: factors[factor])
        if name != "step time":
            return name
        parts = self._step_parts()
        return f"step time: {max(parts, key=lambda part: parts[part])}"

    def _step_parts(self) -> dict[str, float]:
        """Return the milliseconds of a step by which the loser's is longer, by what they are spent on."""
        longer, shorter = (self.own, self.other) if self.ratio.mean < 1 else (self.other, self.own)
        parts = {"prompts": (longer.step_ms - longer.pure_ms) - (shorter.step_ms - shorter.pure_ms)}
        without = (longer.without_full_graph or 0.0) - (shorter.without_full_graph or 0.0)
        if without > 0.02:
            parts["pure steps without a full graph"] = longer.pure_ms - shorter.pure_ms
        elif longer.span_ms is not None and shorter.span_ms is not None:
            parts["the GPU's"] = longer.span_ms - shorter.span_ms
            parts["the host's"] = longer.pure_ms - shorter.pure_ms - parts["the GPU's"]
        else:
            parts["pure steps"] = longer.pure_ms - shorter.pure_ms
        return parts


def pure(steps: Steps, length: int, uniform: bool) -> Booleans:
    """Return which steps are pure decode steps of one length.

    ``drafted_tokens`` counts all requests', so it is ``length`` times the batch size where drafts are
    uniform; elsewhere fewer, for requests without a draft. Drafting counts too: a step's time holds the
    drafts made for the next one.
    """
    whole = length * steps.batch_size
    drafted = steps.drafted_tokens == whole if uniform else steps.drafted_tokens <= whole
    drafting = steps.next_draft_length == length
    chosen: Booleans = ~steps.mixed & drafted & drafting & np.isfinite(steps.interval_ms)
    return chosen


def after(mask: Booleans, places: int) -> Booleans:
    """Return which steps come ``places`` after one of ``mask``; before it where negative."""
    moved = np.zeros_like(mask)
    if places >= 0:
        moved[places:] = mask[: len(mask) - places]
    else:
        moved[:places] = mask[-places:]
    return moved


def quiet(steps: Steps) -> Booleans:
    """Return which steps have no prompt in the two steps before, the one after, or themselves.

    The first two steps of a window and its last have neighbours that are not known.
    """
    mixed = steps.mixed
    noisy = mixed | after(mixed, 1) | after(mixed, 2) | after(mixed, -1)
    noisy[:2] = True
    noisy[-1:] = True
    return ~noisy


def rate(kept: Floats, times_ms: Floats) -> Estimate:
    """Return kept tokens per second, the ratio of two sums, with its standard error.

    The error is that of a ratio estimate: each step's residual is what it kept beyond the rate.
    """
    total = float(times_ms.sum())
    per_ms = float(kept.sum()) / total
    residuals = kept - per_ms * times_ms
    count = len(kept)
    error = math.sqrt(float(residuals @ residuals) * count / (count - 1)) / total if count > 1 else None
    return Estimate(per_ms * 1e3, None if error is None else error * 1e3, count)


def predicted_goodput(document: Document) -> dict[tuple[int, int], float]:
    """Return the document's tokens per second by batch size and length: ``B · E[K] / T`` of its profile."""
    lengths = document.profile.draft_lengths
    model = costs.CostModel.from_profile(document.profile, document.fingerprint)
    goodput = predictions.goodput(
        model.step_times(document.fingerprint.max_num_seqs), document.acceptance, lengths
    )
    return {
        (column + 1, lengths[row]): float(goodput[row, column])
        for row, column in zip(*np.nonzero(np.isfinite(goodput)), strict=True)
    }


def cells(run: Run) -> list[Cell]:
    """Return the cells with enough pure steps in the windows of constants, by prompts, length, batch size."""
    predicted = predicted_goodput(run.document) if run.document is not None and run.as_profiled else {}
    found = []
    for (prompt_tokens, length), windows in sorted(_constants(run).items()):
        counted = [pure(own, length, run.uniform_drafts) for own in windows]
        steps = _joined(own.taken(mask) for own, mask in zip(windows, counted, strict=True))
        if steps is None:
            continue
        # Told with all neighbours there, which pure steps alone are not.
        is_quiet = np.concatenate([quiet(own)[mask] for own, mask in zip(windows, counted, strict=True)])
        for size in np.unique(steps.batch_size).tolist():
            of_size = steps.batch_size == size
            if of_size.sum() >= LEAST_STEPS:
                own, price = steps.taken(of_size), predicted.get((size, length))
                found.append(_cell(run.name, prompt_tokens, size, length, own, is_quiet[of_size], price))
    return found


def grouped(cells: Iterable[Cell]) -> list[CellGroup]:
    """Return cells that have a prediction in groups, in their order."""
    groups: dict[tuple[str, int, int, str, tuple[int, int]], list[Cell]] = {}
    for cell in cells:
        if cell.predicted is not None:
            sizes = next(sizes for sizes in RANGES if sizes[0] <= cell.batch_size <= sizes[1])
            key = cell.run, cell.prompt_tokens, cell.draft_length, cell.graph, sizes
            groups.setdefault(key, []).append(cell)
    return [
        CellGroup(
            *key[:4],
            (min(cell.batch_size for cell in own), max(cell.batch_size for cell in own)),
            float(np.mean([cell.tokens_per_request for cell in own])),
            closeness([cell.span_ratio.mean for cell in own if cell.span_ratio is not None]),
            closeness([cell.quiet_ratio.mean for cell in own if cell.quiet_ratio is not None]),
            closeness([cell.interval_ratio.mean for cell in own if cell.interval_ratio is not None]),
        )
        for key, own in groups.items()
    ]


def closeness(values: Sequence[float]) -> Closeness | None:
    """Return how close ratios are to 1; None without any."""
    if not values:
        return None
    return Closeness(
        len(values),
        float(np.median(values)),
        max(values, key=lambda ratio: abs(ratio - 1)),
        sum(abs(ratio - 1) <= CLOSE for ratio in values),
    )


def host_shares(run: Run) -> list[HostShare]:
    """Return the host's share of quiet pure steps by ranges of batch sizes, each twice the one before."""
    windows = [
        own.taken(quiet(own) & pure(own, length, run.uniform_drafts) & np.isfinite(own.span_ms))
        for (_, length), all_steps in _constants(run).items()
        for own in all_steps
    ]
    steps = _joined(windows)
    if steps is None:
        return []
    found = []
    ranges = np.floor(np.log2(steps.batch_size)).astype(int)
    for power in np.unique(ranges).tolist():
        own = steps.taken(ranges == power)
        if len(own) >= QUIET_STEPS:
            found.append(
                HostShare(
                    run.name,
                    (2**power, 2 ** (power + 1) - 1),
                    len(own),
                    float(np.median(own.interval_ms)),
                    float(np.median(own.span_ms)),
                    float(np.median(own.interval_ms - own.span_ms)),
                )
            )
    return found


def neighbours(run: Run) -> list[Neighbour]:
    """Return the times of pure steps beside a prompt's, over quiet ones: is every pure step's span right?"""
    places = {"the step before": -1, "the first step after": 1, "the second step after": 2}
    spans: dict[str, list[Floats]] = {place: [] for place in places}
    medians: dict[str, list[Floats]] = {place: [] for place in places}
    intervals: dict[str, list[Floats]] = {place: [] for place in places}
    for (_, length), windows in _constants(run).items():
        quiet_spans = _quiet_times(windows, length, run.uniform_drafts, "span_ms")
        quiet_medians = _quiet_times(windows, length, run.uniform_drafts, "span_ms", np.median)
        quiet_intervals = _quiet_times(windows, length, run.uniform_drafts, "interval_ms")
        for own in windows:
            is_pure = pure(own, length, run.uniform_drafts)
            for place, moved in places.items():
                beside = own.taken(is_pure & after(own.mixed, moved))
                spans[place].append(_over(beside.span_ms, beside.batch_size, quiet_spans))
                medians[place].append(_over(beside.span_ms, beside.batch_size, quiet_medians))
                intervals[place].append(_over(beside.interval_ms, beside.batch_size, quiet_intervals))
    found = []
    for place in places:
        of_intervals, of_spans = _mean(intervals[place]), _mean(spans[place])
        if of_intervals is not None:
            median = float(np.median(np.concatenate(medians[place]))) if of_spans is not None else None
            found.append(Neighbour(run.name, place, of_intervals.rounds, of_spans, median, of_intervals))
    return found


def scatter(run: Run) -> list[Scatter]:
    """Return how quantiles of a second of spans scatter, in each load's three most frequent batch sizes."""
    found = []
    document = run.document
    model = None
    if document is not None:
        model = costs.CostModel.from_profile(document.profile, document.fingerprint)
    for loop, windows in run.loops.items():
        of_length: dict[int, list[Steps]] = {}
        for window in windows:
            if window.constant and window.steps is not None and loop.prompt_tokens == PROMPT_TOKENS:
                own = window.steps
                usable = pure(own, window.constant, run.uniform_drafts) & np.isfinite(own.span_ms)
                of_length.setdefault(window.constant, []).append(own.taken(usable))
        for length, parts in sorted(of_length.items()):
            steps = _joined(parts)
            if steps is None:
                continue
            sizes, counts = np.unique(steps.batch_size, return_counts=True)
            frequent = sizes[np.argsort(-counts)[:3]].tolist()
            usual = frequent[0]
            cells = [_by_second(steps, size) for size in frequent]
            logs = np.concatenate(cells)
            if len(logs) >= QUIET_STEPS:
                # Each about its own cell's mean: cells differ.
                apart = np.concatenate([own - own.mean(axis=0) for own in cells if len(own)])
                means, deviations = np.exp(logs.mean(axis=0)), apart.std(axis=0)
                found.append(
                    Scatter(
                        run.name,
                        loop.open,
                        length,
                        len(logs),
                        dict(zip(QUANTILES, means.tolist(), strict=True)),
                        dict(zip(QUANTILES, deviations.tolist(), strict=True)),
                        float(np.percentile(steps.span_ms[steps.batch_size == usual], 5)),
                        _profiled_ms(model, usual, length),
                    )
                )
    return found


def _profiled_ms(model: costs.CostModel | None, batch_size: int, length: int) -> float | None:
    if model is None or length not in model.draft_lengths:
        return None
    found = model.step_time(batch_size, length)
    return found if math.isfinite(found) else None


def slowness(run: Run) -> list[Slowness]:
    """Return how steps with one or two prompts of 256 tokens differ between windows, by load and graph."""
    found = []
    for loop, windows in run.loops.items():
        medians: dict[int, list[float]] = {}
        for window in windows if loop.prompt_tokens == PROMPT_TOKENS else []:
            steps = window.steps
            if steps is None:
                continue
            few = steps.mixed & (steps.new_requests > 0) & (steps.prompt_tokens < 2 * PROMPT_TOKENS)
            own = steps.taken(few & np.isfinite(steps.span_ms))
            for code in np.unique(own.graph).tolist():
                spans = own.span_ms[own.graph == code]
                if len(spans) >= QUIET_STEPS:
                    medians.setdefault(code, []).append(float(np.median(spans)))
        found += [
            Slowness(run.name, loop.open, GRAPHS[code], len(own_medians), min(own_medians), max(own_medians))
            for code, own_medians in sorted(medians.items())
            if len(own_medians) > 1
        ]
    return found


def _by_second(steps: Steps, batch_size: int) -> Floats:
    """Return logarithms of :data:`QUANTILES`, a row for each second with enough spans of the batch size."""
    own = steps.taken(steps.batch_size == batch_size)
    seconds = [own.between(at, at + 1).span_ms.tolist() for at in np.unique(np.floor(own.result_at)).tolist()]
    rows = [
        [math.log(correcting.typical(spans, quantile)) for quantile in QUANTILES]
        for spans in seconds
        if len(spans) >= correcting.MIN_TIMES
    ]
    return np.array(rows).reshape(-1, len(QUANTILES))


def after_changes(run: Run) -> list[AfterChange]:
    """Return what steps after a change of length take: does the change stall them, or the graph they find?

    Settled steps are references for those as far from a prompt, interpolated between batch sizes. The step
    before ran a full graph, since one that keeps the host busy lengthens the span after it, too. Steps
    after the last record that tells its beginning are left out: those of the plugin's cost told none once,
    and spans slipped there (`runs.realigned`).
    """
    if run.steps is None or not run.uniform_drafts:
        return []
    told = [record for record in run.records if "began" in record]
    ended = max((record["began"] + record.get("seconds", 0.0) for record in told), default=0.0)
    steps = run.steps.between(0.0, ended)
    mixed = steps.mixed
    length, rest = np.divmod(steps.drafted_tokens, np.maximum(steps.batch_size, 1))
    before = np.concatenate([length[:1], length[:-1]])
    is_full = steps.graph == GRAPHS.index("full")
    usable = ~mixed & ~after(mixed, 1) & after(is_full, 1) & (steps.graph > 0) & np.isfinite(steps.span_ms)
    usable &= (rest == 0) & (steps.next_draft_length == length)
    settled = usable & (length == before)
    over = np.full(len(steps), np.nan)
    for near in (after(mixed, 2), ~after(mixed, 2)):
        for own in np.unique(length[settled]).tolist():
            alike = near & (length == own)
            full = steps.taken(settled & alike & is_full)
            references = _by_size(full.span_ms, full.batch_size, np.median)
            over[alike] = steps.span_ms[alike] / _interpolated(references, steps.batch_size[alike])

    def median(chosen: Booleans) -> tuple[int, float | None]:
        ratios = over[chosen & np.isfinite(over)]
        return len(ratios), float(np.median(ratios)) if len(ratios) >= LEAST_CHANGES else None

    found = []
    for code, graph in enumerate(GRAPHS):
        alike = usable & (steps.graph == code)
        _, without = median(alike & settled)
        for downwards in (True, False):
            changed = alike & ((length < before) if downwards else (length > before))
            count, span = median(changed)
            if span is not None:
                of_paper = int((changed & np.isfinite(over) & (before == 2) & (length == 1)).sum())
                found.append(AfterChange(run.name, graph, downwards, count, span, without, of_paper))
    return found


def mixed_steps(run: Run) -> list[MixedSteps]:
    """Return what prompts take more, by their length and kind of graph.

    A quiet step of as many decoding requests is what each step is held against, interpolated between the
    batch sizes with enough quiet steps.
    """
    rows: dict[tuple[int, int], list[tuple[float, ...]]] = {}
    for (prompt_tokens, length), windows in _constants(run).items():
        quiet_spans = _quiet_times(windows, length, run.uniform_drafts, "span_ms")
        quiet_intervals = _quiet_times(windows, length, run.uniform_drafts, "interval_ms")
        if not quiet_intervals:
            continue
        for own in windows:
            for first, last in episodes(own.mixed):
                mixed, around = slice(first, last + 1), slice(first - 1, last + 2)
                decoding = np.maximum(1, own.batch_size - own.new_requests)
                span = own.span_ms[mixed] - _interpolated(quiet_spans, decoding[mixed])
                interval = own.interval_ms[around] - _interpolated(quiet_intervals, decoding[around])
                graph = own.graph[mixed][own.prompt_tokens[mixed].argmax()]
                rows.setdefault((prompt_tokens, int(graph)), []).append(
                    (
                        float(own.batch_size[mixed].mean()),
                        last + 1 - first,
                        float(own.new_requests[mixed].sum()),
                        float(span.sum()),
                        float(interval.sum()),
                    )
                )
    found = []
    for (prompt_tokens, graph_code), values in sorted(rows.items()):
        sizes, steps, prompts, spans, intervals = np.array(values, dtype=np.float64).T
        known = spans[np.isfinite(spans)]
        if np.isfinite(intervals).any():
            found.append(
                MixedSteps(
                    run.name,
                    prompt_tokens,
                    GRAPHS[graph_code],
                    len(values),
                    float(sizes.mean()),
                    float(steps.mean()),
                    float(prompts.mean()),
                    float(np.median(known)) if len(known) else None,
                    float(np.nanmedian(intervals)),
                )
            )
    return found


def anatomies(run: Run) -> list[Anatomy]:
    """Return what each policy's windows were made of."""
    found = []
    for loop, windows in sorted(run.loops.items()):
        for policy in sorted({window.policy for window in windows}):
            own = [window for window in windows if window.policy == policy]
            if (anatomy := _anatomy(run, loop, policy, own)) is not None:
                found.append(anatomy)
    return found


def evened(run: Run) -> dict[Loop, list[Window]]:
    """Return the windows as they would be with as many prompts as their tokens call for.

    In a closed loop a prompt comes in whenever an output ends: on average one in as many tokens as an output
    has. How many fall into a window of two seconds is luck, and each takes time. What a prompt takes is told
    by all windows of the policy in this loop (:func:`_marginal_ms`).
    """
    found: dict[Loop, list[Window]] = {}
    told = {(own.loop, own.policy): own for own in anatomies(run)}
    for loop, windows in run.loops.items():
        for policy in dict.fromkeys(window.policy for window in windows):
            own = [window for window in windows if window.policy == policy]
            anatomy = told.get((loop, policy))
            if anatomy is None:
                continue
            prompts = sum(_prompts(window) for window in own)
            prompt_ms = _marginal_ms(anatomy, prompts)
            found.setdefault(loop, []).extend(
                _evened(window, loop.mean_output_tokens, prompt_ms) for window in own
            )
    return found


def explain(ratio: Estimate, own: Anatomy, other: Anatomy) -> Explanation:
    """Return where the difference of two policies comes from: ``rate = batch · kept / step time``."""
    return Explanation(
        own.policy,
        other.policy,
        own.loop,
        ratio,
        own.tokens_per_request / other.tokens_per_request,
        own.mean_batch / other.mean_batch,
        other.step_ms / own.step_ms,
        own,
        other,
    )


def full_graph_share(run: Run, most: int | None = None) -> tuple[int, int] | None:
    """Return how many pure steps of all closed loops there were and how many ran a full graph.

    None where the engine does not tell.
    """
    steps = _joined(window.steps for own in run.loops.values() for window in own if window.steps is not None)
    if steps is None:
        return None
    told = ~steps.mixed & (steps.graph > 0)
    if most is not None:
        told &= steps.batch_size <= most
    return (int(told.sum()), int((steps.graph[told] == 1).sum())) if told.any() else None


def _constants(run: Run) -> dict[tuple[int, int], list[Steps]]:
    """Return the steps of the windows of constants, by prompt tokens and length."""
    found: dict[tuple[int, int], list[Steps]] = {}
    for loop, windows in run.loops.items():
        for window in windows:
            if window.constant is not None and window.steps is not None and len(window.steps):
                found.setdefault((loop.prompt_tokens, window.constant), []).append(window.steps)
    return found


def _joined(parts: Iterable[Steps]) -> Steps | None:
    known = [part for part in parts if len(part)]
    if not known:
        return None
    return Steps(
        **{
            name: np.concatenate([getattr(part, name) for part in known])
            for name in Steps.__dataclass_fields__
        }
    )


def _marginal_ms(anatomy: Anatomy, prompts: int) -> float:
    """Return the milliseconds that one more prompt takes.

    On average it takes what steps take beyond pure ones. Most of that is the step's (ENGINE.md 1), however
    many prompts share it, so one more costs only where it meets no other: of steps, as many as are pure.
    """
    if not prompts or not anatomy.mixed_share:
        return 0.0
    of_mixed_step = (anatomy.step_ms - anatomy.pure_ms) / anatomy.mixed_share
    return max(0.0, of_mixed_step * (1 - anatomy.mixed_share))


def _prompts(window: Window) -> int:
    return int(window.steps.new_requests.sum()) if window.steps is not None else 0


def _evened(window: Window, output_tokens: float, prompt_ms: float) -> Window:
    kept = window.tokens_per_second * window.seconds
    lacking = kept / output_tokens - _prompts(window)
    return replace(window, tokens_per_second=kept / (window.seconds + lacking * prompt_ms / 1e3))


def _cell(
    run: str,
    prompt_tokens: int,
    size: int,
    length: int,
    steps: Steps,
    is_quiet: Booleans,
    predicted: float | None,
) -> Cell:
    kept = steps.kept_tokens.astype(np.float64)
    known = np.isfinite(steps.span_ms)
    quiet_known = is_quiet & known
    enough = int(known.sum()) >= LEAST_STEPS
    return Cell(
        run,
        prompt_tokens,
        size,
        length,
        GRAPHS[int(np.bincount(steps.graph).argmax())],
        len(steps),
        float(kept.mean()) / size,
        predicted,
        rate(kept[known], steps.span_ms[known]) if enough else None,
        rate(kept[quiet_known], steps.span_ms[quiet_known]) if quiet_known.sum() >= QUIET_STEPS else None,
        rate(kept, steps.interval_ms),
        float(np.median(steps.span_ms[known])) if enough else None,
        float(np.median(steps.interval_ms)),
    )


def _quiet_times(
    windows: Sequence[Steps],
    length: int,
    uniform: bool,
    name: str,
    average: Callable[[Floats], Any] = np.mean,
) -> dict[int, float]:
    """Return the average time of quiet pure steps by batch size, where there are enough."""
    steps = _joined(own.taken(quiet(own) & pure(own, length, uniform)) for own in windows)
    if steps is None:
        return {}
    times = getattr(steps, name)
    known = np.isfinite(times)
    return _by_size(times[known], steps.batch_size[known], average)


def _by_size(times: Floats, sizes: NDArray[np.int64], average: Callable[[Floats], Any]) -> dict[int, float]:
    """Return the average time by batch size, where there are enough."""
    there, counts = np.unique(sizes, return_counts=True)
    return {size: float(average(times[sizes == size])) for size in there[counts >= QUIET_STEPS].tolist()}


def _over(times: Floats, sizes: NDArray[np.int64], quiet_times: dict[int, float]) -> Floats:
    """Return each time over the quiet one of its batch size, where both are known."""
    reference = np.array([quiet_times.get(size, np.nan) for size in sizes.tolist()])
    ratios: Floats = times / reference
    known: Floats = ratios[np.isfinite(ratios)]
    return known


def _mean(parts: Iterable[Floats]) -> Estimate | None:
    values = np.concatenate([np.array([]), *parts])
    if len(values) < QUIET_STEPS:
        return None
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))), len(values))


def episodes(mixed: Booleans) -> Iterator[tuple[int, int]]:
    """Yield first and last place of each run of mixed steps with three pure ones before and after it."""
    edges = np.diff(np.concatenate([[False], mixed, [False]]).astype(np.int8))
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        alone = not mixed[max(0, first - 3) : first].any() and not mixed[last + 1 : last + 4].any()
        if alone and first >= 3 and last + 3 < len(mixed):
            yield first, last


def _interpolated(times: dict[int, float], sizes: NDArray[np.int64]) -> Floats:
    if not times:
        return np.full(len(sizes), np.nan)
    known = sorted(times)
    found: Floats = np.interp(sizes, known, [times[own] for own in known])
    return found


def _anatomy(run: Run, loop: Loop, policy: str, windows: Sequence[Window]) -> Anatomy | None:
    steps = _joined(window.steps for window in windows if window.steps is not None)
    if steps is None:
        return None
    timed = np.isfinite(steps.interval_ms)
    steps = steps.taken(timed)
    decode = steps.taken(~steps.mixed)
    if not len(decode):
        return None
    spans = decode.span_ms[np.isfinite(decode.span_ms)]
    told = decode.graph > 0
    total = float(steps.interval_ms.sum())
    return Anatomy(
        run.name,
        loop,
        policy,
        len(steps),
        float(steps.batch_size @ steps.interval_ms) / total,
        float(steps.mixed.mean()),
        float((decode.graph[told] != 1).mean()) if told.any() else None,
        float(decode.kept_tokens.sum() / decode.batch_size.sum()),
        float(steps.interval_ms.mean()),
        float(decode.interval_ms.mean()),
        float(spans.mean()) if len(spans) else None,
        {
            length: float(steps.interval_ms[steps.next_draft_length == length].sum()) / total
            for length in np.unique(steps.next_draft_length).tolist()
        },
    )
