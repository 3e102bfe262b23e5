from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import assembling, controlling, documents, estimating, graphs, hazards, tables
from tabletune.controlling import LengthChange, Outcome, Plan, State, StepTimes, Window
from tabletune.documents import Control, Document
from tabletune.estimating import Counts
from tabletune.traffic import NextSteps
from tests.core import h200, strategies

ADAPT = Control(mode=documents.Mode.ADAPT)
CODE = (0.76, 0.56, 0.42)
PROSE = (0.35, 0.12, 0.04)
SIZES = (1, 4, 8, 16, 32, 64)


def document(
    times: Sequence[Sequence[float | None]] | None = None, control: Control = ADAPT, **engine: Any
) -> Document:
    """An engine of 64 requests without graphs, so that times are smooth; length 3 is best for code."""
    grid = times or [[base * (1 + size / 32) for size in SIZES] for base in (4.0, 4.3, 4.6, 4.9)]
    fields: dict[str, Any] = {"max_num_seqs": 64, "cudagraph_mode": "NONE", "cudagraph_capture_sizes": ()}
    profile = h200.profile(
        SIZES,
        (0, 1, 2, 3),
        grid,
        [[None if time is None else documents.Graph.NONE for time in row] for row in grid],
    )
    base = strategies.example()
    return base.model_copy(
        update={
            "fingerprint": h200.fingerprint(**fields | engine),
            "profile": profile,
            "acceptance": h200.acceptance(CODE),
            "table": ((1, 64, 3),),
            "control": control,
        }
    )


def h200_document(length: int) -> Document:
    """The H200 with vLLM's default capture sizes, its table of one length."""
    return strategies.example().model_copy(
        update={
            "fingerprint": h200.fingerprint(),
            "profile": h200.live_profile(),
            "acceptance": h200.acceptance(),
            "table": ((1, 256, length),),
            "control": ADAPT,
        }
    )


def counted(drafts: float, survival: Sequence[float], length: int = 3) -> Counts:
    return Counts(
        drafted=tuple(drafts if position < length else 0.0 for position in range(3)),
        accepted=tuple(drafts * rate if position < length else 0.0 for position, rate in enumerate(survival)),
        proposed=drafts if length else 0.0,
    )


class Serving:
    """A controller that is driven window by window."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state: State = controlling.begin(plan)
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """That of the last window."""
        assert self._outcome is not None
        return self._outcome

    @property
    def lookup(self) -> tuple[int, ...]:
        return self.state.lookup

    def advance(self, window: Window, windows: int = 1) -> Outcome:
        for _ in range(windows):
            self.state, self._outcome = controlling.advance(self.plan, self.state, window)
        return self.outcome

    def serve(
        self,
        batch_size: int,
        survival: Sequence[float] = CODE,
        true: dict[int, float] | None = None,
        windows: int = 1,
        drafts: float = 5_000.0,
    ) -> Outcome:
        """Serve at one batch size; ``true`` has the true times that differ from the profile's."""
        for _ in range(windows):
            length = self.lookup[batch_size]
            times = [StepTimes(batch_size, length, (self.true(batch_size, length, true),) * 40)]
            plan = self._outcome.exploration if self._outcome else None
            if plan and plan.lengths[batch_size] != length:
                explored = plan.lengths[batch_size]
                times.append(StepTimes(batch_size, explored, (self.true(batch_size, explored, true),) * 4))
            self.advance(Window(1.0, counted(drafts, survival, length), tuple(times)))
        return self.outcome

    def true(self, batch_size: int, length: int, true: dict[int, float] | None) -> float:
        profiled = float(self.plan.grid.profiled_ms[length, batch_size - 1])
        return (true or {}).get(length, profiled)


def plan(found: Document | None = None, control: Control | None = None, size: int = 64) -> Plan:
    found = found or document()
    return controlling.plan(found, control or found.control, size)


# Plan and begin


def test_document_s_table_is_in_force_at_first() -> None:
    assert controlling.begin(plan()).lookup == (0, *[3] * 64)


