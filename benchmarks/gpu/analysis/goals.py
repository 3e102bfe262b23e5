"""The claims of the issue, each held against what the runs of a folder show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpu.analysis import closed_loops, others, ratios, recoveries, settings, stepping
from gpu.analysis.closed_loops import LoopResult
from gpu.analysis.profiles import ProfileTimes
from gpu.analysis.ratios import TIE, Estimate, Status
from gpu.analysis.runs import Loop, Run

LOSERS = ("tuned", "adapt", "turbo", "nightjar", "documented", "fixed 3")
STALLS = 1.25
"""Share of settled steps' time from which steps after a change count as stalled."""
BURSTS = 200
PROFILE_SECONDS, SWEEP_SECONDS = 240.0, 60.0
CHANCE = 0.15
"""Share of comparisons that may differ by two standard errors when nothing does, with few rounds each."""
MOST_OPEN = 240
"""Open requests from which the plugin's cost counts as that at 256: aligned engines take 252."""


@dataclass(frozen=True)
class Goal:
    """One claim and what became of it."""

    claim: str
    goal: str
    status: Status
    result: str
    source: str
    """The run and case that it rests on, or which run is missing."""
    cases: int = 0
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorstLoss:
    """The worst that a policy loses to the best constant; negative where it gains everywhere."""

    loop: Loop
    loss: Estimate


@dataclass(frozen=True)
class Findings:
    """All that was computed from the runs of a folder."""

    runs: list[Run]
    profiles: list[ProfileTimes]
    worst_losses: dict[str, dict[str, WorstLoss]]
    """By run and policy."""
    loops: dict[str, list[LoopResult]]
    evened: dict[str, list[LoopResult]]
    """The same with the luck of how many prompts fell into a window taken out (`stepping.evened`)."""
    recoveries: list[recoveries.Recovery]
    arrivals: list[others.Arrivals]
    jumps: list[others.Jumps]
    costs: list[others.Cost]
    bursts: list[others.Bursts]
    cells: list[stepping.Cell]
    cell_groups: list[stepping.CellGroup]
    host_shares: list[stepping.HostShare]
    neighbours: list[stepping.Neighbour]
    after_changes: list[stepping.AfterChange]
    scatter: list[stepping.Scatter]
    slowness: list[stepping.Slowness]
    mixed_steps: list[stepping.MixedSteps]
    anatomies: list[stepping.Anatomy]
    explanations: list[stepping.Explanation]
    full_graphs: dict[str, tuple[int, int]]
    advice_taken: list[settings.Across]
    sizes_taken: list[settings.Across]
    full_mode: list[settings.Across]
    mode_advice: list[settings.ModeAdvice]
    fixed_engines: list[settings.Across]
    adaptive_verification: list[settings.Across]
    repeats: list[settings.Agreement]

    @property
    def all_loops(self) -> list[LoopResult]:
        """The closed loops of all runs."""
        return [result for own in self.loops.values() for result in own]

    def run(self, name: str) -> Run:
        """Return the run of this name."""
        return next(run for run in self.runs if run.name == name)


@dataclass
class _Case:
    name: str
    value: Estimate
    least: float
    tie: float = 0.0
    """Below the goal by less is a tie too."""
    status: Status = field(init=False)

    def __post_init__(self) -> None:
        status = self.value.reaches(self.least)
        near = status == "missed" and self.least - self.value.mean < self.tie
        self.status = "tie" if near else status


