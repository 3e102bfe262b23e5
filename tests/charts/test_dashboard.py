"""Every panel asks for what exists, and shows something where operator and plugin run."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dashboards
from tabletune.api.reasons import Condition
from tests.charts import exported
from tests.charts.exported import LATER, healthy, operator_text, pages, plugin_text
from tests.charts.helms import Helm, one
from tests.charts.queries import Page, Prometheus

DASHBOARD = json.loads(dashboards.render())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions(panel: dict[str, Any]) -> list[str]:
    """Return the panel's queries as Grafana would send them for the DraftTable of the pages."""
    chosen = {"$__rate_interval": "5m", "$namespace": "ml", "$draft_table": "qwen"}
    found = [target["expr"] for target in panel["targets"]]
    for name, value in chosen.items():
        found = [expression.replace(name, value) for expression in found]
    return found


def test_every_metric_exists() -> None:
    known = exported.names()
    for panel in PANELS:
        for expression in expressions(panel):
            used = set(re.findall(r"\btabletune_\w+", expression))
            assert used, panel["title"]
            assert used <= known, panel["title"]


@pytest.mark.cluster
@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_query_of_a_panel_finds_something(programs: dict[str, Path], panel: dict[str, Any]) -> None:
    degraded = {Condition.DEGRADED: ("True", "RolledBack")}
    operator = operator_text(healthy() | degraded)
    prometheus = Prometheus(
        programs["promql"], pages((operator, operator), (plugin_text(), plugin_text(100)))
    )
    for expression, found in zip(
        expressions(panel), prometheus.query(*expressions(panel), seconds=LATER), strict=True
    ):
        assert found, expression


SCRAPED = json.loads(gzip.decompress((Path(__file__).parent / "data" / "scraped-pages.json.gz").read_bytes()))
"""Pages of a real engine and a real operator; they tell themselves how they came to be."""


@pytest.mark.cluster
@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panels_show_what_was_scraped_from_a_real_engine(
    programs: dict[str, Path], panel: dict[str, Any]
) -> None:
    prometheus = Prometheus(programs["promql"], [Page(**page) for page in SCRAPED["pages"]])
    last = SCRAPED["pages"][-1]["seconds"]
    assert all(prometheus.query(*expressions(panel), seconds=last))


@pytest.mark.cluster
def test_what_is_no_more_on_a_page_is_no_more_shown(programs: dict[str, Path]) -> None:
    # As in Prometheus: without it, a condition that passed would be shown for five minutes.
    (panel,) = (panel for panel in PANELS if panel["title"] == "What needs a person")
    prometheus = Prometheus(programs["promql"], [Page(**page) for page in SCRAPED["pages"]])
    (found,) = prometheus.query(*expressions(panel), seconds=SCRAPED["pages"][-1]["seconds"])
    assert [sample.labels["draft_table"] for sample in found] == ["llama"]


@pytest.mark.cluster
def test_batch_sizes_are_sorted_by_number(programs: dict[str, Path]) -> None:
    (panel,) = (panel for panel in PANELS if panel["title"] == "Draft length by batch size")
    prometheus = Prometheus(
        programs["promql"], pages((operator_text(healthy()),) * 2, (plugin_text(), plugin_text(100)))
    )
    (found,) = prometheus.query(*expressions(panel), seconds=LATER)
    buckets = {sample.labels["batch"]: sample.labels["first"] for sample in found}
    assert buckets
    assert all(first == batch.partition("-")[0] for batch, first in buckets.items())
    sort = next(step for step in panel["transformations"] if step["id"] == "sortBy")
    assert sort["options"]["sort"] == [{"field": "first"}]


def test_panels_stand_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = set(cells(panel["gridPos"]))
        assert not place & taken, panel["title"]
        taken |= place
    assert {column for column, _ in taken} == set(range(dashboards.WIDTH))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for column in range(place["x"], place["x"] + place["w"]):
        for line in range(place["y"], place["y"] + place["h"]):
            yield column, line


def test_every_panel_says_what_it_shows() -> None:
    assert all(panel["title"] and panel["description"] for panel in PANELS)


@pytest.mark.cluster
def test_the_config_map_holds_it_unchanged(helm: Helm) -> None:
    found = one(helm.template({"dashboard": {"enabled": True}}), "ConfigMap")
    assert json.loads(found["data"]["tabletune.json"]) == DASHBOARD
