"""Times an engine without any speculative config, with the profiler's own sweep; ``measure.py`` starts it.

Reads `{"serve": [...], "batchSizes": [...], "steps": n, "prompts": [[token ids], ...]}` from standard input
and writes milliseconds by batch size to the file that is its argument; vLLM prints to standard output.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from tabletune_plugin.engine import arguments, steps
from tabletune_plugin.engine.driving import DrivenEngine
from tabletune_profiler import messages
from tabletune_profiler.sweeping import StepLog, Sweep


class PlainEngine(DrivenEngine):
    """An engine without a lookup: it drafts nothing whatever it is told."""

    def set_draft_length(self, length: int) -> None:
        """Do nothing."""


def config_without_speculation(serve: list[str]) -> Any:
    """Return vLLM's configuration for serving with ``serve``, whose speculative config is left out."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    namespace = arguments.parse(serve).namespace
    namespace.speculative_config = None
    return AsyncEngineArgs.from_cli_args(namespace).create_engine_config(UsageContext.OPENAI_API_SERVER)


def main() -> None:
    """Time every batch size that was asked for."""
    asked = json.load(sys.stdin)
    config = config_without_speculation(asked["serve"])
    steps.attach = steps.Tap  # attach refuses an engine without a lookup
    log = StepLog()
    engine = PlainEngine.start(config, log)
    sweep = Sweep(engine, log, uniform_drafts=True, vocabulary=config.model_config.get_vocab_size())
    found = {}
    for batch_size in asked["batchSizes"]:
        prompts = tuple(tuple(ids) for ids in asked["prompts"][:batch_size])
        command = messages.TimeCells(batch_size, (0,) * 4, asked["steps"] // 4, prompts)
        samples = [
            sample
            for answer in sweep.time_cells(command)
            if isinstance(answer, messages.CellTimed)
            for sample in answer.samples
        ]
        spans = [sample.gpu_span_ms for sample in samples if sample.gpu_span_ms is not None]
        found[batch_size] = {
            "stepTimeMs": statistics.median(spans or [sample.interval_ms for sample in samples]),
            "intervalMs": statistics.median(sample.interval_ms for sample in samples),
        }
    Path(sys.argv[1]).write_text(json.dumps(found))
    engine.shutdown()


if __name__ == "__main__":
    main()
