"""What live traffic says about acceptance, and when it is worth another table.

The plugin calls it inside the serving engine, once a second and (only :func:`explore` and
:func:`earn`) once a step. Survival measured on sample prompts is wrong for the traffic of the day: a
table made for code drafts too much for prose. But live counts alone mislead too. Right after a start
they are a handful; what was true an hour ago drowns what is true now; and a position that the table
does not reach is never counted, so a table of zeros would stay one forever.

Everything here is a pure function of frozen values. Time comes in as elapsed seconds and step times,
and there is no randomness: equal inputs make equal decisions, which is how a simulator can replay them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tabletune import acceptance, tables
from tabletune.documents import Acceptance, Control

PRIOR_FLOOR = 0.1
"""Share of its first weight that the prior keeps for good. When traffic stops at a position its live
counts fade to nothing, and the few drafts that come next must not be all there is to go by."""

FRESH_DRAFTS = 1_000.0
"""Faded live drafts from which a position's survival counts as known: a standard error of at most 1.6%."""

SHIFT_ERRORS = 4.0
"""Standard errors between old and new traffic that chance does not explain."""

SHIFT_CHANGE = 0.05
"""Relative change of the expected tokens below which a shift of traffic does not matter to a table."""

TOO_FEW_DRAFTS = "TooFewDrafts"
"""Fewer drafts than ``min_drafts`` (or than a comparison needs): nothing was decided."""
WITHIN_HYSTERESIS = "WithinHysteresis"
"""No batch size gains enough with another length."""
CORRECTED = "Corrected"
"""At least one batch size has another length."""
SHIFTED = "Shifted"
"""New traffic is accepted otherwise than the past."""
STEADY = "Steady"
"""New traffic is accepted as the past was, as far as it matters."""
EXPLORED = "Explored"
"""The step drafts more than the table says, to learn."""
SAVING = "Saving"
"""The step could teach something, but the budget does not pay for it yet."""
NOTHING_TO_LEARN = "NothingToLearn"
"""At this batch size no longer draft is both unknown and possibly better."""


@dataclass(frozen=True)
class Counts:
    """Drafts counted in steps that asked for any, by draft position; fractions once they fade.

    What counts as drafted is said in :mod:`tabletune.acceptance`.
    """

    drafted: tuple[float, ...]
    """Requests and steps that got a draft while the length in force reached the position."""
    accepted: tuple[float, ...]
    """Those of them whose guesses up to the position were all accepted."""
    proposed: float = 0.0
    """Requests and steps that got a draft where the length in force was above 0."""
    not_proposed: float = 0.0
    """Requests and steps that got none although it was."""

    @classmethod
    def none(cls, positions: int) -> Counts:
        """Return counts of nothing, for lengths up to ``positions``."""
        return cls((0.0,) * positions, (0.0,) * positions)

    @property
    def requests(self) -> float:
        """Requests and steps that could get a draft."""
        return self.proposed + self.not_proposed

    @property
    def proposal_rate(self) -> float:
        """Share of them that did; 0 where there was none."""
        return self.proposed / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Live:
    """All that is known from live traffic since the document in force was loaded."""

    recent: Counts
    """Counts that fade."""
    total: Counts
    """The same counts, never faded."""

    @classmethod
    def none(cls, positions: int) -> Live:
        """Return the state before the first step."""
        return cls(Counts.none(positions), Counts.none(positions))


def fade(live: Live, elapsed_seconds: float, half_life: float) -> Live:
    """Return ``live`` after ``elapsed_seconds``: recent counts weigh one half after each ``half_life``.

    Fading twice by 5 s is fading once by 10 s, so it may be called at any pace.
    """
    share = 0.5 ** (max(0.0, elapsed_seconds) / half_life)
    recent = live.recent
    return replace(
        live,
        recent=Counts(
            drafted=tuple(count * share for count in recent.drafted),
            accepted=tuple(count * share for count in recent.accepted),
            proposed=recent.proposed * share,
            not_proposed=recent.not_proposed * share,
        ),
    )


def add(live: Live, counts: Counts) -> Live:
    """Return ``live`` with the counts of one or more steps."""
    return Live(_sum(live.recent, counts), _sum(live.total, counts))


