from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tabletune import documents, graphs
from tabletune.costs import CostModel
from tabletune.workloads import Workload
from tests.core import h200


def workload(
    table: documents.Table,
    batch_sizes: tuple[int, ...] = (1, 2),
    times: tuple[tuple[float, ...], ...] = ((10.0, 12.0), (11.0, 24.0)),
    added: float | None = 30.0,
) -> Workload:
    """Lengths 0 and 1 on an engine without graphs, survival 0.5; prompts of 8 tokens, outputs of 10."""
    fingerprint = h200.fingerprint(cudagraph_mode="NONE", cudagraph_capture_sizes=(), max_num_seqs=8)
    mixed = (
        []
        if added is None
        else [
            documents.MixedStep(
                batch_size=1, draft_length=0, prompt_tokens=8, step_time_ms=times[0][0] + added, samples=1
            )
        ]
    )
    kinds = [[documents.Graph.NONE] * len(batch_sizes)] * 2
    profile = h200.profile(batch_sizes, (0, 1), times, kinds, mixed)
    model = CostModel.from_profile(profile, fingerprint)
    return Workload.of(model, profile, h200.acceptance((0.5,)), table, prompt_tokens=8, output_tokens=10)


FLAT = ((10.0, 10.0), (11.0, 11.0))
"""Step times of lengths 0 and 1, the same at every batch size."""


def test_decode_alone_takes_the_steps_share() -> None:
    found = workload(((1, 1, 1), (2, 2, 0)))
    # K=1 at one request: 11 ms for 1.5 tokens; K=0 at two: 12 ms for 2.
    assert found.served(found.model.settings, prompts=False).tolist() == pytest.approx([11 / 1.5, 6.0])


@pytest.mark.parametrize("added", [30.0, 0.0, -1.0])
def test_closed_loop_of_length_0_takes_what_its_requests_do(added: float) -> None:
    # A request of 10 tokens has 10 steps, and its place is empty for one: 8 requests keep 8 · 10 tokens in 11
    # steps of 10 ms and with 8 prompts. One that costs less than nothing costs nothing.
    found = workload(((1, 8, 0),), (1, 8), FLAT, added)
    expected = (11 * 10.0 + 8 * max(added, 0.0)) / 80
    assert found.served(found.model.settings)[7] == pytest.approx(expected, rel=1e-3)


def test_closed_loop_of_length_1_drafts_for_old_requests_only() -> None:
    # n = 8 · 1.5 / 11.5 requests end in a step, as many are new in it and have no draft, as many are missing.
    found = workload(((1, 8, 1),), (1, 8), FLAT)
    ending = 8 * 1.5 / 11.5
    tokens = (8 - ending) + (8 - 2 * ending) * 0.5
    assert found.served(found.model.settings)[7] == pytest.approx((11 + 30 * ending) / tokens, rel=1e-2)


def test_drafts_of_a_full_loop_meet_a_batch_with_fewer_requests() -> None:
    # 8 requests are fast with one draft, 7 and fewer are not: what 8 drafted is verified by 7 in every second
    # step, and by 8 with a prompt after that. A step takes long in about as many cases as requests end.
    sizes = tuple(range(1, 9))
    slow = ((10.0,) * 8, (100.0,) * 7 + (11.0,))
    found = workload(((1, 7, 0), (8, 8, 1)), sizes, slow, 0.0)
    alone = 11.0 / (8 * 1.5)
    assert found.served(found.model.settings)[7] > 2.5 * alone
    assert found.served(found.model.settings, prompts=False)[7] == pytest.approx(alone)


def test_batch_size_switches_to_a_length_of_the_table_that_is_over_two_percent_better() -> None:
    # At two requests K=1 takes 24 / 3 ms a token, K=0 12 / 2; at one 11 / 1.5 against 10.
    found = workload(((1, 1, 0), (2, 2, 1)))
    served = found.served(found.model.settings, prompts=False)
    assert served.tolist() == pytest.approx([11 / 1.5, 6.0])


