"""The engine adapter on a real engine core: what its tap sets, sees and never lets through."""

import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tabletune_plugin.engine import arguments
from tests.engine import driven, profiles

pytestmark = pytest.mark.engine

Engine = Callable[..., Any]

REPEATED = [list(range(first, first + 8)) * 12 for first in (500, 550, 600)]
"""Prompts that the model goes on repeating, so that an n-gram drafter finds a full draft in every step."""
VARIED = [[1 + 397 * i % 40_000 for i in range(k, k + 48)] for k in (1, 5, 9)]


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Iterator[Engine]:
    """Runs a function of ``driven`` in the process that holds the engine."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, driven.start, (model_folder,)) as pool:
        yield lambda function, *values: pool.submit(function, *values).result()
        pool.submit(driven.shut_down).result()


def test_startup_table_names_every_length_and_becomes_the_lookup(engine: Engine) -> None:
    table, lookup = engine(driven.tables)
    assert table == arguments.startup_table(driven.LENGTHS, profiles.MAX_NUM_SEQS)
    assert table == [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 4, 3]]
    assert len(lookup) == profiles.MAX_NUM_SEQS + 1
    assert lookup[1:] == [0, 1, 2, 3]


def test_changed_length_is_in_force_within_two_steps(engine: Engine) -> None:
    lengths = [3] * 6 + [0] * 4 + [2] * 4 + [1] * 4
    steps, _ = engine(driven.decode, REPEATED, lengths)
    assert [step.next_draft_length for step in steps] == lengths
    # Drafts are made in one step and verified in the next; the first step has none to verify.
    assert [step.drafted_tokens for step in steps] == [3 * length for length in [0, *lengths[:-1]]]


def test_drafts_are_as_many_as_the_batch_size_before_says(engine: Engine) -> None:
    lookup = [0, 3, 1, 2, 0]
    steps = engine(driven.decode_while_requests_end, REPEATED, [10, 25, 40], lookup)
    assert [step.next_draft_length for step in steps] == [lookup[step.batch_size] for step in steps]
    pairs = list(pairwise(steps))
    assert {(before.batch_size, step.batch_size) for before, step in pairs} >= {(3, 2), (2, 1)}
    for before, step in pairs:
        assert step.drafted_tokens == step.batch_size * lookup[before.batch_size], step


def test_text_is_the_same_at_every_draft_length(engine: Engine) -> None:
    _, without = engine(driven.decode, [*REPEATED, *VARIED[:1]], [0] * 60)
    for length in (1, 2, 3):
        steps, outputs = engine(driven.decode, [*REPEATED, *VARIED[:1]], [length] * 25)
        assert sum(sum(step.accepted) for step in steps) > 0
        for output, expected in zip(outputs, without, strict=True):
            common = min(len(output), len(expected))
            assert common >= 25
            assert output[:common] == expected[:common]


def test_counts_per_position_add_up(engine: Engine) -> None:
    steps, outputs = engine(driven.decode, [*REPEATED, *VARIED[:1]], [3] * 20 + [1] * 10 + [2] * 10)
    for step in steps:
        drafted, accepted = list(step.drafted), list(step.accepted)
        assert sum(drafted) == step.drafted_tokens
        assert step.requests_drafted == (drafted[0] if drafted else 0)
        assert drafted == sorted(drafted, reverse=True)
        assert accepted == sorted(accepted, reverse=True)
        assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
    assert sum(step.drafted_tokens for step in steps) > 0
    # Every request keeps one token a step, that of its prompt's included, and each accepted guess.
    assert sum(step.kept_tokens for step in steps) == sum(map(len, outputs))


def test_prompt_is_told_apart_from_decoding(engine: Engine) -> None:
    steps, _ = engine(driven.decode, VARIED[:2], [0] * 5)
    assert [step.new_requests for step in steps] == [2, 0, 0, 0, 0]
    assert [step.prompt_tokens for step in steps] == [2 * 47, 0, 0, 0, 0]
    assert [step.batch_size for step in steps] == [2] * 5
    assert [step.number for step in steps] == list(range(steps[0].number, steps[0].number + 5))


def test_interval_is_unknown_only_after_idling(engine: Engine) -> None:
    engine(driven.decode, VARIED[:1], [0] * 3)
    steps, _ = engine(driven.decode, VARIED[:1], [0] * 4)
    assert [math.isnan(step.interval_ms) for step in steps] == [True, False, False, False]
    assert all(step.interval_ms > 0 for step in steps[1:])


def test_interval_of_a_request_that_queued_is_known(engine: Engine) -> None:
    steps = engine(driven.decode_in_turn, VARIED[0], profiles.MAX_NUM_SEQS)
    joined = [step for step in steps if step.new_requests]
    # As many as fit begin together, from idling; the last, which takes their place, had waited.
    assert [(step.batch_size, math.isnan(step.interval_ms)) for step in joined] == [(4, True), (1, False)]


def test_failing_listener_never_reaches_the_engine_and_is_logged_once(engine: Engine) -> None:
    output_tokens, logged = engine(driven.fail_on_every_step, VARIED[0], 6)
    assert output_tokens == 6
    assert logged == 1


def test_abort_leaves_no_request_and_no_cache_in_use(engine: Engine) -> None:
    # Four run, two wait.
    before, after, busy, usage = engine(driven.abort, [*REPEATED, *VARIED])
    assert (before, after, busy, usage) == (6, 0, False, 0)


def test_lookup_of_another_length_is_refused(engine: Engine) -> None:
    assert engine(driven.refuse_lookup, 4) == "a lookup of 4 entries was given, 5 are needed"
    assert engine(driven.refuse_lookup, 5) == ""


def test_detached_tap_leaves_the_scheduler_as_it_was(engine: Engine) -> None:
    assert engine(driven.attach_and_detach)