def test_lookup_has_the_engine_s_size_whatever_the_document_s() -> None:
    for size in (1, 16, 100):
        begun = controlling.begin(plan(size=size))
        assert len(begun.lookup) == size + 1


def test_hazardous_cells_of_the_serving_engine_are_kept_off() -> None:
    # On the H200 with vLLM's default sizes target and drafter run different graphs at B=117, K=1.
    serving = Serving(plan(h200_document(1), size=256))
    assert serving.plan.hazardous[1, 116]
    assert serving.lookup[117] != 1
    outcome = serving.advance(Window(1.0, counted(5_000.0, CODE)), windows=3)
    assert outcome.lookup[117] != 1
    hazardous = {(int(row), int(column) + 1) for row, column in np.argwhere(serving.plan.hazardous)}
    explored = {
        (serving.plan.draft_lengths.index(length), size)
        for size, length in enumerate(outcome.exploration.lengths)
        if size and length != outcome.lookup[size]
    }
    assert not hazardous & explored


def test_serving_engine_s_capture_sizes_decide_which_cells_find_a_full_graph() -> None:
    found = h200_document(2)
    gap = controlling.plan(found, ADAPT, 256)
    aligned = h200.fingerprint(cudagraph_capture_sizes=tuple(range(12, 1009, 12)), max_num_seqs=252)
    none = controlling.plan(found, ADAPT, 252, aligned)
    assert gap.grid.profiled_ms[2, 3] > 15.0
    assert none.grid.profiled_ms[2, 3] < 5.0


def test_length_that_is_not_allowed_is_left_for_the_best_allowed_one() -> None:
    control = ADAPT.model_copy(update={"allowed_lengths": (0, 1)})
    assert controlling.begin(plan(control=control)).lookup == (0, *[1] * 64)


def test_graphs_are_those_of_the_lengths_that_the_engine_was_started_for() -> None:
    # vLLM files the token counts of all captured lengths together: with graphs for multiples of 5 too, other
    # batch sizes find none at the profiled lengths. Without graphs for length 2 none finds one.
    found = h200_document(3)
    profiled = controlling.plan(found, ADAPT, 256, found.fingerprint)
    assert np.array_equal(
        profiled.grid.kinds,
        controlling.plan(found, ADAPT, 256, found.fingerprint, (0, 1, 2, 3)).grid.kinds,
    )
    more = controlling.plan(found, ADAPT, 256, found.fingerprint, (0, 1, 2, 3, 4))
    fewer = controlling.plan(found, ADAPT, 256, found.fingerprint, (0, 1, 3))
    for other, captured in ((more, (0, 1, 2, 3, 4)), (fewer, (0, 1, 3))):
        engine = graphs.GraphSettings.from_fingerprint(found.fingerprint, captured)
        for row, length in enumerate((0, 1, 2, 3)):
            kinds = graphs.dispatch_batches(engine, np.arange(1, 257), length).kinds
            assert np.array_equal(other.grid.kinds[row], kinds)
        cells = hazards.cells(found.profile, found.fingerprint, 256, captured)
        assert np.array_equal(other.hazardous, hazards.drafted(cells))
        assert not np.array_equal(other.grid.kinds, profiled.grid.kinds)
        assert not np.array_equal(other.hazardous, profiled.hazardous)
    assert (fewer.grid.kinds[2] != graphs.FULL).all()


def test_pinned_batch_sizes_have_their_length_from_the_start() -> None:
    control = ADAPT.model_copy(update={"pinned": ((2, 3, 0),)})
    serving = Serving(plan(control=control))
    assert serving.lookup[1:5] == (3, 0, 0, 3)
    assert serving.serve(8, windows=5).lookup[1:5] == (3, 0, 0, 3)


@pytest.mark.parametrize("change", [{"allowed_lengths": (0, 7)}, {"pinned": ((1, 2, 7),)}])
def test_length_that_was_not_profiled_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(tables.TableError, match="7"):
        plan(control=ADAPT.model_copy(update=change))


