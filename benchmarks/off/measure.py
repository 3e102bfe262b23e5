"""Is speculation off, as the profiler times it, what an engine without a drafter takes?

The profiler leaves the drafter's pass out of steps of draft length 0 (``tabletune_plugin.engine.drafters``).
This compares that with an engine started without a speculative config, timed by the same sweep. The two take
turns, and `benchmarks/results/off-NAME.json` gets the median over the rounds and each round's own numbers.

On the CPU, with the bundled small model as its own drafter (about 5 minutes, on a quiet machine):
`.venv/bin/python benchmarks/off/measure.py`. On a GPU give a name and the arguments of `vllm serve`, and
`--full` to keep the whole profile as a document beside the result:
`… measure.py --name h200-eagle3 --rounds 1 --full -- MODEL --speculative-config …`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import machines  # noqa: E402

from tabletune import documents  # noqa: E402
from tabletune.documents import Control, Document  # noqa: E402
from tabletune_profiler import planning, profiling, progress, prompts  # noqa: E402
from tabletune_profiler.planning import Options  # noqa: E402
from tabletune_profiler.prompts import Prompt  # noqa: E402

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
"""Steps that count, at each batch size and of each kind."""

Times = dict[str, dict[str, float]]


def main() -> int:
    """Measure, write the result and print a line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="cpu-draft_model")
    parser.add_argument("--batch-sizes", help="unset: those that a profile times by itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--document", type=Path, help="compare this profile instead of taking one")
    parser.add_argument("--full", action="store_true", help="a whole profile, kept as a document")
    parser.add_argument("serve", nargs="*")
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    conditions = machines.conditions("tabletune", "torch")
    serve = tuple(asked.serve) or SMALL
    options = Options(repeats=0, mixed=False, acceptance_tokens=32)
    options = dataclasses.replace(Options() if asked.full else options, steps=STEPS)
    if asked.batch_sizes:
        sizes = tuple(int(size) for size in asked.batch_sizes.split(","))
        options = dataclasses.replace(options, batch_sizes=sizes)
    texts = prompts.bundled() if asked.full else prompts.bundled()[:8]
    rounds = []
    for _ in range(asked.rounds):
        if asked.document:
            document = documents.parse(asked.document.read_bytes())
        else:
            document = _profiled(serve, options, texts)
        profile = document.profile
        rounds.append((document, _plain(serve, profile.batch_sizes, profile.context_length)))
    compared = [_compared(index, size, rounds) for index, size in enumerate(document.profile.batch_sizes)]
    result: dict[str, Any] = {
        "what": __doc__.splitlines()[0],
        "conditions": conditions,
        "vllm": document.fingerprint.vllm,
        "gpu": document.fingerprint.gpu,
        "runner": document.fingerprint.runner,
        "measure": document.profile.measure,
        "batchSizes": compared,
    }
    results = ROOT / "benchmarks" / "results"
    machines.write(results / f"off-{asked.name}.json", result)
    if asked.full:
        (results / f"off-{asked.name}-document.json").write_bytes(documents.dump(document))
    for row in compared:
        over = f"{row['offMs'] / row['plainMs'] - 1:+.1%}" if row["offMs"] else "not timed"
        sys.stdout.write(
            f"B={row['batchSize']}: length 0 {row['lengthZeroMs']} ms, speculation off {row['offMs']} ms,"
            f" an engine without speculation {row['plainMs']} ms ({over})\n"
        )
    return 0


def _profiled(serve: tuple[str, ...], options: Options, texts: tuple[Prompt, ...]) -> Document:
    with tempfile.TemporaryDirectory() as folder, progress.reporter() as reporter:
        request = profiling.Request(
            arguments=serve,
            prompts=texts,
            options=options,
            control=Control(),
            output=Path(folder) / "table.json",
        )
        return profiling.take(request, reporter, lambda: datetime.now(UTC)).document


def _plain(serve: tuple[str, ...], sizes: tuple[int, ...], context_length: int) -> Times:
    # Any tokens: an engine without a drafter does not look into them.
    texts = [list(prompt.model_dump_json().encode())[:200] for prompt in prompts.bundled()]
    # As much context as in the profile, on average over the steps that are timed.
    length = context_length - STEPS // 2
    ids = planning.sweep_prompts(texts, length, 256, count=max(sizes))
    asked = {"serve": serve, "batchSizes": sizes, "steps": STEPS, "prompts": ids}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "times.json"
        command = [sys.executable, str(Path(__file__).with_name("plain.py")), str(answer)]
        subprocess.run(command, input=json.dumps(asked), text=True, check=True)
        found: Times = json.loads(answer.read_text())
    return found


def _compared(index: int, size: int, rounds: Sequence[tuple[Document, Times]]) -> dict[str, Any]:
    profiles = [document.profile for document, _ in rounds]
    zero = [profile.step_time_ms[profile.draft_lengths.index(0)][index] for profile in profiles]
    off = [profile.off_ms[index] if profile.off_ms else None for profile in profiles]
    plain = [times[str(size)]["stepTimeMs"] for _, times in rounds]
    return {
        "batchSize": size,
        "lengthZeroMs": _median(zero),
        "offMs": _median(off),
        "plainMs": _median(plain),
        "plainIntervalMs": _median([times[str(size)]["intervalMs"] for _, times in rounds]),
        "rounds": {"lengthZeroMs": zero, "offMs": off, "plainMs": plain},
    }


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median of what was timed; ``None`` where nothing was (length 0 may be hazardous)."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None


if __name__ == "__main__":
    sys.exit(main())
