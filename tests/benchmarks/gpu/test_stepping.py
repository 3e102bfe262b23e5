"""Step logs: cells, quiet steps, prompts, and why policies differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.gpu import made

from gpu.analysis import goals, stepping  # isort: skip
from gpu.analysis.ratios import Estimate  # isort: skip
from gpu.analysis.runs import Run, Steps, realigned  # isort: skip


def served(steps: Steps, policy: str = "constant 2", with_document: bool = False) -> Run:
    record = made.window(policy, 0, 1.0, began=0.0, seconds=float(steps.result_at[-1]) + 1.0)
    return made.run([record], steps=steps, with_document=with_document)


def test_pure_steps_verify_and_draft_the_length_alone() -> None:
    own = made.steps(6)
    own = made.changed(own, [1], drafted_tokens=15)  # one request had no draft
    own = made.changed(own, [2], prompt_tokens=255, new_requests=1)
    own = made.changed(own, [3], next_draft_length=1)
    own = made.changed(own, [4], interval_ms=float("nan"))
    assert stepping.pure(own, 2, uniform=True).tolist() == [True, False, False, False, False, True]
    assert stepping.pure(own, 2, uniform=False).tolist() == [True, True, False, False, False, True]
    assert not stepping.pure(own, 3, uniform=True).any()


def test_quiet_steps_have_no_prompt_two_before_and_one_after() -> None:
    own = made.changed(made.steps(10), [5], prompt_tokens=255, new_requests=1)
    # 0 and 1 have unknown steps before them, 9 an unknown one after it.
    assert np.flatnonzero(stepping.quiet(own)).tolist() == [2, 3, 8]


def test_rate_is_the_ratio_of_sums() -> None:
    # 30 tokens in 12 ms; residuals 10 - 2.5 · 4 = 0 and so on.
    found = stepping.rate(np.array([10.0, 5.0, 15.0]), np.array([4.0, 2.0, 6.0]))
    assert found.mean == pytest.approx(2500.0)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    # 2 tokens a ms in steps of 4: residuals 2, -3 and 1, of which a sum of three has a variance of 3 · 14/2.
    found = stepping.rate(np.array([10.0, 5.0, 9.0]), np.array([4.0, 4.0, 4.0]))
    assert found.mean == pytest.approx(2000.0)
    assert found.error == pytest.approx(21**0.5 / 12 * 1e3)


def test_cell_tells_spans_and_intervals_against_the_document() -> None:
    (found,) = stepping.cells(served(made.steps(60), with_document=True))
    assert (found.batch_size, found.draft_length, found.graph, found.steps) == (8, 2, "full", 60)
    assert found.tokens_per_request == pytest.approx(2.0)  # 8 requests keep 8 + 8 tokens
    assert found.by_span is not None
    assert found.by_span.mean == pytest.approx(16 / 4 * 1e3)
    assert found.by_interval.mean == pytest.approx(16 / 5 * 1e3)
    profile, acceptance = made.document().profile, made.document().acceptance
    time = profile.step_time_ms[profile.draft_lengths.index(2)][profile.batch_sizes.index(8)]
    assert time is not None
    expected = 8 * (1 + sum(acceptance.survival[:2])) / time * 1e3
    assert found.predicted == pytest.approx(expected)
    assert found.span_ratio is not None
    assert found.span_ratio.mean == pytest.approx(4000 / expected)


def test_cell_of_few_steps_is_not_told() -> None:
    assert stepping.cells(served(made.steps(49))) == []


def test_other_graph_mode_is_not_predicted() -> None:
    run = served(made.steps(60), with_document=True)
    serve = [*made.ADVISED, "--compilation-config", '{"cudagraph_mode":"FULL"}']
    (found,) = stepping.cells(replace(run, result={**run.result, "serve": serve}))
    assert found.predicted is None


def test_hosts_share_is_interval_less_span_of_quiet_steps() -> None:
    own = made.changed(made.steps(60), [30], prompt_tokens=255, new_requests=1, interval_ms=30.0)
    (found,) = stepping.host_shares(served(own))
    assert found.batch_sizes == (8, 15)
    assert (found.interval_ms, found.span_ms, found.host_ms) == pytest.approx((5.0, 4.0, 1.0))
    assert found.steps == 60 - 3 - 4


def test_steps_after_a_change_of_length_are_told_by_the_graph_they_find() -> None:
    own = made.steps(800)
    to_two = list(range(20, 780, 40))
    # Ten steps of length 1, then two again: every other time at a batch size without a full graph.
    ones = [place - back for place in to_two for back in range(1, 11)]
    own = made.changed(own, ones, drafted_tokens=8, span_ms=3.0)
    own = made.changed(own, [place - 1 for place in to_two], next_draft_length=2)
    own = made.changed(own, [place - back for place in to_two for back in range(2, 12)], next_draft_length=1)
    own = made.changed(own, to_two[::2], graph=2, span_ms=12.0)
    own = made.changed(own, to_two[1::2], span_ms=4.2)
    run = served(own)
    found = {(own.graph, own.downwards): own for own in stepping.after_changes(run)}
    assert found["full", False].span == pytest.approx(1.05)
    assert found["piecewise", False].span == pytest.approx(3.0)
    assert found["full", True].span == pytest.approx(1.0)
    assert found["full", True].settled_without == pytest.approx(1.0)
    (stall,) = [goal for goal in goals.judge(goals.find([run])) if goal.claim.startswith("the paper's stall")]
    # Those down to 1 all had a full graph.
    assert (stall.status, found["full", True].from_two_to_one) == ("met", 19)


def test_scatter_is_that_of_seconds_within_a_cell() -> None:
    # Two cells. Every other second two in five of the steps are disturbed, and then all of them.
    own = made.steps(6000)
    own = made.changed(own, range(3000, 6000), batch_size=9, drafted_tokens=18, span_ms=8.0)
    seconds = np.floor(own.result_at).astype(int)
    late = np.flatnonzero((seconds % 2 == 1) & (np.arange(6000) % 5 < 2))
    own = made.changed(own, late.tolist(), span_ms=9.6)
    (found,) = stepping.scatter(served(own))
    assert found.deviation[0.25] < 0.02
    own = made.changed(own, np.flatnonzero(seconds % 2 == 1).tolist(), span_ms=9.6)
    (found,) = stepping.scatter(served(own))
    assert found.deviation[0.25] > 0.05


def test_steps_beside_prompts_are_told_over_quiet_ones() -> None:
    own = made.steps(400)
    mixed = list(range(5, 395, 10))
    own = made.changed(own, mixed, prompt_tokens=255, new_requests=1, interval_ms=17.0, span_ms=5.0)
    own = made.changed(own, [place - 1 for place in mixed], interval_ms=10.0)
    own = made.changed(own, [place + 1 for place in mixed], span_ms=4.4)
    found = {own.place: own for own in stepping.neighbours(served(own))}
    before, after = found["the step before"], found["the first step after"]
    assert before.interval.mean == pytest.approx(2.0)
    assert before.span is not None
    assert before.span.mean == pytest.approx(1.0)
    assert after.span is not None
    assert (after.span.mean, after.span_median) == pytest.approx((1.1, 1.1))
    assert after.interval.mean == pytest.approx(1.0)


def test_prompts_cost_counts_the_steps_around_and_pieces() -> None:
    own = made.steps(100)
    own = made.changed(own, [40, 41], prompt_tokens=1024, interval_ms=12.0, span_ms=9.0, graph=2)
    own = made.changed(own, [40], new_requests=1, batch_size=9)
    own = made.changed(own, [39], interval_ms=8.0)
    (found,) = stepping.mixed_steps(served(own))
    assert (found.graph, found.episodes, found.steps, found.prompts) == ("piecewise", 1, 2.0, 1.0)
    # Two spans of 9 ms over quiet ones of 4; intervals 8 + 12 + 12 + 5 over four of 5.
    assert found.more_span_ms == pytest.approx(10.0)
    assert found.more_interval_ms == pytest.approx(17.0)


def test_episodes_stand_alone() -> None:
    mixed = np.zeros(30, dtype=bool)
    mixed[[1, 8, 9, 16, 18, 25]] = True
    # 1 and 16 with 18 have too few pure steps beside them.
    assert list(stepping.episodes(mixed)) == [(8, 9), (25, 25)]


def test_anatomy_weighs_by_time() -> None:
    own = made.changed(
        made.steps(4), [3], interval_ms=15.0, batch_size=4, drafted_tokens=8, accepted_tokens=4
    )
    (found,) = stepping.anatomies(served(own, policy="tuned"))
    assert found.mean_batch == pytest.approx((3 * 5 * 8 + 15 * 4) / 30)
    assert found.step_ms == pytest.approx(7.5)
    assert found.tokens_per_request == pytest.approx(2.0)
    assert found.lengths == {2: pytest.approx(1.0)}
    assert found.without_full_graph == 0.0


def anatomy(policy: str, steps: Steps) -> stepping.Anatomy:
    (found,) = stepping.anatomies(served(steps, policy=policy))
    return found


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        (made.steps(40, length=1, accepted=4), "kept tokens per request"),
        (made.steps(40, batch_size=6, length=1, accepted=6), "live batch"),
        (made.steps(40, length=1, span_ms=6.0), "step time: the GPU's"),
        (made.steps(40, length=1, host_ms=3.0), "step time: the host's"),
        (made.steps(40, length=1, span_ms=9.0, graph=2), "step time: pure steps without a full graph"),
        (
            made.changed(
                made.steps(40, length=1), range(0, 40, 4), prompt_tokens=255, new_requests=1, interval_ms=20.0
            ),
            "step time: prompts",
        ),
    ],
)
def test_loss_is_explained_by_its_largest_part(own: Steps, cause: str) -> None:
    tuned, best = anatomy("tuned", own), anatomy("constant 2", made.steps(40))
    found = stepping.explain(Estimate(0.8, 0.01, 4), tuned, best)
    assert found.cause == cause
    # Seen from the other side it is the gain's reason.
    assert stepping.explain(Estimate(1.25, 0.01, 4), best, tuned).cause == cause


def test_factors_multiply_to_the_ratio_of_rates() -> None:
    own, other = made.steps(40, batch_size=6, length=1, accepted=3, span_ms=3.0), made.steps(40)
    found = stepping.explain(Estimate(0.7, 0.01, 4), anatomy("tuned", own), anatomy("constant 2", other))
    product = found.tokens_factor * found.batch_factor * found.step_factor
    assert product == pytest.approx((9 / 4.0) / (16 / 5.0))


def test_same_length_is_not_the_tables_doing() -> None:
    slow = anatomy("tuned", made.steps(40, host_ms=2.0))
    found = stepping.explain(Estimate(0.8, 0.01, 4), slow, anatomy("constant 2", made.steps(40)))
    assert "same length" in found.cause


def slipped(places: int) -> tuple[Steps, Steps]:
    chance = np.random.default_rng(1)
    own = made.steps(2_000)
    mixed = np.flatnonzero(chance.random(2_000) < 0.1)
    own = made.changed(own, mixed.tolist(), prompt_tokens=255, new_requests=1, span_ms=6.0)
    own = replace(own, span_ms=own.span_ms * chance.lognormal(0, 0.02, 2_000))
    return own, own.with_spans_moved(places)


@pytest.mark.parametrize("places", [-7, 0, 3])
def test_slipped_spans_come_back_to_their_steps(places: int) -> None:
    own, moved = slipped(places)
    found = realigned(moved)
    known = np.isfinite(found.span_ms)
    assert known.sum() >= 2_000 - abs(places)
    np.testing.assert_array_equal(found.span_ms[known], own.span_ms[known])


def test_spans_that_fit_nowhere_are_not_known() -> None:
    own, _ = slipped(0)
    shuffled = replace(own, span_ms=np.random.default_rng(2).permutation(own.span_ms))
    assert np.isnan(realigned(shuffled).span_ms).all()
    assert np.isnan(realigned(made.steps(500)).span_ms).all()


def test_spans_after_a_comparison_of_the_plugins_cost_are_realigned() -> None:
    own, moved = slipped(4)
    end = float(own.result_at[-1])
    cost = {"comparison": "cost", "open": 8, "round": 0, "policy": "without plugin", "tokensPerSecond": 1.0}
    window = made.window("constant 2", 0, 1.0, began=0.0, seconds=end + 1)
    before, after = (
        next(iter(made.run(records, steps=moved).loops.values()))[0].steps
        for records in ([window, cost], [cost, window])
    )
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before.span_ms, moved.span_ms)
    np.testing.assert_array_equal(after.span_ms[4:-4], own.span_ms[4:-4])
    # Since records tell their beginning, steps are counted on both sides, and nothing slips.
    (window_after,) = next(iter(made.run([{**cost, "began": 0.0}, window], steps=moved).loops.values()))
    assert window_after.steps is not None
    np.testing.assert_array_equal(window_after.steps.span_ms, moved.span_ms)


def test_prompts_evened_out_leave_no_luck() -> None:
    # Steps of 5 ms, 17 ms with a prompt, keep 16 tokens each; outputs have 500, so a prompt is due every
    # 31.25 steps. One window has twice as many, the other none.
    few = made.steps(400)
    many = made.changed(
        made.steps(400, began=10.0), range(8, 400, 16), new_requests=1, prompt_tokens=255, interval_ms=17.0
    )
    joined = Steps(
        **{
            name: np.concatenate([getattr(few, name), getattr(many, name)])
            for name in Steps.__dataclass_fields__
        }
    )
    ends = float(few.result_at[-1]), float(many.result_at[-1])
    seconds = ends[0], ends[1] - 10.0
    records = [
        made.window("tuned", number, 6_400 / lasting, began=began, seconds=lasting + 1e-6)
        for number, (began, lasting) in enumerate(zip((0.0, 10.0), seconds, strict=True))
    ]
    (windows,) = stepping.evened(made.run(records, steps=joined)).values()
    rates = [window.tokens_per_second for window in windows]
    # 400 steps of 5 ms and 12.8 prompts of 12 ms, of which one in 32 is taken to share a step that has one.
    assert rates == pytest.approx([6_400 / (2.0 + 12.8 * 0.012)] * 2, rel=3e-3)
    assert records[0]["tokensPerSecond"] / records[1]["tokensPerSecond"] > 1.1


def test_groups_tell_the_median_and_the_farthest_cell() -> None:
    found = stepping.closeness([1.01, 0.93, 1.04])
    assert found == stepping.Closeness(3, 1.01, 0.93, 2)
    assert stepping.closeness([]) is None
    (cell,) = stepping.cells(served(made.steps(60), with_document=True))
    others = [replace(cell, batch_size=size) for size in (16, 17, 200)]
    groups = stepping.grouped([cell, *others, replace(cell, predicted=None)])
    assert [own.batch_sizes for own in groups] == [(8, 16), (17, 17), (200, 200)]
    assert groups[0].by_span is not None
    assert groups[0].by_span.cells == 2
