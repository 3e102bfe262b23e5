"""The objects of the scenarios: namespaces, DraftTables for a pool, and servers as llm-d has them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e import engines
from e2e.images import bases
from e2e.settings import POOL_LABEL, REPOSITORY, VERSION, Settings

Object = dict[str, Any]

ENGINE_ARGUMENTS = ("--max-num-seqs=8", "--max-model-len=512", "--enforce-eager")
"""What profiler and servers give vLLM, so that both run the same engine; eager, since compiling takes most of
a start and a CPU has no graphs."""
LENGTHS = (1, 7)
"""Far apart, so that the better one shows on a busy CPU too: 7 where the text repeats itself, 1
where it does not. Without 0: an engine that does not draft shows nothing to correct a table from."""
DRAFTER = {"prompt_lookup_max": 4, "prompt_lookup_min": 1}
PROMPT_TEXTS = [
    f"The {word} is red.\n" * 8 for word in ("house", "car", "tree", "book", "door", "boat", "lamp", "chair")
]
"""Prompts of profiles, and of the workload that is like them: the small model goes on as they began, and
drafts from the text itself are accepted."""
PROMPTS = "prompts"
API_PORT, METRICS_PORT = 8000, 9410
TMP = "/tmp"  # noqa: S108


def namespace(name: str) -> Object:
    """Return a namespace under the restricted Pod Security standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def surroundings(settings: Settings, name: str) -> list[Object]:
    """Return a namespace with what its engines need: their files, and the prompts of profiles."""
    lines = [json.dumps({"prompt": text, "max_tokens": 48}) for text in PROMPT_TEXTS]
    prompts = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PROMPTS, "namespace": name},
        "data": {"prompts.jsonl": "\n".join(lines)},
    }
    files = engines.objects(settings, name) if settings.engine == "cpu" else []
    return [namespace(name), prompts, *files]


def draft_table(settings: Settings, name: str, where: str, pool: str) -> Object:
    """Return a DraftTable that is profiled on a pool in a minute or two."""
    label = {"tabletune.dev/draft-table": name}
    return {
        "apiVersion": "tabletune.dev/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": name, "namespace": where},
        "spec": {
            "model": {"name": model(settings)},
            "drafter": {"method": "ngram", "draftLengths": list(LENGTHS), "config": DRAFTER},
            "engine": {
                "image": f"tabletune/profiler:{VERSION}",
                "args": list(ENGINE_ARGUMENTS),
                "env": environment(),
                **_files(settings),
            },
            "profile": {
                "batchSizes": [1, 4, 8],
                "steps": 16,
                "contextLength": 128,
                "prompts": {"name": PROMPTS, "key": "prompts.jsonl"},
                "nodeSelector": {POOL_LABEL: pool},
                "resources": {"requests": {"cpu": "100m", "memory": "2Gi"}},
            },
            "serving": {
                "selector": {"matchLabels": label},
                "mode": "Correct",
                "intervalSeconds": 5,
                "minDrafts": 300,
                "halfLifeSeconds": 20,
            },
        },
    }


def model(settings: Settings) -> str:
    """Return the model's name, for vLLM."""
    if settings.engine == "cpu":
        return f"{engines.MODELS}/{engines.MODEL}"
    return f"HuggingFaceTB/{engines.MODEL}"


def environment() -> list[Object]:
    """Return the environment of an engine's container."""
    return [{"name": name, "value": value} for name, value in engines.ENVIRONMENT.items()]


def servers(settings: Settings, table: Object, folder: Path, replicas: int = 2) -> Path:
    """Write an overlay with a model server as llm-d has it, the DraftTable, and TableTune's component.

    Return the overlay's folder, for ``kubectl kustomize``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["decode.yaml", "draft-table.yaml"],
        "components": [os.path.relpath(REPOSITORY / "config" / "llm-d", folder.resolve())],
    }
    objects = [_decode(settings, table, replicas), _service(table)]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    (folder / "decode.yaml").write_text(yaml.safe_dump_all(objects))
    (folder / "draft-table.yaml").write_text(yaml.safe_dump(table))
    return folder


def _files(settings: Settings) -> Object:
    if settings.engine != "cpu":
        return {}
    return {"volumes": engines.volumes(), "volumeMounts": engines.mounts()}


def _service(table: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "decode", "namespace": table["metadata"]["namespace"]},
        "spec": {"selector": {"app": "decode"}, "ports": [{"name": "http", "port": API_PORT}]},
    }


def _decode(settings: Settings, table: Object, replicas: int) -> Object:
    spec = table["spec"]
    longest = max(spec["drafter"]["draftLengths"])
    speculation = {"method": "ngram", **DRAFTER, "num_speculative_tokens": longest}
    files = _files(settings)
    container = {
        "name": "modelserver",
        "image": bases.names()["VLLM_IMAGE"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["vllm", "serve"],
        "args": [
            spec["model"]["name"],
            *spec["engine"]["args"],
            f"--speculative-config={json.dumps(speculation)}",
            "--served-model-name=model",
        ],
        "env": [
            *spec["engine"]["env"],
            {"name": "HOME", "value": "/var/lib/vllm"},
            {"name": "USER", "value": "vllm"},
        ],
        "ports": [{"name": "modelserver", "containerPort": API_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": API_PORT}, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "2Gi"}},
        "securityContext": restricted(),
        "volumeMounts": [
            *files.get("volumeMounts", []),
            {"name": "home", "mountPath": "/var/lib/vllm"},
            {"name": "tmp", "mountPath": TMP},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    pod = {
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [
            *files.get("volumes", []),
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}},
        ],
    }
    labels = {"app": "decode"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "decode", "namespace": table["metadata"]["namespace"]},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def script(name: str, where: str, text: str, arguments: Sequence[str]) -> list[Object]:
    """Return a pod that runs a Python script in the operator's image, which has aiohttp."""
    source = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": where},
        "data": {"script.py": text},
    }
    container = {
        "name": "script",
        "image": f"tabletune/operator:{VERSION}",
        "command": ["python3", "/script/script.py", *arguments],
        "securityContext": restricted(),
        "volumeMounts": [{"name": "script", "mountPath": "/script"}, {"name": "tmp", "mountPath": TMP}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": where},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": pod_security(),
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [
                {"name": "script", "configMap": {"name": name}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
    return [source, pod]


def pod_security() -> Object:
    """Return the security context of a pod under the restricted standard."""
    return {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted() -> Object:
    """Return the security context of its containers."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
