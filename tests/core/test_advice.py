from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import advice, documents, graphs, predictions, tables
from tabletune.costs import CostModel
from tabletune.documents import EngineAdvice, EngineChange, Graph
from tests.core import h200

ALWAYS_TWO: documents.Table = ((1, 256, 2),)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def advise(
    profile: documents.Profile | None = None,
    table: documents.Table | None = None,
    prompt_tokens: int = h200.PROMPT_TOKENS,
    output_tokens: int = h200.OUTPUT_TOKENS,
    **changes: Any,
) -> EngineAdvice:
    """Advice for the live file's engine; its own best table where none is given."""
    profile = profile or h200.live_profile()
    fingerprint = h200.fingerprint(**changes)
    acceptance = h200.acceptance((0.76, 0.56, 0.42, 0.31, 0.23))
    if table is None:
        times = CostModel.from_profile(profile, fingerprint).step_times(fingerprint.max_num_seqs)
        goodput = predictions.goodput(times, acceptance, profile.draft_lengths)
        table = tables.compute(goodput, profile.draft_lengths, documents.Control())
    return advice.advise(fingerprint, profile, acceptance, table, prompt_tokens, output_tokens)


def change(found: EngineAdvice, setting: str) -> EngineChange:
    return {one.setting: one for one in found.changes}[setting]


def settings_changed(found: EngineAdvice) -> list[str]:
    return [one.setting for one in found.changes]


def test_cpu_gets_no_graph_advice() -> None:
    found = advise(gpu_count=0, cudagraph_mode="NONE", cudagraph_capture_sizes=())
    assert "CPU" in found.reason
    assert found == EngineAdvice(prompt_tokens=256, output_tokens=500, reason=found.reason)


def test_batch_sizes_without_a_full_graph_are_named() -> None:
    found = {one.draft_length: one.batch_sizes for one in advise().without_full_graph}
    # ENGINE.md 2: 34, 17, 136 and none.
    assert {length: len(sizes) for length, sizes in found.items()} == {0: 34, 1: 17, 2: 136}
    assert 4 in found[2]


def test_advised_sizes_close_the_gap() -> None:
    found = advise()
    assert found.max_num_seqs is not None
    engine = graphs.GraphSettings(
        "V2", "FULL_AND_PIECEWISE", found.cudagraph_capture_sizes, found.max_num_seqs, (0, 1, 2, 3)
    )
    assert not any(graphs.batch_sizes_without_full_graph(engine).values())
    assert json.loads(change(found, "cudagraph_capture_sizes").recommended) == list(
        found.cudagraph_capture_sizes
    )


def test_closing_the_gap_gains_what_the_gap_costs() -> None:
    # At K=2 half of all batch sizes run piecewise, 11 ms above 4 to 20; a table that stays at 2 gains a lot,
    # the best table, which steps around the gap, next to nothing.
    stuck = change(advise(table=ALWAYS_TWO), "cudagraph_capture_sizes")
    around = change(advise(), "cudagraph_capture_sizes")
    assert stuck.predicted_gain is not None
    assert around.predicted_gain is not None
    assert stuck.predicted_gain > 0.25
    assert -0.01 < around.predicted_gain < 0.02
    assert "11.0 ms slower" in stuck.reason or "11.1 ms slower" in stuck.reason


def test_gap_costs_less_where_prompts_cost_more() -> None:
    long_outputs = change(advise(table=ALWAYS_TWO, output_tokens=5000), "cudagraph_capture_sizes")
    short_outputs = change(advise(table=ALWAYS_TWO, output_tokens=50), "cudagraph_capture_sizes")
    assert long_outputs.predicted_gain is not None
    assert short_outputs.predicted_gain is not None
    assert long_outputs.predicted_gain > 1.5 * short_outputs.predicted_gain > 0


def test_mismatched_drafters_are_warned_of_where_the_method_has_them() -> None:
    told = "captured for more requests"
    assert told in change(advise(), "cudagraph_capture_sizes").reason
    assert told not in change(advise(drafter_method="ngram"), "cudagraph_capture_sizes").reason


def test_largest_size_holds_the_grid_and_the_prompt() -> None:
    # 256 requests with 4 tokens are 1,024, a prompt of 256 on top 1,280: such steps had no graph and cost
    # 26 ms more, where piecewise ones cost 11 to 15.
    found = advise()
    assert found.max_cudagraph_capture_size == 1280 == max(found.cudagraph_capture_sizes)
    largest = change(found, "max_cudagraph_capture_size")
    assert (largest.current, largest.recommended) == ("1024", "1280")
    assert largest.predicted_gain is not None
    # A table of all lengths avoids such steps; one that knows no other than 3 cannot.
    assert 0.0 < largest.predicted_gain < 0.1
    stuck = change(advise(table=((1, 256, 3),)), "max_cudagraph_capture_size")
    assert stuck.predicted_gain is not None
    assert stuck.predicted_gain > 4 * largest.predicted_gain
    assert re.search(r"It gains most with (19|2\d)\d requests open, \+3\d%", stuck.reason)


