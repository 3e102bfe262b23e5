from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import documents
from tests.core import strategies

Content = dict[str, Any]


@pytest.fixture
def content() -> Content:
    """What a JSON parser gives of a small good document."""
    parsed: Content = json.loads(documents.dump(strategies.example()))
    return parsed


def problems(data: object) -> list[documents.Problem]:
    """The faults for which ``data`` is refused."""
    text = data if isinstance(data, bytes | str) else json.dumps(data)
    with pytest.raises(documents.DocumentError) as refused:
        documents.parse(text)
    assert str(refused.value)
    return list(refused.value.problems)


def put(content: Content, path: str, value: object) -> Content:
    """Return ``content`` with ``value`` at ``path``, like ``profile.stepTimeMs[0][2]``."""
    *parents, last = [int(part) if part.isdigit() else part for part in re.findall(r"\w+", path)]
    place: Any = content
    for part in parents:
        place = place[part]
    place[last] = value
    return content


@settings(max_examples=40)
@given(strategies.whole_documents())
def test_read_and_written_again_the_document_is_the_same_bytes(document: documents.Document) -> None:
    written = documents.dump(document)
    read = documents.parse(written)
    assert read == document
    assert documents.dump(read) == written


@settings(max_examples=40)
@given(strategies.whole_documents(), st.randoms(use_true_random=False))
def test_equal_content_is_equal_bytes_in_any_order_of_keys(
    document: documents.Document, random: Random
) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return [shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        items = list(value.items())
        random.shuffle(items)
        return {key: shuffled(item) for key, item in items}

    written = documents.dump(document)
    other = json.dumps(shuffled(json.loads(written)), indent=random.choice([None, 3]))
    assert documents.dump(documents.parse(other)) == written


@settings(max_examples=20)
@given(strategies.whole_documents())
def test_other_content_is_other_bytes(document: documents.Document) -> None:
    other = document.model_copy(update={"generation": document.generation + 1})
    assert documents.dump(other) != documents.dump(document)


def test_written_document_is_sorted_utf8_json_with_a_newline_at_the_end() -> None:
    document = strategies.example(engine=strategies.fingerprint(model="Zürich/模型"))
    written = documents.dump(document)
    assert written.endswith(b"}\n")
    assert "Zürich/模型" in written.decode()
    keys = list(json.loads(written))
    assert keys == sorted(keys)
    assert '"stepTimeMs"' in written.decode()
    assert "[4.8, null, 14.0]" in written.decode(), "a row of a grid reads as a row"


def test_text_that_looks_like_a_list_is_written_unchanged() -> None:
    document = strategies.example(engine=strategies.fingerprint(model="[\n 1,\n 2\n]"))
    assert documents.parse(documents.dump(document)).fingerprint.model == "[\n 1,\n 2\n]"


def test_negative_zero_is_written_as_zero(content: Content) -> None:
    zero, negative = (
        documents.dump(documents.parse(json.dumps(put(content, "control.mergeTolerance", value))))
        for value in (0.0, -0.0)
    )
    assert zero == negative


def test_time_is_written_in_utc_and_whole_seconds(content: Content) -> None:
    put(content, "createdAt", "2026-11-29T14:00:05.250+02:00")
    document = documents.parse(json.dumps(content))
    assert b'"2026-11-29T12:00:05Z"' in documents.dump(document)
    assert document.created_at == datetime(2026, 11, 29, 12, 0, 5, tzinfo=UTC)


def test_byte_order_mark_is_passed_over() -> None:
    written = documents.dump(strategies.example())
    assert documents.dump(documents.parse(b"\xef\xbb\xbf" + written)) == written


def test_largest_batch_size_is_the_tables_last() -> None:
    assert strategies.example().max_batch_size == 16


BAD_VALUES: list[tuple[str, object, str]] = [
    ("profile.stepTimeMs[0][1]", -1.0, "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[0][1]", 0, "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[0][1]", 1e300, "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[0][1]", "fast", "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[0][1]", None, "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[2][1]", 5.0, "profile.stepTimeMs[2][1]"),
    ("profile.stepTimeMs[1]", [4.4, 4.8], "profile.stepTimeMs"),
    ("profile.stepTimeMs", [[4.0, 4.2, 6.0]], "profile.stepTimeMs"),
    ("profile.spreadMs[0]", [], "profile.spreadMs"),
    ("profile.spreadMs[0][0]", -0.1, "profile.spreadMs[0][0]"),
    ("profile.samples[0]", [30, 30, 30, 30], "profile.samples"),
    ("profile.samples[0][0]", -1, "profile.samples[0][0]"),
    ("profile.samples[0][0]", 2**60, "profile.samples[0][0]"),
    ("profile.graph", [], "profile.graph"),
    ("profile.graph[0][0]", "partial", "profile.graph[0][0]"),
    ("profile.batchSizes", [1, 16, 4], "profile.batchSizes[2]"),
    ("profile.batchSizes", [], "profile.batchSizes"),
    ("profile.batchSizes[0]", 0, "profile.batchSizes[0]"),
    ("profile.batchSizes", list(range(1, 5_000)), "profile.batchSizes"),
    ("profile.draftLengths", [0, 1, 1], "profile.draftLengths[2]"),
    ("profile.draftLengths[2]", 65, "profile.draftLengths[2]"),
    ("profile.measure", "stopwatch", "profile.measure"),
    ("profile.contextLength", 0, "profile.contextLength"),
    ("profile.excluded", [], "profile.stepTimeMs[2][1]"),
    ("acceptance.survival[0]", 1.01, "acceptance.survival[0]"),
    ("acceptance.survival[1]", -0.01, "acceptance.survival[1]"),
    ("acceptance.survival[1]", 0.9, "acceptance.survival[1]"),
    ("acceptance.survival", [0.8], "acceptance.survival"),
    ("acceptance.accepted[1]", 9_001, "acceptance.accepted[1]"),
    ("acceptance.proposalRate", 1.5, "acceptance.proposalRate"),
    ("table", [], "table"),
    ("table", [[2, 16, 1]], "table[0]"),
    ("table", [[1, 4, 1], [6, 16, 2]], "table[1]"),
    ("table", [[1, 4, 1], [4, 16, 2]], "table[1]"),
    ("table", [[1, 4, 1], [5, 4, 2]], "table[1]"),
    ("table", [[1, 16, 3]], "table[0][2]"),
    ("table", [[1, 16]], "table[0][2]"),
    ("table", [[1, 1.5, 1]], "table[0][1]"),
    ("table", [[1, 1, 1]] * 5_000, "table"),
    ("table", [[1, 4, 1], [5, 65_000, 2]], "table[1]"),
    ("table[0][0]", True, "table[0][0]"),
    ("table[0][0]", "1", "table[0][0]"),
    ("generation", 1.0, "generation"),
    ("profile.stepTimeMs[0][1]", 5e-324, "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[0][1]", True, "profile.stepTimeMs[0][1]"),
    ("profile.stepTimeMs[0][1]", "4.0", "profile.stepTimeMs[0][1]"),
    ("profile.spreadMs[0][0]", "0.1", "profile.spreadMs[0][0]"),
    ("profile.samples[0][0]", "30", "profile.samples[0][0]"),
    ("profile.contextLength", True, "profile.contextLength"),
    ("acceptance.proposalRate", True, "acceptance.proposalRate"),
    ("fingerprint.gpuCount", "1", "fingerprint.gpuCount"),
    ("fingerprint.asyncScheduling", 1, "fingerprint.asyncScheduling"),
    ("control.halfLife", "60", "control.halfLife"),
    ("control.priorDrafts", False, "control.priorDrafts"),
    ("engine.predictedGain", "0.1", "engine.predictedGain"),
    ("engine.cudagraphCaptureSizes", ["1"], "engine.cudagraphCaptureSizes[0]"),
    ("schemaVersion", 2, "schemaVersion"),
    ("schemaVersion", "1", "schemaVersion"),
    ("schemaVersion", True, "schemaVersion"),
    ("schemaVersion", None, "schemaVersion"),
    ("generation", 0, "generation"),
    ("generation", 10**400, "generation"),
    ("createdAt", "yesterday", "createdAt"),
    ("createdAt", 1_764_470_000, "createdAt"),
    ("createdAt", "1764470000", "createdAt"),
    ("createdAt", "2026-11-29T12:00:00", "createdAt"),
    ("createdAt", "0001-01-01T00:00:00+14:00", "createdAt"),
    ("fingerprint.runner", "V3", "fingerprint.runner"),
    ("fingerprint.maxNumSeqs", 0, "fingerprint.maxNumSeqs"),
    ("fingerprint.model", "x" * 5_000, "fingerprint.model"),
    ("fingerprint.model", None, "fingerprint.model"),
    ("recommendation.kind", "maybe", "recommendation.kind"),
    ("control.hysteresis", 1.1, "control.hysteresis"),
    ("control.halfLife", 0, "control.halfLife"),
    ("control.allowedLengths", [2, 1], "control.allowedLengths"),
    ("control.pinned", [[4, 8, 1], [8, 9, 1]], "control.pinned[1]"),
    ("prediction.off", [1.0], "prediction.off"),
    ("prediction.table[0]", -1, "prediction.table[0]"),
    ("speculativeConfig.num_speculative_tokens_per_batch_size", [], "speculativeConfig"),
    ("speculativeConfig.deep", [[[[[1]]]]], "speculativeConfig"),
    ("speculativeConfig.long", "x" * 20_000, "speculativeConfig"),
    ("unknown", 1, "unknown"),
    ("profile.unknown", 1, "profile.unknown"),
    ("control.half_Life", 1, "control.half_Life"),
    ("engine.changes", [{"setting": "x"}], "engine.changes[0].current"),
]


@pytest.mark.parametrize(
    ("path", "value", "told"), BAD_VALUES, ids=[f"{path}={value!r:.20}" for path, value, _ in BAD_VALUES]
)
def test_bad_value_is_refused_with_its_path(content: Content, path: str, value: object, told: str) -> None:
    found = problems(put(content, path, value))
    assert any(problem.path.startswith(told) for problem in found), [str(problem) for problem in found]
    assert all(problem.expected for problem in found)


def test_missing_field_is_refused_with_its_path(content: Content) -> None:
    del content["profile"]["contextLength"], content["table"]
    assert sorted(problem.path for problem in problems(content)) == ["profile.contextLength", "table"]


def test_every_fault_is_told_at_once(content: Content) -> None:
    put(content, "generation", 0)
    put(content, "fingerprint.runner", "V3")
    put(content, "acceptance.proposalRate", 2)
    assert {problem.path for problem in problems(content)} == {
        "generation",
        "fingerprint.runner",
        "acceptance.proposalRate",
    }


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_number_that_is_not_finite_is_refused(content: Content, number: str) -> None:
    text = json.dumps(put(content, "profile.stepTimeMs[0][0]", "HERE")).replace('"HERE"', number)
    (problem,) = problems(text)
    assert problem.path == ("profile.stepTimeMs[0][0]" if number == "1e999" else "")


NO_DOCUMENTS: dict[str, Callable[[], bytes | str]] = {
    "empty": lambda: b"",
    "null": lambda: b"null",
    "a list": lambda: b"[]",
    "a string": lambda: b'"document"',
    "cut": lambda: documents.dump(strategies.example())[:-20],
    "two documents": lambda: documents.dump(strategies.example()) * 2,
    "Latin-1": lambda: '{"caf\u00e9": 1}'.encode("latin-1"),
    "UTF-16": lambda: documents.dump(strategies.example()).decode().encode("utf-16"),
    "binary": lambda: bytes(range(256)),
    "half a surrogate pair": lambda: documents.dump(strategies.example()).replace(b"H200", b"\\ud800"),
    "a long number": lambda: '{"generation": ' + "9" * 10_000 + "}",
    "deep lists": lambda: '{"table": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep objects": lambda: '{"speculativeConfig": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}",
    "deep enough to parse": lambda: '{"generation": ' + "[" * 900 + "]" * 900 + "}",
    "YAML": lambda: "schemaVersion: 1",
}


@pytest.mark.parametrize("kind", NO_DOCUMENTS)
def test_what_is_no_document_is_refused(kind: str) -> None:
    for problem in problems(NO_DOCUMENTS[kind]()):
        assert len(str(problem)) < 2_000


def test_too_large_text_is_refused_unread() -> None:
    size = documents.MAX_DOCUMENT_BYTES + 1
    (problem,) = problems(b" " * size)
    assert str(problem) == f"document: must be at most 900000 bytes (found {size} bytes)"


@settings(max_examples=60)
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
        lambda children: (
            st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=9), children, max_size=4)
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_anything_else_is_refused_and_raises_nothing_else(data: bytes | str) -> None:
    assert problems(data)


