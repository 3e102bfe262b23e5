"""Every alert is valid, speaks of metrics that exist, fires at what it is about, and only then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tabletune.api.reasons import REASONS, Condition
from tabletune_plugin import states
from tests.charts import exported
from tests.charts.exported import LATER, healthy, operator_text, pages, plugin_text
from tests.charts.helms import CHART, ROOT, Helm, one
from tests.charts.queries import Prometheus

ALERTS = yaml.safe_load(
    (CHART / "files" / "alerts.yaml").read_text().replace("RELEASE_NAMESPACE", "tabletune-system")
)["alerts"]
EXPRESSIONS = {alert["alert"]: alert["expr"] for alert in ALERTS}
WARNINGS = [reason for reason in REASONS if reason.warning]


def test_every_metric_exists() -> None:
    known = exported.names()
    for name, expression in EXPRESSIONS.items():
        used = set(re.findall(r"\btabletune_\w+", expression))
        assert used, name
        assert used <= known, name


def test_the_alert_of_failed_profiles_names_every_reason_for_one() -> None:
    (listed,) = re.findall(r'reason=~"([^"]+)"', EXPRESSIONS["TableTuneProfileFailed"])
    wanted = [reason.name for reason in WARNINGS if reason.condition is Condition.PROFILED]
    assert listed.split("|") == wanted


def test_every_alert_has_a_section_of_its_own_in_the_documentation() -> None:
    page = (ROOT / "docs" / "operations" / "alerts.md").read_text()
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == list(EXPRESSIONS)


@pytest.mark.cluster
def test_prometheus_takes_the_rules_with_their_texts(helm: Helm, programs: dict[str, Path]) -> None:
    values = {"prometheusRule": {"enabled": True, "alertLabels": {"team": "x"}, "runbookUrl": "https://x/"}}
    spec = one(helm.template(values), "PrometheusRule")["spec"]
    assert Prometheus(programs["promql"]).rule_errors(yaml.safe_dump(spec)) == []
    rules = {rule["alert"]: rule for rule in spec["groups"][0]["rules"]}
    assert {name: rule["expr"] for name, rule in rules.items()} == EXPRESSIONS
    assert rules["TableTuneRolledBack"]["labels"] == {"severity": "warning", "team": "x"}
    assert rules["TableTuneRolledBack"]["annotations"]["runbook_url"] == "https://x/#tabletunerolledback"


@pytest.mark.cluster
def test_a_broken_rule_is_seen(programs: dict[str, Path]) -> None:
    rules = [
        {"alert": "A", "expr": "sum(x"},
        {"alert": "B", "expr": "x", "annotations": {"summary": "{{ $labels.x"}},
    ]
    errors = Prometheus(programs["promql"]).rule_errors(
        yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]})
    )
    assert len(errors) == 2


def firing(
    programs: dict[str, Path],
    conditions: dict[Condition, tuple[str, str]] | None = None,
    plugin: dict[str, Any] | None = None,
) -> set[str]:
    """Return the alerts whose expression holds, however long they then wait."""
    operator = operator_text(healthy() | (conditions or {}))
    prometheus = Prometheus(
        programs["promql"],
        pages((operator, operator), (plugin_text(), plugin_text(100, **plugin or {}))),
    )
    results = prometheus.query(*EXPRESSIONS.values(), seconds=LATER)
    return {name for name, found in zip(EXPRESSIONS, results, strict=True) if found}


@pytest.mark.cluster
def test_nothing_fires_where_all_is_well(programs: dict[str, Path]) -> None:
    assert firing(programs) == set()


@pytest.mark.cluster
@pytest.mark.parametrize("reason", WARNINGS, ids=lambda reason: reason.name)
def test_every_warning_in_a_status_fires_an_alert(programs: dict[str, Path], reason: Any) -> None:
    wanted = {
        Condition.PROFILED: {"TableTuneProfileFailed", "TableTuneTableStale"},
        Condition.SERVING: {f"TableTune{reason.name}"},
        Condition.DEGRADED: {"TableTuneNeedsAttention"},
    }[reason.condition]
    alone = {"FingerprintDrift": "TableTuneFingerprintDrift", "RolledBack": "TableTuneRolledBack"}
    wanted = {alone[reason.name]} if reason.name in alone else wanted
    if reason.name == "ProfileNeedsAttention":
        # Repeats what the condition Profiled says, which has an alert.
        wanted = set()
    if reason.name == "PodsInactive":
        # The pods' own metrics tell it, each with its reason.
        wanted = set()
    status = "True" if reason.condition is Condition.DEGRADED else "False"
    assert firing(programs, {reason.condition: (status, reason.name)}) == wanted


@pytest.mark.cluster
def test_a_profile_that_waits_makes_the_table_stale_unless_a_person_holds_it(
    programs: dict[str, Path],
) -> None:
    assert firing(programs, {Condition.PROFILED: ("False", "ProfileQueued")}) == {"TableTuneTableStale"}
    assert firing(programs, {Condition.PROFILED: ("False", "ProfilePaused")}) == set()
    # Without a table there is none to be stale.
    first = {Condition.READY: ("False", "NoTable"), Condition.PROFILED: ("False", "ProfileRunning")}
    assert firing(programs, first) == set()


@pytest.mark.cluster
def test_pods_that_do_not_follow_fire(programs: dict[str, Path]) -> None:
    assert firing(programs, {Condition.SERVING: ("False", "PodsBehind")}) == {"TableTunePodsBehind"}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("report", "wanted"),
    [
        ({"active": False, "reason": states.HOOKS_DIFFER}, "TableTunePluginInactive"),
        ({"active": False, "reason": states.NO_DOCUMENT}, "TableTuneNoTable"),
        ({"failures": 1}, "TableTunePluginErrors"),
    ],
)
def test_what_the_plugin_says_fires(programs: dict[str, Path], report: dict[str, Any], wanted: str) -> None:
    assert firing(programs, plugin=report) == {wanted}


@pytest.mark.cluster
def test_what_is_counted_fires_beyond_its_bound(programs: dict[str, Path]) -> None:
    plugin = plugin_text()
    slow = re.sub(r"(tabletune_step_median_seconds\{[^}]+\}) \S+", r"\1 9.0", plugin)
    gain = re.sub(r"(?m)^(tabletune_predicted_gain) \S+", r"\1 0.2", plugin)
    operator = operator_text(healthy())
    queued = operator.replace("tabletune_operator_queued 0.0", "tabletune_operator_queued 21.0")
    failed = re.sub(r'(reconciles_total\{result="failed"\}) \S+', r"\1 3.0", operator)
    gone = operator.replace("tabletune_operator_leading 1.0", "tabletune_operator_leading 0.0")
    assert len({plugin, slow, gain}) == 3
    assert len({operator, queued, failed, gone}) == 4
    for given, wanted in (
        (pages((operator, queued), (plugin, plugin)), "TableTuneOperatorBehind"),
        (pages((operator, failed), (plugin, plugin)), "TableTuneOperatorErrors"),
        (pages((operator, gone), (plugin, plugin)), "TableTuneOperatorDown"),
        (pages((operator, operator), (plugin, slow)), "TableTuneStepTimesDiffer"),
        (pages((operator, operator), (plugin, gain)), "TableTuneBetterTableKnown"),
    ):
        prometheus = Prometheus(programs["promql"], given)
        results = prometheus.query(*EXPRESSIONS.values(), seconds=LATER)
        assert {name for name, found in zip(EXPRESSIONS, results, strict=True) if found} == {wanted}


def test_what_alerts_and_panels_watch_grow_is_there_before_it_first_grows() -> None:
    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "from prometheus_client import generate_latest; from tabletune_operator.metrics import REGISTRY;"
            " print(generate_latest(REGISTRY).decode())",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    assert 'tabletune_operator_reconciles_total{result="failed"} 0.0' in shown
    assert 'tabletune_operator_generations_total{source="repeated"} 0.0' in shown


@pytest.mark.cluster
def test_an_operator_elsewhere_does_not_speak_for_this_one(programs: dict[str, Path]) -> None:
    (operator, *_) = pages((operator_text(healthy()),) * 2, (plugin_text(),) * 2)
    other = type(operator)(operator.text, {**operator.labels, "namespace": "elsewhere"}, LATER)
    (found,) = Prometheus(programs["promql"], [other]).query(
        EXPRESSIONS["TableTuneOperatorDown"], seconds=LATER
    )
    assert len(found) == 1


def test_no_alert_of_ours_wakes_anybody() -> None:
    # Engines serve on without TableTune.
    assert {alert["severity"] for alert in ALERTS} == {"warning", "info"}
