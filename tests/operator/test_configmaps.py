"""What is written into ConfigMaps is read back, and whatever somebody else put there is refused."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest

from tabletune import documents
from tabletune.documents import DocumentError
from tabletune_operator import configmaps, observations
from tabletune_operator.configmaps import Origin
from tabletune_operator.observations import Entry, Report, Served
from tabletune_operator.owners import Owner
from tests.operator import objects

OWNER = Owner("ml", "qwen", "uid-1")


def test_a_generation_is_read_back_as_it_was() -> None:
    body = configmaps.history(OWNER, objects.example(), Origin("digest", "digest"))
    assert (body["metadata"]["name"], body["immutable"]) == ("qwen-g1", True)
    assert configmaps.read_history(body) == objects.example()
    seen = observations.config_map(body)
    assert isinstance(seen, Entry)
    assert (seen.generation, seen.owner, seen.accepted_digest) == (1, "uid-1", "digest")


def test_equal_documents_are_equal_entries() -> None:
    made = [configmaps.history(OWNER, objects.example(), Origin("a", "b")) for _ in range(2)]
    assert made[0] == made[1]


def test_a_served_one_is_intact_until_somebody_edits_it() -> None:
    body = configmaps.served(OWNER, "table", objects.example(), "settings")
    assert configmaps.read_document(body) == objects.example()
    seen = observations.config_map(body)
    assert isinstance(seen, Served)
    assert seen.intact
    body["data"]["table.json"] += " "
    edited = observations.config_map(body)
    assert isinstance(edited, Served)
    assert not edited.intact


def packed(data: bytes) -> dict[str, Any]:
    return {"binaryData": {"table.json.gz": base64.b64encode(data).decode()}}


HOSTILE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "null": {"binaryData": None},
    "no text": {"binaryData": {"table.json.gz": 3}},
    "no base64": {"binaryData": {"table.json.gz": "%%%"}},
    "no gzip": packed(b"\x00\x01"),
    "a bomb": packed(gzip.compress(b" " * 200_000_000)),
    "half": packed(gzip.compress(documents.dump(objects.example()))[:500]),
    "no document": packed(gzip.compress(b"{}")),
    "not text": packed(gzip.compress(b"\xff\xfe")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_entry_is_refused(case: str) -> None:
    with pytest.raises(DocumentError):
        configmaps.read_history(HOSTILE[case])


@pytest.mark.parametrize("text", [None, 3, "", "{}", "x" * 2_000_000, "[" * 100_000, '{"schemaVersion": 2}'])
def test_a_hostile_report_is_refused(text: Any) -> None:
    with pytest.raises(DocumentError):
        configmaps.read_document({"data": {"table.json": text}})


@pytest.mark.parametrize("progress", ["{", "[]", "3", "x" * 100_000, "[" * 1_900, '{"a": NaN}'])
def test_hostile_progress_is_none(progress: str) -> None:
    metadata = {"name": "r", "labels": {"tabletune.dev/role": "report"}}
    seen = observations.config_map({"metadata": metadata, "data": {"progress.json": progress}})
    assert isinstance(seen, Report)
    assert "phase" not in seen.progress
