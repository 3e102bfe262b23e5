from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import documents, predictions, tables
from tests.core import strategies

ACCEPTANCE = documents.Acceptance(
    survival=(0.8, 0.5), drafted=(100, 100), accepted=(80, 50), proposal_rate=1.0, prompts=1
)


def test_goodput_is_kept_tokens_per_second() -> None:
    # 2 requests · (1 + 0.8) tokens in 6 ms: 600 a second. 1 request · 2.3 tokens in 5 ms: 460.
    found = predictions.goodput(np.array([[4.0, 5.0], [4.5, 6.0], [5.0, 8.0]]), ACCEPTANCE, (0, 1, 2))
    assert found == pytest.approx(np.array([[250.0, 400.0], [400.0, 600.0], [460.0, 575.0]]))


def test_proposal_rate_scales_what_drafts_bring() -> None:
    rarely = ACCEPTANCE.model_copy(update={"proposal_rate": 0.25})
    # 1 + 0.25 · 0.8 = 1.2 tokens in 4 ms.
    assert predictions.goodput(np.array([[4.0]]), rarely, (1,)) == pytest.approx(np.array([[300.0]]))


def test_cell_without_a_price_has_no_goodput() -> None:
    found = predictions.goodput(np.array([[4.0, np.nan]]), ACCEPTANCE, (0,))
    assert np.isnan(found[0, 1])
    assert found[0, 0] == 250.0


def test_rows_that_are_not_one_per_length_are_refused() -> None:
    with pytest.raises(predictions.PredictionError, match=r"shape \(1, 2\).*a row for each of 3"):
        predictions.goodput(np.ones((1, 2)), ACCEPTANCE, (0, 1, 2))


GOODPUT = np.array(
    [
        [100.0, 200.0, 300.0, 400.0],
        [120.0, 230.0, 280.0, 300.0],
        [150.0, 220.0, 240.0, 200.0],
    ]
)
TABLE: documents.Table = ((1, 1, 2), (2, 2, 1), (3, 4, 0))


def test_prediction_tells_table_best_fixed_and_off_at_the_grids_batch_sizes() -> None:
    found = predictions.predict(GOODPUT, (0, 1, 2), (1, 2, 4), ((1, 1, 2), (2, 4, 1)))
    assert found.batch_sizes == (1, 2, 4)
    assert found.table == (150.0, 230.0, 300.0)
    assert found.best == (150.0, 230.0, 400.0)
    assert found.best_length == (2, 1, 0)
    assert found.off == (100.0, 200.0, 400.0)


def test_off_is_what_was_timed_without_the_drafter_where_that_is_known() -> None:
    found = predictions.predict(GOODPUT, (0, 1, 2), (1, 2, 4), TABLE, off=(110.0, np.nan, 420.0))
    assert found.off == (110.0, 200.0, 420.0)
    # Batch size 1 is left out; the others keep theirs.
    gap = GOODPUT.copy()
    gap[0, 0] = np.nan
    assert predictions.predict(gap, (0, 1, 2), (1, 2, 4), TABLE, off=(1.0, 2.0, 3.0)).off == (2.0, 3.0)


def off_profile(off_ms: tuple[float | None, ...], graph: tuple[str, ...]) -> documents.Profile:
    columns = len(graph)
    return documents.Profile.model_validate(
        {
            "batchSizes": [1, 2, 4, 8][:columns],
            "draftLengths": [0],
            "measure": "gpuSpan",
            "stepTimeMs": [[20.0] * columns],
            "offMs": off_ms,
            "spreadMs": [[0.1] * columns],
            "samples": [[30] * columns],
            "graph": [graph],
            "contextLength": 256,
        }
    )


def test_goodput_with_speculation_off_is_a_token_per_request_and_step() -> None:
    found = predictions.off_goodput(off_profile((10.0, 10.0, None), ("full",) * 3))
    assert found == pytest.approx((100.0, 200.0, 200.0))  # length 0 stands in where off was not timed
    assert not len(predictions.off_goodput(off_profile((), ("none",) * 3)))


def test_speculation_off_is_never_slower_than_length_0() -> None:
    found = predictions.off_goodput(off_profile((25.0, 10.0), ("full", "full")))  # length 0 takes 20 ms
    assert found == pytest.approx((50.0, 200.0))


