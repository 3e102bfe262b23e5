"""The controller: from what a window of serving showed to the lookup to use from now on.

The plugin calls it in a background thread of the serving process, about once a second; nothing else is fed
to it, so a simulator can replay everything (`benchmarks/control`). Without it a table made on sample prompts
in another engine would be served for good, however wrong for the traffic and the machine of the day.

It ties together what the core knows: :mod:`tabletune.estimating` says what live counts mean,
:mod:`tabletune.correcting` what live step times mean, :mod:`tabletune.hazards` where a length may kill the
engine. A state comes in and a state goes out; all of it is bounded, and whatever a window holds
(:func:`advance` is handed numbers from a foreign engine) no exception comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from tabletune import correcting, costs, estimating, graphs, hazards, tables, traffic
from tabletune.acceptance import Rates, expected_tokens_of
from tabletune.documents import Acceptance, Control, Document, Fingerprint

Floats = npt.NDArray[np.float64]

EXPLORATION_STEPS = 8
"""Steps that one exploration lasts. The tally times none of the first three after a change of length, so five
are left to time the cell."""

PENDING_SECONDS = 5.0
"""Longest that counts are collected before they are compared with those before them."""

STALL_FACTOR = 2.0
"""Steps after a change count as stalled where their median is beyond this multiple of both lengths' own
times."""

STALL_MILLISECONDS = 2.0
"""And beyond them by this: on a fast engine a doubled step may be the host's hiccup."""

STALLS_NEEDED = 3
"""Windows with stalled changes, more than with others, after which an edge is avoided."""

MOST_COUNT = 1e12
"""Most that a window's count is taken for; larger ones are an engine's mistake and would not stay finite."""


@dataclass(frozen=True)
class StepTimes:
    """Times of pure, quiet decode steps of one cell, the profile's own measure."""

    batch_size: int
    """Requests in the steps."""
    draft_length: int
    """Draft length verified in them."""
    times_ms: tuple[float, ...]
    """Milliseconds, oldest first; at most 64 of a cell and window."""


@dataclass(frozen=True)
class LengthChange:
    """What followed a change of the lookup's length."""

    before: int
    """Length before."""
    after: int
    """Length after."""
    batch_size: int
    """Requests in the steps."""
    times_ms: tuple[float, ...]
    """Times of the pure steps 1 to 8 after the change, milliseconds."""


@dataclass(frozen=True)
class Window:
    """About a second of serving."""

    seconds: float
    """Since the previous window."""
    counts: estimating.Counts
    """Drafts counted in it."""
    step_times: tuple[StepTimes, ...] = ()
    """Times by cell."""
    changes: tuple[LengthChange, ...] = ()
    """Changes of length; at most 64."""
    next_steps: tuple[traffic.NextSteps, ...] = ()
    """Which steps followed which."""
    steps: int = 0
    """All steps of the window, mixed ones too."""
    kept_tokens: int = 0
    """Output tokens that they kept."""
    timed: bool = True
    """Whether steps are timed in the profile's measure. If not, no length is explored for what it costs,
    since nobody would see it."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What stays while one document is in force; made by :func:`plan`."""

    lookup: tuple[int, ...]
    """The document's table by batch size; entry 0 is unused."""
    draft_lengths: tuple[int, ...]
    """Profiled draft lengths, ascending."""
    max_batch_size: int
    """The engine's largest batch size."""
    grid: correcting.Grid
    """Profiled step times at every batch size."""
    hazardous: hazards.Flags
    """Cells that may kill the engine, ``(lengths, batch sizes)``."""
    requests: traffic.Requests
    """What requests are said to be like."""
    prompt_bounds: tuple[int, ...]
    """Numbers of prompt tokens that are told apart."""
    prompt_graph_ms: Floats
    """What the graphs of steps with so many prompt tokens cost, ``(bounds, lengths, batch sizes)``. The bound
    that holds the prompts of ``requests`` is priced by these, as the document's table was."""
    prior: Acceptance
    """The document's acceptance."""
    control: Control
    """Settings in force."""

    @property
    def positions(self) -> int:
        """Draft positions that are counted."""
        return self.draft_lengths[-1]


