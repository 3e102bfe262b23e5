"""Prints what constants of the two rivals do, on a seed that no result uses: how they were chosen.

The mean and the worst share of the oracle's throughput over both H200 engines, five loads, with and without a
switch of workload after 30 s (either way), from a right profile. The best mean was taken.

Run from the repository's root: `.venv/bin/python benchmarks/control/tuning.py`; it takes four minutes.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from control import controllers, workloads  # noqa: E402
from control.engine import Driver, Workload  # noqa: E402
from control.scenarios import World  # noqa: E402

SEED = 1
STEADY = ((0.0, workloads.CODE, 1.0),)
WORSE = (*STEADY, (30.0, workloads.PROSE, 1.0))
BETTER = ((0.0, workloads.PROSE, 1.0), (30.0, workloads.CODE, 1.0))


def main() -> None:
    """Print a line for each choice of constants."""
    worlds = [World("h200-default"), World("h200-advised")]
    cases = [
        (world, Workload(open_requests=load, acceptance=acceptance))
        for world in worlds
        for load in (1, 8, 64, 128, 192)
        for acceptance in (STEADY, WORSE, BETTER)
    ]
    best = [
        world.run(workload, controllers.Oracle(world.machine, workload), 60.0, SEED).throughput()
        for world, workload in cases
    ]

    def tell(name: str, make: Callable[[World], Driver]) -> None:
        shares = [
            world.run(workload, make(world), 60.0, SEED).throughput() / most
            for (world, workload), most in zip(cases, best, strict=True)
        ]
        sys.stdout.write(f"{name}: mean {statistics.mean(shares):.4f}, worst {min(shares):.4f}\n")

    for drafts in (500.0, 2_000.0, 8_000.0):
        controllers.Turbo.HALF_LIFE_DRAFTS = drafts
        tell(
            f"turbospec-style, {drafts:g} drafts", lambda world: controllers.Turbo(world.document, world.size)
        )
    for hold, explore, memory in itertools.product((1, 4), (0.03, 0.1, 0.3), (100.0, 300.0, 1_000.0)):
        controllers.Nightjar.HOLD = hold
        controllers.Nightjar.EXPLORE = explore
        controllers.Nightjar.MEMORY = memory
        tell(
            f"nightjar-style, hold {hold}, explore {explore:g}, memory {memory:g}",
            lambda world: controllers.Nightjar(world.machine.draft_lengths, SEED),
        )
    tell("ours", lambda world: world.ours())


if __name__ == "__main__":
    main()
