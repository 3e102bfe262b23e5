"""The pure parts of the scenarios."""

from __future__ import annotations

from e2e.scenarios import stories

PAGE = """\
# HELP tabletune_active ...
tabletune_active{reason="Following"} 1.0
tabletune_drafted_total{position="1"} 3.0
tabletune_drafted_total{position="2"} 4.0
tabletune_table_generation 7.0
tabletune_reloads_total{result="a b"} 1e+03
"""


def test_samples_are_read_by_name_with_labels() -> None:
    found = stories.samples(PAGE)
    assert found['tabletune_active{reason="Following"}'] == 1
    assert found["tabletune_table_generation"] == 7
    assert found['tabletune_reloads_total{result="a b"}'] == 1_000
    assert stories.total(found, "tabletune_drafted_total") == 7


def test_a_table_gives_each_batch_size_its_length() -> None:
    assert stories.lookup({"table": [[1, 2, 3], [3, 4, 0]]}) == {1: 3, 2: 3, 3: 0, 4: 0}


def test_a_pod_is_ready_by_its_condition_alone() -> None:
    assert stories.is_ready({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert not stories.is_ready({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    assert not stories.is_ready({"status": {"phase": "Running"}})
