from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tabletune import documents, tables
from tests.core import strategies

LENGTHS = (0, 1, 2)


def control(**changes: object) -> documents.Control:
    """No tolerance at all but for what the test names."""
    exact: dict[str, object] = {"tie_tolerance": 0.0, "narrow_range": 0.0, "merge_tolerance": 0.0}
    return documents.Control.model_validate(exact | changes)


def goodput(*rows: list[float]) -> NDArray[np.float64]:
    return np.array(rows, dtype=np.float64)


def flat(max_batch_size: int, *values: float) -> NDArray[np.float64]:
    """The same goodput at every batch size, a value per draft length."""
    return np.repeat(np.array(values, dtype=np.float64)[:, np.newaxis], max_batch_size, axis=1)


def test_each_batch_size_takes_the_length_with_the_highest_goodput() -> None:
    table = tables.compute(goodput([1, 1, 9, 9], [2, 9, 2, 2], [9, 2, 2, 2]), LENGTHS, control())
    assert table == ((1, 1, 2), (2, 2, 1), (3, 4, 0))


def test_tie_keeps_the_neighbours_length() -> None:
    # Length 0 gains 100.9 / 100 - 1 = 0.9% at batch size 2, under 1%; 1.2% at batch size 4.
    found = goodput([90, 100.9, 90, 101.2], [100, 100, 100, 100], [0, 0, 0, 0])
    assert tables.compute(found, LENGTHS, control()) == ((1, 1, 1), (2, 2, 0), (3, 3, 1), (4, 4, 0))
    assert tables.compute(found, LENGTHS, control(tie_tolerance=0.01)) == ((1, 3, 1), (4, 4, 0))


def test_ranges_meet_where_their_lengths_are_equally_good() -> None:
    # Both lengths are within 1% of each other at 2 to 5, and cross between 3 and 4.
    found = goodput([95, 99.2, 99.6, 100.4, 100.8, 105], [100, 100, 100, 100, 100, 100], [0] * 6)
    assert tables.compute(found, LENGTHS, control(tie_tolerance=0.01)) == ((1, 3, 1), (4, 6, 0))


def test_of_equal_lengths_the_shorter_drafts() -> None:
    assert tables.compute(flat(3, 5, 7, 7), LENGTHS, control()) == ((1, 3, 1),)


def test_narrow_range_is_merged_into_the_neighbour_that_loses_less() -> None:
    # One batch size of 8 is 12.5%. Length 2 gains 1.5% over length 0 there, 1.8% over length 1; the limit
    # is two tie tolerances, 2%.
    found = flat(16, 0, 0, 0)
    found[1, :7], found[0, 8:] = 100, 100
    found[:, 7] = 98.5, 98.2, 100
    assert tables.compute(found, LENGTHS, control(tie_tolerance=0.01)) == ((1, 7, 1), (8, 8, 2), (9, 16, 0))
    merged = tables.compute(found, LENGTHS, control(tie_tolerance=0.01, narrow_range=0.25))
    assert merged == ((1, 7, 1), (8, 16, 0))


def test_narrow_range_that_would_lose_much_stays() -> None:
    # As without a full graph at length 1, which costs 11 ms more (ENGINE.md 2): 15.5 instead of 4.4 ms.
    found = flat(16, 80, 100, 70)
    found[1, 8] = 100 * 4.4 / 15.5
    table = tables.compute(found, LENGTHS, documents.Control())
    assert table == ((1, 8, 1), (9, 9, 0), (10, 16, 1))


def test_range_of_a_quarter_of_its_first_batch_size_is_not_narrow() -> None:
    # 2 of 8 is 25%, which is not narrower than 25%: it stays although it gains 1.5% only.
    found = flat(16, 0, 100, 0)
    found[0, 7:9] = 101.5
    table = tables.compute(found, LENGTHS, control(tie_tolerance=0.01, narrow_range=0.25))
    assert table == ((1, 7, 1), (8, 9, 0), (10, 16, 1))


