"""What goes wrong in a cluster, on purpose: each ends in the right state and says meanwhile what is wrong."""

from __future__ import annotations

import time

import pytest

from e2e import clusters, manifests, settings
from e2e.clients import Object
from e2e.scenarios.conftest import Profiled
from e2e.scenarios.load import AT_ONCE
from e2e.scenarios.loads import Load
from e2e.scenarios.stories import (
    CHART,
    HOME,
    INSTALL_SECONDS,
    OPERATOR,
    PROFILE_SECONDS,
    RELEASE,
    STEPS,
    Story,
)
from e2e.settings import Settings

WHERE = "faults"
AWAY_SECONDS = 10.0
WATCH_SECONDS = 60.0
"""Time in which a watch tells; what is compared each five minutes would hardly be seen by then."""
FOLLOW_SECONDS = 300.0
"""Time for pods to follow without an operator that touches them: the kubelet alone takes a minute or two."""


@pytest.fixture
def table(story: Story, chosen: Settings) -> Object:
    """Return a DraftTable for pool 2, in a namespace of the faults; not applied yet."""
    story.namespaces.add(WHERE)
    story.client.apply(*manifests.surroundings(chosen, WHERE))
    return manifests.draft_table(chosen, "fault", WHERE, settings.POOLS[1])


def test_operator_is_killed_in_each_phase(story: Story, table: Object, provider: clusters.Provider) -> None:
    """Killed while pending, profiling and ready, the API server away in between: one Job, one generation."""
    name = table["metadata"]["name"]
    # Long enough for operators to be killed in it.
    table["spec"]["profile"] |= {"batchSizes": [1, 2, 3, 4, 6, 8], "steps": 40}
    story.client.apply(table)
    story.kill_operator()
    for step in ("start", "acceptance", "sweep"):
        _await_step(story, name, step)
        if step == "acceptance" and provider.can_fail:
            story.say("API server away")
            provider.stop_api_server()
            time.sleep(AWAY_SECONDS)
            provider.start_api_server()
        else:
            story.kill_operator()
    (job,) = story.jobs(WHERE, name)
    story.follow(WHERE, name, 1)
    story.kill_operator()
    story.client.wait("the operator to look", lambda: story.status(WHERE, name).get("phase") == "Ready")
    (same,) = story.jobs(WHERE, name)
    assert same["metadata"]["uid"] == job["metadata"]["uid"]
    assert same["status"]["succeeded"] == 1
    assert not same["status"].get("failed")
    assert story.status(WHERE, name)["generation"] == 1
    history = story.client.objects("configmaps", WHERE, f"tabletune.dev/draft-table={name}")
    assert sum(one["metadata"]["name"].startswith(f"{name}-g") for one in history) == 1


def test_node_is_lost_in_the_middle_of_a_profile(
    story: Story, table: Object, provider: clusters.Provider
) -> None:
    """The kubelet stops while the Job measures: the table says NodeLost, and is profiled once it is back."""
    if not provider.can_fail:
        pytest.skip("the cluster's kubelets are not ours to stop")
    name = "lost"
    table["metadata"]["name"] = name
    story.client.apply(table)
    _await_step(story, name, "acceptance")
    story.say("kubelet stopped")
    provider.stop_kubelet(settings.POOLS[1])
    try:
        story.reason(WHERE, name, "Profiled", "NodeLost")
        story.show("get", "nodes")
    finally:
        provider.start_kubelet(settings.POOLS[1])
        story.say("kubelet back")
    story.follow(WHERE, name, 1)
    (job,) = story.jobs(WHERE, name)
    assert job["status"]["succeeded"] == 1
    assert story.status(WHERE, name)["generation"] == 1


@pytest.mark.ci
def test_quota_is_told_and_lifted(story: Story, table: Object) -> None:
    """A quota refuses the pod: the table says so, and goes on by itself once it is lifted."""
    name = "quota"
    table["metadata"]["name"] = name
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": WHERE},
        "spec": {"hard": {"pods": "0"}},
    }
    story.client.apply(quota)
    # Until it is counted, admission may not know of it, and let the pod in.
    story.client.wait(
        "the quota to be counted",
        lambda: story.client.get("resourcequota", WHERE, "none").get("status", {}).get("hard"),
    )
    story.client.apply(table)
    story.reason(WHERE, name, "Profiled", "QuotaExceeded")
    story.client.delete("resourcequota", WHERE, "none")
    story.client.wait("a pod", lambda: story.pods(WHERE, f"tabletune.dev/draft-table={name}"))
    story.say("lifted: the Job has a pod")
    story.client.delete("drafttable", WHERE, name)
    _await_nothing(story, name)


