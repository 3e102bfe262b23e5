"""What is to be said of the serving pods, and done where they are not what was profiled.

``surveying`` has looked at them; here it becomes conditions. What is not known again yet, after a restart, is
no news: what was said stays until the pods are looked at.
"""

from __future__ import annotations

from tabletune.api import names, reasons
from tabletune.api.drafttables import DriftPolicy, ServingMode
from tabletune.api.reasons import Condition
from tabletune_operator import digests, live, times
from tabletune_operator.actions import Merge
from tabletune_operator.conditions import FALSE, TRUE, UNKNOWN, Said
from tabletune_operator.looks import BY_GUARD, Look

REFRESH_SECONDS = 120
"""Time that a kubelet may take to bring a ConfigMap to its pods: it looks at a pod once a minute, and what it
looks into may be a minute old."""


def judge(look: Look) -> None:
    """Say what was seen of the serving pods, and what of it needs a person."""
    story, serving, seen = look.story, look.spec.serving, look.seen.live
    if look.newest is not None and look.newest.rollback_reason == BY_GUARD:
        last = look.last(Condition.DEGRADED)
        told = last.get("message") if last.get("reason") == reasons.ROLLED_BACK else ""
        if not any(reason == reasons.ROLLED_BACK for reason, _ in story.problems):
            default = f"The guard repeated generation {look.newest.restored_from}. Profile anew."
            story.problems.append((reasons.ROLLED_BACK, str(told or default)))
    if serving.mode is ServingMode.OFF:
        story.serving = Said(UNKNOWN, reasons.OBSERVING_OFF, "spec.serving.mode is Off.")
        return
    if serving.selector is None:
        told = "spec.serving.selector is not set, so no pod is looked at."
        story.serving = Said(UNKNOWN, reasons.NO_SELECTOR, told)
        return
    if seen is None:
        _keep_serving(look)
        return
    story.seen = seen
    story.serving = _serving(look, seen)
    if seen.conflicts:
        told = f"DraftTable {', '.join(seen.conflicts[:5])}, which is older, selects the same pods."
        told = reasons.advise(reasons.PODS_CONFLICT, told)
        story.problems.append((reasons.PODS_CONFLICT, told))
    if seen.drifted:
        _drift(look, seen)


def _keep_serving(look: Look) -> None:
    """Say what was said of the pods before, until they are looked at: a restart is no news of them."""
    serving, degraded = look.last(Condition.SERVING), look.last(Condition.DEGRADED)
    if serving.get("reason") not in (None, reasons.NO_SELECTOR, reasons.OBSERVING_OFF):
        look.story.serving = Said.of(serving)
    if degraded.get("reason") in (reasons.FINGERPRINT_DRIFT, reasons.PODS_CONFLICT):
        look.story.problems.append((str(degraded["reason"]), str(degraded.get("message", ""))))


def _drift(look: Look, seen: live.Seen) -> None:
    """Report what differs between pods and profile, and by policy ask once for a profile of it."""
    told = f"Serving pods are not what was profiled: {'; '.join(seen.drifted)[:1_500]}."
    look.story.problems.append((reasons.FINGERPRINT_DRIFT, reasons.advise(reasons.FINGERPRINT_DRIFT, told)))
    mark = f"drift-{digests.digest(list(seen.drifted))}"
    asked = mark in look.seen.table.requested_at
    if look.spec.serving.drift_policy is DriftPolicy.REPROFILE and not (
        asked or look.story.due or look.paused
    ):
        value = f"{times.text_of(look.now)} {mark}"
        patch = {"metadata": {"annotations": {names.REPROFILE_ANNOTATION: value}}}
        look.actions.append(Merge(names.KIND, look.seen.table.name, patch))


def _serving(look: Look, seen: live.Seen) -> Said:
    if not seen.pods:
        return Said(FALSE, reasons.NO_PODS, "No ready pod matches spec.serving.selector.")
    named = "; ".join(f"{pod.get('name')}: {pod.get('message')}" for pod in seen.attention[:3])
    if seen.unreachable:
        told = f"The metrics of {seen.unreachable} of {seen.pods} pods cannot be read: {named}"
        return Said(FALSE, reasons.PODS_UNREACHABLE, reasons.advise(reasons.PODS_UNREACHABLE, told))
    if seen.inactive:
        return Said(
            FALSE,
            reasons.PODS_INACTIVE,
            reasons.advise(reasons.PODS_INACTIVE, f"{seen.inactive} of {seen.pods} pods do nothing: {named}"),
        )
    if seen.up_to_date < seen.pods:
        told = f"{seen.pods - seen.up_to_date} of {seen.pods} pods follow another generation: {named}"
        if _may_be_refreshing(look, seen):
            return Said(UNKNOWN, reasons.PODS_REFRESHING, told)
        return Said(FALSE, reasons.PODS_BEHIND, reasons.advise(reasons.PODS_BEHIND, told))
    return Said(TRUE, reasons.PODS_UP_TO_DATE, f"{seen.pods} ready pods follow generation {seen.generation}.")


def _may_be_refreshing(look: Look, seen: live.Seen) -> bool:
    """Whether pods are behind for no longer than kubelets take: after each generation all are, for seconds.

    Since when is read from the cluster, so that a restart loses nothing: from the newest generation, and from
    the condition, which turned Unknown when pods were first seen behind. Until when is the time of the last
    look at the pods, since nothing is known of them afterwards. What was told as behind stays that until the
    pods are up to date.
    """
    last = look.last(Condition.SERVING)
    if last.get("reason") == reasons.PODS_BEHIND:
        return False
    if last.get("reason") != reasons.PODS_REFRESHING:
        return True
    looked = times.parse(seen.last_seen)
    began = [times.parse(str(last.get("lastTransitionTime")))]
    if look.newest is not None:
        began.append(times.parse(look.newest.created))
    known = [moment for moment in began if moment is not None]
    return not (looked and known) or (looked - max(known)).total_seconds() < REFRESH_SECONDS