def test_merge_tolerance_extends_a_range() -> None:
    # Length 1 loses at most 4% of length 0 at 3 and 4, and 10% of length 2 at 1.
    found = goodput([80, 80, 104, 104], [100, 100, 100, 100], [111, 80, 80, 80])
    assert tables.compute(found, LENGTHS, control(tie_tolerance=0.01)) == ((1, 1, 2), (2, 2, 1), (3, 4, 0))
    assert tables.compute(found, LENGTHS, control(merge_tolerance=0.05)) == ((1, 1, 2), (2, 4, 1))


def test_pinned_range_keeps_its_length_whatever_is_measured() -> None:
    found = flat(6, 100, 1, np.nan)
    assert tables.compute(found, LENGTHS, documents.Control(pinned=((2, 3, 1), (5, 9, 2)))) == (
        (1, 1, 0),
        (2, 3, 1),
        (4, 4, 0),
        (5, 6, 2),
    )


def test_pinned_range_beyond_the_table_changes_nothing() -> None:
    assert tables.compute(flat(4, 9, 1, 1), LENGTHS, control(pinned=((7, 9, 1),))) == ((1, 4, 0),)


def test_only_allowed_lengths_are_taken() -> None:
    assert tables.compute(flat(4, 9, 5, 7), LENGTHS, control(allowed_lengths=(1, 2))) == ((1, 4, 2),)


def test_cell_without_a_price_is_not_taken() -> None:
    found = goodput([1, 1, 1], [5, np.nan, 5], [9, np.inf, 0])
    assert tables.compute(found, LENGTHS, control()) == ((1, 1, 2), (2, 2, 0), (3, 3, 1))


def test_allowed_length_that_was_not_profiled_is_refused() -> None:
    with pytest.raises(tables.TableError, match=r"Allowed lengths \[4\] were not profiled, \[0, 1, 2\] were"):
        tables.compute(flat(4, 1, 1, 1), LENGTHS, control(allowed_lengths=(1, 4)))


def test_pinned_length_that_was_not_profiled_is_refused() -> None:
    with pytest.raises(tables.TableError, match=r"Pinned range \[1, 2, 5\] has a length that was not"):
        tables.compute(flat(4, 1, 1, 1), LENGTHS, control(pinned=((1, 2, 5),)))


def test_batch_size_without_any_price_is_refused() -> None:
    found = goodput([1, np.nan], [1, np.nan], [1, 3])
    with pytest.raises(tables.TableError, match=r"Batch size 2 has no goodput .* \[0, 1\]"):
        tables.compute(found, LENGTHS, control(allowed_lengths=(0, 1)))


@settings(max_examples=150)
@given(st.data())
def test_table_covers_every_batch_size_once_and_loses_no_more_than_the_tolerances(
    data: st.DataObject,
) -> None:
    lengths = data.draw(strategies.draft_lengths())
    max_batch_size = data.draw(st.integers(1, 48))
    found = data.draw(strategies.goodputs(lengths, max_batch_size))
    given_control = data.draw(strategies.controls(lengths, max_batch_size))
    allowed = [
        row for row, length in enumerate(lengths) if length in (given_control.allowed_lengths or lengths)
    ]
    found[allowed[0]] = np.where(np.isnan(found[allowed[0]]), 1.0, found[allowed[0]])

    table = tables.compute(found, lengths, given_control)

    covered = [size for first, last, _ in table for size in range(first, last + 1)]
    assert covered == list(range(1, max_batch_size + 1))
    assert all(one[2] != other[2] for one, other in itertools.pairwise(table))
    tie, merge = given_control.tie_tolerance, given_control.merge_tolerance
    for batch_size in covered:
        length = tables.length_at(table, batch_size)
        pinned = [k for first, last, k in given_control.pinned if first <= batch_size <= last]
        if pinned:
            assert length == pinned[0]
            continue
        assert lengths.index(length) in allowed
        kept = found[lengths.index(length), batch_size - 1] / np.nanmax(found[allowed, batch_size - 1])
        assert kept >= 1 - max(2 * tie, merge) - 1e-12
        if given_control.narrow_range == 0:
            assert kept >= 1 - max(tie, merge) - 1e-12


