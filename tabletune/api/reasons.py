"""Conditions, phases and reasons of a DraftTable, each with what it means and what to do about it.

The operator sets them, tests check them, and the reference's table is made from them. Alerts and scripts
match on reasons, so one keeps its meaning once it was released.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Condition(StrEnum):
    """Types of a DraftTable's conditions."""

    READY = "Ready"
    PROFILED = "Profiled"
    SERVING = "Serving"
    DEGRADED = "Degraded"


CONDITIONS = {
    Condition.READY: "A table is in force: the ConfigMap holds a valid one that is the spec's.",
    Condition.PROFILED: "The table in force was measured with what the spec says now.",
    Condition.SERVING: "Serving pods follow the generation in force. Unknown without a selector.",
    Condition.DEGRADED: "Something needs a person; the message says what. False is the healthy state.",
}
"""What each condition says when it is True."""


class Phase(StrEnum):
    """One word for people, in ``kubectl get``. Programs read the conditions."""

    PENDING = "Pending"
    PROFILING = "Profiling"
    READY = "Ready"
    DEGRADED = "Degraded"
    FAILED = "Failed"
    PAUSED = "Paused"


PHASES = {
    Phase.PENDING: "No table yet, and no Job that runs: it waits for a node, a queue or its image.",
    Phase.PROFILING: "The Job measures. An older table, if there is one, stays in force.",
    Phase.READY: "A table is in force and nothing is to be done.",
    Phase.DEGRADED: "A table is in force, but something needs a person.",
    Phase.FAILED: "No table is in force, and none comes without a person.",
    Phase.PAUSED: "`spec.paused` is set: nothing is changed.",
}
"""What each phase says."""


@dataclass(frozen=True)
class Reason:
    """A condition's reason."""

    name: str
    condition: Condition
    meaning: str
    remedy: str
    """What a person does; empty where nothing is to be done."""
    warning: bool = False
    """Whether its Event is a warning."""


_ALL: list[Reason] = []


def _reason(name: str, condition: Condition, meaning: str, remedy: str = "", warning: bool = False) -> str:
    _ALL.append(Reason(name, condition, meaning, remedy, warning))
    return name


_READY, _PROFILED, _SERVING, _DEGRADED = Condition

# Ready
TABLE_IN_FORCE = _reason("TableInForce", _READY, "The ConfigMap holds the table of this generation.")
NO_TABLE = _reason("NoTable", _READY, "No profile has succeeded yet.", "See the condition Profiled.")
PAUSED = _reason("Paused", _READY, "`spec.paused` is set and there is no table.", "Unset `spec.paused`.")

