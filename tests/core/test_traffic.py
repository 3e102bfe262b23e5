"""What a length is worth by the steps that verify its drafts, by hand and on measured engines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tabletune import costs, documents, graphs, predictions, tables, traffic
from tabletune.traffic import EXPECTED_STEPS, REACH, Following, NextSteps, Requests
from tests.core import h200

DEFAULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu" / "h200-qwen3-4b-eagle3-default.json"
BOUNDS = traffic.prompt_bounds(512)
TOKENS = np.array([1.0, 1.8, 2.3])
TIMES = np.array([[4.0, 4.0, 4.0, 4.0], [5.0, 5.0, 5.0, 5.0], [6.0, 6.0, 6.0, 6.0]])
USUAL = Requests.of(256, 500, 8192)
RARE = Requests(256, 1e12)
"""Requests whose outputs never end, so that no prompt is expected."""
ALL = np.ones(TIMES.shape, dtype=bool)


def seen(*steps: tuple[int, int, int, int], size: int = 4) -> Following:
    """What ``steps`` (before, batch size, prompt tokens, count) leave behind."""
    return traffic.observe(
        Following.none(size, len(BOUNDS)), [NextSteps(*step) for step in steps], BOUNDS, 0.0
    )


def by_seen(times: costs.Floats, mixed: costs.Floats, following: Following) -> costs.Floats:
    expected = traffic.goodput(times, mixed, TOKENS, RARE)
    return traffic.seen_goodput(expected, times, mixed, TOKENS, following, ALL)


# Prompts that are expected


def test_goodput_is_that_of_pure_steps_where_prompts_cost_the_same_at_every_length() -> None:
    sizes = np.arange(1, 5)
    found = traffic.goodput(TIMES, TIMES, TOKENS, Requests(256, 300.0))
    assert found == pytest.approx(sizes * TOKENS[:, np.newaxis] / TIMES * 1e3)


def test_step_that_a_prompt_joins_costs_what_its_graph_does() -> None:
    # With outputs of 4 tokens, 2 requests at length 1 keep 3.6 tokens: 0.9 prompts a step, none in exp(-0.9).
    mixed = TIMES + np.array([[0.0], [10.0], [20.0]])
    found = traffic.goodput(TIMES, mixed, TOKENS, Requests(256, 4.0))
    assert found[1, 1] == pytest.approx(3.6 / (5.0 + 10.0 * (1 - math.exp(-0.9))) * 1e3)


def test_long_prompts_are_cut_to_the_tokens_of_a_step() -> None:
    assert Requests.of(256, 500, 8192) == Requests(256, 500.0)
    assert Requests.of(8192, 500, 8192) == Requests(8192, 500.0)
    assert Requests.of(8193, 500, 8192) == Requests(4097, 250.0)


def test_time_of_a_shared_step_never_falls_below_a_share_of_the_pure_one() -> None:
    assert traffic.mixed_times(np.array([[8.0, 8.0]]), np.array([[-3.0, -30.0]])) == pytest.approx(
        np.array([[5.0, 2.0]])
    )


def served(captured: int, requests: int) -> dict[int, float]:
    """Tokens per second by length in closed loops on an H200: prompts of 256 tokens, outputs of 500."""
    rows = json.loads((h200.DATA / "h200-qwen3-4b-eagle3-closed-loop.json").read_text())["rows"]
    loop = ("table", captured, requests)
    return {
        row["draft_length"]: row["output_tok_s"]
        for row in rows
        if (row["engine"], row["max_cudagraph_capture_size"], row["open_requests"]) == loop
    }


def engine(captured: int) -> costs.CostModel:
    """The profile of such an engine."""
    if captured == 512:
        document = documents.parse(DEFAULT.read_bytes())
        model = costs.CostModel.from_profile(document.profile, document.fingerprint)
    else:
        model = costs.CostModel.from_profile(h200.live_profile(), h200.fingerprint())
    assert model.settings.largest_capture_size == captured
    return model


@pytest.mark.parametrize("captured", [512, 1024])
@pytest.mark.parametrize("requests", [16, 64, 128])
def test_best_length_is_the_one_that_served_best_on_an_h200(captured: int, requests: int) -> None:
    # At 128 requests three drafts each make 512 tokens, as many as are captured, so that a step with a prompt
    # finds no graph: 12,129 tokens/s against 17,114 with one draft. With 1,024 captured it is the other way
    # round: 22,310 against 16,753.
    found = traffic.expected_goodput(engine(captured), h200.acceptance(), USUAL, 256)
    loop = served(captured, requests)
    assert int(found[:, requests - 1].argmax()) == max(loop, key=lambda length: loop[length])


@pytest.mark.parametrize(("requests", "with_prompts", "without"), [(128, 1.0, 0.71), (224, 0.85, 0.71)])
def test_prompts_are_worth_a_seventh_and_more_where_they_leave_no_graph(
    requests: int, with_prompts: float, without: float
) -> None:
    model, loop = engine(512), served(512, requests)
    priced = traffic.expected_goodput(model, h200.acceptance(), USUAL, 256)
    pure = predictions.goodput(model.step_times(256), h200.acceptance(), model.draft_lengths)
    for goodput, share in ((priced, with_prompts), (pure, without)):
        chosen = int(goodput[:, requests - 1].argmax())
        assert loop[chosen] / max(loop.values()) == pytest.approx(share, abs=0.006)


# Steps that were seen to follow


def test_nothing_seen_is_as_expected() -> None:
    found = by_seen(TIMES, TIMES, Following.none(4, len(BOUNDS)))
    assert found == pytest.approx(traffic.goodput(TIMES, TIMES, TOKENS, RARE))


def test_length_is_worth_what_its_drafts_meet_in_the_next_step() -> None:
    # Three requests verify two drafts each without a graph. Where 4 are open, every second step has 3.
    times = TIMES.copy()
    times[2, 2] = 30.0
    alone = by_seen(times, times, seen((4, 4, 0, 10_000)))
    assert int(alone[:, 3].argmax()) == 2
    found = by_seen(times, times, seen((4, 4, 0, 5_000), (4, 3, 0, 5_000), (3, 4, 0, 5_000)))
    assert int(found[:, 3].argmax()) == 1
    # And at 3, whose drafts are verified by 4, two are best although 3 have no graph for them.
    assert int(found[:, 2].argmax()) == 2


def test_loss_is_told_in_tokens_at_the_rate_of_pure_steps() -> None:
    # All next steps are of 4 requests: 4 · 2.3 tokens in 6 ms, 1.533 a millisecond, is the best rate. Length
    # 1 keeps 4 · 0.5 fewer and saves 1 ms, so it loses 2 - 1.533 of 9.2 tokens.
    found = by_seen(TIMES, TIMES, seen((4, 4, 0, 10**9)))
    loss = (4 * 0.5 - 4 * 2.3 / 6) / (4 * 2.3)
    assert found[1, 3] / found[2, 3] == pytest.approx(1 - loss, rel=1e-6)


def test_drafts_before_a_prompt_are_as_many_as_its_step_has_a_graph_for() -> None:
    # A prompt that finds no graph at length 2. From 3 requests the next step always has one, from 4 never.
    mixed = TIMES + np.array([[0.0], [0.0], [25.0]])
    found = by_seen(TIMES, mixed, seen((3, 4, 256, 5_000), (4, 4, 0, 20_000), (4, 3, 0, 5_000)))
    assert int(found[:, 2].argmax()) == 1
    assert int(found[:, 3].argmax()) == 2


@pytest.mark.parametrize("size", [1, 4, 16, 17, 40, 100])
def test_time_is_worth_what_steps_around_keep(size: int) -> None:
    # Steps that all have a prompt, but for those of the largest batch size. Up to an eighth and 8 below it,
    # what these keep is what time is worth. Length 2 keeps half a token more than 1, in a millisecond more.
    times = np.repeat(TIMES[:, :1], size, axis=1)
    expected = traffic.goodput(times, times, TOKENS, RARE)
    steps = [(before, before, 256, 10**6) for before in range(1, size)] + [(size, size, 0, 10**6)]
    usable = np.ones(times.shape, dtype=bool)
    found = traffic.seen_goodput(expected, times, times, TOKENS, seen(*steps, size=size), usable)
    for before in range(1, size + 1):
        around = size - before <= min(before // 8, REACH)
        rate = (size if around else before) * 2.3 / 6.0
        gain = before * 0.5 - rate
        assert (found[2, before - 1] > found[1, before - 1]) == (gain > 0), before


def test_time_of_few_requests_is_not_worth_what_more_of_them_keep() -> None:
    # An open loop: one request runs alone at times, and nine together at others. Two drafts are always best.
    size = 12
    times = np.repeat(TIMES[:, :1], size, axis=1)
    expected = traffic.goodput(times, times, TOKENS, RARE)
    steps = [(before, before, 0, 1_000) for before in range(1, 10)]
    usable = np.ones(times.shape, dtype=bool)
    found = traffic.seen_goodput(expected, times, times, TOKENS, seen(*steps, size=size), usable)
    assert found.argmax(axis=0).tolist() == [2] * size


def test_few_steps_weigh_little() -> None:
    times = TIMES.copy()
    times[2, 2] = 30.0
    expected = traffic.goodput(times, times, TOKENS, RARE)
    many = by_seen(times, times, seen((4, 3, 0, 10**9)))
    half = by_seen(times, times, seen((4, 3, 0, int(EXPECTED_STEPS))))
    assert half[2, 3] == pytest.approx((expected[2, 3] + many[2, 3]) / 2, rel=0.02)


def test_no_length_is_the_best_for_next_steps_without_a_price() -> None:
    # Two drafts are the best where 4 requests stay 4. Nobody knows what 3 and a prompt take to verify them,
    # and at the other lengths such a step is dear.
    times = TIMES.copy()
    times[2, 2] = np.nan
    mixed = times + 20.0
    often = by_seen(times, mixed, seen((4, 3, 256, 1_000), (4, 4, 0, 1_000)))
    assert int(often[:, 3].argmax()) == 1
    assert np.isfinite(often[:, 3]).all()
    assert np.isnan(often[2, 2])
    seldom = by_seen(times, mixed, seen((4, 3, 256, 1), (4, 4, 0, 1_000)))
    assert int(seldom[:, 3].argmax()) == 2


def test_unusable_cells_are_no_measure_of_the_others() -> None:
    usable = ALL.copy()
    usable[2] = False
    expected = traffic.goodput(TIMES, TIMES, TOKENS, RARE)
    found = traffic.seen_goodput(expected, TIMES, TIMES, TOKENS, seen((4, 4, 0, 10**9)), usable)
    assert found[1, 3] == pytest.approx(expected[1, 3])


# What is kept of them


def test_steps_fade_and_what_is_impossible_is_left_out() -> None:
    following = seen((4, 4, 0, 100), (0, 4, 0, 9), (4, 5, 0, 9), (9, 4, 0, 9), (4, 4, 0, -5))
    assert following.pure.sum() == following.pure[3, REACH] == 100
    later = traffic.observe(following, [], BOUNDS, traffic.HALF_LIFE)
    assert later.pure[3, REACH] == pytest.approx(50)


def test_batch_size_fades_by_what_is_new_of_it() -> None:
    following = seen((4, 4, 0, 100), (3, 3, 0, 100))
    new = [NextSteps(4, 3, 0, int(traffic.HALF_STEPS))]
    later = traffic.observe(following, new, BOUNDS, 0.0)
    assert later.pure[3, REACH] == pytest.approx(50)
    assert later.pure[3, REACH - 1] == traffic.HALF_STEPS
    assert later.pure[2, REACH] == 100


def test_larger_changes_count_as_the_largest_that_is_told_apart() -> None:
    following = seen((60, 20, 0, 3), (1, 60, 256, 2), size=64)
    assert following.pure[59, 0] == 3
    assert following.mixed[0, 2 * REACH] == 2
    assert following.prompts[BOUNDS.index(256)] == 2


def test_prompts_beyond_the_graphs_are_one() -> None:
    following = seen((2, 3, 100_000, 1), (2, 3, 768, 1))
    assert following.prompts[-1] == 2
    assert BOUNDS[-1] == 768


@given(st.integers(1, 3 * 2**20))
def test_prompt_tokens_are_rounded_up_to_the_next_bound(tokens: int) -> None:
    bounds = traffic.prompt_bounds(2**22)
    assert traffic.rounded_up(tokens) == next(bound for bound in bounds if bound >= tokens)


steps = st.builds(
    NextSteps, st.integers(-1, 12), st.integers(-1, 12), st.integers(-5, 2_000), st.integers(-1, 10**12)
)


@given(
    arrays.arrays(np.float64, (3, 8), elements=st.floats(0.05, 1e4) | st.just(math.nan)),
    arrays.arrays(np.float64, (3, 8), elements=st.floats(-40.0, 40.0)),
    arrays.arrays(np.bool_, (3, 8)),
    st.lists(steps, max_size=20),
)
def test_goodput_is_sound_whatever_was_seen(
    times: costs.Floats, more: costs.Floats, usable: np.ndarray, found: list[NextSteps]
) -> None:
    mixed = traffic.mixed_times(times, more)
    expected = traffic.goodput(times, mixed, TOKENS, Requests(256, 200.0))
    following = traffic.observe(Following.none(8, len(BOUNDS)), found, BOUNDS, 0.0)
    told = traffic.seen_goodput(expected, times, mixed, TOKENS, following, usable)
    assert (np.isfinite(told) == np.isfinite(times)).all()
    assert (told[np.isfinite(told)] > 0).all()


def test_table_leaves_room_for_prompts() -> None:
    model = engine(512)
    found = traffic.expected_goodput(model, h200.acceptance(), USUAL, 256)
    lookup = tables.lookup(tables.compute(found, model.draft_lengths, documents.Control()), 256)
    for size in (80, 100, 120):
        kind = graphs.dispatch(model.settings, size - 1, lookup[size], 256).kind
        assert kind is not documents.Graph.NONE