def forget(live: Live) -> Live:
    """Return ``live`` without its recent counts: what to do after a :func:`shift`, before adding."""
    return replace(live, recent=Counts.none(len(live.recent.drafted)))


@dataclass(frozen=True)
class Shift:
    """Whether traffic changed under the estimate."""

    reason: str
    """``SHIFTED``, ``STEADY`` or ``TOO_FEW_DRAFTS``."""
    draft_length: int = 0
    """Length whose expected tokens were compared."""
    before: float = 1.0
    """Expected tokens by the recent counts."""
    after: float = 1.0
    """Expected tokens by the new ones."""
    errors: float = 0.0
    """Difference in standard errors."""

    @property
    def found(self) -> bool:
        """Whether it did."""
        return self.reason == SHIFTED


def shift(recent: Counts, new: Counts, min_drafts: float) -> Shift:
    """Return whether ``new``, the last seconds' counts, contradict ``recent``, those before them.

    Counts that fade with a half-life of a minute still say the old for two thirds after half a minute.
    A switch of workload must not take that long, so it is looked for:

    1. Compared are expected tokens of the longest length with ``min_drafts`` drafts in both; where there
       is none, that of requests which could get a draft, if both have that many (they may get none now).
    2. They must differ by more than :data:`SHIFT_ERRORS` standard errors, which chance does not explain,
    3. and by more than :data:`SHIFT_CHANGE`, which a table would notice.
    """
    length = 0
    for old_count, new_count in zip(recent.drafted, new.drafted, strict=True):
        if min(old_count, new_count) < min_drafts:
            break
        length += 1
    if length == 0:
        # Drafts stopped, or began: a draft of length 1 tells, with what few counts there are.
        if min(recent.requests, new.requests) < min_drafts or not recent.drafted:
            return Shift(TOO_FEW_DRAFTS)
        length = 1
    before, before_error = _expected_tokens(recent, length)
    after, after_error = _expected_tokens(new, length)
    errors = abs(after - before) / math.hypot(before_error, after_error)
    found = errors > SHIFT_ERRORS and abs(after - before) > SHIFT_CHANGE * before
    return Shift(SHIFTED if found else STEADY, length, before, after, errors)


@dataclass(frozen=True)
class Estimate:
    """Acceptance as believed now: the document's prior and live counts together."""

    survival: tuple[float, ...]
    """Survival per position, non-increasing."""
    proposal_rate: float
    """Share of requests and steps that get a draft."""
    drafted: tuple[float, ...]
    """Live drafts behind each position, faded."""
    requests: float
    """Live requests and steps behind the proposal rate, faded."""
    prior_weights: tuple[float, ...]
    """What the prior weighed at each position, in drafts."""


def prior_weight(prior_drafts: float, seen: float) -> float:
    """Return what the prior weighs, in drafts, after ``seen`` live drafts (not faded).

    ``prior_drafts`` at first, one half after as many live drafts, one third after twice as many, and at
    least :data:`PRIOR_FLOOR` of it. It decays by evidence: a busy hour makes it small, an idle one does
    not, since a document is not wrong for being old. So a position that exploration visits once a second
    is learnt in minutes, though its live counts fade as fast as they come.

    >>> prior_weight(200.0, 200.0)
    100.0
    """
    if prior_drafts == 0:
        return 0.0
    return prior_drafts * max(PRIOR_FLOOR, prior_drafts / (prior_drafts + seen))


def estimate(live: Live, prior: Acceptance, prior_drafts: float) -> Estimate:
    """Return the blend of ``live`` with the document's acceptance.

    1. At each position the live counts weigh as many drafts as they are, the prior as
       :func:`prior_weight` says.
    2. The prior speaks as a conditional rate: of drafts accepted up to the position before, how many are
       accepted here. So where live traffic is accepted worse at position 1, the positions that no live
       draft reached come out worse too, instead of staying at what other traffic had.
    3. Survival is made non-increasing, each position weighing as much as was put into it.
    4. The proposal rate blends in the same way, by requests that could get a draft.
    """
    recent, positions = live.recent, range(len(live.recent.drafted))
    weights = tuple(prior_weight(prior_drafts, live.total.drafted[position]) for position in positions)
    rate, prior_rate = 1.0, 1.0
    drafted, accepted = [], []
    for position in positions:
        believed = prior.survival[position] if position < len(prior.survival) else 0.0
        expected = rate * (believed / prior_rate if prior_rate > 0 else 0.0)
        # A trace of the prior stays in any case: it is the answer where nothing else speaks.
        weight = max(weights[position], 1e-6)
        drafted.append(recent.drafted[position] + weight)
        accepted.append(min(recent.accepted[position] + weight * expected, drafted[-1]))
        rate, prior_rate = accepted[-1] / drafted[-1], believed
    weight = max(prior_weight(prior_drafts, live.total.requests), 1e-6)
    return Estimate(
        survival=acceptance.survival(drafted, accepted),
        proposal_rate=(recent.proposed + weight * prior.proposal_rate) / (recent.requests + weight),
        drafted=recent.drafted,
        requests=recent.requests,
        prior_weights=weights,
    )


