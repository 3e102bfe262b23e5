"""A failure is told by its cause, in the container's last words."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune_operator import failures, observations
from tabletune_operator.observations import Job, Pod


def job(**status: Any) -> Job:
    return observations.job({"metadata": {"name": "qwen-1"}, "status": status})


def pod(name: str = "pod", **status: Any) -> Pod:
    metadata = {"name": name, "labels": {"batch.kubernetes.io/job-name": "qwen-1"}, "creationTimestamp": name}
    return observations.pod({"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


def ended(code: int, message: str = "", reason: str = "Error", name: str = "pod", **status: Any) -> Pod:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    containers = [{"name": "profile", "state": state}]
    return pod(name, phase="Failed", containerStatuses=containers, **status)


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
FAILED = job(failed=1, conditions=[{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}])


@pytest.mark.parametrize(
    ("last", "reason", "words"),
    [
        (ended(2, "error: --x"), "BadArguments", "error: --x"),
        (ended(3, "V1 runner"), "NotServable", "V1 runner"),
        (ended(4, "CUDA"), "EngineFailed", "CUDA"),
        (ended(137, reason="OOMKilled"), "OutOfMemory", "memory limit"),
        (ended(137), "ProfileFailed", "SIGKILL"),
        (ended(128, "exec: tabletune: not found", "StartError"), "ContainerNotCreated", "tabletune"),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted", "low on memory"),
        (ended(143, conditions=[DISRUPTED]), "NodeLost", "node"),
        (pod(phase="Failed"), "ProfileFailed", "no reason was given"),
    ],
)
def test_each_end_has_its_reason(last: Pod, reason: str, words: str) -> None:
    found = failures.diagnose(FAILED, [last], again="Once more.")
    assert (found.reason, found.failed) == (reason, True)
    assert words in found.message
    assert "\nWhat to do: " in found.message
    assert found.message.endswith(" Once more.")


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_pod_that_has_measured_is_not_started_again_while_its_job_completes(phase: str) -> None:
    state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    last = pod(phase=phase, containerStatuses=[{"name": "profile", "state": state}])
    found = failures.diagnose(job(active=1), [last])
    assert (found.reason, found.running, found.failed) == ("ProfileRunning", True, False)
    assert "Pod pod has measured" in found.message


def test_the_last_pod_decides() -> None:
    found = failures.diagnose(FAILED, [ended(4, "old", name="a"), ended(3, "new", name="b")])
    assert found.reason == "NotServable"


def test_a_pod_that_ended_well_still_measures_until_its_job_is_complete() -> None:
    found = failures.diagnose(job(), [ended(4, name="a"), pod("b", phase="Succeeded")])
    assert (found.reason, found.running, found.failed) == ("ProfileRunning", True, False)
    assert found.message.startswith("Pod b has measured")


def test_a_deadline_says_what_was_waited_for() -> None:
    waiting = pod(
        phase="Pending",
        conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
        ],
    )
    late = job(conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}])
    found = failures.diagnose(late, [waiting])
    assert found.reason == "DeadlineExceeded"
    assert "no GPU" in found.message


def test_a_retry_says_how_the_attempt_before_ended() -> None:
    running = pod("b", phase="Running", containerStatuses=[{"name": "profile", "state": {"running": {}}}])
    found = failures.diagnose(job(active=1, failed=1), [ended(4, "CUDA error", name="a"), running])
    assert (found.reason, found.running) == ("ProfileRunning", True)
    assert "Attempt 2" in found.message
    assert "CUDA error" in found.message


@pytest.mark.parametrize(
    ("conditions", "reason", "words"),
    [
        ([], "ProfileStarting", "is being deleted"),
        ([DISRUPTED | {"reason": "EvictionByEvictionAPI"}], "ProfileStarting", "is evicted"),
        ([DISRUPTED | {"reason": "DeletionByTaintManager"}], "NodeLost", "kubectl delete node n1"),
    ],
)
def test_a_pod_that_ends_holds_up_the_next(conditions: list[Any], reason: str, words: str) -> None:
    body = {"metadata": {"name": "pod", "deletionTimestamp": "now"}, "spec": {"nodeName": "n1"}}
    ending = observations.pod(body | {"status": {"phase": "Running", "conditions": conditions}})
    found = failures.diagnose(job(), [ending])
    assert (found.reason, found.failed) == (reason, False)
    assert words in found.message


def test_a_pod_that_cannot_be_made_is_told_by_its_event() -> None:
    quota = failures.diagnose(job(), [], ['pods "x" is forbidden: exceeded quota: q, requested: pods=1'])
    security = failures.diagnose(job(), [], ['pods "x" is forbidden: violates PodSecurity "restricted"'])
    assert (quota.reason, security.reason) == ("QuotaExceeded", "PodRefused")


def test_last_words_are_for_people() -> None:
    text = '{"event": "progress", "done": 3}\n{"event": "warning"}\n\n{broken\nError: no memory\n'
    assert failures.last_words(text) == '{"event": "warning"}\n{broken\nError: no memory'


def test_a_message_stays_readable_and_keeps_its_end() -> None:
    found = failures.diagnose(FAILED, [ended(4, "x" * 100_000)], again="Once more.")
    assert len(found.message) <= failures.MAX_MESSAGE
    assert found.message.endswith(" Once more.")
    retried = failures.diagnose(job(failed=1), [ended(128, "x" * 100_000, "StartError")])
    assert retried.reason == "ProfileStarting"
    assert len(retried.message) <= failures.MAX_MESSAGE


def test_objects_that_lack_everything_are_no_fault() -> None:
    body: dict[str, Any] = {"metadata": {"name": "x", "namespace": "y"}}
    assert failures.diagnose(observations.job(body), [observations.pod(body)]).failed is False
