"""What is seen of a cluster, as far as planning needs it: small frozen values instead of whole objects.

The cache holds these for every object that the operator watches. Whole bodies of hundreds of Jobs,
pods and ConfigMaps with documents in them would fill the memory, and planning would have to know where each
field stands in somebody else's API. Whatever an object lacks, or holds of the wrong kind, becomes an empty
value here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tabletune import rendering
from tabletune.api import names
from tabletune_operator import digests, jobs, owners

Body = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name of a DraftTable."""

MAX_PROGRESS_CHARACTERS = 2_000
"""Most that is read of a report's progress; it is the pod's, and a pod may be hostile."""


@dataclass(frozen=True)
class DraftTable:
    """A DraftTable as it is in the cluster."""

    namespace: str
    name: str
    uid: str
    created: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    requested_at: str
    """The annotation that asks for another profile; empty without."""
    deleting: bool
    resource_version: str = ""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def owner(self) -> owners.Owner:
        """Whose objects are."""
        return owners.Owner(self.namespace, self.name, self.uid)

    @property
    def config_map_name(self) -> str:
        """The ConfigMap that it writes."""
        return str(_map(self.spec.get("table")).get("configMapName") or self.name)

    @property
    def seniority(self) -> tuple[str, str]:
        """Orders DraftTables by age; names decide between those of one second."""
        return self.created, self.name


@dataclass(frozen=True)
class Entry:
    """A history entry, without its document."""

    name: str
    owner: str
    generation: int
    source: str
    profile_digest: str
    accepted_digest: str
    restored_from: int | None
    rollback_reason: str
    created: str


@dataclass(frozen=True)
class Served:
    """The ConfigMap that pods mount."""

    name: str
    controller: str | None
    managed: bool
    """Whether it carries the labels by which the operator sees it."""
    generation: int
    content_digest: str
    """Of what it holds."""
    written_digest: str
    """Of what the operator wrote."""
    control_digest: str

    @property
    def intact(self) -> bool:
        """Whether it holds what the operator wrote."""
        return self.content_digest == self.written_digest


@dataclass(frozen=True)
class Report:
    """What a Job's pod has reported."""

    name: str
    owner: str
    complete: bool
    """Whether there is a document."""
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A profiling Job."""

    name: str
    owner: str
    suspended: bool
    active: int
    failed: int
    deleting: bool
    complete: bool
    failure_reason: str
    """Reason of the condition Failed; empty unless it failed."""
    failure_message: str
    started: str
    created: str

    @property
    def finished(self) -> bool:
        """Whether it ended, well or not."""
        return self.complete or bool(self.failure_reason)


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str


@dataclass(frozen=True)
class Pod:
    """A Job's pod."""

    name: str
    job: str
    node: str
    phase: str
    reason: str
    message: str
    created: str
    unschedulable: str
    """The scheduler's message; empty where it was not refused."""
    disrupted: str
    """Reason of the condition DisruptionTarget; empty without."""
    disrupted_message: str
    waiting_reason: str
    waiting_message: str
    running: bool
    forsaken: bool
    """Whether its node's kubelet is not heard of any more, so that what is said of it is old."""
    ended: Ended | None
    deleting: bool

    @property
    def seniority(self) -> tuple[str, str]:
        """Orders a Job's pods by age; names decide between those of one second."""
        return self.created, self.name


def draft_table(body: Body) -> DraftTable:
    """Return what is seen of a DraftTable."""
    metadata = body["metadata"]
    return DraftTable(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata.get("creationTimestamp", ""),
        generation=metadata.get("generation", 0),
        spec=_map(body.get("spec")),
        status=_map(body.get("status")),
        requested_at=str(_map(metadata.get("annotations")).get(names.REPROFILE_ANNOTATION, "")),
        deleting="deletionTimestamp" in metadata,
        resource_version=metadata.get("resourceVersion", ""),
    )


def config_map(body: Body) -> Entry | Served | Report | None:
    """Return what is seen of a ConfigMap of the operator; ``None`` for one whose role is not known."""
    metadata = body["metadata"]
    annotations, data = _map(metadata.get("annotations")), _map(body.get("data"))
    controller = owners.controller_of(body)
    match _map(metadata.get("labels")).get(names.ROLE_LABEL):
        case names.ROLE_HISTORY:
            return Entry(
                name=metadata["name"],
                owner=controller or "",
                generation=_number(annotations.get(names.GENERATION_ANNOTATION)),
                source=str(annotations.get(names.SOURCE_ANNOTATION, "")),
                profile_digest=str(annotations.get(names.PROFILE_DIGEST_ANNOTATION, "")),
                accepted_digest=str(annotations.get(names.ACCEPTED_DIGEST_ANNOTATION, "")),
                restored_from=_number(annotations.get(names.RESTORED_FROM_ANNOTATION)) or None,
                rollback_reason=str(annotations.get(names.ROLLBACK_REASON_ANNOTATION, "")),
                created=metadata.get("creationTimestamp", ""),
            )
        case names.ROLE_REPORT:
            return Report(
                name=metadata["name"],
                owner=controller or "",
                complete=isinstance(data.get(rendering.DOCUMENT_FILE), str),
                progress=_progress(data.get(names.PROGRESS_KEY)),
            )
        case _:
            return served(body)