@dataclass(frozen=True, eq=False)
class State:
    """What was learnt from live traffic since the document was loaded. Bounded, whatever is served."""

    lookup: tuple[int, ...]
    """The lookup in force."""
    live: estimating.Live
    """Counts that were compared with those before them."""
    pending: estimating.Counts
    """Counts that were not yet."""
    pending_seconds: float
    """How long they were collected."""
    late: estimating.Counts
    """Counts of the last seconds."""
    following: traffic.Following
    """Which steps followed which of late."""
    evidence: correcting.Evidence
    """Live step times."""
    correction: correcting.Correction
    """What they say."""
    stalls: Mapping[tuple[int, int], int] = field(default_factory=lambda: MappingProxyType({}))
    """Windows with stalled changes by edge, less those with others, down to 0."""
    avoided: tuple[tuple[int, int], ...] = ()
    """Edges that stalled too often, in the order found."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a window led to."""

    lookup: tuple[int, ...]
    """To put in force now; ``max_batch_size + 1`` entries."""
    exploration: estimating.ExplorationPlan
    """What the hot path may explore."""
    decision: estimating.Decision
    """Whether the table was corrected, and why."""
    estimate: estimating.Estimate
    """Acceptance as believed now."""
    costs: correcting.Correction
    """Step times as believed now."""
    avoided_changes: tuple[tuple[int, int], ...]
    """Edges that the table avoids since the engine stalled there."""
    shifted: bool
    """Whether a switch of workload was noticed in this window."""


def plan(
    document: Document,
    control: Control,
    max_batch_size: int,
    fingerprint: Fingerprint | None = None,
    started_for: Sequence[int] = (),
) -> Plan:
    """Return the plan for ``document`` under ``control`` in an engine of ``max_batch_size`` requests.

    ``fingerprint`` is the serving engine's, ``started_for`` the lengths that its start-up table named (the
    profiled ones where it is empty). Its capture sizes and these say which batch sizes find a full graph and
    which are hazardous: the sizes of all lengths are filed together, so one that is captured here and was not
    for the profile moves the others too. Where its graph mode or runner is not the profile's, no profile
    tells what its graphs cost; the profile's times are taken, and live times correct them.

    Raises :class:`tabletune.tables.TableError` where ``control`` allows or pins a length that was not
    profiled, and where the table's ranges are none.
    """
    profile = document.profile
    lengths = profile.draft_lengths
    tables.allowed_lengths(lengths, control.allowed_lengths)
    tables.allowed_lengths(lengths, sorted({length for _, _, length in control.pinned}))
    engine = (fingerprint or document.fingerprint).model_copy(update={"max_num_seqs": max_batch_size})
    model = costs.CostModel.from_profile(profile, document.fingerprint)
    captured = tuple(started_for) or lengths
    settings = graphs.GraphSettings.from_fingerprint(engine, captured)
    if (settings.mode, settings.runner) == (model.settings.mode, model.settings.runner):
        model = model.under(settings)
    sizes = np.arange(1, max_batch_size + 1)
    requests = traffic.Requests.of(
        document.engine.prompt_tokens, document.engine.output_tokens, engine.max_num_batched_tokens
    )
    bounds = traffic.prompt_bounds(model.settings.largest_capture_size)
    prompts = list(bounds)
    prompts[traffic.place(bounds, requests.prompt_tokens)] = requests.prompt_tokens
    kinds = [graphs.dispatch_batches(model.settings, sizes, length).kinds for length in lengths]
    return Plan(
        lookup=tables.lookup(document.table, max_batch_size),
        draft_lengths=lengths,
        max_batch_size=max_batch_size,
        grid=correcting.Grid(
            model.step_times(max_batch_size),
            np.array(kinds, dtype=np.int64),
            correcting.quantile_for(engine.drafter_method),
        ),
        hazardous=hazards.drafted(hazards.cells(profile, engine, max_batch_size, captured)),
        requests=requests,
        prompt_bounds=bounds,
        prompt_graph_ms=np.array([model.prompt_graph_costs(sizes, tokens) for tokens in prompts]),
        prior=document.acceptance,
        control=control,
    )


def begin(plan: Plan) -> State:
    """Return the state before the first window.

    Its lookup is the document's; where that has a length that is hazardous or not allowed, the length
    with the highest predicted goodput of the others.
    """
    none = estimating.Live.none(plan.positions)
    evidence = correcting.Evidence.none(plan.grid)
    correction = correcting.correct(plan.grid, evidence)
    return State(
        lookup=_kept_off(plan, correction),
        live=none,
        pending=none.recent,
        pending_seconds=0.0,
        late=none.recent,
        following=traffic.Following.none(plan.max_batch_size, len(plan.prompt_bounds)),
        evidence=evidence,
        correction=correction,
    )