@pytest.mark.parametrize("prompt_tokens", [17, 129, 250, 400, 5_000])
def test_table_of_a_document_is_right_by_the_document_alone(prompt_tokens: int) -> None:
    # The table is priced by prompts of exactly this length, and live ones are told apart by bounds only.
    # Where the bound's price was taken, the first window changed up to 64 batch sizes.
    base = h200_document(3)
    made = assembling.assemble(
        base.fingerprint,
        base.profile,
        base.acceptance,
        ADAPT,
        datetime(2026, 11, 30, tzinfo=UTC),
        prompt_tokens,
        500,
    )
    serving = Serving(controlling.plan(made, ADAPT, 256))
    outcome = serving.advance(Window(1.0, Counts.none(3), steps=1))
    assert outcome.lookup == tables.lookup(made.table, 256)
    assert outcome.decision.changes == ()


# Acceptance


def test_right_document_is_never_corrected() -> None:
    serving = Serving(plan())
    for _ in range(60):
        assert serving.serve(8).lookup == (0, *[3] * 64)


def test_switch_of_workload_is_noticed_and_the_table_follows() -> None:
    serving = Serving(plan())
    serving.serve(8, windows=60)
    shifted = [serving.serve(8, PROSE).shifted for _ in range(3)]
    assert shifted[0]
    assert serving.lookup[8] < 3


def test_table_of_zeros_notices_within_seconds_that_drafts_are_accepted_again() -> None:
    # Nothing was accepted for minutes, and is known well; only explored steps draft anything.
    serving = Serving(plan())
    hopeless = (0.02, 0.0, 0.0)
    serving.serve(32, hopeless, windows=30)
    assert serving.lookup[32] == 0
    waited = 0
    for second in range(120):
        survival = hopeless if second < 90 else CODE
        exploration = serving.outcome.exploration
        explored = exploration.lengths[32]
        drafts = 32.0 * exploration.steps if explored else 0.0
        serving.advance(Window(1.0, counted(drafts, survival, explored)))
        waited = second - 90
        if serving.lookup[32] == 3:
            break
    assert 0 <= waited <= 12


def test_few_drafts_are_gathered_until_a_shift_can_be_told() -> None:
    # 60 drafts a second; a shift needs 200.
    serving = Serving(plan())
    serving.serve(1, windows=120, drafts=60.0)
    shifted = [serving.serve(1, PROSE, drafts=60.0).shifted for _ in range(6)]
    assert any(shifted)


def test_before_enough_drafts_acceptance_corrects_nothing() -> None:
    outcome = Serving(plan()).serve(8, PROSE, drafts=100.0)
    assert outcome.decision.reason == estimating.TOO_FEW_DRAFTS
    assert (outcome.decision.drafts, outcome.decision.needed) == (100.0, ADAPT.min_drafts)
    assert outcome.lookup == (0, *[3] * 64)


def test_before_enough_drafts_costs_correct_already() -> None:
    serving = Serving(plan())
    window = Window(
        1.0,
        counted(10.0, CODE),
        (StepTimes(8, 3, (12.0,) * 16), StepTimes(8, 2, (4.6 * 1.25,) * 16)),
    )
    outcome = serving.advance(window)
    assert outcome.decision.drafts < outcome.decision.needed
    assert outcome.lookup[8] == 2


# Costs


def test_length_priced_twice_too_high_is_found_and_used() -> None:
    # The profile says 9.8 ms for length 3, which takes 6.1: the table has length 2.
    times = [[base * (1 + size / 32) for size in SIZES] for base in (4.0, 4.3, 4.6, 9.8)]
    found = document(times).model_copy(update={"table": ((1, 64, 2),)})
    serving = Serving(plan(found))
    true = {3: 4.9 * 1.25}
    assert serving.serve(8, true=true, windows=20).lookup[8] == 3


