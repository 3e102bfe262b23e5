"""Why a profile does not get on, or failed: from a Job, its pods and Events to a reason and a message.

``planning`` shows them in the condition Profiled. Kubernetes tells a failure in a dozen places (pod
conditions, waiting reasons, exit codes, Events of the Job), and a person would have to know them all. The
message says what happened in the container's own last words, where, and what to do.

Which reason is told, first match first:

1. The Job failed: by its deadline; else by the last pod that ended (exit code, memory, eviction, node).
2. The last pod waits: for a node, for its image, for what its container needs; or it runs, or its node is
   not heard of.
3. The Job waits in a queue.
4. No pod, and the last one has not ended yet: with its node, evicted, or deleted by hand.
5. No pod, and the Job's controller could not make one: quota, or refused otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tabletune.api import reasons
from tabletune_operator import jobs
from tabletune_operator.observations import Job, Pod

MAX_MESSAGE = 2_000
"""Characters of a condition's message; ``kubectl describe`` stays readable."""
LAST_LINES = 12
"""Lines of a container's last words that are told."""
KILLED_CODE = 137
"""Exit code of a container that was ended by SIGKILL."""

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
CREATION_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CreatePodSandboxError",
        "StartError",
    }
)
NODE_REASONS = frozenset(
    {"DeletionByPodGC", "DeletionByTaintManager", "NodeLost", "NodeShutdown", "Terminated"}
)
"""Reasons of a pod's end that mean its node went away."""


@dataclass(frozen=True)
class Diagnosis:
    """What is to be said of a profile that is not done."""

    reason: str
    """A reason of the condition Profiled."""
    message: str
    failed: bool = False
    """Whether nothing comes of it without a person."""
    running: bool = False
    """Whether the container measures."""


def diagnose(
    job: Job, pods: Sequence[Pod], creation_failures: Sequence[str] = (), again: str = ""
) -> Diagnosis:
    """Return what is to be said of ``job``, which is not complete.

    ``pods`` are its own; ``creation_failures`` are messages of its controller's FailedCreate Events, newest
    first, which matter as long as there is no pod. ``again`` says how one that failed is tried again.
    """
    found = _diagnose(job, sorted(pods, key=lambda pod: pod.seniority), creation_failures)
    advice = reasons.advise(found.reason, "")
    return replace(found, message=_cut(found.message, f"{advice} {again}" if found.failed else advice))


def _diagnose(job: Job, newest: Sequence[Pod], creation_failures: Sequence[str]) -> Diagnosis:
    """Return the diagnosis, its message however long; ``newest`` are the pods, the newest last."""
    if job.failure_reason:
        return _failed(job, newest)
    done = [pod for pod in newest if pod.ended is not None and pod.ended.exit_code == 0]
    if done:
        # For a second or two, until the pod and then the Job are complete.
        told = f"Pod {done[-1].name} has measured; its report is about to be put in force."
        return Diagnosis(reasons.PROFILE_RUNNING, told, running=True)
    current = [pod for pod in newest if pod.phase in ("Pending", "Running") and not pod.deleting]
    if current:
        return _current(current[-1], newest)
    if job.suspended:
        return Diagnosis(
            reasons.PROFILE_QUEUED, f"Job {job.name} is suspended until its queue admits it (Kueue)."
        )
    ending = [pod for pod in newest if pod.deleting and pod.phase in ("Pending", "Running")]
    if ending:
        return _ending(ending[-1])
    if creation_failures:
        return _not_created(job, creation_failures[0])
    if newest and newest[-1].phase == "Succeeded":
        # The Job is complete a few seconds after its pod.
        told = f"Pod {newest[-1].name} has measured and reported; Job {job.name} is about to end."
        return Diagnosis(reasons.PROFILE_RUNNING, told, running=True)
    retry = _retry(newest)
    return Diagnosis(reasons.PROFILE_STARTING, f"Job {job.name} is about to start a pod.{retry}")


def _failed(job: Job, pods: Sequence[Pod]) -> Diagnosis:
    if job.failure_reason == "DeadlineExceeded":
        return Diagnosis(
            reasons.DEADLINE_EXCEEDED,
            f"Job {job.name} was ended after spec.profile.activeDeadlineSeconds.{_what_held(pods)}",
            failed=True,
        )
    ended = [pod for pod in pods if pod.phase == "Failed" or pod.ended is not None]
    if not ended:
        told = job.failure_message or job.failure_reason
        return Diagnosis(reasons.PROFILE_FAILED, f"Job {job.name} failed: {told}.", failed=True)
    reason, text = _end(ended[-1])
    attempts = f" after {job.failed} attempts" if job.failed > 1 else ""
    return Diagnosis(reason, f"Failed{attempts}: {text}", failed=True)