def carry(plan: Plan, state: State) -> State:
    """Return the state with which a new document's ``plan`` starts.

    Counts of live traffic stay true, position by position. Step times start over where the profile's
    changed, and so do the edges to avoid: the new table was perhaps made to avoid them.
    """
    fresh = begin(plan)
    live = estimating.Live(_fitted(state.live.recent, plan), _fitted(state.live.total, plan))
    carried = replace(
        fresh,
        live=live,
        pending=_fitted(state.pending, plan),
        pending_seconds=state.pending_seconds,
        late=_fitted(state.late, plan),
        following=_following_fitted(state.following, plan),
    )
    if np.array_equal(state.correction.profiled_ms, plan.grid.profiled_ms, equal_nan=True):
        correction = correcting.correct(plan.grid, state.evidence)
        carried = replace(carried, evidence=state.evidence, correction=correction)
    return carried


def advance(plan: Plan, state: State, window: Window) -> tuple[State, Outcome]:
    """Return state and outcome after ``window``. Raises nothing, whatever numbers the window holds.

    1. Counts: fade, are compared with those before (a shift forgets these), and blend with the prior.
    2. Step times correct the profile's (:mod:`tabletune.correcting`), and which steps followed which says
       what verifies a draft (:mod:`tabletune.traffic`).
    3. Changes of length after which the engine stalled, repeatedly, are avoided: of the two lengths the
       one goes whose loss costs less goodput, for as long as the document is in force.
    4. The lookup is decided (:func:`tabletune.estimating.decide`), hazards kept off. Before ``min_drafts``
       drafts were seen the document's acceptance is believed, so that costs alone can correct.
    5. What to explore is planned for that lookup.
    """
    elapsed = min(window.seconds, 1e6) if window.seconds > 0 else 0.0
    counts = _fitted(window.counts, plan)
    live, pending, pending_seconds, shifted = _count(plan, state, counts, elapsed)
    late = estimating.late(state.late, counts, elapsed)
    both = estimating.add(live, pending)
    estimate = estimating.estimate(both, plan.prior, plan.control.prior_drafts)

    times = _by_cell(plan, window)
    evidence = correcting.observe(plan.grid, state.evidence, state.correction, times.items(), elapsed)
    correction = correcting.correct(plan.grid, evidence) if times else state.correction

    stalls, avoided = _stalls(plan, state, window, times)
    drafts = both.total.drafted[0] if both.total.drafted else 0.0
    believed = estimate if drafts >= plan.control.min_drafts else plan.prior
    following = traffic.observe(state.following, window.next_steps, plan.prompt_bounds, elapsed)
    goodput = _goodput(plan, correction, believed, plan.control, following)
    control = _without_stalls(plan, goodput, avoided)
    usable = _usable(plan, goodput, control, state.lookup)
    decision = estimating.decide(state.lookup, usable, plan.draft_lengths, control, drafts)
    rows = [plan.draft_lengths.index(length) for length in decision.lookup[1:]]
    exploration = estimating.plan_exploration(
        decision.lookup,
        _runnable(plan, correction.step_times_ms, rows),
        plan.draft_lengths,
        estimate,
        control,
        correcting.contrast_times(plan.grid, evidence, rows) if window.timed else None,
        EXPLORATION_STEPS,
        late,
    )
    after = State(
        lookup=decision.lookup,
        live=live,
        pending=pending,
        pending_seconds=pending_seconds,
        late=late,
        following=following,
        evidence=evidence,
        correction=correction,
        stalls=stalls,
        avoided=avoided,
    )
    outcome = Outcome(
        lookup=decision.lookup,
        exploration=exploration,
        decision=decision,
        estimate=estimate,
        costs=correction,
        avoided_changes=avoided,
        shifted=shifted,
    )
    return after, outcome


def _count(
    plan: Plan, state: State, counts: estimating.Counts, elapsed: float
) -> tuple[estimating.Live, estimating.Counts, float, bool]:
    """Return live counts, pending counts, their age, and whether traffic shifted."""
    live = estimating.fade(state.live, elapsed, plan.control.half_life)
    pending = estimating.add(
        estimating.Live(state.pending, estimating.Counts.none(plan.positions)), counts
    ).recent
    seconds = state.pending_seconds + elapsed
    found = estimating.shift(live.recent, pending, max(plan.control.prior_drafts, 1.0))
    if found.reason == estimating.TOO_FEW_DRAFTS and seconds < PENDING_SECONDS:
        return live, pending, seconds, False
    if found.found:
        live = estimating.forget(live)
    return estimating.add(live, pending), estimating.Counts.none(plan.positions), 0.0, found.found