# Profiled
PROFILE_SUCCEEDED = _reason("ProfileSucceeded", _PROFILED, "Measured, validated and put in force.")
PROFILE_RUNNING = _reason("ProfileRunning", _PROFILED, "The Job's pod measures.")
PROFILE_STARTING = _reason("ProfileStarting", _PROFILED, "The Job is made; its pod is about to start.")
PROFILE_QUEUED = _reason(
    "ProfileQueued",
    _PROFILED,
    "The Job is suspended: Kueue has not admitted it yet.",
    "Look at its Workload.",
)
PROFILE_PAUSED = _reason(
    "ProfilePaused", _PROFILED, "A profile is due, and `spec.paused` holds it.", "Unset `spec.paused`."
)
PROFILE_HELD = _reason(
    "ProfileHeld",
    _PROFILED,
    "A profile is due, and `spec.table.rollbackTo` holds the table.",
    "Unset `spec.table.rollbackTo`.",
)
UNSCHEDULABLE = _reason(
    "Unschedulable",
    _PROFILED,
    "No node takes the pod; the message names the resource that is short.",
    "Free a GPU, correct `spec.profile.nodeSelector`, or add the pool's taint to `spec.profile.tolerations`.",
    warning=True,
)
IMAGE_PULL_FAILED = _reason(
    "ImagePullFailed",
    _PROFILED,
    "The node cannot pull the image.",
    "Correct `spec.engine.image` or `spec.engine.imagePullSecrets`.",
    warning=True,
)
CONTAINER_NOT_CREATED = _reason(
    "ContainerNotCreated",
    _PROFILED,
    "The container cannot be created: a Secret, ConfigMap or key is missing, or a setting is not allowed.",
    "Create what the message names, or correct `spec.engine`.",
    warning=True,
)
QUOTA_EXCEEDED = _reason(
    "QuotaExceeded",
    _PROFILED,
    "A ResourceQuota of the namespace refuses the pod.",
    "Raise the quota or lower `spec.profile.resources`.",
    warning=True,
)
POD_REFUSED = _reason(
    "PodRefused",
    _PROFILED,
    "The API server refuses the Job's pod: Pod Security, a webhook, or a setting.",
    "Correct what the message names.",
    warning=True,
)
JOB_REFUSED = _reason(
    "JobRefused",
    _PROFILED,
    "The API server refuses the Job or what it needs.",
    "Correct the field that the message names; often `spec.profile.podTemplate`.",
    warning=True,
)
BAD_ARGUMENTS = _reason(
    "BadArguments",
    _PROFILED,
    "vLLM or the profiler refuses its arguments (exit code 2).",
    "Correct `spec.engine.args`, `spec.drafter` or `spec.profile`; the message holds the last words.",
    warning=True,
)
NOT_SERVABLE = _reason(
    "NotServable",
    _PROFILED,
    "The engine cannot serve a table with these arguments (exit code 3).",
    "Follow the message; `docs/reference/support.md` lists what is supported.",
    warning=True,
)
ENGINE_FAILED = _reason(
    "EngineFailed",
    _PROFILED,
    "The engine died, hung or ran out of GPU memory, repeatedly (exit code 4).",
    "Read the message and the pod's log; lower `--gpu-memory-utilization` or the longest draft length.",
    warning=True,
)
OUT_OF_MEMORY = _reason(
    "OutOfMemory",
    _PROFILED,
    "The kernel killed the container at its memory limit.",
    "Raise `spec.profile.resources.limits.memory`.",
    warning=True,
)
EVICTED = _reason(
    "Evicted",
    _PROFILED,
    "The node evicted the pod, or it was preempted, too often.",
    "Give it a `spec.profile.priorityClassName`, or the node more of what was short.",
    warning=True,
)
NODE_LOST = _reason(
    "NodeLost",
    _PROFILED,
    "The pod's node went away, or does not answer.",
    "Nothing if it comes back or is taken out of the cluster: the Job tries again. A node that is gone for "
    "good and still listed holds its pod: `kubectl delete node NAME`.",
    warning=True,
)
DEADLINE_EXCEEDED = _reason(
    "DeadlineExceeded",
    _PROFILED,
    "The Job took longer than `spec.profile.activeDeadlineSeconds`.",
    "Raise it, or profile fewer batch sizes.",
    warning=True,
)
REPORT_FAILED = _reason(
    "ReportFailed",
    _PROFILED,
    "The Job ended well, but left no document, or one that cannot be used.",
    "Profiler and operator may be of different versions. Use images of one release.",
    warning=True,
)
PROFILE_FAILED = _reason(
    "ProfileFailed",
    _PROFILED,
    "The Job failed for another reason; the message holds the container's last words.",
    "Read the pod's log.",
    warning=True,
)