def _end(pod: Pod) -> tuple[str, str]:
    """Return reason and message of a pod that ended badly."""
    where = f"pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")
    ended = pod.ended
    if pod.disrupted in NODE_REASONS or pod.reason in NODE_REASONS:
        told = pod.disrupted_message or pod.message or pod.disrupted or pod.reason
        return reasons.NODE_LOST, f"the node of {where} went away: {told}"
    if pod.disrupted or pod.reason in ("Evicted", "Preempting", "OutOfcpu", "OutOfmemory"):
        told = pod.message or pod.disrupted_message or pod.disrupted
        return reasons.EVICTED, f"{where} was evicted: {told}"
    if ended is None:
        return reasons.PROFILE_FAILED, f"{where} failed: {pod.message or pod.reason or 'no reason was given'}"
    words = last_words(ended.message)
    said = f" Its last words:\n{words}" if words else ""
    if ended.reason == "OOMKilled":
        return (
            reasons.OUT_OF_MEMORY,
            f"the kernel killed the container of {where} at its memory limit.{said}",
        )
    if ended.reason in CREATION_REASONS or ended.reason == "ContainerCannotRun":
        return reasons.CONTAINER_NOT_CREATED, f"the container of {where} could not start: {ended.message}"
    known = {
        jobs.BAD_INPUT_CODE: (reasons.BAD_ARGUMENTS, "the profiler refused its arguments"),
        jobs.NOT_SERVABLE_CODE: (reasons.NOT_SERVABLE, "this engine cannot serve a table"),
        jobs.ENGINE_FAILED_CODE: (reasons.ENGINE_FAILED, "the engine died, hung or ran out of memory"),
    }
    reason, text = known.get(ended.exit_code, (reasons.PROFILE_FAILED, "the profiler ended"))
    if ended.exit_code == KILLED_CODE:
        text = "the container was killed (SIGKILL), often for memory"
    return reason, f"{text} (exit code {ended.exit_code}) in {where}.{said}"


def _current(pod: Pod, pods: Sequence[Pod]) -> Diagnosis:
    retry = _retry(pods)
    if pod.unschedulable:
        told = pod.unschedulable.rstrip(".")
        return Diagnosis(reasons.UNSCHEDULABLE, f"No node takes pod {pod.name}: {told}.{retry}")
    held = f"Pod {pod.name} on node {pod.node}: {pod.waiting_reason}: {pod.waiting_message}{retry}"
    if pod.waiting_reason in IMAGE_REASONS:
        return Diagnosis(reasons.IMAGE_PULL_FAILED, held)
    if pod.waiting_reason in CREATION_REASONS:
        return Diagnosis(reasons.CONTAINER_NOT_CREATED, held)
    if pod.running and pod.forsaken:
        told = f"Node {pod.node} does not answer; pod {pod.name} on it may be lost. It is given some minutes."
        return Diagnosis(reasons.NODE_LOST, f"{told}{retry}")
    if pod.running:
        told = f"Pod {pod.name} measures on node {pod.node}.{retry}"
        return Diagnosis(reasons.PROFILE_RUNNING, told, running=True)
    where = f" on node {pod.node}" if pod.node else ""
    doing = f" ({pod.waiting_reason})" if pod.waiting_reason else ""
    return Diagnosis(reasons.PROFILE_STARTING, f"Pod {pod.name} starts{where}{doing}.{retry}")


def _ending(pod: Pod) -> Diagnosis:
    """Return the diagnosis of a pod that is to end and has not: its Job makes no other one until it has."""
    told = pod.disrupted_message or pod.disrupted
    if pod.disrupted in NODE_REASONS:
        return Diagnosis(
            reasons.NODE_LOST,
            f"The node of pod {pod.name} is lost: {told}. The Job makes another pod once node {pod.node} is"
            f" back to end this one, or is no node any more: kubectl delete node {pod.node}, if it is gone.",
        )
    why = f"is evicted: {told}" if told else "is being deleted"
    return Diagnosis(
        reasons.PROFILE_STARTING, f"Pod {pod.name} on node {pod.node} {why}. The Job makes another after it."
    )


def _not_created(job: Job, message: str) -> Diagnosis:
    if "exceeded quota" in message or "must specify" in message or "failed quota" in message:
        told = f"A ResourceQuota refuses the pod of Job {job.name}: {message}"
        return Diagnosis(reasons.QUOTA_EXCEEDED, told)
    return Diagnosis(reasons.POD_REFUSED, f"The pod of Job {job.name} is refused: {message}")


def _retry(pods: Sequence[Pod]) -> str:
    """Say how the attempt before ended; empty for the first one."""
    ended = [pod for pod in pods if pod.phase == "Failed"]
    if not ended:
        return ""
    _, text = _end(ended[-1])
    return f" Attempt {len(ended) + 1}; before it, {text}"


def _what_held(pods: Sequence[Pod]) -> str:
    """Say what the last pod waited for when time was up; empty where it measured."""
    waiting = [pod for pod in pods if pod.unschedulable or pod.waiting_message]
    return f" It waited: {waiting[-1].unschedulable or waiting[-1].waiting_message}." if waiting else ""


def last_words(text: str) -> str:
    """Return the end of a container's log or termination message, without the progress in it.

    The profiler tells progress as JSON objects, one a line; what is left is for people, and its end matters.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _is_progress(line)]
    return "\n".join(lines[-LAST_LINES:])[-MAX_MESSAGE // 2 :]


def _is_progress(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("event") in ("phase", "progress", "note", "finished")


def _cut(text: str, end: str = "") -> str:
    """Return ``text`` and ``end``, the middle left out where both are too long."""
    room = MAX_MESSAGE - len(end)
    if len(text) > room:
        text = text[: room // 2] + " […] " + text[-(room // 2 - 5) :]
    return text + end