@pytest.mark.ci
def test_missing_image_is_told(story: Story, table: Object) -> None:
    """An image that is not there: the table says which, and a right one replaces the Job."""
    name = "image"
    table["metadata"]["name"] = name
    right = table["spec"]["engine"]["image"]
    table["spec"]["engine"]["image"] = "tabletune/no-such-image:1"
    story.client.apply(table)
    message = story.reason(WHERE, name, "Profiled", "ImagePullFailed")
    assert "tabletune/no-such-image:1" in message
    story.show("get", "dt", "--namespace", WHERE)
    table["spec"]["engine"]["image"] = right
    story.client.apply(table)
    story.client.wait(
        "a Job with the right image",
        lambda: [
            job
            for job in story.jobs(WHERE, name)
            if job["spec"]["template"]["spec"]["containers"][0]["image"] == right
        ],
    )
    story.client.delete("drafttable", WHERE, name)
    _await_nothing(story, name)


@pytest.mark.ci
def test_config_map_is_deleted_and_edited(story: Story, profiled: Profiled) -> None:
    """Deleted by hand, or edited to garbage, the ConfigMap is soon what it was."""
    where, name = profiled.where, profiled.name
    story.namespaces.add(where)
    before = story.client.get("configmap", where, name)["data"]
    generation = story.status(where, name)["generation"]

    def is_back() -> bool:
        found = story.client.find("configmap", where, name) or {}
        return bool(found.get("data") == before)

    began = time.monotonic()
    story.client.delete("configmap", where, name)
    story.client.wait("the ConfigMap to be back", is_back, WATCH_SECONDS)
    story.say(f"deleted, and back after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    story.client.kubectl(
        *("patch", "configmap", name, "--namespace", where, "--type=merge"),
        '--patch={"data": {"table.json": "{garbage", "vllm-args.yaml": null}}',
    )
    story.client.wait("the ConfigMap to be mended", is_back, WATCH_SECONDS)
    story.say(f"edited, and mended after {time.monotonic() - began:.1f} s")
    assert story.status(where, name)["generation"] == generation


def test_serving_pod_is_killed(story: Story, serving: Profiled) -> None:
    """One of two servers is killed under load: the other serves on, the next one starts with the table."""
    where = serving.where
    story.namespaces.add(where)
    load = Load(story, where, "copying")
    load.start()
    first, _ = sorted(story.generations(where))
    story.say(f"killing {first}")
    story.client.delete("pod", where, first, "--force", "--grace-period=0")
    answered = load.answered()
    story.client.wait("answers by the other", lambda: load.answered() > answered + 10)
    story.client.wait(
        "two pods that follow",
        lambda: first not in (found := story.generations(where)) and sum(map(bool, found.values())) == 2,
        300,
    )
    # Those that it was at failed, and those that came before the Service knew, however many. Later none does
    # but what a sender waited for until now.
    seen = story.client.wait("word of the load", load.seen)
    story.client.wait("answers by both", lambda: load.answered() > seen["answered"] + 4 * AT_ONCE)
    assert load.stop()["failed"] <= seen["failed"] + AT_ONCE
    story.reason(where, serving.name, "Serving", "PodsUpToDate")


def test_release_is_uninstalled_while_serving(story: Story, serving: Profiled) -> None:
    """Without operator and chart the pods serve with their last table; installed again, nothing is redone."""
    where, name = serving.where, serving.name
    story.namespaces.add(where)
    load = Load(story, where, "copying")
    load.start()
    story.client.helm("uninstall", RELEASE, "--namespace", HOME, "--wait")
    assert not story.pods(HOME, OPERATOR)
    # Read by now, since with other requests the operator goes on correcting as long as it is there.
    document, jobs = story.document(where, name), story.jobs(where, name)
    story.client.wait(
        "both to follow the last table",
        lambda: set(story.generations(where).values()) == {float(document["generation"])},
        FOLLOW_SECONDS,
    )
    answered = load.answered()
    story.client.wait("20 answers", lambda: load.answered() > answered + 20)
    assert set(story.generations(where).values()) == {float(document["generation"])}
    story.say("uninstalled: served on with the last table")
    limit = story.client.limit(INSTALL_SECONDS)
    story.client.helm("install", RELEASE, str(CHART), "--namespace", HOME, "--wait", limit)
    story.reason(where, name, "Serving", "PodsUpToDate")
    assert load.stop()["failed"] == 0
    assert story.document(where, name)["profile"] == document["profile"]
    assert [job["metadata"]["uid"] for job in story.jobs(where, name)] == [
        job["metadata"]["uid"] for job in jobs
    ]


def _await_step(story: Story, name: str, step: str) -> None:
    """Wait until a profile is at a step, or at a later one: some take seconds."""

    def found() -> str:
        status = story.status(WHERE, name)
        progress = str((status.get("profile") or {}).get("progress") or "")
        now = progress.partition(" ")[0]
        assert not status.get("generation"), f"The profile was done before it was seen at {step}: {status}"
        assert status.get("phase") != "Failed", status
        return progress if now in STEPS and STEPS.index(now) >= STEPS.index(step) else ""

    story.say(f"{name}: {story.client.wait(f'{name} to be at {step}', found, PROFILE_SECONDS)}")


def _await_nothing(story: Story, name: str) -> None:
    """Wait until a deleted DraftTable's pods are gone: their engine would slow the next scenario."""
    selector = f"tabletune.dev/draft-table={name}"
    story.client.wait("its pods to go", lambda: not story.client.objects("pods", WHERE, selector))