def test_length_priced_twice_too_low_is_found_and_left() -> None:
    times = [[base * (1 + size / 32) for size in SIZES] for base in (4.0, 4.3, 2.3, 4.9)]
    found = document(times).model_copy(update={"table": ((1, 64, 2),)})
    serving = Serving(plan(found))
    true = {2: 4.6 * 1.25}
    assert serving.serve(8, true=true, windows=20).lookup[8] == 3


def test_stale_costs_are_explored_by_several_steps_in_a_row() -> None:
    outcome = Serving(plan()).serve(8)
    assert outcome.exploration.steps == controlling.EXPLORATION_STEPS
    assert outcome.exploration.lengths[8] != outcome.lookup[8]
    assert math.isfinite(outcome.exploration.costs_ms[8])


def test_costs_are_not_explored_where_nobody_can_see_them() -> None:
    # Acceptance is known well, to the last second; only what other lengths cost is in doubt.
    def lengths(timed: bool) -> set[int]:
        serving = Serving(plan())
        serving.advance(Window(1.0, counted(50_000.0, CODE), timed=timed), windows=3)
        return set(serving.outcome.exploration.lengths[1:])

    assert lengths(timed=False) == {3}
    assert lengths(timed=True) != {3}


def test_known_costs_are_not_explored() -> None:
    serving = Serving(plan())
    everything = tuple(StepTimes(8, length, (4.9 * 1.25,) * 40) for length in range(4))
    outcome = serving.advance(Window(1.0, counted(5_000.0, CODE), everything), windows=3)
    assert outcome.exploration.lengths[8] == outcome.lookup[8]


def test_allowed_length_without_any_price_is_learnt_when_it_runs() -> None:
    times: list[list[float | None]] = [
        [base * (1 + size / 32) for size in SIZES] for base in (4.0, 4.3, 4.6, 4.9)
    ]
    times[3] = [None] * len(SIZES)
    serving = Serving(plan(document(times)))
    assert np.isnan(serving.plan.grid.profiled_ms[3]).all()
    window = Window(1.0, counted(5_000.0, CODE), (StepTimes(8, 3, (6.0,) * 20),))
    outcome = serving.advance(window)
    assert outcome.costs.step_times_ms[3, 7] == pytest.approx(6.0)
    assert np.isnan(outcome.costs.step_times_ms[3, 8])


# One slow minute

SLOW = {"x 1.35": (1.35, 0.0), "x 3": (3.0, 0.0), "+ 4 ms": (1.0, 4.0)}


@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("known", [True, False], ids=["contrasts known", "just started"])
def test_slow_minute_never_rewrites_the_table(slow: tuple[float, float], known: bool) -> None:
    # Only the length in force runs in it: what it loses says nothing about the others.
    serving = Serving(plan())
    if known:
        everything = tuple(StepTimes(8, length, (serving.true(8, length, None),) * 16) for length in range(4))
        serving.advance(Window(1.0, counted(5_000.0, CODE), everything), windows=10)
    factor, plus = slow
    time_ms = serving.true(8, 3, None) * factor + plus
    minute = Window(1.0, counted(5_000.0, CODE), (StepTimes(8, 3, (time_ms,) * 40),))
    before = serving.lookup
    for _ in range(60):
        assert serving.advance(minute).lookup == before
    assert serving.serve(8, windows=60).lookup == before


def test_second_of_hiccups_never_rewrites_the_table() -> None:
    serving = Serving(plan())
    serving.serve(8, windows=10)
    hiccup = Window(4.0, counted(50.0, CODE), (StepTimes(8, 3, (6.1, 2_500.0)), StepTimes(8, 2, (900.0,))))
    before = serving.lookup
    assert serving.advance(hiccup).lookup == before
    assert serving.serve(8, windows=5).lookup == before


# Stalls


def stalled(before: int, after: int, times: tuple[float, ...] = (25.0,) * 8, size: int = 8) -> Window:
    return Window(1.0, counted(5_000.0, CODE), (), (LengthChange(before, after, size, times),))


