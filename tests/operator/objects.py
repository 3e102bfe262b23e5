"""DraftTables, documents and what nodes would report, for the operator's tests."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tabletune import documents
from tabletune.documents import Document
from tabletune_operator import times
from tests.controlplane.clients import PATIENCE_SECONDS, Api, Object, wait

EXAMPLE = Path(__file__).parents[1] / "data" / "example-document.json"
LENGTHS = (0, 1, 2, 3)
"""Draft lengths of the example document."""


@functools.cache
def example() -> Document:
    """The example document: a real H200's times."""
    return documents.parse(EXAMPLE.read_bytes())


def draft_table(namespace: str, name: str = "qwen", **spec: Any) -> Object:
    """A DraftTable whose profile would give the example document; ``spec`` replaces whole sections."""
    return {
        "apiVersion": "tabletune.dev/v1alpha1",
        "kind": "DraftTable",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"name": "Qwen/Qwen3-4B"},
            "drafter": {"method": "eagle3", "model": "/models/eagle", "draftLengths": list(LENGTHS)},
            "engine": {"image": "registry.example/vllm:1"},
            "profile": {"gpu": {"count": 0}},
        }
        | spec,
    }


def report(api: Api, namespace: str, name: str, document: bytes | None = None, **progress: Any) -> None:
    """Put into a Job's report what its pod would: progress, and the document where one is given."""
    data: dict[str, str] = {}
    if progress:
        data["progress.json"] = json.dumps(progress)
    if document is not None:
        data["table.json"] = document.decode()
    api.merge("ConfigMap", namespace, name, {"data": data})


def finish(api: Api, namespace: str, name: str = "qwen", seconds: float = PATIENCE_SECONDS) -> None:
    """Play a profile that succeeds: its report is there, and its Job was cleaned up."""
    job = wait("the Job", lambda: job_of(api, namespace, name), seconds)["metadata"]["name"]
    report(api, namespace, job, EXAMPLE.read_bytes())
    api.delete("Job", namespace, job)
    wait("the Job to be gone", lambda: api.find("Job", namespace, job) is None, seconds)


def status_until(api: Api, namespace: str, holds: Callable[[Object], object], name: str = "qwen") -> Object:
    """Wait until ``holds`` says so of a DraftTable's status; return it."""

    def attempt() -> Object | None:
        status: Object = api.get("DraftTable", namespace, name).get("status", {})
        return status if holds(status) else None

    found: Object = wait(f"the status of {name}", attempt, pause=0.2)
    return found


def outlive_second(api: Api, namespace: str, name: str) -> None:
    """Wait until whatever is made is younger than a DraftTable: creation times have seconds."""
    made = api.get("DraftTable", namespace, name)["metadata"]["creationTimestamp"]
    wait("another second", lambda: times.text_of(datetime.now(UTC)) > made)


def job_of(api: Api, namespace: str, name: str = "qwen") -> Object | None:
    """A DraftTable's one profiling Job that is not being deleted."""
    found = api.list("Job", namespace, f"tabletune.dev/draft-table={name}")
    jobs = [job for job in found if "deletionTimestamp" not in job["metadata"]]
    assert len(jobs) <= 1, [job["metadata"]["name"] for job in jobs]
    return jobs[0] if jobs else None


def pod_of(api: Api, namespace: str, job: str) -> Object | None:
    """A Job's newest pod that has not ended."""
    pods = api.list("Pod", namespace, f"batch.kubernetes.io/job-name={job}")
    current = [pod for pod in pods if pod["status"].get("phase") in (None, "Pending", "Running")]
    return max(current, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)


def run_pod(api: Api, pod: Object) -> None:
    """Play the kubelet: the container runs."""
    _container(api, pod, "Running", {"running": {"startedAt": "2026-11-30T00:00:00Z"}})


def end_pod(
    api: Api, pod: Object, exit_code: int, message: str = "", reason: str = "", **status: Any
) -> None:
    """Play the kubelet: the container ended."""
    ended = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "message": message,
        "startedAt": "2026-11-30T00:00:00Z",
        "finishedAt": "2026-11-30T00:01:00Z",
    }
    phase = "Succeeded" if exit_code == 0 else "Failed"
    _container(api, pod, phase, {"terminated": ended}, **status)


def hold_pod(api: Api, pod: Object, reason: str, message: str) -> None:
    """Play the kubelet: the container waits."""
    _container(api, pod, "Pending", {"waiting": {"reason": reason, "message": message}})


def _container(api: Api, pod: Object, phase: str, state: Object, **status: Any) -> None:
    container = {
        "name": "profile",
        "image": "registry.example/vllm:1",
        "imageID": "",
        "ready": phase == "Running",
        "restartCount": 0,
        "state": state,
    }
    patch = {"status": {"phase": phase, "containerStatuses": [container], **status}}
    api.merge("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], patch, "status")
