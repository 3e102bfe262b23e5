"""What a vLLM configuration means for a table: its fingerprint, and what stands in a table's way."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import platform
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tabletune import acceptance
from tabletune.documents import Fingerprint
from tabletune_plugin.engine import versions


class Severity(StrEnum):
    """How much an obstacle matters."""

    REFUSED = "refused"
    """A table cannot be served; profiling stops."""
    WARNING = "warning"
    """A table can be served, but costs or risks something."""


@dataclass(frozen=True)
class Obstacle:
    """Something in a configuration that a table cannot, or should not, be served with."""

    name: str
    """Short name for programs, in CamelCase as a Kubernetes reason."""
    severity: Severity
    reason: str
    remedy: str


_V1_METHODS = frozenset({"ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"})
"""Methods whose proposers take a length on the V1 runner. vLLM 0.33 drops the table for others
(``VllmConfig._maybe_disable_dynamic_sd_for_v1``). 0.32 keeps it, and ends in an ``AssertionError`` at the
first step of another length (suffix, Medusa, n-gram on the GPU), or has it ignored (custom classes)."""

_V2_METHODS_OF_FULL_LENGTH = frozenset({"draft_model"})
"""Methods whose V2 speculator takes no notice of the length asked for
(``vllm/v1/worker/gpu/spec_decode/standalone_ar``, 0.32 and 0.33)."""


def fingerprint(config: Any) -> Fingerprint:
    """Return what ``config`` (vLLM's ``VllmConfig``) would be measured on, on this machine."""
    gpu, driver = _device()
    speculative, parallel, model = config.speculative_config, config.parallel_config, config.model_config
    compilation = config.compilation_config
    draft_model = getattr(speculative, "model", None)
    return Fingerprint(
        gpu=gpu,
        gpu_count=parallel.world_size if driver else 0,
        driver=driver,
        vllm=versions.installed(),
        torch=importlib.metadata.version("torch"),
        runner="V2" if config.use_v2_model_runner else "V1",
        model=str(model.model),
        drafter_method=str(speculative.method),
        drafter="" if draft_model in (None, speculative.method) else str(draft_model),
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=str(model.quantization or ""),
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        async_scheduling=bool(config.scheduler_config.async_scheduling),
        cudagraph_mode=compilation.cudagraph_mode.name,
        cudagraph_capture_sizes=tuple(sorted(compilation.cudagraph_capture_sizes or ())),
    )


def obstacles(config: Any) -> tuple[Obstacle, ...]:
    """Return what keeps ``config``, made with a table, from serving one; empty where nothing does."""
    found = []
    parallel, speculative = config.parallel_config, config.speculative_config
    if parallel.data_parallel_size > 1:
        found.append(
            Obstacle(
                "DataParallel",
                Severity.REFUSED,
                f"data_parallel_size is {parallel.data_parallel_size}: ranks could choose different lengths"
                " and deadlock, so vLLM ignores a table.",
                "Serve several single-rank replicas behind a router instead.",
            )
        )
    if parallel.pipeline_parallel_size > 1:
        found.append(
            Obstacle(
                "PipelineParallel",
                Severity.REFUSED,
                f"pipeline_parallel_size is {parallel.pipeline_parallel_size}: several steps are in flight,"
                " and their times cannot be told apart.",
                "Use tensor parallelism.",
            )
        )
    dropped = speculative.num_speculative_tokens_per_batch_size is None and parallel.data_parallel_size <= 1
    cannot = not config.use_v2_model_runner and str(speculative.method) not in _V1_METHODS
    if dropped or cannot:
        found.append(
            Obstacle(
                "MethodWithoutTable",
                Severity.REFUSED,
                f"vLLM {versions.installed()} serves no table with method {speculative.method!r} on this"
                " runner.",
                "Choose another method, or the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1) if it takes this.",
            )
        )
    if not config.use_v2_model_runner and config.compilation_config.cudagraph_mode.name != "NONE":
        found.append(
            Obstacle(
                "RunnerWithoutFullGraphs",
                Severity.WARNING,
                "the V1 runner has only piecewise CUDA graphs with a table; the paper (6.6) measured 30 to"
                " 43% less throughput for it on an H100.",
                "Set VLLM_USE_V2_MODEL_RUNNER=1, or serve one fixed length.",
            )
        )
    if config.use_v2_model_runner and str(speculative.method) in _V2_METHODS_OF_FULL_LENGTH:
        found.append(
            Obstacle(
                "DrafterKeepsFullLength",
                Severity.WARNING,
                f"the V2 runner of vLLM {versions.installed()} has a drafter of method {speculative.method!r}"
                " draft its full length in every step, without CUDA graphs and whatever the table says; on an"
                " H200 a step took 44 ms at every length, and 4 to 9 ms without speculation.",
                "Serve without speculation or with another drafter if the profile says so, or try"
                " VLLM_USE_V2_MODEL_RUNNER=0.",
            )
        )
    return tuple(found)


def _device() -> tuple[str, str]:
    """Return product name and driver version of the first GPU; the processor's name and "" without one.

    As vLLM's own platform tells it, by NVML where that is there: with tensor parallelism the engine core has
    no business on the GPU, and asking torch would start CUDA in it. NVML names the whole GPU where a slice of
    it (MIG) serves, so slices are not told apart.
    """
    current = importlib.import_module("vllm.platforms").current_platform
    if current.is_cuda_alike():
        return current.get_device_name(), _driver_version()
    return _processor_name(), ""


def _driver_version() -> str:
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split()
        return next((word for word in words if word.count(".") == 2 and word[0].isdigit()), "unknown")
    return "unknown"


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def drafts_are_uniform(config: Any) -> bool:
    """Return whether every request gets a draft of the full length each step."""
    return acceptance.drafts_are_uniform(config.speculative_config.method)