def find(
    found: Sequence[Run], profiles: Sequence[ProfileTimes] = (), earlier: Sequence[Run] = ()
) -> Findings:
    """Compute everything; runs of an earlier day are only held against those of the same settings."""
    loops = {run.name: closed_loops.of_run(run) for run in found}
    # Settings keep their names from one day to the next.
    again = [replace(run, name=f"{run.name} of {run.result['conditions']['date'][:10]}") for run in earlier]
    all_loops = loops | {run.name: closed_loops.of_run(run) for run in again}
    anatomies = [own for run in found for own in stepping.anatomies(run)]
    full_mode = settings.full_mode(found, loops)
    cells = [own for run in found for own in stepping.cells(run)]
    return Findings(
        runs=list(found),
        profiles=list(profiles),
        worst_losses={name: worst_losses(own) for name, own in loops.items()},
        loops=loops,
        evened={run.name: closed_loops.of_windows(run.name, stepping.evened(run)) for run in found},
        recoveries=[own for run in found for own in recoveries.of_run(run)],
        arrivals=[own for run in found for own in others.arrivals(run)],
        jumps=[own for run in found for own in others.jumps(run)],
        costs=[own for run in found for own in others.costs(run)],
        bursts=[own for run in found for own in others.bursts(run)],
        cells=cells,
        cell_groups=stepping.grouped(cells),
        host_shares=[own for run in found for own in stepping.host_shares(run)],
        neighbours=[own for run in found for own in stepping.neighbours(run)],
        after_changes=[own for run in found for own in stepping.after_changes(run)],
        scatter=[own for run in found for own in stepping.scatter(run)],
        slowness=[own for run in found for own in stepping.slowness(run)],
        mixed_steps=[own for run in found for own in stepping.mixed_steps(run)],
        anatomies=anatomies,
        explanations=explanations([own for loop in loops.values() for own in loop], anatomies),
        full_graphs={run.name: share for run in found if (share := stepping.full_graph_share(run))},
        advice_taken=settings.advice_taken(found, loops),
        sizes_taken=settings.sizes_taken(found, loops),
        full_mode=full_mode,
        mode_advice=settings.mode_advice(found, loops, full_mode),
        fixed_engines=settings.fixed_engines(found, loops),
        adaptive_verification=settings.adaptive_verification(found, loops),
        repeats=settings.repeats([*again, *found], all_loops),
    )


def worst_losses(results: Sequence[LoopResult]) -> dict[str, WorstLoss]:
    """Return each policy's worst loss, of those that were served beside constants."""
    return {
        policy: WorstLoss(lost[0][0].loop, lost[0][1])
        for policy in LOSERS
        if (lost := closed_loops.losses(results, policy))
    }


def explanations(
    results: Iterable[LoopResult], anatomies: Iterable[stepping.Anatomy]
) -> list[stepping.Explanation]:
    """Return why the tuned table differs: from the best constant where it loses over 2%, and from vLLM's
    documented table and the longest fixed length where they are no ties."""
    known = {(own.run, own.loop, own.policy): own for own in anatomies}
    found = []
    for result in results:
        tuned = known.get((result.run, result.loop, "tuned"))
        if tuned is None:
            continue
        pairs: list[tuple[str, Estimate]] = []
        share = result.shares.get("tuned")
        if result.best is not None and share is not None and share.mean < 1 - TIE:
            pairs.append((result.best, share))
        for name in ("documented", result.longest or ""):
            ratio = result.against.get(name)
            if ratio is not None and not ratio.ties() and name not in dict(pairs):
                pairs.append((name, ratio))
        for name, ratio in pairs:
            other = known.get((result.run, result.loop, name))
            if other is not None:
                found.append(stepping.explain(ratio, tuned, other))
    return found


def judge(found: Findings) -> list[Goal]:
    """Return every claim of the issue, in its order."""
    return [
        _tuned(found),
        _rivals(found),
        _advice(found),
        _documented(found),
        _adaptive_verification(found),
        _profiles(found),
        _graphs(found),
        _bursts(found),
        _stall(found),
        _mode(found),
        _sizes(found),
        _recovered(found, "mistuned", "adapt from mistuned tables", "at least 97% of tuned within 30 s"),
        _recovered(found, "switch", "workload switch", "at least 96% of the stale loss back within 30 s"),
        _recovered(found, "wrong profile", "cost correction of a wrong profile", "at least 95% within 30 s"),
        _cost(found),
        _fixed(found),
        _predicted(found),
        _repeated(found),
    ]