@dataclass(frozen=True)
class Change:
    """A range of batch sizes that gets another length."""

    first: int
    """First batch size."""
    last: int
    """Last batch size."""
    before: int
    """Draft length so far."""
    after: int
    """Draft length from now on."""
    predicted_gain: float
    """Predicted gain in goodput, geometric mean over the range. Infinite where ``before`` is not allowed,
    NaN where a pinned length has no price."""


@dataclass(frozen=True)
class Decision:
    """Whether the table is corrected, and why."""

    lookup: tuple[int, ...]
    """Draft length by batch size from now on; entry 0 is unused."""
    reason: str
    """``CORRECTED``, ``WITHIN_HYSTERESIS`` or ``TOO_FEW_DRAFTS``."""
    changes: tuple[Change, ...]
    """What changes; empty unless corrected."""
    drafts: float
    """Live drafts that the estimate rests on."""
    needed: float
    """Drafts needed for any correction."""
    largest_gain: float
    """Largest predicted gain of any batch size with its best length, whether it changes or not."""


def decide(
    current: Sequence[int],
    goodput: NDArray[np.float64],
    draft_lengths: Sequence[int],
    control: Control,
    drafts: float,
) -> Decision:
    """Return the lookup to use from now on, given the ``current`` one and newly predicted ``goodput``.

    ``goodput`` is ``(len(draft_lengths), max_batch_size)``, not finite where a cell has no price, and
    ``drafts`` are the live drafts seen since the document was loaded.

    1. Too few: below ``min_drafts`` nothing changes.
    2. Pinned: a pinned batch size has its pinned length.
    3. Hysteresis: another keeps its length unless some allowed one is predicted to gain more than the
       limit, which is ``hysteresis``, or what the tie or merge tolerance lets a table lose if that is more.
       Where its own cell has no price no gain can be told, and it stays.
    4. Otherwise it takes the length of the newly computed table (:func:`tabletune.tables.compute`), for
       ranges in one piece, if that gains more than ``hysteresis`` too and no other more than the limit
       over it; else the best length.
    5. Allowed: a length that is not allowed gives way to another in any case.

    So deciding again on the same goodput changes nothing, and no batch size that is not pinned and whose
    cell has a price is predicted to gain more than the limit with yet another length.

    Raises :class:`tabletune.tables.TableError` as :func:`tabletune.tables.compute` does.
    """
    size = goodput.shape[1]
    now = np.asarray(current[1 : size + 1], dtype=np.intp)
    rows = {draft_length: row for row, draft_length in enumerate(draft_lengths)}
    allowed = tables.allowed_lengths(draft_lengths, control.allowed_lengths)
    computed = np.asarray(tables.lookup(tables.compute(goodput, draft_lengths, control), size)[1:])

    known = np.where(np.isfinite(goodput), goodput, -np.inf)
    known[[row for draft_length, row in rows.items() if draft_length not in allowed]] = -np.inf
    best = np.asarray(draft_lengths)[np.argmax(known, axis=0)]
    own = np.array([goodput[rows[k], b] if k in allowed else 0.0 for b, k in enumerate(now.tolist())])
    candidate = goodput[[rows[k] for k in computed.tolist()], np.arange(size)]
    with np.errstate(divide="ignore", invalid="ignore"):
        best_gain = np.max(known, axis=0) / own - 1
        candidate_gain = candidate / own - 1
        lost = np.max(known, axis=0) / candidate - 1
    tolerance = min(max(control.tie_tolerance, control.merge_tolerance), 1 - 1e-9)
    limit = max(control.hysteresis, tolerance / (1 - tolerance))
    suffices = (candidate_gain > control.hysteresis) & (lost <= limit)
    after = np.where(best_gain > limit, np.where(suffices, computed, best), now)
    after = np.where(_pinned(control, size), computed, after)
    gains = np.where(after == best, best_gain, candidate_gain)

    largest = float(np.max(best_gain[np.isfinite(best_gain)], initial=0.0))
    if drafts < control.min_drafts:
        return Decision(tuple(current), TOO_FEW_DRAFTS, (), drafts, control.min_drafts, largest)
    changes = _changes(now, after, gains)
    reason = CORRECTED if changes else WITHIN_HYSTERESIS
    lookup = (0, *after.tolist(), *current[size + 1 :])
    return Decision(lookup, reason, changes, drafts, control.min_drafts, largest)


