"""Policies of a closed loop against the best constant."""

from __future__ import annotations

import pytest

from tests.benchmarks.gpu import made

from gpu.analysis import closed_loops  # isort: skip

RATES = {
    "constant 0": [500.0, 400.0, 650.0],
    "constant 2": [1000.0, 800.0, 1300.0],
    "constant 3": [990.0, 792.0, 1287.0],
    "tuned": [960.0, 768.0, 1248.0],
    "documented": [480.0, 384.0, 624.0],
}
"""The host drifts by 0.8 and 1.3 in the second and third round."""


def test_shares_are_of_the_best_constant_within_rounds() -> None:
    (found,) = closed_loops.of_run(made.run(made.windows(RATES)))
    assert (found.best, found.tied, found.longest) == ("constant 2", ("constant 3",), "constant 3")
    assert {name: own.mean for name, own in found.shares.items()} == pytest.approx(
        {"constant 0": 0.5, "constant 2": 1.0, "constant 3": 0.99, "tuned": 0.96, "documented": 0.48}
    )
    assert found.against["documented"].mean == pytest.approx(2.0)
    assert not found.shares["tuned"].ties()


def test_best_is_chosen_from_rounds_that_all_constants_have() -> None:
    # The run ended in the third round, which was a fast one: constant 1 alone has it.
    rates = {"constant 1": {0: 100.0, 1: 100.0, 2: 200.0}, "constant 2": {0: 110.0, 1: 110.0}}
    assert closed_loops.best_constant(rates) == "constant 2"


def test_loop_that_a_plan_has_twice_keeps_its_rounds_apart() -> None:
    twice = [*made.windows({"constant 0": [100.0], "tuned": [110.0]})] * 2
    (found,) = closed_loops.of_run(made.run(twice))
    assert found.shares["tuned"].rounds == 2


def test_loops_of_other_prompts_are_others() -> None:
    records = made.windows(RATES) + made.windows(RATES, promptTokens=2048)
    assert [found.loop.prompt_tokens for found in closed_loops.of_run(made.run(records))] == [256, 2048]


def test_worst_loss_comes_first() -> None:
    better = {**RATES, "tuned": RATES["constant 2"]}
    run = made.run(made.windows(RATES, open_requests=64) + made.windows(better, open_requests=8))
    lost = closed_loops.losses(closed_loops.of_run(run), "tuned")
    assert [result.loop.open for result, _ in lost] == [64, 8]
    assert [own.mean for _, own in lost] == pytest.approx([0.04, 0.0])
    fixed = closed_loops.losses(closed_loops.of_run(run), "fixed 3")
    assert fixed[0][1].mean == pytest.approx(0.01)


def test_single_policy_has_no_share() -> None:
    (found,) = closed_loops.of_run(made.run(made.windows({"constant 3": [100.0, 90.0]})))
    assert not found.shares
    assert found.tokens_per_second["constant 3"].mean == 95.0