def test_engine_without_speculation_has_no_gap_in_its_graphs() -> None:
    # 4 requests ran piecewise, which they would not without a table: between 12 at 2 and 18 at 8 it is 14.
    found = predictions.off_goodput(
        off_profile((10.0, 12.0, 25.0, 18.0), ("full", "full", "piecewise", "full"))
    )
    assert found == pytest.approx(1e3 * np.array([1 / 10, 2 / 12, 4 / 14, 8 / 18]))
    # Beyond the largest graph, and without any, it has none either.
    beyond = predictions.off_goodput(off_profile((10.0, 12.0, 25.0), ("full", "full", "none")))
    assert beyond[2] == pytest.approx(200.0)
    none = predictions.off_goodput(off_profile((10.0, 12.0), ("none", "none")))
    assert none == pytest.approx((100.0, 2 / 12 * 1e3))


def test_fixed_length_is_the_best_by_geometric_mean() -> None:
    # At 1, 2 and 4 requests. Length 0: 100 · 200 · 400 = 8.0 million, length 1: 120 · 230 · 300 = 8.28,
    # length 2: 150 · 220 · 200 = 6.6. The plain mean would take length 0: 700 against 650.
    found = predictions.predict(GOODPUT, (0, 1, 2), (1, 2, 4), TABLE)
    assert (found.fixed_length, found.fixed) == (1, (120.0, 230.0, 300.0))


def test_best_and_fixed_keep_to_the_allowed_lengths() -> None:
    found = predictions.predict(GOODPUT, (0, 1, 2), (1, 4), TABLE, allowed=(0, 2))
    assert found.best == (150.0, 400.0)
    assert (found.fixed_length, found.off) == (0, (100.0, 400.0))
    found = predictions.predict(GOODPUT, (0, 1, 2), (1, 4), TABLE, allowed=(2,))
    assert (found.fixed_length, found.best_length, found.off) == (2, (2, 2), (100.0, 400.0))


def test_length_that_lacks_a_price_somewhere_is_not_the_fixed_one() -> None:
    gap = GOODPUT.copy()
    gap[1, 3] = np.nan
    found = predictions.predict(gap, (0, 1, 2), (1, 2, 4), TABLE)
    assert found.fixed_length == 0
    assert found.best_length == (2, 1, 0)


def test_batch_size_without_a_price_for_off_is_left_out() -> None:
    gap = GOODPUT.copy()
    gap[0, 0] = np.nan
    assert predictions.predict(gap, (0, 1, 2), (1, 2, 4), TABLE).batch_sizes == (2, 4)


def test_profile_without_length_0_is_refused() -> None:
    with pytest.raises(predictions.PredictionError, match=r"\[1, 2\] lack 0, speculation off"):
        predictions.predict(GOODPUT[1:], (1, 2), (1, 2), ((1, 4, 1),))


def test_batch_size_beyond_the_table_is_refused() -> None:
    with pytest.raises(predictions.PredictionError, match="Batch size 8 is above 4"):
        predictions.predict(GOODPUT, (0, 1, 2), (1, 8), TABLE)


def test_profile_in_which_no_length_has_all_prices_is_refused() -> None:
    gap = GOODPUT.copy()
    gap[1, 0] = gap[2, 3] = np.nan
    with pytest.raises(predictions.PredictionError, match=r"None of the allowed draft lengths \[1, 2\]"):
        predictions.predict(gap, (0, 1, 2), (1, 4), TABLE, allowed=(1, 2))


def test_table_without_a_price_at_any_batch_size_is_refused() -> None:
    gap = GOODPUT.copy()
    gap[2] = np.nan
    with pytest.raises(predictions.PredictionError, match=r"At none of the batch sizes \[1, 4\] both"):
        predictions.predict(gap, (0, 1, 2), (1, 4), tables.constant(2, 4))


@settings(max_examples=60)
@given(st.data())
def test_nothing_is_predicted_above_the_best_and_fixed_is_one_of_the_lengths(data: st.DataObject) -> None:
    lengths = data.draw(strategies.draft_lengths())
    size = data.draw(st.integers(1, 24))
    goodput = data.draw(strategies.goodputs(lengths, size))
    table = tables.compute(goodput, lengths, documents.Control())
    found = predictions.predict(goodput, lengths, tuple(range(1, size + 1)), table)
    best = np.asarray(found.best)
    for kind in (found.table, found.fixed, found.off):
        assert (np.asarray(kind) <= best).all()
    assert (np.asarray(found.table) >= 0.98 * best - 1e-9).all(), "two tie tolerances"
    assert found.fixed == tuple(goodput[lengths.index(found.fixed_length)].tolist())
    assert predictions.gain(found.fixed, found.off) >= -1e-12, "off is one of the lengths"


def test_gain_is_a_geometric_mean() -> None:
    # sqrt(1.5 · 1.0) - 1
    assert predictions.gain([150.0, 300.0], [100.0, 300.0]) == pytest.approx(1.5**0.5 - 1)
    assert predictions.gain([300.0], [300.0]) == 0.0
