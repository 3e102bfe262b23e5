"""What is served, and what is measured of it. Each function returns rows for the JSON file.

Shares are of the best fixed length under the same load, wrong profile or not, seed and slowness: an operator
could have chosen that one length. Everything a row says can be made again from its own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from control import controllers, workloads
from control.engine import Driver, Machine, Noise, Result, Slowness, Workload, run

from tabletune.documents import Document, Profile

Row = dict[str, Any]

SECONDS = 60.0
SETTLED = 30.0
"""Seconds after which a controller should be right."""
RECOVERED = 0.95
OPEN_REQUESTS = (1, 4, 16, 32, 64, 128, 192, 256)
WRONG_LOADS = (1, 8, 32, 64, 128, 160)
SWITCH_LOADS = (1, 8, 32, 128)


class World:
    """One engine, its document, and what fixed lengths reach on it, which is measured once per load."""

    def __init__(self, name: str, machine: Machine | None = None) -> None:
        self.name = name
        self.document = workloads.document(name)
        self.machine = machine or workloads.machine(name)
        self._fixed: dict[tuple[Workload, float, int], dict[int, Result]] = {}

    @property
    def size(self) -> int:
        """Largest batch size."""
        return self.machine.max_batch_size

    def run(self, workload: Workload, driver: Driver, seconds: float, seed: int) -> Result:
        """Serve."""
        return run(self.machine, workload, driver, seconds, seed)

    def fixed(self, workload: Workload, seconds: float, seed: int) -> dict[int, Result]:
        """Return what each fixed length reaches."""
        key = workload, seconds, seed
        if key not in self._fixed:
            self._fixed[key] = {
                length: self.run(workload, controllers.Lookup((length,) * (self.size + 1)), seconds, seed)
                for length in self.machine.draft_lengths
            }
        return self._fixed[key]

    def ours(self, document: Document | None = None, settles: bool = True) -> controllers.Ours:
        """Return TableTune's controller, started on ``document``."""
        found = document or self.document
        return controllers.Ours(found, found.control, self.size, settles)

    def static(self, document: Document | None = None) -> controllers.Lookup:
        """Return the table of ``document``, never corrected."""
        return controllers.Lookup(self.ours(document).lookup)


def right_profile(
    world: World, loads: Sequence[Workload], seeds: Iterable[int], seconds: float = SECONDS
) -> list[Row]:
    """Measure every controller at every load, its profile right."""
    rows = []
    for seed in seeds:
        for workload in loads:
            lengths = world.machine.draft_lengths
            drivers: dict[str, Driver] = {
                "static": world.static(),
                "ours": world.ours(),
                "turbospec-style": controllers.Turbo(world.document, world.size),
                "nightjar-style": controllers.Nightjar(lengths, seed),
                "oracle": controllers.Oracle(world.machine, workload),
            }
            measure = _measure(workload)
            fixed = {length: measure(found) for length, found in world.fixed(workload, seconds, seed).items()}
            best = max(fixed.values())
            found = {
                name: measure(world.run(workload, driver, seconds, seed)) for name, driver in drivers.items()
            }
            shares = {f"fixed-{length}": value / best for length, value in fixed.items()}
            shares |= {name: value / best for name, value in found.items()}
            rows.append(
                {
                    "engine": world.name,
                    "open_requests": workload.open_requests,
                    "arrivals_per_second": workload.arrivals_per_second,
                    "seed": seed,
                    "best_fixed": max(fixed, key=lambda length: fixed[length]),
                    "best_fixed_tokens_per_second": round(best, 1),
                    "share": {name: round(share, 4) for name, share in shares.items()},
                    "ours_against_off": round(found["ours"] / fixed[lengths[0]], 4),
                }
            )
    return rows


