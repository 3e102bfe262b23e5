"""The profiling Job that a spec asks for, as a pure function of it.

``planning`` has it made where a profile is due. Its pod runs the very engine that serves, on the pool's GPUs,
under the restricted Pod Security standard: non-root, no privilege escalation, no capabilities, a read-only
root. What vLLM and its compilers write goes to an emptyDir that is the container's home.

The pod reports by itself: its command is ``tabletune report``, which runs the profiler, follows its
progress and puts both it and the document into one ConfigMap, the only object that its service account may
touch. A user's overlay may change anything but that, since a Job that does not report has measured for
nothing.
"""

from __future__ import annotations

import json
from typing import Any

from tabletune.api import names
from tabletune.api.drafttables import Spec
from tabletune_operator import merging
from tabletune_operator.owners import Owner

CONTAINER = "profile"
"""Name of the profiling container, for overlays."""
HOME = "/var/lib/tabletune"
"""Home of the container, an emptyDir."""
DOCUMENT = f"{HOME}/table.json"
PROMPTS_FOLDER = "/etc/tabletune/prompts"
USER = 1000
"""User, group and owner of volumes. Images whose user is root run as this one."""

BAD_INPUT_CODE, NOT_SERVABLE_CODE, ENGINE_FAILED_CODE = 2, 3, 4
"""Exit codes of the profiler, for good (docs/reference/cli.md). Trying again is no use after the first
two."""

_HOME_VARIABLES = {
    "HOME": HOME,
    "USER": "tabletune",
    "LOGNAME": "tabletune",
    "XDG_CACHE_HOME": f"{HOME}/.cache",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What lets vLLM, Triton and torch run as a user without an entry in /etc/passwd, on a read-only root."""


def name(owner: Owner, digest: str) -> str:
    """Return the name of the Job and of its report for the inputs with ``digest``."""
    return f"{owner.name}-{digest}"


def service_account(owner: Owner) -> str:
    """Return the name of the pod's service account."""
    return f"{owner.name}-profiler"


def speculative_config(spec: Spec) -> dict[str, Any]:
    """Return vLLM's speculative config for the profile: the drafter with its longest length, no table."""
    drafter = spec.drafter
    config: dict[str, Any] = {**drafter.config, "method": drafter.method}
    if drafter.model is not None:
        config["model"] = drafter.model
    if drafter.revision is not None:
        config["revision"] = drafter.revision
    return config | {"num_speculative_tokens": max(drafter.draft_lengths)}


def job(spec: Spec, owner: Owner, job_name: str, profile_digest: str) -> dict[str, Any]:
    """Return the Job called ``job_name``, as its report is; ``profile_digest`` says what it measures."""
    profile = spec.profile
    labels = {**profile.labels, **owner.labels}
    annotations = {**profile.annotations, names.PROFILE_DIGEST_ANNOTATION: profile_digest}
    job_labels = dict(profile.labels)
    if profile.queue_name is not None:
        job_labels[names.QUEUE_LABEL] = profile.queue_name
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": _pod_spec(spec, owner, job_name),
    }
    if profile.pod_template is not None:
        template = _keep_reporting(merging.merge(template, profile.pod_template), template)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(job_name, job_labels, annotations),
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": profile.backoff_limit,
            "activeDeadlineSeconds": profile.active_deadline_seconds,
            "ttlSecondsAfterFinished": profile.ttl_seconds_after_finished,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": CONTAINER,
                            "operator": "In",
                            "values": [BAD_INPUT_CODE, NOT_SERVABLE_CODE],
                        },
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": template,
        },
    }


def _pod_spec(spec: Spec, owner: Owner, report: str) -> dict[str, Any]:
    profile, engine = spec.profile, spec.engine
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": service_account(owner),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, report)],
        "volumes": _volumes(spec),
    }
    chosen: dict[str, Any] = {
        "nodeSelector": profile.node_selector,
        "affinity": profile.affinity,
        "tolerations": [_plain(toleration) for toleration in profile.tolerations],
        "runtimeClassName": profile.runtime_class_name,
        "priorityClassName": profile.priority_class_name,
        "schedulerName": profile.scheduler_name,
        "imagePullSecrets": [_plain(secret) for secret in engine.image_pull_secrets],
    }
    return pod | {key: value for key, value in chosen.items() if value}


def _container(spec: Spec, report: str) -> dict[str, Any]:
    engine = spec.engine
    given = {variable.name for variable in engine.env}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": engine.image,
        "command": ["tabletune"],
        "args": arguments(spec, report),
        "workingDir": HOME,
        "env": [
            *({"name": name, "value": value} for name, value in _HOME_VARIABLES.items() if name not in given),
            *(_plain(variable) for variable in engine.env),
        ],
        "resources": _resources(spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # Without this the last words of a container that failed would be in its log only.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(spec),
    }
    if engine.image_pull_policy is not None:
        container["imagePullPolicy"] = engine.image_pull_policy
    if engine.env_from:
        container["envFrom"] = [_plain(source) for source in engine.env_from]
    return container


