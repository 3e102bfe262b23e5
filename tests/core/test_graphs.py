from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import graphs
from tabletune.documents import Graph
from tabletune.graphs import GraphSettings, StepGraph
from tests.core import h200

DEFAULT_1024 = graphs.default_capture_sizes(1024)


def graph_settings(**changes: Any) -> GraphSettings:
    fields: dict[str, Any] = {
        "runner": "V2",
        "mode": "FULL_AND_PIECEWISE",
        "capture_sizes": DEFAULT_1024,
        "max_num_seqs": 256,
        "draft_lengths": (0, 1, 2, 3),
    }
    return GraphSettings(**fields | changes)


def counts(batch_sizes: dict[int, tuple[int, ...]]) -> dict[int, int]:
    return {draft_length: len(sizes) for draft_length, sizes in batch_sizes.items()}


lengths = st.sets(st.integers(0, 7), min_size=1, max_size=4).map(lambda found: tuple(sorted(found)))
any_settings = st.builds(
    GraphSettings,
    runner=st.sampled_from(["V1", "V2"]),
    mode=st.sampled_from(list(graphs.DECODE_AND_MIXED)),
    capture_sizes=st.sets(st.integers(1, 120), max_size=25).map(lambda found: tuple(sorted(found))),
    max_num_seqs=st.integers(1, 60),
    draft_lengths=lengths,
)


