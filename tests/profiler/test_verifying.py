from __future__ import annotations

import math

import pytest

from tabletune_profiler import verifying
from tabletune_profiler.messages import GoodputMeasured
from tabletune_profiler.verifying import Choice, VerifiedCell
from tests.core import strategies

DOCUMENT = strategies.example()
"""Steps of 4.8 ms at 1 request for K=2, which yield 2.3 tokens; no time at 4 requests."""


def cell(batch_size: int, draft_length: int, measured: float) -> VerifiedCell:
    return VerifiedCell(batch_size, draft_length, 1.0, measured, 0.01, 5.0, 5.0, 100)


def test_prediction_is_of_the_cells_own_time_and_survival() -> None:
    # 2.3 tokens per step of 4.8 ms are 479.2/s. Measured: 2,200 tokens in 1,000 steps of 5 ms are 440/s.
    found = verifying.compare(DOCUMENT, 1, 2, GoodputMeasured(2_200, 5.0, 1_000, (430.0, 440.0, 450.0)))
    assert found is not None
    assert found.predicted == pytest.approx(2.3 / 4.8e-3)
    assert found.measured == pytest.approx(440.0)
    assert found.error == pytest.approx(2.3 / 4.8e-3 / 440.0 - 1)
    assert (found.predicted_step_ms, found.measured_step_ms, found.steps) == (4.8, 5.0, 1_000)


def test_standard_error_is_that_of_the_blocks() -> None:
    # 430, 440 and 450 differ by a standard deviation of 10: 10 / sqrt(3) / 440.
    found = verifying.compare(DOCUMENT, 1, 2, GoodputMeasured(2_200, 5.0, 1_000, (430.0, 440.0, 450.0)))
    assert found is not None
    assert found.standard_error == pytest.approx(10 / math.sqrt(3) / 440)


def test_cell_without_a_time_is_not_compared() -> None:
    assert verifying.compare(DOCUMENT, 4, 2, GoodputMeasured(100, 5.0, 50, (1.0, 2.0))) is None


def test_choice_is_what_the_table_gives_up_by_measurement() -> None:
    # The table has K=2 at 1 request and K=1 at 16 (tests/core/test_assembling.py).
    measured = [
        cell(1, 0, 250.0),
        cell(1, 2, 475.0),
        cell(1, 1, 500.0),
        cell(16, 0, 900.0),
        cell(16, 1, 1_000.0),
    ]
    one, sixteen = verifying.choices(DOCUMENT, measured)
    assert (one.batch_size, one.table_length, one.best_length) == (1, 2, 1)
    assert one.loss == pytest.approx(0.05)
    assert sixteen == Choice(16, table_length=1, best_length=1, loss=0.0)


def test_batch_size_whose_length_was_not_measured_has_no_choice() -> None:
    assert verifying.choices(DOCUMENT, [cell(1, 0, 250.0)]) == ()
    assert verifying.choices(DOCUMENT, []) == ()