def arguments(spec: Spec, report: str) -> list[str]:
    """Return the arguments of ``tabletune``: report to the ConfigMap ``report`` what the profiler does."""
    profile, model = spec.profile, spec.model
    options: list[str] = ["--output", DOCUMENT, "--lengths", _numbers(spec.drafter.draft_lengths)]
    if profile.batch_sizes:
        options += ["--batch-sizes", _numbers(profile.batch_sizes)]
    numbers = {
        "--context-length": profile.context_length,
        "--steps": profile.steps,
        "--repeats": profile.repeats,
        "--prompt-tokens": profile.prompt_tokens,
        "--output-tokens": profile.output_tokens,
        "--time-budget": profile.time_budget_seconds,
    }
    for option, number in numbers.items():
        if number is not None:
            options += [option, str(number)]
    if profile.prompts is not None:
        options += ["--prompts", f"{PROMPTS_FOLDER}/{profile.prompts.key}"]
    served = [model.name]
    if model.revision is not None:
        served += ["--revision", model.revision]
    if model.tokenizer is not None:
        served += ["--tokenizer", model.tokenizer]
    config = json.dumps(speculative_config(spec), sort_keys=True)
    return [
        *("report", "--config-map", report, "--document", DOCUMENT, "--"),
        *("tabletune", "profile", *options, "--"),
        *(*served, *spec.engine.args, "--speculative-config", config),
    ]


def _numbers(values: tuple[int, ...]) -> str:
    return ",".join(map(str, sorted(values)))


def _resources(spec: Spec) -> dict[str, Any]:
    profile = spec.profile
    limits: dict[str, Any] = dict(profile.resources.limits)
    if profile.gpu.count:
        limits[profile.gpu.resource_name] = str(profile.gpu.count)
    found = {"requests": dict(profile.resources.requests), "limits": limits}
    return {key: value for key, value in found.items() if value}


def _mounts(spec: Spec) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "tabletune-home", "mountPath": HOME},
        {"name": "tabletune-tmp", "mountPath": "/tmp"},  # noqa: S108
    ]
    if spec.engine.shared_memory is not None:
        mounts.append({"name": "tabletune-shm", "mountPath": "/dev/shm"})  # noqa: S108
    if spec.profile.prompts is not None:
        mounts.append({"name": "tabletune-prompts", "mountPath": PROMPTS_FOLDER, "readOnly": True})
    own = [_plain(mount) for mount in spec.engine.volume_mounts]
    taken = {mount["mountPath"] for mount in own}
    return [mount for mount in mounts if mount["mountPath"] not in taken] + own


def _volumes(spec: Spec) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "tabletune-home", "emptyDir": {}},
        {"name": "tabletune-tmp", "emptyDir": {}},
    ]
    if spec.engine.shared_memory is not None:
        shared = {"medium": "Memory", "sizeLimit": spec.engine.shared_memory}
        volumes.append({"name": "tabletune-shm", "emptyDir": shared})
    if (prompts := spec.profile.prompts) is not None:
        source = {"name": prompts.name, "items": [{"key": prompts.key, "path": prompts.key}]}
        volumes.append({"name": "tabletune-prompts", "configMap": source})
    return volumes + [volume.model_dump(mode="json", by_alias=True) for volume in spec.engine.volumes]


def _keep_reporting(merged: Any, own: Any) -> dict[str, Any]:
    """Return the ``merged`` template with what makes the pod report as in ``own``.

    An overlay that takes the profiling container out, or is no template at all, is left as it is: the API
    server refuses what is none, and says where.
    """
    found: dict[str, Any] = dict(merged)
    if not isinstance(found.get("metadata"), dict) or not isinstance(found.get("spec"), dict):
        return found
    for key in ("labels", "annotations"):
        given = found["metadata"].get(key)
        found["metadata"][key] = {**(given if isinstance(given, dict) else {}), **own["metadata"][key]}
    pod = found["spec"]
    pod["restartPolicy"] = own["spec"]["restartPolicy"]
    pod["serviceAccountName"] = own["spec"]["serviceAccountName"]
    pod["automountServiceAccountToken"] = True
    containers = pod.get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and container.get("name") == CONTAINER:
            container["args"] = own["spec"]["containers"][0]["args"]
            container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return found


def _plain(model: Any) -> dict[str, Any]:
    plain: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain
