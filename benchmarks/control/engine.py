"""A model of a serving engine, step by step, for controllers to drive.

`measure.py` runs it with every controller. On a real engine two windows of one cell differ by up to 17%
(ENGINE.md 6), so whether a controller loses 2% cannot be told there in any reasonable time; and a wrong
profile cannot be had to order. Here times come from a measured grid, and all else that a controller might
trip over is modelled after what was measured:

- the length drafted in a step is verified in the next; what a step costs depends on what it verifies;
- a new request's prompt shares a step, which then finds another graph (ENGINE.md 1), and has no draft yet; it
  comes a step after the request whose place it takes has ended, so that a batch size seldom stays;
- step times vary by 2.5%, drift together by 3% over a minute or so, and 1% of them take 1.5 to 4 times as
  long (ENGINE.md 6);
- what a controller may learn is what the plugin's tally would tell it: the times of pure steps where the
  profile has GPU spans, of quiet ones where it has intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tabletune import controlling, estimating, traffic
from tabletune_plugin.engine.steps import DROPPED_STEPS, QUIET_ROW
from tabletune_plugin.tallying import MOST_CHANGES, MOST_TIMES, STEPS_AFTER_CHANGE

Floats = NDArray[np.float64]

SETTLED_STEPS = DROPPED_STEPS - 1
"""Steps after a change of length before one is timed, as `tabletune_plugin.tallying` (asynchronous)."""


@dataclass(frozen=True)
class Noise:
    """How step times vary."""

    spread: float = 0.025
    """Standard deviation of single steps, relative."""
    tail_share: float = 0.01
    """Share of steps in the long tail."""
    tail: tuple[float, float] = (1.5, 4.0)
    """Factor of a step in the tail, uniform."""
    drift: float = 0.03
    """Standard deviation of the common drift, relative."""
    drift_seconds: float = 30.0
    """Its correlation time."""
    hiccups: tuple[tuple[float, float], ...] = ()
    """Steps that took seconds (compiling, capturing): when, and how long, in seconds."""

    @classmethod
    def none(cls) -> Noise:
        """Return no noise at all."""
        return cls(spread=0.0, tail_share=0.0, drift=0.0)


@dataclass(frozen=True)
class Slowness:
    """A stretch of time in which every step takes longer."""

    start: float
    end: float
    factor: float = 1.0
    added_ms: float = 0.0


@dataclass(frozen=True)
class Workload:
    """What is asked of the engine."""

    open_requests: int = 0
    """Closed loop: so many requests are open at any time. 0: an open loop."""
    arrivals_per_second: float = 0.0
    """Open loop: Poisson arrivals."""
    output_tokens: tuple[int, int] = (300, 700)
    """Tokens of an output, uniform, both ends included."""
    acceptance: tuple[tuple[float, tuple[float, ...], float], ...] = ((0.0, (0.76, 0.56, 0.42), 1.0),)
    """From when on, in seconds, which survival and proposal rate are true."""

    def at(self, seconds: float) -> tuple[tuple[float, ...], float]:
        """Return survival and proposal rate at a time."""
        survival, rate = self.acceptance[0][1:]
        for start, later, later_rate in self.acceptance:
            if seconds >= start:
                survival, rate = later, later_rate
        return survival, rate


@dataclass(frozen=True, eq=False)
class Machine:
    """The engine's true times."""

    draft_lengths: tuple[int, ...]
    step_times_ms: Floats
    """``(lengths, batch sizes)``, milliseconds of pure steps."""
    prompt_ms: Floats
    """What prompts add to a step that they share, milliseconds, in the shape of ``step_times_ms``."""
    prompt_tokens: int = 256
    """How long prompts are."""
    noise: Noise = field(default_factory=Noise)
    slowness: tuple[Slowness, ...] = ()
    stalls: tuple[tuple[int, int], ...] = ()
    """Changes of length after which eight steps take three times as long."""
    spans: bool = False
    """Whether steps are timed by GPU spans, else by intervals."""

    @property
    def max_batch_size(self) -> int:
        """Most requests in a step."""
        return int(self.step_times_ms.shape[1])

    def quiet(self) -> Machine:
        """Return the machine without noise."""
        return replace(self, noise=Noise.none())


class Driver(Protocol):
    """What chooses draft lengths."""

    def length(self, batch_size: int, step_ms: float, /) -> int:
        """Return the length to draft in a step of ``batch_size``; the step before took ``step_ms``."""

    def see(self, batch_size: int, length: int, kept_tokens: int, step_ms: float, pure: bool, /) -> None:
        """See the result of one step, for controllers that learn from single steps."""

    def second(self, window: controlling.Window, now: float, /) -> None:
        """Take what gathered in about a second."""


