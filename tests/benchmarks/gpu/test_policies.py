"""What an engine is served with."""

from __future__ import annotations

from tabletune import documents, tables
from tests.benchmarks.gpu import made

from gpu import policies  # isort: skip

RESULTS = made.ROOT / "benchmarks" / "results"


def test_stored_document_is_served_with_the_table_of_today() -> None:
    # Made before prompts counted: three drafts at 128 requests, where one is best (docs/performance.md).
    stored = documents.parse((RESULTS / "gpu" / "h200-qwen3-4b-eagle3-default.json").read_bytes())
    found = policies.of_today(stored, 256, 500)
    assert (tables.length_at(stored.table, 128), tables.length_at(found.table, 128)) == (3, 1)
    assert found.profile == stored.profile
    assert (found.engine.prompt_tokens, found.engine.output_tokens) == (256, 500)


def test_table_of_the_advised_sizes_is_that_of_the_first_day() -> None:
    stored = documents.parse((RESULTS / "off-h200-eagle3-document.json").read_bytes())
    assert policies.of_today(stored, 256, 500).table == stored.table
