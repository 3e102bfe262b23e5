"""The real API server takes good DraftTables and refuses bad ones, naming the field and what would be
right."""

from __future__ import annotations

import copy
import subprocess
from typing import Any

import pytest
import yaml

from tests.controlplane.clients import Api, ApiError, Object
from tests.controlplane.fixtures import CRDS
from tests.controlplane.planes import Plane

pytestmark = pytest.mark.cluster


def draft_table(namespace: str, name: str = "qwen3-8b") -> Object:
    return {
        "apiVersion": "tabletune.dev/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"name": "Qwen/Qwen3-8B", "revision": "main"},
            "drafter": {"method": "eagle3", "model": "AngelSlim/Qwen3-8B_eagle3", "draftLengths": [0, 1, 3]},
            "engine": {
                "image": "registry.example/vllm:1",
                "args": ["--max-num-seqs", "256"],
                "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
                "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}],
                "volumeMounts": [{"name": "cache", "mountPath": "/models"}],
                "sharedMemory": "8Gi",
            },
            "profile": {
                "gpu": {"count": 2},
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "resources": {"limits": {"memory": "64Gi", "cpu": 8}},
                "podTemplate": {"spec": {"hostIPC": False}},
            },
            "table": {"pinned": [{"first": 1, "last": 4, "draftLength": 3}], "allowedLengths": [0, 3]},
            "serving": {"selector": {"matchLabels": {"app": "qwen"}}, "mode": "Correct"},
        },
    }


def changed(body: Object, path: str, value: Any) -> Object:
    """Return ``body`` with ``value`` at the dotted ``path``; ``None`` removes."""
    found = copy.deepcopy(body)
    *parents, last = path.split(".")
    node: Any = found
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    if value is None:
        del node[last]
    elif isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    return found


def test_the_definition_passes_a_server_side_dry_run(api: Api) -> None:
    for path in CRDS.glob("*.yaml"):
        applied = api.apply(yaml.safe_load(path.read_text()), dryRun="All")
        assert applied["metadata"]["name"] == "drafttables.tabletune.dev"


def test_a_full_and_a_minimal_one_are_taken(api: Api, namespace: str) -> None:
    assert api.apply(draft_table(namespace))["spec"]["profile"]["gpu"] == {
        "count": 2,
        "resourceName": "nvidia.com/gpu",
    }
    minimal = draft_table(namespace, "minimal")
    minimal["spec"] = {
        "model": {"name": "m"},
        "drafter": {"method": "ngram"},
        "engine": {"image": "vllm:1"},
    }
    spec = api.apply(minimal)["spec"]
    assert spec["drafter"]["draftLengths"] == [0, 1, 2, 3]
    assert spec["serving"]["guard"]["enabled"] is True