@dataclass(frozen=True, eq=False)
class Result:
    """What serving came to, per window of about a second."""

    ends: Floats
    """When each window ended, seconds."""
    tokens: Floats
    """Output tokens kept."""
    seconds: Floats
    """Seconds that the engine was busy."""
    expected_tokens: Floats
    """Tokens that the same steps keep on average."""
    expected_seconds: Floats
    """Seconds that the same steps take without their noise; drift and slowness stay."""
    prompts: Floats
    """Requests that began."""
    prompt_seconds: Floats
    """Of the expected seconds, those that their prompts added."""
    request_seconds: Floats
    """Of these, seconds that requests spent in the engine, all together, queueing included."""
    steps: Floats
    """Steps."""
    finished: int
    """Requests that ended."""
    admitted_tokens: int
    """Tokens that all admitted requests asked for."""
    left_tokens: int
    """Tokens that open requests still ask for at the end."""
    overshoot: int
    """Tokens kept beyond what the finished requests asked for: their last step's."""
    tokens_per_request: float = 0.0
    """Closed loop: what a request gets on average, its last step's overshoot included."""

    def throughput(self, start: float = 0.0, end: float = math.inf) -> float:
        """Return tokens per busy second of the windows that begin in ``[start, end)``.

        Tokens and times are the expected ones of the steps that were taken: the choice of lengths is what is
        compared, and luck would hide 1% of it. In a closed loop, with as many prompts as the tokens call for,
        one in as many as a request gets. In an open loop prompts count as they came.
        """
        inside = self._inside(start, end)
        tokens, seconds = self.expected_tokens[inside].sum(), self.expected_seconds[inside].sum()
        prompts = self.prompts[inside].sum()
        if self.tokens_per_request and prompts:
            lacking = tokens / self.tokens_per_request - prompts
            seconds += lacking * self.prompt_seconds[inside].sum() / prompts
        return float(tokens / seconds)

    def served(self, start: float = 0.0, end: float = math.inf) -> float:
        """Return tokens per busy second with the steps that prompts shared as they came.

        With a changed first second the same table differs by 0.5% in it over half a minute.
        """
        inside = self._inside(start, end)
        return float(self.expected_tokens[inside].sum() / self.expected_seconds[inside].sum())

    def realised(self) -> float:
        """Return tokens per busy second as they came, noise and luck included."""
        return float(self.tokens.sum() / self.seconds.sum())

    def speed(self, start: float = 0.0, end: float = math.inf) -> float:
        """Return tokens per second that a request spends in the engine: the measure of an open loop."""
        inside = self._inside(start, end)
        return float(self.expected_tokens[inside].sum() / self.request_seconds[inside].sum())

    def _inside(self, start: float, end: float) -> NDArray[np.bool_]:
        starts = np.concatenate(([0.0], self.ends[:-1]))
        inside: NDArray[np.bool_] = (starts >= start - 1e-9) & (starts < end)
        return inside


class Tally:
    """Gathers what the plugin's tally would, by its rules."""

    def __init__(self, positions: int, spans: bool = False) -> None:
        self.positions, self.spans = positions, spans
        self.row = self.age = 0
        self.batch_size = -1
        self.before: tuple[int, int, float] | None = None
        self.watched: list[float] | None = None
        self.watched_length = self.watched_left = 0
        self.fresh()

    def fresh(self) -> None:
        """Start a window."""
        self.drafts = [0] * (self.positions + 1)
        self.reached = np.zeros((self.positions + 1, self.positions + 1), dtype=np.int64)
        self.proposed = self.not_proposed = 0
        self.times: dict[tuple[int, int], list[float]] = {}
        self.changes: list[tuple[int, int, int, list[float]]] = []
        self.next_steps: dict[tuple[int, int, int], int] = {}
        self.steps = self.kept = 0
        self.watched = None

    def add(self, batch_size: int, verified: int, following: int, time_ms: float, prompt_tokens: int) -> None:
        """Take one step's time: ``verified`` is its length, ``following`` the next step's."""
        pure = not prompt_tokens
        if self.batch_size > 0:
            kind = (self.batch_size, batch_size, traffic.rounded_up(prompt_tokens) if prompt_tokens else 0)
            self.next_steps[kind] = self.next_steps.get(kind, 0) + 1
        if not pure:
            self.row = 0
        else:
            self.row = self.row + 1 if batch_size == self.batch_size else 1
        if self.before is not None and (self.spans or self.row >= QUIET_ROW):
            size, length, taken = self.before
            times = self.times.setdefault((size, length), [])
            if len(times) < MOST_TIMES:
                times.append(taken)
        if self.watched is not None:
            # Changes by the table come with another batch size, so this may go on changing.
            self.watched_left -= 1
            if following != self.watched_length or self.watched_left < 0:
                self.watched = None
            elif pure:
                self.watched.append(time_ms)
        if following != verified:
            self.age = 0
            if len(self.changes) < MOST_CHANGES:
                self.watched, self.watched_length = [], following
                self.watched_left = STEPS_AFTER_CHANGE
                self.changes.append((verified, following, batch_size, self.watched))
        else:
            self.age += 1
        settled = pure and self.age >= SETTLED_STEPS
        self.before = (batch_size, verified, time_ms) if settled else None
        self.batch_size = batch_size

    def take(self, seconds: float) -> controlling.Window:
        """Return the window, and start another."""
        drafted = [float(sum(self.drafts[position:])) for position in range(1, self.positions + 1)]
        accepted = self.reached.sum(axis=0)[::-1].cumsum()[::-1][1:]
        window = controlling.Window(
            seconds=seconds,
            counts=estimating.Counts(
                tuple(drafted),
                tuple(accepted.astype(float).tolist()),
                float(self.proposed),
                float(self.not_proposed),
            ),
            step_times=tuple(
                controlling.StepTimes(size, length, tuple(times))
                for (size, length), times in self.times.items()
            ),
            changes=tuple(
                controlling.LengthChange(before, after, size, tuple(times))
                for before, after, size, times in self.changes
                if times
            ),
            next_steps=tuple(traffic.NextSteps(*kind, count) for kind, count in self.next_steps.items()),
            steps=self.steps,
            kept_tokens=self.kept,
        )
        self.fresh()
        return window


