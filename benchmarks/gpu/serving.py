"""Serves one engine under many policies, all through the plugin and its file, and compares what they keep.

One engine start (``AsyncLLM``: the engine core is a process of its own, the load comes from this one) and
one closed loop of requests that never stops. A policy is a document: the profile's, with another table or
mode, put in place as kubelet swaps a ConfigMap's volume. Each window waits until the plugin says that it
follows the new generation, lets the loop settle, and reads the plugin's own counters at its start and end.
Windows of all policies are repeated in shuffled order; values nearer than their spread are ties.

    python benchmarks/gpu/serving.py --document DOC --open 8,64 --output RESULT.json -- MODEL …

The arguments after `--` are those of `vllm serve`. TableTune must be found by vLLM as an installed plugin, or
lie on the PYTHONPATH beside a dist-info folder with its entry point (`--entry-point FOLDER` writes one).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import machines  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from tabletune import documents, tables  # noqa: E402
from tabletune.documents import Document, Mode  # noqa: E402

PORT = 9410
OUTPUT_TOKENS = (300, 700)
"""Output lengths are uniform between these, as in shared/data."""
SETTLE_SECONDS = 2.0
FOLLOW_SECONDS = 30.0


@dataclass(frozen=True)
class Policy:
    """What a window serves with."""

    name: str
    table: documents.Table
    mode: Mode = Mode.FOLLOW
    seconds: float = 1.0
    """Multiple of a window's seconds: adapting from a wrong table is given time."""


def policies(document: Document) -> Iterator[Policy]:
    """Yield the constant lengths, the profile's table, and adapting from that table and from wrong ones."""
    last, lengths = document.max_batch_size, document.profile.draft_lengths
    for length in lengths:
        yield Policy(f"constant {length}", tables.constant(length, last))
    yield Policy("tuned", document.table)
    yield Policy("adapt from tuned", document.table, Mode.ADAPT)
    yield Policy("adapt from all 0", tables.constant(0, last), Mode.ADAPT, 3.0)
    yield Policy("adapt from all max", tables.constant(lengths[-1], last), Mode.ADAPT, 3.0)


def main() -> int:
    """Serve, measure, write the result and print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--document", type=Path, required=True)
    parser.add_argument(
        "--open", default="8,64", help="open requests of the closed loop, one run after the other"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--only", default="", help="policies to run, comma-separated; unset: all")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--entry-point", type=Path, help="folder on the PYTHONPATH to declare the plugin in")
    parser.add_argument("serve", nargs="+")
    asked = parser.parse_args()
    if asked.entry_point:
        _declare(asked.entry_point)
    document = documents.parse(asked.document.read_bytes())
    conditions = machines.conditions("torch")
    wanted = set(filter(None, asked.only.split(",")))
    chosen = [policy for policy in policies(document) if not wanted or policy.name in wanted]
    with tempfile.TemporaryDirectory() as folder:
        volume = Volume(Path(folder), document)
        os.environ["TABLETUNE_TABLE"] = str(volume.path)
        os.environ["TABLETUNE_METRICS_PORT"] = str(PORT)
        loads = [int(count) for count in asked.open.split(",")]
        found = asyncio.run(_serve(asked, volume, chosen, loads))
    result = {
        "what": __doc__.splitlines()[0],
        "conditions": conditions,
        "document": str(asked.document),
        "fingerprint": document.fingerprint.model_dump(mode="json", by_alias=True),
        "windowSeconds": asked.seconds,
        "promptTokens": asked.prompt_tokens,
        "outputTokens": OUTPUT_TOKENS,
        **found,
    }
    machines.write(asked.output, result)
    for line in _summary(found["windows"]):
        sys.stdout.write(line + "\n")
    return 0


class Volume:
    """A folder that changes as kubelet changes a ConfigMap's volume: a link to a folder is replaced."""

    def __init__(self, folder: Path, document: Document) -> None:
        self._folder, self._document = folder, document
        self._generation = document.generation
        self.path = folder / "table.json"
        self.put(Policy("start", document.table))
        self.path.symlink_to("..data/table.json")

    def put(self, policy: Policy) -> int:
        """Put the document of ``policy`` in place; returns its generation."""
        self._generation += 1
        control = self._document.control.model_copy(update={"mode": policy.mode})
        changed = self._document.model_copy(
            update={"generation": self._generation, "table": policy.table, "control": control}
        )
        real = self._folder / f"..{self._generation}"
        real.mkdir()
        (real / "table.json").write_bytes(documents.dump(changed))
        link = self._folder / "..data_tmp"
        link.symlink_to(real.name)
        link.replace(self._folder / "..data")
        return self._generation


