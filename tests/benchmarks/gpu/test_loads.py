"""What the load asks an engine to write."""

from __future__ import annotations

from tests.benchmarks.gpu import made  # noqa: F401

from gpu import loads  # isort: skip


def test_without_a_temperature_the_likeliest_token_is_taken_and_nothing_is_drawn() -> None:
    asked = loads.sampling(tokens=300, temperature=0.0, seed=7)
    assert (asked.temperature, asked.seed, asked.max_tokens, asked.ignore_eos) == (0.0, None, 300, True)


def test_answers_that_are_drawn_are_drawn_by_their_own_seed_and_are_as_long_as_asked() -> None:
    asked = loads.sampling(tokens=300, temperature=loads.TEMPERATURE, seed=7)
    assert (asked.temperature, asked.seed, asked.max_tokens, asked.ignore_eos) == (0.8, 7, 300, True)
