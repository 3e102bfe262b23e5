from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import costs, documents, graphs
from tabletune.costs import CostModel, Evidence
from tabletune.documents import Graph
from tests.core import h200

EVERY_BATCH_SIZE = np.arange(1, 257)


@pytest.fixture(scope="module")
def live() -> CostModel:
    return CostModel.from_profile(h200.live_profile(), h200.fingerprint())


@pytest.fixture(scope="module")
def steps() -> CostModel:
    return CostModel.from_profile(h200.steps_profile(), h200.steps_fingerprint())


def model(
    batch_sizes: list[int],
    times: list[list[float | None]],
    kinds: Sequence[Sequence[Graph | None]] | None = None,
    mixed: tuple[documents.MixedStep, ...] = (),
    **changes: Any,
) -> CostModel:
    """A model of lengths 0, 1, … on an engine with the settings of ``changes``; kinds as dispatched."""
    fingerprint = h200.fingerprint(**changes)
    draft_lengths = list(range(len(times)))
    engine = graphs.GraphSettings.from_fingerprint(fingerprint, draft_lengths)
    found = [[graphs.dispatch(engine, size, length).kind for size in batch_sizes] for length in draft_lengths]
    profile = h200.profile(batch_sizes, draft_lengths, times, kinds or found, mixed)
    return CostModel.from_profile(profile, fingerprint)


def without_graphs(batch_sizes: list[int], times: list[list[float | None]]) -> CostModel:
    return model(batch_sizes, times, cudagraph_mode="NONE", cudagraph_capture_sizes=(), gpu_count=0)


def mixed_step(batch_size: int, draft_length: int, prompt_tokens: int, time: float) -> documents.MixedStep:
    return documents.MixedStep(
        batch_size=batch_size,
        draft_length=draft_length,
        prompt_tokens=prompt_tokens,
        step_time_ms=time,
        samples=10,
    )


@pytest.mark.parametrize("profile", [h200.live_profile(), h200.steps_profile()], ids=["live", "steps"])
def test_measured_cells_cost_what_was_measured(profile: documents.Profile) -> None:
    prices = CostModel.from_profile(profile, h200.fingerprint()).prices(EVERY_BATCH_SIZE)
    columns = np.array(profile.batch_sizes) - 1
    assert prices.step_times_ms[:, columns].tolist() == [list(row) for row in profile.step_time_ms]
    assert np.all(prices.evidence[:, columns] == Evidence.MEASURED)


def test_batch_between_sizes_costs_its_graph(live: CostModel) -> None:
    # 31 requests at K=3 are 124 tokens and run the graph of 128, as 32 requests do: 5.695 ms.
    assert live.step_time(31, 3) == live.step_time(32, 3) == 5.695
    # 33 are 132 and run 136, between the measured 128 (5.695) and 192 (6.864): 5.695 + 8/64 · 1.169
    assert live.step_time(33, 3) == pytest.approx(5.695 + 8 / 64 * (6.864 - 5.695))


def test_gap_cell_stands_alone(live: CostModel) -> None:
    # B=4 at K=2 found no full graph: 15.477 ms. Its neighbours have one and cost what full graphs do.
    assert live.step_time(4, 2) == 15.477
    assert live.step_time(3, 2) < 4.5
    assert live.step_time(6, 2) < 4.5


def test_other_gap_sizes_cost_as_much_more_as_the_measured_one(live: CostModel) -> None:
    # Above its own full graphs the gap cell costs 15.477 - 4.431 = 11.046 ms (ENGINE.md 2: 11 ms), full
    # graphs of 16 tokens lying between those of 3 (4.229) and 24 (4.475).
    gap = graphs.batch_sizes_without_full_graph(live.settings)
    prices = live.prices(EVERY_BATCH_SIZE)
    profile = h200.live_profile()
    for draft_length in (0, 1, 2):
        measured = np.array(profile.step_time_ms[draft_length], dtype=np.float64)
        if draft_length == 2:
            measured[profile.batch_sizes.index(4)] = 4.431
        for batch_size in set(gap[draft_length]) - {4}:
            tokens = graphs.dispatch(live.settings, batch_size, draft_length).padded_tokens
            full = np.interp(tokens, np.array(profile.batch_sizes) * (draft_length + 1), measured)
            more = prices.step_times_ms[draft_length, batch_size - 1] - full
            assert more == pytest.approx(11.046, abs=0.15)
    assert prices.evidence[0, gap[0][5] - 1] == Evidence.BORROWED
    assert prices.evidence[2, gap[2][5] - 1] == Evidence.EXTRAPOLATED


