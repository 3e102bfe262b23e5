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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tabletune import acceptance, tables
from tabletune.documents import Acceptance, Control

PRIOR_FLOOR = 0.1
"""Share of its first weight that the prior keeps for good. When traffic stops at a position its live
counts fade to nothing, and the few drafts that come next must not be all there is to go by."""

COST_DOUBT = 2.0
"""Factor by which the price of a cell may be too high as long as it was never seen live. The first times
lower it quickly: the correction believes them over the profile."""

COST_ERROR = 0.06
"""Relative error, two standard deviations, of a cell's cost by a single live time (ENGINE.md 6). It falls
with the root of their number."""

LEAST_COST = 0.02
"""Share of its time that an explored step costs at least: a change of length is not free. With a budget of
0.5% it also bounds the share of steps that explore, to a quarter."""

MOST_LOST = 4.0
"""Most that an explored step is taken to have lost, as a multiple of its price. A hiccup of seconds while
exploring would otherwise be a debt that stops all exploring for minutes."""

EXPLORATION_REACH = 2 ** (1 / 8)
"""Factor in batch size within which an exploration is held and its steps tell about one another: that within
which evidence of step times is one place (:data:`tabletune.correcting.STEPS_PER_OCTAVE`)."""

SURE_ERRORS = 2.0
"""Standard errors below its estimate at which survival enters the price of exploring."""

FRESH_DRAFTS = 1_000.0
"""Faded live drafts from which a position's survival counts as known: a standard error of at most 1.6%."""

LATE_DRAFTS = 100.0
"""Drafts of the last seconds (:func:`late`) without which no position is known, however much is known from
before: traffic may have changed since, and only a draft shows it."""

LATE_HALF_LIFE = 8.0
"""Seconds for which drafts are of the last seconds. A table that says 0 then tries a draft every eight
seconds or so, and notices within them that drafts are accepted again."""

SHIFT_ERRORS = 4.0
"""Standard errors between old and new traffic that chance does not explain."""

SHIFT_CHANGE = 0.05
"""Relative change of the expected tokens below which a shift of traffic does not matter to a table."""

TOO_FEW_DRAFTS = "TooFewDrafts"
"""Fewer drafts than ``min_drafts`` (or than a comparison needs), and nothing changes."""
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


