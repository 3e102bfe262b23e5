"""A DraftTable deleted and made anew under its name, while what the first one left is still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tabletune import documents
from tests.controlplane.clients import Api, wait
from tests.controlplane.planes import Plane, free_port
from tests.operator import fleets, objects, processes
from tests.operator.fleets import Page
from tests.operator.harness import Harness, condition
from tests.operator.objects import status_until
from tests.operator.processes import Process

pytestmark = pytest.mark.cluster


def test_the_new_one_waits_for_what_the_old_one_left_and_measures_by_itself(
    harness: Harness, api: Api, namespace: str
) -> None:
    api.apply(objects.draft_table(namespace))
    first = harness.settle(namespace)
    job = wait("the Job", lambda: objects.job_of(api, namespace))
    name = job["metadata"]["name"]
    # Somebody holds up the old one's objects; its Job's pod even reports.
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    for kind in ("Job", "ConfigMap"):
        api.merge(kind, namespace, name, held)
    objects.report(api, namespace, name, documents.dump(objects.example()))
    api.delete("DraftTable", namespace, "qwen")
    second = api.apply(objects.draft_table(namespace))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]

    found = harness.settle(namespace)
    profiled = condition(found, "Profiled")
    assert (profiled["reason"], found["status"].get("generation")) == ("ProfileStarting", None)
    assert name in profiled["message"]
    for kind in ("Job", "ConfigMap"):
        owner = api.get(kind, namespace, name)["metadata"]["ownerReferences"]
        assert [one["uid"] for one in owner] == [first["metadata"]["uid"]]
        api.merge(kind, namespace, name, {"metadata": {"finalizers": None}})

    def of_the_second() -> object:
        harness.look(namespace)
        made = objects.job_of(api, namespace)
        return made and made["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]

    wait("a Job of its own", of_the_second, pause=0.5)
    objects.finish(api, namespace)
    assert harness.settle(namespace)["status"]["generation"] == 1


def test_after_one_that_was_orphaned_numbers_go_on(harness: Harness, api: Api, namespace: str) -> None:
    api.apply(objects.draft_table(namespace))
    harness.settle(namespace)
    objects.finish(api, namespace)
    harness.settle(namespace)
    pinned = [{"first": 1, "last": 8, "draftLength": 3}]
    api.merge("DraftTable", namespace, "qwen", {"spec": {"table": {"pinned": pinned}}})
    assert harness.settle(namespace)["status"]["generation"] == 2
    api.delete("DraftTable", namespace, "qwen", "Orphan")
    wait("the DraftTable to be gone", lambda: api.find("DraftTable", namespace, "qwen") is None)
    assert api.find("ConfigMap", namespace, "qwen-g2")

    api.apply(objects.draft_table(namespace, table={"adopt": True, "pinned": pinned}))
    found = harness.settle(namespace)["status"]
    assert (found["generation"], condition(found, "Profiled")["status"]) == (3, "False")
    objects.finish(api, namespace)
    assert harness.settle(namespace)["status"]["generation"] == 4


def test_pods_that_follow_a_higher_number_get_a_higher_one(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    page, hostile = Page(generation=7), Page(generation=10**12)
    token = processes.grant(api)
    pages = [page, hostile]
    with fleets.served(pages, port) as addresses, Process(plane, token, tmp_path, lease="") as operator:
        operator.wait_until_ready()
        serving = {"selector": {"matchLabels": {"app": "qwen"}}, "metricsPort": port, "intervalSeconds": 5}
        api.apply(objects.draft_table(namespace, serving=serving))
        objects.finish(api, namespace)
        for number, address in enumerate(addresses):
            fleets.make_pod(api, namespace, f"pod-{number}", address, {"app": "qwen"})
        found = status_until(api, namespace, lambda status: status.get("generation") == 8)
        assert (found["source"], found["history"]) == ("profile", [1, 8])
        page.generation = 8
        found = status_until(api, namespace, lambda status: status.get("serving", {}).get("upToDate") == 1)
        # What no generation can be is not believed, and nothing goes on counting.
        assert condition(found, "Serving")["reason"] == "PodsRefreshing"
        scrapes = operator.count("tabletune_operator_scrapes_total")
        wait("more looks", lambda: operator.count("tabletune_operator_scrapes_total") >= scrapes + 4)
        found = api.get("DraftTable", namespace, "qwen")["status"]
        assert (found["generation"], condition(found, "Profiled")["status"]) == (8, "True")
