"""One engine core in a process of its own, with the plugin in it, and what is asked of it while it serves."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu import inside
from gpu.loads import Load
from gpu.policies import Policy, Volume

from tabletune import documents

BENCHMARKS = Path(__file__).parents[1]
FOLLOW_SECONDS = 20.0


class Engine:
    """Starts as ``vllm serve`` would with these arguments, but for its front end."""

    def __init__(self, serve: Sequence[str], volume: Volume | None) -> None:
        """``volume`` is where the plugin finds its document; ``None``: vLLM as it is, without the plugin."""
        self._volume = volume
        self._declared = declare()
        if volume is not None:
            os.environ |= {
                "TABLETUNE_TABLE": str(volume.path),
                "TABLETUNE_METRICS_PORT": "0",
                "TABLETUNE_POLL_SECONDS": "0.1",
            }
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.core_client import EngineCoreClient
        from vllm.v1.executor import Executor

        from tabletune_plugin.engine import arguments

        namespace = arguments.parse(serve).namespace
        began = time.perf_counter()
        config = AsyncEngineArgs.from_cli_args(namespace).create_engine_config(UsageContext.OPENAI_API_SERVER)
        # Has every step say which CUDA graph it ran as.
        config.observability_config.cudagraph_metrics = volume is not None
        self.client: Any = EngineCoreClient.make_client(
            multiprocess_mode=True,
            asyncio_mode=False,
            vllm_config=config,
            executor_class=Executor.get_class(config),
            log_stats=True,
        )
        self.seconds_start = time.perf_counter() - began
        self.vocabulary: int = config.model_config.get_vocab_size()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.client.shutdown()
        self._declared.cleanup()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of ``inside`` between two steps; returns what it returned."""
        return self.client.call_utility("benchmark", function.__name__, arguments)

    def forget_rivals(self) -> None:
        """Have rivals begin anew."""
        if self._volume is not None:
            self.call(inside.forget)

    def serve(self, policy: Policy, load: Load) -> float:
        """Serve with ``policy`` from now on; returns the seconds until the plugin followed.

        Without the plugin the engine serves as it was started, whatever the policy.
        """
        if self._volume is None:
            return 0.0
        self.call(inside.steer, "", b"")
        generation = self._volume.put(policy.document)
        began = time.perf_counter()
        while self.call(inside.following) != generation:
            if time.perf_counter() - began > FOLLOW_SECONDS:
                raise RuntimeError(f"the plugin does not follow generation {generation}")
            load.sleep(0.05)
        if policy.rival:
            self.call(inside.steer, policy.rival, documents.dump(policy.document))
        return time.perf_counter() - began


def declare() -> tempfile.TemporaryDirectory[str]:
    """Let vLLM find the benchmark's plugin, and TableTune's where that is not installed.

    vLLM looks for entry points of what is installed, which a folder with such files on the path is. Returns
    the folder, to be kept while processes start.
    """
    entries = {"benchmark": "gpu.inside:register"}
    if not metadata.entry_points(group="vllm.general_plugins", name="tabletune"):
        entries["tabletune"] = "tabletune_plugin.registering:register"
    folder = tempfile.TemporaryDirectory(prefix="benchmark-")
    info = Path(folder.name) / "tabletune_benchmark-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tabletune-benchmark\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[vllm.general_plugins]", *lines, ""]))
    paths = [folder.name, str(BENCHMARKS)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return folder
