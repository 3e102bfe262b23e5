"""The operator's decisions: from what is seen of one DraftTable to what is to be done and said about it.

``reconciling`` calls :func:`plan` after every change of anything that belongs to a DraftTable, and nothing
but what it is given decides. So it does not matter what happened before, in which order, or whether the
operator died in between: the same cluster makes the same plan.

Rules, in their order:

1. Spec: one that cannot be read or contradicts itself changes nothing; the last table stays in force.
2. Conflict: of two DraftTables for one ConfigMap the older writes it. The younger does nothing at all.
3. Ownership: a ConfigMap that somebody else made is taken only where ``spec.table.adopt`` says so.
4. Paused: nothing is done; what is seen is still said.
5. Profile: due where the digest of the inputs is not that of the last accepted profile. Inputs whose profile
   is still in the history need no new one. Otherwise there is one Job, named after its inputs; every other
   unfinished one is superseded. A Job that failed is not tried again until its inputs change.
6. Acceptance: the report of a completed Job becomes a generation once it is valid. Until then the old one
   serves.
7. Rollback: ``spec.table.rollbackTo`` and the guard repeat an older generation as a new one, since pods never
   go back by number. While one holds, nothing is corrected.
8. Correction: what live traffic proposes becomes a generation, if it was computed from the one in force.
9. Settings: a table that comes out otherwise under the spec's table settings becomes a generation; no
   profile.
10. Serving: the mounted ConfigMap is the newest generation's copy, and is written again where it is not.
11. History: more than ``historyLimit`` entries are deleted, the oldest first; never the one rolled back to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tabletune import assembling
from tabletune.api import drafttables, names, reasons
from tabletune.api.drafttables import DriftPolicy, ServingMode, Spec, SpecError
from tabletune.api.reasons import Condition
from tabletune.documents import Control, Document, Mode, Source
from tabletune.rendering import RenderingError
from tabletune_operator import (
    access,
    conditions,
    configmaps,
    digests,
    failures,
    jobs,
    live,
    statuses,
    times,
)
from tabletune_operator.actions import Action, Apply, Create, Delete, Happened, Merge
from tabletune_operator.conditions import FALSE, TRUE, UNKNOWN, Said
from tabletune_operator.configmaps import Origin
from tabletune_operator.observations import DraftTable, Entry, Job, Pod, Report, Served

RENDERED = "1"
"""Counts up where the same document is to be rendered otherwise by a newer operator."""

CHECK_SECONDS = 15.0
"""Time until a Job without a pod is looked at again: what its controller is refused is told by Events
alone."""
REFUSED_SECONDS = 60.0
"""Time until a refused Job is tried again: quotas and policies change without a word to us."""

BY_SPEC, BY_GUARD, BY_REUSE = "spec", "guard", "reuse"
"""Who repeated an older generation."""

_PROGRESS = ("phase", "progress", "remainingSeconds")
"""Keys of the status' profile that say how far the pod is."""
_ATTEMPT = (*_PROGRESS, "pod", "node", "attempt", "failedJob")
"""Those that say it of the Job."""


@dataclass(frozen=True)
class Need:
    """Something that must be read before the plan can be made."""

    kind: str
    """``served`` or ``entry`` (a ConfigMap that is not in sight), ``history`` or ``report`` or ``table`` (a
    document), or ``events`` (why a Job has no pod)."""
    name: str