def _goodput(
    plan: Plan,
    correction: correcting.Correction,
    acceptance: Rates,
    control: Control,
    seen: traffic.Following | None = None,
) -> Floats:
    """Return goodput by the steps that verify what each batch size drafts, as believed now."""
    times = correction.step_times_ms
    tokens = expected_tokens_of(acceptance.survival, acceptance.proposal_rate, plan.draft_lengths)
    weights = np.zeros(len(plan.prompt_bounds))
    weights[traffic.place(plan.prompt_bounds, plan.requests.prompt_tokens)] = traffic.EXPECTED_STEPS
    if seen is not None:
        weights += seen.prompts
    more = np.tensordot(weights / weights.sum(), plan.prompt_graph_ms, axes=1)
    mixed = traffic.mixed_times(times, more)
    expected = traffic.goodput(times, mixed, tokens, plan.requests)
    if seen is None:
        return expected
    allowed = tables.allowed_lengths(plan.draft_lengths, control.allowed_lengths)
    usable = ~plan.hazardous & np.isin(plan.draft_lengths, allowed)[:, np.newaxis]
    return traffic.seen_goodput(expected, times, mixed, tokens, seen, usable)


def _following_fitted(following: traffic.Following, plan: Plan) -> traffic.Following:
    """Return ``following`` for the plan's engine: as it is, or nothing where capture sizes were others."""
    fresh = traffic.Following.none(plan.max_batch_size, len(plan.prompt_bounds))
    same = following.pure.shape == fresh.pure.shape and following.prompts.shape == fresh.prompts.shape
    return following if same else fresh


def _fitted(counts: estimating.Counts, plan: Plan) -> estimating.Counts:
    """Return ``counts`` with an entry for each of the plan's positions, and nothing impossible in it."""

    def clean(count: float) -> float:
        return min(float(count), MOST_COUNT) if count > 0 else 0.0

    drafted = [clean(count) for count in counts.drafted[: plan.positions]]
    accepted = [clean(count) for count in counts.accepted[: plan.positions]]
    drafted += [0.0] * (plan.positions - len(drafted))
    accepted += [0.0] * (plan.positions - len(accepted))
    return estimating.Counts(
        drafted=tuple(drafted),
        accepted=tuple(min(pair) for pair in zip(drafted, accepted, strict=True)),
        proposed=clean(counts.proposed),
        not_proposed=clean(counts.not_proposed),
    )


def _by_cell(plan: Plan, window: Window) -> dict[correcting.Cell, list[float]]:
    rows = {length: row for row, length in enumerate(plan.draft_lengths)}
    times: dict[correcting.Cell, list[float]] = {}
    for cell in window.step_times:
        row = rows.get(cell.draft_length)
        usable = [time for time in cell.times_ms if correcting.is_time(time)]
        if row is not None and 1 <= cell.batch_size <= plan.max_batch_size and usable:
            times.setdefault((row, cell.batch_size - 1), []).extend(usable)
    return times


