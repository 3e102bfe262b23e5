"""The Job that a spec asks for: where it runs, what it runs, and what no overlay can change."""

from __future__ import annotations

import json
from typing import Any

from tabletune.api import drafttables
from tabletune_operator import access, digests, jobs
from tabletune_operator.owners import Owner
from tabletune_profiler.exit_codes import ExitCode

OWNER = Owner("ml", "qwen", "uid-1")


def made(**sections: Any) -> dict[str, Any]:
    return jobs.job(spec(**sections), OWNER, jobs.name(OWNER, "0123456789"), "abcdefabcd")


def spec(**sections: Any) -> drafttables.Spec:
    return drafttables.parse(
        {
            "model": {"name": "Qwen/Qwen3-8B", "revision": "v1"},
            "drafter": {"method": "eagle3", "model": "eagle", "draftLengths": [0, 3, 1]},
            "engine": {"image": "vllm:1"},
        }
        | sections
    )


def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def test_it_runs_the_profiler_with_the_engines_own_arguments() -> None:
    job = made(engine={"image": "vllm:1", "args": ["--max-num-seqs", "256"]}, profile={"batchSizes": [8, 1]})
    (container,) = pod(job)["containers"]
    assert container["command"] == ["tabletune"]
    words = container["args"]
    assert words[:6] == [
        "report",
        "--config-map",
        "qwen-0123456789",
        "--document",
        "/var/lib/tabletune/table.json",
        "--",
    ]
    first = words.index("--")
    second = words.index("--", first + 1)
    options = words[first + 1 : second]
    assert options[:2] == ["tabletune", "profile"]
    assert options[options.index("--lengths") + 1] == "0,1,3"
    assert options[options.index("--batch-sizes") + 1] == "1,8"
    served = words[second + 1 :]
    assert served[:5] == ["Qwen/Qwen3-8B", "--revision", "v1", "--max-num-seqs", "256"]
    assert json.loads(served[-1]) == {"method": "eagle3", "model": "eagle", "num_speculative_tokens": 3}


def test_what_is_not_given_is_left_to_the_profiler() -> None:
    words = pod(made())["containers"][0]["args"]
    for option in ("--context-length", "--prompt-tokens", "--output-tokens", "--steps", "--time-budget"):
        assert option not in words
    given = {"contextLength": 900, "promptTokens": 800, "outputTokens": 200}
    words = pod(made(profile=given))["containers"][0]["args"]
    assert words[words.index("--context-length") + 1] == "900"
    assert words[words.index("--prompt-tokens") + 1] == "800"
    assert words[words.index("--output-tokens") + 1] == "200"


