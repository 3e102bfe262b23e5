"""Servers as llm-d has them follow the table, and live traffic corrects it."""

from __future__ import annotations

import time

import pytest

from e2e.clients import Object
from e2e.scenarios.conftest import Profiled
from e2e.scenarios.loads import Load
from e2e.scenarios.stories import Story, lookup, total

CORRECTION_SECONDS = 300.0


@pytest.mark.ci
def test_servers_follow_the_table(story: Story, serving: Profiled) -> None:
    """Two replicas with the component of config/llm-d serve, follow the table and are looked at."""
    where, name = serving.where, serving.name
    story.namespaces.add(where)
    story.reason(where, name, "Serving", "PodsUpToDate")
    story.client.wait("the operator to see both pods", lambda: _pods(story, serving) == (2, 2))
    story.show("get", "dt", "--namespace", where)
    generation = story.document(where, name)["generation"]
    assert set(story.generations(where).values()) == {float(generation)}
    for pod in story.generations(where):
        assert story.metrics(where, pod).get('tabletune_active{reason="Following"}') == 1


@pytest.mark.ci
def test_switch_of_the_workload_is_corrected(story: Story, serving: Profiled) -> None:
    """The workload becomes another, the operator corrects the table, pods follow, no request fails."""
    where, name = serving.where, serving.name
    story.namespaces.add(where)
    copying, sampling = Load(story, where, "copying"), Load(story, where, "sampling")
    copying.start()
    story.client.wait("40 answers", lambda: copying.answered() >= 40)
    _say_acceptance(story, where)

    before = story.document(where, name)
    sampling.start()
    counted = [copying.stop()]
    after = story.client.wait(
        "shorter drafts", lambda: _shortened(story, serving, before), CORRECTION_SECONDS
    )
    changed = time.monotonic()
    story.say(f"corrected: {before['table']} became {after['table']}")
    # Or a newer one: the operator goes on correcting. It touches the pods, since the kubelet alone would take
    # a minute or more; how long it takes is told and not judged.
    story.client.wait(
        "both pods to follow",
        lambda: min(story.generations(where).values()) >= after["generation"],
    )
    story.say(f"both pods followed within {time.monotonic() - changed:.1f} s")
    _say_acceptance(story, where)
    counted.append(sampling.stop())

    assert after["source"] == "correction"
    assert [one["failed"] for one in counted] == [0, 0]
    story.show("get", "dt", "--namespace", where)
    story.show("events", "--for", f"drafttable/{name}", "--namespace", where)


def _shortened(story: Story, serving: Profiled, before: Object) -> Object:
    """Return the document where it has shorter drafts at some batch size than before, else an empty one."""
    now, then = story.document(serving.where, serving.name), lookup(before)
    return now if any(length < then[size] for size, length in lookup(now).items()) else {}


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
