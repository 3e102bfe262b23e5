"""The comparisons: each serves policies under a load and returns what was kept, window by window.

A window is one policy's turn: its document is put in place, the load settles, then tokens are counted.
Policies are compared within a round, in which each has one window in random order, since the host's speed
drifts (ENGINE.md 6). A timeline is one policy's longer stay, cut into slices: how it finds its way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import machines
import numpy as np
from gpu import inside, policies
from gpu.analysis.recoveries import LATE_SECONDS
from gpu.engines import Engine
from gpu.loads import Load, Shape
from gpu.policies import Policy

from tabletune import tables
from tabletune.documents import Document
from tabletune_profiler.planning import Options
from tabletune_profiler.profiling import Outcome

SETTLE_SECONDS = 0.7
"""After a change of policy: some tens of steps, in which lengths, and by them the live batch, follow."""
RAMP_SECONDS = 3.0
"""After a change of load: requests are out of step with each other by then."""
SLICE_SECONDS = 2.5
FOLLOW_SECONDS = 0.15
"""Until the plugin has read a new document, which it looks for every tenth of a second."""
BYPASSED = {"plugin adapting": "", "without spans": "spans", "without plugin": "plugin"}
"""What of the plugin is out of the engine's path (`inside.bypass`) in each policy of :func:`cost`."""
PROFILE_SECONDS = 60.0
"""Of the profile of an engine that runs, for 252 requests and lengths to 3; sweeps alone took 33 to 42 s."""
BURST_SECONDS = 0.9
"""Of 165 requests with prompts of 256 tokens, on an H200: 200 took 170 s."""

Record = dict[str, Any]


@dataclass
class Bench:
    """What a comparison works with."""

    engine: Engine
    load: Load
    document: Document
    keep: Callable[[Record], None]
    """Called with each record as soon as it is there: a death of the engine must not lose the others."""
    take_profile: Callable[[Options], Outcome] | None = None
    """Takes a profile of this engine and keeps its document; None where nothing can (`--plain`)."""

    def policy(self, name: str) -> Policy:
        """Return the named policy of this setting's document."""
        return policies.named(name, self.document)


def profile(bench: Bench, **options: Any) -> None:
    """A profile of this engine (`profiling`), which all later comparisons serve by.

    ``options`` are those of ``planning.Options``; usual lengths are those of the load.
    """
    if bench.take_profile is None:
        raise RuntimeError("an engine without the plugin cannot be profiled")
    usual: dict[str, Any] = {
        "prompt_tokens": Shape().prompt_tokens,
        "output_tokens": round(sum(Shape().output_tokens) / 2),
    }
    given = {name: tuple(own) if isinstance(own, list) else own for name, own in options.items()}
    began = time.perf_counter()
    outcome = bench.take_profile(Options(**(usual | given)))
    bench.document = outcome.document
    bench.keep(
        {
            "comparison": "profile",
            "began": began,
            "seconds": round(time.perf_counter() - began, 1),
            "secondsSweep": round(outcome.seconds_sweep, 1),
            "secondsCounted": round(outcome.seconds_counted, 1),
            "contextLength": outcome.document.profile.context_length,
            "table": outcome.document.table,
        }
    )


def loads(
    bench: Bench,
    open: Sequence[int],
    policies: Sequence[str] = ("constants", "tuned"),
    rounds: int = 5,
    seconds: float = 2.0,
    prompt_tokens: int = 256,
    output_tokens: Sequence[int] = (300, 700),
    settle: float = SETTLE_SECONDS,
) -> None:
    """Closed loops of so many open requests, each under all policies, in rounds."""
    shape = Shape(prompt_tokens, (output_tokens[0], output_tokens[1]))
    for count in open:
        chosen = [bench.policy(policy) for policy in _expand(policies, bench.document)]
        bench.engine.forget_rivals()
        bench.load.keep_open(count, shape)
        bench.load.sleep(_ramp(count, prompt_tokens))
        for number, policy in _in_rounds(chosen, rounds, seed=count):
            window = _window(bench, policy, seconds, settle)
            bench.keep({"comparison": "loads", "open": count, "round": number, **_shape(shape), **window})
        bench.load.end()