def run(machine: Machine, workload: Workload, driver: Driver, seconds: float, seed: int) -> Result:
    """Serve for ``seconds`` of the engine's own time and return what came of it.

    Equal arguments give equal results: the random numbers of arrivals, outputs, acceptance, step times and
    drift are streams of their own, so that one controller's choices change no other's luck but its own.
    """
    streams = [np.random.default_rng([seed, stream]) for stream in range(4)]
    chance, noise = _uniform(streams[0]), _step_factors(streams[1], machine.noise)
    outputs, drift = _outputs(streams[2], workload), _drift(streams[3], machine.noise, seconds)
    arrivals = _arrivals(np.random.default_rng([seed, 9]), workload, seconds)
    hiccups = sorted(machine.noise.hiccups)
    rows = {length: row for row, length in enumerate(machine.draft_lengths)}
    times, size_limit = machine.step_times_ms.tolist(), machine.max_batch_size
    prompts = machine.prompt_ms.tolist()
    positions = machine.draft_lengths[-1]
    tally = Tally(positions, machine.spans)
    driver.second(tally.take(0.0), 0.0)

    remaining = np.zeros(0, dtype=np.int64)
    waiting: list[int] = []
    next_arrival = next(arrivals)
    now, window_start, verified, finished, admitted, overshoot, last_ms = 0.0, 0.0, 0, 0, 0, 0, 0.0
    stalled = vacant = 0
    records: list[tuple[float, ...]] = []
    tokens = steps = 0
    busy = expected_tokens = expected_seconds = request_seconds = prompts_begun = prompt_seconds = 0.0
    next_check = 0.0
    while now < seconds:
        if now >= next_check:
            survival, rate = workload.at(now)
            negated = -np.asarray(survival[:positions])
            reach = np.concatenate(([0.0], np.cumsum(survival[:positions]))).tolist()
            next_check = now + 0.05
        # Admission.
        if workload.open_requests:
            missing = workload.open_requests - len(remaining)
            # A place is taken a step after its request ended: its client, and the scheduling, come that late.
            new = min(missing, vacant) if len(remaining) else missing
            vacant = missing - new
            waiting.extend(next(outputs) for _ in range(new))
        else:
            while next_arrival <= now:
                waiting.append(next(outputs))
                next_arrival = next(arrivals)
            if not waiting and not len(remaining):
                now = min(next_arrival, seconds)
                last_ms = 0.0
                continue
        new = min(len(waiting), size_limit - len(remaining))
        if new:
            admitted += sum(waiting[:new])
            remaining = np.concatenate((remaining, waiting[:new]))
            del waiting[:new]
        batch_size = len(remaining)
        # The step.
        pure = new == 0
        # Where all are new, none has a draft.
        row = rows[verified] if batch_size > new else 0
        time_ms, prompt_ms = times[row][batch_size - 1], prompts[row][batch_size - 1]
        time_ms *= drift[int(now)]
        for slow in machine.slowness:
            if slow.start <= now < slow.end:
                time_ms = time_ms * slow.factor + slow.added_ms
        if stalled:
            stalled -= 1
            time_ms *= 3.0
        expected_ms = time_ms + (0.0 if pure else prompt_ms)
        time_ms = time_ms * next(noise) + (0.0 if pure else prompt_ms)
        if hiccups and now >= hiccups[0][0]:
            time_ms += hiccups.pop(0)[1] * 1e3
        following = driver.length(batch_size, last_ms)
        if following != verified and (verified, following) in machine.stalls:
            stalled = 8
        # Tokens.
        old = batch_size - new
        kept_tokens = batch_size
        if verified and old:
            guesses = chance(old)
            reached = negated[:verified].searchsorted(-guesses)
            if rate < 1:
                proposed = chance(old) < rate
                reached = reached * proposed
                drafts = int(proposed.sum())
            else:
                drafts = old
            remaining[:old] -= reached
            tally.drafts[verified] += drafts
            tally.reached[verified] += np.bincount(reached, minlength=positions + 1)
            tally.proposed += drafts
            tally.not_proposed += old - drafts
            kept_tokens += int(np.add.reduce(reached))
        remaining -= 1
        tally.kept += kept_tokens
        tally.steps += 1
        tally.add(batch_size, verified, following, time_ms, 0 if pure else machine.prompt_tokens)
        driver.see(batch_size, verified, kept_tokens, time_ms, pure)
        if np.minimum.reduce(remaining) <= 0:
            ended = remaining <= 0
            overshoot -= int(remaining[ended].sum())
            finished += int(ended.sum())
            remaining = remaining[~ended]
        # Those with which a closed loop begins were open before, as it were.
        if new and now:
            prompts_begun += new
            prompt_seconds += prompt_ms / 1e3
        now += time_ms / 1e3
        tokens += kept_tokens
        busy += time_ms / 1e3
        step_tokens = batch_size + old * rate * reach[verified]
        expected_tokens += step_tokens
        expected_seconds += expected_ms / 1e3
        request_seconds += (batch_size + len(waiting)) * expected_ms / 1e3
        steps += 1
        last_ms, verified = time_ms, following
        if now - window_start >= 1.0:
            driver.second(tally.take(now - window_start), now)
            sums = (tokens, busy, expected_tokens, expected_seconds, request_seconds, steps)
            records.append((now, *sums, prompts_begun, prompt_seconds))
            window_start = now
            tokens = steps = 0
            busy = expected_tokens = expected_seconds = request_seconds = prompts_begun = prompt_seconds = 0.0
    if steps:
        sums = (tokens, busy, expected_tokens, expected_seconds, request_seconds, steps)
        records.append((now, *sums, prompts_begun, prompt_seconds))
    columns = np.array(records, dtype=np.float64).T
    return Result(
        ends=columns[0],
        tokens=columns[1],
        seconds=columns[2],
        expected_tokens=columns[3],
        expected_seconds=columns[4],
        prompts=columns[7],
        prompt_seconds=columns[8],
        request_seconds=columns[5],
        steps=columns[6],
        finished=finished,
        admitted_tokens=admitted,
        left_tokens=int(remaining.sum()),
        overshoot=overshoot,
        tokens_per_request=sum(workload.output_tokens) / 2 + overshoot / finished
        if workload.open_requests and finished
        else 0.0,
    )


