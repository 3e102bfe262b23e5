"""A DraftTable can be deleted in every phase; everything it owns goes, and nothing comes back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.clients import Api, wait
from tests.operator import objects
from tests.operator.harness import Harness

pytestmark = pytest.mark.cluster

OWN = "app.kubernetes.io/managed-by=tabletune-operator"
KINDS = ("ConfigMap", "Job", "ServiceAccount", "Role", "RoleBinding")


def left(api: Api, namespace: str) -> list[str]:
    """What is there of all that the operator makes."""
    return [one["metadata"]["name"] for kind in KINDS for one in api.list(kind, namespace, OWN)]


def into(phase: str, harness: Harness, api: Api, namespace: str) -> None:
    """Bring a DraftTable into ``phase``."""
    spec: dict[str, Any] = {"paused": True} if phase == "Paused" else {}
    if phase == "Failed":
        spec = {"drafter": {"method": "ngram", "config": {"method": "x"}}}
    api.apply(objects.draft_table(namespace, **spec))
    if phase == "unseen":
        return
    harness.settle(namespace)
    if phase in ("Ready", "superseding"):
        objects.finish(api, namespace)
        harness.settle(namespace)
    if phase == "superseding":
        api.merge("DraftTable", namespace, "qwen", {"spec": {"engine": {"image": "vllm:2"}}})
        harness.settle(namespace)


@pytest.mark.parametrize("phase", ["unseen", "Pending", "Ready", "superseding", "Failed", "Paused"])
def test_deleted_it_is_gone_with_all_it_owns_without_the_operator(
    harness: Harness, api: Api, namespace: str, phase: str
) -> None:
    into(phase, harness, api, namespace)
    assert not api.get("DraftTable", namespace, "qwen")["metadata"].get("finalizers")
    api.delete("DraftTable", namespace, "qwen")
    assert api.find("DraftTable", namespace, "qwen") is None
    wait("everything to be gone", lambda: not left(api, namespace))
    assert harness.look(namespace) is None
    assert harness.requests == 0
    assert left(api, namespace) == []


def test_deleted_in_the_middle_of_a_look_it_leaves_nothing(
    harness: Harness, api: Api, namespace: str
) -> None:
    api.apply(objects.draft_table(namespace))
    now = harness.now

    def delete_first() -> Any:
        api.delete("DraftTable", namespace, "qwen")
        return now()

    # The clock is read while the plan is made, when everything was seen already.
    harness.now = delete_first
    harness.look(namespace)
    assert api.find("DraftTable", namespace, "qwen") is None
    assert harness.requests > 1, "the look ended before it wrote anything"
    wait("the orphans to be collected", lambda: not left(api, namespace))


def test_with_its_namespace_it_ends_in_the_middle_of_a_profile(
    harness: Harness, api: Api, namespace: str
) -> None:
    api.apply(objects.draft_table(namespace))
    harness.settle(namespace)
    assert objects.job_of(api, namespace)
    api.delete("Namespace", "", namespace)

    def is_gone() -> bool:
        # Every look on the way ends well, whatever is gone already.
        harness.look(namespace)
        return api.find("DraftTable", namespace, "qwen") is None

    wait("the DraftTable to be gone", is_gone)


def test_what_cannot_be_made_since_its_namespace_ends_is_told_as_gone(
    harness: Harness, api: Api, namespace: str
) -> None:
    api.apply(objects.draft_table(namespace))
    now = harness.now

    def end_first() -> Any:
        # The namespace's end begins between the look and what it does: the DraftTable is still there.
        api.delete("Namespace", "", namespace)
        return now()

    harness.now = end_first
    assert harness.look(namespace) is None
    assert harness.requests > 0
    assert api.list("Job", namespace) == []