# Serving
PODS_UP_TO_DATE = _reason("PodsUpToDate", _SERVING, "Every ready pod follows the generation in force.")
PODS_REFRESHING = _reason(
    "PodsRefreshing",
    _SERVING,
    "Some ready pods follow another generation, for no longer than a kubelet may take to bring this one.",
)
PODS_BEHIND = _reason(
    "PodsBehind",
    _SERVING,
    "Some ready pods follow another generation, longer than a kubelet takes to bring this one.",
    "Check that the ConfigMap is mounted, and not by subPath.",
    warning=True,
)
PODS_UNREACHABLE = _reason(
    "PodsUnreachable",
    _SERVING,
    "The metrics of some pods cannot be read.",
    "Open `spec.serving.metricsPort` in pods and NetworkPolicies; check that the plugin is installed.",
    warning=True,
)
PODS_INACTIVE = _reason(
    "PodsInactive",
    _SERVING,
    "The plugin of some pods does nothing; the message says why.",
    "Follow the message; the pod's log has the whole of it.",
    warning=True,
)
NO_PODS = _reason("NoPods", _SERVING, "No pod matches `spec.serving.selector`, or none is ready.")
NO_SELECTOR = _reason("NoSelector", _SERVING, "`spec.serving.selector` is not set.")
OBSERVING_OFF = _reason("Off", _SERVING, "`spec.serving.mode` is Off.")
NOT_OBSERVED = _reason("NotObserved", _SERVING, "The pods have not been looked at yet.")

# Degraded
HEALTHY = _reason("Healthy", _DEGRADED, "Nothing needs a person.")
INVALID_SPEC = _reason(
    "InvalidSpec",
    _DEGRADED,
    "The spec asks for what cannot be, and only the operator can tell.",
    "Correct the field that the message names.",
    warning=True,
)
CONFIG_MAP_CONFLICT = _reason(
    "ConfigMapConflict",
    _DEGRADED,
    "An older DraftTable writes the same ConfigMap.",
    "Set another `spec.table.configMapName`, or delete one of the two.",
    warning=True,
)
CONFIG_MAP_NOT_OWNED = _reason(
    "ConfigMapNotOwned",
    _DEGRADED,
    "The ConfigMap is there already and is not this DraftTable's.",
    "Choose another name, delete it, or set `spec.table.adopt: true`.",
    warning=True,
)
PODS_CONFLICT = _reason(
    "PodsConflict",
    _DEGRADED,
    "An older DraftTable selects the same pods.",
    "Narrow one of the two `spec.serving.selector`.",
    warning=True,
)
TABLE_NOT_COMPUTABLE = _reason(
    "TableNotComputable",
    _DEGRADED,
    "The table settings do not fit what was profiled; the last table stays in force.",
    "Correct the field that the message names.",
    warning=True,
)
ROLLBACK_UNKNOWN = _reason(
    "RollbackUnknown",
    _DEGRADED,
    "`spec.table.rollbackTo` names a generation that is not kept.",
    "Choose one of those that the message lists.",
    warning=True,
)
PROFILE_NEEDS_ATTENTION = _reason(
    "ProfileNeedsAttention",
    _DEGRADED,
    "The profile failed or cannot start; an older table, if there is one, stays in force.",
    "See the condition Profiled.",
    warning=True,
)
ROLLED_BACK = _reason(
    "RolledBack",
    _DEGRADED,
    "The guard went back to an older generation, since pods kept fewer tokens per second with the new one.",
    "Profile anew (`tabletune.dev/profile-requested-at`); correction waits until then.",
    warning=True,
)
FINGERPRINT_DRIFT = _reason(
    "FingerprintDrift",
    _DEGRADED,
    "Serving pods are not what was profiled: another GPU, vLLM, model or drafter.",
    "Make both the same, or set `spec.serving.driftPolicy: Reprofile`.",
    warning=True,
)

REASONS: tuple[Reason, ...] = tuple(_ALL)
"""All of them, in the order of the reference."""
REMEDIES = {reason.name: reason.remedy.replace("`", "") for reason in REASONS}
"""What a person does about each, as plain text; empty where nothing is to be done."""
WARNINGS = frozenset(reason.name for reason in REASONS if reason.warning)
"""Reasons whose Events are warnings."""


def advise(reason: str, message: str) -> str:
    """Return ``message`` with what a person does about ``reason``, where there is anything to do.

    >>> advise("NoSelector", "spec.serving.selector is not set.")
    'spec.serving.selector is not set.'
    """
    return f"{message}\nWhat to do: {REMEDIES[reason]}" if REMEDIES[reason] else message