def _uniform(random: np.random.Generator) -> Callable[[int], Floats]:
    """Return a source of uniform numbers, drawn in blocks for speed."""
    block, place = random.random(65_536), 0

    def draw(count: int) -> Floats:
        nonlocal block, place
        if place + count > len(block):
            block, place = random.random(65_536), 0
        place += count
        drawn: Floats = block[place - count : place]
        return drawn

    return draw


def _step_factors(random: np.random.Generator, noise: Noise) -> Iterator[float]:
    while True:
        factors = np.exp(noise.spread * random.standard_normal(8_192))
        tail = random.random(8_192) < noise.tail_share
        factors = np.where(tail, factors * random.uniform(*noise.tail, size=8_192), factors)
        yield from factors.tolist()


def _drift(random: np.random.Generator, noise: Noise, seconds: float) -> list[float]:
    """Return the common factor of each second: it wanders, and comes back (Ornstein-Uhlenbeck)."""
    stays = math.exp(-1 / noise.drift_seconds)
    level, levels = noise.drift * float(random.standard_normal()), []
    for kick in random.standard_normal(int(seconds) + 60).tolist():
        levels.append(math.exp(level))
        level = stays * level + math.sqrt(1 - stays**2) * noise.drift * kick
    return levels


def _outputs(random: np.random.Generator, workload: Workload) -> Iterator[int]:
    """Yield output lengths. The first requests of a closed loop are half done on average, as at any time."""
    low, high = workload.output_tokens
    for _ in range(workload.open_requests):
        yield int(random.integers(1, random.integers(low, high + 1) + 1))
    while True:
        yield from random.integers(low, high + 1, size=1_024).tolist()


def _arrivals(random: np.random.Generator, workload: Workload, seconds: float) -> Iterator[float]:
    now = 0.0
    while workload.arrivals_per_second and now < seconds:
        now += float(random.exponential(1 / workload.arrivals_per_second))
        yield now
    while True:
        yield math.inf