def reference(engine: GraphSettings, batch_size: int, draft_length: int, prompt_tokens: int) -> StepGraph:
    """The same dispatch, step by step as vLLM does it: lists of candidates for each token count."""
    decode, mixed = graphs.DECODE_AND_MIXED[engine.mode]
    if engine.runner == "V1" and decode is Graph.FULL:
        decode = mixed = Graph.PIECEWISE
    captured: dict[Graph, list[tuple[int, float, int | None]]] = {Graph.FULL: [], Graph.PIECEWISE: []}
    for size in engine.capture_sizes:
        if decode is not mixed:
            for query in [length + 1 for length in engine.draft_lengths]:
                tokens = (size + query - 1) // query * query
                within = tokens <= max(engine.capture_sizes) and tokens // query <= engine.max_num_seqs
                if within and (tokens, tokens // query, query) not in captured[decode]:
                    captured[decode].append((tokens, tokens // query, query))
        if mixed is not Graph.NONE:
            requests = min(size, engine.max_num_seqs) if mixed is Graph.FULL else float("inf")
            captured[mixed].append((size, requests, None))
    candidates: dict[int, list[tuple[Graph, tuple[int, float, int | None]]]] = {}
    for kind, graphs_of_kind in captured.items():
        start = 0
        for tokens, group in groupby(sorted(graphs_of_kind, key=lambda one: one[0]), lambda one: one[0]):
            together = [(kind, one) for one in group]
            for count in range(start, tokens + 1):
                candidates.setdefault(count, []).extend(together)
            start = tokens + 1
    tokens = batch_size * (draft_length + 1) + prompt_tokens
    uniform = None if prompt_tokens else draft_length + 1
    for kind, (held, most_requests, wanted) in candidates.get(tokens, []):
        if most_requests >= batch_size and held >= tokens and wanted in (None, uniform):
            return StepGraph(kind, held)
    return StepGraph(Graph.NONE, tokens)


@settings(max_examples=150)
@given(any_settings, st.integers(0, 8), st.sampled_from([0, 1, 17]))
def test_dispatch_is_that_of_a_walk_through_vllms_candidates(
    engine: GraphSettings, draft_length: int, prompt_tokens: int
) -> None:
    batch_sizes = np.arange(1, engine.max_num_seqs + 1)
    found = graphs.dispatch_batches(engine, batch_sizes, draft_length, prompt_tokens)
    for index, batch_size in enumerate(batch_sizes.tolist()):
        expected = reference(engine, batch_size, draft_length, prompt_tokens)
        assert graphs.KINDS[found.kinds[index]] is expected.kind
        assert found.padded_tokens[index] == expected.padded_tokens
        assert graphs.dispatch(engine, batch_size, draft_length, prompt_tokens) == expected


def test_default_sizes_leave_the_gap_that_was_counted_on_the_engine() -> None:
    # ENGINE.md 2: a simulation with these counts told the graph of all 30,899 logged steps.
    found = graphs.batch_sizes_without_full_graph(graph_settings())
    assert counts(found) == {0: 34, 1: 17, 2: 136, 3: 0}


def test_multiples_of_twelve_leave_no_gap_up_to_length_three() -> None:
    engine = graph_settings(capture_sizes=tuple(range(12, 1009, 12)), max_num_seqs=252)
    assert counts(graphs.batch_sizes_without_full_graph(engine)) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_multiples_of_sixty_leave_no_gap_up_to_length_five() -> None:
    engine = graph_settings(
        capture_sizes=tuple(range(60, 1441, 60)), max_num_seqs=240, draft_lengths=tuple(range(6))
    )
    assert set(counts(graphs.batch_sizes_without_full_graph(engine)).values()) == {0}


def test_gap_is_what_no_full_graph_is_found_for_although_it_would_fit() -> None:
    # With 512 tokens as the largest size, more than 128 requests at K=3 are beyond the limit, not in the gap.
    found = graphs.gap(graph_settings())
    assert counts(found) == {0: 34, 1: 17, 2: 136}
    beyond = graphs.gap(graph_settings(capture_sizes=graphs.default_capture_sizes(512)))
    assert all(size * (length + 1) <= 512 for length, sizes in beyond.items() for size in sizes)
    assert 3 not in beyond


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL"])
def test_modes_without_graphs_of_one_length_have_no_gap(mode: str) -> None:
    assert graphs.gap(graph_settings(mode=mode)) == {}


def test_token_count_filed_under_another_length_runs_piecewise() -> None:
    # 4 requests with 3 tokens: 12. Sizes 8 and 16 make graphs of 9 and 18 tokens for 3 tokens each, but 16
    # is a graph of the lengths with 1, 2 and 4 tokens each, and 12 is filed there.
    assert graphs.dispatch(graph_settings(), 4, 2) == StepGraph(Graph.PIECEWISE, 16)
    assert graphs.dispatch(graph_settings(), 3, 2) == StepGraph(Graph.FULL, 9)


def test_step_runs_the_graph_captured_for_the_next_size() -> None:
    # 33 requests with 4 tokens: 132, captured are 128 and 136.
    assert graphs.dispatch(graph_settings(), 33, 3) == StepGraph(Graph.FULL, 136)


def test_step_beyond_the_largest_size_has_no_graph_and_no_padding() -> None:
    engine = graph_settings(capture_sizes=graphs.default_capture_sizes(512))
    assert graphs.dispatch(engine, 128, 3) == StepGraph(Graph.FULL, 512)
    assert graphs.dispatch(engine, 129, 3) == StepGraph(Graph.NONE, 516)


def test_graph_for_more_requests_than_allowed_is_not_captured() -> None:
    # Of size 8 one token each would be 8 requests, above 5; two tokens each are 4 requests.
    engine = graph_settings(capture_sizes=(8,), max_num_seqs=5, draft_lengths=(0, 1))
    assert graphs.dispatch(engine, 4, 1) == StepGraph(Graph.FULL, 8)
    assert graphs.dispatch(engine, 5, 0) == StepGraph(Graph.PIECEWISE, 8)


def test_length_that_the_table_does_not_name_has_no_full_graph() -> None:
    engine = graph_settings(draft_lengths=(0, 1, 3))
    assert graphs.dispatch(engine, 8, 2).kind is Graph.PIECEWISE
    assert graphs.dispatch(engine, 8, 3).kind is Graph.FULL


def test_step_with_a_prompt_runs_piecewise() -> None:
    # 8 requests with 4 tokens and 256 of the prompt: 288.
    assert graphs.dispatch(graph_settings(), 8, 3, prompt_tokens=256) == StepGraph(Graph.PIECEWISE, 288)
    assert graphs.dispatch(graph_settings(), 256, 3, prompt_tokens=256) == StepGraph(Graph.NONE, 1280)


@pytest.mark.parametrize(
    ("mode", "pure", "in_the_gap", "mixed"),
    [
        ("NONE", Graph.NONE, Graph.NONE, Graph.NONE),
        ("PIECEWISE", Graph.PIECEWISE, Graph.PIECEWISE, Graph.PIECEWISE),
        ("FULL", Graph.FULL, Graph.FULL, Graph.FULL),
        ("FULL_DECODE_ONLY", Graph.FULL, Graph.NONE, Graph.NONE),
        ("FULL_AND_PIECEWISE", Graph.FULL, Graph.PIECEWISE, Graph.PIECEWISE),
    ],
)
def test_mode_decides_the_kinds(mode: str, pure: Graph, in_the_gap: Graph, mixed: Graph) -> None:
    engine = graph_settings(mode=mode)
    assert graphs.dispatch(engine, 3, 2).kind is pure
    assert graphs.dispatch(engine, 4, 2).kind is in_the_gap
    assert graphs.dispatch(engine, 4, 2, prompt_tokens=100).kind is mixed


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_v1_with_a_table_has_piecewise_graphs_only(mode: str) -> None:
    engine = graph_settings(runner="V1", mode=mode)
    assert engine.mode_with_table == "PIECEWISE"
    assert graphs.dispatch(engine, 8, 3) == StepGraph(Graph.PIECEWISE, 32)


def test_v1_without_graphs_stays_without() -> None:
    assert graph_settings(runner="V1", mode="NONE").mode_with_table == "NONE"


def test_prompt_at_max_num_seqs_takes_the_place_of_a_request() -> None:
    engine = graph_settings(mode="FULL", max_num_seqs=8)
    assert graphs.dispatch(engine, 8, 0, prompt_tokens=8) == StepGraph(Graph.FULL, 16)


def test_gap_beyond_the_largest_size_is_every_batch_size() -> None:
    engine = graph_settings(capture_sizes=graphs.default_capture_sizes(512))
    found = graphs.batch_sizes_without_full_graph(engine)
    assert found[3] == tuple(range(129, 257))


def test_default_grid_is_vllms() -> None:
    assert graphs.default_capture_sizes(3) == (1, 2)
    assert graphs.default_capture_sizes(20) == (1, 2, 4, 8, 16)
    # 1, 2, 4; 8 to 248 by 8: 31; 256 to 1024 by 16: 49
    assert len(DEFAULT_1024) == 3 + 31 + 49
    assert DEFAULT_1024[-2:] == (1008, 1024)


def test_mismatches_are_at_the_lengths_at_which_engines_died() -> None:
    # ENGINE.md 3: at K=0 and K=1, never above. 9 requests at K=0 are padded to 16, where there is a full
    # graph for 16 requests; at K=2 the padded count is a multiple of 8 that lacks 3 tokens each.
    found = graphs.mismatched_batch_sizes(graph_settings())
    gap = graphs.batch_sizes_without_full_graph(graph_settings())
    assert counts(found) == {0: 34, 1: 17, 2: 0, 3: 0}
    assert (found[0], found[1]) == (gap[0], gap[1])


@settings(max_examples=60)
@given(any_settings)
def test_mismatch_is_where_the_drafter_finds_a_full_graph_for_the_padded_count(engine: GraphSettings) -> None:
    found = graphs.mismatched_batch_sizes(engine)
    for draft_length in engine.draft_lengths:
        for batch_size in range(1, engine.max_num_seqs + 1):
            target = reference(engine, batch_size, draft_length, 0)
            uniform = reference_for_tokens(engine, batch_size, draft_length, target.padded_tokens)
            assert (batch_size in found[draft_length]) == (
                target.kind is not Graph.FULL and uniform is Graph.FULL
            )


def reference_for_tokens(engine: GraphSettings, batch_size: int, draft_length: int, tokens: int) -> Graph:
    """What the drafter finds: as many requests, but the tokens after the target's padding."""
    full: dict[int, set[int]] = {}
    for size in engine.capture_sizes:
        for length in engine.draft_lengths:
            rounded = -(-size // (length + 1)) * (length + 1)
            if rounded <= max(engine.capture_sizes) and rounded // (length + 1) <= engine.max_num_seqs:
                full.setdefault(rounded, set()).add(length)
    if engine.mode_with_table not in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        return reference(engine, batch_size, draft_length, 0).kind
    group = min((held for held in full if held >= tokens), default=None)
    return Graph.FULL if group is not None and draft_length in full[group] else Graph.NONE


@settings(max_examples=150)
@given(lengths, st.integers(1, 300), st.integers(1, 1500))
def test_aligned_sizes_leave_no_gap(
    draft_lengths: tuple[int, ...], max_num_seqs: int, largest_tokens: int
) -> None:
    sizes = graphs.aligned_capture_sizes(draft_lengths, max_num_seqs, largest_tokens)
    engine = graph_settings(capture_sizes=sizes, max_num_seqs=max_num_seqs, draft_lengths=draft_lengths)
    assert sizes[-1] == largest_tokens
    for draft_length, without in graphs.batch_sizes_without_full_graph(engine).items():
        assert all(batch_size * (draft_length + 1) > largest_tokens for batch_size in without)
    assert not any(graphs.mismatched_batch_sizes(engine).values())


def test_aligned_sizes_do_not_pad_small_batches() -> None:
    sizes = graphs.aligned_capture_sizes((0, 1, 2, 3), 256, 1024)
    engine = graph_settings(capture_sizes=sizes)
    for batch_size in (1, 2, 3):
        assert graphs.dispatch(engine, batch_size, 0) == StepGraph(Graph.FULL, batch_size)
        assert graphs.dispatch(engine, batch_size, 2) == StepGraph(Graph.FULL, 3 * batch_size)


def test_aligned_sizes_are_about_as_many_as_vllms() -> None:
    # 348 graphs against 315; 252 requests need no single sizes where lengths end, 306.
    aligned = graph_settings(capture_sizes=graphs.aligned_capture_sizes((0, 1, 2, 3), 256, 1024))
    rounded = graph_settings(
        capture_sizes=graphs.aligned_capture_sizes((0, 1, 2, 3), 252, 1008), max_num_seqs=252
    )
    assert graphs.captured_graphs(graph_settings()) == 315
    assert graphs.captured_graphs(rounded) < 315 < graphs.captured_graphs(aligned) < 350


def test_aligned_sizes_pad_large_steps_by_three_percent_at_most() -> None:
    sizes = np.array(graphs.aligned_capture_sizes((0, 1, 2, 3), 1020, 4080))
    steps = np.diff(sizes)
    assert np.all(steps[sizes[:-1] >= 384] <= sizes[:-1][sizes[:-1] >= 384] / 32)
    assert np.all(sizes[sizes > 12] % 12 == 0)


@pytest.mark.parametrize(
    ("draft_lengths", "max_num_seqs", "expected"),
    [
        ((0, 1, 2, 3), 256, 252),
        (tuple(range(6)), 256, 240),
        ((0, 1, 3), 256, 256),
        ((1, 3), 255, 254),  # 4 divides 2 · 254 and 4 · 254
        ((0, 1, 2, 3), 8, 8),  # no multiple of 12
    ],
)
def test_max_num_seqs_is_rounded_down_to_an_aligned_one(
    draft_lengths: tuple[int, ...], max_num_seqs: int, expected: int
) -> None:
    assert graphs.aligned_max_num_seqs(draft_lengths, max_num_seqs) == expected


def test_grid_without_a_kind_gets_a_batch_size_of_it() -> None:
    # At K=0 the gap is missed by powers of two, at K=2 it is met by 4.
    grid = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    gap = graphs.batch_sizes_without_full_graph(graph_settings())
    added = graphs.batch_sizes_to_add(graph_settings(), grid, {})
    assert set(added) & set(gap[0])
    assert set(added) & set(gap[1])
    assert graphs.batch_sizes_to_add(graph_settings(), sorted({*grid, *added}), {}) == ()


def test_settings_come_from_the_fingerprint() -> None:
    engine = GraphSettings.from_fingerprint(h200.fingerprint(), [3, 1, 0])
    assert engine == graph_settings(draft_lengths=(0, 1, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capture_sizes": (8, 4)}, "capture_sizes is"),
        ({"capture_sizes": (0, 4)}, "capture_sizes is"),
        ({"draft_lengths": (1, 1)}, "draft_lengths is"),
        ({"draft_lengths": ()}, "draft_lengths is empty"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ],
)
def test_settings_of_no_engine_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(graphs.GraphSettingsError, match=message):
        graph_settings(**changes)


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", list(graphs.DECODE_AND_MIXED))
@pytest.mark.parametrize(
    ("sizes", "max_num_seqs", "draft_lengths"),
    [
        (DEFAULT_1024, 256, (0, 1, 2, 3)),
        (graphs.default_capture_sizes(512), 256, (0, 1, 2, 3, 4, 5)),
        (graphs.aligned_capture_sizes((0, 1, 2, 3), 256, 1280), 256, (0, 1, 2, 3)),
        ((3, 7, 20, 45), 13, (0, 2, 5)),
    ],
)
def test_vllms_own_v2_manager_dispatches_alike(
    mode: str, sizes: tuple[int, ...], max_num_seqs: int, draft_lengths: tuple[int, ...]
) -> None:
    manager = vllm_manager(mode, sizes, max_num_seqs, draft_lengths)
    engine = graph_settings(
        mode=mode, capture_sizes=sizes, max_num_seqs=max_num_seqs, draft_lengths=draft_lengths
    )
    mismatched = graphs.mismatched_batch_sizes(engine)
    for draft_length in draft_lengths:
        for batch_size in range(1, max_num_seqs + 1):
            query = draft_length + 1
            theirs = manager.dispatch(batch_size, batch_size * query, query, 0, max_query_len=query)
            ours = graphs.dispatch(engine, batch_size, draft_length)
            assert (ours.kind.name, ours.padded_tokens) == (theirs.cg_mode.name, theirs.num_tokens)
            drafter = manager.dispatch(batch_size, theirs.num_tokens, query, 0)
            assert (batch_size in mismatched[draft_length]) == (
                (theirs.cg_mode.name, drafter.cg_mode.name) in {("PIECEWISE", "FULL"), ("NONE", "FULL")}
            )
            if batch_size < max_num_seqs:
                theirs = manager.dispatch(batch_size + 1, batch_size * query + 100, None, 0)
                ours = graphs.dispatch(engine, batch_size, draft_length, prompt_tokens=100)
                assert (ours.kind.name, ours.padded_tokens) == (theirs.cg_mode.name, theirs.num_tokens)


def vllm_manager(mode: str, sizes: tuple[int, ...], max_num_seqs: int, draft_lengths: tuple[int, ...]) -> Any:
    """vLLM's V2 manager as after capture, with what its candidates depend on and no engine or GPU."""
    pytest.importorskip("vllm")
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    longest = draft_lengths[-1]
    table = [(index, index, length) for index, length in enumerate(draft_lengths, start=1)]
    manager: Any = object.__new__(CudaGraphManager)
    manager.vllm_config = SimpleNamespace(
        num_speculative_tokens=longest,
        speculative_config=SimpleNamespace(
            uses_dynamic_speculative_decoding=lambda: True, num_speculative_tokens_per_batch_size=table
        ),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
    )
    manager.compilation_config = SimpleNamespace(
        cudagraph_capture_sizes=list(sizes), max_cudagraph_capture_size=max(sizes)
    )
    manager.cudagraph_mode = CUDAGraphMode[mode]
    manager.max_num_reqs = max_num_seqs
    manager.decode_query_len = longest + 1
    manager.varlen_decode = False
    manager.ubatch_runner = None
    manager.lora_capture_cases = [0]
    manager._lora_dispatch_map, manager._max_lora_case = manager._build_lora_dispatch_map()
    manager._candidates, manager._capture_descs = {}, {}
    manager._init_candidates()
    manager._graphs_captured = True
    return manager


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_vllms_own_v1_dispatcher_dispatches_alike() -> None:
    pytest.importorskip("vllm")
    from vllm.config import CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    compilation = SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.PIECEWISE,  # what vLLM makes of FULL_AND_PIECEWISE with a table
        cudagraph_capture_sizes=list(DEFAULT_1024),
        max_cudagraph_capture_size=1024,
        is_attention_compiled_piecewise=lambda: True,
        compile_sizes=[],
        mode=None,
        splitting_ops=None,
    )
    config: Any = SimpleNamespace(
        compilation_config=compilation,
        num_speculative_tokens=3,
        lora_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=300),
    )
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.PIECEWISE, 4)
    engine = graph_settings(runner="V1", max_num_seqs=300)
    for draft_length in range(4):
        for batch_size in range(1, 301):
            tokens = batch_size * (draft_length + 1)
            mode, batch = dispatcher.dispatch(tokens, uniform_decode=draft_length == 3)
            ours = graphs.dispatch(engine, batch_size, draft_length)
            assert (ours.kind.name, ours.padded_tokens) == (mode.name, batch.num_tokens)
