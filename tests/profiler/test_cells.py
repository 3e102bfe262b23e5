from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tabletune.documents import Graph, Measure
from tabletune_profiler import cells
from tabletune_profiler.cells import Cell
from tabletune_profiler.messages import Sample
from tests.profiler import engines

INTERVAL, SPAN = Measure.QUIET_INTERVAL, Measure.GPU_SPAN


def at(*points: tuple[int, float]) -> list[Sample]:
    """Samples of (drafted tokens, milliseconds)."""
    return [engines.sample(milliseconds, drafted) for drafted, milliseconds in points]


def varying(points: list[Sample], drafted_tokens: float, without_drafts_ms: float | None = None) -> Cell:
    cell = cells.summarise_varying(points, INTERVAL, drafted_tokens, without_drafts_ms)
    assert cell is not None
    return cell


# The measure


def test_spans_are_the_measure_where_nine_of_ten_samples_have_one() -> None:
    with_span, without = engines.sample(20.0, gpu_span_ms=5.0), engines.sample(20.0)
    assert cells.measure_of([with_span] * 9 + [without]) is SPAN
    assert cells.measure_of([with_span] * 8 + [without] * 2) is INTERVAL
    assert cells.measure_of([]) is INTERVAL


def test_only_samples_with_the_measure_count() -> None:
    samples = [engines.sample(20.0, gpu_span_ms=span) for span in (5.0, None, 7.0)]
    assert cells.summarise(samples, SPAN) == Cell(6.0, 20.0, 1.0, 2, None)
    assert cells.summarise(samples, INTERVAL) == Cell(20.0, 20.0, 0.0, 3, None)


# Drafters whose steps are all alike


def test_cell_is_the_median_with_its_quartiles() -> None:
    # Sorted 1, 2, 3, 4, 100: the quartiles are 2 and 4. One slow step moves neither.
    assert cells.summarise(at((0, 100.0), (0, 1.0), (0, 4.0), (0, 2.0), (0, 3.0)), INTERVAL) == Cell(
        3.0, 3.0, 2.0, 5, None
    )


def test_graph_of_a_cell_is_that_of_most_steps() -> None:
    kinds = [Graph.FULL, Graph.PIECEWISE, None, Graph.PIECEWISE]
    found = cells.summarise([Sample(1.0, None, 0, kind) for kind in kinds], INTERVAL)
    assert found is not None
    assert found.graph is Graph.PIECEWISE


def test_no_sample_is_no_cell() -> None:
    assert cells.summarise([], INTERVAL) is None
    assert cells.summarise(at((0, 20.0)), SPAN) is None
    assert cells.summarise_varying([], INTERVAL, 1.0, 20.0) is None


def test_error_is_that_of_a_median_of_normal_noise() -> None:
    # IQR 1.349 is a standard deviation of 1; over 16 steps 1.2533 / 4 = 0.313 ms, of 20 ms 1.57%.
    assert cells.relative_error(Cell(20.0, 20.0, 1.349, 16, None)) == pytest.approx(1.2533 / 4 / 20)
    assert cells.relative_error(Cell(20.0, 20.0, 0.0, 16, None)) == 0.0


# Drafters whose drafts vary


def test_bimodal_steps_cost_what_their_share_of_drafts_says() -> None:
    # One request: 20 ms without a draft, 40 with one of 2 tokens. Their median, 30, is right at one half
    # only: where a step drafts 0.4 tokens on average, a draft comes in every fifth, 20 + 0.2 · 20 = 24.
    samples = at(*[(0, 20.0), (2, 40.0)] * 12)
    assert varying(samples, 1.0).step_time_ms == pytest.approx(30.0)
    assert varying(samples, 0.4).step_time_ms == pytest.approx(24.0)
    assert varying(samples, 0.0).step_time_ms == pytest.approx(20.0)


def test_mix_of_the_samples_does_not_matter() -> None:
    # The same two kinds of steps, but in this cell a draft came in 9 of 12 steps.
    samples = at(*[(2, 40.0)] * 9, *[(0, 20.0)] * 3)
    assert varying(samples, 0.4).step_time_ms == pytest.approx(24.0)