def wrong_profiles(profile: Profile, load: int, seed: int) -> dict[str, Profile]:
    """Return the wrong profiles that a controller has to see through."""
    nearest = min(profile.batch_sizes, key=lambda size: (abs(size - load), size))
    found = {
        f"row K={length} x {factor:g}": workloads.wrong_row(profile, length, factor)
        for length in profile.draft_lengths
        for factor in (2.0, 0.5)
    }
    found |= {
        f"column B=load x {factor:g}": workloads.wrong_column(profile, nearest, factor)
        for factor in (2.0, 0.5)
    }
    found |= {f"all x {factor:g}": workloads.scaled(profile, factor) for factor in (2.0, 0.5)}
    found["all + 4 ms"] = workloads.shifted(profile, 4.0)
    found["all - 2 ms"] = workloads.shifted(profile, -2.0)
    found["noise of 15%"] = workloads.noisy(profile, 0.15, seed)
    found["right"] = profile
    return found


def wrong(
    world: World,
    loads: Sequence[int],
    seeds: Iterable[int],
    settles: bool = True,
    only: Sequence[str] = (),
    what: str = "wrong profile",
) -> list[Row]:
    """Measure the static table and TableTune's controller when the profile is wrong."""
    rows = []
    for seed in seeds:
        for load in loads:
            workload = Workload(open_requests=load)
            fixed = world.fixed(workload, SECONDS, seed)
            best = max(fixed, key=lambda length: fixed[length].throughput())
            for case, profile in wrong_profiles(world.document.profile, load, seed).items():
                if only and case not in only:
                    continue
                document = workloads.with_profile(world.document, profile)
                ours = world.ours(document, settles)
                found = world.run(workload, ours, SECONDS, seed)
                static = fixed[ours.plan.lookup[load]]
                late = fixed[best].throughput(SETTLED)
                rows.append(
                    {
                        "what": what,
                        "engine": world.name,
                        "open_requests": load,
                        "case": case,
                        "seed": seed,
                        "best_fixed": best,
                        "start_length": ours.plan.lookup[load],
                        "end_length": ours.lookup[load],
                        "static_share": round(static.throughput(SETTLED) / late, 4),
                        "share_after_30_s": round(found.throughput(SETTLED) / late, 4),
                        "share_from_start": round(found.throughput() / fixed[best].throughput(), 4),
                        "recovered_after_s": _recovered(found, fixed[best]),
                        "against_off": round(found.throughput() / fixed[0].throughput(), 4),
                        "explored_share": round(ours.explored_steps / float(found.steps.sum()), 4),
                    }
                )
    return rows


SWITCHES = {
    "code → prose": (workloads.CODE, workloads.PROSE),
    "prose → code": (workloads.PROSE, workloads.CODE),
    "code → boilerplate": (workloads.CODE, workloads.BOILERPLATE),
    "boilerplate → prose": (workloads.BOILERPLATE, workloads.PROSE),
    "code → hopeless": (workloads.CODE, workloads.HOPELESS),
    "hopeless → code": (workloads.HOPELESS, workloads.CODE),
}
SWITCH_AT = 60.0