def test_largest_size_is_bounded_by_the_tokens_of_a_step() -> None:
    assert advise(max_num_batched_tokens=1100).max_cudagraph_capture_size == 1100


def test_long_prompts_do_not_size_the_graphs() -> None:
    found = advise(prompt_tokens=4000, table=ALWAYS_TWO)
    assert found.max_cudagraph_capture_size == 1024


def test_decode_steps_beyond_the_largest_size_are_named() -> None:
    # Captured up to 512: K=3 ends at 128 requests, K=2 at 170; K=4 and 5 sooner.
    profile = h200.steps_profile()
    found = advise(profile, ((1, 256, 3),), cudagraph_capture_sizes=graphs.default_capture_sizes(512))
    largest = change(found, "max_cudagraph_capture_size")
    assert "171 requests at length 2, 129 requests at length 3" in largest.reason
    # No prompt was measured with that engine, so only decode steps can be told.
    assert largest.predicted_gain is None
    assert found.predicted_gain is None


def test_max_num_seqs_gives_up_four_of_256_requests_and_says_so() -> None:
    found = advise()
    assert found.max_num_seqs == 252
    rounded = change(found, "max_num_seqs")
    assert "gives up 4 of 256 requests (1.6%)" in rounded.reason
    assert rounded.predicted_gain is not None
    assert -0.01 < rounded.predicted_gain < 0.001


def test_max_num_seqs_never_loses_much() -> None:
    # 200 would have to fall to 192 (4%), so it stays and the sizes end in single steps instead.
    found = advise(max_num_seqs=200, table=((1, 200, 2),))
    assert found.max_num_seqs is None
    engine = graphs.GraphSettings(
        "V2", "FULL_AND_PIECEWISE", found.cudagraph_capture_sizes, 200, (0, 1, 2, 3)
    )
    assert not any(graphs.batch_sizes_without_full_graph(engine).values())


def test_overall_gain_is_that_of_the_settings_together() -> None:
    # The gap is at K=2, and K=3 has steps with a prompt beyond the largest size.
    found = advise(table=((1, 128, 2), (129, 256, 3)))
    sizes, largest = (
        change(found, name) for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size")
    )
    assert found.predicted_gain is not None
    assert sizes.predicted_gain is not None
    assert largest.predicted_gain is not None
    # Each makes room for what the other leaves: sizes for K=2 up to 1,024 tokens, then for K=3 with prompts.
    assert found.predicted_gain > max(sizes.predicted_gain, largest.predicted_gain)
    both = (1 + sizes.predicted_gain) * (1 + largest.predicted_gain) - 1
    assert found.predicted_gain == pytest.approx(both, abs=0.03)


def test_without_measured_prompts_no_gain_is_named_but_what_to_measure() -> None:
    found = advise(h200.live_profile(with_prompts=False), ALWAYS_TWO)
    assert found.predicted_gain is None
    assert all(one.predicted_gain is None for one in found.changes)
    assert "profile mixed steps with a prompt of 256 tokens" in found.reason
    assert "Decode steps alone gain" in change(found, "cudagraph_capture_sizes").reason


def test_without_a_piecewise_cell_no_gain_is_named_but_what_to_measure() -> None:
    profile = h200.live_profile()
    kinds = [[Graph.FULL] * len(profile.batch_sizes)] * 4
    times = [list(row) for row in profile.step_time_ms]
    times[2][profile.batch_sizes.index(4)] = None
    profile = h200.profile(profile.batch_sizes, profile.draft_lengths, times, kinds, profile.mixed)
    found = advise(profile, ALWAYS_TWO)
    assert found.predicted_gain is None
    assert "Some kind of graph that steps run was measured in no cell: profile batch sizes" in found.reason
    assert "how much slower was not measured" in change(found, "cudagraph_capture_sizes").reason


def test_mode_full_is_an_experiment_with_a_bound() -> None:
    found = advise()
    assert found.cudagraph_mode is None
    mode = change(found, "cudagraph_mode")
    assert (mode.current, mode.recommended, mode.predicted_gain) == ("FULL_AND_PIECEWISE", "FULL", None)
    assert "worth at most +" in mode.reason
    assert "cudagraph_mode FULL" in mode.reason


def test_bound_of_mode_full_holds_what_the_engine_gained() -> None:
    # ENGINE.md 1: full graphs for mixed steps gained 12 to 20% at 8 and 64 open requests.
    reason = change(advise(), "cudagraph_mode").reason
    assert 10 < float(reason.split("at most +")[1].split("%")[0]) < 60
    assert 20 < float(reason.split("requests open, +")[1].split("%")[0]) < 60


def test_bound_of_mode_full_needs_no_pure_step_that_ran_piecewise() -> None:
    # Every pure step of an advised engine has a full graph, and what piecewise costs only prompts tell.
    stored = documents.parse((RESULTS / "off-h200-eagle3-document.json").read_bytes())
    found = advice.advise(stored.fingerprint, stored.profile, stored.acceptance, stored.table, 256, 500)
    reason = change(found, "cudagraph_mode").reason
    assert "worth at most +" in reason
    # Later the same day the engine gained 28 +- 6% with 64 requests open (benchmarks/results/gpu).
    assert float(reason.split("requests open, +")[1].split("%")[0]) > 28


