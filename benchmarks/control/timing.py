"""Measures how long the controller takes for a window: 256 batch sizes, 4 lengths, a few milliseconds.

It runs in a thread of the serving process and holds the interpreter that schedules the engine's steps. Run
from the repository's root: `.venv/bin/python benchmarks/control/timing.py`. It writes
`benchmarks/results/control/timing.json` and fails where the goal is missed.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import machines  # noqa: E402
import numpy as np  # noqa: E402
from control import workloads  # noqa: E402

from tabletune import controlling, estimating, traffic  # noqa: E402

WINDOWS = 200
GOAL_MS = 5.0
"""Of processor time, median; a switch of workload, which computes the table anew, may take longer."""


def main() -> int:
    """Measure, write the result, print it, and return 1 where the goal is missed."""
    conditions = machines.conditions("tabletune", "numpy")
    found = {f"{cells} cells timed": timed(cells) for cells in (1, 30, 200)}
    reached = all(own["median_ms"] < GOAL_MS for own in found.values())
    path = ROOT / "benchmarks" / "results" / "control" / "timing.json"
    result = {
        "what": "Processor time of controlling.advance, milliseconds; every 20th window has other traffic.",
        "conditions": conditions,
        "goal_ms": GOAL_MS,
        "reached": reached,
        "windows": WINDOWS,
        "timings": found,
    }
    machines.write(path, result)
    sys.stdout.write(f"{json.dumps(found)}\nWritten to {path}.\n")
    return 0 if reached else 1


def timed(cells: int) -> dict[str, float]:
    """Return statistics of windows in which steps of ``cells`` batch sizes were timed, 20 times each."""
    document = workloads.document("h200-default")
    plan = controlling.plan(document, document.control, 256)
    state, chance, taken = controlling.begin(plan), random.Random(1), []
    for number in range(WINDOWS):
        survival = workloads.CODE if number % 20 else workloads.PROSE
        counts = estimating.Counts((9_000.0,) * 3, tuple(9_000.0 * rate for rate in survival), 9_000.0)
        times = tuple(
            controlling.StepTimes(size, state.lookup[size], tuple(chance.gauss(5.0, 0.1) for _ in range(20)))
            for size in range(1, cells + 1)
        )
        next_steps = tuple(
            traffic.NextSteps(size, min(max(size + change, 1), 256), 256 * (change > 0), 20)
            for size in range(1, cells + 1)
            for change in (-2, -1, 0, 1)
        )
        window = controlling.Window(1.0, counts, times, next_steps=next_steps)
        started = time.process_time()
        state, _ = controlling.advance(plan, state, window)
        taken.append((time.process_time() - started) * 1e3)
    return {
        "median_ms": round(statistics.median(taken), 3),
        "p95_ms": round(float(np.percentile(taken, 95)), 3),
        "max_ms": round(max(taken), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
