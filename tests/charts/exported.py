"""Metrics pages of operator and plugin, made by their own code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

import plugin_examples
from tabletune.api.reasons import Condition
from tabletune_operator import main, metrics
from tabletune_operator.observations import DraftTable
from tabletune_plugin.metrics import PluginCollector
from tests.charts.queries import Page

OPERATOR = {"job": "tabletune-operator", "namespace": "tabletune-system", "pod": "tabletune-operator-1"}
PLUGIN = {"job": "tabletune", "namespace": "ml", "pod": "decode-1", "draft_table": "qwen"}
START = 1_000_000.0
LATER = START + 60.0


def operator_text(conditions: Mapping[Condition, tuple[str, str]]) -> str:
    """Return the operator's page where one DraftTable has these conditions: status and reason by type."""
    told = [
        {"type": str(kind), "status": status, "reason": reason}
        for kind, (status, reason) in conditions.items()
    ]
    table = DraftTable("ml", "qwen", "u", "", 1, {}, {"conditions": told}, "", False)
    main._count_conditions([table])
    metrics.LEADING.set(1)
    metrics.QUEUED.set(0)
    metrics.RECONCILES.labels(result="done").inc()
    metrics.RECONCILE_SECONDS.observe(0.01)
    metrics.REQUESTS.labels(verb="GET", kind="Pod", code="200").inc()
    metrics.SCRAPES.labels(result="ok").inc()
    metrics.GENERATIONS.labels(source="profile").inc()
    metrics.TABLES.labels(phase="Ready").set(1)
    metrics.PODS.labels(state="all").set(2)
    metrics.JOBS.labels(result="started").inc()
    return generate_latest(metrics.REGISTRY).decode()


def plugin_text(steps: int = 1, **report: Any) -> str:
    """Return the plugin's page after ``steps``, with these changes of its report."""
    found = plugin_examples.snapshot()
    assert found.totals is not None
    totals = dataclasses.replace(
        found.totals,
        drafted=tuple(steps * count for count in found.totals.drafted),
        accepted=tuple(steps * count for count in found.totals.accepted),
        steps={
            cell: (steps * count, steps * seconds, steps * tokens)
            for cell, (count, seconds, tokens) in found.totals.steps.items()
        },
    )
    changed = dataclasses.replace(found.report, **report)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PluginCollector(lambda: dataclasses.replace(found, totals=totals, report=changed)))
    return generate_latest(registry).decode()


def pages(operator: tuple[str, str], plugin: tuple[str, str]) -> list[Page]:
    """Return what Prometheus scraped at two moments."""
    return [
        page
        for number, seconds in enumerate((START, LATER))
        for page in (Page(operator[number], OPERATOR, seconds), Page(plugin[number], PLUGIN, seconds))
    ]


def names() -> set[str]:
    """Return the names of all series that operator and plugin can export."""
    return set(_series(operator_text({Condition.READY: ("True", "TableInForce")}))) | set(
        _series(plugin_text())
    )


def _series(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            yield re.split(r"[{ ]", line, maxsplit=1)[0]


def healthy() -> dict[Condition, tuple[str, str]]:
    """Return the conditions of a DraftTable that needs nobody."""
    return {
        Condition.READY: ("True", "TableInForce"),
        Condition.PROFILED: ("True", "ProfileSucceeded"),
        Condition.SERVING: ("True", "PodsUpToDate"),
        Condition.DEGRADED: ("False", "Healthy"),
    }
