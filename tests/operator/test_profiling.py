"""From a DraftTable to a table in its ConfigMap, on a real API server; the test plays the node."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tabletune import documents
from tests.controlplane import fixtures
from tests.controlplane.clients import Api, Object, wait
from tests.controlplane.planes import Plane
from tests.operator import objects
from tests.operator.harness import Harness, condition

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def node(plane: Plane) -> str:
    """A node without GPUs that takes every pod of these tests."""
    fixtures.make_node(plane.admin, "cpu-node")
    return "cpu-node"


def started(harness: Harness, api: Api, namespace: str, **spec: Any) -> tuple[Object, Object]:
    """Make a DraftTable, let the Job be made, and return it with its pod."""
    api.apply(objects.draft_table(namespace, **spec))
    harness.settle(namespace)
    job = wait("the Job", lambda: objects.job_of(api, namespace))
    pod = wait("its pod", lambda: objects.pod_of(api, namespace, job["metadata"]["name"]))
    return job, pod


def succeed(harness: Harness, api: Api, namespace: str, job: Object, pod: Object) -> Object:
    """Play a profile that succeeds."""
    name = job["metadata"]["name"]
    objects.report(api, namespace, name, documents.dump(objects.example()))
    objects.end_pod(api, pod, 0)
    return harness.until(namespace, lambda status: status.get("generation"))


def test_a_table_comes_into_its_config_map(harness: Harness, api: Api, namespace: str, node: str) -> None:
    job, pod = started(harness, api, namespace)
    found = harness.settle(namespace)
    assert found["status"]["phase"] in ("Pending", "Profiling")
    objects.run_pod(api, pod)
    objects.report(
        api, namespace, job["metadata"]["name"], phase="sweep", done=21, total=50, remainingSeconds=33.2
    )
    found = harness.until(namespace, lambda status: status["profile"].get("progress"))
    assert (found["status"]["phase"], found["status"]["profile"]["progress"]) == ("Profiling", "sweep 42%")
    assert condition(found, "Profiled")["reason"] == "ProfileRunning"

    found = succeed(harness, api, namespace, job, pod)
    status = found["status"]
    assert (status["phase"], status["generation"], status["source"]) == ("Ready", 1, "profile")
    assert status["gain"].startswith("+")
    assert [condition(found, kind)["status"] for kind in ("Ready", "Profiled", "Degraded")] == [
        "True",
        "True",
        "False",
    ]
    served = api.get("ConfigMap", namespace, "qwen")
    document = documents.parse(served["data"]["table.json"])
    assert (document.generation, document.table[0][0]) == (1, 1)
    assert set(served["data"]) == {"table.json", "speculative-config.json", "vllm-args.yaml"}
    told = [one for one in api.list("Event", namespace) if one["involvedObject"]["kind"] == "DraftTable"]
    events = {one["reason"] for one in told}
    assert {"ProfileRunning", "ProfileSucceeded", "TableInForce"} <= events


def test_nothing_more_is_done_once_it_is_done(harness: Harness, api: Api, namespace: str, node: str) -> None:
    job, pod = started(harness, api, namespace)
    succeed(harness, api, namespace, job, pod)
    harness.settle(namespace)
    before = {kind: api.list(kind, namespace) for kind in ("DraftTable", "ConfigMap", "Role", "Event")}
    harness.look(namespace)
    assert harness.requests == 0
    assert before == {kind: api.list(kind, namespace) for kind in before}


def test_describe_tells_the_whole_story(
    plane: Plane, harness: Harness, api: Api, namespace: str, node: str
) -> None:
    _, pod = started(harness, api, namespace)
    objects.end_pod(api, pod, 3, '{"event": "phase"}\nThis vLLM has no table support. Use 0.32 or newer.')
    harness.until(namespace, lambda status: status.get("phase") == "Failed")
    done = subprocess.run(
        ["kubectl", "--kubeconfig", plane.kubeconfig(), "describe", "dt", "qwen", "-n", namespace],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "This vLLM has no table support. Use 0.32 or newer." in done.stdout
    assert "NotServable" in done.stdout
    assert "profile-requested-at" in done.stdout


FAILURES = {
    "bad arguments": (2, "unrecognized arguments: --x", "", "BadArguments", "--x"),
    "not servable": (3, "data parallel is not supported", "", "NotServable", "data parallel"),
    "engine died": (4, "CUDA error", "", "EngineFailed", "CUDA error"),
    "out of memory": (137, "", "OOMKilled", "OutOfMemory", "spec.profile.resources.limits.memory"),
    "a fault": (70, "KeyError", "", "ProfileFailed", "KeyError"),
}
"""Exit code, last words and reason of the container; reason of the condition, and what its message holds."""


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_has_its_own_reason_and_last_words(
    harness: Harness, api: Api, namespace: str, node: str, case: str
) -> None:
    exit_code, message, ended, reason, words = FAILURES[case]
    profile = {"gpu": {"count": 0}, "backoffLimit": 0}
    job, pod = started(harness, api, namespace, profile=profile)
    objects.end_pod(api, pod, exit_code, message, ended)
    found = harness.until(namespace, lambda status: status.get("phase") == "Failed")
    profiled = condition(found, "Profiled")
    assert (profiled["status"], profiled["reason"]) == ("False", reason)
    assert words in profiled["message"]
    assert condition(found, "Degraded")["status"] == "True"
    warnings = [event for event in api.list("Event", namespace) if event["reason"] == reason]
    assert [event["type"] for event in warnings] == ["Warning"]
    assert warnings[0]["involvedObject"]["name"] == "qwen"

    # It stays failed, also when the Job is gone, until somebody asks for another.
    api.delete("Job", namespace, job["metadata"]["name"])
    wait("the Job to be gone", lambda: objects.job_of(api, namespace) is None)
    found = harness.settle(namespace)
    assert condition(found, "Profiled")["reason"] == reason
    assert objects.job_of(api, namespace) is None
    annotation = {"tabletune.dev/profile-requested-at": "2026-11-30T00:00:00Z"}
    api.merge("DraftTable", namespace, "qwen", {"metadata": {"annotations": annotation}})
    harness.settle(namespace)
    again = wait("another Job", lambda: objects.job_of(api, namespace))
    assert again["metadata"]["name"] != job["metadata"]["name"]


WAITING = {
    "image": ("ImagePullBackOff", 'Back-off pulling image "registry.example/vllm:1"', "ImagePullFailed"),
    "secret": ("CreateContainerConfigError", 'secret "hf" not found', "ContainerNotCreated"),
}


@pytest.mark.parametrize("case", WAITING)
def test_a_pod_that_waits_says_for_what(
    harness: Harness, api: Api, namespace: str, node: str, case: str
) -> None:
    reason, message, expected = WAITING[case]
    _, pod = started(harness, api, namespace)
    objects.hold_pod(api, pod, reason, message)
    found = harness.until(namespace, lambda status: condition(status, "Profiled")["reason"] == expected)
    assert message in condition(found, "Profiled")["message"]
    assert condition(found, "Degraded")["reason"] == "ProfileNeedsAttention"
    objects.run_pod(api, pod)
    found = harness.until(namespace, lambda status: status["phase"] == "Profiling")
    assert condition(found, "Degraded")["status"] == "False"


def test_an_unschedulable_pod_names_the_resource(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    api.apply(objects.draft_table(namespace, profile={"gpu": {"count": 8}}))
    found = harness.until(
        namespace, lambda status: condition(status, "Profiled").get("reason") == "Unschedulable"
    )
    assert "Insufficient nvidia.com/gpu" in condition(found, "Profiled")["message"]
    assert found["status"]["phase"] == "Pending"


def test_a_quota_that_refuses_the_pod_is_told(harness: Harness, api: Api, namespace: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
    }
    api.create(quota | {"spec": {"hard": {"pods": "0"}}})
    wait("the quota", lambda: api.get("ResourceQuota", namespace, "none").get("status", {}).get("hard"))
    api.apply(objects.draft_table(namespace))
    found = harness.until(
        namespace, lambda status: condition(status, "Profiled").get("reason") == "QuotaExceeded", seconds=40
    )
    assert "exceeded quota: none" in condition(found, "Profiled")["message"]


def test_a_job_that_the_api_server_refuses_is_told_with_its_words(
    harness: Harness, api: Api, namespace: str
) -> None:
    overlay = {"spec": {"containers": [{"name": "profile", "ports": [{"containerPort": 99_999}]}]}}
    api.apply(objects.draft_table(namespace, profile={"podTemplate": overlay, "gpu": {"count": 0}}))
    found = harness.settle(namespace)
    profiled = condition(found, "Profiled")
    assert profiled["reason"] == "JobRefused"
    assert "containerPort" in profiled["message"]
    assert found["status"]["phase"] == "Failed"


def test_an_evicted_pod_is_tried_again_and_told(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    job, pod = started(harness, api, namespace)
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "drain",
    }
    objects.end_pod(api, pod, 143, conditions=[disrupted])
    wait(
        "another pod",
        lambda: (
            (objects.pod_of(api, namespace, job["metadata"]["name"]) or pod)["metadata"]["name"]
            != pod["metadata"]["name"]
        ),
    )
    found = harness.settle(namespace)
    assert "was evicted" in condition(found, "Profiled")["message"]
    assert found["status"]["phase"] in ("Pending", "Profiling")


def test_the_deadline_is_told(harness: Harness, api: Api, namespace: str, node: str) -> None:
    job, _ = started(harness, api, namespace)
    # The shortest that the CRD allows is a minute; the test does not wait for it.
    api.merge("Job", namespace, job["metadata"]["name"], {"spec": {"activeDeadlineSeconds": 1}})
    found = harness.until(namespace, lambda status: status.get("phase") == "Failed")
    assert condition(found, "Profiled")["reason"] == "DeadlineExceeded"


def test_a_document_that_says_as_much_as_it_may_fits_into_the_status(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    job, pod = started(harness, api, namespace)
    content = json.loads(documents.dump(objects.example()))
    long = "\N{SNOWMAN}" * 4_096
    content["fingerprint"] |= dict.fromkeys(("gpu", "driver", "model", "drafter", "dtype", "torch"), long)
    content["recommendation"]["reason"] = long
    objects.report(api, namespace, job["metadata"]["name"], json.dumps(content).encode())
    objects.end_pod(api, pod, 0)
    found = harness.until(namespace, lambda status: status.get("generation"))
    assert (found["status"]["phase"], condition(found, "Ready")["status"]) == ("Ready", "True")


def test_a_report_that_is_no_document_is_told_and_not_served(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    job, pod = started(harness, api, namespace)
    objects.report(api, namespace, job["metadata"]["name"], b'{"schemaVersion": 1, "table": [[1, 2, 3]]}')
    objects.end_pod(api, pod, 0)
    found = harness.until(namespace, lambda status: status.get("phase") == "Failed")
    assert condition(found, "Profiled")["reason"] == "ReportFailed"
    assert "fingerprint: " in condition(found, "Profiled")["message"]
    assert api.find("ConfigMap", namespace, "qwen") is None


def test_a_job_that_ends_well_without_a_report_is_told(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    _, pod = started(harness, api, namespace)
    objects.end_pod(api, pod, 0)
    found = harness.until(namespace, lambda status: status.get("phase") == "Failed")
    assert "left no document" in condition(found, "Profiled")["message"]


def test_a_new_spec_supersedes_a_running_job_and_the_old_table_stays(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    job, pod = started(harness, api, namespace)
    succeed(harness, api, namespace, job, pod)
    body = objects.draft_table(namespace)
    body["spec"]["engine"]["args"] = ["--max-num-seqs", "128"]
    api.apply(body)
    harness.settle(namespace)
    second = wait(
        "the second Job",
        lambda: [
            one for one in api.list("Job", namespace) if one["metadata"]["name"] != job["metadata"]["name"]
        ],
    )[0]["metadata"]["name"]
    found = harness.settle(namespace)
    assert (found["status"]["generation"], condition(found, "Ready")["status"]) == (1, "True")
    assert condition(found, "Profiled")["status"] == "False"

    body["spec"]["engine"]["args"] = ["--max-num-seqs", "64"]
    api.apply(body)
    harness.settle(namespace)
    wait("the second Job to be gone", lambda: api.find("Job", namespace, second) is None)
    assert json.loads(api.get("ConfigMap", namespace, "qwen")["data"]["table.json"])["generation"] == 1

    # Back to the first inputs: their profile is still kept, so none is taken.
    api.apply(objects.draft_table(namespace))
    found = harness.settle(namespace)
    assert condition(found, "Profiled")["status"] == "True"
    wait(
        "no unfinished Job",
        lambda: not [one for one in api.list("Job", namespace) if not one["status"].get("succeeded")],
    )


def test_what_is_not_measured_replaces_a_waiting_job_and_asks_for_no_profile_later(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    api.apply(objects.draft_table(namespace, profile={"gpu": {"count": 8}}))
    harness.settle(namespace)
    first = wait("the Job", lambda: objects.job_of(api, namespace))["metadata"]["name"]
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    api.apply(objects.draft_table(namespace, profile={"gpu": {"count": 8}, "tolerations": tolerations}))
    harness.settle(namespace)
    wait("the first Job to be gone", lambda: api.find("Job", namespace, first) is None)
    harness.settle(namespace)
    assert wait("the second Job", lambda: objects.job_of(api, namespace))["metadata"]["name"] != first


def test_a_paused_one_starts_nothing_and_holds_back_a_result(
    harness: Harness, api: Api, namespace: str, node: str
) -> None:
    api.apply(objects.draft_table(namespace, paused=True))
    found = harness.settle(namespace)
    assert (found["status"]["phase"], condition(found, "Profiled")["reason"]) == ("Paused", "ProfilePaused")
    assert api.list("Job", namespace) == []
    job, pod = started(harness, api, namespace, paused=False)
    api.apply(objects.draft_table(namespace, paused=True))
    objects.report(api, namespace, job["metadata"]["name"], documents.dump(objects.example()))
    objects.end_pod(api, pod, 0)
    wait("the Job", lambda: api.get("Job", namespace, job["metadata"]["name"])["status"].get("succeeded"))
    found = harness.settle(namespace)
    assert (found["status"]["phase"], found["status"].get("generation")) == ("Paused", None)
    assert api.find("ConfigMap", namespace, "qwen") is None
    api.apply(objects.draft_table(namespace, paused=False))
    assert harness.settle(namespace)["status"]["phase"] == "Ready"


def test_a_suspended_job_waits_for_its_queue(harness: Harness, api: Api, namespace: str) -> None:
    api.apply(objects.draft_table(namespace, profile={"queueName": "team-a", "gpu": {"count": 0}}))
    harness.settle(namespace)
    job = wait("the Job", lambda: objects.job_of(api, namespace))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    api.merge("Job", namespace, job["metadata"]["name"], {"spec": {"suspend": True}})
    found = harness.until(
        namespace, lambda status: condition(status, "Profiled").get("reason") == "ProfileQueued"
    )
    assert found["status"]["phase"] == "Pending"