def switches(world: World, loads: Sequence[int], seeds: Iterable[int]) -> list[Row]:
    """Measure what comes back of a stale table's loss after survival changed while serving.

    The loss is that of the table for the old traffic against the table for the new one.
    """
    rows = []
    for seed in seeds:
        for name, (before, after) in SWITCHES.items():
            old = workloads.with_survival(world.document, before)
            new = workloads.with_survival(world.document, after)
            for load in loads:
                workload = Workload(
                    open_requests=load, acceptance=((0.0, before, 1.0), (SWITCH_AT, after, 1.0))
                )
                ours = world.ours(old)
                drivers: dict[str, Driver] = {
                    "stale": world.static(old),
                    "tuned": world.static(new),
                    "off": controllers.Lookup((0,) * (world.size + 1)),
                    "ours": ours,
                    "turbospec-style": controllers.Turbo(old, world.size),
                    "nightjar-style": controllers.Nightjar(world.machine.draft_lengths, seed),
                    "tuned, other luck": controllers.Shaken(world.static(new).lookup),
                }
                results = {
                    driver: world.run(workload, own, SWITCH_AT + 60, seed) for driver, own in drivers.items()
                }
                late = {driver: found.throughput(SWITCH_AT + 30) for driver, found in results.items()}
                soon = {
                    driver: found.throughput(SWITCH_AT, SWITCH_AT + 30) for driver, found in results.items()
                }
                served = {driver: found.served(SWITCH_AT + 30) for driver, found in results.items()}
                loss = 1 - late["stale"] / late["tuned"]
                gap = late["tuned"] - late["stale"]
                rows.append(
                    {
                        "engine": world.name,
                        "switch": name,
                        "open_requests": load,
                        "seed": seed,
                        "stale_loss": round(loss, 4),
                        "recovered": {
                            driver: round((late[driver] - late["stale"]) / gap, 4) if loss > 0.01 else None
                            for driver in ("ours", "turbospec-style", "nightjar-style")
                        },
                        # As one run tells it, luck with prompts included; what the tuned table itself would
                        # recover says how much that is.
                        "recovered_as_served": {
                            driver: round(
                                (served[driver] - served["stale"]) / (served["tuned"] - served["stale"]), 4
                            )
                            if loss > 0.01
                            else None
                            for driver in ("ours", "tuned, other luck")
                        },
                        "share_of_tuned_from_30_to_60_s": {
                            driver: round(found / late["tuned"], 4) for driver, found in late.items()
                        },
                        "share_of_tuned_in_the_first_30_s": {
                            driver: round(found / soon["tuned"], 4) for driver, found in soon.items()
                        },
                        "against_off_from_the_switch": round(
                            results["ours"].throughput(SWITCH_AT) / results["off"].throughput(SWITCH_AT), 4
                        ),
                        "first_change_after_s": next(
                            (round(at - SWITCH_AT, 1) for at, _ in ours.changed_at if at >= SWITCH_AT), None
                        ),
                    }
                )
    return rows


SLOW = {
    "every step x 1.35": Slowness(60.0, 120.0, factor=1.35),
    "every step + 4 ms": Slowness(60.0, 120.0, added_ms=4.0),
    "every step x 3": Slowness(60.0, 120.0, factor=3.0),
}


def slow_minutes(name: str, loads: Sequence[int], seeds: Iterable[int]) -> list[Row]:
    """Measure what a slow minute does to the table, with hiccups of seconds before and after it."""
    rows = []
    for case, slowness in SLOW.items():
        machine = workloads.machine(name)
        hiccups = ((20.0, 2.0), (20.5, 3.0), (130.0, 2.0))
        machine = replace(machine, noise=Noise(hiccups=hiccups), slowness=(slowness,))
        world = World(name, machine)
        for seed in seeds:
            for load in loads:
                workload = Workload(open_requests=load)
                fixed = world.fixed(workload, 180.0, seed)
                best = {
                    stretch: max(found.throughput(*stretch) for found in fixed.values())
                    for stretch in ((0.0, 60.0), (60.0, 120.0), (120.0, 180.0))
                }
                ours = world.ours()
                before = ours.lookup
                found = world.run(workload, ours, 180.0, seed)
                shares = {stretch: found.throughput(*stretch) / own for stretch, own in best.items()}
                rows.append(
                    {
                        "engine": name,
                        "case": case,
                        "open_requests": load,
                        "seed": seed,
                        "share_before": round(shares[0.0, 60.0], 4),
                        "share_in_it": round(shares[60.0, 120.0], 4),
                        "share_after": round(shares[120.0, 180.0], 4),
                        "changes_at_the_load": [
                            [round(at, 1), change.before, change.after]
                            for at, changes in ours.changed_at
                            for change in changes
                            if change.first <= load <= change.last
                        ],
                        "same_length_at_the_end": before[load] == ours.lookup[load],
                    }
                )
    return rows