def _tuned(found: Findings) -> Goal:
    cases = [
        _Case(f"{own.run}: {own.loop}", own.shares["tuned"], 0.97)
        for own in found.all_loops
        if "tuned" in own.shares
    ]
    goal = _worst(
        "tuned table against the best constant length",
        "at least 97%, every load",
        cases,
        "a loop with constants and tuned",
    )
    evened = [own for loops in found.evened.values() for own in loops if "tuned" in own.shares]
    if not cases or not evened:
        return goal
    low = min(evened, key=lambda own: own.shares["tuned"].mean)
    shown = f"; with prompts evened out the worst is {_share(low.shares['tuned'])} ({low.run}: {low.loop})"
    return replace(goal, result=goal.result + shown)


def _rivals(found: Findings) -> Goal:
    claim = "worst loss with EAGLE-3 against TurboSpec- and Nightjar-style"
    goal = "at most 2%, and below both"
    results = [
        own
        for own in found.all_loops
        if "eagle3" in found.run(own.run).model[1]
        and all(name in own.shares for name in ("tuned", *closed_loops.RIVALS))
    ]
    if not results:
        return _not_run(claim, goal, "an EAGLE-3 loop with tuned, turbo, nightjar and constants")
    by_policy = {name: closed_loops.losses(results, name)[0] for name in ("tuned", *closed_loops.RIVALS)}
    result, loss = by_policy["tuned"]
    status = loss.plus(1.0, times=-1.0).reaches(0.98)
    if any(own.mean < loss.mean for _, own in list(by_policy.values())[1:]):
        nearest = min(own.mean for _, own in list(by_policy.values())[1:])
        close = loss.mean - nearest < max(TIE, ratios.ERRORS * (loss.error or 1.0))
        status = "missed" if status == "missed" or not close else "tie"
    told = ", ".join(f"{name} {_share(own)} ({case.loop})" for name, (case, own) in by_policy.items())
    return Goal(claim, goal, status, f"worst losses: {told}", f"`{result.run}`", len(results))


def _advice(found: Findings) -> Goal:
    claim = "tuned with the engine advice taken against the best fixed length on vLLM's defaults"
    cases = [
        _Case(
            f"{own.run}: {own.loop}",
            own.ratio,
            1.10 if own.loop.open in (8, 64) else 1.0,
            0.0 if own.loop.open in (8, 64) else TIE,
        )
        for own in found.advice_taken
    ]
    return _worst(
        claim,
        "at least 110% at 8 and 64 open, never below 100%",
        cases,
        "an advised and a default run of one model",
        relative=True,
    )


def _documented(found: Findings) -> Goal:
    claim, goal = "against vLLM's documented table and fixed 3", "shown, with the reason of each difference"
    told = []
    names: list[str] = []
    differing = 0
    for name in ("documented", "constant 3"):
        cases = [(own.against[name], own) for own in found.all_loops if name in own.against]
        if cases:
            low, high = min(cases, key=lambda own: own[0].mean), max(cases, key=lambda own: own[0].mean)
            told.append(
                f"tuned keeps {_share(low[0])} ({low[1].run}, {low[1].loop}) to {_share(high[0])}"
                f" ({high[1].run}, {high[1].loop}) of {name}"
            )
            names += [own.run for _, own in cases]
            differing += sum(not ratio.ties() for ratio, _ in cases)
    if not told:
        return _not_run(claim, goal, "a loop with documented or constant 3")
    explained = sum(
        own.reference in ("documented", "constant 3") and not own.ratio.ties() for own in found.explanations
    )
    source = f"{len(set(names))} runs; {explained} of {differing} differences explained below"
    return Goal(claim, goal, "met" if explained >= differing else "missed", "; ".join(told), source)


