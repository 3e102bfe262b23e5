from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import graphs, hazards
from tabletune_profiler import planning
from tabletune_profiler.messages import Configured
from tabletune_profiler.planning import MixedCell, Options, Plan, PlanError
from tests.profiler import engines


def plan(seed: int = 0, engine: Configured | None = None, **options: Any) -> Plan:
    return planning.make(Options(**options), engine or engines.configured(max_num_seqs=64), seed)


def on_gpu(**changes: Any) -> Configured:
    """An H200 engine with vLLM's default capture sizes up to 1,024 tokens."""
    fields: dict[str, Any] = {
        "runner": "V2",
        "drafter_method": "eagle3",
        "max_num_seqs": 256,
        "max_model_len": 4_096,
        "draft_lengths": (0, 1, 2, 3),
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": graphs.default_capture_sizes(1_024),
    }
    return engines.configured(**fields | changes)


# Batch sizes


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (4, (1, 2, 3, 4)),
        (8, (1, 2, 3, 4, 6, 8)),
        (100, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100)),
    ],
)
def test_default_is_powers_and_half_powers_of_two_and_the_most(
    max_num_seqs: int, sizes: tuple[int, ...]
) -> None:
    assert planning.default_batch_sizes(max_num_seqs) == sizes
    assert plan(engine=engines.configured(max_num_seqs=max_num_seqs)).batch_sizes == sizes


def test_batch_sizes_without_a_full_graph_are_added() -> None:
    # Sizes up to 16 make full graphs of 1, 2, 4, 8 and 16 tokens for K=0, of 5 and 10 for K=4. So 5, 9 and 10
    # tokens are filed under graphs of K=4: as many requests at K=0 find none, and the grid has none of these
    # batch sizes. The middle one is added.
    engine = on_gpu(
        drafter_method="draft_model",
        draft_lengths=(0, 4),
        max_num_seqs=16,
        cudagraph_capture_sizes=(1, 2, 4, 8, 16),
    )
    assert plan(engine=engine).batch_sizes == (1, 2, 3, 4, 6, 8, 9, 12, 16)


def test_given_batch_sizes_are_kept_as_they_are() -> None:
    assert plan(engine=on_gpu(), batch_sizes=(8, 1, 8)).batch_sizes == (1, 8)


def test_batch_size_above_max_num_seqs_is_refused() -> None:
    with pytest.raises(PlanError, match=r"--batch-sizes has 65, above --max-num-seqs 64.*Lower the one or"):
        plan(batch_sizes=(1, 65))


# The order


def test_order_of_batch_sizes_and_lengths_is_shuffled() -> None:
    columns = plan().columns
    sizes = [column.batch_size for column in columns]
    assert sorted(sizes) == list(plan().batch_sizes)
    assert sizes != sorted(sizes)
    assert len({column.visits for column in columns}) > 1


def test_equal_seeds_give_equal_plans() -> None:
    assert plan(seed=3) == plan(seed=3)
    assert plan(seed=3) != plan(seed=4)


def test_each_cell_is_visited_there_and_back() -> None:
    # A steady drift then adds the same to each length: its two visits lie equally far from the middle.
    for column in plan(steps=24).columns:
        assert column.visits == column.visits[::-1]
        assert Counter(column.visits) == {0: 2, 1: 2, 2: 2}
    assert plan(steps=24).steps_per_visit == 12


# Hazards: ENGINE.md 3


def test_hazards_are_avoided_and_named() -> None:
    engine = on_gpu()
    found = plan(engine=engine, batch_sizes=(1, 4, 117))
    mismatched = hazards.mismatched(engine.fingerprint, engine.draft_lengths)
    expected = tuple((size, k) for k in (0, 1, 2, 3) for size in (1, 4, 117) if size in mismatched[k])
    assert (117, 1) in expected  # where an engine died on an H200
    assert found.avoided == expected
    for column in found.columns:
        assert not {(column.batch_size, length) for length in column.visits} & set(expected)
        assert {(column.batch_size, length) for length in column.visits} | {
            cell for cell in expected if cell[0] == column.batch_size
        } == {(column.batch_size, length) for length in (0, 1, 2, 3)}