async def _serve(
    asked: argparse.Namespace, volume: Volume, chosen: Sequence[Policy], loads: Sequence[int]
) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from tabletune_plugin.engine import arguments

    namespace = arguments.parse(asked.serve).namespace
    began = time.perf_counter()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(namespace))
    started = time.perf_counter() - began
    windows: list[dict[str, Any]] = []
    try:
        vocabulary = engine.model_config.get_vocab_size()
        for count in loads:
            load = [
                asyncio.create_task(_client(engine, number, asked.prompt_tokens, vocabulary))
                for number in range(count)
            ]
            order = [policy for policy in chosen for _ in range(asked.repeats)]
            random.Random(count).shuffle(order)
            for policy in order:
                windows.append({"open": count, **await _window(policy, volume, asked.seconds)})
                # Kept at once: a time limit or an engine's death must not lose what was measured.
                with asked.output.with_suffix(".jsonl").open("a") as lines:
                    lines.write(json.dumps(windows[-1]) + "\n")
            # Aborted, not drained: that has killed engines (ENGINE.md 3).
            for client in load:
                client.cancel()
            await asyncio.gather(*load, return_exceptions=True)
        debug = json.loads(await _get("/debug/table"))
    except Exception as error:  # what was measured until an engine's death is worth keeping
        debug = f"{type(error).__name__}: {error}"
    finally:
        engine.shutdown()
    return {"secondsStart": round(started, 1), "windows": windows, "debug": debug}


async def _client(engine: Any, number: int, prompt_tokens: int, vocabulary: int) -> None:
    """Keep one request open, one after the other."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    chance = random.Random(number)
    for serial in itertools.count():
        prompt = {"prompt_token_ids": [chance.randrange(100, vocabulary) for _ in range(prompt_tokens)]}
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=chance.randint(*OUTPUT_TOKENS),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for _ in engine.generate(prompt, sampling, f"{number}-{serial}-{time.monotonic_ns()}"):
            pass


async def _window(policy: Policy, volume: Volume, seconds: float) -> dict[str, Any]:
    generation = volume.put(policy)
    put_at = time.perf_counter()
    while _value(await _counters(), "tabletune_table_generation") != generation:
        if time.perf_counter() - put_at > FOLLOW_SECONDS:
            raise RuntimeError(f"the plugin does not follow generation {generation}")
        await asyncio.sleep(0.1)
    followed = time.perf_counter() - put_at
    await asyncio.sleep(SETTLE_SECONDS)
    slices = []
    before, at = await _counters(), time.perf_counter()
    parts = max(1, round(policy.seconds))
    for _ in range(parts):
        await asyncio.sleep(seconds)
        after, now = await _counters(), time.perf_counter()
        slices.append(_delta(before, after, now - at))
        before, at = after, now
    report = json.loads(await _get("/debug/table"))
    return {
        "policy": policy.name,
        "followedAfterSeconds": round(followed, 2),
        # The last part counts: before it the control may still be on its way.
        **slices[-1],
        "parts": [part["keptTokensPerSecond"] for part in slices],
        "table": report["table"],
        "active": report["active"],
        "reason": report["reason"],
        "comparable": report["stepTimesComparable"],
        "explorations": report["explorations"],
        "corrections": report["corrections"],
    }


Counters = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def _get(path: str) -> bytes:
    def read() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body

    return await asyncio.to_thread(read)


async def _counters() -> Counters:
    families = text_string_to_metric_families((await _get("/metrics")).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def _value(counters: Counters, name: str) -> float | None:
    return next((value for (found, _), value in counters.items() if found == name), None)


def _delta(before: Counters, after: Counters, seconds: float) -> dict[str, Any]:
    kept = 0.0
    lengths: dict[str, float] = defaultdict(float)
    batches: dict[str, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    for (name, labels), value in after.items():
        more = value - before.get((name, labels), 0.0)
        if name == "tabletune_kept_tokens_total":
            kept += more
        elif name == "tabletune_steps_total" and more:
            for counts, label in ((lengths, "length"), (batches, "batch"), (kinds, "kind")):
                counts[dict(labels)[label]] += more
    steps = sum(lengths.values())
    return {
        "keptTokensPerSecond": round(kept / seconds, 1),
        "stepsPerSecond": round(steps / seconds, 1),
        "stepsByLength": dict(lengths),
        "stepsByBatch": dict(batches),
        "stepsByKind": dict(kinds),
    }


def _summary(windows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for count in sorted({window["open"] for window in windows}):
        by_policy: dict[str, list[float]] = defaultdict(list)
        for window in windows:
            if window["open"] == count:
                by_policy[window["policy"]].append(window["keptTokensPerSecond"])
        constants = [statistics.fmean(v) for name, v in by_policy.items() if name.startswith("constant")]
        best = max(constants, default=float("nan"))
        for name, values in by_policy.items():
            mean = statistics.fmean(values)
            spread = (max(values) - min(values)) / mean
            yield f"{count:4d} open  {name:20s} {mean:9.1f} tokens/s  {mean / best:6.1%}  spread {spread:.1%}"


def _declare(folder: Path) -> None:
    """Write what an installed distribution says about its entry points."""
    info = folder / "tabletune-0.1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tabletune\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ntabletune = tabletune_plugin.registering:register\n"
    )


if __name__ == "__main__":
    sys.exit(main())