def late(before: Counts, new: Counts, elapsed_seconds: float) -> Counts:
    """Return the counts of the last seconds, given those ``elapsed_seconds`` ago and what came since.

    They fade by :data:`LATE_HALF_LIFE` and count no more than twice :data:`LATE_DRAFTS`, so that they say
    when drafts last came rather than how many.
    """
    share: float = 0.5 ** (max(0.0, elapsed_seconds) / LATE_HALF_LIFE)

    def capped(old: float, count: float) -> float:
        return min(old * share + count, 2 * LATE_DRAFTS)

    return Counts(
        drafted=tuple(map(capped, before.drafted, new.drafted)),
        accepted=tuple(map(capped, before.accepted, new.accepted)),
        proposed=capped(before.proposed, new.proposed),
        not_proposed=capped(before.not_proposed, new.not_proposed),
    )


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
    """Drafts needed until live acceptance is believed."""
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

    ``draft_lengths`` ascend and hold all lengths of ``current``. ``goodput`` is
    ``(len(draft_lengths), max_batch_size)``, not finite where a cell has no price, and ``drafts`` are the
    live drafts seen since the document was loaded: the caller has ``goodput`` predicted from live acceptance
    only once they are ``min_drafts``, so where nothing changes before, the reason is that they are too few.

    1. Pinned: a pinned batch size has its pinned length.
    2. Hysteresis: another keeps its length unless some allowed one is predicted to gain more than the
       limit, which is ``hysteresis``, or what the tie or merge tolerance lets a table lose if that is more.
       Where its own cell has no price no gain can be told, and it stays.
    3. Otherwise it takes the length of the newly computed table (:func:`tabletune.tables.compute`), for
       ranges in one piece, if that gains more than ``hysteresis`` too and no other more than the limit
       over it; else the best length.
    4. Allowed: a length that is not allowed gives way to another in any case.

    So deciding again on the same goodput changes nothing, and no batch size that is not pinned and whose
    cell has a price is predicted to gain more than the limit with yet another length.

    Raises :class:`tabletune.tables.TableError` as :func:`tabletune.tables.compute` does.
    """
    size = goodput.shape[1]
    columns = np.arange(size)
    lengths = np.asarray(draft_lengths)
    now = np.asarray(current[1 : size + 1], dtype=np.intp)
    allowed = tables.allowed_lengths(draft_lengths, control.allowed_lengths)
    barred = ~np.isin(lengths, allowed)
    rows = np.searchsorted(lengths, now)

    known = np.where(np.isfinite(goodput), goodput, -np.inf)
    known[barred] = -np.inf
    highest = known.max(axis=0)
    own = np.where(barred[rows], 0.0, goodput[rows, columns])
    pinned = _pinned(control, size)
    tolerance = min(max(control.tie_tolerance, control.merge_tolerance), 1 - 1e-9)
    limit = max(control.hysteresis, tolerance / (1 - tolerance))
    with np.errstate(divide="ignore", invalid="ignore"):
        best_gain = highest / own - 1
    largest = float(np.max(best_gain[np.isfinite(best_gain)], initial=0.0))
    unchanged = TOO_FEW_DRAFTS if drafts < control.min_drafts else WITHIN_HYSTERESIS
    if not (pinned.any() or (best_gain > limit).any()):
        # Most windows end here: computing the table costs more than all the rest.
        return Decision(tuple(current), unchanged, (), drafts, control.min_drafts, largest)

    computed = np.asarray(tables.lookup(tables.compute(goodput, draft_lengths, control), size)[1:])
    best = lengths[np.argmax(known, axis=0)]
    candidate = goodput[np.searchsorted(lengths, computed), columns]
    with np.errstate(divide="ignore", invalid="ignore"):
        candidate_gain = candidate / own - 1
        lost = highest / candidate - 1
    suffices = (candidate_gain > control.hysteresis) & (lost <= limit)
    after = np.where(best_gain > limit, np.where(suffices, computed, best), now)
    after = np.where(pinned, computed, after)
    gains = np.where(after == best, best_gain, candidate_gain)
    changes = _changes(now, after, gains)
    reason = CORRECTED if changes else unchanged
    lookup = (0, *after.tolist(), *current[size + 1 :])
    return Decision(lookup, reason, changes, drafts, control.min_drafts, largest)


@dataclass(frozen=True)
class ExplorationPlan:
    """Where another draft length than the table's could teach something, and what exploring it may cost."""

    lookup: tuple[int, ...]
    """The table's own draft length by batch size; entry 0 is unused."""
    lengths: tuple[int, ...]
    """Draft length to explore by batch size; the table's own where there is nothing to learn."""
    costs_ms: tuple[float, ...]
    """Most serving time that one exploration loses, all its steps together, milliseconds; infinite where
    there is nothing to learn."""
    dearest_ms: float
    """Cost of the dearest exploration that the plan may take; 0 without any."""
    stale_positions: tuple[int, ...]
    """Draft positions, from 0, that too few live drafts reached lately."""
    steps: int = 1
    """Consecutive steps for which an explored length is held."""
    needed_ms: tuple[float, ...] = ()
    """Budget from which it is explored, by batch size: what it costs if the price is as much too high as it
    may be; infinite where there is nothing to learn."""
    per_token_ms: tuple[float, ...] = ()
    """Time in which the table's length keeps one token per request, by batch size, milliseconds."""
    around: tuple[tuple[int, int], ...] = ()
    """First and last batch size, by batch size, between which an exploration that starts there is held;
    empty: there alone."""

    def held(self, batch_size: int) -> tuple[int, int]:
        """Return the first and the last batch size at which an exploration of ``batch_size`` is held."""
        return self.around[batch_size] if self.around else (batch_size, batch_size)