def test_prompts_are_not_timed_at_hazards() -> None:
    engine = on_gpu()
    mismatched = hazards.mismatched(engine.fingerprint, engine.draft_lengths)
    hazardous = sorted(mismatched[0])[0]
    found = plan(engine=engine, batch_sizes=(1, hazardous, 64)).mixed
    assert {cell.batch_size for cell in found} == {1, 64}


# Mixed steps


def test_mixed_cells_are_a_small_a_middle_and_a_large_batch_off_and_longest() -> None:
    # 64 requests leave no place for the prompt's own.
    found = plan(batch_sizes=(1, 2, 8, 32, 64), mixed_prompt_tokens=(64, 2_000))
    assert found.mixed == tuple(MixedCell(size, length, 64) for size in (1, 8, 32) for length in (0, 2))


def test_no_mixed_cells_where_none_are_wanted_or_none_fit() -> None:
    assert plan(mixed=False).mixed == ()
    assert plan(batch_sizes=(64,)).mixed == ()


# The context


def test_requests_grow_to_both_sides_of_the_context_length() -> None:
    # 2 · (12 + 6) steps at each length, about 1, 1 and 2 tokens a step, and as many with speculation off:
    # 36 · (1 + 1 + 2 + 1) = 180.
    assert plan(context_length=256, steps=24).prompt_length == 256 - 180 // 2
    # Drafters that look into text are not timed with speculation off.
    varying = engines.configured(uniform_drafts=False)
    assert planning.make(Options(context_length=256, steps=24), varying).prompt_length == 256 - 144 // 2


@pytest.mark.parametrize("context_length", [15, 845])
def test_context_that_does_not_fit_is_refused_with_what_does(context_length: int) -> None:
    expected = (
        rf"--context-length {context_length} does not fit: with 180 tokens .* from 16 to 844"
        r" \(--max-model-len 1024\)"
    )
    with pytest.raises(PlanError, match=expected):
        plan(context_length=context_length, steps=24)
    assert plan(context_length=16, steps=24).prompt_length == 8
    assert plan(context_length=844, steps=24).context_length == 844


def test_context_not_given_is_what_the_usual_requests_have_on_average() -> None:
    # Prompts of 400 tokens and outputs of 101 have 400 tokens at first, 501 at last.
    assert plan(prompt_tokens=400, output_tokens=101).context_length == 400 + 101 // 2
    assert plan().context_length == 256 + 256 // 2
    # A context that is given is kept whatever the requests are like.
    assert plan(context_length=300, prompt_tokens=400, output_tokens=101).context_length == 300


def test_context_not_given_is_cut_to_what_the_models_length_holds() -> None:
    # 1,024 tokens less the 180 that requests grow by.
    found = plan(prompt_tokens=8_192, steps=24)
    assert (found.context_length, found.prompt_length) == (844, 844 - 180 // 2)


def test_model_shorter_than_its_requests_grow_is_profiled_halfway_to_its_end() -> None:
    engine = engines.configured(max_model_len=64)
    found = plan(engine=engine, steps=24)
    # From prompts of 8 tokens to 64, where requests end and new ones take their places.
    assert (found.context_length, found.prompt_length) == (36, 8)
    with pytest.raises(PlanError, match="--context-length 36 does not fit"):
        plan(engine=engine, steps=24, context_length=36)


def test_context_told_is_the_one_that_steps_are_timed_at() -> None:
    # Requests have 8 tokens at least and grow by 180: around 16 they cannot be timed.
    assert plan(context_length=16, steps=24).context_length == 8 + 180 // 2


@settings(max_examples=200)
@given(
    st.integers(16, 200_000),
    st.integers(1, 2**24),
    st.integers(1, 2**24),
    st.integers(4, 10_000),
    st.sets(st.integers(1, 8), max_size=4).map(lambda found: (0, *sorted(found))),
    st.booleans(),
)
def test_context_not_given_always_fits(
    max_model_len: int, prompt: int, output: int, steps: int, lengths: tuple[int, ...], uniform: bool
) -> None:
    engine = engines.configured(
        max_model_len=max_model_len, draft_lengths=lengths, uniform_drafts=uniform, max_num_seqs=4
    )
    options = Options(steps=steps, prompt_tokens=prompt, output_tokens=output)
    found = planning.make(options, engine)
    assert 8 <= found.prompt_length < found.context_length < max_model_len
    least = planning.make(Options(steps=steps, prompt_tokens=1, output_tokens=1), engine).context_length
    assert least <= found.context_length <= max(least, options.usual_context)


# Prompts of the sweep


def test_sweep_prompts_are_cut_from_the_text_to_the_length() -> None:
    texts = [tuple(range(start, start + 10)) for start in (100, 200, 300)]
    prompts = planning.sweep_prompts(texts, 4, vocabulary=1_000, count=3)
    # The ends: beginnings of chats are all alike.
    assert prompts == ((106, 107, 108, 109), (206, 207, 208, 209), (306, 307, 308, 309))


def test_short_texts_are_joined() -> None:
    prompts = planning.sweep_prompts([(1, 2), (3, 4), (5, 6)], 3, vocabulary=10, count=2)
    # The first: texts 0 and 2; the second: text 1, then 0 (the third after it, in turn).
    assert prompts == ((2, 5, 6), (4, 1, 2))


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=30), max_size=12),
    st.integers(1, 200),
    st.integers(1, 8),
)
def test_sweep_prompts_have_exactly_the_length(texts: list[list[int]], length: int, count: int) -> None:
    prompts = planning.sweep_prompts(texts, length, vocabulary=1_000, count=count)
    assert [len(prompt) for prompt in prompts] == [length] * count
    assert all(0 <= token < 1_000 for prompt in prompts for token in prompt)