@dataclass(frozen=True)
class Observed:
    """All that is seen of one DraftTable."""

    table: DraftTable
    siblings: tuple[DraftTable, ...] = ()
    """The namespace's other DraftTables."""
    served: Served | None = None
    entries: tuple[Entry, ...] = ()
    reports: tuple[Report, ...] = ()
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    live: live.Seen | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be done and said."""

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None
    """The whole status; ``None`` where there is nobody to say it to."""
    events: tuple[Happened, ...] = ()
    again_seconds: float | None = None
    """Time until another look even if nothing changes; ``None`` for none."""
    needs: tuple[Need, ...] = ()
    """What to read first; then everything else is empty."""
    in_force: int | None = None
    """Generation in force once the actions are done."""


class _Missing(Exception):  # noqa: N818
    def __init__(self, *needs: Need) -> None:
        self.needs = needs


def plan(seen: Observed, fetched: Mapping[Need, Any], refused: Mapping[str, str], now: datetime) -> Plan:
    """Return the plan for ``seen`` at ``now``.

    ``fetched`` holds what earlier plans asked for: a :class:`Served`, a :class:`Document`, a list of
    messages, a :class:`DocumentError` where there is no usable document, or ``None`` where there is no such
    object. ``refused`` holds what the API server said to Jobs that it did not take, by name.
    """
    if seen.table.deleting:
        # The garbage collector takes all that it owns.
        return Plan()
    try:
        return _Planner(seen, fetched, refused, now).run()
    except _Missing as missing:
        return Plan(needs=missing.needs)


def control(spec: Spec) -> Control:
    """Return the document's control section that ``spec`` asks for."""
    table, serving = spec.table, spec.serving
    pinned = sorted((entry.first, entry.last, entry.draft_length) for entry in table.pinned)
    return Control(
        mode=Mode(serving.plugin_mode.value.lower()),
        half_life=float(serving.half_life_seconds),
        hysteresis=serving.hysteresis,
        min_drafts=serving.min_drafts,
        allowed_lengths=tuple(sorted(table.allowed_lengths)),
        pinned=tuple(pinned),
        tie_tolerance=table.tie_tolerance,
        narrow_range=table.narrow_range,
        merge_tolerance=table.merge_tolerance,
    )