def test_noise_is_averaged_along_the_line() -> None:
    # 10 ms and 2 ms per token, half a millisecond up and down at each count: at 3 tokens 16 ms.
    samples = at(*[(drafted, 10.0 + 2.0 * drafted + noise) for drafted in range(7) for noise in (-0.5, 0.5)])
    cell = varying(samples, 3.0)
    assert cell.step_time_ms == pytest.approx(16.0)
    assert cell.spread_ms == pytest.approx(1.0)  # around the line, not the 6 ms of the times themselves
    assert cell.samples == 14
    assert cell.interval_ms == 16.0  # the median as it is


def test_share_above_all_samples_is_reached_from_the_time_without_drafts() -> None:
    # All steps had 4 tokens, 28 ms; without drafts it is 20. At 2 tokens per step: half way.
    assert varying(at(*[(4, 28.0)] * 8), 2.0, without_drafts_ms=20.0).step_time_ms == pytest.approx(24.0)


def test_time_without_drafts_does_not_bend_a_line_that_holds_the_share() -> None:
    samples = at(*[(2, 24.0), (4, 28.0)] * 4)
    assert varying(samples, 3.0, without_drafts_ms=5.0).step_time_ms == pytest.approx(26.0)


def test_share_outside_of_all_that_was_seen_stays_within_the_times_seen() -> None:
    samples = at(*[(2, 24.0), (4, 28.0)] * 4)
    assert varying(samples, 40.0).step_time_ms == 28.0
    assert varying(samples, 0.0).step_time_ms == 24.0


def test_outliers_are_left_out_of_the_line() -> None:
    # Two of 24 steps waited for something else, 200 ms. Left in, they would add 17 ms.
    samples = at(*[(index % 4, 20.0 + 5.0 * (index % 4)) for index in range(22)], (0, 220.0), (2, 230.0))
    assert varying(samples, 2.0).step_time_ms == pytest.approx(30.0)
    assert varying(samples, 2.0).samples == 24


def test_fewer_milliseconds_for_more_tokens_are_noise() -> None:
    # The line would fall from 22 to 20 ms; it is level, at the mean.
    cell = varying(at((0, 22.0), (1, 21.0), (2, 20.0)), 0.5)
    assert cell.step_time_ms == pytest.approx(21.0)


@st.composite
def clouds(draw: st.DrawFn) -> list[Sample]:
    times = st.floats(min_value=0.1, max_value=1_000.0)
    return at(*draw(st.lists(st.tuples(st.integers(0, 64), times), min_size=1, max_size=40)))


shares = st.floats(min_value=0.0, max_value=80.0)
maybe_times = st.none() | st.floats(min_value=0.1, max_value=1_000.0)


@settings(max_examples=60)
@given(clouds(), shares, maybe_times)
def test_time_is_never_outside_of_what_was_seen(
    samples: list[Sample], drafted_tokens: float, without_drafts_ms: float | None
) -> None:
    seen = [sample.interval_ms for sample in samples]
    if without_drafts_ms is not None:
        seen.append(without_drafts_ms)
    cell = varying(samples, drafted_tokens, without_drafts_ms)
    assert min(seen) <= cell.step_time_ms <= max(seen)
    assert cell.spread_ms >= 0
    assert math.isfinite(cells.relative_error(cell))


@settings(max_examples=60)
@given(clouds(), st.floats(0, 1), st.floats(0, 1))
def test_more_drafted_tokens_never_take_less_time(samples: list[Sample], one: float, other: float) -> None:
    counts = [sample.drafted_tokens for sample in samples]
    few, many = (min(counts) + share * (max(counts) - min(counts)) for share in sorted((one, other)))
    assert varying(samples, few).step_time_ms <= varying(samples, many).step_time_ms + 1e-9


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 64), min_size=2, max_size=40),
    st.floats(1.0, 100.0),
    st.floats(0.0, 5.0),
    st.floats(0.0, 1.0),
)
def test_line_without_noise_is_found_exactly(
    counts: list[int], without_drafts: float, per_token: float, place: float
) -> None:
    assume(len(set(counts)) > 1)
    samples = at(*[(count, without_drafts + per_token * count) for count in counts])
    inside = min(counts) + place * (max(counts) - min(counts))
    assert varying(samples, inside).step_time_ms == pytest.approx(without_drafts + per_token * inside)
    # Below all counts it needs the time without drafts.
    below = place * min(counts)
    found = varying(samples, below, without_drafts_ms=without_drafts)
    assert found.step_time_ms == pytest.approx(without_drafts + per_token * below)
    assert found.spread_ms == pytest.approx(0.0, abs=1e-6)
