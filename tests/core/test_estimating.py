from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tabletune import acceptance, documents, estimating, predictions, tables
from tabletune.estimating import Counts, Live
from tests.core import strategies

PRIOR = documents.Acceptance(
    survival=(0.8, 0.6, 0.3),
    drafted=(9_000,) * 3,
    accepted=(7_200, 5_400, 2_700),
    proposal_rate=1.0,
    prompts=160,
)


def counted(drafts: float, *rates: float, proposal_rate: float = 1.0, positions: int = 3) -> Counts:
    """Counts of ``drafts`` drafts as long as ``rates``, accepted as often as these say."""
    unreached = (0.0,) * (positions - len(rates))
    return Counts(
        drafted=(drafts,) * len(rates) + unreached,
        accepted=tuple(rate * drafts for rate in rates) + unreached,
        proposed=drafts,
        not_proposed=drafts / proposal_rate - drafts if proposal_rate else 0.0,
    )


def seen(counts: Counts) -> Live:
    return estimating.add(Live.none(3), counts)


class TestFading:
    def test_count_weighs_one_half_after_a_half_life(self) -> None:
        live = estimating.fade(seen(counted(100, 0.5, 0.2)), elapsed_seconds=30.0, half_life=30.0)
        assert live.recent == counted(50, 0.5, 0.2)

    def test_what_was_ever_seen_does_not_fade(self) -> None:
        live = estimating.fade(seen(counted(100, 0.5)), 300.0, 30.0)
        assert live.total == counted(100, 0.5)

    @given(st.floats(0, 100), st.floats(0, 100), st.floats(1, 600))
    def test_fading_in_steps_is_fading_at_once(self, first: float, second: float, half_life: float) -> None:
        live = seen(counted(100, 0.5))
        stepwise = estimating.fade(estimating.fade(live, first, half_life), second, half_life)
        at_once = estimating.fade(live, first + second, half_life)
        assert stepwise.recent.drafted == pytest.approx(at_once.recent.drafted)

    def test_clock_that_went_back_fades_nothing(self) -> None:
        assert estimating.fade(seen(counted(100, 0.5)), -5.0, 30.0) == seen(counted(100, 0.5))

    def test_forgetting_drops_the_recent_counts_only(self) -> None:
        live = estimating.forget(seen(counted(100, 0.5)))
        assert (live.recent, live.total) == (Counts.none(3), counted(100, 0.5))


class TestBlending:
    def test_without_live_drafts_the_prior_is_believed(self) -> None:
        for prior_drafts in (0.0, 200.0):
            found = estimating.estimate(Live.none(3), PRIOR, prior_drafts)
            assert found.survival == pytest.approx(PRIOR.survival)
            assert found.proposal_rate == 1.0

    def test_live_counts_and_prior_weigh_as_many_drafts_as_they_are(self) -> None:
        # After 200 live drafts a prior of 200 weighs 100: (200 · 0.5 + 100 · 0.8) / 300.
        found = estimating.estimate(seen(counted(200, 0.5)), PRIOR, 200.0)
        assert found.prior_weights[0] == 100.0
        assert found.survival[0] == pytest.approx(0.6)

    def test_prior_decays_with_the_drafts_seen_down_to_a_floor(self) -> None:
        weights = [estimating.prior_weight(200.0, seen) for seen in (0, 200, 400, 1e6)]
        assert weights == pytest.approx([200, 100, 200 / 3, 20])

    def test_position_that_no_live_draft_reached_follows_the_ones_before_it(self) -> None:
        # Live traffic is accepted 0.4 at position 1, half of the prior. Positions 2 and 3 keep the prior's
        # conditional rates, 0.6 / 0.8 and 0.3 / 0.6: 0.3 and 0.15 instead of 0.6 and 0.3.
        found = estimating.estimate(seen(counted(1e9, 0.4)), PRIOR, 200.0)
        assert found.survival == pytest.approx((0.4, 0.3, 0.15), rel=1e-4)

    def test_many_live_drafts_outweigh_the_prior(self) -> None:
        found = estimating.estimate(seen(counted(1e6, 0.3, 0.2, 0.1, proposal_rate=0.25)), PRIOR, 200.0)
        assert found.survival == pytest.approx((0.3, 0.2, 0.1), rel=1e-3)
        assert found.proposal_rate == pytest.approx(0.25, rel=1e-3)

    def test_position_behind_the_priors_is_not_believed_unseen(self) -> None:
        short = PRIOR.model_copy(update={"survival": (0.8,), "drafted": (9_000,), "accepted": (7_200,)})
        found = estimating.estimate(Live.none(3), short, 200.0)
        assert found.survival == pytest.approx((0.8, 0, 0))

    @settings(max_examples=60)
    @given(st.data())
    def test_estimate_is_a_survival_between_live_and_prior(self, data: st.DataObject) -> None:
        drafted, accepted = data.draw(strategies.counts(3))
        proposed, not_proposed = data.draw(st.tuples(st.integers(0, 999), st.integers(0, 999)))
        live = seen(Counts(drafted, accepted, proposed, not_proposed))
        prior = data.draw(strategies.acceptances(3))
        found = estimating.estimate(live, prior, data.draw(st.floats(0, 1e4)))
        assert all(0 <= rate <= 1 for rate in found.survival)
        assert list(found.survival) == sorted(found.survival, reverse=True)
        assert 0 <= found.proposal_rate <= 1
        highest = max([prior.survival[0], *(a / d for a, d in zip(accepted, drafted, strict=True) if d)])
        assert found.survival[0] <= highest + 1e-9

    def test_goodput_takes_an_estimate(self) -> None:
        found = estimating.estimate(Live.none(3), PRIOR, 200.0)
        assert predictions.goodput(np.array([[4.5]]), found, (1,)) == pytest.approx(np.array([[400.0]]))


