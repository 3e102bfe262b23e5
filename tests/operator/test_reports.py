"""The Job's pod reports by its own service account, which may do that and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tabletune_profiler import reporting
from tests.controlplane.clients import Api, ApiError, wait
from tests.controlplane.planes import Plane
from tests.operator import objects
from tests.operator.harness import Harness

pytestmark = pytest.mark.cluster


def account(plane: Plane, api: Api, namespace: str, folder: Path) -> dict[str, str]:
    """Lay out what the kubelet mounts into the profiling pod; return its environment."""
    folder.mkdir()
    (folder / "token").write_text(api.token_of(namespace, "qwen-profiler"))
    (folder / "namespace").write_text(namespace)
    shutil.copy(plane.certificate, folder / "ca.crt")
    address = urlsplit(plane.server)
    return {
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }


def test_what_the_pod_reports_becomes_the_table(
    plane: Plane, harness: Harness, api: Api, namespace: str, tmp_path: Path
) -> None:
    api.apply(objects.draft_table(namespace))
    job = harness.settle(namespace)["status"]["profile"]["job"]
    environment = account(plane, api, namespace, tmp_path / "account")
    said: list[str] = []
    cluster = reporting.Cluster(job, environment, tmp_path / "account")
    reporter = reporting.Reporter(cluster.patch, said.append)
    reporter.line('{"event": "phase", "phase": "sweep", "done": 1, "total": 4}\n')
    assert json.loads(api.get("ConfigMap", namespace, job)["data"]["progress.json"])["done"] == 1
    reporter.document(objects.EXAMPLE)
    # Looking again does not undo what the pod wrote: the operator owns no data there.
    harness.look(namespace)
    assert set(api.get("ConfigMap", namespace, job)["data"]) == {"progress.json", "table.json"}
    api.delete("Job", namespace, job)
    wait("the Job to be gone", lambda: api.find("Job", namespace, job) is None)
    assert harness.settle(namespace)["status"]["phase"] == "Ready"
    assert said == []


def test_the_pod_may_touch_its_report_and_nothing_else(
    plane: Plane, harness: Harness, api: Api, namespace: str, tmp_path: Path
) -> None:
    api.apply(objects.draft_table(namespace))
    job = harness.settle(namespace)["status"]["profile"]["job"]
    pod = plane.as_token(api.token_of(namespace, "qwen-profiler"))
    assert pod.get("ConfigMap", namespace, job)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "qwen", "namespace": namespace}}
    forbidden: list[Callable[[], object]] = [
        lambda: pod.create(body),
        lambda: pod.list("ConfigMap", namespace),
        lambda: pod.get("ConfigMap", namespace, "kube-root-ca.crt"),
        lambda: pod.merge("ConfigMap", namespace, "kube-root-ca.crt", {"data": {"x": "y"}}),
        lambda: pod.list("Secret", namespace),
        lambda: pod.list("Pod", namespace),
        lambda: pod.get("DraftTable", namespace, "qwen"),
        lambda: pod.call("DELETE", pod.path("ConfigMap", namespace, job)),
    ]
    for attempt in forbidden:
        with pytest.raises(ApiError) as caught:
            attempt()
        assert caught.value.status == 403
    pod.close()


def test_a_report_to_another_config_map_is_told_with_the_servers_words(
    plane: Plane, harness: Harness, api: Api, namespace: str, tmp_path: Path
) -> None:
    api.apply(objects.draft_table(namespace))
    harness.settle(namespace)
    environment = account(plane, api, namespace, tmp_path / "account")
    cluster = reporting.Cluster("qwen", environment, tmp_path / "account")
    with pytest.raises(OSError, match=r"403 Forbidden: configmaps .* is forbidden"):
        cluster.patch({"table.json": "{}"})
