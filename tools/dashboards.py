"""The Grafana dashboard as Python values; `generate_chart.py` writes it into the chart.

Grafana's own JSON repeats thirty lines for a panel, among which nobody sees a wrong query in a review. Here a
panel is its title, its queries and what is special about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH = 24
"""Columns of Grafana's grid."""
PLUGIN = 'namespace=~"$namespace",draft_table=~"$draft_table"'
"""Matchers of the plugin's metrics: the DraftTable that is looked at."""
RATE = "$__rate_interval"
"""Grafana's window for rates, never shorter than four scrapes."""
FIRST = '"first", "$1", "batch", "([0-9]+).*"'
"""Arguments by which label_replace adds a bucket's first batch size, to sort by: as text, 16 is before 2."""


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    expression: str
    legend: str = "__auto"


@dataclass(frozen=True)
class Panel:
    """One panel, as wide as its row has room for."""

    title: str
    description: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    stacked: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    transformations: Sequence[Mapping[str, Any]] = ()

    @property
    def instant(self) -> bool:
        """Whether it shows one moment, as a table of samples."""
        return self.kind in ("table", "barchart", "stat")


def _by_batch(*hidden: str) -> list[dict[str, Any]]:
    """Return transformations of a table of samples: sorted by batch size, without what only helps."""
    return [
        {"id": "convertFieldType", "options": {"conversions": _to_numbers("first", "length")}},
        {"id": "sortBy", "options": {"sort": [{"field": "first"}]}},
        {"id": "organize", "options": {"excludeByName": dict.fromkeys(("Time", "first", *hidden), True)}},
    ]


def _to_numbers(*names: str) -> list[dict[str, str]]:
    return [{"targetField": name, "destinationType": "number"} for name in names]


