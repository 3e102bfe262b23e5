"""Is speculation off, as the profiler times it, what an engine without a drafter takes?

The profiler leaves the drafter's pass out of steps of draft length 0 (``tabletune_plugin.engine.drafters``).
This compares that with an engine started without a speculative config, timed by the same sweep, in the order
profile, plain engine, profile, plain engine, and writes `benchmarks/results/off-NAME.json`.

On the CPU, with the bundled small model as its own drafter (about 5 minutes, on a quiet machine):
`.venv/bin/python benchmarks/off/measure.py`. On a GPU give a name and the arguments of `vllm serve`:
`… measure.py --name h200-eagle3 --batch-sizes 1,8,64 -- MODEL --speculative-config …`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import machines  # noqa: E402

from tabletune.documents import Control, Document  # noqa: E402
from tabletune_profiler import planning, profiling, progress, prompts  # noqa: E402
from tabletune_profiler.planning import Options  # noqa: E402

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
SMALL = (
    str(MODEL),
    "--max-num-seqs",
    "16",
    "--max-model-len",
    "1024",
    "--speculative-config",
    json.dumps({"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 2}),
)
STEPS = 64
ROUNDS = 2


def main() -> int:
    """Measure, write the result and print a line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="cpu-draft_model")
    parser.add_argument("--batch-sizes", default="1,4,16")
    parser.add_argument("serve", nargs="*")
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    conditions = machines.conditions("tabletune", "torch")
    sizes = tuple(int(size) for size in asked.batch_sizes.split(","))
    serve = tuple(asked.serve) or SMALL
    rounds = [(_profiled(serve, sizes), _plain(serve, sizes)) for _ in range(ROUNDS)]
    document = rounds[-1][0]
    result = {
        "what": __doc__.splitlines()[0],
        "conditions": conditions,
        "vllm": document.fingerprint.vllm,
        "gpu": document.fingerprint.gpu,
        "runner": document.fingerprint.runner,
        "measure": document.profile.measure,
        "batchSizes": [_compared(index, size, rounds) for index, size in enumerate(sizes)],
    }
    (ROOT / "benchmarks" / "results" / f"off-{asked.name}.json").write_text(
        json.dumps(result, indent=1) + "\n"
    )
    for row in result["batchSizes"]:
        sys.stdout.write(
            f"B={row['batchSize']}: length 0 {row['lengthZeroMs']:.2f} ms, speculation off"
            f" {row['offMs']:.2f} ms, an engine without speculation {row['plainMs']:.2f} ms"
            f" ({row['offMs'] / row['plainMs'] - 1:+.1%})\n"
        )
    return 0


def _profiled(serve: tuple[str, ...], sizes: tuple[int, ...]) -> Document:
    with tempfile.TemporaryDirectory() as folder, progress.reporter() as reporter:
        request = profiling.Request(
            arguments=serve,
            prompts=prompts.bundled()[:8],
            options=Options(batch_sizes=sizes, steps=STEPS, repeats=0, mixed=False, acceptance_tokens=32),
            control=Control(),
            output=Path(folder) / "table.json",
        )
        return profiling.take(request, reporter, lambda: datetime.now(UTC)).document


def _plain(serve: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    texts = [list(prompt.model_dump_json().encode())[:200] for prompt in prompts.bundled()]
    ids = planning.sweep_prompts(texts, 128, 50_000, count=max(sizes))
    asked = {"serve": serve, "batchSizes": sizes, "steps": STEPS, "prompts": ids}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("plain.py"))],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _compared(
    index: int, size: int, rounds: list[tuple[Document, dict[str, dict[str, float]]]]
) -> dict[str, Any]:
    zero = [document.profile.step_time_ms[0][index] for document, _ in rounds]
    off = [document.profile.off_ms[index] for document, _ in rounds]
    plain = [times[str(size)]["stepTimeMs"] for _, times in rounds]
    return {
        "batchSize": size,
        "lengthZeroMs": _mean(zero),
        "offMs": _mean(off),
        "plainMs": _mean(plain),
        "rounds": {"lengthZeroMs": zero, "offMs": off, "plainMs": plain},
    }


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 4) if known else float("nan")


if __name__ == "__main__":
    sys.exit(main())
