"""Counts every step of the engine, on the engine's own thread.

The tap calls :meth:`Tally.add` once per step. It must cost a few microseconds whatever the number of
requests, never grow, and still tell all that the control and the metrics need. So it only adds to counters;
whoever wants to know takes what has gathered (:meth:`Tally.take`, once a second) or copies the totals.

Which steps are timed follows the profile's rule (``tabletune_profiler.sweeping``, with the same numbers from
``engine.steps``), since live times are believed only against a profile of the same measure (ENGINE.md 4):

- the step is a pure decode step;
- the length in force has been the same for so long that drafting, verifying, caches and allocator follow it;
- where every request gets a full draft, exactly that many tokens were verified;
- by intervals, from result to result, also the two steps before it and the one after it are pure decode steps
  of the same batch size: what the host does for a prompt shows in the intervals around its step. A GPU span,
  which is taken where the profile has spans, holds the step's own work only. Under load steps with prompts
  lie so close that quiet ones nearly vanish, and what is explored would hardly ever be timed.

Spans are read some steps later, when they have come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tabletune import controlling, estimating, traffic
from tabletune_plugin.engine.steps import DROPPED_STEPS, QUIET_ROW, Step

MOST_TIMES = 64
"""Times kept per cell and window."""
MOST_CELLS = 512
"""Cells timed in one window; further ones are left out."""
MOST_CHANGES = 64
"""Changes of length kept per window."""
STEPS_AFTER_CHANGE = 8
"""Steps watched after a change of length."""
RECENT_TIMES = 65
"""Times per batch bucket and length that the metric's median is of."""
MOST_NEXT_STEPS = 4_096
"""Kinds of next step counted in one window; further ones are left out."""
MOST_PENDING = 256
"""Times whose GPU span is waited for."""
SPAN_STEPS = 64
"""Steps after which a span that has not come is given up: the recorder keeps as many."""

DECODE, MIXED = "decode", "mixed"
"""Kinds of step: pure decode, or shared with a prompt."""

StepKey = tuple[str, int, str]
"""Batch bucket, length in force, kind."""

_Timed = tuple[int, float, int, tuple[int, int]]
"""Number, interval and verified tokens of a step that may be timed, and its cell: batch size and length."""