ROWS: Mapping[str, Sequence[Panel]] = {
    "All DraftTables": (
        Panel(
            "DraftTables by phase",
            "Failed and Degraded want a person.",
            [Query("sum by (phase) (tabletune_operator_draft_tables)", "{{phase}}")],
            kind="stat",
        ),
        Panel(
            "What needs a person",
            "kubectl describe dt NAME tells what to do.",
            [
                Query(
                    "max by (namespace, draft_table, reason)"
                    ' (tabletune_operator_draft_table_condition{condition="Degraded",status="True"})'
                )
            ],
            kind="table",
            transformations=[
                {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}},
            ],
        ),
        Panel(
            "Serving pods",
            "All pods that DraftTables select, and those that follow the newest table, cannot be read, or do"
            " nothing.",
            [Query("sum by (state) (tabletune_operator_serving_pods)", "{{state}}")],
        ),
        Panel(
            "Generations put in force",
            "By what they came from: a profile, a correction from live traffic, or going back.",
            [
                Query(
                    f"sum by (source) (increase(tabletune_operator_generations_total[{RATE}]))", "{{source}}"
                )
            ],
        ),
    ),
    "The table of $namespace/$draft_table": (
        Panel(
            "Draft length by batch size",
            "The table in force. Where pods differ, the longest length.",
            [Query(f"max by (batch, first) (label_replace(tabletune_table_length{{{PLUGIN}}}, {FIRST}))")],
            kind="barchart",
            options={"xField": "batch", "showValue": "always", "legend": {"showLegend": False}},
            transformations=_by_batch(),
        ),
        Panel(
            "Draft length over time",
            "A line for each range of batch sizes, coloured by the length. It changes with a new table, or by"
            " a correction inside a pod.",
            [Query(f"max by (batch) (tabletune_table_length{{{PLUGIN}}})", "{{batch}}")],
            kind="state-timeline",
        ),
        Panel(
            "Generation by pod",
            "Lines that stay apart are pods that do not follow.",
            [Query(f"tabletune_table_generation{{{PLUGIN}}}", "{{pod}}")],
        ),
    ),
    "Acceptance": (
        Panel(
            "Survival, counted",
            "Share of drafts whose guesses up to the position were all accepted.",
            [
                Query(
                    f"sum by (position) (rate(tabletune_accepted_total{{{PLUGIN}}}[{RATE}]))"
                    f" / sum by (position) (rate(tabletune_drafted_total{{{PLUGIN}}}[{RATE}]))",
                    "position {{position}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Survival, as believed",
            "The estimate that the control goes by, in modes observe and adapt: counts fade, and the profile"
            " weighs in.",
            [
                Query(f"avg by (position) (tabletune_survival{{{PLUGIN}}})", "position {{position}}"),
                Query(f"avg(tabletune_proposal_rate{{{PLUGIN}}})", "proposal rate"),
            ],
            unit="percentunit",
        ),
    ),
    "Step times": (
        Panel(
            "Live and profiled",
            "Pure decode steps, mean over pods. Only cells that ran have a live time.",
            [
                Query(
                    "avg by (batch, first, length)"
                    f" (label_replace(tabletune_step_median_seconds{{{PLUGIN}}}, {FIRST}))",
                    "live",
                ),
                Query(
                    "avg by (batch, first, length)"
                    f" (label_replace(tabletune_profiled_step_seconds{{{PLUGIN}}}, {FIRST}))",
                    "profiled",
                ),
            ],
            kind="table",
            unit="s",
            transformations=[
                {"id": "merge", "options": {}},
                *_by_batch(),
                {
                    "id": "organize",
                    "options": {"renameByName": {"Value #A": "live", "Value #B": "profiled"}},
                },
            ],
        ),
        Panel(
            "Live over profiled",
            "1 is as profiled. Each line is a batch size, mean over lengths and pods.",
            [
                Query(
                    "avg by (batch)"
                    f" (tabletune_step_median_seconds{{{PLUGIN}}}"
                    f" / tabletune_profiled_step_seconds{{{PLUGIN}}})",
                    "{{batch}}",
                )
            ],
        ),
        Panel(
            "Steps by draft length",
            "Share of engine steps at each length.",
            [Query(f"sum by (length) (rate(tabletune_steps_total{{{PLUGIN}}}[{RATE}]))", "K = {{length}}")],
            unit="ops",
            stacked=True,
        ),
    ),
    "Goodput": (
        Panel(
            "Kept tokens per second",
            "Output tokens of all steps, by pod.",
            [Query(f"sum by (pod) (rate(tabletune_kept_tokens_total{{{PLUGIN}}}[{RATE}]))", "{{pod}}")],
            stacked=True,
        ),
        Panel(
            "Kept tokens per second of engine time",
            "By batch size: what the table is chosen for. It does not fall when fewer requests come.",
            [
                Query(
                    f"sum by (batch) (rate(tabletune_kept_tokens_total{{{PLUGIN}}}[{RATE}]))"
                    f" / sum by (batch) (rate(tabletune_step_seconds_total{{{PLUGIN}}}[{RATE}]))",
                    "{{batch}}",
                )
            ],
        ),
        Panel(
            "Predicted gain of another table",
            "Largest of any batch size. It stays above the hysteresis only where pins, allowed lengths or the"
            " mode observe hold the table.",
            [Query(f"max by (pod) (tabletune_predicted_gain{{{PLUGIN}}})", "{{pod}}")],
            unit="percentunit",
        ),
    ),
    "The plugin": (
        Panel(
            "What it does",
            "Pods by the plugin's reason.",
            [Query(f"count by (reason) (tabletune_active{{{PLUGIN}}})", "{{reason}}")],
        ),
        Panel(
            "Reloads of the table",
            "By what became of them.",
            [Query(f"sum by (result) (increase(tabletune_reloads_total{{{PLUGIN}}}[{RATE}]))", "{{result}}")],
        ),
        Panel(
            "Corrections inside pods",
            "In mode adapt; in mode observe, those that would have been made.",
            [
                Query(f"sum(increase(tabletune_corrections_total{{{PLUGIN}}}[{RATE}]))", "corrections"),
                Query(f"sum(increase(tabletune_shifts_total{{{PLUGIN}}}[{RATE}]))", "switches of traffic"),
                Query(f"sum(increase(tabletune_explorations_total{{{PLUGIN}}}[{RATE}]))", "explorations"),
                Query(f"sum(increase(tabletune_failures_total{{{PLUGIN}}}[{RATE}]))", "failures"),
            ],
        ),
    ),
    "The operator": (
        Panel(
            "Looks at DraftTables",
            "By how they ended. failed is a fault, unavailable is the API server.",
            [
                Query(
                    f"sum by (result) (rate(tabletune_operator_reconciles_total[{RATE}]))",
                    "{{result}}",
                )
            ],
            unit="ops",
        ),
        Panel(
            "Duration of a look, 99%, and queue",
            "Seconds; DraftTables that wait.",
            [
                Query(
                    "histogram_quantile(0.99, sum by (le)"
                    f" (rate(tabletune_operator_reconcile_seconds_bucket[{RATE}])))",
                    "seconds",
                ),
                Query("max(tabletune_operator_queued)", "queued"),
            ],
        ),
        Panel(
            "Requests to the API server",
            "By status code; 0 is no answer.",
            [
                Query(
                    f"sum by (code) (rate(tabletune_operator_api_requests_total[{RATE}]))",
                    "{{code}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            "Reads of serving pods",
            "By result.",
            [Query(f"sum by (result) (rate(tabletune_operator_scrapes_total[{RATE}]))", "{{result}}")],
            unit="ops",
        ),
    ),
}
"""Panels by row."""


def render() -> str:
    """Return the dashboard as Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        head: dict[str, Any] = {
            "type": "row",
            "title": title,
            "gridPos": _place(0, top, WIDTH, 1),
            "panels": [],
        }
        panels.append({"id": len(panels) + 1, **head})
        width = WIDTH // len(row)
        for number, panel in enumerate(row):
            place = _place(number * width, top + 1, width, 8)
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        top += 9
    dashboard = {
        "uid": "tabletune",
        "title": "TableTune",
        "description": "Draft-length tables: in force, against live traffic, and who keeps them.",
        "tags": ["tabletune", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
        custom |= {"stacking": {"mode": "normal"}} if panel.stacked else {}
        defaults |= {"custom": custom, "min": 0}
    if panel.kind == "state-timeline":
        defaults |= {"color": {"mode": "continuous-BlPu"}, "min": 0}
    found = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": panel.instant,
                "range": not panel.instant,
                "format": "table" if panel.kind in ("table", "barchart") else "time_series",
            }
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": dict(panel.options),
    }
    return found | ({"transformations": list(panel.transformations)} if panel.transformations else {})


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _variables() -> list[dict[str, Any]]:
    kind = {"type": "datasource", "query": "prometheus"}
    return [
        {"name": "datasource", "label": "Prometheus", **kind},
        _variable("namespace", "Namespace", "label_values(tabletune_active, namespace)"),
        _variable(
            "draft_table",
            "DraftTable",
            'label_values(tabletune_active{namespace=~"$namespace"}, draft_table)',
        ),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
    }
