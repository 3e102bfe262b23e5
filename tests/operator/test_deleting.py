"""A DraftTable can be deleted in every phase; everything it owns goes, and nothing comes back."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune import documents
from tests.controlplane.clients import Api, wait
from tests.controlplane.planes import Plane
from tests.operator import objects
from tests.operator.harness import Harness

pytestmark = pytest.mark.cluster

OWN = "app.kubernetes.io/managed-by=tabletune-operator"
KINDS = ("ConfigMap", "Job", "ServiceAccount", "Role", "RoleBinding")


def into(phase: str, harness: Harness, api: Api, namespace: str) -> None:
    """Bring a DraftTable into ``phase``."""
    spec: dict[str, Any] = {"paused": True} if phase == "Paused" else {}
    if phase == "Failed":
        spec = {"drafter": {"method": "ngram", "config": {"method": "x"}}}
    api.apply(objects.draft_table(namespace, **spec))
    if phase == "unseen":
        return
    found = harness.settle(namespace)
    if phase in ("Ready", "superseding"):
        job = found["status"]["profile"]["job"]
        objects.report(api, namespace, job, documents.dump(objects.example()))
        api.delete("Job", namespace, job)
        wait("the Job to be gone", lambda: api.find("Job", namespace, job) is None)
        harness.settle(namespace)
    if phase == "superseding":
        api.merge("DraftTable", namespace, "qwen", {"spec": {"engine": {"image": "vllm:2"}}})
        harness.settle(namespace)


@pytest.mark.parametrize("phase", ["unseen", "Pending", "Ready", "superseding", "Failed", "Paused"])
def test_deleted_it_is_gone_with_all_it_owns(plane: Plane, api: Api, namespace: str, phase: str) -> None:
    harness = Harness(plane, api)
    into(phase, harness, api, namespace)
    api.delete("DraftTable", namespace, "qwen")
    assert api.find("DraftTable", namespace, "qwen") is None

    def left() -> list[str]:
        return [one["metadata"]["name"] for kind in KINDS for one in api.list(kind, namespace, OWN)]

    wait("everything to be gone", lambda: not left(), 40)
    harness.look(namespace)
    assert harness.requests == 0
    assert left() == []


def test_deleted_in_the_middle_of_a_look_it_leaves_nothing(plane: Plane, api: Api, namespace: str) -> None:
    harness = Harness(plane, api)
    api.apply(objects.draft_table(namespace))
    table = api.get("DraftTable", namespace, "qwen")
    now = harness.now

    def delete_first() -> Any:
        api.delete("DraftTable", namespace, "qwen")
        return now()

    # The clock is read while the plan is made, when everything was seen already.
    harness.now = delete_first
    harness.look(namespace)
    assert api.find("DraftTable", namespace, "qwen") is None

    def left() -> list[str]:
        return [one["metadata"]["name"] for kind in KINDS for one in api.list(kind, namespace, OWN)]

    wait("the orphans to be collected", lambda: not left(), 60)
    assert table["metadata"]["uid"]
