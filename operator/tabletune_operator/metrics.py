"""The operator's own Prometheus metrics: names and help texts, once. ``serving`` shows them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

RECONCILES = Counter(
    "tabletune_operator_reconciles",
    "Looks at a DraftTable, by how they ended: done, conflict, unavailable, refused, gone, failed.",
    ["result"],
    registry=REGISTRY,
)
RECONCILE_SECONDS = Histogram(
    "tabletune_operator_reconcile_seconds",
    "Duration of one look at a DraftTable.",
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
QUEUED = Gauge("tabletune_operator_queued", "DraftTables that wait to be looked at.", registry=REGISTRY)
REQUESTS = Counter(
    "tabletune_operator_api_requests",
    "Requests to the API server, Kopf's watches left out; code 0 is no answer.",
    ["verb", "kind", "code"],
    registry=REGISTRY,
)
JOBS = Counter(
    "tabletune_operator_jobs",
    "Profiles: started, ProfileSucceeded, or the reason that failed one or holds it up.",
    ["result"],
    registry=REGISTRY,
)
GENERATIONS = Counter(
    "tabletune_operator_generations",
    "Generations put in force, by source: profile, correction, or repeated after a rollback.",
    ["source"],
    registry=REGISTRY,
)
CONDITIONS = Gauge(
    "tabletune_operator_draft_table_condition",
    "1 for each condition of each DraftTable, as its status says it.",
    ["namespace", "draft_table", "condition", "status", "reason"],
    registry=REGISTRY,
)
TABLES = Gauge("tabletune_operator_draft_tables", "DraftTables by phase.", ["phase"], registry=REGISTRY)
PODS = Gauge(
    "tabletune_operator_serving_pods",
    "Serving pods by state: upToDate, unreachable, inactive, and all.",
    ["state"],
    registry=REGISTRY,
)
SCRAPES = Counter(
    "tabletune_operator_scrapes",
    "Reads of a serving pod's metrics, by result: ok, or what was wrong.",
    ["result"],
    registry=REGISTRY,
)
SCRAPE_SECONDS = Histogram(
    "tabletune_operator_scrape_seconds",
    "Duration of reading one serving pod's metrics.",
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)
LEADING = Gauge("tabletune_operator_leading", "1 where this process is the one that acts.", registry=REGISTRY)

# A counter that is first seen at 1 has not grown, for Prometheus: the first failure would be no failure.
for _result in ("done", "conflict", "unavailable", "refused", "gone", "failed"):
    RECONCILES.labels(result=_result)
for _source in ("profile", "correction", "repeated"):
    GENERATIONS.labels(source=_source)
