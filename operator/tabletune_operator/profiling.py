"""The profile: whether one is due, its Job, and what becomes of its report. Rules 5 and 6 of ``planning``.

Without a Job's name that is its inputs' digest, an operator that dies between two steps would start a second
one; and one that failed would be tried for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabletune import assembling
from tabletune.api import reasons
from tabletune.api.reasons import Condition
from tabletune.documents import Document, Source
from tabletune_operator import (
    access,
    configmaps,
    digests,
    failures,
    jobs,
    mounting,
    statuses,
    times,
)
from tabletune_operator.actions import Apply, Create, Delete
from tabletune_operator.conditions import FALSE, TRUE, Said
from tabletune_operator.configmaps import Origin
from tabletune_operator.looks import BY_REUSE, Look
from tabletune_operator.observations import Entry, Job, Report
from tabletune_operator.plans import Need

CHECK_SECONDS = 15.0
"""Time until a Job without a pod is looked at again: what its controller is refused is told by Events
alone."""
LEFT_SECONDS = 5.0
"""Time until a look whether the garbage collector has taken what an earlier DraftTable left."""
STALE_SECONDS = 1.0
"""Time until a look with newer news."""
REFUSED_SECONDS = 60.0
"""Time until a refused Job is tried again: quotas and policies change without a word to us."""

_PROGRESS = ("phase", "progress", "remainingSeconds")
"""Keys of the status' profile that say how far the pod is."""
_ATTEMPT = (*_PROGRESS, "pod", "node", "attempt", "failedJob")
"""Those that say it of the Job."""


def keep(look: Look) -> None:
    """Start from what the status says of the profile: it holds until something else is seen."""
    if last := look.last(Condition.PROFILED):
        look.story.profiled = Said.of(last)


def decide(look: Look) -> None:
    """Start, follow, accept or supersede the profile of what the spec says, and say how it stands."""
    table, story = look.seen.table, look.story
    digest = digests.profile(look.spec, table.requested_at)
    name = jobs.name(look.owner, digests.job(look.spec, table.requested_at))
    accepted = look.newest.accepted_digest if look.newest else ""
    story.profile |= {"digest": digest, "acceptedDigest": accepted or None}
    if accepted == digest:
        _profile_done(look)
        return
    story.due = True
    if look.spec.table.rollback_to is not None:
        story.due = False
        _supersede(look, keep="")
        story.profiled = Said(
            FALSE,
            reasons.PROFILE_HELD,
            "The spec asks for another profile, and spec.table.rollbackTo holds the table. Unset it.",
        )
        return
    if not look.paused and _reuse(look, digest):
        _profile_done(look)
        return
    _supersede(look, keep=name)
    _await_job(look, name, digest)


def _profile_done(look: Look) -> None:
    look.story.due = False
    _supersede(look, keep="")
    _leave_out(look, *_ATTEMPT)
    if look.story.profiled.reason != reasons.PROFILE_SUCCEEDED or look.story.profiled.status != TRUE:
        generation = look.newest.generation if look.newest else 0
        told = f"Generation {generation} was measured with what the spec says."
        look.story.profiled = Said(TRUE, reasons.PROFILE_SUCCEEDED, told)


def _reuse(look: Look, digest: str) -> bool:
    """Repeat the generation of these very inputs if it is still kept; return whether it is."""
    kept = [
        entry
        for entry in look.entries
        if entry.profile_digest == digest and entry.source == Source.PROFILE.value
    ]
    if not kept:
        return False
    document = look.fetch(Need("history", kept[-1].name))
    if not isinstance(document, Document):
        return False
    origin = Origin(digest, digest, kept[-1].restored_from or kept[-1].generation, BY_REUSE)
    look.append(document, origin)
    return True


def _supersede(look: Look, keep: str) -> None:
    """Delete Jobs that measure what nobody asks for any more, and reports that nobody reads."""
    if look.paused:
        return
    for job in look.jobs:
        if job.name != keep and not job.finished and not job.deleting:
            look.actions.append(Delete("Job", job.name))
    for report in look.reports:
        if report.name != keep:
            look.actions.append(Delete("ConfigMap", report.name))


def _await_job(look: Look, name: str, digest: str) -> None:
    story = look.story
    job = next((job for job in look.jobs if job.name == name), None)
    report = next((report for report in look.reports if report.name == name), None)
    if job is None and report is None:
        # It may be there without the news of it, and its Job gone. Read before an entry is: whoever puts it
        # in force makes the entry first and deletes the report then.
        there = look.fetch(Need("entry", name))
        report = there if isinstance(there, Report) and there.owner == look.owner.uid else None
    story.profile["job"] = name
    if job is not None:
        story.profile["startedAt"] = job.started or None
    if report is not None and report.complete and (job is None or job.complete):
        _accept(look, name, digest)
        return
    if job is None and report is not None and isinstance(look.fetch(Need("report", name)), Document):
        # A Job that ended was cleaned up before the news of its report came: it is there.
        _accept(look, name, digest)
    elif job is None:
        _start(look, name, digest)
    elif job.complete:
        _fail(
            look,
            name,
            reasons.REPORT_FAILED,
            f"Job {name} ended well and left no document in ConfigMap {name}. Operator and engine.image"
            f" may be of different TableTune releases. {look.owner.again}",
        )
    else:
        _follow(look, job, report)


