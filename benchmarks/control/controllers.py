"""The controllers that are compared: fixed, static, TableTune's own, two from the literature, an oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from control.engine import Machine, Workload
from numpy.typing import NDArray

from tabletune import controlling, correcting, costs, documents, estimating

Floats = NDArray[np.float64]


class Lookup:
    """Any table that stays: a fixed length, or the static tuned table."""

    def __init__(self, lookup: Sequence[int]) -> None:
        self.lookup = tuple(lookup)

    def length(self, batch_size: int, _step_ms: float) -> int:
        """Return the table's length."""
        return self.lookup[batch_size]

    def see(self, batch_size: int, length: int, kept_tokens: int, step_ms: float, pure: bool) -> None:
        """Learn nothing."""

    def second(self, window: controlling.Window, now: float) -> None:
        """Learn nothing."""


class Shaken(Lookup):
    """A table whose first steps differ: what it reaches otherwise than the table itself is luck."""

    STEPS = 3

    def __init__(self, lookup: Sequence[int]) -> None:
        super().__init__(lookup)
        self.left = self.STEPS

    def length(self, batch_size: int, _step_ms: float) -> int:
        """Return 0 at first, then the table's length."""
        self.left = max(self.left - 1, -1)
        return 0 if self.left >= 0 else self.lookup[batch_size]


class Ours(Lookup):
    """TableTune's controller, driven as the plugin drives it in mode adapt."""

    def __init__(
        self,
        document: documents.Document,
        control: documents.Control,
        max_batch_size: int,
        settles: bool = True,
    ) -> None:
        self.plan = controlling.plan(document, control, max_batch_size)
        self.state = controlling.begin(self.plan)
        super().__init__(self.state.lookup)
        self.share = control.exploration_share
        self.exploration: estimating.ExplorationPlan | None = None
        self.balance_ms = 0.0
        self.held, self.left, self.held_at = 0, 0, 0
        self.around = (0, 0)
        self.outcome: controlling.Outcome | None = None
        self.changed_at: list[tuple[float, tuple[estimating.Change, ...]]] = []
        self.explored_steps = 0
        self.settles = settles
        self.unsettled = 0
        self.started: estimating.ExplorationPlan | None = None
        self.times: list[float] = []
        self.kept = 0.0

    def length(self, batch_size: int, step_ms: float) -> int:
        """Return the table's length, or one that is explored."""
        plan = self.exploration
        if plan is None:
            return self.lookup[batch_size]
        self.balance_ms = estimating.earn(self.balance_ms, step_ms, plan, self.share)
        if self.left and self.around[0] <= batch_size <= self.around[1]:
            self.left -= 1
            self.explored_steps += 1
            return self.held
        self.left = 0
        if self.unsettled:
            # The results of the last exploration are still on their way.
            return self.lookup[batch_size]
        found = estimating.explore(plan, batch_size, self.balance_ms)
        self.balance_ms = found.balance_ms
        if found.reason == estimating.EXPLORED:
            self.held, self.left, self.held_at = found.draft_length, plan.steps - 1, batch_size
            self.around = plan.held(batch_size)
            self.explored_steps += 1
            self.started, self.unsettled, self.times, self.kept = plan, plan.steps + 2, [], 0
        return found.draft_length

    def see(self, batch_size: int, length: int, kept_tokens: int, step_ms: float, pure: bool) -> None:
        """Settle what an exploration really cost, once its last result has come."""
        if not self.unsettled or self.started is None:
            return
        self.unsettled -= 1
        if pure and self.around[0] <= batch_size <= self.around[1] and length == self.held:
            self.times.append(step_ms)
            self.kept += kept_tokens * self.held_at / batch_size
        if not self.unsettled and self.settles:
            self.balance_ms = estimating.settle(
                self.balance_ms,
                self.started,
                self.held_at,
                self.held,
                correcting.typical(self.times, self.plan.grid.quantile),
                self.kept / max(len(self.times), 1),
            )

    def second(self, window: controlling.Window, now: float) -> None:
        """Correct the table."""
        self.state, self.outcome = controlling.advance(self.plan, self.state, window)
        self.lookup, self.exploration = self.outcome.lookup, self.outcome.exploration
        if self.outcome.decision.changes:
            self.changed_at.append((now, self.outcome.decision.changes))