@pytest.mark.parametrize("prompt_tokens", [16, 64, 256])
@pytest.mark.parametrize("output_tokens", [4, 64, 256])
@pytest.mark.parametrize("draft_length", [0, 3])
def test_bound_of_mode_full_is_one_also_where_several_prompts_share_a_step(
    prompt_tokens: int, output_tokens: int, draft_length: int
) -> None:
    # With short outputs most steps of a large batch have many prompts, whose tokens piecewise shares out.
    found = advise(None, ((1, 256, draft_length),), prompt_tokens, output_tokens)
    told = re.search(r"at most (\S+)% here, and most with \d+ requests open, (\S+)%", str(found.changes))
    assert told is not None
    assert 0 <= float(told[1]) <= float(told[2])


def test_mode_full_is_not_proposed_where_prompts_find_no_graph_at_all() -> None:
    # On an H200 it lost 3 to 8% with prompts above the largest capture size.
    assert "cudagraph_mode" not in settings_changed(advise(prompt_tokens=2_048))


def test_mode_full_is_not_proposed_where_prompts_are_rare() -> None:
    assert "cudagraph_mode" not in settings_changed(advise(output_tokens=1_000_000))


@pytest.mark.parametrize(
    ("changes", "setting", "recommended"),
    [
        ({"cudagraph_mode": "NONE", "cudagraph_capture_sizes": ()}, "cudagraph_mode", "FULL_AND_PIECEWISE"),
        ({"cudagraph_mode": "PIECEWISE"}, "cudagraph_mode", "FULL_AND_PIECEWISE"),
        ({"cudagraph_mode": "FULL_DECODE_ONLY"}, "cudagraph_mode", "FULL_AND_PIECEWISE"),
        ({"runner": "V1", "cudagraph_mode": "PIECEWISE"}, "VLLM_USE_V2_MODEL_RUNNER", "1"),
    ],
)
def test_other_modes_and_runners_are_experiments(
    changes: dict[str, Any], setting: str, recommended: str
) -> None:
    found = change(advise(table=((1, 256, 3),), **changes), setting)
    assert (found.recommended, found.predicted_gain) == (recommended, None)
    assert "Not measured" in found.reason


def test_engine_that_suits_the_table_is_left_alone() -> None:
    found = advise(
        cudagraph_mode="FULL", cudagraph_capture_sizes=graphs.default_capture_sizes(1280), table=ALWAYS_TWO
    )
    assert found.changes == ()
    assert found.predicted_gain is None
    assert found.reason == "Every step of the table finds the graph that suits it."


def test_too_many_aligned_sizes_are_not_advised_but_fewer_lengths() -> None:
    # Lengths 0 to 7 align at 840 tokens; 0, 1, 3 and 7 at 8, which vLLM's own sizes suit.
    batch_sizes = [1, 3, 9, 64, 256]
    engine = graphs.GraphSettings(
        "V2", "FULL_AND_PIECEWISE", graphs.default_capture_sizes(2048), 256, tuple(range(8))
    )
    kinds = [[graphs.dispatch(engine, size, length).kind for size in batch_sizes] for length in range(8)]
    costs = {Graph.FULL: 5.0, Graph.PIECEWISE: 16.0, Graph.NONE: 40.0}
    times = [[costs[kind] + size / 50 for kind, size in zip(row, batch_sizes, strict=True)] for row in kinds]
    found = advice.advise(
        h200.fingerprint(cudagraph_capture_sizes=engine.capture_sizes),
        h200.profile(batch_sizes, range(8), times, kinds),
        h200.acceptance((0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)),
        ((1, 256, 3),),
        256,
        500,
    )
    assert found.cudagraph_capture_sizes == ()
    assert "multiples of 840" in found.reason
    assert "[0, 1, 3, 7] alone have no gap" in found.reason


def test_advice_fits_a_document() -> None:
    found = advise()
    again = documents.parse_as(EngineAdvice, documents.dump(found))
    assert again == found


@settings(max_examples=25)
@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from(list(graphs.DECODE_AND_MIXED)),
    st.sampled_from(["V1", "V2"]),
    st.sampled_from([16, 512, 1024, 2048]),
    st.integers(0, 3),
)
def test_any_engine_gets_settings_that_vllm_accepts(
    prompt_tokens: int, output_tokens: int, mode: str, runner: str, largest: int, draft_length: int
) -> None:
    found = advise(
        table=((1, 256, draft_length),),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cudagraph_mode=mode,
        runner=runner,
        cudagraph_capture_sizes=() if mode == "NONE" else graphs.default_capture_sizes(largest),
    )
    sizes = found.cudagraph_capture_sizes
    assert list(sizes) == sorted(set(sizes))
    assert found.max_cudagraph_capture_size == (sizes[-1] if sizes else None)
    assert all(largest <= sizes[-1] <= 8192 for _ in sizes[:1])
    assert found.max_num_seqs is None or found.max_num_seqs >= 0.98 * 256
    assert len(sizes) <= max(advice.MAX_CAPTURE_SIZES, len(graphs.default_capture_sizes(2048)) + 1)
