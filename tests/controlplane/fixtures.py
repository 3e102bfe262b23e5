"""Fixtures of the tests marked `cluster`. A component's conftest imports what it needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.controlplane import planes
from tests.controlplane.clients import Api, wait
from tests.controlplane.planes import Plane

CRDS = Path(__file__).parents[2] / "crds"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """The control plane's programs."""
    return planes.build()


@pytest.fixture(scope="session")
def plane(programs: dict[str, Path]) -> Iterator[Plane]:
    """One control plane for the whole run, TableTune's CRD installed."""
    with Plane(programs) as plane:
        install_crds(plane.admin)
        yield plane


@pytest.fixture
def api(plane: Plane) -> Iterator[Api]:
    """The administrator's client."""
    api = plane.admin
    yield api
    api.close()


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace of the test's own, deleted without waiting."""
    name = f"test-{next(_numbers)}"
    make_namespace(api, name)
    yield name
    # One that outlives its test is looked at by the next test's operator, in a namespace that ends.
    for table in api.list("DraftTable", name):
        api.delete("DraftTable", name, table["metadata"]["name"])
    api.delete("Namespace", "", name)


def make_namespace(api: Api, name: str, labels: dict[str, str] | None = None) -> None:
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
    # The controller manager makes it, and pods are refused until then.
    wait("the default service account", lambda: api.find("ServiceAccount", name, "default"))


def install_crds(api: Api) -> None:
    for path in sorted(CRDS.glob("*.yaml")):
        api.apply(yaml.safe_load(path.read_text()))
    wait("the CRD to be served", lambda: _served(api))


def _served(api: Api) -> bool:
    found = api.find("CustomResourceDefinition", "", "drafttables.tabletune.dev") or {}
    conditions = {one["type"]: one["status"] for one in (found.get("status") or {}).get("conditions") or ()}
    if conditions.get("Established") != "True":
        return False
    try:
        api.list("DraftTable")
    except Exception:
        return False
    return True


def make_node(api: Api, name: str, labels: dict[str, str] | None = None, gpus: int = 0) -> None:
    """Make a ready node without a kubelet: pods are scheduled to it, and the test plays the rest."""
    api.create(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}},
    )
    resources = {"cpu": "64", "memory": "512Gi", "pods": "500"} | (
        {"nvidia.com/gpu": str(gpus)} if gpus else {}
    )
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastHeartbeatTime": None,
    }
    status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    api.merge("Node", "", name, {"status": status}, "status")
    # The node controller taints what has no heartbeat; it takes its time, which a test does not.
    wait("the node to be free of taints", lambda: _untaint(api, name))


def _untaint(api: Api, name: str) -> bool:
    if not api.get("Node", "", name)["spec"].get("taints"):
        return True
    api.merge("Node", "", name, {"spec": {"taints": None}})
    return False