def arrivals(
    bench: Bench,
    per_second: Sequence[float],
    policies: Sequence[str] = ("tuned",),
    rounds: int = 2,
    seconds: float = 6.0,
    prompt_tokens: int = 256,
    output_tokens: Sequence[int] = (300, 700),
) -> None:
    """Requests at random moments, so many a second, with their latencies; the rate is a load's capacity."""
    shape = Shape(prompt_tokens, (output_tokens[0], output_tokens[1]))
    chosen = [bench.policy(policy) for policy in _expand(policies, bench.document)]
    for rate in per_second:
        bench.load.arrive(rate, shape)
        bench.load.sleep(RAMP_SECONDS)
        for number, policy in _in_rounds(chosen, rounds, seed=round(rate)):
            window = _window(bench, policy, seconds, settle=2.0)
            bench.keep(
                {"comparison": "arrivals", "perSecond": rate, "round": number, **_shape(shape), **window}
            )
        bench.load.end()


def jumps(
    bench: Bench,
    open: Sequence[int],
    policies: Sequence[str],
    rounds: int = 2,
    stay: float = 3.0,
) -> None:
    """A load that jumps from one number of open requests to the next and round again."""
    for number, policy in _in_rounds([bench.policy(name) for name in policies], rounds, seed=7):
        bench.load.keep_open(open[0], Shape())
        bench.load.sleep(1.0)
        bench.engine.serve(policy, bench.load)
        began = time.perf_counter()
        for count in [*open, *open]:
            bench.load.keep_open(count, Shape())
            bench.load.sleep(stay)
        ended = time.perf_counter()
        bench.keep(
            {
                "comparison": "jumps",
                "open": list(open),
                "round": number,
                "policy": policy.name,
                "began": began,
                "seconds": ended - began,
                "tokensPerSecond": bench.load.tokens(began, ended) / (ended - began),
            }
        )
    bench.load.end()


def recovery(
    bench: Bench,
    open: int,
    start: Sequence[str] = ("all 0",),
    seconds: float = 35.0,
    rates: Sequence[float] | None = None,
    policies: Sequence[str] = ("constants", "tuned"),
    rounds: int = 3,
) -> None:
    """Mode adapt from a wrong start, and before and after it what the right table and constants keep.

    ``start`` are kinds of wrong start (:func:`wrong`). ``rates`` are survival rates of the workload that
    the engine is switched to; the document stays that of the old workload then, "tuned" is its table,
    stale, and "retuned" the table that knows the new rates. The right one is the last of ``policies``, or
    "retuned".
    """
    bench.load.keep_open(open, Shape())
    bench.load.sleep(_ramp(open, Shape().prompt_tokens))
    name = "switch" if rates else "recovery"
    old = list(bench.document.acceptance.survival)
    if rates:
        bench.engine.call(inside.accept, list(rates))
    references = [bench.policy(policy) for policy in _expand(policies, bench.document)]
    if rates:
        references.append(_retuned(rates, bench.document))
    for kind in start:
        common = {"comparison": name, "open": open, "start": kind, "rates": list(rates or old)}
        for when in ("before", "after"):
            for number, policy in _in_rounds(references, rounds, seed=len(kind)):
                window = _window(bench, policy, SLICE_SECONDS)
                bench.keep({**common, "when": when, "round": number, **window})
            if when == "before":
                slices = _timeline(bench, wrong(kind, bench.document), seconds, references[-1])
                bench.keep({**common, "when": "timeline", **slices})
    if rates:
        bench.engine.call(inside.accept, old)
    bench.load.end()


def cost(bench: Bench, open: int, rounds: int = 8, seconds: float = 2.0) -> None:
    """The same length with the plugin adapting, without its GPU spans, and without the plugin.

    The document is a table of one length and no other is allowed, so that all serve the same. Throughput
    tells differences of some percent; how little it is, the seconds that the plugin counts as its own.
    """
    length = tables.length_at(bench.document.table, open)
    constant = policies.adapting(bench.policy(f"constant {length}").document)
    allowed = constant.control.model_copy(update={"allowed_lengths": (length,)})
    adapting = Policy("plugin adapting", constant.model_copy(update={"control": allowed}))
    bench.load.keep_open(open, Shape())
    bench.load.sleep(_ramp(open, Shape().prompt_tokens))
    bench.engine.serve(adapting, bench.load)
    for number in range(rounds):
        for policy in random.Random(number).sample(list(BYPASSED), len(BYPASSED)):
            bench.engine.call(inside.bypass, BYPASSED[policy])
            bench.load.sleep(SETTLE_SECONDS)
            own = bench.engine.call(inside.own_seconds)
            measured = _measured(bench, seconds)
            record = {"comparison": "cost", "open": open, "round": number, "policy": policy, **measured}
            if policy != "without plugin":
                grown = bench.engine.call(inside.own_seconds)
                record["ownSeconds"] = {part: round(grown[part] - own[part], 6) for part in grown}
            bench.keep(record)
            bench.load.forget(measured["began"])
    bench.engine.call(inside.bypass, "")
    bench.load.end()