def test_edge_that_stalls_repeatedly_is_avoided_for_good() -> None:
    serving = Serving(plan())
    outcomes = [serving.advance(stalled(3, 2)) for _ in range(controlling.STALLS_NEEDED)]
    assert [outcome.avoided_changes for outcome in outcomes[:-1]] == [()] * (controlling.STALLS_NEEDED - 1)
    assert outcomes[-1].avoided_changes == ((3, 2),)
    for _ in range(30):
        lookup = serving.serve(8, windows=10).lookup
        assert not {2, 3} <= set(lookup[1:])
        assert not {2, 3} <= {*lookup[1:], *serving.outcome.exploration.lengths[1:]}


def test_of_a_stalling_edge_the_length_that_is_worth_less_goes() -> None:
    serving = Serving(plan())
    outcome = serving.advance(stalled(3, 2), windows=3)
    assert set(outcome.lookup[1:]) == {3}
    serving = Serving(plan())
    outcome = serving.advance(stalled(2, 3), windows=3)
    assert set(outcome.lookup[1:]) == {3}


def test_pinned_length_of_a_stalling_edge_stays() -> None:
    control = ADAPT.model_copy(update={"pinned": ((1, 4, 2),)})
    serving = Serving(plan(control=control))
    outcome = serving.advance(stalled(3, 2), windows=3)
    assert set(outcome.lookup[1:5]) == {2}
    assert 3 not in outcome.lookup[1:]


@pytest.mark.parametrize(
    "times",
    [
        (6.0, 6.1, 6.2, 6.0, 300.0, 6.1),  # one hiccup among good steps
        (9.0,) * 8,  # slower, but not well beyond
        (math.nan,) * 8,
        (),
    ],
    ids=["hiccup", "slower", "none", "empty"],
)
def test_other_changes_are_no_stalls(times: tuple[float, ...]) -> None:
    assert Serving(plan()).advance(stalled(3, 2, times), windows=10).avoided_changes == ()


def test_stalls_must_outnumber_good_changes() -> None:
    serving = Serving(plan())
    for _ in range(20):
        serving.advance(stalled(3, 2), windows=2)
        assert serving.advance(stalled(3, 2, (6.0,) * 8), windows=2).avoided_changes == ()


def test_slow_minute_makes_no_stalls() -> None:
    # The steps after a change take three times as long, and so do all others in the window.
    serving = Serving(plan())
    slow = Window(
        1.0,
        counted(5_000.0, CODE),
        (StepTimes(8, 3, (18.0,) * 20),),
        (LengthChange(3, 2, 8, (18.0,) * 8),),
    )
    assert serving.advance(slow, windows=10).avoided_changes == ()


# A new document


def test_live_counts_stay_with_a_new_document() -> None:
    serving = Serving(plan())
    serving.serve(8, PROSE, windows=30)
    carried = controlling.carry(serving.plan, serving.state)
    assert carried.live == serving.state.live
    assert carried.lookup == controlling.begin(serving.plan).lookup


def test_live_costs_stay_while_the_profile_does() -> None:
    serving = Serving(plan())
    serving.serve(8, true={3: 9.0}, windows=5)
    carried = controlling.carry(serving.plan, serving.state)
    np.testing.assert_allclose(
        carried.correction.step_times_ms, serving.state.correction.step_times_ms, rtol=1e-9
    )
    times = [[base * (1 + size / 32) for size in SIZES] for base in (4.0, 4.3, 4.6, 5.5)]
    other = plan(document(times))
    fresh = controlling.carry(other, serving.state)
    np.testing.assert_array_equal(fresh.correction.step_times_ms, other.grid.profiled_ms)


def test_when_drafts_last_came_stays_with_a_new_document() -> None:
    # Else it would try drafts at once, as if none had come for long.
    serving = Serving(plan())
    serving.serve(8, windows=30)
    carried = controlling.carry(serving.plan, serving.state)
    assert carried.late == serving.state.late
    assert min(carried.late.drafted) > estimating.LATE_DRAFTS


