"""Servers as llm-d has them follow the table, and live traffic corrects it."""

from __future__ import annotations

import time

import pytest

from e2e.scenarios.conftest import Profiled
from e2e.scenarios.loads import Load
from e2e.scenarios.stories import Story, lookup, total

CORRECTION_SECONDS = 300.0
FOLLOW_SECONDS = 30.0
"""Time from a ConfigMap's change to the last pod that serves with it. The kubelet alone would take a minute
or more; the operator touches the pods."""


@pytest.mark.ci
def test_servers_follow_the_table(story: Story, serving: Profiled) -> None:
    """Two replicas with the component of config/llm-d serve, follow the table and are looked at."""
    where, name = serving.where, serving.name
    story.namespaces.add(where)
    story.reason(where, name, "Serving", "PodsUpToDate", 90)
    story.client.wait("the operator to see both pods", lambda: _pods(story, serving) == (2, 2), 60)
    story.show("get", "dt", "--namespace", where)
    for pod in story.generations(where):
        metrics = story.metrics(where, pod)
        assert metrics['tabletune_active{reason="Following"}'] == 1
        assert metrics["tabletune_table_generation"] >= 1


@pytest.mark.ci
def test_switch_of_the_workload_is_corrected(story: Story, serving: Profiled) -> None:
    """The workload becomes another, the operator corrects the table, pods follow, no request fails."""
    where, name = serving.where, serving.name
    story.namespaces.add(where)
    before = story.document(where, name)
    copying, sampling = Load(story, where, "copying"), Load(story, where, "sampling")
    copying.start()
    story.client.wait("200 answers", lambda: copying.seen().get("answered", 0) >= 40, 180)
    _say_acceptance(story, where)

    sampling.start()
    counted = [copying.stop()]
    generation = before["generation"]
    story.client.wait(
        "another generation",
        lambda: int(story.status(where, name).get("generation") or 0) > generation,
        CORRECTION_SECONDS,
    )
    changed = time.monotonic()
    after = story.document(where, name)
    story.say(f"corrected: {before['table']} became {after['table']}")
    story.client.wait(
        "both pods to follow",
        lambda: set(story.generations(where).values()) == {float(after["generation"])},
        FOLLOW_SECONDS,
    )
    story.say(f"both pods followed within {time.monotonic() - changed:.1f} s")
    _say_acceptance(story, where)
    counted.append(sampling.stop())

    assert after["source"] == "correction"
    assert any(lookup(after)[size] < lookup(before)[size] for size in lookup(before))
    assert [one["failed"] for one in counted] == [0, 0]
    story.show("get", "dt", "--namespace", where)
    story.show("events", "--for", f"drafttable/{name}", "--namespace", where)


def _pods(story: Story, serving: Profiled) -> tuple[int, int]:
    status = story.status(serving.where, serving.name).get("serving") or {}
    return status.get("upToDate", 0), status.get("pods", 0)


def _say_acceptance(story: Story, where: str) -> None:
    for pod in story.generations(where):
        metrics = story.metrics(where, pod)
        drafted, accepted = (
            total(metrics, "tabletune_drafted_total"),
            total(metrics, "tabletune_accepted_total"),
        )
        steps = total(metrics, "tabletune_steps_total")
        story.say(f"{pod}: {steps:.0f} steps, {drafted:.0f} drafted, {accepted:.0f} accepted")