class _Planner:
    def __init__(
        self, seen: Observed, fetched: Mapping[Need, Any], refused: Mapping[str, str], now: datetime
    ) -> None:
        self.seen, self.fetched, self.refused, self.now = seen, fetched, refused, now
        self.actions: list[Action] = []
        self.again: list[float] = []
        table = seen.table
        self.before = table.status
        self.owner = table.owner
        # A DraftTable of the same name that is gone may have left some; they are the garbage collector's.
        self.jobs = [job for job in seen.jobs if job.owner == table.uid]
        self.reports = [report for report in seen.reports if report.owner == table.uid]
        self.entries = sorted(
            (entry for entry in seen.entries if entry.owner == table.uid),
            key=lambda entry: entry.generation,
        )
        self.newest = self.entries[-1] if self.entries else None
        self.document: Document | None = None
        """The newest entry's document, where it was read or made."""
        self.story = statuses.Story(generation=table.generation, config_map=table.config_map_name)
        self.story.profile = dict(table.status.get("profile") or {})

    def run(self) -> Plan:
        table = self.seen.table
        self._keep_profiled()
        try:
            self.spec = drafttables.parse(table.spec)
            _check(self.spec)
        except SpecError as error:
            return self._finish(reasons.INVALID_SPEC, str(error))
        self.paused = self.story.paused = self.spec.paused
        if older := self._older_writer():
            return self._finish(
                reasons.CONFIG_MAP_CONFLICT,
                f"DraftTable {older.name}, which is older, writes ConfigMap {table.config_map_name} too. Set"
                " another spec.table.configMapName, or delete one of the two.",
                in_force=False,
            )
        self.served = self._served()
        self._find_newest()
        if self.served is not None:
            if not self._is_own(self.served) and not self._may_adopt(self.served):
                return self._finish(
                    reasons.CONFIG_MAP_NOT_OWNED,
                    f"ConfigMap {self.served.name} is there already and is not this DraftTable's. Choose"
                    " another spec.table.configMapName, delete it, or set spec.table.adopt: true to take it"
                    " over.",
                    in_force=False,
                )
            self._adopt(self.served)
        self._profile()
        self._roll_back()
        self._correct()
        self._serve()
        self._prune()
        self._look_at_pods()
        return self._finish()

    # --- spec, conflict, ownership ------------------------------------------------------------------

    def _older_writer(self) -> DraftTable | None:
        """Return the oldest other DraftTable that writes the same ConfigMap, if it is older than this one."""
        table = self.seen.table
        rivals = [
            other
            for other in self.seen.siblings
            if other.config_map_name == table.config_map_name
            and not other.deleting
            and other.seniority < table.seniority
        ]
        return min(rivals, key=lambda other: other.seniority, default=None)

    def _served(self) -> Served | None:
        if self.seen.served is not None:
            return self.seen.served
        found = self._fetch(Need("served", self.seen.table.config_map_name))
        return found if isinstance(found, Served) else None

    def _is_own(self, served: Served) -> bool:
        return served.controller == self.seen.table.uid

    def _may_adopt(self, served: Served) -> bool:
        """Whether it may be taken over: nobody else controls it, and the spec says so."""
        return self.spec.table.adopt and served.controller is None

    def _find_newest(self) -> None:
        """Look for the newest generation by its name, where it is not seen though there must be one: without
        its label it is hidden, and pods that follow it would take no older one."""
        known = [int(self.before.get("generation") or 0)]
        if self.served is not None and self._is_own(self.served) and self.served.intact:
            known.append(self.served.generation)
        if max(known) <= (self.newest.generation if self.newest else 0):
            return
        hidden = self._fetch(Need("entry", configmaps.history_name(self.owner, max(known))))
        if isinstance(hidden, Entry) and hidden.owner == self.owner.uid:
            self.newest, self.entries = hidden, [*self.entries, hidden]
            if not self.paused:
                self.actions.append(
                    Merge("ConfigMap", hidden.name, {"metadata": {"labels": self.owner.labels}})
                )

    def _adopt(self, served: Served) -> None:
        """Take over what a ConfigMap holds as a generation: as the first one, where a profile stays due, or
        as the newest where somebody took that one out of the history."""
        lost = self._is_own(served) and served.intact
        if self.newest is not None and not (lost and served.generation > self.newest.generation):
            return
        document = self._fetch(Need("table", served.name))
        if not isinstance(document, Document):
            return
        # Where the history is gone and the table is our own, the status still knows what was accepted.
        known = self._is_own(served) and self.before.get("generation") == document.generation
        accepted = str(self.story.profile.get("acceptedDigest") or "") if known else ""
        self._append(document, Origin(accepted, accepted), generation=document.generation)

    # --- profile --------------------------------------------------------------------------------------

    def _keep_profiled(self) -> None:
        """Start from what the status says of the profile: it holds until something else is seen."""
        if last := self._last(Condition.PROFILED):
            self.story.profiled = _said(last)

    def _profile(self) -> None:
        table, story = self.seen.table, self.story
        digest = digests.profile(self.spec, table.requested_at)
        name = jobs.name(self.owner, digests.job(self.spec, table.requested_at))
        accepted = self.newest.accepted_digest if self.newest else ""
        story.profile |= {"digest": digest, "acceptedDigest": accepted or None}
        if accepted == digest:
            self._profile_done()
            return
        story.due = True
        if self.spec.table.rollback_to is not None:
            story.due = False
            self._supersede(keep="")
            story.profiled = Said(
                FALSE,
                reasons.PROFILE_HELD,
                "The spec asks for another profile, and spec.table.rollbackTo holds the table. Unset it.",
            )
            return
        if not self.paused and self._reuse(digest):
            self._profile_done()
            return
        self._supersede(keep=name)
        self._await_job(name, digest)

    def _profile_done(self) -> None:
        self.story.due = False
        self._supersede(keep="")
        self._leave_out(*_ATTEMPT)
        if self.story.profiled.reason != reasons.PROFILE_SUCCEEDED or self.story.profiled.status != TRUE:
            generation = self.newest.generation if self.newest else 0
            told = f"Generation {generation} was measured with what the spec says."
            self.story.profiled = Said(TRUE, reasons.PROFILE_SUCCEEDED, told)

    def _reuse(self, digest: str) -> bool:
        """Repeat the generation of these very inputs if it is still kept; return whether it is."""
        kept = [
            entry
            for entry in self.entries
            if entry.profile_digest == digest and entry.source == Source.PROFILE.value
        ]
        if not kept:
            return False
        document = self._fetch(Need("history", kept[-1].name))
        if not isinstance(document, Document):
            return False
        origin = Origin(digest, digest, kept[-1].restored_from or kept[-1].generation, BY_REUSE)
        self._append(document, origin)
        return True

    def _supersede(self, keep: str) -> None:
        """Delete Jobs that measure what nobody asks for any more, and reports that nobody reads."""
        if self.paused:
            return
        for job in self.jobs:
            if job.name != keep and not job.finished and not job.deleting:
                self.actions.append(Delete("Job", job.name))
        for report in self.reports:
            if report.name != keep:
                self.actions.append(Delete("ConfigMap", report.name))

    def _await_job(self, name: str, digest: str) -> None:
        story = self.story
        job = next((job for job in self.jobs if job.name == name), None)
        report = next((report for report in self.reports if report.name == name), None)
        story.profile["job"] = name
        if job is not None:
            story.profile["startedAt"] = job.started or None
        if report is not None and report.complete and (job is None or job.complete):
            self._accept(name, digest)
            return
        if job is None and report is not None and isinstance(self._fetch(Need("report", name)), Document):
            # A Job that ended was cleaned up before the news of its report came: it is there.
            self._accept(name, digest)
        elif job is None:
            self._start(name, digest)
        elif job.complete:
            self._fail(
                name,
                reasons.REPORT_FAILED,
                f"Job {name} ended well and left no document in ConfigMap {name}. Operator and engine.image"
                " may be of different TableTune releases."
                f" To try again, annotate with {names.REPROFILE_ANNOTATION}=TIME.",
            )
        else:
            self._follow(job, report)

    def _start(self, name: str, digest: str) -> None:
        """Make the Job and what it needs, unless it failed before or was refused."""
        story = self.story
        if story.profile.get("failedJob") == name:
            story.failed = True
            return
        if self.paused:
            story.profiled = Said(FALSE, reasons.PROFILE_PAUSED, "A profile is due, and spec.paused is set.")
            return
        if name in self.refused:
            story.failed = True
            story.profiled = Said(
                FALSE, reasons.JOB_REFUSED, f"The API server refuses Job {name}: {self.refused[name][:1_500]}"
            )
            self.again.append(REFUSED_SECONDS)
            return
        self._leave_out(*_ATTEMPT, "startedAt")
        self.actions += [Apply(body) for body in access.objects(self.owner, name)]
        self.actions.append(Apply(configmaps.report(self.owner, name, digest)))
        self.actions.append(Create(jobs.job(self.spec, self.owner, name, digest)))
        story.profiled = Said(FALSE, reasons.PROFILE_STARTING, f"Job {name} is about to start.")

    def _follow(self, job: Job, report: Report | None) -> None:
        """Say how far the Job is, or why it does not get on."""
        story = self.story
        pods = [pod for pod in self.seen.pods if pod.job == job.name]
        events: list[str] = []
        if not pods and not job.suspended and not job.finished:
            self.again.append(CHECK_SECONDS)
            events = self._fetch(Need("events", job.name)) or []
        found = failures.diagnose(job, pods, events)
        story.running, story.failed = found.running, found.failed
        newest = max(pods, key=lambda pod: pod.seniority, default=None)
        story.profile |= {
            "attempt": job.failed + 1 if job.failed else None,
            "pod": newest.name if newest else None,
            "node": (newest.node or None) if newest else None,
            "failedJob": job.name if found.failed else None,
        }
        self._leave_out(*_PROGRESS)
        if found.running and report is not None:
            # In fields of their own: a condition's message that moved with them would be an Event a second.
            story.profile |= _progress(report.progress)
        story.profiled = Said(FALSE, found.reason, found.message)

    def _accept(self, name: str, digest: str) -> None:
        """Put the report's document in force, if it is one."""
        document = self._fetch(Need("report", name))
        if not isinstance(document, Document):
            self._fail(
                name,
                reasons.REPORT_FAILED,
                f"The document that Job {name} left cannot be used: {str(document)[:1_200]}."
                f" To try again, annotate with {names.REPROFILE_ANNOTATION}=TIME.",
            )
            return
        if self.paused:
            self.story.profiled = Said(
                FALSE, reasons.PROFILE_PAUSED, f"Job {name} is done; spec.paused holds back its table."
            )
            return
        try:
            document = assembling.recompute(document, control(self.spec), self.now)
        except assembling.NOT_COMPUTABLE as error:
            self.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, str(error)))
        self._append(document.model_copy(update={"source": Source.PROFILE}), Origin(digest, digest))
        self.story.profile |= {
            "completedAt": times.text_of(self.now),
            "acceptedDigest": digest,
            "fingerprint": statuses.fingerprint(document),
            "excluded": len(document.profile.excluded),
        }
        self._profile_done()

    def _leave_out(self, *keys: str) -> None:
        for key in keys:
            self.story.profile.pop(key, None)

    def _fail(self, name: str, reason: str, message: str) -> None:
        self.story.failed = True
        self.story.profile["failedJob"] = name
        self.story.profiled = Said(FALSE, reason, message)

    # --- the table --------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether a rollback holds the table."""
        if self.spec.table.rollback_to is not None:
            return True
        return self.newest is not None and self.newest.rollback_reason == BY_GUARD

    def _roll_back(self) -> None:
        wanted, newest = self.spec.table.rollback_to, self.newest
        if wanted is not None:
            if newest is None or wanted not in {entry.generation for entry in self.entries}:
                if newest is not None and newest.restored_from == wanted:
                    return
                kept = ", ".join(str(entry.generation) for entry in self.entries) or "none"
                told = f"spec.table.rollbackTo is {wanted}, and kept are {kept}."
                self.story.problems.append((reasons.ROLLBACK_UNKNOWN, told))
            elif wanted not in (newest.generation, newest.restored_from):
                self._repeat(wanted, BY_SPEC)
            return
        verdict = self.seen.live.rollback if self.seen.live else None
        if verdict and newest and verdict.generation == newest.generation:
            self._repeat(verdict.to, BY_GUARD)
            self.story.problems.append((reasons.ROLLED_BACK, verdict.message))

    def _repeat(self, generation: int, reason: str) -> None:
        """Put an older generation in force as a new one."""
        entry = next((entry for entry in self.entries if entry.generation == generation), None)
        if entry is None or self.newest is None:
            return
        document = self._fetch(Need("history", entry.name))
        if not isinstance(document, Document):
            told = f"Generation {generation} cannot be read any more: {str(document)[:500]}."
            self.story.problems.append((reasons.ROLLBACK_UNKNOWN, told))
            return
        origin = Origin(entry.profile_digest, self.newest.accepted_digest, generation, reason)
        self._append(document, origin)

    def _correct(self) -> None:
        proposal = self.seen.live.correction if self.seen.live else None
        newest = self.newest
        if proposal is None or newest is None or proposal.base != newest.generation or self.held:
            return
        if self.spec.serving.mode is ServingMode.CORRECT:
            self._append(proposal.document, Origin(newest.profile_digest, newest.accepted_digest))

    def _append(self, document: Document, origin: Origin, generation: int | None = None) -> None:
        """Make a generation; with ``spec.paused`` none is made."""
        if self.paused:
            return
        number = generation if generation is not None else self._next_generation()
        made: dict[str, Any] = {"generation": number}
        if origin.restored_from is not None:
            made["created_at"] = self.now.replace(microsecond=0)
        self.document = document.model_copy(update=made)
        self.actions.append(Create(configmaps.history(self.owner, self.document, origin)))
        self.newest = Entry(
            name=configmaps.history_name(self.owner, number),
            owner=self.owner.uid,
            generation=number,
            source=self.document.source.value,
            profile_digest=origin.profile_digest,
            accepted_digest=origin.accepted_digest,
            restored_from=origin.restored_from,
            rollback_reason=origin.rollback_reason,
            created=times.text_of(self.now),
        )
        self.entries = [*self.entries, self.newest]

    def _next_generation(self) -> int:
        """Return a number above every one that a pod may have seen, also after a history that was deleted."""
        known = [entry.generation for entry in self.entries]
        known.append(int(self.before.get("latestGeneration") or 0))
        if self.served is not None and (self._is_own(self.served) or self._may_adopt(self.served)):
            known.append(self.served.generation)
        return max(known) + 1

    def _serve(self) -> None:
        """Write the mounted ConfigMap where it is not the newest generation under the spec's settings."""
        if self.newest is None or self.paused:
            return
        wanted, served = control(self.spec), self.served
        whole = (
            served
            if served is not None and self._is_own(served) and served.intact and served.managed
            else None
        )
        digest = self._control_digest(wanted)
        if whole and (whole.generation, whole.control_digest) == (self.newest.generation, digest):
            return
        document = self._newest_document()
        if document is None:
            return
        if not self.held and document.control != wanted:
            computed = self._recomputed(document, wanted)
            # Where the settings do not fit, they are tried again at each look, so that it is said as long.
            document, digest = (
                (document, "") if computed is None else (computed, self._control_digest(wanted))
            )
        try:
            body = configmaps.served(self.owner, self.seen.table.config_map_name, document, digest)
        except RenderingError as error:
            self.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, str(error)))
            return
        if whole and (whole.content_digest, whole.control_digest) == (digests.content(body["data"]), digest):
            return
        self.actions.append(Apply(body))

    def _control_digest(self, wanted: Control) -> str:
        generation = self.newest.generation if self.newest else 0
        plain = wanted.model_dump(mode="json", by_alias=True)
        return digests.digest([RENDERED, generation, None if self.held else plain])

    def _newest_document(self) -> Document | None:
        if self.document is not None or self.newest is None:
            return self.document
        found = self._fetch(Need("history", self.newest.name))
        if isinstance(found, Document):
            self.document = found
            return found
        # Somebody's edit cannot happen to an immutable object; what is left is a version that cannot be read.
        told = f"Generation {self.newest.generation} cannot be read: {str(found)[:500]}."
        self.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, told))
        return None

    def _recomputed(self, document: Document, wanted: Control) -> Document | None:
        """Return ``document`` under other settings, ``None`` where they do not fit what was profiled.

        Another table is another generation.
        """
        newest = self.newest
        try:
            computed = assembling.recompute(document, wanted, self.now)
        except assembling.NOT_COMPUTABLE as error:
            self.story.problems.append((reasons.TABLE_NOT_COMPUTABLE, str(error)))
            return None
        if newest is None or computed.generation == document.generation:
            return computed
        self._append(computed, Origin(newest.profile_digest, newest.accepted_digest))
        return self.document or computed

    def _prune(self) -> None:
        if self.paused:
            return
        kept = {entry.generation for entry in self.entries[-self.spec.table.history_limit :]}
        if self.spec.table.rollback_to is not None:
            kept.add(self.spec.table.rollback_to)
        for entry in self.entries:
            if entry.generation not in kept:
                self.actions.append(Delete("ConfigMap", entry.name))
        self.entries = [entry for entry in self.entries if entry.generation in kept]

    # --- pods and the end ---------------------------------------------------------------------------------

    def _look_at_pods(self) -> None:
        story, serving, seen = self.story, self.spec.serving, self.seen.live
        if self.newest is not None and self.newest.rollback_reason == BY_GUARD:
            last = self._last(Condition.DEGRADED)
            told = last.get("message") if last.get("reason") == reasons.ROLLED_BACK else ""
            if not any(reason == reasons.ROLLED_BACK for reason, _ in story.problems):
                default = f"The guard repeated generation {self.newest.restored_from}. Profile anew."
                story.problems.append((reasons.ROLLED_BACK, str(told or default)))
        if serving.mode is ServingMode.OFF:
            story.serving = Said(UNKNOWN, reasons.OBSERVING_OFF, "spec.serving.mode is Off.")
            return
        if serving.selector is None:
            told = "spec.serving.selector is not set, so no pod is looked at."
            story.serving = Said(UNKNOWN, reasons.NO_SELECTOR, told)
            return
        if seen is None:
            self._keep_serving()
            return
        story.seen = seen
        story.serving = _serving(seen)
        if seen.conflicts:
            told = f"DraftTable {', '.join(seen.conflicts)}, which is older, selects the same pods."
            story.problems.append((reasons.PODS_CONFLICT, told))
        if seen.drifted:
            self._drift(seen)

    def _keep_serving(self) -> None:
        """Say what was said of the pods before, until they are looked at: a restart is no news of them."""
        serving, degraded = self._last(Condition.SERVING), self._last(Condition.DEGRADED)
        if serving.get("reason") not in (None, reasons.NO_SELECTOR, reasons.OBSERVING_OFF):
            self.story.serving = _said(serving)
        if degraded.get("reason") in (reasons.FINGERPRINT_DRIFT, reasons.PODS_CONFLICT):
            self.story.problems.append((str(degraded["reason"]), str(degraded.get("message", ""))))

    def _drift(self, seen: live.Seen) -> None:
        """Report what differs between pods and profile, and by policy ask once for a profile of it."""
        told = f"Serving pods are not what was profiled: {'; '.join(seen.drifted)[:1_500]}."
        self.story.problems.append((reasons.FINGERPRINT_DRIFT, told))
        mark = f"drift-{digests.digest(list(seen.drifted))}"
        asked = mark in self.seen.table.requested_at
        if self.spec.serving.drift_policy is DriftPolicy.REPROFILE and not (
            asked or self.story.due or self.paused
        ):
            value = f"{times.text_of(self.now)} {mark}"
            patch = {"metadata": {"annotations": {names.REPROFILE_ANNOTATION: value}}}
            self.actions.append(Merge(names.KIND, self.seen.table.name, patch))

    def _last(self, kind: Condition) -> Mapping[str, Any]:
        """Return what the status says of one condition; empty where it says nothing."""
        return conditions.find(self.before.get("conditions") or (), kind)

    def _fetch(self, need: Need) -> Any:
        if need not in self.fetched:
            raise _Missing(need)
        return self.fetched[need]

    def _finish(self, problem: str = "", message: str = "", in_force: bool = True) -> Plan:
        story = self.story
        if problem:
            story.problems.insert(0, (problem, message))
        if self.newest is not None and in_force:
            story.in_force, story.source = self.newest.generation, self.newest.source
            story.restored_from = self.newest.restored_from
            if self.document is None and (
                self.before.get("generation") != self.newest.generation or "table" not in self.before
            ):
                self._newest_document()
            story.document = self.document
            if self.document is not None and "fingerprint" not in story.profile:
                story.profile["fingerprint"] = statuses.fingerprint(self.document)
        story.history = [entry.generation for entry in self.entries]
        status, events = statuses.tell(story, self.before, times.text_of(self.now))
        return Plan(
            actions=tuple(self.actions),
            status=status,
            events=tuple(events),
            again_seconds=min(self.again, default=None),
            in_force=story.in_force,
        )


