"""Arrivals at random, jumping loads, the plugin's cost, bursts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu.analysis import closed_loops, ratios
from gpu.analysis.ratios import Estimate
from gpu.analysis.runs import Record, Run

ADAPTING, WITHOUT_SPANS, WITHOUT_PLUGIN = "plugin adapting", "without spans", "without plugin"
"""Policies of the comparison `cost`."""
LATENCIES = ("msToFirstToken", "msPerToken")


@dataclass(frozen=True)
class Arrivals:
    """One policy at one rate of arrivals."""

    run: str
    per_second: float
    prompt_tokens: int
    policy: str
    tokens_per_second: Estimate
    finished: int
    ms_to_first_token: tuple[float, float] | None
    """Median and 99th percentile, the means over rounds; None where nothing finished."""
    ms_per_token: tuple[float, float] | None


@dataclass(frozen=True)
class Jumps:
    """Policies under a jumping load."""

    run: str
    open: tuple[int, ...]
    best: str | None
    shares: dict[str, Estimate]
    """Of the best constant length within rounds, of the tuned table where no constant was served."""
    tokens_per_second: dict[str, Estimate]


@dataclass(frozen=True)
class Cost:
    """What the plugin costs."""

    run: str
    open: int
    cost: Estimate
    """Share of throughput: 1 less the ratio with the plugin to without, within rounds."""
    without_spans: Estimate | None
    """The same of the plugin that records no GPU spans; None where that was not run."""
    own: Estimate | None
    """Share of the time that the plugin counted as its own; None in records of before it counted."""
    own_parts: dict[str, Estimate]
    """The same by part of the plugin."""
    tokens_per_second: dict[str, Estimate]


@dataclass(frozen=True)
class Bursts:
    """Bursts that drained."""

    run: str
    policy: str
    asked: int
    survived: int
    died: bool
    """Whether the engine ended or hung in the next one. If not, the run ended before its time."""
    prompt_tokens: int
    requests: tuple[int, int]


def arrivals(run: Run) -> list[Arrivals]:
    """Return each policy at each rate."""
    found: dict[tuple[float, int, str], list[Record]] = {}
    for record in run.of("arrivals"):
        key = record["perSecond"], record["promptTokens"], record["policy"]
        found.setdefault(key, []).append(record)
    return [
        Arrivals(
            run.name,
            rate,
            prompt_tokens,
            policy,
            ratios.estimate(record["tokensPerSecond"] for record in own),
            sum(record["finished"] for record in own),
            *(_latency(own, name) for name in LATENCIES),
        )
        for (rate, prompt_tokens, policy), own in sorted(found.items())
    ]


def jumps(run: Run) -> list[Jumps]:
    """Return each jumping load."""
    found: dict[tuple[int, ...], dict[str, dict[int, float]]] = {}
    for record in run.of("jumps"):
        rounds = found.setdefault(tuple(record["open"]), {}).setdefault(record["policy"], {})
        number = record["round"]
        while number in rounds:
            number += 1000
        rounds[number] = record["tokensPerSecond"]
    results = []
    for open_requests, policies in found.items():
        best = closed_loops.best_constant(policies)
        reference = policies.get(best or "tuned", {})
        shares = {name: ratios.within_rounds(own, reference) for name, own in policies.items()}
        results.append(
            Jumps(
                run.name,
                open_requests,
                best,
                {name: share for name, share in shares.items() if share is not None},
                {name: ratios.estimate(own.values()) for name, own in policies.items()},
            )
        )
    return results


def costs(run: Run) -> list[Cost]:
    """Return the plugin's cost at each number of open requests."""
    found: dict[int, list[Record]] = {}
    for record in run.of("cost"):
        found.setdefault(record["open"], []).append(record)
    results = []
    for open_requests, records in sorted(found.items()):
        policies: dict[str, dict[int, float]] = {}
        for record in records:
            policies.setdefault(record["policy"], {})[record["round"]] = record["tokensPerSecond"]
        cost = _lost(policies, ADAPTING)
        if cost is None:
            continue
        counted = [own for own in records if own["policy"] == ADAPTING and "ownSeconds" in own]
        shares = [
            {part: taken / own["seconds"] for part, taken in own["ownSeconds"].items()} for own in counted
        ]
        results.append(
            Cost(
                run.name,
                open_requests,
                cost,
                without_spans=_lost(policies, WITHOUT_SPANS),
                own=ratios.estimate(sum(own.values()) for own in shares) if shares else None,
                own_parts={
                    part: ratios.estimate(own[part] for own in shares)
                    for part in (shares[0] if shares else ())
                },
                tokens_per_second={name: ratios.estimate(own.values()) for name, own in policies.items()},
            )
        )
    return results


def _lost(policies: Mapping[str, Mapping[int, float]], policy: str) -> Estimate | None:
    """Return the share of throughput that ``policy`` loses to the engine without the plugin."""
    ratio = ratios.within_rounds(policies.get(policy, {}), policies.get(WITHOUT_PLUGIN, {}))
    return None if ratio is None else ratio.plus(1.0, times=-1.0)


def bursts(run: Run) -> list[Bursts]:
    """Return how many bursts the engine survived."""
    return [
        Bursts(
            run.name,
            record["policy"],
            record["asked"],
            record["survived"],
            record["died"],
            record["promptTokens"],
            (record["requests"][0], record["requests"][1]),
        )
        for record in run.of("bursts")
    ]


def _latency(records: Sequence[Record], name: str) -> tuple[float, float] | None:
    told = [record[name] for record in records if name in record]
    if not told:
        return None
    return statistics.fmean(own[0] for own in told), statistics.fmean(own[1] for own in told)
