from __future__ import annotations

import pytest

from tabletune import documents, recommendations
from tabletune.documents import RecommendationKind
from tests.core import strategies

CONTROL = documents.Control()
TABLE: documents.Table = ((1, 3, 2), (4, 16, 1))


def prediction(table: float, fixed: float, off: float, fixed_length: int = 2) -> documents.Prediction:
    """Goodput at two batch sizes; at the second all is alike."""
    return documents.Prediction(
        batch_sizes=(1, 16),
        table=(table, 500.0),
        best=(max(table, fixed, off), 500.0),
        best_length=(2, 1),
        fixed=(fixed, 500.0),
        fixed_length=fixed_length,
        off=(off, 500.0),
    )


def recommend(
    predicted: documents.Prediction, control: documents.Control = CONTROL, **engine: object
) -> documents.Recommendation:
    return recommendations.recommend(predicted, strategies.fingerprint(**engine), TABLE, control)


def test_table_is_recommended_where_it_gains_over_every_fixed_length() -> None:
    # sqrt(121 / 100) - 1 = 10% over fixed, sqrt(144 / 100) - 1 = 20% over off; fixed loses 1 - 121 / 146.41.
    found = recommend(prediction(table=144.0, fixed=119.0, off=100.0))
    assert found.kind is RecommendationKind.TABLE
    assert found.draft_length is None
    assert found.predicted_gain == pytest.approx(0.2)
    assert "2 ranges gains 20.0% over speculation off and 10.0% over draft length 2" in found.reason
    assert "loses at most 17.4% against the best length of a batch size (at 1)" in found.reason


def test_table_that_gains_less_than_a_tie_gives_way_to_the_fixed_length() -> None:
    # sqrt(121.9 / 121) - 1 = 0.4%, under 1%; sqrt(121 / 100) - 1 = 10%.
    found = recommend(prediction(table=121.9, fixed=121.0, off=100.0))
    assert (found.kind, found.draft_length) == (RecommendationKind.FIXED, 2)
    assert found.predicted_gain == pytest.approx(0.1)
    assert "gains 0.4% over draft length 2 everywhere" in found.reason
    assert "gains 10.0% over speculation off" in found.reason


def test_fixed_length_that_gains_less_than_a_tie_gives_way_to_off() -> None:
    # sqrt(101 / 100) - 1 = 0.5% over off, for the table and for the fixed length.
    found = recommend(prediction(table=101.0, fixed=101.0, off=100.0))
    assert (found.kind, found.draft_length, found.predicted_gain) == (RecommendationKind.OFF, None, 0.0)
    assert "Draft length 2, the best, gains 0.5% over speculation off" in found.reason


def test_off_as_the_best_fixed_length_is_off() -> None:
    found = recommend(prediction(table=100.0, fixed=100.0, off=100.0, fixed_length=0))
    assert found.kind is RecommendationKind.OFF
    assert "No fixed draft length gains over speculation off" in found.reason


def test_table_that_hardly_gains_over_off_is_off_though_all_fixed_lengths_are_worse() -> None:
    # 0 is not allowed, so each fixed length loses; the table gains sqrt(1.01) - 1 = 0.5% over off.
    found = recommend(prediction(table=101.0, fixed=80.0, off=100.0))
    assert found.kind is RecommendationKind.OFF
    assert "The table gains 0.5% over speculation off" in found.reason


def test_tie_tolerance_of_the_document_decides() -> None:
    predicted = prediction(table=121.0, fixed=100.5, off=100.0)
    assert recommend(predicted).kind is RecommendationKind.TABLE
    found = recommend(predicted, documents.Control(tie_tolerance=0.12))
    assert found.kind is RecommendationKind.OFF


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_AND_PIECEWISE", "FULL"])
def test_runner_v1_with_graphs_gets_no_table_but_the_remedy(mode: str) -> None:
    found = recommend(prediction(table=144.0, fixed=121.0, off=100.0), runner="V1", cudagraph_mode=mode)
    assert (found.kind, found.draft_length) == (RecommendationKind.FIXED, 2)
    assert found.predicted_gain == pytest.approx(0.1)
    assert "30 to 43%" in found.reason
    assert "set VLLM_USE_V2_MODEL_RUNNER=1 and profile again" in found.reason
    assert "9.1% over the best fixed draft length" in found.reason  # sqrt(144 / 121) - 1


def test_runner_v1_with_graphs_is_off_where_no_fixed_length_gains() -> None:
    found = recommend(prediction(table=144.0, fixed=100.0, off=100.0, fixed_length=0), runner="V1")
    assert found.kind is RecommendationKind.OFF
    assert "VLLM_USE_V2_MODEL_RUNNER=1" in found.reason


def test_runner_v1_without_graphs_loses_nothing_by_a_table() -> None:
    found = recommend(prediction(table=144.0, fixed=121.0, off=100.0), runner="V1", cudagraph_mode="NONE")
    assert found.kind is RecommendationKind.TABLE
