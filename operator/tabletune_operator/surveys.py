"""What a look at the serving pods means: a pure step from the last look's memory to this one's, and what is
seen.

``surveying`` reads the pods and calls :func:`survey`. Everything that decides about a correction or a
rollback is here, on plain values, so a test can play weeks of traffic in a moment.

Rules:

1. A pod counts as up to date where it follows the generation in force, as behind where another, as inactive
   where its plugin says so, as unreachable where it could not be read.
2. Growth of its counters goes into one window with all others', of which the core's controller decides. Pods
   that are not what was profiled are told, and do not count: their acceptance and times are another engine's.
3. Kept tokens are gathered for the generation in force, from pods that followed it at both looks.
4. A new generation is watched against the one before it, as long as that one's rates are known. Worse
   beyond the tolerance, it is to be rolled back; not worse until the window ends, it is kept.
5. Nothing is corrected while a generation is watched: two changes at once cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tabletune import controlling, estimating
from tabletune.api.drafttables import MAX_ATTENTION, Serving, ServingMode
from tabletune.documents import Document
from tabletune.tables import TableError
from tabletune_operator import guarding, live, pooling, times
from tabletune_operator.expositions import Reading
from tabletune_operator.pooling import Growth
from tabletune_operator.scraping import Failure

MAX_DRIFTS = 10
MAX_AHEAD = 100_000
"""Most that a pod's generation is believed to be ahead: its page may say anything."""


@dataclass(frozen=True)
class ServingPod:
    """A ready pod that serves."""

    uid: str
    name: str
    address: str
    refreshed: str = ""
    """Generation for which its annotation was touched."""