def plan_exploration(
    lookup: Sequence[int],
    step_times_ms: NDArray[np.float64],
    draft_lengths: Sequence[int],
    estimate: Estimate,
    control: Control,
    seen: NDArray[np.float64] | None = None,
    steps: int = 1,
    recently: Counts | None = None,
) -> ExplorationPlan:
    """Return the plan for ``lookup``; to be made anew with each estimate, not with each step.

    ``step_times_ms`` is ``(len(draft_lengths), max_batch_size)``; a cell that must not be run is NaN. The
    lengths of ``lookup`` are all among ``draft_lengths``. ``seen`` says by how many live times each cell is
    known against the lookup's (:func:`tabletune.correcting.contrast_times`); without it costs are taken as
    known. An exploration lasts ``steps`` steps. ``recently`` are the counts of the last seconds
    (:func:`late`); without them it does not matter when drafts came.

    1. Explored are allowed lengths, in cells with a price, at batch sizes that are not pinned.
    2. Acceptance: a position is stale while fewer than :data:`FRESH_DRAFTS` live drafts, faded, reached
       it, and all are while fewer than :data:`LATE_DRAFTS` came of late (where some come, a switch of
       workload shows in them). Lengths above the table's own which reach a stale position that the next
       shorter allowed length does not can teach it. Such a length must be able to win by more than
       ``hysteresis`` if its stale positions were accepted as often as the last known one before them
       (always, if there is none), and if requests always got a draft where the proposal rate is stale too.
       Of several the longest: its draft tells about all positions before it.
    3. Cost: a cell is undecided while its gain is above ``hysteresis`` or below, as its price is as much too
       high or too low as what is known of it leaves possible: by up to :data:`COST_DOUBT` where it was never
       seen, and by two standard errors (:data:`COST_ERROR`) as times come. No number of times is enough by
       itself: a length that is far worse is decided by the first ones, one close to the limit by many, and
       exploring that loses next to nothing.
    4. Of both kinds the one with the most to win for its cost.
    5. The cost is what the steps lose if survival is :data:`SURE_ERRORS` standard errors below what is
       believed: their time less that in which the table's length keeps as much,
       ``T[B, K'] - T[B, K] · E_low[K'] / E[K]``, at least :data:`LEAST_COST` of it. :func:`settle` puts
       right what they really cost.
    6. It is held as far around the batch size as :data:`EXPLORATION_REACH` goes, where the table has the same
       length and the explored one is usable too. Under load a request ends every few steps and the next one
       takes its place a step later, so that a batch size seldom stays for an exploration's steps.
    """
    lengths = np.asarray(draft_lengths)
    stale = np.asarray(estimate.drafted) < FRESH_DRAFTS
    rate_is_stale = estimate.requests < FRESH_DRAFTS
    if recently is not None:
        stale |= max(recently.drafted, default=0.0) < LATE_DRAFTS
        rate_is_stale |= recently.requests < LATE_DRAFTS
    current = np.asarray(lookup[1 : step_times_ms.shape[1] + 1])
    columns = np.arange(len(current))
    allowed = tables.allowed_lengths(draft_lengths, control.allowed_lengths)
    rows = np.searchsorted(lengths, current)
    tokens = acceptance.expected_tokens_of(estimate.survival, estimate.proposal_rate, draft_lengths)
    hoped = acceptance.expected_tokens_of(*_hopes(estimate, stale, rate_is_stale), draft_lengths)
    per_token = step_times_ms[rows, columns] / tokens[rows]
    with np.errstate(invalid="ignore"):
        hoped_gains = hoped[:, np.newaxis] / step_times_ms * per_token - 1
        sure_ms = per_token * _sure_tokens(estimate, draft_lengths)
        costs = np.maximum(step_times_ms - sure_ms, LEAST_COST * step_times_ms)
    usable = np.isin(lengths, allowed)[:, np.newaxis] & ~_pinned(control, len(rows))
    usable &= np.isfinite(hoped_gains)

    teaches = np.zeros(len(lengths), dtype=bool)
    for shorter, longer in itertools.pairwise(allowed):
        teaches[list(draft_lengths).index(longer)] = stale[shorter:longer].any()
    wins = usable & teaches[:, np.newaxis] & (lengths[:, np.newaxis] > current)
    wins &= hoped_gains > control.hysteresis
    chosen = len(lengths) - 1 - np.argmax(wins[::-1], axis=0)
    found = wins.any(axis=0)
    doubt = np.ones(step_times_ms.shape)
    if seen is not None:
        doubt = COST_DOUBT ** (1 / (1 + 4 * seen)) * np.exp(COST_ERROR / np.sqrt(1 + seen))
        gains = (hoped_gains + 1) * doubt - 1
        open_cells = usable & (gains > control.hysteresis)
        open_cells &= (hoped_gains + 1) / doubt - 1 <= control.hysteresis
        open_cells &= lengths[:, np.newaxis] != current
        worth = np.where(open_cells, gains / costs, -np.inf)
        best = np.argmax(worth, axis=0)
        taught = hoped_gains[chosen, columns] / costs[chosen, columns]
        better = open_cells.any(axis=0) & (~found | (worth[best, columns] > taught))
        chosen = np.where(better, best, chosen)
        found = found | better
    cost = steps * costs[chosen, columns]
    with np.errstate(invalid="ignore"):
        least = np.maximum(step_times_ms / doubt - sure_ms, LEAST_COST * step_times_ms)
    needed = steps * np.minimum(least, costs)[chosen, columns]
    return ExplorationPlan(
        lookup=(0, *current.tolist()),
        lengths=(0, *np.where(found, lengths[chosen], current).tolist()),
        costs_ms=(math.inf, *np.where(found, cost, math.inf).tolist()),
        dearest_ms=float(np.max(cost, where=found, initial=0.0)),
        stale_positions=tuple(np.flatnonzero(stale).tolist()),
        steps=steps,
        needed_ms=(math.inf, *np.where(found, needed, math.inf).tolist()),
        per_token_ms=(math.inf, *per_token.tolist()),
        around=((0, 0), *_around(chosen, current, usable)),
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

    No more is saved than the plan's dearest exploration costs, so that a quiet hour does not buy a slow
    minute.
    """
    return max(balance_ms, min(balance_ms + exploration_share * step_time_ms, plan.dearest_ms))


def explore(plan: ExplorationPlan, batch_size: int, balance_ms: float) -> Exploration:
    """Return what the next step, of ``batch_size`` requests, drafts.

    It explores as soon as the budget covers what that costs if its price is as much too high as it may be
    (known prices: not at all), and pays the price, in debt if need be. Only :func:`earn` adds to the budget
    and :func:`settle` puts right what was really lost, so exploring costs no more than
    ``exploration_share`` of the serving time, and one exploration.
    """
    cost = plan.costs_ms[batch_size]
    if math.isinf(cost):
        return Exploration(plan.lookup[batch_size], NOTHING_TO_LEARN, 0.0, balance_ms)
    if balance_ms < plan.needed_ms[batch_size]:
        return Exploration(plan.lookup[batch_size], SAVING, 0.0, balance_ms)
    return Exploration(plan.lengths[batch_size], EXPLORED, cost, balance_ms - cost)


def settle(
    balance_ms: float,
    plan: ExplorationPlan,
    batch_size: int,
    draft_length: int,
    step_ms: float,
    kept_tokens: float,
) -> float:
    """Return the budget after an exploration that started by ``plan`` at ``batch_size``.

    Its pure steps of that batch size that verified ``draft_length``, which it explored, typically took
    ``step_ms`` (:func:`tabletune.correcting.typical`, in the measure of the plan's times) and kept
    ``kept_tokens`` on average. What such a step loses, its time less that in which the table's length keeps
    as many tokens, is taken for each step of the exploration in place of the price. So a price that is too
    high does not keep a length from being explored, drafts that were accepted less than believed are paid
    for, and a step of the long tail, which comes without exploring too, is no debt; nor is a slow second:
    no more than :data:`MOST_LOST` times what the step could cost at its price. Where no step was timed
    (``step_ms`` is NaN) the price stands.
    """
    if draft_length != plan.lengths[batch_size] or not 0 < step_ms < math.inf:
        return balance_ms
    lost = step_ms - plan.per_token_ms[batch_size] * kept_tokens / batch_size
    price = plan.costs_ms[batch_size] / plan.steps + plan.per_token_ms[batch_size] * (draft_length + 1)
    lost = min(max(lost, LEAST_COST * step_ms), MOST_LOST * price)
    settled = balance_ms + plan.costs_ms[batch_size] - plan.steps * lost
    return settled if math.isfinite(settled) else balance_ms


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


def _hopes(estimate: Estimate, stale: NDArray[np.bool_], rate_is_stale: bool) -> tuple[list[float], float]:
    """Return the highest survival and proposal rate that the live counts leave possible."""
    hopes: list[float] = []
    for rate, unknown in zip(estimate.survival, stale, strict=True):
        hopes.append((hopes[-1] if hopes else 1.0) if unknown else rate)
    return hopes, 1.0 if rate_is_stale else estimate.proposal_rate


def _sure_tokens(estimate: Estimate, draft_lengths: Sequence[int]) -> NDArray[np.float64]:
    """Return the tokens that each length keeps if every survival is as low as its counts allow, a column."""
    believed = np.asarray(estimate.survival)
    behind = np.asarray(estimate.drafted) + np.asarray(estimate.prior_weights)
    errors = np.sqrt(believed * (1 - believed) / np.maximum(behind, 1.0))
    lowest = np.minimum.accumulate(np.maximum(0.0, believed - SURE_ERRORS * errors))
    return acceptance.expected_tokens_of(lowest.tolist(), estimate.proposal_rate, draft_lengths)[
        :, np.newaxis
    ]


def _around(
    chosen: NDArray[np.int64], current: NDArray[np.int64], usable: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """Yield the batch sizes between which each batch size's row of ``chosen`` may be held, from 1 on."""
    sizes = np.arange(1, len(current) + 1)
    same = usable[:, 1:] & usable[:, :-1] & (current[1:] == current[:-1])
    edge = np.zeros((len(usable), 1), dtype=bool)
    firsts = np.maximum.accumulate(np.where(np.hstack((edge, same)), 0, sizes), axis=1)
    ends = np.where(np.hstack((same, edge)), len(current), sizes)
    lasts = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    columns = sizes - 1
    low = np.maximum(firsts[chosen, columns], np.ceil(sizes / EXPLORATION_REACH))
    high = np.minimum(lasts[chosen, columns], np.floor(sizes * EXPLORATION_REACH))
    return zip(low.astype(int).tolist(), high.astype(int).tolist(), strict=True)


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