class TestLateCounts:
    def test_late_counts_fade_within_seconds(self) -> None:
        found = estimating.late(counted(160, 0.5), Counts.none(3), estimating.LATE_HALF_LIFE)
        assert found == counted(80, 0.5)

    def test_late_counts_say_when_drafts_came_not_how_many(self) -> None:
        found = estimating.late(Counts.none(3), counted(1e6, 1.0, 1.0), 1.0)
        assert found.drafted == (2 * estimating.LATE_DRAFTS, 2 * estimating.LATE_DRAFTS, 0.0)
        silent = estimating.late(found, Counts.none(3), estimating.LATE_HALF_LIFE * 1.01)
        assert silent.drafted[0] < estimating.LATE_DRAFTS


class TestShift:
    def test_other_acceptance_is_found(self) -> None:
        # Expected tokens 1 + 0.8 + 0.6 and 1 + 0.4 + 0.1, thousands of drafts each.
        found = estimating.shift(counted(20_000, 0.8, 0.6), counted(2_000, 0.4, 0.1), min_drafts=200)
        assert found.found
        assert (found.reason, found.draft_length) == (estimating.SHIFTED, 2)
        assert (found.before, found.after) == pytest.approx((2.4, 1.5))
        assert found.errors > 30

    def test_difference_that_chance_explains_is_none(self) -> None:
        # 1.80 and 1.70 expected tokens, 5.6%, of 200 drafts: sqrt(0.7 · 0.3 / 200) = 0.032, three times that.
        found = estimating.shift(counted(20_000, 0.8), counted(200, 0.7), min_drafts=200)
        assert found.reason == estimating.STEADY
        assert found.errors == pytest.approx(3, abs=0.2)

    def test_sure_difference_that_no_table_would_notice_is_none(self) -> None:
        # 1.80 and 1.76 expected tokens, 2%, of a million drafts.
        found = estimating.shift(counted(1e6, 0.8), counted(1e6, 0.76), min_drafts=200)
        assert found.reason == estimating.STEADY
        assert found.errors > 4

    def test_few_drafts_tell_nothing(self) -> None:
        found = estimating.shift(counted(20_000, 0.8), counted(199, 0.1), min_drafts=200)
        assert found.reason == estimating.TOO_FEW_DRAFTS

    def test_lengths_are_compared_as_far_as_both_reach(self) -> None:
        found = estimating.shift(counted(20_000, 0.8, 0.6, 0.3), counted(2_000, 0.4), min_drafts=200)
        assert found.draft_length == 1
        assert (found.before, found.after) == pytest.approx((1.8, 1.4))

    def test_drafter_that_stops_proposing_is_found(self) -> None:
        silent = Counts((0.0,) * 3, (0.0,) * 3, proposed=0.0, not_proposed=2_000.0)
        found = estimating.shift(counted(20_000, 0.8), silent, min_drafts=200)
        assert found.found
        assert found.after == 1.0
        back = estimating.shift(silent, counted(2_000, 0.8), min_drafts=200)
        assert back.found

    def test_nothing_seen_before_is_no_shift(self) -> None:
        assert not estimating.shift(Counts.none(3), counted(20_000, 0.8), min_drafts=200).found

    def test_switch_of_workload_is_learnt_in_seconds(self) -> None:
        # A minute of code, then prose. Without the test for a shift the estimate still says mostly code
        # after ten seconds, at a half-life of 60 s.
        live, control = Live.none(3), documents.Control()
        for second in range(70):
            new = counted(2_000, 0.8, 0.6, 0.3) if second < 60 else counted(2_000, 0.3, 0.1, 0.0)
            live = estimating.fade(live, 1.0, control.half_life)
            if estimating.shift(live.recent, new, control.prior_drafts).found:
                assert second == 60
                live = estimating.forget(live)
            live = estimating.add(live, new)
        found = estimating.estimate(live, PRIOR, control.prior_drafts)
        assert found.survival == pytest.approx((0.3, 0.1, 0.0), abs=0.005)