def _adaptive_verification(found: Findings) -> Goal:
    cases = [_Case(f"{own.run}: {own.loop}", own.ratio, 1.0, TIE) for own in found.adaptive_verification]
    return _worst(
        "against vLLM's adaptive verification",
        "at least equal at every load",
        cases,
        "a run with adaptive verification, and one of the same model with tuned",
    )


def _profiles(found: Findings) -> Goal:
    claim, goal = "profile of one setting, engine start included", "at most 4 minutes; sweep at most 60 s"
    rows = [own for own in found.profiles if own.whole is not None and own.sweep is not None]
    if not rows:
        return _not_run(claim, goal, "a profile's log and its lane's (see also `../README.md`)")
    late = tuple(
        f"{own.name}: {own.whole:.0f} s, sweep {own.sweep:.0f} s"
        for own in rows
        if (own.whole or 0.0) > PROFILE_SECONDS or (own.sweep or 0.0) > SWEEP_SECONDS
    )
    told = ", ".join(f"{own.name} {own.whole:.0f} s (sweep {own.sweep:.0f} s)" for own in rows)
    return Goal(claim, goal, "missed" if late else "met", told, f"{len(rows)} profiles", len(rows), late)


def _graphs(found: Findings) -> Goal:
    claim, goal = "aligned capture sizes", "no batch size without a full graph"
    aligned = {
        name: share
        for name, share in found.full_graphs.items()
        if found.run(name).advised_sizes and found.run(name).graphs == "advised"
    }
    if not aligned:
        return _not_run(claim, goal, "an advised run whose engine tells graphs")
    missed = tuple(
        f"{name}: {steps - full:,} of {steps:,}" for name, (steps, full) in aligned.items() if full < steps
    )
    steps, full = (sum(column) for column in zip(*aligned.values(), strict=True))
    return Goal(
        claim,
        goal,
        "missed" if missed else "met",
        f"{full:,} of {steps:,} pure steps ran a full graph",
        ", ".join(f"`{name}`" for name in aligned),
        len(aligned),
        missed,
    )


def _bursts(found: Findings) -> Goal:
    claim, goal = "draining bursts", f"{BURSTS} survived"
    if not found.bursts:
        return _not_run(claim, goal, "a run with bursts")
    died = tuple(f"{own.run}: after {own.survived} of {own.asked}" for own in found.bursts if own.died)
    survived = sum(own.survived for own in found.bursts)
    status: Status = "missed" if died else "met" if survived >= BURSTS else "not run"
    told = ", ".join(f"{own.run}: {own.survived} of {own.asked}" for own in found.bursts)
    source = f"{survived} in all" + (
        "" if died or survived >= BURSTS else f"; missing: {BURSTS - survived} more"
    )
    return Goal(claim, goal, status, told, source, len(found.bursts), died)


def _stall(found: Findings) -> Goal:
    """Judge whether steps after a change stall where they find no full graph, and only there."""
    claim, goal = "the paper's stall of tables that step from 2 to 1", "explained"
    full = [own for own in found.after_changes if own.graph == "full"]
    others = [own for own in found.after_changes if own.graph in ("piecewise", "none")]
    if not full or not others:
        return _not_run(claim, goal, "steps after changes of length, with a full graph and without")
    worst = max(full, key=lambda own: own.span)
    least = min(others, key=lambda own: own.span)
    explained = worst.span < min(STALLS, least.span)
    of_paper = sum(own.from_two_to_one for own in found.after_changes)
    told = (
        f"with a full graph the first steps of another length take at most {worst.span:.0%} of settled ones"
        f" ({worst.run}), without one at least {least.span:.0%} ({least.run}); {of_paper} of them from 2 to 1"
    )
    seen = of_paper >= stepping.LEAST_CHANGES
    status: Status = "missed" if not explained else "met" if seen else "tie"
    return Goal(claim, goal, status, told, f"{sum(own.steps for own in full + others)} steps", len(full))


