"""Which cells a table keeps off, for an engine whose graphs were worked out by hand.

Capture sizes 1, 2, 4 and 8 with up to 8 requests make full graphs of 1, 2, 4 and 8 tokens for K=0, of 2, 4
and 8 for K=1, of 3 and 6 for K=2. So 3, 5 and 6 tokens are filed under graphs of K=2, and 3, 5 and 6 requests
at K=0 run piecewise, padded to 4, 8 and 8 tokens, for which the drafter has a full graph; and so do 3
requests (6 tokens) at K=1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import documents, graphs, hazards
from tabletune.documents import ExcludedCell, Profile
from tests.core import h200, strategies

LENGTHS = (0, 1, 2)


def engine(**changes: Any) -> documents.Fingerprint:
    fields: dict[str, Any] = {"max_num_seqs": 8, "cudagraph_capture_sizes": (1, 2, 4, 8)}
    return h200.fingerprint(**fields | changes)


def profile(*fatal: tuple[int, int], excluded: tuple[tuple[int, int], ...] = ()) -> Profile:
    """Batch sizes 2, 4 and 8; the engine died in the cells ``fatal`` and was too slow for ``excluded``."""
    sizes = (2, 4, 8)
    left_out = {*fatal, *excluded}
    times = [[None if (size, k) in left_out else 5.0 for size in sizes] for k in LENGTHS]
    kinds = [[None] * 3] * 3
    return h200.profile(sizes, LENGTHS, times, kinds).model_copy(
        update={
            "excluded": tuple(
                ExcludedCell(batch_size=size, draft_length=k, reason="", fatal=(size, k) in fatal)
                for size, k in sorted(left_out)
            )
        }
    )


def marked(flags: hazards.Flags) -> dict[int, list[int]]:
    """The hazardous batch sizes by length, without the lengths that have none."""
    found = {length: (np.flatnonzero(flags[row]) + 1).tolist() for row, length in enumerate(LENGTHS)}
    return {length: sizes for length, sizes in found.items() if sizes}


# Mismatched


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_batch_sizes_whose_graphs_differ_are_hazardous(method: str) -> None:
    found = hazards.mismatched(engine(drafter_method=method), LENGTHS)
    assert found == {0: {3, 5, 6}, 1: {3}, 2: frozenset()}


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter_method": "ngram"},
        {"drafter_method": "draft_model"},
        {"drafter_method": "dflash"},
        {"runner": "V1"},
        {"cudagraph_mode": "NONE"},
        {"cudagraph_capture_sizes": ()},
    ],
    ids=str,
)
def test_other_methods_runners_and_modes_have_no_mismatch(changes: dict[str, Any]) -> None:
    assert not any(hazards.mismatched(engine(**changes), LENGTHS).values())


def test_aligned_capture_sizes_have_no_mismatch() -> None:
    sizes = graphs.aligned_capture_sizes(LENGTHS, 6, 18)
    aligned = engine(max_num_seqs=6, cudagraph_capture_sizes=sizes)
    assert not any(hazards.mismatched(aligned, LENGTHS).values())


def test_engine_died_on_the_h200_at_a_batch_size_that_is_found() -> None:
    # B=117, K=1 (benchmarks/results/gpu), with vLLM's default sizes up to 1,024.
    assert 117 in hazards.mismatched(h200.fingerprint(), (0, 1, 2, 3))[1]


# Cells of a profile


def test_mismatched_cells_are_marked_up_to_the_largest_batch_size() -> None:
    assert marked(hazards.cells(profile(), engine(), 8)) == {0: [3, 5, 6], 1: [3]}
    assert marked(hazards.cells(profile(), engine(), 5)) == {0: [3, 5], 1: [3]}


def test_fatal_cell_is_marked_with_what_lies_between_its_neighbours() -> None:
    # Measured at 2, 4 and 8: nothing is known of 3 and of 5 to 7.
    safe = engine(drafter_method="draft_model")
    assert marked(hazards.cells(profile((4, 1)), safe, 8)) == {1: [3, 4, 5, 6, 7]}


def test_fatal_cell_at_an_end_of_the_grid_is_marked_to_the_end() -> None:
    safe = engine(drafter_method="draft_model", max_num_seqs=12)
    assert marked(hazards.cells(profile((2, 1)), safe, 12)) == {1: [1, 2, 3]}
    assert marked(hazards.cells(profile((8, 2)), safe, 12)) == {2: [5, 6, 7, 8, 9, 10, 11, 12]}


def test_cell_without_a_time_that_killed_nothing_is_not_marked() -> None:
    safe = engine(drafter_method="draft_model")
    assert marked(hazards.cells(profile(excluded=((4, 1),)), safe, 8)) == {}


def test_both_kinds_are_marked_together() -> None:
    assert marked(hazards.cells(profile((4, 1)), engine(), 8)) == {0: [3, 5, 6], 1: [3, 4, 5, 6, 7]}


# Keeping off

NAN = np.nan
GOODPUT = np.array([[10.0, 10.0, 10.0, 10.0], [20.0, 20.0, NAN, NAN]])
HAZARDOUS = np.array([[False, True, True, False], [True, True, False, False]])


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        # 1 request keeps off K=1. At 2 both are hazardous, at 3 the other has no goodput: those stay.
        ((), [[10.0, 10.0, 10.0, 10.0], [NAN, 20.0, NAN, NAN]]),
        # With K=1 alone allowed, that is all that 1 request has.
        ((1,), [[10.0, 10.0, 10.0, 10.0], [20.0, 20.0, NAN, NAN]]),
        ((0,), [[10.0, 10.0, 10.0, 10.0], [NAN, 20.0, NAN, NAN]]),
    ],
)
def test_hazards_lose_their_goodput_unless_nothing_else_has_one(
    allowed: tuple[int, ...], left: list[list[float]]
) -> None:
    before = GOODPUT.copy()
    np.testing.assert_equal(hazards.keep_off(GOODPUT, HAZARDOUS, (0, 1), allowed), np.array(left))
    np.testing.assert_equal(GOODPUT, before)


@settings(max_examples=40)
@given(st.data())
def test_no_batch_size_loses_all_of_its_goodput(data: st.DataObject) -> None:
    lengths = data.draw(strategies.draft_lengths())
    goodput = data.draw(strategies.goodputs(lengths, 12))
    flags = data.draw(st.lists(st.booleans(), min_size=goodput.size, max_size=goodput.size))
    hazardous = np.array(flags).reshape(goodput.shape)
    allowed = tuple(sorted(data.draw(st.sets(st.sampled_from(lengths)))))
    rows = [lengths.index(length) for length in allowed or lengths]
    left = hazards.keep_off(goodput, hazardous, lengths, allowed)
    priced = np.isfinite(goodput[rows]).any(axis=0)
    assert (np.isfinite(left[rows]).any(axis=0) == priced).all()
    used = np.isfinite(left[rows]) & hazardous[rows]
    assert not (used & (np.isfinite(goodput) & ~hazardous)[rows].any(axis=0)).any()


# In a table


def test_length_is_kept_off_where_requests_that_end_lead_to_a_hazard() -> None:
    found = hazards.cells(profile(), engine(), 8)
    assert marked(found) == {0: [3, 5, 6], 1: [3]}
    assert marked(hazards.drafted(found)) == {0: [3, 4, 5, 6, 7, 8], 1: [3, 4, 5]}


def test_nothing_is_kept_off_without_hazards() -> None:
    assert not hazards.drafted(np.zeros((3, 8), np.bool_)).any()
