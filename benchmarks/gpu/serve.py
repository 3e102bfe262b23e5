"""Serves one engine under many policies, all through the plugin and its file, and keeps what they yield.

A plan (`plans/*.yaml`) lists the comparisons. One engine start makes them all; the load comes from this
process, the engine core is another. Written are FOLDER/NAME.json, FOLDER/NAME.jsonl while it runs, and
FOLDER/NAME-steps.npz with every step of the engine.

    python benchmarks/gpu/serve.py --plan PLAN.yaml --document DOC.json --output FOLDER --name NAME -- MODEL …

The arguments after `--` are those of `vllm serve`. With `--plain` the engine runs without the plugin, as vLLM
does with a fixed length; the plan may then name one policy only, and no steps are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

sys.path[:0] = [str(Path(__file__).parents[1])]

import machines  # noqa: E402
from gpu import comparisons, inside, policies, profiling  # noqa: E402
from gpu.engines import Engine  # noqa: E402
from gpu.loads import Load, Shape  # noqa: E402

from tabletune import documents  # noqa: E402
from tabletune_profiler.planning import Options  # noqa: E402
from tabletune_profiler.profiling import Outcome  # noqa: E402

START_SECONDS = 400.0
"""Most that a started engine waits for the others to start."""


def main() -> int:
    """Start, wait for the turn, compare, write; returns 1 where something failed, with what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--document", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--name", required=True, help="of the setting; names the files")
    parser.add_argument(
        "--together", type=int, default=0, help="engines writing to the folder that must have started first"
    )
    parser.add_argument(
        "--after", help="engine on the same GPU whose turn is first: wait until NAME.ended is in the folder"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no comparison after so many")
    parser.add_argument("--plain", action="store_true", help="vLLM as it is, without the plugin")
    parser.add_argument("--prompts", type=Path, help="real prompts, JSON lists of token ids, one a line")
    parser.add_argument("serve", nargs="+")
    asked = parser.parse_args()
    usual = Shape()
    document = policies.of_today(
        documents.parse(asked.document.read_bytes()), usual.prompt_tokens, round(sum(usual.output_tokens) / 2)
    )
    plan = yaml.safe_load(asked.plan.read_text())
    asked.output.mkdir(parents=True, exist_ok=True)
    started = asked.output / f"{asked.name}.started"
    started.unlink(missing_ok=True)
    # Stopped before its time it still writes what it has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    result: dict[str, Any] = {
        "what": __doc__.splitlines()[0],
        "conditions": machines.conditions("torch", "vllm"),
        "plan": asked.plan.name,
        "plans": plan,
        "serve": asked.serve,
        "document": asked.document.name,
        "table": document.table,
        "fingerprint": document.fingerprint.model_dump(mode="json", by_alias=True),
        "records": [],
        "failures": [],
    }
    target = asked.output / f"{asked.name}.json"
    lines = target.with_suffix(".jsonl").open("w")

    def keep(record: dict[str, Any]) -> None:
        result["records"].append(record)
        lines.write(json.dumps(record) + "\n")
        lines.flush()

    try:
        with tempfile.TemporaryDirectory() as folder:
            volume = policies.Volume(Path(folder), policies.named("tuned", document).document)
            with Engine(asked.serve, None if asked.plain else volume) as engine:
                result["secondsStart"] = round(engine.seconds_start, 1)
                _say(f"{asked.name}: started in {engine.seconds_start:.0f} s")
                started.touch()
                # One that starts disturbs those that are measured, on another GPU of the machine too
                # (windows of one policy differed by 30%).
                _wait(lambda: len(list(asked.output.glob("*.started"))) >= asked.together, START_SECONDS)
                if asked.after:
                    _wait((asked.output / f"{asked.after}.ended").exists)
                _compare(engine, document, plan, asked, keep, result)
    except (Exception, SystemExit):
        result["failures"].append(traceback.format_exc())
    # Who did not start must not be waited for.
    started.touch()
    machines.write(target, result)
    for failure in result["failures"]:
        _say(failure)
    return 1 if result["failures"] else 0


def _compare(
    engine: Engine,
    document: documents.Document,
    plan: list[dict[str, Any]],
    asked: argparse.Namespace,
    keep: Any,
    result: dict[str, Any],
) -> None:
    began = time.perf_counter()
    result["secondsBegan"] = began
    if not asked.plain:
        engine.call(inside.record)
    engine.call(inside.quiet)
    prompts = None
    if asked.prompts is not None:
        prompts = [json.loads(line) for line in asked.prompts.read_text().splitlines()]
    load = Load(engine.client, engine.vocabulary, prompts)
    document_path = asked.output / f"{asked.name}-document.json"

    def take_profile(options: Options) -> Outcome:
        outcome = profiling.take(engine, asked.serve, options, document_path)
        document_path.write_bytes(documents.dump(outcome.document))
        result["document"], result["table"] = document_path.name, outcome.document.table
        result["fingerprint"] = outcome.document.fingerprint.model_dump(mode="json", by_alias=True)
        return outcome

    bench = comparisons.Bench(engine, load, document, keep, None if asked.plain else take_profile)

    def keep_steps() -> None:
        if not asked.plain:
            steps = (asked.output / f"{asked.name}-steps.npz").absolute()
            result["steps"] = engine.call(inside.keep, str(steps))

    try:
        for entry in plan:
            chosen = dict(entry)
            name = chosen.pop("compare")
            at = time.perf_counter() - began
            if at > asked.seconds:
                result["failures"].append(f"{name} was not begun: {at:.0f} s had passed")
                continue
            _say(f"{asked.name}: {name} {chosen} at {at:.0f} s")
            comparisons.COMPARISONS[name](bench, **chosen)
            # After each: an engine that dies takes with it what it has recorded.
            keep_steps()
            machines.write(asked.output / f"{asked.name}.json", result)
    finally:
        with contextlib.suppress(Exception):
            load.end()
            keep_steps()
        result["secondsMeasured"] = round(time.perf_counter() - began, 1)
        # The engine's own end takes seconds, which one that is told to end may not have.
        machines.write(asked.output / f"{asked.name}.json", result)
        load.close()


def _wait(there: Callable[[], bool], seconds: float = float("inf")) -> None:
    """Wait until something is there, or for so long."""
    until = time.perf_counter() + seconds
    while not there() and time.perf_counter() < until:
        time.sleep(0.2)


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