@dataclass(frozen=True, eq=False)
class Memory:
    """What is remembered between two looks at the pods of one DraftTable."""

    generation: int = 0
    """Generation that it is about; 0 before the first look."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """The last reading of each pod, by uid."""
    served: Growth = field(default_factory=Growth)
    """What pods served under the generation."""
    plan: controlling.Plan | None = None
    state: controlling.State | None = None
    guard: Mapping[str, Any] | None = None
    """The guard as the status shows it."""
    drafts: float = 0.0
    """Drafts counted under the generation."""


def survey(
    memory: Memory,
    document: Document,
    serving: Serving,
    pods: Sequence[ServingPod],
    found: Mapping[str, Reading | Failure],
    conflicts: Sequence[str],
    status_guard: Mapping[str, Any] | None,
    elapsed_seconds: float,
    now: datetime,
) -> tuple[Memory, live.Seen]:
    """Return memory and what is seen after a look at ``pods``.

    ``document`` is in force, ``found`` holds what was read by uid, ``status_guard`` is the guard as the
    status has it, for the first look after a restart, ``elapsed_seconds`` is the time since the last look.
    """
    memory = _begin(memory, document, serving, status_guard, now)
    readings = {uid: one for uid, one in found.items() if isinstance(one, Reading)}
    fitting = {uid: one for uid, one in readings.items() if not one.differs}
    growths = {uid: pooling.growth(memory.readings.get(uid), one) for uid, one in fitting.items()}
    following = [
        growths[uid]
        for uid, one in fitting.items()
        if one.generation == document.generation
        and (before := memory.readings.get(uid)) is not None
        and before.generation == document.generation
    ]
    grown = pooling.total(growths.values())
    memory = replace(
        memory,
        readings={pod.uid: readings[pod.uid] for pod in pods if pod.uid in readings},
        served=pooling.total([memory.served, *following]),
        drafts=memory.drafts + grown.drafted.get(1, 0.0),
    )
    outcome: controlling.Outcome | None = None
    if memory.plan is not None and memory.state is not None:
        window = pooling.window(grown, fitting.values(), elapsed_seconds, memory.plan.positions)
        state, outcome = controlling.advance(memory.plan, memory.state, window)
        # In force is the document's table, whatever the controller decided: what is held up now, or could not
        # be written, is decided again at the next look.
        memory = replace(memory, state=replace(state, lookup=memory.state.lookup))
    guard, rollback = _guard(memory, serving, now)
    memory = replace(memory, guard=guard)
    correction: live.Correction | None = None
    watching = guard is not None and guard["verdict"] == guarding.WATCHING
    # What a generation does is known from pods that follow it, and from no others: corrected on the drafts of
    # the one before, a table would be replaced by the next before any pod served with it.
    tried = memory.served.drafted.get(1, 0.0) >= serving.min_drafts
    if (
        outcome is not None
        and serving.mode is ServingMode.CORRECT
        and tried
        and not watching
        and not rollback
    ):
        correction = pooling.correction(document, outcome, now)
    decision = None if outcome is None else _decision(outcome.decision, correction, tried)
    return memory, _seen(
        document, pods, found, conflicts, memory, outcome, decision, correction, rollback, now
    )


def _begin(
    memory: Memory,
    document: Document,
    serving: Serving,
    status_guard: Mapping[str, Any] | None,
    now: datetime,
) -> Memory:
    """Return the memory for the generation in force; what is known of acceptance stays over a change."""
    if memory.generation == document.generation:
        return memory
    guard: Mapping[str, Any] | None = None
    if memory.generation:
        baseline = guarding.rates(memory.served, serving.guard.min_steps)
        if baseline:
            guard = {
                "generation": document.generation,
                "before": memory.generation,
                "since": times.text_of(now),
                "verdict": guarding.WATCHING,
                "baseline": baseline,
            }
    elif status_guard and status_guard.get("generation") == document.generation:
        guard = status_guard
    try:
        plan = controlling.plan(document, document.control, document.fingerprint.max_num_seqs)
    except TableError:
        return Memory(generation=document.generation, readings=memory.readings, guard=guard)
    state = controlling.begin(plan) if memory.state is None else controlling.carry(plan, memory.state)
    return Memory(
        generation=document.generation, readings=memory.readings, plan=plan, state=state, guard=guard
    )


def _guard(
    memory: Memory, serving: Serving, now: datetime
) -> tuple[Mapping[str, Any] | None, live.Rollback | None]:
    """Return the guard after this look, and the rollback that it asks for."""
    guard, rules = memory.guard, serving.guard
    if guard is None or guard.get("verdict") != guarding.WATCHING:
        return guard, None
    found = guarding.compare(guard.get("baseline") or {}, memory.served, rules.tolerance, rules.min_steps)
    told = {**guard} if found.change is None else {**guard, "change": found.change}
    if found.worse and rules.enabled and found.change is not None:
        message = (
            f"Generation {guard['generation']} keeps {-found.change:.1%} fewer tokens per second than"
            f" generation {guard['before']} at like batch sizes, over {found.seconds:.0f} s of steps."
        )
        rollback = live.Rollback(int(guard["generation"]), int(guard["before"]), message)
        return told | {"verdict": guarding.ROLLED_BACK}, rollback
    since = times.parse(str(guard.get("since", "")))
    # A clock that was put back must not keep it watching, which holds up every correction.
    if since is None or abs((now - since).total_seconds()) > rules.window_seconds:
        return told | {"verdict": guarding.KEPT}, None
    return told, None


def _seen(
    document: Document,
    pods: Sequence[ServingPod],
    found: Mapping[str, Reading | Failure],
    conflicts: Sequence[str],
    memory: Memory,
    outcome: controlling.Outcome | None,
    decision: str | None,
    correction: live.Correction | None,
    rollback: live.Rollback | None,
    now: datetime,
) -> live.Seen:
    attention: list[dict[str, Any]] = []
    counts = {"Behind": 0, "Unreachable": 0, "Inactive": 0, "UpToDate": 0}
    drifted: set[str] = set()
    for pod in sorted(pods, key=lambda pod: pod.name):
        reading = found.get(pod.uid, Failure("was not read"))
        state, message = _state(reading, document.generation)
        counts[state] += 1
        generation = reading.generation if isinstance(reading, Reading) else None
        if isinstance(reading, Reading) and reading.differs:
            drifted.update(reading.differs)
            state, message = "Drifted", f"{', '.join(reading.differs)} differ from the profile's"
        if state != "UpToDate":
            told = {"name": pod.name, "state": state, "message": message}
            attention.append(told if generation is None else told | {"generation": generation})
    return live.Seen(
        pods=len(pods),
        up_to_date=counts["UpToDate"],
        unreachable=counts["Unreachable"],
        inactive=counts["Inactive"],
        drafts=round(memory.drafts),
        predicted_gain=None if outcome is None else outcome.decision.largest_gain,
        decision=decision,
        last_seen=times.text_of(now),
        attention=tuple(attention[:MAX_ATTENTION]),
        drifted=tuple(sorted(drifted)[:MAX_DRIFTS]),
        conflicts=tuple(conflicts),
        guard=memory.guard,
        correction=correction,
        rollback=rollback,
        generation=document.generation,
        followed=max(
            (
                reading.generation
                for reading in found.values()
                if isinstance(reading, Reading)
                and reading.generation is not None
                and reading.generation <= document.generation + MAX_AHEAD
            ),
            default=0,
        ),
    )


def _decision(decision: estimating.Decision, correction: live.Correction | None, tried: bool) -> str:
    """Return why the table was corrected or not; a change that makes no other table is none.

    ``tried`` says whether pods have drafted enough under the table in force.
    """
    if decision.reason == estimating.CORRECTED and correction is None:
        enough = tried and decision.drafts >= decision.needed
        return estimating.WITHIN_HYSTERESIS if enough else estimating.TOO_FEW_DRAFTS
    return decision.reason


def _state(reading: Reading | Failure, generation: int) -> tuple[str, str]:
    if isinstance(reading, Failure):
        return "Unreachable", reading.message
    if not reading.active:
        return "Inactive", f"the plugin is inactive: {reading.reason or 'no reason given'}"
    if reading.generation != generation:
        follows = "no table" if reading.generation is None else f"generation {reading.generation}"
        return "Behind", f"follows {follows} instead of {generation}"
    return "UpToDate", ""
