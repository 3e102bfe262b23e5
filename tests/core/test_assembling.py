from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import assembling, documents, hazards, predictions, tables
from tabletune.documents import RecommendationKind
from tests.core import h200, strategies

LATER = strategies.CREATED_AT + timedelta(hours=1)


def test_document_holds_what_was_measured_and_a_table_of_its_best_lengths() -> None:
    # Tokens per second at 1 request: 250, 409, 479 for lengths 0, 1, 2; at 16: 2667, 3200, 2629.
    document = strategies.example()
    assert document.generation == 1
    assert document.created_at == strategies.CREATED_AT
    assert document.source is documents.Source.PROFILE
    assert document.max_batch_size == document.fingerprint.max_num_seqs == 16
    assert [tables.length_at(document.table, size) for size in (1, 16)] == [2, 1]
    assert document.prediction.best[0] == pytest.approx(2.3 / 4.8 * 1000)
    assert document.recommendation.kind is RecommendationKind.TABLE
    assert document.speculative_config["num_speculative_tokens"] == 2
    assert document.engine.prompt_tokens == 256


def test_batch_size_above_max_num_seqs_is_refused_with_the_remedy() -> None:
    with pytest.raises(predictions.PredictionError, match=r"Batch size 16 is above 8.*raise --max-num-seqs"):
        strategies.example(engine=strategies.fingerprint(max_num_seqs=8))


def test_another_tolerance_that_moves_a_range_makes_the_next_generation() -> None:
    document = strategies.example()
    assert len(document.table) > 1
    control = documents.Control(merge_tolerance=0.5)
    computed = assembling.recompute(document, control, LATER)
    assert len(computed.table) == 1
    assert (computed.generation, computed.created_at) == (2, LATER)
    assert computed.control == control
    assert computed.prediction.table != document.prediction.table
    assert (computed.profile, computed.acceptance) == (document.profile, document.acceptance)
    assert computed.speculative_config == document.speculative_config


def test_another_control_that_moves_no_range_keeps_the_generation() -> None:
    document = strategies.example()
    control = documents.Control(mode=documents.Mode.ADAPT)
    computed = assembling.recompute(document, control, LATER)
    assert computed == document.model_copy(update={"control": control})


def test_computing_the_same_again_gives_equal_bytes() -> None:
    document = strategies.example()
    again = assembling.recompute(document, document.control, LATER)
    assert documents.dump(again) == documents.dump(document)


def test_section_that_was_edited_disagrees_with_the_measurements() -> None:
    document = strategies.example()
    assert assembling.disagreements(document) == ()
    other = strategies.example(control=documents.Control(pinned=((1, 16, 0),)))
    changed = {
        "table": other.table,
        "prediction": other.prediction,
        "recommendation": other.recommendation,
    }
    for section, value in changed.items():
        assert assembling.disagreements(document.model_copy(update={section: value})) == (section,)


def test_table_of_a_correction_is_not_held_against_the_profile() -> None:
    other = strategies.example(control=documents.Control(pinned=((1, 16, 0),)))
    corrected = strategies.example().model_copy(
        update={"table": other.table, "source": documents.Source.CORRECTION}
    )
    assert assembling.disagreements(corrected) == ()


def test_pinned_range_is_in_the_document() -> None:
    pinned = documents.Control(pinned=((2, 5, 0),))
    document = strategies.example(control=pinned)
    assert {tables.length_at(document.table, size) for size in range(2, 6)} == {0}


def test_document_of_a_measured_engine_never_predicts_worse_than_the_tolerances() -> None:
    profile = h200.live_profile()
    document = assembling.assemble(
        h200.fingerprint(),
        profile,
        h200.acceptance((0.76, 0.56, 0.42)),
        documents.Control(),
        strategies.CREATED_AT,
        h200.PROMPT_TOKENS,
        h200.OUTPUT_TOKENS,
    )
    for table, best in zip(document.prediction.table, document.prediction.best, strict=True):
        assert table >= 0.98 * best
    # 4 requests at length 2 find no full graph and take 15.5 ms instead of 4.4.
    assert tables.length_at(document.table, 4) != 2
    assert documents.parse(documents.dump(document)) == document