def test_no_straight_line_across_the_capture_limit(steps: CostModel) -> None:
    # K=3: 128 requests are 512 tokens, the last graph (11.049 ms); 192 without one took 32.849 ms. A straight
    # line would say 11.4 ms at 129.
    assert steps.step_time(128, 3) == 11.049
    assert steps.step_time(129, 3) > 25
    assert steps.step_time(191, 3) == pytest.approx(32.8, abs=0.1)
    # K=2: 160 requests are 480 tokens and have a full graph; 171 are 513.
    assert steps.step_time(160, 2) < 12 < 45 < steps.step_time(171, 2)


def test_noise_is_not_smoothed_away(steps: CostModel) -> None:
    # Without a graph K=2 took 49.992 ms at 192 requests and 31.092 at 256.
    assert steps.step_time(192, 2) > steps.step_time(224, 2) > steps.step_time(256, 2)


def test_profiles_word_on_a_cells_kind_counts(steps: CostModel) -> None:
    # With the default sizes B=4, K=2 would run piecewise; measured was a full graph, 4.447 ms. It is
    # one of the full cells, at its own 12 tokens, between 6 (4.378) and 24 (4.476).
    assert (4, 2) in steps.disagreements
    assert graphs.dispatch(steps.settings, 3, 2).padded_tokens == 9
    assert steps.step_time(3, 2) == pytest.approx((4.378 + 4.447) / 2)


def test_agreement_is_no_disagreement(live: CostModel) -> None:
    assert live.disagreements == ()


def test_kind_never_measured_has_no_price(steps: CostModel) -> None:
    # The steps file has no piecewise cell, and the default sizes have gaps.
    gap = graphs.batch_sizes_without_full_graph(steps.settings)
    prices = steps.prices(EVERY_BATCH_SIZE)
    assert np.isnan(steps.step_time(gap[0][0], 0))
    assert prices.evidence[0, gap[0][0] - 1] == Evidence.UNPRICED
    assert not np.isnan(prices.step_times_ms).all(axis=0).any()


def test_where_no_length_has_a_price_each_costs_its_base_kind() -> None:
    # Captured up to 8 tokens, measured up to 8: nothing is known of steps without a graph. At 9 both
    # lengths follow their slope: 6 + (6-5)/4 · 1 at K=0; at K=1 18 tokens, 7 + (7-6)/4 · 10.
    found = model(
        [2, 4, 8],
        [[4.0, 5.0, 6.0], [6.0, 7.0, None]],
        cudagraph_capture_sizes=(1, 2, 4, 8),
    )
    prices = found.prices(np.array([9]))
    assert prices.step_times_ms.ravel().tolist() == [6.25, 9.5]
    assert np.all(prices.evidence == Evidence.UNPRICED)


def test_kind_missing_at_a_length_costs_what_it_does_at_others() -> None:
    # Piecewise was measured at K=1 only: 14 ms instead of 4 for 16 tokens. At K=0, 12 requests run piecewise
    # at 16 tokens (12 is filed under 3 tokens each), full graphs of 16 tokens being 5 ms: 15 ms.
    kinds: list[list[Graph | None]] = [[Graph.FULL, Graph.FULL], [Graph.FULL, Graph.FULL], [None, None]]
    kinds[1][0] = Graph.PIECEWISE
    found = model(
        [8, 16],
        [[4.0, 5.0], [14.0, 4.0], [None, None]],
        kinds,
        cudagraph_capture_sizes=(8, 16, 32, 48),
    )
    assert graphs.dispatch(found.settings, 9, 0) == graphs.StepGraph(Graph.PIECEWISE, 16)
    assert found.kind_costs_more(graphs.PIECEWISE, graphs.FULL) == 10.0
    assert found.step_time(9, 0) == 15.0
    assert found.prices(np.array([9])).evidence[0, 0] == Evidence.BORROWED