def _start(look: Look, name: str, digest: str) -> None:
    """Make the Job and what it needs, unless it failed before or was refused."""
    story = look.story
    if story.profile.get("failedJob") == name:
        story.failed = True
        return
    if look.paused:
        story.profiled = Said(FALSE, reasons.PROFILE_PAUSED, "A profile is due, and spec.paused is set.")
        return
    if look.left:
        # Its Job would go on under our report's name, and our table would be of what nobody asked for.
        story.profiled = Said(
            FALSE,
            reasons.PROFILE_STARTING,
            f"A DraftTable of this name was deleted and left {', '.join(look.left[:3])}. The Job is made once"
            " they are gone: Kubernetes collects them, unless they were orphaned.",
        )
        look.again.append(LEFT_SECONDS)
        return
    if name in look.refused:
        story.failed = True
        told = f"The API server refuses Job {name}: {look.refused[name][:1_500]}"
        story.profiled = Said(FALSE, reasons.JOB_REFUSED, reasons.advise(reasons.JOB_REFUSED, told))
        look.again.append(REFUSED_SECONDS)
        return
    made = look.fetch(Need("entry", configmaps.history_name(look.owner, look.next_generation())))
    if isinstance(made, Entry) and made.owner == look.owner.uid:
        # Old news: another operator has taken the report that we miss, and its generation is not seen yet.
        look.again.append(STALE_SECONDS)
        return
    _leave_out(look, *_ATTEMPT, "startedAt")
    look.actions += [Apply(body) for body in access.objects(look.owner, name)]
    look.actions.append(Apply(configmaps.report(look.owner, name, digest)))
    look.actions.append(Create(jobs.job(look.spec, look.owner, name, digest)))
    story.profiled = Said(FALSE, reasons.PROFILE_STARTING, f"Job {name} is about to start.")


def _follow(look: Look, job: Job, report: Report | None) -> None:
    """Say how far the Job is, or why it does not get on."""
    story = look.story
    pods = [pod for pod in look.seen.pods if pod.job == job.name]
    events: list[str] = []
    if not pods and not job.suspended and not job.finished:
        look.again.append(CHECK_SECONDS)
        events = look.fetch(Need("events", job.name)) or []
    found = failures.diagnose(job, pods, events, look.owner.again)
    story.running, story.failed = found.running, found.failed
    newest = max(pods, key=lambda pod: pod.seniority, default=None)
    story.profile |= {
        "attempt": (job.failed + (not found.failed)) if job.failed else None,
        "pod": newest.name if newest else None,
        "node": (newest.node or None) if newest else None,
        "failedJob": job.name if found.failed else None,
    }
    _leave_out(look, *_PROGRESS)
    if found.running and report is not None:
        # In fields of their own: a condition's message that moved with them would be an Event a second.
        story.profile |= _progress(report.progress)
    story.profiled = Said(FALSE, found.reason, found.message)


def _accept(look: Look, name: str, digest: str) -> None:
    """Put the report's document in force, if it is one."""
    document = look.fetch(Need("report", name))
    if not isinstance(document, Document):
        _fail(
            look,
            name,
            reasons.REPORT_FAILED,
            f"The document that Job {name} left cannot be used: {str(document)[:1_200]}. {look.owner.again}",
        )
        return
    if look.paused:
        look.story.profiled = Said(
            FALSE, reasons.PROFILE_PAUSED, f"Job {name} is done; spec.paused holds back its table."
        )
        return
    try:
        document = assembling.recompute(document, mounting.control(look.spec), look.now)
    except assembling.NOT_COMPUTABLE as error:
        look.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, str(error)))
    look.append(document.model_copy(update={"source": Source.PROFILE}), Origin(digest, digest))
    look.story.profile |= {
        "completedAt": times.text_of(look.now),
        "acceptedDigest": digest,
        "fingerprint": statuses.fingerprint(document),
        "excluded": len(document.profile.excluded),
    }
    _profile_done(look)


def _leave_out(look: Look, *keys: str) -> None:
    for key in keys:
        look.story.profile.pop(key, None)


def _fail(look: Look, name: str, reason: str, message: str) -> None:
    look.story.failed = True
    look.story.profile["failedJob"] = name
    look.story.profiled = Said(FALSE, reason, message)


def _progress(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return phase, progress and the rest's seconds as the status shows them; what is no progress is left
    out."""
    phase, done, total = reported.get("phase"), reported.get("done"), reported.get("total")
    if not isinstance(phase, str) or not phase.isalpha() or len(phase) > 32:
        return {}
    found: dict[str, Any] = {"phase": phase, "progress": phase}
    if isinstance(done, int) and isinstance(total, int) and 0 <= done <= total and total > 0:
        found["progress"] = f"{phase} {100 * done // total}%"
    seconds = reported.get("remainingSeconds")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e7:
        found["remainingSeconds"] = round(float(seconds), 1)
    return found