def _check(spec: Spec) -> None:
    """Raise :class:`SpecError` for what the API server cannot see."""
    taken = sorted(set(spec.drafter.config) & set(drafttables.RESERVED_DRAFTER_KEYS))
    if taken:
        raise SpecError(
            [
                f"spec.drafter.config: must not have {', '.join(taken)}, which fields of spec.drafter set, or"
                " TableTune itself (the table)"
            ]
        )


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


def _said(condition: Mapping[str, Any]) -> Said:
    """Return what a condition in the status says."""
    return Said(str(condition.get("status")), str(condition.get("reason")), str(condition.get("message", "")))


def _serving(seen: live.Seen) -> Said:
    if not seen.pods:
        return Said(FALSE, reasons.NO_PODS, "No ready pod matches spec.serving.selector.")
    named = "; ".join(f"{pod.get('name')}: {pod.get('message')}" for pod in seen.attention[:3])
    if seen.unreachable:
        told = f"The metrics of {seen.unreachable} of {seen.pods} pods cannot be read: {named}"
        return Said(FALSE, reasons.PODS_UNREACHABLE, told)
    if seen.inactive:
        return Said(FALSE, reasons.PODS_INACTIVE, f"{seen.inactive} of {seen.pods} pods do nothing: {named}")
    if seen.up_to_date < seen.pods:
        told = f"{seen.pods - seen.up_to_date} of {seen.pods} pods follow another generation: {named}"
        return Said(FALSE, reasons.PODS_BEHIND, told)
    return Said(TRUE, reasons.PODS_UP_TO_DATE, f"{seen.pods} ready pods follow generation {seen.generation}.")