def test_kind_outside_of_its_cells_runs_along_the_base_kind() -> None:
    # Full graphs: 4 ms at 4 tokens, 5 at 32, 7 at 64. Without a graph 30 ms at 80. At 72 that is 30 less what
    # full graphs grow from 72 to 80, 8 · 2/32.
    found = model([4, 32, 64, 80], [[4.0, 5.0, 7.0, 30.0]], cudagraph_capture_sizes=(4, 32, 64))
    assert found.step_time(72, 0) == 29.5
    assert found.step_time(96, 0) == 31.0
    assert found.prices(np.array([72])).evidence[0, 0] == Evidence.EXTRAPOLATED


def test_base_kind_is_level_below_and_follows_its_last_slope_above() -> None:
    found = model([8, 16, 32], [[4.0, 5.0, 7.0]], cudagraph_capture_sizes=(4, 8, 16, 32, 64))
    assert found.step_time(4, 0) == 4.0
    assert found.step_time(64, 0) == 7.0 + 32 * 2 / 16


def test_slope_above_the_cells_never_falls() -> None:
    found = model([8, 16], [[5.0, 4.0]], cudagraph_capture_sizes=(8, 16, 64))
    assert found.step_time(64, 0) == 4.0


def test_without_graphs_times_are_interpolated_by_batch_size() -> None:
    found = without_graphs([1, 2, 4, 8], [[10.0, 12.0, 20.0, 28.0], [20.0, 24.0, None, 56.0]])
    assert found.step_time(3, 0) == 16.0
    assert found.step_time(6, 0) == 24.0
    assert found.step_time(10, 0) == 32.0
    # The excluded cell is passed over: 24 + (56 - 24) / 3
    assert found.step_time(4, 1) == pytest.approx(24 + 32 / 3)


def test_length_without_any_cell_has_no_price() -> None:
    found = without_graphs([1, 2], [[10.0, 12.0], [None, None]])
    assert np.isnan(found.step_times(2)[1]).all()
    assert found.step_times(2)[0].tolist() == [10.0, 12.0]


def test_cells_in_one_graph_share_their_mean() -> None:
    # 9 and 15 requests run the graph of 16: 6 and 8 ms, so 12 requests cost 7.
    found = model([9, 15], [[6.0, 8.0]], cudagraph_capture_sizes=(8, 16))
    assert (found.step_time(9, 0), found.step_time(12, 0), found.step_time(15, 0)) == (6.0, 7.0, 8.0)


def test_length_that_was_not_profiled_is_refused(live: CostModel) -> None:
    with pytest.raises(costs.CostError, match="Draft length 4 was not profiled"):
        live.step_time(8, 4)
    with pytest.raises(costs.CostError, match="Draft length 4 was not profiled"):
        live.prompt_cost(8, 4, 256)


def test_other_mode_must_be_profiled(live: CostModel) -> None:
    full = graphs.GraphSettings("V2", "FULL", live.settings.capture_sizes, 256, (0, 1, 2, 3))
    with pytest.raises(costs.CostError, match="cannot price mode FULL"):
        live.under(full)


def test_other_sizes_price_steps_by_their_new_graphs(live: CostModel) -> None:
    aligned = graphs.GraphSettings(
        "V2", "FULL_AND_PIECEWISE", tuple(range(12, 1009, 12)), 252, live.settings.draft_lengths
    )
    found = live.under(aligned)
    # B=4, K=2 now has a full graph, of its own 12 tokens: 4.229 + 9/21 · (4.475 - 4.229)
    assert found.step_time(4, 2) == pytest.approx(4.229 + 9 / 21 * (4.475 - 4.229))
    # B=8, K=2 has the graph it had, of 24 tokens; B=1, K=0 is padded to 12 and costs more than measured.
    assert found.step_time(8, 2) == 4.475
    assert found.step_time(1, 0) > live.step_time(1, 0) == 3.805
    assert found.under(live.settings).step_times(256).tolist() == live.step_times(256).tolist()