def test_edges_to_avoid_are_forgotten_with_a_new_document() -> None:
    serving = Serving(plan())
    serving.advance(stalled(3, 2), windows=3)
    assert controlling.carry(serving.plan, serving.state).avoided == ()


@pytest.mark.parametrize("lengths", [(0, 1), (0, 1, 2, 3, 4, 5)])
def test_counts_fit_a_document_of_other_lengths(lengths: tuple[int, ...]) -> None:
    serving = Serving(plan())
    serving.serve(8, windows=5)
    other = strategies.example()
    times = [[4.0 + length] * 2 for length in lengths]
    survival = (0.8, 0.6, 0.4, 0.3, 0.2)[: lengths[-1]]
    found = other.model_copy(
        update={
            "profile": h200.profile((1, 16), lengths, times, [[None] * 2] * len(lengths)),
            "acceptance": h200.acceptance(survival),
            "table": ((1, 16, 1),),
        }
    )
    new = controlling.plan(found, ADAPT, 16)
    state = controlling.carry(new, serving.state)
    assert len(state.live.recent.drafted) == lengths[-1]
    assert state.live.recent.drafted[0] == serving.state.live.recent.drafted[0]
    controlling.advance(new, state, Window(1.0, counted(100.0, CODE)))


# In general

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.1, 100.0) | st.just(1e308)
small = st.integers(-2, 70)


@st.composite
def any_windows(draw: st.DrawFn) -> Window:
    vector = st.lists(numbers, max_size=6).map(tuple)
    return Window(
        seconds=draw(numbers),
        counts=Counts(draw(vector), draw(vector), draw(numbers), draw(numbers)),
        step_times=tuple(draw(st.lists(st.builds(StepTimes, small, st.integers(-1, 6), vector), max_size=5))),
        changes=tuple(
            draw(
                st.lists(
                    st.builds(LengthChange, st.integers(-1, 6), st.integers(-1, 6), small, vector), max_size=5
                )
            )
        ),
        next_steps=tuple(
            draw(st.lists(st.builds(NextSteps, small, small, st.integers(-1, 10**9), small), max_size=5))
        ),
        steps=draw(small),
        kept_tokens=draw(small),
    )


@settings(max_examples=60)
@given(st.data())
def test_no_window_raises_and_all_that_comes_out_is_sound(data: st.DataObject) -> None:
    found = data.draw(strategies.whole_documents())
    size = data.draw(st.integers(1, 64))
    lengths = found.profile.draft_lengths
    control = data.draw(strategies.controls(lengths, 64))
    allowed = tables.allowed_lengths(lengths, control.allowed_lengths)
    serving = Serving(controlling.plan(found, control, size))
    for window in data.draw(st.lists(any_windows(), min_size=1, max_size=6)):
        outcome = serving.advance(window)
        assert len(outcome.lookup) == size + 1
        pinned = {
            batch_size: length
            for first, last, length in control.pinned
            for batch_size in range(first, last + 1)
        }
        for batch_size in range(1, size + 1):
            expected = (pinned[batch_size],) if batch_size in pinned else allowed
            assert outcome.lookup[batch_size] in expected
            assert outcome.exploration.lengths[batch_size] in (*expected, outcome.lookup[batch_size])
        assert all(0 <= rate <= 1 for rate in outcome.estimate.survival)
        assert 0 <= outcome.estimate.proposal_rate <= 1
        known = np.isfinite(serving.plan.grid.profiled_ms)
        assert (np.isfinite(outcome.costs.step_times_ms) >= known).all()
        assert (outcome.costs.step_times_ms[known] > 0).all()
        assert not any(math.isnan(cost) for cost in outcome.exploration.costs_ms)
        assert math.isfinite(outcome.exploration.dearest_ms)


def test_equal_windows_make_equal_outcomes() -> None:
    one, other = Serving(plan()), Serving(plan())
    for serving in (one, other):
        serving.serve(8, PROSE, true={2: 9.0}, windows=20)
    assert one.lookup == other.lookup
    np.testing.assert_array_equal(one.state.correction.step_times_ms, other.state.correction.step_times_ms)
