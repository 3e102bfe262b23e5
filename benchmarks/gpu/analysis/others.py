"""Arrivals at random, jumping loads, the plugin's cost, bursts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpu.analysis import closed_loops, ratios
from gpu.analysis.ratios import Estimate
from gpu.analysis.runs import Record, Run

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
    """What the plugin costs, as a share of throughput."""

    run: str
    open: int
    cost: Estimate
    """1 less the ratio with the plugin to without, within rounds."""
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
    found: dict[int, dict[str, dict[int, float]]] = {}
    for record in run.of("cost"):
        rounds = found.setdefault(record["open"], {}).setdefault(record["policy"], {})
        rounds[record["round"]] = record["tokensPerSecond"]
    results = []
    for open_requests, policies in sorted(found.items()):
        without = policies.get("without plugin", {})
        served = next((own for name, own in policies.items() if name != "without plugin"), {})
        ratio = ratios.within_rounds(served, without)
        if ratio is not None:
            rates = {name: ratios.estimate(own.values()) for name, own in policies.items()}
            results.append(Cost(run.name, open_requests, ratio.plus(1.0, times=-1.0), rates))
    return results


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