@settings(max_examples=100)
@given(st.data())
def test_good_document_with_one_part_replaced_is_refused_or_equal_to_its_bytes(data: st.DataObject) -> None:
    content = json.loads(documents.dump(strategies.example()))
    place: Any = content
    while isinstance(place, dict | list) and place:
        parent = place
        key = data.draw(
            st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1)
        )
        place = place[key]
        if data.draw(st.booleans()):
            break
    parent[key] = data.draw(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5))
    try:
        document = documents.parse(json.dumps(content))
    except documents.DocumentError:
        return
    assert documents.parse(documents.dump(document)) == document


def test_integer_is_a_float(content: Content) -> None:
    document = documents.parse(json.dumps(put(content, "control.halfLife", 60)))
    assert document.control.half_life == 60.0


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"null", "document: must be a JSON object (found null)"),
        (b"[]", "document: must be a JSON object (found [])"),
        (b"\xff\xfe", "document: must be text in UTF-8 (found byte 0xff at offset 0)"),
        (b"[" * 100_000, "document: must not be nested so deeply"),
        (b'{"a": 1%s}' % (b"0" * 9_000), "an integer of 9001 digits is too large"),
        (b'{"a": {"key": 1, "key": 1}}', "the key 'key' is given twice in one object"),
    ],
    ids=["null", "list", "latin1", "nested", "digits", "twice"],
)
def test_text_that_is_no_document_is_told_plainly(data: bytes, told: str) -> None:
    (problem,) = problems(data)
    assert told in str(problem)


def test_empty_table_is_told_plainly(content: Content) -> None:
    (problem,) = problems(put(content, "table", []))
    assert str(problem) == "table: must have at least one entry (found [])"


def test_part_that_is_no_object_is_told_plainly(content: Content) -> None:
    (problem,) = problems(put(content, "control", None))
    assert str(problem) == "control: must be a JSON object (found null)"