def _stalls(
    plan: Plan,
    state: State,
    window: Window,
    times: Mapping[correcting.Cell, Sequence[float]],
) -> tuple[Mapping[tuple[int, int], int], tuple[tuple[int, int], ...]]:
    """Return stalls by edge and the edges to avoid, after ``window``.

    A length's own times are those believed before the window, times what the window's other lengths were
    slower: in a slow minute every step after a change takes long, and so do all the others.
    """
    if not window.changes:
        return state.stalls, state.avoided
    rows = {length: row for row, length in enumerate(plan.draft_lengths)}
    believed = state.correction.step_times_ms
    seen: dict[tuple[int, int], list[bool]] = {}
    for change in window.changes:
        edge = (change.before, change.after)
        usable = sorted(time for time in change.times_ms if correcting.is_time(time))
        if edge[0] == edge[1] or not all(length in rows for length in edge) or not usable:
            continue
        if not 1 <= change.batch_size <= plan.max_batch_size:
            continue
        own = float(max(believed[rows[length], change.batch_size - 1] for length in edge))
        own *= _slowness(believed, times, rows[change.after])
        limit = max(STALL_FACTOR * own, own + STALL_MILLISECONDS)
        if math.isfinite(limit):
            seen.setdefault(edge, []).append(usable[len(usable) // 2] > limit)
    stalls, avoided = dict(state.stalls), list(state.avoided)
    for edge, found in seen.items():
        step = 1 if 2 * sum(found) > len(found) else -1
        stalls[edge] = min(max(stalls.get(edge, 0) + step, 0), STALLS_NEEDED)
        if stalls[edge] == STALLS_NEEDED and edge not in avoided:
            avoided.append(edge)
    return MappingProxyType(stalls), tuple(avoided)


def _slowness(believed: Floats, times: Mapping[correcting.Cell, Sequence[float]], but: int) -> float:
    """Return how many times slower the window's other lengths than row ``but`` were than believed, from 1."""
    ratios = [float(np.median(own)) / float(believed[cell]) for cell, own in times.items() if cell[0] != but]
    known = sorted(ratio for ratio in ratios if math.isfinite(ratio))
    return max(1.0, known[len(known) // 2]) if known else 1.0


def _without_stalls(plan: Plan, goodput: Floats, avoided: Sequence[tuple[int, int]]) -> Control:
    """Return the control without one length of each edge to avoid, the one whose loss costs less.

    A length that is pinned stays; the last allowed one too.
    """
    if not avoided:
        return plan.control
    allowed = list(tables.allowed_lengths(plan.draft_lengths, plan.control.allowed_lengths))
    pinned = {length for _, _, length in plan.control.pinned}
    known = np.where(np.isfinite(goodput), goodput, 0.0)

    def without(length: int) -> float:
        left = [plan.draft_lengths.index(other) for other in allowed if other != length]
        return float(np.log(np.maximum(known[left].max(axis=0), 1e-12)).sum())

    for edge in avoided:
        droppable = [length for length in edge if length in allowed and length not in pinned]
        if all(length in allowed for length in edge) and droppable and len(allowed) > 1:
            allowed.remove(max(droppable, key=without))
    return plan.control.model_copy(update={"allowed_lengths": tuple(allowed)})


def _usable(plan: Plan, goodput: Floats, control: Control, lookup: Sequence[int]) -> Floats:
    """Return ``goodput`` with hazards kept off, and some length of every batch size that can be taken."""
    left = hazards.keep_off(goodput, plan.hazardous, plan.draft_lengths, control.allowed_lengths)
    allowed = tables.allowed_lengths(plan.draft_lengths, control.allowed_lengths)
    rows = [plan.draft_lengths.index(length) for length in allowed]
    for column in np.flatnonzero(~np.isfinite(left[rows]).any(axis=0)).tolist():
        current = lookup[column + 1]
        stays = plan.draft_lengths.index(current) if current in allowed else rows[0]
        left[stays, column] = 1.0
    return left


def _kept_off(plan: Plan, correction: correcting.Correction) -> tuple[int, ...]:
    """Return the document's lookup without what is hazardous or not allowed."""
    goodput = _goodput(plan, correction, plan.prior, plan.control)
    usable = _usable(plan, goodput, plan.control, plan.lookup)
    allowed = tables.allowed_lengths(plan.draft_lengths, plan.control.allowed_lengths)
    barred = np.array([length not in allowed for length in plan.draft_lengths])
    known = np.where(np.isfinite(usable) & ~barred[:, np.newaxis], usable, -np.inf)
    best = known.argmax(axis=0)
    lookup = list(plan.lookup)
    for column in range(plan.max_batch_size):
        row = plan.draft_lengths.index(lookup[column + 1])
        # Kept off is what lost its goodput; a cell that never had one is the document's own choice.
        if barred[row] or (np.isnan(usable[row, column]) and np.isfinite(goodput[row, column])):
            lookup[column + 1] = plan.draft_lengths[int(best[column])]
    for first, last, length in plan.control.pinned:
        for batch_size in range(first, min(last, plan.max_batch_size) + 1):
            lookup[batch_size] = length
    return tuple(lookup)


def _runnable(plan: Plan, times: Floats, rows: Sequence[int]) -> Floats:
    """Return ``times`` without hazardous cells, but for the lookup's own, ``rows``, which run in any case."""
    columns = np.arange(len(rows))
    left = np.where(plan.hazardous, np.nan, times)
    left[rows, columns] = times[rows, columns]
    return left