def bursts(bench: Bench, count: int, requests: Sequence[int], tokens: int = 40, length: int = 1) -> None:
    """Bursts of equal requests that drain together, which have killed engines (ENGINE.md 3)."""
    policy = bench.policy(f"constant {length}")
    shape = Shape(output_tokens=(tokens, tokens))
    bench.engine.serve(policy, bench.load)
    chance = random.Random(count)
    survived, died = 0, False
    try:
        for _ in range(count):
            bench.load.burst(chance.randint(*requests), shape)
            if not bench.load.wait_until_drained(60):
                raise RuntimeError("a burst did not drain within 60 s")
            survived += 1
    except Exception:
        # Not what ends a run before its time: that is no Exception, and says nothing of the engine.
        died = True
        raise
    finally:
        bench.keep(
            {
                "comparison": "bursts",
                "asked": count,
                "survived": survived,
                "died": died,
                "policy": policy.name,
                "requests": list(requests),
                **_shape(shape),
            }
        )


def wrong(kind: str, document: Document) -> Policy:
    """Return mode adapt from a wrong start.

    Kinds: ``tuned`` (not wrong), ``all 0``, ``all longest``, ``drafter A,B,C`` (survival rates),
    ``times F`` (all times scaled by F), ``times F length K`` and ``times F batch B``.
    """
    words = kind.split()
    if words[0] == "drafter":
        rates = [float(rate) for rate in words[1].split(",")]
        return Policy(f"adapt from {kind}", policies.adapting(policies.drafted_by(rates, document)))
    if words[0] == "times":
        length = int(words[3]) if words[2:3] == ["length"] else None
        batch_size = int(words[3]) if words[2:3] == ["batch"] else None
        scaled = policies.scaled(document, float(words[1]), length, batch_size)
        return Policy(f"adapt from {kind}", policies.adapting(scaled))
    return policies.named("adapt" if kind == "tuned" else f"adapt from {kind}", document)


COMPARISONS = {
    function.__name__: function for function in (profile, loads, arrivals, jumps, recovery, cost, bursts)
}


def expected_seconds(entry: Record) -> float:
    """Return about how long an entry of a plan takes, which must fit into a lease."""
    name, policies = entry["compare"], len(entry.get("policies", ()))
    rounds, prompt_tokens = entry.get("rounds", 0), entry.get("prompt_tokens", Shape().prompt_tokens)
    counts = entry.get("open", 0)
    ramps = sum(_ramp(count, prompt_tokens) for count in (counts if isinstance(counts, list) else [counts]))
    seconds: float
    match name:
        case "profile":
            seconds = PROFILE_SECONDS
        case "loads":
            window = entry["seconds"] + entry.get("settle", SETTLE_SECONDS) + FOLLOW_SECONDS
            seconds = ramps + len(counts) * policies * rounds * window
        case "arrivals":
            window = entry["seconds"] + 2.0 + FOLLOW_SECONDS
            seconds = len(entry["per_second"]) * (RAMP_SECONDS + policies * rounds * window)
        case "jumps":
            seconds = policies * rounds * (1.0 + 2 * len(counts) * entry["stay"])
        case "recovery":
            window = SLICE_SECONDS + SETTLE_SECONDS + FOLLOW_SECONDS
            references = (policies + ("rates" in entry)) * 2 * entry.get("rounds", 3)
            late = max(0.0, entry["seconds"] - LATE_SECONDS) // SLICE_SECONDS + 1
            between = late * (SLICE_SECONDS + 2 * SETTLE_SECONDS)
            seconds = ramps + len(entry["start"]) * (entry["seconds"] + between + references * window)
        case "cost":
            seconds = ramps + rounds * len(BYPASSED) * (entry["seconds"] + SETTLE_SECONDS)
        case "bursts":
            seconds = entry["count"] * BURST_SECONDS
        case _:
            raise ValueError(f"{name!r} is no comparison; there are {', '.join(COMPARISONS)}")
    return seconds