STALLED_EDGE = (3, 2)


def stalls(name: str, seeds: Iterable[int]) -> list[Row]:
    """Measure an engine that stalls for eight steps at each change from 3 to 2, under an open loop.

    The table changes between the two at 82 requests, and the batch size wanders around that.
    """
    survival = (0.6, 0.35, 0.2)
    document = workloads.with_survival(workloads.document(name), survival)
    machine = workloads.machine(name)
    world = World(name, replace(machine, stalls=(STALLED_EDGE,), prompt_ms=0 * machine.prompt_ms))
    rows = []
    for seed in seeds:
        workload = Workload(arrivals_per_second=40.0, acceptance=((0.0, survival, 1.0),))
        fixed = world.fixed(workload, SECONDS, seed)
        best = max(found.throughput(SETTLED) for found in fixed.values())
        ours = world.ours(document)
        found = world.run(workload, ours, SECONDS, seed)
        static = world.run(workload, world.static(document), SECONDS, seed)
        assert ours.outcome is not None
        rows.append(
            {
                "engine": name,
                "edge": list(STALLED_EDGE),
                "arrivals_per_second": workload.arrivals_per_second,
                "seed": seed,
                "avoided": [list(avoided) for avoided in ours.outcome.avoided_changes],
                "lengths_at_the_end": sorted(set(ours.lookup[1:])),
                "static_share": round(static.throughput(SETTLED) / best, 4),
                "share_after_30_s": round(found.throughput(SETTLED) / best, 4),
                "static_speed": round(static.speed(SETTLED), 1),
                "ours_speed": round(found.speed(SETTLED), 1),
            }
        )
    return rows


def timeline(world: World, load: int, seed: int) -> Row:
    """Return tokens per second over time around a switch, for the picture."""
    before, after = SWITCHES["prose → code"]
    old = workloads.with_survival(world.document, before)
    workload = Workload(open_requests=load, acceptance=((0.0, before, 1.0), (SWITCH_AT, after, 1.0)))
    drivers: dict[str, Driver] = {
        "stale table": world.static(old),
        "ours": world.ours(old),
        "turbospec-style": controllers.Turbo(old, world.size),
        "nightjar-style": controllers.Nightjar(world.machine.draft_lengths, seed),
        "oracle": controllers.Oracle(world.machine, workload),
    }
    lines = {}
    for name, driver in drivers.items():
        found = world.run(workload, driver, SWITCH_AT + 60, seed)
        rates = found.expected_tokens / found.expected_seconds
        # The last window is cut short.
        lines[name] = {
            "seconds": np.round(found.ends, 2).tolist()[:-1],
            "tokens_per_second": np.round(rates, 1).tolist()[:-1],
        }
    return {
        "engine": world.name,
        "open_requests": load,
        "switch": "prose → code",
        "at": SWITCH_AT,
        "lines": lines,
    }


def by_intervals(name: str) -> World:
    """Return the world in which quiet steps only are timed, as where there are no GPU spans."""
    return World(name, replace(workloads.machine(name), spans=False))


def _measure(workload: Workload) -> Callable[[Result], float]:
    return (lambda found: found.throughput()) if workload.open_requests else (lambda found: found.speed())


def _recovered(found: Result, best: Result) -> float | None:
    """Return when the last five seconds first reached :data:`RECOVERED` of ``best``'s own mean and stayed.

    ``None`` where they never did. Means over five seconds in the last of which it dips are not counted
    against it: a single second of mixed steps is 5% off by chance.
    """
    level = RECOVERED * best.throughput()
    rates = []
    for end in found.ends.tolist():
        if end >= 5.0:
            rates.append((end, found.throughput(end - 5.5, end - 0.5)))
    below = [end for end, rate in rates if rate < level * 0.985]
    if not below:
        return 0.0
    return None if below[-1] >= rates[-1][0] - 5 else round(below[-1], 1)