LENGTHS = (0, 1, 2)
ANY = documents.Control(min_drafts=0, tie_tolerance=0.0, narrow_range=0.0, hysteresis=0.02)


def rows(*values: list[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


class TestDeciding:
    def test_length_changes_for_a_gain_above_the_hysteresis(self) -> None:
        # Length 1 gains 1.9%, 2.1% and 10% over the current length 0.
        goodput = rows([100, 100, 100], [101.9, 102.1, 110], [50, 50, 50])
        found = estimating.decide((0, 0, 0, 0), goodput, LENGTHS, ANY, drafts=5.0)
        assert found.lookup == (0, 0, 1, 1)
        assert found.reason == estimating.CORRECTED
        (change,) = found.changes
        assert (change.first, change.last, change.before, change.after) == (2, 3, 0, 1)
        assert change.predicted_gain == pytest.approx((1.021 * 1.1) ** 0.5 - 1)
        assert found.largest_gain == pytest.approx(0.1)

    def test_gain_within_the_hysteresis_changes_nothing_and_is_told(self) -> None:
        found = estimating.decide((0, 0, 0), rows([100, 100], [101, 101.5], [1, 1]), LENGTHS, ANY, drafts=5.0)
        assert (found.lookup, found.changes) == ((0, 0, 0), ())
        assert found.reason == estimating.WITHIN_HYSTERESIS
        assert found.largest_gain == pytest.approx(0.015)

    def test_too_few_drafts_are_the_reason_why_nothing_changes_and_none_against_a_change(self) -> None:
        control = documents.Control(min_drafts=2_000)
        found = estimating.decide((0, 0, 0), rows([9, 9], [9, 9], [1, 1]), LENGTHS, control, drafts=1_999.0)
        assert (found.lookup, found.reason) == ((0, 0, 0), estimating.TOO_FEW_DRAFTS)
        assert (found.drafts, found.needed) == (1_999.0, 2_000)
        # By what costs say, it changes before.
        found = estimating.decide((0, 0, 0), rows([1, 1], [9, 9], [1, 1]), LENGTHS, control, drafts=1_999.0)
        assert (found.lookup, found.reason) == ((0, 1, 1), estimating.CORRECTED)
        assert found.largest_gain == pytest.approx(8.0)

    def test_ranges_stay_in_one_piece_where_that_gains_enough(self) -> None:
        # Length 2 is best at batch size 2 by 0.5% only; the computed table has length 1 throughout.
        control = ANY.model_copy(update={"tie_tolerance": 0.01})
        goodput = rows([100] * 3, [150] * 3, [120, 150.75, 120])
        found = estimating.decide((0, 0, 0, 0), goodput, LENGTHS, control, drafts=5.0)
        assert found.lookup == (0, 1, 1, 1)

    def test_best_length_is_taken_where_the_computed_tables_gains_too_little(self) -> None:
        # Length 1 is the table's, within its tie of 4%, but gains 1.5% only; length 2 gains 5.5%, more than
        # the 4.2% that a loss of 4% is worth.
        control = ANY.model_copy(update={"tie_tolerance": 0.04})
        goodput = rows([100, 50], [101.5, 150], [105.5, 100])
        found = estimating.decide((0, 0, 1), goodput, LENGTHS, control, drafts=5.0)
        assert tables.compute(goodput, LENGTHS, control) == ((1, 2, 1),)
        assert found.lookup == (0, 2, 1)

    def test_best_length_is_taken_where_the_computed_table_gave_up_a_narrow_range(self) -> None:
        # Length 2 gains 6% at batch size 9: more than a tie of 4%, and lost in the merge of a narrow range.
        control = ANY.model_copy(update={"tie_tolerance": 0.04, "narrow_range": 0.25})
        goodput = rows([50] * 16, [100] * 16, [90] * 16)
        goodput[2, 8] = 106
        found = estimating.decide((0,) * 17, goodput, LENGTHS, control, drafts=5.0)
        assert tables.compute(goodput, LENGTHS, control) == ((1, 16, 1),)
        assert found.lookup == (0, *[1] * 8, 2, *[1] * 7)

    def test_loss_that_the_merge_tolerance_allows_is_no_reason_to_change(self) -> None:
        # Length 1 gains 4% and 6%; a loss of 5% is a gain of 5.3%.
        control = ANY.model_copy(update={"merge_tolerance": 0.05})
        found = estimating.decide(
            (0, 0, 0), rows([100, 100], [104, 106], [1, 1]), LENGTHS, control, drafts=5.0
        )
        assert found.lookup == (0, 0, 1)

    def test_pinned_batch_size_keeps_its_length(self) -> None:
        control = ANY.model_copy(update={"pinned": ((1, 2, 0),)})
        found = estimating.decide((0, 0, 0, 0), rows([1] * 3, [9] * 3, [1] * 3), LENGTHS, control, drafts=5.0)
        assert found.lookup == (0, 0, 0, 1)

    def test_length_that_is_not_allowed_is_left(self) -> None:
        control = ANY.model_copy(update={"allowed_lengths": (0, 1)})
        found = estimating.decide(
            (0, 2, 1), rows([90, 90], [100, 100], [150, 150]), LENGTHS, control, drafts=5.0
        )
        assert found.lookup == (0, 1, 1)
        assert math.isinf(found.changes[0].predicted_gain)

    def test_cell_without_a_price_is_kept_since_no_gain_can_be_told(self) -> None:
        goodput = rows([100, 100], [np.nan, np.nan], [200, 200])
        found = estimating.decide((0, 1, 0), goodput, LENGTHS, ANY, drafts=5.0)
        assert found.lookup == (0, 1, 2)

    def test_batch_sizes_behind_the_goodput_keep_their_length(self) -> None:
        found = estimating.decide((0, 0, 0, 2), rows([1, 1], [9, 9], [1, 1]), LENGTHS, ANY, drafts=5.0)
        assert found.lookup == (0, 1, 1, 2)

    @settings(max_examples=80)
    @given(st.data())
    def test_no_batch_size_is_left_behind_by_more_than_hysteresis_and_tolerances(
        self, data: st.DataObject
    ) -> None:
        lengths, size = data.draw(strategies.draft_lengths()), data.draw(st.integers(1, 24))
        goodput = data.draw(strategies.goodputs(lengths, size))
        control = data.draw(strategies.controls(lengths, size))
        control = control.model_copy(update={"min_drafts": 0, "pinned": (), "allowed_lengths": ()})
        current = (0, *data.draw(st.lists(st.sampled_from(lengths), min_size=size, max_size=size)))
        found = estimating.decide(current, goodput, lengths, control, drafts=0.0)
        tolerance = max(control.tie_tolerance, control.merge_tolerance)
        for batch_size in range(1, size + 1):
            kept = goodput[lengths.index(found.lookup[batch_size]), batch_size - 1]
            if np.isnan(kept):
                assert found.lookup[batch_size] == current[batch_size]
            else:
                best = np.nanmax(goodput[:, batch_size - 1])
                assert best / kept <= max(1 + control.hysteresis, 1 / (1 - tolerance)) + 1e-9
        again = estimating.decide(found.lookup, goodput, lengths, control, drafts=0.0)
        assert (again.lookup, again.changes) == (found.lookup, ()), "deciding again changes nothing"


TIMES = rows([4.0, 5.0, 6.0], [4.4, 6.0, 9.0], [4.8, 7.0, 30.0])
"""Step times of lengths 0, 1 and 2 at 1 to 3 requests, milliseconds."""
BELIEVED_BAD = documents.Acceptance(
    survival=(0.0, 0.0), drafted=(100, 100), accepted=(0, 0), proposal_rate=1.0, prompts=1
)
BELIEVED_GOOD = BELIEVED_BAD.model_copy(update={"survival": (0.9, 0.8), "accepted": (90, 80)})


def plan(
    lookup: tuple[int, ...], live: Live, control: documents.Control = ANY, times: NDArray[np.float64] = TIMES
) -> estimating.ExplorationPlan:
    found = estimating.estimate(live, BELIEVED_BAD, 200.0)
    return estimating.plan_exploration(lookup, times, LENGTHS, found, control)


class TestExploring:
    def test_longest_draft_that_could_win_is_explored_where_nothing_is_known(self) -> None:
        # At 3 requests length 2 takes 30 ms, 5 times as long for at most 3 times the tokens; length 1 could
        # keep 2 tokens in 9 ms against 1 in 6.
        found = plan((0, 0, 0, 0), Live.none(2))
        assert found.lengths == (0, 2, 2, 1)
        assert found.stale_positions == (0, 1)

    def test_step_costs_what_it_loses_if_drafts_are_accepted_as_believed(self) -> None:
        # Nothing: one token a request comes in any case; the table's length 0 takes 4, 5 and 6 ms for it.
        found = plan((0, 0, 0, 0), Live.none(2))
        assert found.costs_ms == pytest.approx((math.inf, 0.8, 2.0, 3.0))
        assert found.dearest_ms == pytest.approx(3.0)

    def test_cost_is_that_of_the_lowest_survival_that_the_counts_allow(self) -> None:
        # Position 1 is believed 0.9 by 200 drafts: 0.9 - 2 · sqrt(0.09 / 200) = 0.8576. Position 2 0.8 by as
        # many, 0.7434. Length 2 keeps 2.601 tokens, for which length 0 takes 10.4 ms: it costs the least.
        found = estimating.estimate(Live.none(2), BELIEVED_GOOD, 200.0)
        cheap = estimating.plan_exploration((0, 0, 0, 0), TIMES, LENGTHS, found, ANY)
        assert cheap.costs_ms[1] == pytest.approx(estimating.LEAST_COST * 4.8)
        # In 7.6 ms length 1 keeps 1.8576 tokens, for which length 0 takes 7.43: 0.17 ms, above the least.
        dear = estimating.plan_exploration((0, 0), rows([4.0], [7.6], [99.0]), LENGTHS, found, ANY)
        assert dear.lengths == (0, 1)
        assert dear.costs_ms[1] == pytest.approx(7.6 - 4.0 * (1 + 0.9 - 2 * math.sqrt(0.09 / 200)))

    def test_exploration_of_several_steps_costs_as_many_times_as_much(self) -> None:
        found = estimating.estimate(Live.none(2), BELIEVED_BAD, 200.0)
        longer = estimating.plan_exploration((0, 0, 0, 0), TIMES, LENGTHS, found, ANY, steps=8)
        assert longer.steps == 8
        assert longer.costs_ms == pytest.approx((math.inf, 6.4, 16.0, 24.0))

    def test_it_is_held_around_its_batch_size_as_far_as_the_table_is_the_same_and_the_length_usable(
        self,
    ) -> None:
        # An eighth of a doubling around 64 is 59 to 69. The table changes after 66, and at 61 the length
        # cannot run.
        times = rows([5.0] * 128, [5.5] * 128, [6.0] * 128)
        times[2, 60] = math.nan
        found = plan((0, *[0] * 66, *[1] * 62), Live.none(2), times=times)
        assert found.lengths[64] == 2
        assert found.held(64) == (62, 66)
        assert found.held(67) == (67, 73)
        assert found.held(8) == (8, 8)
        assert found.held(128) == (118, 128)

    def test_pinned_batch_sizes_are_not_drawn_in(self) -> None:
        control = ANY.model_copy(update={"pinned": ((63, 63, 0),)})
        times = rows([5.0] * 128, [5.5] * 128, [6.0] * 128)
        assert plan((0,) * 129, Live.none(2), control, times).held(64) == (64, 69)

    def test_cost_counts_the_tokens_that_the_tables_length_keeps(self) -> None:
        # Length 1 keeps 1.5 tokens in 4.4 ms, and so does length 2 in 4.8 if nothing is accepted behind.
        live = estimating.add(Live.none(2), counted(1e7, 0.5, positions=2))
        found = plan((0, 1, 1, 1), live)
        assert found.lengths == (0, 2, 2, 1)
        assert found.costs_ms[1] == pytest.approx(4.8 - 4.4, abs=2e-3)
        assert math.isinf(found.costs_ms[3])

    def test_known_positions_are_not_explored(self) -> None:
        live = estimating.add(Live.none(2), counted(estimating.FRESH_DRAFTS, 0.05, 0.01, positions=2))
        found = plan((0, 0, 0, 0), live)
        assert found.stale_positions == ()
        assert found.lengths == (0, 0, 0, 0)
        assert found.dearest_ms == 0.0

    def test_positions_grow_stale_as_their_counts_fade(self) -> None:
        live = estimating.add(Live.none(2), counted(1_500, 0.05, 0.01, positions=2))
        assert plan((0, 0, 0, 0), live).stale_positions == ()
        assert plan((0, 0, 0, 0), estimating.fade(live, 60.0, 60.0)).stale_positions == (0, 1)

    def test_known_positions_are_explored_again_when_no_draft_came_of_late(self) -> None:
        live = estimating.add(Live.none(2), counted(50_000, 0.05, 0.01, positions=2))
        believed = estimating.estimate(live, BELIEVED_BAD, 200.0)
        for recently, explored in ((counted(200, 0.05, positions=2), 0), (Counts.none(2), 2)):
            found = estimating.plan_exploration(
                (0, 0, 0, 0), TIMES, LENGTHS, believed, ANY, recently=recently
            )
            assert found.lengths[1] == explored

    def test_known_bad_position_bounds_the_hope_for_those_behind_it(self) -> None:
        # Position 1 is accepted 5% of the time, so length 2 can keep 1.1 tokens at most: not in 4.8 ms
        # against 1 in 4 ms.
        live = estimating.add(Live.none(2), counted(5_000, 0.05, positions=2))
        found = plan((0, 0, 0, 0), live)
        assert found.stale_positions == (1,)
        assert found.lengths == (0, 0, 0, 0)

    def test_drafter_that_is_known_to_propose_nothing_is_not_explored(self) -> None:
        silent = Counts((0.0, 0.0), (0.0, 0.0), proposed=0.0, not_proposed=1_000_000.0)
        assert plan((0, 0, 0, 0), estimating.add(Live.none(2), silent)).lengths == (0, 0, 0, 0)

    def test_stale_proposal_rate_may_be_any(self) -> None:
        silent = BELIEVED_BAD.model_copy(update={"proposal_rate": 0.0})
        believed = estimating.estimate(Live.none(2), silent, 200.0)
        found = estimating.plan_exploration((0, 0, 0, 0), TIMES, LENGTHS, believed, ANY)
        assert found.lengths == (0, 2, 2, 1)

    def test_pinned_not_allowed_and_unpriced_cells_are_not_explored(self) -> None:
        pinned = ANY.model_copy(update={"pinned": ((1, 2, 0),)})
        assert plan((0, 0, 0, 0), Live.none(2), pinned).lengths == (0, 0, 0, 1)
        allowed = ANY.model_copy(update={"allowed_lengths": (0, 1)})
        assert plan((0, 0, 0, 0), Live.none(2), allowed).lengths == (0, 1, 1, 1)
        times = TIMES.copy()
        times[2, 0] = times[:, 1] = np.nan
        assert plan((0, 0, 0, 0), Live.none(2), times=times).lengths == (0, 1, 0, 1)

    def test_step_is_explored_once_the_budget_pays_for_it(self) -> None:
        found = plan((0, 0, 0, 0), Live.none(2))
        saving = estimating.explore(found, 2, balance_ms=1.9)
        assert saving == estimating.Exploration(0, estimating.SAVING, 0.0, 1.9)
        explored = estimating.explore(found, 2, balance_ms=2.5)
        assert (explored.draft_length, explored.reason, explored.cost_ms) == (2, estimating.EXPLORED, 2.0)
        assert explored.balance_ms == pytest.approx(0.5)

    def test_batch_size_without_anything_to_learn_has_the_tables_length(self) -> None:
        found = plan((0, 1, 2, 1), Live.none(2))
        assert estimating.explore(found, 2, 99.0) == estimating.Exploration(
            2, estimating.NOTHING_TO_LEARN, 0.0, 99.0
        )

    def test_budget_earns_its_share_and_saves_one_step_at_most(self) -> None:
        found = plan((0, 0, 0, 0), Live.none(2))
        # 0.5% of 10 ms; the dearest step costs 3 ms.
        assert estimating.earn(1.0, 10.0, found, 0.005) == pytest.approx(1.05)
        assert estimating.earn(2.99, 10.0, found, 0.005) == 3.0
        assert estimating.earn(7.0, 10.0, found, 0.005) == 7.0, "what was saved under another plan stays"

    @settings(max_examples=40)
    @given(
        st.lists(st.integers(1, 3), min_size=1, max_size=300),
        st.floats(0, 0.2),
        st.floats(0, 1),
    )
    def test_exploring_loses_at_most_its_share_of_the_throughput(
        self, batch_sizes: list[int], share: float, accepted: float
    ) -> None:
        found = plan((0, 0, 0, 0), Live.none(2))
        balance, serving, lost = 0.0, 0.0, 0.0
        for batch_size in batch_sizes:
            step = estimating.explore(found, batch_size, balance)
            took = TIMES[step.draft_length, batch_size - 1]
            tokens = acceptance.expected_tokens((accepted, accepted**2), 1.0, step.draft_length)
            # Time beyond what the table's length would have taken for the same tokens.
            lost += took - tokens * TIMES[0, batch_size - 1] if step.reason == estimating.EXPLORED else 0.0
            serving += took
            balance = estimating.earn(step.balance_ms, took, found, share)
        assert lost <= share * serving + 1e-9

    def test_table_of_zeros_finds_out_that_drafts_are_accepted(self) -> None:
        # The document believes in nothing; traffic is accepted 90%. Half a percent of the time is enough to
        # learn it in a minute at one request, where a step takes 4 ms and length 2 would keep 2.7 tokens.
        control = documents.Control(min_drafts=50)
        lookup: tuple[int, ...] = (0, 0, 0, 0)
        live, balance, seconds = Live.none(2), 0.0, 0.0
        while lookup[1] == 0 and seconds < 60:
            believed = estimating.estimate(live, BELIEVED_BAD, control.prior_drafts)
            found = estimating.plan_exploration(lookup, TIMES, LENGTHS, believed, control)
            spent, drafts = 0.0, 0
            while spent < 1_000:
                step = estimating.explore(found, 1, balance)
                took = TIMES[step.draft_length, 0]
                drafts += step.draft_length == 2
                spent += took
                balance = estimating.earn(step.balance_ms, took, found, control.exploration_share)
            live = estimating.add(
                estimating.fade(live, spent / 1000, control.half_life), counted(drafts, 0.9, 0.8, positions=2)
            )
            believed = estimating.estimate(live, BELIEVED_BAD, control.prior_drafts)
            goodput = predictions.goodput(TIMES, believed, LENGTHS)
            lookup = estimating.decide(lookup, goodput, LENGTHS, control, live.total.drafted[0]).lookup
            seconds += spent / 1000
        assert lookup[1] == 2
        assert seconds < 60


SEEN = rows([99.0, 99.0, 99.0], [99.0, 99.0, 99.0], [99.0, 99.0, 99.0])
"""Every cell's cost is known."""


class TestExploringCosts:
    """Acceptance is known throughout: 0.5 and 0.3."""

    def plan(
        self,
        lookup: tuple[int, ...],
        seen: NDArray[np.float64],
        times: NDArray[np.float64] = TIMES,
        control: documents.Control = ANY,
    ) -> estimating.ExplorationPlan:
        live = estimating.add(Live.none(2), counted(1e7, 0.5, 0.3, positions=2))
        found = estimating.estimate(live, BELIEVED_BAD, 200.0)
        return estimating.plan_exploration(lookup, times, LENGTHS, found, control, seen)

    def test_known_costs_are_not_explored(self) -> None:
        assert self.plan((0, 1, 1, 1), SEEN).lengths == (0, 1, 1, 1)

    def test_cell_that_was_not_seen_is_explored_if_half_its_price_would_win(self) -> None:
        # Length 1 keeps 1.5 tokens in 4.4, 6 and 9 ms. Length 2 keeps 1.8 in 4.8, 7 and 30: in 15 ms it would
        # still lose at 3 requests.
        seen = SEEN.copy()
        seen[2] = 0.0
        assert self.plan((0, 1, 1, 1), seen).lengths == (0, 2, 2, 1)

    def test_shorter_length_is_explored_too(self) -> None:
        seen = SEEN.copy()
        seen[0] = 0.0
        assert self.plan((0, 1, 1, 1), seen).lengths == (0, 0, 0, 0)

    def test_few_live_times_already_say_that_a_price_is_not_twice_too_high(self) -> None:
        # Length 0 at 1 request would have to be 27% cheaper than it is.
        for times, explored in ((0.0, 0), (1.0, 1), (5.0, 1)):
            seen = SEEN.copy()
            seen[0, 0] = times
            assert self.plan((0, 1, 1, 1), seen).lengths[1] == explored

    def test_cell_close_to_the_limit_is_explored_until_it_is_decided(self) -> None:
        # Length 2 keeps 1.8 tokens for length 1's 1.5: by its price it gains 1.5% at 1 request, 0.5% below
        # the hysteresis, and 2.5% at 2, so that it is the table's length soon, as far as is known.
        times = TIMES.copy()
        times[2, :2] = times[1, :2] * 1.8 / 1.5 / (1.015, 1.025)
        for known, explored in ((24.0, (2, 2)), (99.0, (2, 2)), (1_000.0, (1, 1))):
            seen = SEEN.copy()
            seen[2] = known
            assert self.plan((0, 1, 1, 1), seen, times).lengths[1:3] == explored

    def test_cell_far_from_the_limit_is_decided_by_few_times(self) -> None:
        seen = SEEN.copy()
        seen[2] = 4.0
        times = TIMES.copy()
        times[2] = times[1] * 1.8 / 1.5 / 0.85
        assert self.plan((0, 1, 1, 1), seen, times).lengths == (0, 1, 1, 1)

    def test_of_two_unknown_cells_the_one_with_more_to_win_for_its_cost_is_explored(self) -> None:
        # Twice as cheap, length 0 keeps 1 token in 2 ms and length 2 1.8 in 2.4; by its price length 2 costs
        # next to nothing, length 0 about 1.1 ms a step.
        seen = SEEN.copy()
        seen[[0, 2]] = 0.0
        assert self.plan((0, 1, 1, 1), seen).lengths[1] == 2

    def test_pinned_not_allowed_and_hazardous_cells_are_not_explored(self) -> None:
        seen = np.zeros((3, 3))
        control = ANY.model_copy(update={"pinned": ((2, 2, 1),), "allowed_lengths": (1, 2)})
        times = TIMES.copy()
        times[2, 0] = np.nan
        assert self.plan((0, 1, 1, 1), seen, times, control).lengths == (0, 1, 1, 1)

    def test_unknown_price_is_explored_when_half_of_it_is_affordable_and_paid_in_full(self) -> None:
        # Length 0 at 3 requests: 6 ms against 6 for the one token by length 1; a sure loss only of the least.
        seen = SEEN.copy()
        seen[2] = 0.0
        times = TIMES.copy()
        times[2, 1] = 14.0  # twice the true 7; at its price length 2 loses 14 - 6 · 1.8 / 1.5 = 6.8 ms
        found = self.plan((0, 1, 1, 1), seen, times)
        assert found.costs_ms[2] == pytest.approx(6.8, rel=1e-3)
        assert found.needed_ms[2] < 0.3
        assert estimating.explore(found, 2, 0.3).balance_ms == pytest.approx(0.3 - 6.8, rel=1e-3)
        assert estimating.explore(found, 2, 0.0).reason == estimating.SAVING


class TestSettling:
    def test_price_that_was_too_high_is_given_back(self) -> None:
        # Paid 2 ms a step for length 2 at 2 requests; it took 7 ms and kept 2 tokens a request, for which
        # length 0 takes 10: only the least stays paid, 2% of 7 ms.
        found = plan((0, 0, 0, 0), Live.none(2))
        settled = estimating.settle(-1.0, found, 2, 2, step_ms=7.0, kept_tokens=4)
        assert settled == pytest.approx(-1.0 + 2.0 - 0.02 * 7.0)

    def test_loss_beyond_the_price_is_paid(self) -> None:
        # Each step took 9 ms and kept a token a request, 5 ms' worth: 4 ms lost, 2 of them paid.
        found = plan((0, 0, 0, 0), Live.none(2))
        assert estimating.settle(1.0, found, 2, 2, 9.0, 2) == pytest.approx(1.0 + 2.0 - 4.0)

    def test_hiccup_while_exploring_is_no_debt_of_minutes(self) -> None:
        # The price of a step is 2 ms and at most 3 tokens of 5 ms: 17, four times that at the most.
        found = plan((0, 0, 0, 0), Live.none(2))
        assert estimating.settle(0.0, found, 2, 2, 1_700.0, 2) == pytest.approx(2.0 - 4 * 17.0)

    @pytest.mark.parametrize(("length", "step_ms"), [(2, 0.0), (1, 9.0), (2, math.nan), (2, math.inf)])
    def test_price_stands_where_nothing_was_measured(self, length: int, step_ms: float) -> None:
        found = plan((0, 0, 0, 0), Live.none(2))
        assert estimating.settle(1.0, found, 2, length, step_ms, 2) == 1.0

    @settings(max_examples=40)
    @given(
        st.lists(st.integers(1, 3), min_size=1, max_size=60),
        st.floats(0.001, 0.2),
        st.floats(0, 1),
        st.floats(0.3, 3.0),
    )
    def test_exploring_loses_its_share_and_one_exploration_whatever_was_believed(
        self, batch_sizes: list[int], share: float, accepted: float, slower: float
    ) -> None:
        believed = estimating.estimate(Live.none(2), BELIEVED_GOOD, 200.0)
        found = estimating.plan_exploration((0,) * 4, TIMES, LENGTHS, believed, ANY, np.zeros((3, 3)), 4)
        balance, serving, lost, dearest = 0.0, 0.0, 0.0, 0.0
        for batch_size in batch_sizes:
            for _ in range(5):
                serving += TIMES[0, batch_size - 1]
                balance = estimating.earn(balance, TIMES[0, batch_size - 1], found, share)
            step = estimating.explore(found, batch_size, balance)
            balance = step.balance_ms
            if step.reason != estimating.EXPLORED:
                continue
            took = slower * TIMES[step.draft_length, batch_size - 1]
            tokens = acceptance.expected_tokens((accepted, accepted**2), 1.0, step.draft_length)
            loss = 4 * (took - tokens * TIMES[0, batch_size - 1])
            lost, dearest, serving = lost + loss, max(dearest, loss), serving + 4 * took
            balance = estimating.settle(
                balance, found, batch_size, step.draft_length, took, tokens * batch_size
            )
        assert lost <= share * serving + max(dearest, 0.0) + 1e-6