# Hazards (tests/core/test_hazards.py has the arithmetic)


def hazardous_lengths(sizes: tuple[int, ...], *fatal: tuple[int, int], **changes: Any) -> list[int]:
    """The table's lengths at 1 to 8 requests where nothing but hazards speaks against K=0.

    A step takes the same at every length and no guess is accepted, so K=0 is kept, the shortest of equals.
    """
    fields: dict[str, Any] = {"max_num_seqs": 8, "cudagraph_capture_sizes": (1, 2, 4, 8)}
    lengths = (0, 1, 2)
    times = [[None if (size, k) in fatal else 5.0 for size in sizes] for k in lengths]
    profile = h200.profile(sizes, lengths, times, [[None] * len(sizes)] * 3)
    document = assembling.assemble(
        h200.fingerprint(**fields | changes),
        profile.model_copy(
            update={"excluded": tuple(c.model_copy(update={"fatal": True}) for c in profile.excluded)}
        ),
        h200.acceptance((0.0, 0.0)),
        documents.Control(),
        strategies.CREATED_AT,
        h200.PROMPT_TOKENS,
        h200.OUTPUT_TOKENS,
    )
    return [tables.length_at(document.table, size) for size in range(1, 9)]


def test_table_keeps_off_batch_sizes_whose_graphs_differ() -> None:
    # K=0 at 3, 5 and 6 requests and K=1 at 3; K=2 has no such batch size.
    every_size = tuple(range(1, 9))
    assert hazardous_lengths(every_size, drafter_method="draft_model") == [0] * 8
    lengths = hazardous_lengths(every_size)
    assert lengths[2] == 2
    assert 0 not in (lengths[4], lengths[5])


def test_table_keeps_off_a_fatal_cell_and_what_lies_between_its_neighbours() -> None:
    # The engine died at 4 requests with K=0; 2 and 8 were measured next to it, 3 and 5 to 7 were not.
    assert hazardous_lengths((2, 4, 8), cudagraph_mode="NONE") == [0] * 8
    lengths = hazardous_lengths((2, 4, 8), (4, 0), cudagraph_mode="NONE")
    assert 0 not in lengths[2:7]


def test_table_has_a_length_where_all_are_hazardous() -> None:
    assert hazardous_lengths((2, 4, 8), (4, 0), (4, 1), (4, 2), cudagraph_mode="NONE") == [0] * 8


def test_hazard_goes_before_goodput() -> None:
    # The live profile's K=0 at 3 requests and K=1 at 117 are mismatched, whatever they would bring.
    document = assembling.assemble(
        h200.fingerprint(),
        h200.live_profile(),
        h200.acceptance((0.76, 0.56, 0.42)),
        documents.Control(),
        strategies.CREATED_AT,
        h200.PROMPT_TOKENS,
        h200.OUTPUT_TOKENS,
    )
    mismatched = hazards.mismatched(document.fingerprint, document.profile.draft_lengths)
    for length, sizes in mismatched.items():
        assert not [size for size in sizes if tables.length_at(document.table, size) == length]


@settings(max_examples=40)
@given(st.data())
def test_any_profile_makes_a_document_that_is_read_again(data: st.DataObject) -> None:
    fingerprint = data.draw(strategies.fingerprints())
    profile = data.draw(strategies.profiles(max_batch_size=fingerprint.max_num_seqs))
    lengths = profile.draft_lengths
    excluded = {cell.draft_length for cell in profile.excluded}
    measured = tuple(draft_length for draft_length in lengths if draft_length not in excluded)
    document = assembling.assemble(
        fingerprint,
        profile,
        data.draw(strategies.acceptances(lengths[-1])),
        documents.Control(pinned=data.draw(strategies.pinned_ranges(measured, fingerprint.max_num_seqs))),
        strategies.CREATED_AT,
        data.draw(st.integers(1, 8_192)),
        data.draw(st.integers(1, 8_192)),
    )
    assert documents.parse(documents.dump(document)) == document
    assert document.max_batch_size == fingerprint.max_num_seqs