def test_prompt_costs_what_was_measured(live: CostModel) -> None:
    for step in h200.live_profile().mixed:
        found = live.mixed_step_time(step.batch_size, step.draft_length, step.prompt_tokens)
        assert found == pytest.approx(step.step_time_ms)


def test_prompt_adds_eleven_milliseconds_at_eight_requests(live: CostModel) -> None:
    # ENGINE.md 1: 11 to 13 ms more.
    assert live.prompt_cost(8, 0, 256) == pytest.approx(11.1, abs=0.1)


def test_prompts_of_another_kind_of_step_do_not_count(live: CostModel) -> None:
    # 192 requests at K=3 are 768 tokens, with the prompt 1,024: piecewise. 193 have no graph, as measured at
    # 256 requests: 49.78 - 23.555 = 26.2 ms more.
    assert live.prompt_cost(192, 3, 256) < 15
    assert live.prompt_cost(193, 3, 256) == live.prompt_cost(256, 3, 256) == pytest.approx(26.2, abs=0.1)


def test_prompt_cost_is_interpolated_by_tokens_then_by_batch_size() -> None:
    # At 4 requests 10 ms for 100 tokens, 14 for 300; at 8 requests 20 for 100. Pure steps take 5 ms.
    mixed = (mixed_step(4, 0, 100, 15.0), mixed_step(4, 0, 300, 19.0), mixed_step(8, 0, 100, 25.0))
    found = model([4, 8], [[5.0, 5.0]], mixed=mixed)
    assert found.prompt_cost(4, 0, 200) == 12.0
    assert found.prompt_cost(6, 0, 100) == 15.0
    assert found.prompt_cost(4, 0, 400) == 16.0
    assert found.prompt_cost(4, 0, 50) == 10.0
    assert found.prompt_cost(32, 0, 100) == 20.0


def test_prompt_cost_is_that_of_the_nearest_length() -> None:
    # 8 requests have a full graph at every length, so the prompts change the kind in the same way.
    mixed = (mixed_step(8, 0, 100, 15.0), mixed_step(8, 2, 100, 17.0))
    found = model([8], [[5.0], [5.0], [5.0], [5.0]], mixed=mixed)
    assert found.prompt_cost(8, 1, 100) == 10.0
    assert found.prompt_cost(8, 3, 100) == 12.0


def test_prompt_that_crosses_the_capture_limit_costs_the_graph_too() -> None:
    # Captured up to 64 tokens; pure steps take 5 ms with a full graph, 35 without. A prompt that joins steps
    # without a graph adds its own work only, 2 ms; one that takes a step's graph away adds 30 ms more.
    found = model(
        [4, 64, 80],
        [[5.0, 5.0, 35.0]],
        [[Graph.FULL, Graph.FULL, Graph.NONE]],
        (mixed_step(80, 0, 100, 37.0),),
        cudagraph_capture_sizes=(8, 32, 64),
    )
    assert found.prompt_cost(80, 0, 100) == 2.0
    assert found.prompt_cost(4, 0, 100) == 32.0
    assert found.graph_change_costs(np.array([4, 80]), 0, 100).tolist() == [30.0, 0.0]


def test_prompt_of_a_kind_not_measured_costs_the_difference_of_the_kinds() -> None:
    # Captured up to 64 tokens. A prompt of 32 joins 4 requests piecewise and adds 10 ms. Pure steps take 5 ms
    # with a full graph, 16 piecewise (36 requests), 35 without (80). So without a graph: 10 + 30 - 11.
    batch_sizes = [4, 32, 36, 64, 80]
    kinds = [[Graph.FULL, Graph.FULL, Graph.PIECEWISE, Graph.FULL, Graph.NONE]]
    times: list[list[float | None]] = [[5.0, 5.0, 16.0, 5.0, 35.0]]
    found = model(
        batch_sizes, times, kinds, (mixed_step(4, 0, 32, 15.0),), cudagraph_capture_sizes=(8, 32, 64)
    )
    assert found.prompt_cost(4, 0, 32) == 10.0
    assert found.prompt_cost(4, 0, 100) == 10.0 + 30.0 - 11.0