class Oracle(Lookup):
    """Knows times and acceptance, and takes the best length of each step."""

    def __init__(self, machine: Machine, workload: Workload) -> None:
        super().__init__(())
        self.machine, self.workload = machine, workload
        self.second_known: Any = None
        self._know(0.0)

    def _know(self, now: float) -> None:
        known = (
            self.workload.at(now),
            [slow for slow in self.machine.slowness if slow.start <= now < slow.end],
        )
        if known == self.second_known:
            return
        self.second_known = known
        survival, rate = known[0]
        times = self.machine.step_times_ms
        for stretch in known[1]:
            times = times * stretch.factor + stretch.added_ms
        tokens = expected(survival, rate, self.machine.draft_lengths)
        best = np.argmax(tokens[:, np.newaxis] / times, axis=0)
        self.lookup = (0, *(self.machine.draft_lengths[row] for row in best.tolist()))

    def second(self, _window: controlling.Window, now: float) -> None:
        """Notice at once what changed."""
        self._know(now)


class Turbo(Lookup):
    """TurboSpec-style: a step-time model fitted from a few points, a length chosen by it and live acceptance.

    The model is linear in requests and in tokens, ``T = t0 + t1 · B + t2 · B · (K + 1)``, fitted to the
    profile's times of the shortest and the longest length at five batch sizes across the grid. Steps beyond
    the largest captured graph are left out of the fit and never chosen, where another length is within it:
    a linear model cannot hold them, and without this rule it would lose half at 192 requests. Acceptance is
    one rate per token, a moving average of accepted over tried tokens that starts from the document's, so
    expected tokens are ``1 + r + r² + …``.

    Tuned: the average's half-life, on seeds that no result uses (`tuning.py`).
    """

    HALF_LIFE_DRAFTS = 500.0

    def __init__(self, document: documents.Document, max_batch_size: int) -> None:
        self.lengths = document.profile.draft_lengths
        model = costs.CostModel.from_profile(document.profile, document.fingerprint)
        times = model.step_times(max_batch_size)
        grid = np.array([size for size in document.profile.batch_sizes if size <= max_batch_size])
        sizes = np.unique(grid[np.linspace(0, len(grid) - 1, 5).round().astype(int)])
        points = [
            (size, length, times[row, size - 1])
            for row, length in ((0, self.lengths[0]), (len(self.lengths) - 1, self.lengths[-1]))
            for size in sizes.tolist()
        ]
        points = [point for point in points if np.isfinite(point[2])]
        captured = max(document.fingerprint.cudagraph_capture_sizes, default=10**9)
        points = [point for point in points if point[0] * (point[1] + 1) <= captured]
        matrix = np.array([(1.0, size, size * (length + 1)) for size, length, _ in points])
        relative = np.array([1 / time for _, _, time in points])
        fit = np.linalg.lstsq(matrix * relative[:, np.newaxis], np.ones(len(points)), rcond=None)[0]
        all_sizes = np.arange(1, max_batch_size + 1)
        tokens = all_sizes * (np.array(self.lengths)[:, np.newaxis] + 1)
        self.times = np.maximum(fit[0] + fit[1] * all_sizes + fit[2] * tokens, 0.1)
        beyond = (tokens > captured) & (tokens[:1] <= captured)
        self.times = np.where(beyond, np.inf, self.times)
        self.proposal_rate = document.acceptance.proposal_rate
        self.accepted, self.drafted = 0.0, 0.0
        longest = self.lengths[-1]
        self.prior = self._rate_for(sum(document.acceptance.survival[:longest]), longest)
        super().__init__(())
        self._choose()

    @staticmethod
    def _rate_for(tokens: float, longest: int) -> float:
        """Return the rate per token with which ``longest`` drafts keep ``tokens``, by bisection."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if sum(middle**i for i in range(1, longest + 1)) < tokens else (low, middle)
            )
        return (low + high) / 2

    def _choose(self) -> None:
        rate = (self.accepted + 50 * self.prior) / (self.drafted + 50)
        survival = [rate**position for position in range(1, self.lengths[-1] + 1)]
        tokens = expected(survival, self.proposal_rate, self.lengths)
        best = np.argmax(tokens[:, np.newaxis] / self.times, axis=0)
        self.lookup = (0, *(self.lengths[row] for row in best.tolist()))

    def see(self, batch_size: int, length: int, kept_tokens: int, _step_ms: float, pure: bool) -> None:
        """Count tokens that were tried: all accepted and, of those not accepted to the end, one more."""
        if length and pure:
            accepted = kept_tokens - batch_size
            tried = min(accepted + batch_size * self.proposal_rate, batch_size * length)
            fade = 0.5 ** (batch_size / self.HALF_LIFE_DRAFTS)
            self.accepted, self.drafted = self.accepted * fade + accepted, self.drafted * fade + tried

    def second(self, _window: controlling.Window, _now: float) -> None:
        """Choose anew. The rate moves too little within a second for each step to matter."""
        self._choose()


class Nightjar(Lookup):
    """Nightjar-style: a bandit per batch size, with nothing known beforehand.

    For each batch size (in buckets an eighth of a doubling wide, which only helps it) it holds an arm for
    ``HOLD`` steps and then, with a probability that falls with the third root of what it has seen, takes
    another at random, else the one with the highest discounted tokens per second. What it has seen is
    discounted too, so that it never stops exploring: traffic may change. Rewards are of pure steps,
    as they come. Unloading the drafter, which the original does too, is left out.

    Tuned: the three constants, on seeds that no result uses (`tuning.py`).
    """

    HOLD = 1
    EXPLORE = 0.03
    MEMORY = 100.0
    """Steps of the batch size after which a reward weighs about a third."""

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        super().__init__(())
        self.lengths = tuple(lengths)
        self.random = np.random.default_rng([seed, 77])
        self.tokens: dict[int, list[float]] = {}
        self.spent: dict[int, list[float]] = {}
        self.seen: dict[int, float] = {}
        self.arm: dict[int, tuple[int, int]] = {}

    @staticmethod
    def bucket(batch_size: int) -> int:
        """Return the bandit of a batch size."""
        return round(8 * math.log2(batch_size))

    def length(self, batch_size: int, _step_ms: float) -> int:
        """Return the arm held, or a new one."""
        bucket = self.bucket(batch_size)
        row, left = self.arm.get(bucket, (0, 0))
        if left == 0:
            row, left = self._choose(bucket), self.HOLD
        self.arm[bucket] = row, left - 1
        return self.lengths[row]

    def _choose(self, bucket: int) -> int:
        spent = self.spent.get(bucket)
        if spent is None:
            self.tokens[bucket], self.spent[bucket] = [0.0] * len(self.lengths), [0.0] * len(self.lengths)
            self.seen[bucket] = 0.0
            return int(self.random.integers(len(self.lengths)))
        untried = [row for row, time in enumerate(spent) if time < 1e-3]
        if untried:
            return int(self.random.choice(untried))
        rounds = self.seen[bucket] / self.HOLD
        if self.random.random() < min(1.0, self.EXPLORE * (1 + rounds) ** (-1 / 3)):
            return int(self.random.integers(len(self.lengths)))
        return int(np.argmax([kept / time for kept, time in zip(self.tokens[bucket], spent, strict=True)]))

    def see(self, batch_size: int, length: int, kept_tokens: int, step_ms: float, pure: bool) -> None:
        """Reward the arm of a pure step."""
        bucket = self.bucket(batch_size)
        if not pure or bucket not in self.spent:
            return
        row = self.lengths.index(length)
        fade = 1 - 1 / self.MEMORY
        tokens, spent = self.tokens[bucket], self.spent[bucket]
        for arm in range(len(tokens)):
            tokens[arm] *= fade
            spent[arm] *= fade
        tokens[row] += kept_tokens
        spent[row] += step_ms
        self.seen[bucket] = self.seen[bucket] * fade + 1


def expected(survival: Sequence[float], rate: float, lengths: Sequence[int]) -> Floats:
    """Return ``E[K]`` of each length."""
    totals = np.concatenate(([0.0], np.cumsum(survival)))
    tokens: Floats = 1 + rate * totals[list(lengths)]
    return tokens