def served(body: Body) -> Served:
    """Return what is seen of the ConfigMap that pods mount, whoever made it. Keys of others are theirs."""
    metadata = body["metadata"]
    annotations, data = _map(metadata.get("annotations")), _map(body.get("data"))
    labels = _map(metadata.get("labels"))
    return Served(
        name=metadata["name"],
        controller=owners.controller_of(body),
        managed=labels.get(names.MANAGED_BY_LABEL) == names.MANAGER and names.DRAFT_TABLE_LABEL in labels,
        generation=_number(annotations.get(names.GENERATION_ANNOTATION)),
        content_digest=digests.content(
            {key: data[key] for key in rendering.FILES if isinstance(data.get(key), str)}
        ),
        written_digest=str(annotations.get(names.CONTENT_DIGEST_ANNOTATION, "")),
        control_digest=str(annotations.get(names.CONTROL_DIGEST_ANNOTATION, "")),
    )


def job(body: Body) -> Job:
    """Return what is seen of a Job."""
    metadata, spec, status = body["metadata"], _map(body.get("spec")), _map(body.get("status"))
    conditions = {
        condition.get("type"): condition
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    # FailureTarget comes first, while pods still end; what failed is known by then.
    failed = conditions.get("Failed") or conditions.get("FailureTarget") or {}
    return Job(
        name=metadata["name"],
        owner=owners.controller_of(body) or "",
        suspended=bool(spec.get("suspend")),
        active=_number(status.get("active")),
        failed=_number(status.get("failed")),
        deleting="deletionTimestamp" in metadata,
        complete="Complete" in conditions,
        failure_reason=str(failed.get("reason", "Failed")) if failed else "",
        failure_message=str(failed.get("message", "")),
        started=str(status.get("startTime") or ""),
        created=metadata.get("creationTimestamp", ""),
    )


def pod(body: Body) -> Pod:
    """Return what is seen of a Job's pod."""
    metadata, status = body["metadata"], _map(body.get("status"))
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    disrupted = conditions.get("DisruptionTarget", {})
    disrupted = disrupted if disrupted.get("status") == "True" else {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [(one.get("name"), _map(one.get("state"))) for one in containers]
    waiting = next((_map(state["waiting"]) for _, state in states if state.get("waiting")), {})
    ended = [
        (name == jobs.CONTAINER, state["terminated"])
        for name, state in states
        if state.get("terminated") and (name == jobs.CONTAINER or state["terminated"].get("exitCode"))
    ]
    last = max(ended, key=lambda one: one[0])[1] if ended else None
    return Pod(
        name=metadata["name"],
        job=str(_map(metadata.get("labels")).get("batch.kubernetes.io/job-name", "")),
        node=str(_map(body.get("spec")).get("nodeName") or ""),
        phase=str(status.get("phase", "")),
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
        created=metadata.get("creationTimestamp", ""),
        unschedulable=(
            str(scheduled.get("message", ""))
            if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
            else ""
        ),
        disrupted=str(disrupted.get("reason", "")),
        disrupted_message=str(disrupted.get("message", "")),
        waiting_reason=str(waiting.get("reason", "")),
        waiting_message=str(waiting.get("message", "")),
        running=any("running" in state for name, state in states if name == jobs.CONTAINER),
        # The node controller takes Ready back, and nobody else where the containers are.
        forsaken=(
            conditions.get("Ready", {}).get("status") == "False"
            and conditions.get("ContainersReady", {}).get("status") == "True"
            and not _map(body.get("spec")).get("readinessGates")
        ),
        ended=last
        and Ended(
            exit_code=_number(last.get("exitCode")),
            reason=str(last.get("reason", "")),
            message=str(last.get("message", "")),
        ),
        deleting="deletionTimestamp" in metadata,
    )


def _progress(text: object) -> Mapping[str, Any]:
    if not isinstance(text, str) or len(text) > MAX_PROGRESS_CHARACTERS:
        return {}
    try:
        return _map(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