def test_prompt_has_no_price_where_nothing_tells_it() -> None:
    found = model([4, 8], [[5.0, 5.0]])
    assert np.isnan(found.prompt_cost(4, 0, 100))
    assert np.isnan(found.mixed_step_time(4, 0, 100))
    # Piecewise was measured, but not what steps without a graph cost.
    found = model([4, 8], [[5.0, 5.0]], mixed=(mixed_step(4, 0, 100, 15.0),))
    assert np.isnan(found.prompt_cost(4, 0, 2000))


grids = st.fixed_dictionaries(
    {
        "batch_sizes": st.sets(st.integers(1, 64), min_size=1, max_size=8).map(sorted),
        "lengths": st.integers(1, 4),
        "sizes": st.sets(st.integers(1, 128), min_size=1, max_size=20).map(sorted),
        "mode": st.sampled_from(list(graphs.DECODE_AND_MIXED)),
        "runner": st.sampled_from(["V1", "V2"]),
    }
)
step_times = st.floats(1.0, 60.0, allow_nan=False)


@settings(max_examples=80)
@given(grids, st.data())
def test_every_cell_of_any_profile_is_reproduced(grid: dict[str, Any], data: st.DataObject) -> None:
    batch_sizes = grid["batch_sizes"]
    times = data.draw(
        st.lists(
            st.lists(st.none() | step_times, min_size=len(batch_sizes), max_size=len(batch_sizes)),
            min_size=grid["lengths"],
            max_size=grid["lengths"],
        )
    )
    kinds = data.draw(
        st.lists(
            st.lists(st.sampled_from(list(Graph)), min_size=len(batch_sizes), max_size=len(batch_sizes)),
            min_size=grid["lengths"],
            max_size=grid["lengths"],
        )
    )
    found = model(
        batch_sizes,
        times,
        kinds,
        runner=grid["runner"],
        max_num_seqs=64,
        cudagraph_mode=grid["mode"],
        cudagraph_capture_sizes=tuple(grid["sizes"]),
    )
    prices = found.prices(np.arange(1, 65))
    for row, of_length in enumerate(times):
        for batch_size, measured in zip(batch_sizes, of_length, strict=True):
            if measured is not None:
                assert prices.step_times_ms[row, batch_size - 1] == measured
                assert prices.evidence[row, batch_size - 1] == Evidence.MEASURED
    priced = prices.step_times_ms[np.isfinite(prices.step_times_ms)]
    assert np.all(priced > 0)


@settings(max_examples=80)
@given(grids, st.data())
def test_a_price_between_cells_lies_between_cells_of_its_own_kind(
    grid: dict[str, Any], data: st.DataObject
) -> None:
    batch_sizes = grid["batch_sizes"]
    # Kinds are far apart, so a price mixed from two of them lies in no kind's band.
    bands = {Graph.FULL: (4.0, 8.0), Graph.PIECEWISE: (14.0, 18.0), Graph.NONE: (30.0, 50.0)}
    fingerprint = h200.fingerprint(
        runner=grid["runner"],
        max_num_seqs=64,
        cudagraph_mode=grid["mode"],
        cudagraph_capture_sizes=tuple(grid["sizes"]),
    )
    engine = graphs.GraphSettings.from_fingerprint(fingerprint, range(grid["lengths"]))
    kinds = [
        [graphs.dispatch(engine, size, length).kind for size in batch_sizes]
        for length in range(grid["lengths"])
    ]
    times = [[data.draw(st.floats(*bands[kind])) for kind in of_length] for of_length in kinds]
    profile = h200.profile(batch_sizes, range(grid["lengths"]), times, kinds)
    prices = CostModel.from_profile(profile, fingerprint).prices(np.arange(1, 65))
    for row in range(grid["lengths"]):
        for batch_size in range(1, 65):
            if prices.evidence[row, batch_size - 1] == Evidence.INTERPOLATED:
                low, high = bands[graphs.dispatch(engine, batch_size, row).kind]
                assert low <= prices.step_times_ms[row, batch_size - 1] <= high