@dataclass(frozen=True)
class ExplorationPlan:
    """Where a longer draft than the table's could teach something, and what one step of it may cost."""

    lookup: tuple[int, ...]
    """The table's own draft length by batch size; entry 0 is unused."""
    lengths: tuple[int, ...]
    """Draft length to explore by batch size; the table's own where there is nothing to learn."""
    costs_ms: tuple[float, ...]
    """Most serving time that one such step loses, milliseconds; infinite where there is nothing to learn."""
    dearest_ms: float
    """Cost of the dearest step that the plan may take; 0 without any."""
    stale_positions: tuple[int, ...]
    """Draft positions, from 0, that too few live drafts reached lately."""


def plan_exploration(
    lookup: Sequence[int],
    step_times_ms: NDArray[np.float64],
    draft_lengths: Sequence[int],
    estimate: Estimate,
    control: Control,
) -> ExplorationPlan:
    """Return the plan for ``lookup``; to be made anew with each estimate, not with each step.

    ``step_times_ms`` is ``(len(draft_lengths), max_batch_size)``; a cell that must not be run is NaN. The
    lengths of ``lookup`` are all among ``draft_lengths``.

    1. A position is stale while fewer than :data:`FRESH_DRAFTS` live drafts, faded, reached it.
    2. Explored are allowed lengths above the table's own, in cells with a price, at batch sizes that are
       not pinned, which reach a stale position that the next shorter allowed length does not.
    3. Such a length must be able to win by more than ``hysteresis`` if its stale positions were accepted
       as often as the last known one before them (always, if there is none), and if requests always got
       a draft where the proposal rate is stale too.
    4. Of several the longest: its draft tells about all positions before it.
    5. The cost is the most that the step can lose. If nothing is accepted, it still keeps a token per
       request, so it loses its own time less that in which the table's length keeps as much,
       ``T[B, K'] - T[B, K] / E[K]``.
    """
    stale = np.asarray(estimate.drafted) < FRESH_DRAFTS
    current = np.asarray(lookup[1 : step_times_ms.shape[1] + 1])
    allowed = tables.allowed_lengths(draft_lengths, control.allowed_lengths)
    rows = [list(draft_lengths).index(draft_length) for draft_length in current.tolist()]
    tokens = acceptance.expected_tokens_of(estimate.survival, estimate.proposal_rate, draft_lengths)
    hoped = acceptance.expected_tokens_of(*_hopes(estimate, stale), draft_lengths)
    per_token = step_times_ms[rows, np.arange(len(rows))] / tokens[rows]

    teaches = np.zeros(len(draft_lengths), dtype=bool)
    for shorter, longer in itertools.pairwise(allowed):
        teaches[list(draft_lengths).index(longer)] = stale[shorter:longer].any()
    with np.errstate(invalid="ignore"):
        wins = hoped[:, np.newaxis] / step_times_ms * per_token > 1 + control.hysteresis
    wins &= teaches[:, np.newaxis] & (np.asarray(draft_lengths)[:, np.newaxis] > current)
    wins &= ~_pinned(control, len(rows))
    longest = len(draft_lengths) - 1 - np.argmax(wins[::-1], axis=0)
    any_wins = wins.any(axis=0)
    costs = np.maximum(0.0, step_times_ms[longest, np.arange(len(rows))] - per_token)
    return ExplorationPlan(
        lookup=(0, *current.tolist()),
        lengths=(0, *np.where(any_wins, np.asarray(draft_lengths)[longest], current).tolist()),
        costs_ms=(math.inf, *np.where(any_wins, costs, math.inf).tolist()),
        dearest_ms=float(np.max(costs, where=any_wins, initial=0.0)),
        stale_positions=tuple(np.flatnonzero(stale).tolist()),
    )


