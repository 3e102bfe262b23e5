"""Decisions that depend on what is not seen yet, on plain values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tabletune.api import drafttables
from tabletune_operator import digests, observations, planning, profiling
from tabletune_operator.actions import Apply, Create
from tabletune_operator.observations import Entry, Report
from tabletune_operator.plans import Need, Observed, Plan
from tests.operator import objects

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def table(**status: Any) -> observations.DraftTable:
    body = objects.draft_table("ml")
    body["metadata"] |= {"uid": "u", "creationTimestamp": "2026-11-30T00:00:00Z", "generation": 1}
    return observations.draft_table(body | {"status": status})


def job_name(seen: observations.DraftTable) -> str:
    return f"qwen-{digests.job(drafttables.parse(seen.spec), '')}"


def test_the_first_look_asks_what_stands_in_the_way() -> None:
    found = planning.plan(Observed(table()), {}, {}, NOW)
    assert found.needs == (Need("served", "qwen"),)


def test_a_report_whose_news_is_late_is_read_before_another_job_is_made() -> None:
    seen = table()
    name = job_name(seen)
    observed = Observed(seen, reports=(Report(name, "u", complete=False),))
    fetched: dict[Need, Any] = {Need("served", "qwen"): None}
    assert planning.plan(observed, fetched, {}, NOW).needs == (Need("report", name),)
    fetched[Need("report", name)] = objects.example()
    found = planning.plan(observed, fetched, {}, NOW)
    made = [action.body["kind"] for action in found.actions if isinstance(action, Create | Apply)]
    assert "Job" not in made
    assert found.in_force == 1


def test_a_report_that_is_not_seen_yet_keeps_a_job_from_being_made() -> None:
    seen = table()
    name = job_name(seen)
    hidden = Report(name, "u", complete=True)
    fetched: dict[Need, Any] = {Need("served", "qwen"): None, Need("entry", name): hidden}
    assert planning.plan(Observed(seen), fetched, {}, NOW).needs == (Need("report", name),)
    fetched[Need("report", name)] = objects.example()
    assert planning.plan(Observed(seen), fetched, {}, NOW).in_force == 1


def test_another_draft_table_s_report_does_not_count() -> None:
    seen = table()
    name = job_name(seen)
    fetched: dict[Need, Any] = {
        Need("served", "qwen"): None,
        Need("entry", name): Report(name, "another", complete=True),
        Need("entry", "qwen-g1"): None,
    }
    found = planning.plan(Observed(seen), fetched, {}, NOW)
    assert [action.body["kind"] for action in found.actions if isinstance(action, Create)] == ["Job"]


def test_a_report_that_is_empty_does_not_keep_a_job_from_being_made() -> None:
    seen = table()
    name = job_name(seen)
    observed = Observed(seen, reports=(Report(name, "u", complete=False),))
    fetched: dict[Need, Any] = {
        Need("served", "qwen"): None,
        Need("report", name): None,
        Need("entry", "qwen-g1"): None,
    }
    found = planning.plan(observed, fetched, {}, NOW)
    assert [action.body["kind"] for action in found.actions if isinstance(action, Create)] == ["Job"]


def test_a_generation_that_is_not_seen_yet_keeps_a_job_from_being_made() -> None:
    seen = table()
    hidden = Entry("qwen-g1", "u", 1, "profile", "", "", None, "", "")
    fetched: dict[Need, Any] = {
        Need("served", "qwen"): None,
        Need("entry", job_name(seen)): None,
        Need("entry", "qwen-g1"): hidden,
    }
    found = planning.plan(Observed(seen), fetched, {}, NOW)
    assert (found.actions, found.again_seconds) == ((), profiling.STALE_SECONDS)


def test_the_same_cluster_makes_the_same_plan() -> None:
    fetched: dict[Need, Any] = {
        Need("served", "qwen"): None,
        Need("entry", job_name(table())): None,
        Need("entry", "qwen-g1"): None,
    }
    plans = [planning.plan(Observed(table()), fetched, {}, NOW) for _ in range(2)]
    assert plans[0] == plans[1]


def test_one_that_is_being_deleted_is_left_alone() -> None:
    body = objects.draft_table("ml")
    body["metadata"] |= {"uid": "u", "deletionTimestamp": "2026-11-30T00:00:00Z"}
    assert planning.plan(Observed(observations.draft_table(body)), {}, {}, NOW) == Plan()
