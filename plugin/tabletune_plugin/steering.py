"""Holds the lookup in force, and now and then another length for a few steps, to learn what it would do.

The controller puts a lookup in force about once a second; the tap calls :meth:`Steering.add` after every
step. Without exploring, a table that says 0 is never seen to be wrong, since nothing is drafted that could be
accepted. The core decides what an exploration may cost and when it is paid for
(:func:`tabletune.estimating.explore`); here it is only carried out, at the cost of a few comparisons per
step.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tabletune import correcting, estimating
from tabletune.documents import Measure
from tabletune.estimating import ExplorationPlan
from tabletune_plugin.engine.steps import Step


class Tap(Protocol):
    """What is needed of the tap on the scheduler."""

    own_seconds: float
    """Seconds that reading steps has taken on the engine's thread."""

    def span_seconds(self) -> float:
        """Return the seconds that recording GPU spans has taken where the model runs."""

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Put ``lookup`` in force from the next scheduled step on."""

    def gpu_span_ms(self, number: int) -> float | None:
        """Return the GPU's time of a step, milliseconds; ``None`` while, or where, it is not known."""


DRAIN_STEPS = 4
"""Steps after an exploration until its last drafts are verified and their GPU spans have come, whatever the
scheduling."""


@dataclass(slots=True)
class _Exploration:
    """One exploration, from its start until its last drafts are verified."""

    plan: ExplorationPlan
    batch_size: int
    held: tuple[int, int]
    """First and last batch size at which the length is held."""
    length: int
    left: int
    """Steps for which the length is still held; 0 or less while the last ones drain."""
    steps: list[int] = field(default_factory=list)
    """Numbers of the pure steps at these batch sizes that verified the length."""
    intervals_ms: list[float] = field(default_factory=list)
    """Their times from result to result."""
    kept_tokens: float = 0.0
    """Output tokens that they would have kept with as many requests as the first."""


class Steering:
    """The lookup of one scheduler."""

    def __init__(self, tap: Tap, quantile: float) -> None:
        """``quantile`` of an exploration's times is what its steps took (`correcting.quantile_for`)."""
        self._tap, self._quantile = tap, quantile
        self._lock = threading.Lock()
        self._lookup: tuple[int, ...] | None = None
        self._plan: ExplorationPlan | None = None
        self._share = 0.0
        self._balance_ms = 0.0
        self._length = -1
        self._exploration: _Exploration | None = None
        self._explorations = 0
        self.measure: Measure | None = None
        """The profile's measure, if steps can be timed in it: what an exploration cost is told in it, as its
        price is. ``None``: the price stands."""

    @property
    def lookup(self) -> tuple[int, ...] | None:
        """The lookup that was put in force last; ``None`` while the engine's own is."""
        return self._lookup

    @property
    def explorations(self) -> int:
        """How often another length was held."""
        return self._explorations

    @property
    def exploring(self) -> bool:
        """Whether one is right now."""
        exploration = self._exploration
        return exploration is not None and exploration.left > 0

    def put_in_force(
        self, lookup: Sequence[int], plan: ExplorationPlan | None = None, share: float = 0.0
    ) -> None:
        """Serve with ``lookup`` from now on, exploring by ``plan`` for ``share`` of the serving time.

        An exploration that is under way goes on where the lookup stays the same. Raises ``ValueError``
        where the engine's lookup has another number of entries; then everything stays as it was.
        """
        with self._lock:
            if tuple(lookup) != self._lookup or plan is None:
                self._tap.set_lookup(lookup)
                self._lookup = tuple(lookup)
                if self._exploration is not None:
                    self._exploration.left = 0
            self._plan, self._share = plan, share

    def add(self, step: Step) -> None:
        """Go on after ``step``: explore, hold, or go back; on the engine's thread."""
        # What this step verified, the step before was to draft.
        length, self._length = self._length, step.next_draft_length
        if self._plan is None and self._exploration is None:
            return
        with self._lock:
            plan, lookup = self._plan, self._lookup
            interval = step.interval_ms
            if plan is not None and interval == interval:
                self._balance_ms = estimating.earn(self._balance_ms, interval, plan, self._share)
            if self._exploration is not None:
                self._go_on(self._exploration, step, length)
            elif plan is not None and lookup is not None:
                self._explore(plan, lookup, step.batch_size)

    def _explore(self, plan: ExplorationPlan, lookup: tuple[int, ...], batch_size: int) -> None:
        if self._balance_ms < plan.needed_ms[batch_size]:
            return
        chosen = estimating.explore(plan, batch_size, self._balance_ms)
        if chosen.reason != estimating.EXPLORED or chosen.draft_length == lookup[batch_size]:
            return
        first, last = held = plan.held(batch_size)
        explored = list(lookup)
        explored[first : last + 1] = [chosen.draft_length] * (last + 1 - first)
        self._tap.set_lookup(explored)
        self._balance_ms = chosen.balance_ms
        self._exploration = _Exploration(plan, batch_size, held, chosen.draft_length, plan.steps)
        self._explorations += 1

    def _go_on(self, exploration: _Exploration, step: Step, length: int) -> None:
        """Hold the explored length or go back from it, and settle what it cost once that is known."""
        first, last = exploration.held
        same = first <= step.batch_size <= last
        interval = step.interval_ms
        pure = step.prompt_tokens == 0 and step.new_requests == 0 and interval == interval
        if same and pure and length == exploration.length:
            exploration.steps.append(step.number)
            exploration.intervals_ms.append(interval)
            exploration.kept_tokens += step.kept_tokens * exploration.batch_size / step.batch_size
        holding = exploration.left > 0
        exploration.left = exploration.left - 1 if same or not holding else 0
        if holding and exploration.left == 0 and self._lookup is not None:
            self._tap.set_lookup(self._lookup)
        if exploration.left <= -DRAIN_STEPS:
            self._exploration = None
            self._balance_ms = estimating.settle(
                self._balance_ms,
                exploration.plan,
                exploration.batch_size,
                exploration.length,
                correcting.typical(self._times(exploration), self._quantile),
                exploration.kept_tokens / max(len(exploration.steps), 1),
            )

    def _times(self, exploration: _Exploration) -> list[float]:
        """Return the times of its steps in the profile's measure, as far as they are known."""
        if self.measure is Measure.QUIET_INTERVAL:
            return exploration.intervals_ms
        if self.measure is Measure.GPU_SPAN:
            spans = map(self._tap.gpu_span_ms, exploration.steps)
            return [span for span in spans if span is not None]
        return []