@dataclass(frozen=True)
class Exploration:
    """What one step drafts."""

    draft_length: int
    """Draft length of the step."""
    reason: str
    """``EXPLORED``, ``SAVING`` or ``NOTHING_TO_LEARN``."""
    cost_ms: float
    """Serving time that the step may lose; 0 unless explored."""
    balance_ms: float
    """Budget left."""


def earn(balance_ms: float, step_time_ms: float, plan: ExplorationPlan, exploration_share: float) -> float:
    """Return the budget after a step: it earns ``exploration_share`` of the serving time.

    No more is saved than the plan's dearest step costs, so that a quiet hour does not buy a slow minute.
    """
    return max(balance_ms, min(balance_ms + exploration_share * step_time_ms, plan.dearest_ms))


def explore(plan: ExplorationPlan, batch_size: int, balance_ms: float) -> Exploration:
    """Return what the next step, of ``batch_size`` requests, drafts.

    It explores as soon as the budget covers the most that the step can lose. Since the budget starts at
    0 and only :func:`earn` adds to it, exploring never costs more than ``exploration_share`` of the
    serving time, whatever is accepted, as long as steps take what they are priced at.
    """
    cost = plan.costs_ms[batch_size]
    if math.isinf(cost):
        return Exploration(plan.lookup[batch_size], NOTHING_TO_LEARN, 0.0, balance_ms)
    if balance_ms < cost:
        return Exploration(plan.lookup[batch_size], SAVING, 0.0, balance_ms)
    return Exploration(plan.lengths[batch_size], EXPLORED, cost, balance_ms - cost)


def _sum(one: Counts, other: Counts) -> Counts:
    return Counts(
        drafted=tuple(a + b for a, b in zip(one.drafted, other.drafted, strict=True)),
        accepted=tuple(a + b for a, b in zip(one.accepted, other.accepted, strict=True)),
        proposed=one.proposed + other.proposed,
        not_proposed=one.not_proposed + other.not_proposed,
    )


def _expected_tokens(counts: Counts, draft_length: int) -> tuple[float, float]:
    """Return expected tokens at ``draft_length`` and their standard error, never 0."""
    if counts.proposed == 0:
        return 1.0, draft_length / (counts.requests + 2)
    found = acceptance.evidence(counts.drafted, counts.accepted, counts.proposal_rate, draft_length)
    return found.expected_tokens, found.standard_error


def _hopes(estimate: Estimate, stale: NDArray[np.bool_]) -> tuple[list[float], float]:
    """Return the highest survival and proposal rate that the live counts leave possible."""
    hopes: list[float] = []
    for rate, unknown in zip(estimate.survival, stale, strict=True):
        hopes.append((hopes[-1] if hopes else 1.0) if unknown else rate)
    return hopes, estimate.proposal_rate if estimate.requests >= FRESH_DRAFTS else 1.0


def _pinned(control: Control, size: int) -> NDArray[np.bool_]:
    """Return which batch sizes are pinned; entry 0 is batch size 1."""
    pinned = np.zeros(size, dtype=bool)
    for first, last, _ in control.pinned:
        pinned[first - 1 : last] = True
    return pinned


def _changes(
    before: NDArray[np.intp], after: NDArray[np.intp], gains: NDArray[np.float64]
) -> tuple[Change, ...]:
    """Return the ranges in which ``after`` differs from ``before``."""
    changes = []
    first = 0
    for stop in range(1, len(before) + 1):
        if stop < len(before) and (before[stop], after[stop]) == (before[first], after[first]):
            continue
        if before[first] != after[first]:
            gain = float(np.exp(np.mean(np.log1p(gains[first:stop]))) - 1)
            changes.append(Change(first + 1, stop, int(before[first]), int(after[first]), gain))
        first = stop
    return tuple(changes)