def _mode(found: Findings) -> Goal:
    claim, goal = "`cudagraph_mode=FULL` against the default, prompts of 256 and 2,048", "the advice is right"
    if not found.mode_advice:
        return _not_run(claim, goal, "a run in mode FULL, a default one of its model, and its document")
    told: list[str] = []
    statuses: list[Status] = []
    for own in found.mode_advice:
        said = "an experiment" if own.experiment else f"to use {own.advised or 'the default'}"
        told.append(f"prompts of {own.prompt_tokens:,}: FULL keeps {_share(own.ratio)}, advice is {said}")
        statuses.append("tie" if own.right is None else "met" if own.right else "missed")
    status = ratios.worst(statuses)
    return Goal(claim, goal, status, "; ".join(told), f"`{found.mode_advice[0].run}`", len(told))


def _sizes(found: Findings) -> Goal:
    claim, goal = "capture-size advice taken", "at least the predicted gain, within 10%"
    rows = [own for own in found.sizes_taken if own.predicted is not None]
    if not rows:
        return _not_run(claim, goal, "an advised and a default run of one model with their documents")
    ratio = settings.geometric_mean([own.ratio for own in rows])
    predicted = settings.geometric_mean([Estimate(own.predicted or 1.0, 0.0, 1) for own in rows]).mean
    case = _Case("all loads", ratio, 1 + 0.9 * (predicted - 1) if predicted > 1 else predicted)
    return Goal(
        claim,
        goal,
        case.status,
        f"{_share(ratio.plus(-1.0))} gained, {100 * (predicted - 1):.1f}% predicted (geometric means)",
        f"`{rows[0].run}` over `{rows[0].other}`",
        len(rows),
    )


def _recovered(found: Findings, kind: str, claim: str, goal: str) -> Goal:
    least = recoveries.GOALS[kind]
    cases = []
    for own in found.recoveries:
        value = own.recovered if kind == "switch" else own.within_30_seconds
        if own.kind == kind and value is not None and not (kind != "switch" and own.start == "tuned"):
            start = " ".join(f"{rate:g}" for rate in own.rates) if kind == "switch" else own.start
            cases.append(_Case(f"{own.run}: {start}, {own.open} open", value, least))
    missing = f"a {kind} timeline of 30 s"
    if kind == "switch":
        missing += " whose stale table loses more than a tie"
    return _worst(claim, goal, cases, missing)


def _cost(found: Findings) -> Goal:
    claim, goal = "plugin's cost at 256 requests, adapting", "under 1% of throughput"
    rows = [own for own in found.costs if own.open >= MOST_OPEN]
    # Of the seconds that the plugin counts as its own most pass while the engine waits for its GPU.
    cases = [_Case(f"{own.run}: {own.open} open", own.cost.plus(1.0, times=-1.0), 0.99) for own in rows]
    if not cases:
        elsewhere = ", ".join(_told_cost(own) for own in found.costs)
        return Goal(
            claim, goal, "not run", elsewhere, f"missing: a cost comparison at {MOST_OPEN} open or more"
        )
    status = ratios.worst(case.status for case in cases)
    told = ", ".join(_told_cost(own) for own in rows)
    return Goal(
        claim, goal, status, told, ", ".join(f"`{own.run}`" for own in rows), len(rows), _missed(cases)
    )


def _told_cost(own: others.Cost) -> str:
    place = f"{own.run} at {own.open}: "
    if own.own is None:
        return place + _share(own.cost)
    spans = "" if own.without_spans is None else f", {_share(own.without_spans)} without GPU spans"
    counted = f"{place}{_share(own.own, digits=2)} of the time is its own"
    return f"{counted}; throughput lost {_share(own.cost)}{spans}"


def _fixed(found: Findings) -> Goal:
    cases = [_Case(f"{own.other}: {own.loop}", own.ratio, 0.99) for own in found.fixed_engines]
    return _worst(
        "table engine with constant K against an engine with fixed K",
        "no loss beyond 1% on V2",
        cases,
        "a run NAME-fixedK, and one of its model with constant K",
        relative=True,
    )