def test_other_settings_move_a_batch_size_where_they_make_another_length_of_the_table_faster() -> None:
    # With the default sizes 4 requests have no full graph for two drafts, with sizes for them they do.
    table: documents.Table = ((1, 3, 2), (4, 256, 1))
    model = CostModel.from_profile(h200.live_profile(), h200.fingerprint())
    found = Workload.of(model, h200.live_profile(), h200.acceptance(), table, 256, 500)
    aligned = replace(model.settings, capture_sizes=graphs.aligned_capture_sizes((0, 1, 2, 3), 252, 1024))
    kept, two = 1 + 0.76 + 0.56, 1 + 0.76
    before = found.served(model.settings, prompts=False)[3] * 4 * two
    after = found.served(aligned, prompts=False)[3] * 4 * kept
    assert before == pytest.approx(float(model.step_time(4, 1)))
    assert after == pytest.approx(float(model.under(aligned).step_time(4, 2)))


def test_length_outside_of_the_table_is_not_switched_to() -> None:
    found = workload(((1, 2, 0),))
    assert found.served(found.model.settings, prompts=False).tolist() == pytest.approx([10.0, 6.0])


def test_unmeasured_prompts_leave_a_gain_unknown() -> None:
    found = workload(((1, 2, 0),), added=None)
    fewer = replace(found.model.settings, max_num_seqs=1)
    assert found.gain(fewer) is None
    assert found.gain(fewer, prompts=False) is not None


def test_gain_is_the_geometric_mean_over_the_grid() -> None:
    found = workload(((1, 2, 0),))
    # At two requests one at once: the time per token is that of one; nothing changes at one.
    one, two = found.served(found.model.settings).tolist()
    fewer = replace(found.model.settings, max_num_seqs=1)
    assert one > two
    assert found.gain(fewer) == pytest.approx((two / one) ** 0.5 - 1)
    assert found.gain(found.model.settings, over=fewer) == pytest.approx((one / two) ** 0.5 - 1)
    assert not found.pays(fewer, over=found.model.settings)
    assert found.pays(fewer, over=found.model.settings, least=-0.5)


def test_settings_without_any_price_are_not_spoken_against() -> None:
    model = CostModel.from_profile(h200.steps_profile(), h200.steps_fingerprint())
    found = Workload.of(model, h200.steps_profile(), h200.acceptance(), ((1, 256, 0),), 256, 500)
    # At K=0 the gap is unpriced here.
    assert found.pays(replace(model.settings, capture_sizes=(8,)), over=model.settings)


def test_grid_sizes_count_alike_and_stand_for_their_surroundings() -> None:
    # Of 1, 2 and 6: batch sizes 3 and 4 are nearest to 2 (4 is as near to 6), 5 to 8 to 6.
    found = workload(((1, 8, 0),), (1, 2, 6), ((10.0, 12.0, 14.0), (11.0, 24.0, 30.0)))
    assert found.weights.tolist() == pytest.approx([1 / 3] + [1 / 9] * 3 + [1 / 12] * 4)
    assert np.sum(found.weights) == pytest.approx(1.0)


def test_gap_counts_by_its_share_of_the_batch_sizes_around() -> None:
    # Between 3 and 6 (nearest to 4) K=2 has a full graph at 3 and 6 and none at 4 and 5.
    gap = graphs.batch_sizes_without_full_graph(
        graphs.GraphSettings(
            "V2", "FULL_AND_PIECEWISE", graphs.default_capture_sizes(1024), 256, (0, 1, 2, 3)
        )
    )
    assert {4, 5} <= set(gap[2])
    assert not {3, 6} & set(gap[2])
    model = CostModel.from_profile(h200.live_profile(), h200.fingerprint())
    found = Workload.of(model, h200.live_profile(), h200.acceptance(), ((1, 256, 2),), 256, 500)
    times = found.served(model.settings, prompts=False) * np.arange(1, 257)
    assert times[[3, 4]].min() > 2 * times[[2, 5]].max()