def test_it_is_pinned_to_the_pool() -> None:
    found = pod(
        made(
            profile={
                "gpu": {"count": 2, "resourceName": "amd.com/gpu"},
                "nodeSelector": {"gpu": "h200"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "runtimeClassName": "nvidia",
                "priorityClassName": "low",
                "resources": {"limits": {"memory": "64Gi"}},
            }
        )
    )
    assert found["nodeSelector"] == {"gpu": "h200"}
    assert found["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (found["runtimeClassName"], found["priorityClassName"]) == ("nvidia", "low")
    assert found["containers"][0]["resources"] == {"limits": {"memory": "64Gi", "amd.com/gpu": "2"}}


def test_without_gpus_none_is_asked_for() -> None:
    assert pod(made(profile={"gpu": {"count": 0}}))["containers"][0]["resources"] == {}


def test_it_meets_the_restricted_pod_security_standard() -> None:
    found = pod(made())
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_bad_arguments_end_it_at_once_and_evictions_do_not_count() -> None:
    rules = made()["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["action"] == "FailJob"
    assert rules[0]["onExitCodes"]["values"] == [2, 3]
    assert rules[1]["action"] == "Ignore"


def test_exit_codes_are_those_of_the_profiler() -> None:
    assert jobs.BAD_INPUT_CODE == ExitCode.BAD_INPUT
    assert jobs.NOT_SERVABLE_CODE == ExitCode.NOT_SERVABLE
    assert jobs.ENGINE_FAILED_CODE == ExitCode.ENGINE_FAILED


def test_volumes_secrets_and_prompts_are_the_users() -> None:
    job = made(
        engine={
            "image": "vllm:1",
            "imagePullSecrets": [{"name": "pull"}],
            "env": [
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
                {"name": "HOME", "value": "/cache"},
            ],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            "sharedMemory": "8Gi",
        },
        profile={"prompts": {"name": "prompts", "key": "mine.jsonl"}},
    )
    found = pod(job)
    container = found["containers"][0]
    assert found["imagePullSecrets"] == [{"name": "pull"}]
    environment = [(one["name"], one.get("value")) for one in container["env"]]
    assert environment.count(("HOME", "/cache")) == 1
    assert "HOME" not in [name for name, value in environment if value != "/cache"]
    volumes = {volume["name"]: volume for volume in found["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "models"}
    assert volumes["tabletune-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert "/etc/tabletune/prompts/mine.jsonl" in container["args"]
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]


def test_an_overlay_merges_and_cannot_stop_the_report() -> None:
    overlay = {
        "metadata": {"labels": {"team": "a", "tabletune.dev/draft-table": "other"}},
        "spec": {
            "restartPolicy": "OnFailure",
            "serviceAccountName": "default",
            "hostIPC": True,
            "containers": [
                {"name": "profile", "args": ["sleep"], "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                {"name": "sidecar", "image": "x"},
            ],
        },
    }
    job = made(profile={"podTemplate": overlay})
    plain = made()
    found = pod(job)
    assert found["hostIPC"] is True
    assert (found["restartPolicy"], found["serviceAccountName"]) == ("Never", "qwen-profiler")
    assert found["containers"][0]["args"] == pod(plain)["containers"][0]["args"]
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in found["containers"][0]["env"]
    assert found["containers"][1]["name"] == "sidecar"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert (labels["team"], labels["tabletune.dev/draft-table"]) == ("a", "qwen")


def test_it_is_owned_and_found_by_label() -> None:
    metadata = made(profile={"queueName": "team-a", "labels": {"cost": "x"}})["metadata"]
    assert metadata["ownerReferences"][0]["uid"] == "uid-1"
    assert metadata["labels"] == {
        "cost": "x",
        "kueue.x-k8s.io/queue-name": "team-a",
        "app.kubernetes.io/managed-by": "tabletune-operator",
        "tabletune.dev/draft-table": "qwen",
    }


def test_the_role_is_for_one_config_map() -> None:
    _, role, binding = access.objects(OWNER, "qwen-0123456789")
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["qwen-0123456789"],
            "verbs": ["get", "patch"],
        }
    ]
    assert binding["subjects"][0]["name"] == "qwen-profiler"


def test_only_what_is_measured_asks_for_a_profile() -> None:
    base = digests.profile(spec(), "")
    same = [
        spec(table={"tieTolerance": 0.5}),
        spec(serving={"mode": "Off"}),
        spec(profile={"tolerations": [{"key": "a"}], "backoffLimit": 9, "resources": {"limits": {"cpu": 1}}}),
        spec(engine={"image": "vllm:1", "imagePullPolicy": "Always"}),
        spec(paused=True),
    ]
    other = [
        spec(model={"name": "other"}),
        spec(drafter={"method": "ngram"}),
        spec(engine={"image": "vllm:2"}),
        spec(engine={"image": "vllm:1", "args": ["--max-num-seqs", "8"]}),
        spec(profile={"nodeSelector": {"gpu": "l40s"}}),
        spec(profile={"gpu": {"count": 2}}),
    ]
    assert {digests.profile(one, "") for one in same} == {base}
    found = {digests.profile(one, "") for one in other}
    assert len(found) == len(other)
    assert base not in found
    assert digests.profile(spec(), "2026-11-30T00:00:00Z") != base


def test_a_waiting_job_is_replaced_for_any_change_of_it() -> None:
    assert digests.job(spec(profile={"tolerations": [{"key": "a"}]}), "") != digests.job(spec(), "")
    assert digests.job(spec(table={"tieTolerance": 0.5}), "") == digests.job(spec(), "")