def buckets(max_batch_size: int) -> tuple[str, ...]:
    """Return the bucket's label by batch size; entry 0 is unused.

    Bounds are powers of two and the middles between them, as a profile's grid, so that there are about
    twenty for a thousand requests.

    >>> buckets(7)
    ('', '1', '2', '3', '4', '5-6', '5-6', '7')
    """
    labels = [""]
    bounds = sorted({size for power in range(17) for size in (2**power, 3 * 2**power // 2)})
    for bound in bounds:
        first, last = len(labels), min(bound, max_batch_size)
        label = str(first) if first == last else f"{first}-{last}"
        labels += [label] * (last - first + 1)
    return tuple(labels)


@dataclass(frozen=True)
class Totals:
    """All that was counted since the engine started: what the metrics show."""

    drafted: tuple[int, ...]
    """Requests that got a draft while the length in force reached the position."""
    accepted: tuple[int, ...]
    """Those of them whose guesses up to the position were all accepted."""
    proposed: int
    """Requests and steps that got a draft where the length in force was above 0."""
    not_proposed: int
    """Requests and steps that got none although it was."""
    steps: dict[StepKey, tuple[int, float, int]]
    """Steps, seconds and kept tokens."""
    recent_ms: dict[tuple[str, int], tuple[float, ...]]
    """The last times of quiet steps by batch bucket and length, milliseconds."""


@dataclass(slots=True)
class _Change:
    """A changed length, and the times of the steps after it."""

    before: int
    after: int
    batch_size: int
    times: list[float]
    left: int = STEPS_AFTER_CHANGE


class _Counts:
    """Counters of drafts; plain lists, since they are added to once per step."""

    __slots__ = ("accepted", "drafted", "not_proposed", "proposed")

    def __init__(self, positions: int) -> None:
        self.drafted = [0] * positions
        self.accepted = [0] * positions
        self.proposed = self.not_proposed = 0

    def plus(self, other: _Counts) -> _Counts:
        total = _Counts(0)
        total.drafted = [a + b for a, b in zip(self.drafted, other.drafted, strict=True)]
        total.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]
        total.proposed = self.proposed + other.proposed
        total.not_proposed = self.not_proposed + other.not_proposed
        return total


class _Window:
    """What has gathered since the last :meth:`Tally.take`."""

    __slots__ = ("changes", "counts", "kept_tokens", "next_steps", "steps", "times")

    def __init__(self, positions: int) -> None:
        self.counts = _Counts(positions)
        self.steps = self.kept_tokens = 0
        self.times: dict[tuple[int, int], list[float]] = {}
        self.changes: list[_Change] = []
        # By batch size of the step before, own batch size and prompt tokens.
        self.next_steps: dict[tuple[int, int, int], int] = {}


class Tally:
    """The counters of one engine core."""

    def __init__(
        self,
        max_batch_size: int,
        longest: int,
        *,
        uniform_drafts: bool,
        asynchronous: bool,
        gpu_span_ms: Callable[[int], float | None],
    ) -> None:
        """Make counters for an engine of ``max_batch_size`` requests and drafts of ``longest`` tokens.

        ``uniform_drafts``: every request gets a draft of the full length. ``asynchronous``: the scheduler
        is. ``gpu_span_ms``: the tap's method of that name.
        """
        self._positions = longest
        self._buckets = buckets(max_batch_size)
        self._uniform = uniform_drafts
        # An asynchronous scheduler shows a changed length a step later; the profiler counts from the change.
        self._settled = DROPPED_STEPS - 1 if asynchronous else DROPPED_STEPS
        self._gpu_span_ms = gpu_span_ms
        self._spans = False
        self._lock = threading.Lock()
        self._window = _Window(longest)
        self._taken = _Counts(longest)
        self._steps: dict[StepKey, list[float]] = {}
        self._recent: dict[tuple[str, int], deque[float]] = {}
        # Of the steps before, what the next one needs: the length that they drafted and for how many steps it
        # has been the same, pure steps in a row and their batch size, and the last step itself.
        self._length = self._age = self._row = self._batch_size = 0
        self._last: _Timed | None = None
        self._change: _Change | None = None
        # What waits for spans: the step, and the cell or the change that its time belongs to. A change that
        # is complete once the spans before it have come is there with step -1.
        self._pending: deque[tuple[int, tuple[int, int] | _Change]] = deque(maxlen=MOST_PENDING)

    def measure_spans(self, spans: bool) -> None:
        """Time steps by their GPU spans from now on, or else by intervals. Times start over at a change."""
        with self._lock:
            if spans == self._spans:
                return
            self._spans = spans
            self._pending.clear()
            self._recent.clear()
            self._window.times.clear()
            self._window.changes.clear()
            self._change = None

    def add(self, step: Step) -> None:
        """Count one step; on the engine's thread."""
        with self._lock:
            self._add(step)

    def take(self, seconds: float) -> controlling.Window:
        """Return what has gathered in the ``seconds`` since the last call, and start over."""
        fresh = _Window(self._positions)
        with self._lock:
            window, self._window = self._window, fresh
            self._taken = self._taken.plus(window.counts)
        counts = window.counts
        return controlling.Window(
            seconds=seconds,
            counts=estimating.Counts(
                drafted=tuple(map(float, counts.drafted)),
                accepted=tuple(map(float, counts.accepted)),
                proposed=float(counts.proposed),
                not_proposed=float(counts.not_proposed),
            ),
            step_times=tuple(
                controlling.StepTimes(batch_size, length, tuple(times))
                for (batch_size, length), times in window.times.items()
            ),
            changes=tuple(
                controlling.LengthChange(change.before, change.after, change.batch_size, tuple(change.times))
                for change in window.changes
            ),
            next_steps=tuple(
                traffic.NextSteps(before, batch_size, prompt_tokens, count)
                for (before, batch_size, prompt_tokens), count in window.next_steps.items()
            ),
            steps=window.steps,
            kept_tokens=window.kept_tokens,
        )

    def totals(self) -> Totals:
        """Return a copy of all that was counted; from any thread."""
        with self._lock:
            counts = self._taken.plus(self._window.counts)
            steps = list(self._steps.items())
            recent = [(cell, tuple(times)) for cell, times in self._recent.items()]
        return Totals(
            drafted=tuple(counts.drafted),
            accepted=tuple(counts.accepted),
            proposed=counts.proposed,
            not_proposed=counts.not_proposed,
            steps={key: (int(total[0]), total[1], int(total[2])) for key, total in steps},
            recent_ms=dict(recent),
        )

    def _add(self, step: Step) -> None:
        window = self._window
        batch_size, interval = step.batch_size, step.interval_ms
        # What this step verified, the step before was to draft.
        length, next_length = self._length, step.next_draft_length
        timed = interval == interval  # not NaN: the engine had not been idle
        pure = step.prompt_tokens == 0 and step.new_requests == 0
        kept_tokens = step.kept_tokens

        if length:
            self._count_drafts(window.counts, step, length)
        window.steps += 1
        window.kept_tokens += kept_tokens
        key = (self._buckets[batch_size], length, DECODE if pure else MIXED)
        total = self._steps.get(key)
        if total is None:
            total = self._steps[key] = [0, 0.0, 0]
        total[0] += 1
        total[2] += kept_tokens
        if timed:
            total[1] += interval * 1e-3
            if self._batch_size:
                self._count_next(window, step, pure)

        self._row = (self._row + 1 if batch_size == self._batch_size else 1) if pure else 0
        if self._last is not None and (self._spans or self._row >= QUIET_ROW):
            # This step is the one after; the one before stands in a row of pure steps, if that matters.
            self._time(window, self._last)
        if self._change is not None:
            self._watch(window, self._change, step, pure and timed)
        if next_length != length:
            self._age = 0
            # Whether a new lookup made it or the table, in which it comes with another batch size.
            if self._batch_size:
                self._change = _Change(length, next_length, batch_size, [])
        else:
            self._age += 1
        if self._pending:
            self._read_spans(window, step.number)
        settled = pure and timed and self._age >= self._settled
        self._last = (step.number, interval, step.drafted_tokens, (batch_size, length)) if settled else None
        self._length, self._batch_size = next_length, batch_size

    def _count_next(self, window: _Window, step: Step, pure: bool) -> None:
        """Count the step as one that follows the step before and verifies its drafts."""
        prompt_tokens = 0 if pure else traffic.rounded_up(max(step.prompt_tokens + step.new_requests, 1))
        kind = (self._batch_size, step.batch_size, prompt_tokens)
        count = window.next_steps.get(kind)
        if count is not None or len(window.next_steps) < MOST_NEXT_STEPS:
            window.next_steps[kind] = (count or 0) + 1

    def _count_drafts(self, counts: _Counts, step: Step, length: int) -> None:
        drafts = step.requests_drafted
        if drafts:
            drafted, accepted = counts.drafted, counts.accepted
            for position, kept in enumerate(step.accepted[:length]):
                drafted[position] += drafts
                accepted[position] += kept
            counts.proposed += drafts
        if not self._uniform:
            counts.not_proposed += max(0, step.batch_size - step.new_requests - drafts)

    def _time(self, window: _Window, last: _Timed) -> None:
        number, interval, drafted_tokens, cell = last
        batch_size, length = cell
        if self._uniform and drafted_tokens != batch_size * length:
            return
        if self._spans:
            self._pending.append((number, cell))
        else:
            self._keep(window, cell, interval)

    def _keep(self, window: _Window, cell: tuple[int, int], milliseconds: float) -> None:
        times = window.times.get(cell)
        if times is None and len(window.times) < MOST_CELLS:
            times = window.times[cell] = []
        if times is not None and len(times) < MOST_TIMES:
            times.append(milliseconds)
        shown = (self._buckets[cell[0]], cell[1])
        recent = self._recent.get(shown)
        if recent is None:
            recent = self._recent[shown] = deque(maxlen=RECENT_TIMES)
        recent.append(milliseconds)

    def _watch(self, window: _Window, change: _Change, step: Step, usable: bool) -> None:
        """Take in a step after a change, until there were enough, or batch size or length changed again."""
        same = step.batch_size == change.batch_size and step.next_draft_length == change.after
        change.left -= 1
        ended = not same or change.left == 0
        if ended:
            self._change = None
        if same and usable:
            if self._spans:
                self._pending.append((step.number, change))
            else:
                change.times.append(step.interval_ms)
        if ended and self._spans:
            self._pending.append((-1, change))
        elif ended:
            self._end(window, change)

    def _end(self, window: _Window, change: _Change) -> None:
        if change.times and len(window.changes) < MOST_CHANGES:
            window.changes.append(change)

    def _read_spans(self, window: _Window, now: int) -> None:
        """Take the spans that have come, a few at a time, so that a backlog costs no step much."""
        for _ in range(4):
            if not self._pending:
                return
            number, owner = self._pending[0]
            span = self._gpu_span_ms(number) if number >= 0 else None
            if span is None and number >= 0 and 0 <= now - number < SPAN_STEPS:
                return
            self._pending.popleft()
            if isinstance(owner, tuple):
                if span is not None:
                    self._keep(window, owner, span)
            elif number < 0:
                self._end(window, owner)
            elif span is not None:
                owner.times.append(span)