def _predicted(found: Findings) -> Goal:
    claim, goal = "predicted goodput against measured, pure decode", "within 5% for every captured cell"
    # Pure decode is what the profiler times: beside a prompt, spans have the host's wait in them.
    rows = [
        (own, own.quiet_ratio)
        for own in profiled_cells(found)
        if own.graph == "full" and own.quiet_ratio is not None
    ]
    if not rows:
        return _not_run(claim, goal, "a run with its steps, their spans, its document and full graphs")
    cases = [
        _Case(f"{cell.run}: B={cell.batch_size}, K={cell.draft_length}", _closeness(ratio), 0.95)
        for cell, ratio in rows
    ]
    within = sum(case.status == "met" for case in cases)
    far = min(cases, key=lambda case: case.value.mean)
    off = far.value.plus(1.0, times=-1.0)
    return Goal(
        claim,
        goal,
        ratios.worst(case.status for case in cases),
        f"{within} of {len(cases)} cells within 5%; farthest {far.name}, off by {_share(off)}",
        f"{len({cell.run for cell, _ in rows})} runs, by GPU span of quiet steps",
        len(cases),
        _missed(cases),
    )


def _repeated(found: Findings) -> Goal:
    claim, goal = "a second run of a comparison", "agrees within its spread"
    if not found.repeats:
        return _not_run(claim, goal, "two runs of one setting with a loop in common")
    differing = tuple(
        f"{own.run} and {own.other}: {own.policy}, {own.loop}" for own in found.repeats if not own.agrees
    )
    names = sorted({f"`{own.run}` and `{own.other}`" for own in found.repeats})
    agreeing = len(found.repeats) - len(differing)
    by_chance = len(differing) <= CHANCE * len(found.repeats)
    return Goal(
        claim,
        goal,
        "met" if not differing else "tie" if by_chance else "missed",
        f"{agreeing} of {len(found.repeats)} shares agree",
        "; ".join(names),
        len(found.repeats),
        differing,
    )


def profiled_cells(found: Findings) -> list[stepping.Cell]:
    """Return the cells whose prompts are nearest to the profile's context: others have longer contexts."""
    cells = []
    for run in found.runs:
        own = [cell for cell in found.cells if cell.run == run.name]
        if not own or run.document is None:
            continue
        context = run.document.profile.context_length
        prompts = sorted({cell.prompt_tokens for cell in own})
        nearest = min(prompts, key=lambda tokens: abs(tokens - context))
        cells += [cell for cell in own if cell.prompt_tokens == nearest]
    return cells


def _closeness(ratio: Estimate) -> Estimate:
    """Return 1 less the distance of a ratio from 1."""
    return Estimate(1.0 - abs(ratio.mean - 1.0), ratio.error, ratio.rounds)


def _worst(claim: str, goal: str, cases: Sequence[_Case], missing: str, relative: bool = False) -> Goal:
    """Return a goal that each case must reach: told is the worst, by what it lacks where goals differ."""
    if not cases:
        return _not_run(claim, goal, missing)
    low = min(cases, key=lambda case: case.value.mean - (case.least if relative else 0.0))
    met = sum(case.status == "met" for case in cases)
    return Goal(
        claim,
        goal,
        ratios.worst(case.status for case in cases),
        f"worst {_share(low.value)}; {met} of {len(cases)} cases reach it",
        low.name,
        len(cases),
        _missed(cases),
    )


def _missed(cases: Iterable[_Case]) -> tuple[str, ...]:
    return tuple(f"{case.name}: {_share(case.value)}" for case in cases if case.status == "missed")


def _not_run(claim: str, goal: str, missing: str) -> Goal:
    return Goal(claim, goal, "not run", "", f"missing: {missing}")


def _share(value: Estimate, digits: int = 1) -> str:
    return f"{value.percent(digits)}%"