@settings(max_examples=60)
@given(st.data())
def test_no_table_within_the_tolerances_has_fewer_ranges(data: st.DataObject) -> None:
    # Taking the length that stays acceptable longest, again and again, gives the fewest ranges.
    lengths, size = (0, 1, 2), data.draw(st.integers(1, 40))
    found = data.draw(strategies.goodputs(lengths, size))
    tie = data.draw(strategies.tolerances)
    acceptable = np.nan_to_num(found) >= (1 - tie) * np.nanmax(found, axis=0) * (1 + 1e-12)
    needed, column = 0, 0
    while column < size:
        runs = [np.argmin(np.append(row[column:], False)) for row in acceptable]
        column += max(1, int(max(runs)))
        needed += 1
    assert len(tables.compute(found, lengths, control(tie_tolerance=tie))) <= needed


def test_noise_within_the_tolerance_makes_no_range() -> None:
    random = np.random.default_rng(3)
    found = flat(512, 90, 100, 95) * (1 + random.uniform(-0.004, 0.004, (3, 512)))
    assert tables.compute(found, LENGTHS, documents.Control()) == ((1, 512, 1),)


def test_lookup_carries_lengths_forward() -> None:
    assert tables.lookup(((1, 2, 3), (4, 5, 1)), 7) == (0, 3, 3, 3, 1, 1, 1, 1)


def test_lookup_cuts_what_lies_beyond_the_largest_batch_size() -> None:
    assert tables.lookup(((1, 2, 3), (3, 9, 1)), 3) == (0, 3, 3, 1)
    assert tables.lookup(((1, 9, 3),), 2) == (0, 3, 3)


@pytest.fixture(scope="module")
def vllms_lookup() -> Callable[[object, int, int], list[int]]:
    """vLLM's own function, from its file alone: importing vLLM takes ten seconds."""
    package = importlib.util.find_spec("vllm")
    if package is None or package.origin is None:
        pytest.skip("vLLM is not installed")
    path = Path(package.origin).parent / "v1" / "spec_decode" / "dynamic" / "utils.py"
    spec = importlib.util.spec_from_file_location("vllms_lookup", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[object, int, int], list[int]] = module.build_dynamic_sd_schedule_lookup
    return found


@settings(max_examples=50)
@given(data=st.data())
def test_lookup_is_the_one_that_vllm_builds(
    vllms_lookup: Callable[[object, int, int], list[int]], data: st.DataObject
) -> None:
    edges = sorted(data.draw(st.sets(st.integers(2, 40), min_size=1, max_size=7)))
    first, rest = edges[0], edges[1:]
    pairs = [(1, first), *zip((edge + 1 for edge in rest[::2]), rest[1::2], strict=False)]
    table = tuple((low, high, data.draw(st.integers(0, 5))) for low, high in pairs if low <= high)
    size = data.draw(st.integers(1, 50))
    assert list(tables.lookup(table, size)) == vllms_lookup([list(entry) for entry in table], size, 5)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (((2, 4, 1),), r"\[2, 4, 1\] is out of place"),
        (((1, 4, 1), (4, 5, 2)), r"\[4, 5, 2\] is out of place"),
        (((1, 4, 1), (6, 5, 2)), r"\[6, 5, 2\] is out of place"),
        ((), "no range"),
    ],
)
def test_ranges_out_of_place_are_refused(table: documents.Table, told: str) -> None:
    with pytest.raises(tables.TableError, match=told):
        tables.lookup(table, 8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_lookup_and_ranges_are_inverse(by_size: list[int]) -> None:
    table = tables.from_lookup([0, *by_size])
    assert tables.lookup(table, len(by_size)) == (0, *by_size)
    assert [tables.length_at(table, size) for size in range(1, len(by_size) + 1)] == by_size
    assert tables.from_lookup(tables.lookup(table, len(by_size))) == table


def test_length_behind_the_last_range_is_that_ranges() -> None:
    assert tables.length_at(((1, 2, 3), (3, 4, 1)), 99) == 1


def test_constant_table_has_one_range() -> None:
    assert tables.constant(3, 256) == ((1, 256, 3),)