def _expand(names: Sequence[str], document: Document) -> Iterator[str]:
    for name in names:
        if name == "constants":
            yield from policies.constants(document)
        else:
            yield name


def _in_rounds(chosen: Sequence[Policy], rounds: int, seed: int) -> Iterator[tuple[int, Policy]]:
    chance = random.Random(seed)
    for number in range(rounds):
        for policy in chance.sample(list(chosen), len(chosen)):
            yield number, policy


def _ramp(count: int, prompt_tokens: int) -> float:
    """Return seconds until all prompts are in and requests are out of step with each other."""
    return RAMP_SECONDS + count * prompt_tokens / 60_000


def _shape(shape: Shape) -> Record:
    return {"promptTokens": shape.prompt_tokens, "outputTokens": list(shape.output_tokens)}


def _retuned(rates: Sequence[float], document: Document) -> Policy:
    right = policies.named("tuned", policies.drafted_by(rates, document))
    return Policy("retuned", right.document)


def _window(bench: Bench, policy: Policy, seconds: float, settle: float = SETTLE_SECONDS) -> Record:
    followed = bench.engine.serve(policy, bench.load)
    bench.load.sleep(settle)
    measured = _measured(bench, seconds)
    finished = bench.load.done(measured["began"], measured["began"] + measured["seconds"])
    record = {
        "policy": policy.name,
        "followedSeconds": round(followed, 2),
        **measured,
        "finished": len(finished),
        **_latencies(finished),
    }
    bench.load.forget(measured["began"])
    return record


def _measured(bench: Bench, seconds: float) -> Record:
    """Let it run for ``seconds`` and return when that was, and what came."""
    stolen = machines.stolen_seconds()
    began, ended = bench.load.sleep(seconds)
    return {
        "began": began,
        "seconds": round(ended - began, 4),
        "stolenSeconds": round(machines.stolen_seconds() - stolen, 2),
        "tokensPerSecond": round(bench.load.tokens(began, ended) / (ended - began), 1),
    }


def _latencies(finished: Sequence[Any]) -> Record:
    """Return medians and 99th percentiles, in milliseconds, of the requests that finished."""
    told = [done for done in finished if done.tokens > 1]
    if not told:
        return {}
    first = np.array([(done.first_at - done.due_at) * 1e3 for done in told])
    each = np.array([(done.last_at - done.first_at) * 1e3 / (done.tokens - 1) for done in told])
    return {
        "msToFirstToken": [round(float(value), 2) for value in np.percentile(first, (50, 99))],
        "msPerToken": [round(float(value), 3) for value in np.percentile(each, (50, 99))],
    }


def _timeline(bench: Bench, policy: Policy, seconds: float, right: Policy) -> Record:
    """Serve one policy for ``seconds`` and tell what was kept in each slice, and what the plugin says.

    ``right`` is the right table, of which the plugin learns nothing: late slices alternate with it.
    """
    bench.engine.call(inside.unlearn)
    bench.engine.serve(policy, bench.load)
    start, held = time.perf_counter(), 0.0
    kept, reports, references = [], [], []
    while (at := time.perf_counter() - start - held) < seconds:
        measured = _measured(bench, SLICE_SECONDS)
        kept.append(measured["tokensPerSecond"])
        ended = measured["began"] + measured["seconds"]
        report = bench.engine.call(inside.report)
        report["ranges"] = tables.from_lookup(report.pop("lookup"))
        reports.append({"at": round(ended - start - held, 2), "ended": ended, **report})
        # Without one of the right table after each, the host's drift was larger than what they tell.
        if at >= LATE_SECONDS - 1.0:
            bench.engine.call(inside.hold, right.document.table)
            bench.load.sleep(SETTLE_SECONDS)
            measured = _measured(bench, SLICE_SECONDS)
            references.append(measured)
            bench.engine.call(inside.hold, [])
            _, until = bench.load.sleep(SETTLE_SECONDS)
            held += until - ended
        bench.load.forget(measured["began"])
    return {
        "policy": policy.name,
        "began": start,
        "tokensPerSecond": kept,
        "reports": reports,
        "references": references,
    }
