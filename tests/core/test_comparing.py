from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given, settings

from tabletune import assembling, comparing, documents
from tests.core import strategies

LATER = strategies.CREATED_AT + timedelta(hours=1)


def test_document_does_not_differ_from_itself() -> None:
    document = strategies.example()
    found = comparing.compare(document, document)
    assert found.same_engine
    assert found.same_measure
    for differences in (
        found.fingerprint,
        found.speculative_config,
        found.control,
        found.engine,
        found.table,
    ):
        assert differences == ()
    assert found.survival == ()
    assert found.step_time_ratio == found.goodput_ratio == 1.0


def test_other_control_and_the_ranges_that_it_moves_are_told() -> None:
    document = strategies.example()
    assert document.table == ((1, 2, 2), (3, 16, 1))
    pinned = documents.Control(pinned=((4, 8, 0),))
    found = comparing.compare(document, assembling.recompute(document, pinned, LATER))
    assert found.table == (comparing.RangeChange(first=4, last=8, old=1, new=0),)
    assert found.control == (comparing.FieldChange(field="pinned", old=[], new=[[4, 8, 0]]),)
    assert (found.old_generation, found.new_generation) == (1, 2)
    # 4 requests: 4 · 1 / 4.2 ms with length 0 instead of 4 · 1.8 / 4.8 ms.
    (changed,) = [change for change in found.goodput if change.ratio != 1]
    assert changed.batch_size == 4
    assert changed.ratio == pytest.approx((1 / 4.2) / (1.8 / 4.8))
    assert found.goodput_ratio == pytest.approx(changed.ratio ** (1 / 3))


def test_batch_sizes_beyond_one_table_have_no_length_there() -> None:
    document = strategies.example()
    longer = document.model_copy(update={"table": ((1, 2, 2), (3, 20, 1))})
    found = comparing.compare(document, longer)
    assert found.table == (comparing.RangeChange(first=17, last=20, old=None, new=1),)
    found = comparing.compare(longer, document)
    assert found.table == (comparing.RangeChange(first=17, last=20, old=1, new=None),)


def test_step_times_are_compared_in_the_cells_that_both_measured() -> None:
    document = strategies.example()
    profile = document.profile.model_copy(
        update={"step_time_ms": ((4.4, 4.2, 6.0), (4.4, 4.8, 9.0), (None, 5.0, 14.0))}
    )
    found = comparing.compare(document, document.model_copy(update={"profile": profile}))
    cells = {(change.batch_size, change.draft_length): change for change in found.step_times}
    # Length 2 was measured at 16 requests only by both: 4 cells of length 0 and 1 more stay alike.
    assert len(cells) == 7
    assert (4, 2) not in cells
    assert (1, 2) not in cells
    assert cells[1, 0].ratio == pytest.approx(1.1)
    assert found.step_time_ratio == pytest.approx(1.1 ** (1 / 7))


def test_other_engine_measure_and_acceptance_are_told() -> None:
    document = strategies.example()
    profile = document.profile.model_copy(update={"measure": documents.Measure.QUIET_INTERVAL})
    measured = document.acceptance.model_copy(update={"survival": (0.8, 0.4), "proposal_rate": 0.5})
    other = document.model_copy(
        update={
            "fingerprint": strategies.fingerprint(gpu="NVIDIA H100", vllm="0.34.0"),
            "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3},
            "profile": profile,
            "acceptance": measured,
        }
    )
    found = comparing.compare(document, other)
    assert not found.same_engine
    assert not found.same_measure
    assert [(change.field, change.old, change.new) for change in found.fingerprint] == [
        ("gpu", "NVIDIA H200", "NVIDIA H100"),
        ("vllm", "0.33.0", "0.34.0"),
    ]
    assert [(change.field, change.old, change.new) for change in found.speculative_config] == [
        ("model", "org/drafter", None),
        ("num_speculative_tokens", 2, 3),
    ]
    assert found.survival == (comparing.SurvivalChange(position=2, old=0.5, new=0.4),)
    assert (found.old_proposal_rate, found.new_proposal_rate) == (1.0, 0.5)


def test_contexts_that_steps_were_timed_at_are_told() -> None:
    document = strategies.example()
    profile = document.profile.model_copy(update={"context_length": 4_224})
    found = comparing.compare(document, document.model_copy(update={"profile": profile}))
    assert (found.old_context_length, found.new_context_length) == (512, 4_224)


def test_comparison_is_written_as_json() -> None:
    document = strategies.example()
    pinned = documents.Control(pinned=((4, 8, 0),))
    found = comparing.compare(document, assembling.recompute(document, pinned, LATER))
    content = json.loads(documents.dump(found))
    assert content["table"] == [{"first": 4, "last": 8, "new": 0, "old": 1}]
    assert content["newGeneration"] == 2


@settings(max_examples=25)
@given(strategies.whole_documents(), strategies.whole_documents())
def test_any_two_documents_are_compared_and_their_ranges_told_both_ways(
    old: documents.Document, new: documents.Document
) -> None:
    there, back = comparing.compare(old, new), comparing.compare(new, old)
    assert [(c.first, c.last, c.old, c.new) for c in there.table] == [
        (c.first, c.last, c.new, c.old) for c in back.table
    ]
    changed = {size for c in there.table for size in range(c.first, c.last + 1)}
    for size in range(1, max(old.max_batch_size, new.max_batch_size) + 1):
        lengths = {
            next((k for first, last, k in document.table if first <= size <= last), None)
            for document in (old, new)
        }
        assert (size in changed) == (len(lengths) == 2)
    assert json.loads(documents.dump(there))
