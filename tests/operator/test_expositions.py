"""A pod's metrics are read whatever the page holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tabletune.documents import Control
from tabletune_operator import expositions
from tabletune_operator.expositions import Reading
from tabletune_plugin.metrics import PluginCollector, Snapshot
from tests.plugin import engines
from tests.plugin.test_controller import Rig
from tests.plugin.test_metrics import SETTINGS


def test_the_plugins_own_page_is_understood(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "table.json", TABLETUNE_MODE="adapt")
    rig.write(engines.document((2, 2, 2, 2), control=Control(min_drafts=100)))
    rig.tick()
    for _ in range(3):
        rig.serve(100, length=2, accepted=(1, 0))
        rig.tick(2)
    snapshot = Snapshot(rig.report, rig.engine, SETTINGS, rig.tally.totals(), 0)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PluginCollector(lambda: snapshot))
    page = generate_latest(registry).decode()
    told = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    assert list(expositions.samples(page)) == [(one.name, one.labels, one.value) for one in told]
    reading = expositions.parse(page)
    totals = rig.tally.totals()
    assert (reading.active, reading.generation) == (True, 1)
    assert tuple(reading.drafted.values()) == totals.drafted
    assert tuple(reading.accepted.values()) == totals.accepted
    assert sum(reading.steps.values()) == sum(count for count, _, _ in totals.steps.values())
    assert sum(reading.tokens.values()) == sum(tokens for _, _, tokens in totals.steps.values())
    assert reading.medians_ms.keys() == totals.recent_ms.keys()


PAGE = """# HELP tabletune_active text
tabletune_active{reason="Active"} 1.0
tabletune_table_generation 7.0
tabletune_fingerprint_differs{field="gpu",minor="no"} 1.0
tabletune_fingerprint_differs{field="driver",minor="yes"} 1.0
tabletune_drafted_total{position="1"} 100.0
tabletune_accepted_total{position="1"} 60.0
tabletune_requests_total{proposed="yes"} 90.0
tabletune_steps_total{batch="5-6",length="2",kind="decode"} 10.0
tabletune_steps_total{batch="5-6",length="2",kind="mixed"} 5.0
tabletune_step_median_seconds{batch="5-6",length="2"} 0.0041
vllm:num_requests_running 3.0
"""


def test_a_page_is_read_by_what_it_says() -> None:
    reading = expositions.parse(PAGE)
    assert (reading.generation, reading.active, reading.reason, reading.differs) == (
        7,
        True,
        "Active",
        ("gpu",),
    )
    assert (reading.drafted, reading.accepted, reading.proposed) == ({1: 100.0}, {1: 60.0}, 90.0)
    assert reading.steps == {"5-6": 15.0}
    assert reading.medians_ms == {("5-6", 2): pytest.approx(4.1)}


HOSTILE = [
    "",
    "\x00\xff" * 1_000,
    "tabletune_active" * 100_000,
    "tabletune_active{" + 'a="b",' * 10_000 + "} 1",
    'tabletune_drafted_total{position="1"} NaN',
    'tabletune_drafted_total{position="1"} -5',
    'tabletune_drafted_total{position="1"} 1e300',
    'tabletune_drafted_total{position="1"} +Inf',
    'tabletune_drafted_total{position="-1"} 5',
    'tabletune_drafted_total{position="99999999999999999999"} 5',
    'tabletune_drafted_total{position="x"} 5',
    'tabletune_steps_total{batch="../../etc"} 5',
    "tabletune_drafted_total 1.1.1",
]


@pytest.mark.parametrize("page", HOSTILE, ids=lambda page: repr(page[:40]))
def test_a_hostile_page_says_nothing(page: str) -> None:
    assert expositions.parse(page) == Reading()


def test_no_page_grows_without_bound_or_raises() -> None:
    dice = random.Random(1)
    many = "\n".join(f'tabletune_steps_total{{batch="{number}"}} 1' for number in range(50_000))
    assert len(expositions.parse(many).steps) <= expositions.MAX_CELLS
    for _ in range(300):
        letters = list(PAGE)
        for _ in range(20):
            letters[dice.randrange(len(letters))] = chr(dice.randrange(1, 0x2FF))
        expositions.parse("".join(letters))


def test_a_bucket_stands_for_its_middle() -> None:
    assert [expositions.middle(bucket) for bucket in ("1", "5-6", "33-48", "x")] == [1, 5, 40, 0]
