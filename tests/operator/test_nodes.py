"""A node goes away during a profile: the real node controller, taint eviction and pod collector act."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tabletune import documents
from tabletune_operator import times
from tests.controlplane import fixtures
from tests.controlplane.clients import Object, wait
from tests.controlplane.planes import Plane
from tests.operator import objects
from tests.operator.harness import Harness, condition

pytestmark = pytest.mark.cluster

HASTY = {
    # Kubernetes gives a node 50 s, and its pods 5 minutes more.
    "kube-controller-manager": ("--node-monitor-period=1s", "--node-monitor-grace-period=6s"),
    "kube-apiserver": (
        "--default-unreachable-toleration-seconds=6",
        "--default-not-ready-toleration-seconds=6",
    ),
}


class Heartbeats:
    """Renews the Leases of nodes, as their kubelets do, until one falls silent."""

    def __init__(self, plane: Plane, nodes: set[str]) -> None:
        self.nodes = nodes
        self._plane = plane
        self._stop = threading.Event()

    def run(self) -> None:
        api = self._plane.admin
        while not self._stop.is_set():
            for node in sorted(self.nodes):
                spec = {
                    "holderIdentity": node,
                    "leaseDurationSeconds": 40,
                    "renewTime": times.text_of(datetime.now(UTC), "microseconds"),
                }
                metadata = {"name": node, "namespace": "kube-node-lease"}
                api.apply(
                    {
                        "apiVersion": "coordination.k8s.io/v1",
                        "kind": "Lease",
                        "metadata": metadata,
                        "spec": spec,
                    }
                )
            self._stop.wait(1)
        api.close()

    @contextmanager
    def beating(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def test_a_lost_node_is_told_and_the_profile_goes_on_elsewhere(programs: dict[str, Path]) -> None:
    with Plane(programs, options=HASTY) as plane:
        api = plane.admin
        fixtures.install_crds(api)
        fixtures.make_namespace(api, "ml")
        heartbeats = Heartbeats(plane, {"node-1", "node-2"})
        for node in sorted(heartbeats.nodes):
            fixtures.make_node(api, node)
        harness = Harness(plane, api)
        with heartbeats.beating():
            api.apply(objects.draft_table("ml"))
            harness.settle("ml")
            job = wait("the Job", lambda: objects.job_of(api, "ml"))["metadata"]["name"]

            def on_a_node() -> Object | None:
                pod = objects.pod_of(api, "ml", job)
                return pod if pod is not None and pod["spec"].get("nodeName") else None

            pod = wait("its pod on a node", on_a_node)
            name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
            objects.run_pod(api, pod)
            ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
            api.merge("Pod", "ml", name, {"status": {"conditions": ready}}, "status")
            harness.until("ml", lambda status: status.get("phase") == "Profiling")

            heartbeats.nodes.discard(node)

            def said(words: str) -> Object:
                def holds(status: Object) -> bool:
                    profiled = condition(status, "Profiled")
                    return profiled["reason"] == "NodeLost" and words in profiled["message"]

                return harness.until("ml", holds)

            found = said(f"Node {node} does not answer")
            assert condition(found, "Degraded")["reason"] == "ProfileNeedsAttention"
            assert found["status"]["phase"] == "Pending"
            # The pod is to end, and nobody is there to end it.
            found = said("Taint manager")
            assert f"kubectl delete node {node}" in condition(found, "Profiled")["message"]
            warnings = [event for event in api.list("Event", "ml") if event["reason"] == "NodeLost"]
            assert {event["type"] for event in warnings} == {"Warning"}

            # What the message says is done, and helps.
            api.delete("Node", "", node)
            wait("the pod to be collected", lambda: api.find("Pod", "ml", name) is None, 180)
            second = wait("another pod", on_a_node)
            assert second["spec"]["nodeName"] in heartbeats.nodes
            objects.run_pod(api, second)
            found = harness.until("ml", lambda status: status.get("phase") == "Profiling")
            assert condition(found, "Degraded")["status"] == "False"
            objects.report(api, "ml", job, documents.dump(objects.example()))
            objects.end_pod(api, second, 0)
            found = harness.until("ml", lambda status: status.get("phase") == "Ready")
            assert (found["status"]["generation"], found["status"]["history"]) == (1, [1])
        api.close()