def test_prompts_differ_also_of_one_text_and_without_a_tokenizer() -> None:
    texts_of_each: list[list[range]] = [[], [range(300)], [range(start, start + 300) for start in range(9)]]
    for texts in texts_of_each:
        prompts = planning.sweep_prompts(texts, 50, vocabulary=32_000)
        assert len(set(prompts)) == 8
        assert prompts == planning.sweep_prompts(texts, 50, vocabulary=32_000)


@pytest.mark.parametrize("length", [74, 2_048, 8_192])
@pytest.mark.parametrize("texts", [160, 8])
def test_no_two_prompts_of_a_large_batch_share_their_first_block(length: int, texts: int) -> None:
    # Texts of 50 to 400 tokens, as the bundled ones have, all different.
    lengths = np.random.default_rng(1).integers(50, 400, texts).tolist()
    tokens = itertools.count()
    found = planning.sweep_prompts(
        [list(itertools.islice(tokens, size)) for size in lengths], length, vocabulary=10**6, count=252
    )
    assert len({prompt[:16] for prompt in found}) == 252


def test_text_that_repeats_itself_ends_in_twins() -> None:
    assert planning.sweep_prompts([(1,), (1, 1)], 40, vocabulary=10, count=5) == ((1,) * 40,) * 5


def test_twins_of_long_prompts_are_told_by_their_first_block_alone() -> None:
    # Cut whole at each of the places that are tried, these would take minutes, while the engine waits.
    began = time.process_time()
    found = planning.sweep_prompts([(1,)], 8_192, vocabulary=10, count=256)
    assert found == ((1,) * 8_192,) * 256
    assert time.process_time() - began < 10.0


def test_tiny_vocabulary_is_no_trouble() -> None:
    assert planning.sweep_prompts([], 5, vocabulary=2) == ((1,) * 5,) * 8


@settings(max_examples=40)
@given(
    st.integers(1, 200),
    st.sets(st.integers(1, 5), max_size=3).map(lambda found: (0, *sorted(found))),
    st.booleans(),
    st.integers(0, 5),
)
def test_any_plan_visits_each_cell_twice_or_avoids_it(
    max_num_seqs: int, lengths: tuple[int, ...], gpu: bool, seed: int
) -> None:
    engine = (on_gpu if gpu else engines.configured)(
        max_num_seqs=max_num_seqs, draft_lengths=lengths, max_model_len=4_096
    )
    found = plan(seed, engine)
    visits = Counter((c.batch_size, length) for c in found.columns for length in c.visits)
    assert set(visits.values()) <= {2}
    assert not set(visits) & set(found.avoided)
    assert set(visits) | set(found.avoided) == {(b, k) for b in found.batch_sizes for k in lengths}
    assert all(size <= max_num_seqs for size in found.batch_sizes)
    for cell in found.mixed:
        assert cell.batch_size < max_num_seqs
        assert (cell.batch_size, cell.draft_length) not in found.avoided