REFUSED = [
    ("spec.model", None, ["spec.model: Required value"]),
    ("spec.model.name", "", ["spec.model.name", "at least 1 chars"]),
    ("spec.drafter.method", "EAGLE", ["spec.drafter.method", "should match"]),
    ("spec.drafter.model", None, ["spec.drafter.model", "must be set: this method drafts with a model"]),
    ("spec.drafter.draftLengths", [], ["spec.drafter.draftLengths", "at least 1 items"]),
    ("spec.drafter.draftLengths", [0], ["spec.drafter.draftLengths", "must have a length above 0"]),
    ("spec.drafter.draftLengths", [1, 1], ["spec.drafter.draftLengths[1]: Duplicate value: 1"]),
    ("spec.drafter.draftLengths", [-1, 1], ["spec.drafter.draftLengths[0]", "greater than or equal to 0"]),
    ("spec.drafter.draftLengths", [1, 65], ["spec.drafter.draftLengths[1]", "less than or equal to 64"]),
    ("spec.drafter.draftLengths", ["x"], ["spec.drafter.draftLengths[0]", "must be of type integer"]),
    ("spec.engine.image", "a b", ["spec.engine.image", "should match"]),
    (
        "spec.engine.args",
        ["--speculative-config={}"],
        ["spec.engine.args", "must not have --speculative-config (set spec.drafter)"],
    ),
    ("spec.engine.args", ["--config", "x"], ["spec.engine.args", "write the arguments out"]),
    ("spec.engine.imagePullPolicy", "Sometimes", ['supported values: "Always", "IfNotPresent", "Never"']),
    ("spec.engine.env", [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}], ["env[0]", "not both"]),
    (
        "spec.engine.env",
        [{"name": "A", "valueFrom": {}}],
        ["env[0].valueFrom", "exactly one of secretKeyRef"],
    ),
    (
        "spec.engine.env",
        [{"name": "TABLETUNE_TABLE", "value": "x"}],
        ["spec.engine.env", "must not set TABLETUNE_"],
    ),
    ("spec.engine.env", [{"name": "A"}, {"name": "A"}], ["spec.engine.env[1]: Duplicate value"]),
    ("spec.engine.envFrom", [{"prefix": "x"}], ["envFrom[0]", "exactly one of secretRef and configMapRef"]),
    ("spec.engine.volumeMounts.0.mountPath", "models", ["mountPath", "should match"]),
    ("spec.engine.sharedMemory", "8 gigabytes", ["spec.engine.sharedMemory", "should match"]),
    ("spec.profile.batchSizes", [0], ["spec.profile.batchSizes[0]", "greater than or equal to 1"]),
    ("spec.profile.gpu.count", 65, ["spec.profile.gpu.count", "less than or equal to 64"]),
    (
        "spec.profile.tolerations",
        [{"operator": "Exists", "value": "x"}],
        ["tolerations[0].value", "must be empty where operator is Exists"],
    ),
    (
        "spec.profile.resources.limits.memory",
        "lots",
        ["spec.profile.resources.limits.memory", "should match"],
    ),
    ("spec.profile.activeDeadlineSeconds", 10, ["activeDeadlineSeconds", "greater than or equal to 60"]),
    ("spec.profile.backoffLimit", -1, ["spec.profile.backoffLimit", "greater than or equal to 0"]),
    ("spec.profile.queueName", "Team_A", ["spec.profile.queueName", "should match"]),
    ("spec.profile.podTemplate", "x", ["spec.profile.podTemplate", "must be of type object"]),
    ("spec.table.configMapName", "Table", ["spec.table.configMapName", "should match"]),
    ("spec.table.tieTolerance", 1.5, ["spec.table.tieTolerance", "less than or equal to 1"]),
    ("spec.table.allowedLengths", [0, 2], ["spec.table.allowedLengths", "among spec.drafter.draftLengths"]),
    (
        "spec.table.pinned",
        [{"first": 5, "last": 4, "draftLength": 3}],
        ["spec.table.pinned[0].last", "must not be below first"],
    ),
    (
        "spec.table.pinned",
        [{"first": 1, "last": 4, "draftLength": 2}],
        ["spec.table.pinned", "must have a draftLength that is among spec.drafter.draftLengths"],
    ),
    (
        "spec.table.pinned",
        [{"first": 1, "last": 4, "draftLength": 3}, {"first": 4, "last": 9, "draftLength": 0}],
        ["spec.table.pinned", "must not overlap"],
    ),
    ("spec.table.historyLimit", 0, ["spec.table.historyLimit", "greater than or equal to 1"]),
    ("spec.table.rollbackTo", 0, ["spec.table.rollbackTo", "greater than or equal to 1"]),
    ("spec.serving.mode", "correct", ['spec.serving.mode: Unsupported value: "correct"', '"Correct"']),
    ("spec.serving.selector", None, ["spec.serving.selector", "must be set where mode is Correct"]),
    ("spec.serving.selector", {}, ["spec.serving.selector", "an empty selector would take every pod"]),
    (
        "spec.serving.selector.matchExpressions",
        [{"key": "a", "operator": "In"}],
        ["matchExpressions[0].values", "must have entries for In and NotIn"],
    ),
    ("spec.serving.metricsPort", 70_000, ["spec.serving.metricsPort", "less than or equal to 65535"]),
    (
        "spec.serving.source",
        "Prometheus",
        ["spec.serving.prometheus", "must be set where source is Prometheus"],
    ),
    ("spec.serving.prometheus", {"url": "prometheus:9090"}, ["spec.serving.prometheus.url", "should match"]),
    (
        "spec.serving.prometheus",
        {"url": "http://p", "podLabel": 'pod"} or {x="'},
        ["spec.serving.prometheus.podLabel", "should match"],
    ),
    ("spec.serving.intervalSeconds", 1, ["spec.serving.intervalSeconds", "greater than or equal to 5"]),
    ("spec.servng", {}, ['unknown field "spec.servng"']),
    ("spec.paused", "yes", ["spec.paused", "must be of type boolean"]),
    ("metadata.name", "a" * 53, ["metadata.name must be at most 52 characters"]),
    ("metadata.name", "qwen3.8b", ["metadata.name must be at most 52 characters without dots"]),
]


@pytest.mark.parametrize(
    ("path", "value", "expected"), REFUSED, ids=[f"{row[0]}={row[1]}"[:60] for row in REFUSED]
)
def test_a_bad_field_is_refused_by_name(
    api: Api, namespace: str, path: str, value: Any, expected: list[str]
) -> None:
    with pytest.raises(ApiError) as caught:
        api.create(changed(draft_table(namespace), path, value), fieldValidation="Strict")
    assert caught.value.status in (400, 422)
    for part in expected:
        assert part in caught.value.message


def test_the_status_is_a_resource_of_its_own(api: Api, namespace: str) -> None:
    body = draft_table(namespace)
    body["status"] = {"phase": "Ready"}
    assert "status" not in api.create(body)
    patched = api.merge("DraftTable", namespace, "qwen3-8b", {"status": {"phase": "Ready"}}, "status")
    assert patched["status"] == {"phase": "Ready"}
    assert patched["metadata"]["generation"] == 1


def test_kubectl_explains_and_lists_it(plane: Plane, api: Api, namespace: str) -> None:
    api.apply(draft_table(namespace))
    status = {
        "phase": "Profiling",
        "profile": {"progress": "sweep 42%"},
        "generation": 3,
        "gain": "+20.1%",
        "serving": {"ready": "2/3"},
    }
    api.merge("DraftTable", namespace, "qwen3-8b", {"status": status}, "status")

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", plane.kubeconfig(), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    lines = kubectl("get", "dt", "-n", namespace).splitlines()
    assert lines[0].split() == ["NAME", "PHASE", "PROGRESS", "GENERATION", "GAIN", "PODS", "AGE"]
    assert lines[1].split()[:7] == ["qwen3-8b", "Profiling", "sweep", "42%", "3", "+20.1%", "2/3"]
    explained = " ".join(kubectl("explain", "dt.spec.table.rollbackTo").split())
    assert "Generation to go back to." in explained
