"""What a configuration means for a table, read off objects that have vLLM's fields."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tabletune import documents
from tabletune_plugin.engine import facts
from tabletune_plugin.engine.facts import Severity


def config(**changes: Any) -> Any:
    """A ``VllmConfig`` of EAGLE-3 on one H200 with the V2 runner; changes by their names in vLLM."""
    fields: dict[str, Any] = {
        "use_v2_model_runner": True,
        "method": "eagle3",
        "draft_model": "org/drafter",
        "num_speculative_tokens_per_batch_size": [[1, 255, 0], [256, 256, 1]],
        "data_parallel_size": 1,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": [8, 4, 2, 1],
        "quantization": None,
        "dtype": "torch.bfloat16",
        "async_scheduling": True,
    }
    unknown = set(changes) - set(fields)
    assert not unknown
    fields |= changes
    return SimpleNamespace(
        use_v2_model_runner=fields["use_v2_model_runner"],
        speculative_config=SimpleNamespace(
            method=fields["method"],
            model=fields["draft_model"],
            num_speculative_tokens_per_batch_size=fields["num_speculative_tokens_per_batch_size"],
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=fields["data_parallel_size"],
            tensor_parallel_size=fields["tensor_parallel_size"],
            pipeline_parallel_size=fields["pipeline_parallel_size"],
            world_size=fields["tensor_parallel_size"] * fields["pipeline_parallel_size"],
        ),
        model_config=SimpleNamespace(
            model="org/model", dtype=fields["dtype"], quantization=fields["quantization"]
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(name=fields["cudagraph_mode"]),
            cudagraph_capture_sizes=fields["cudagraph_capture_sizes"],
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=256, max_num_batched_tokens=8_192, async_scheduling=fields["async_scheduling"]
        ),
    )


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 with vLLM 0.33 and torch 2.11."""
    versions = {"vllm": "0.33.0", "torch": "2.11.0+cu130"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    put_device(monkeypatch, "NVIDIA H200")


def put_device(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    platform = SimpleNamespace(is_cuda_alike=lambda: name is not None, get_device_name=lambda: name)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    # Whoever asks torch starts CUDA in a process that has no business on the GPU.
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())


def put_files(monkeypatch: pytest.MonkeyPatch, **files: str | None) -> None:
    """Let ``/proc/…`` hold these texts; ``None`` for no such file."""

    def read_text(path: Path, *args: object) -> str:
        text = files.get(path.name)
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)


# The fingerprint


def test_fingerprint_names_what_step_times_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    put_files(
        monkeypatch,
        version="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\nGCC 13.3.0",
    )
    assert facts.fingerprint(config()) == documents.Fingerprint(
        gpu="NVIDIA H200",
        gpu_count=2,
        driver="580.95.05",
        vllm="0.33.0",
        torch="2.11.0+cu130",
        runner="V2",
        model="org/model",
        drafter_method="eagle3",
        drafter="org/drafter",
        dtype="bfloat16",
        tensor_parallel_size=2,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        async_scheduling=True,
        cudagraph_mode="FULL_AND_PIECEWISE",
        cudagraph_capture_sizes=(1, 2, 4, 8),
    )


def test_fingerprint_of_another_engine_differs() -> None:
    whole = facts.fingerprint(config())
    for changes in (
        {"use_v2_model_runner": False},
        {"method": "mtp"},
        {"draft_model": "org/other"},
        {"tensor_parallel_size": 1},
        {"cudagraph_mode": "FULL"},
        {"cudagraph_capture_sizes": None},
        {"quantization": "fp8"},
        {"dtype": "torch.float16"},
        {"async_scheduling": False},
    ):
        assert facts.fingerprint(config(**changes)) != whole, changes


@pytest.mark.parametrize("model", [None, "ngram"])
def test_method_without_a_model_has_no_drafter(model: str | None) -> None:
    # vLLM puts the method's name where such a drafter's model would be.
    found = facts.fingerprint(config(method="ngram", draft_model=model))
    assert (found.drafter_method, found.drafter) == ("ngram", "")


def test_unreadable_driver_is_unknown_and_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    put_files(monkeypatch, version=None)
    assert facts.fingerprint(config()).driver == "unknown"
    put_files(monkeypatch, version="something else")
    assert facts.fingerprint(config()).driver == "unknown"
    assert facts.fingerprint(config()).gpu_count == 2


def test_without_a_gpu_it_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    put_device(monkeypatch, None)
    put_files(monkeypatch, cpuinfo="processor\t: 0\nmodel name\t: AMD EPYC 9R14\nmodel name\t: other\n")
    found = facts.fingerprint(config(cudagraph_mode="NONE", cudagraph_capture_sizes=[]))
    assert (found.gpu, found.gpu_count, found.driver) == ("AMD EPYC 9R14", 0, "")
    put_files(monkeypatch, cpuinfo=None)
    assert facts.fingerprint(config()).gpu  # Python's own name for it


# Obstacles


def names(**changes: Any) -> dict[str, Severity]:
    return {obstacle.name: obstacle.severity for obstacle in facts.obstacles(config(**changes))}


def test_v2_with_a_table_has_no_obstacle() -> None:
    assert names() == {}


def test_data_parallel_is_refused_once() -> None:
    # vLLM drops the table itself then; that is not the method's fault.
    found = names(data_parallel_size=2, num_speculative_tokens_per_batch_size=None)
    assert found == {"DataParallel": Severity.REFUSED}


def test_pipeline_parallel_is_refused() -> None:
    assert names(pipeline_parallel_size=2) == {"PipelineParallel": Severity.REFUSED}


def test_method_whose_table_vllm_drops_is_refused_by_name() -> None:
    (obstacle,) = facts.obstacles(config(method="medusa", num_speculative_tokens_per_batch_size=None))
    assert (obstacle.name, obstacle.severity) == ("MethodWithoutTable", Severity.REFUSED)
    assert "vLLM 0.33.0 serves no table with method 'medusa'" in obstacle.reason


@pytest.mark.parametrize("method", ["suffix", "medusa", "ngram_gpu", "custom_class"])
def test_method_whose_proposer_takes_no_length_on_v1_is_refused_though_vllm_keeps_the_table(
    method: str,
) -> None:
    # vLLM 0.32 does, and ends at the first step of another length.
    v1 = {"use_v2_model_runner": False, "cudagraph_mode": "NONE"}
    assert names(method=method, **v1) == {"MethodWithoutTable": Severity.REFUSED}
    assert names(method=method) == {}
    assert names(method="draft_model", **v1) == {}


def test_v1_with_graphs_costs_and_without_does_not() -> None:
    found = names(use_v2_model_runner=False, cudagraph_mode="PIECEWISE")
    assert found == {"RunnerWithoutFullGraphs": Severity.WARNING}
    assert names(use_v2_model_runner=False, cudagraph_mode="NONE") == {}


def test_draft_model_on_v2_drafts_its_full_length_whatever_the_table_says() -> None:
    assert names(method="draft_model") == {"DrafterKeepsFullLength": Severity.WARNING}
    assert names(method="draft_model", use_v2_model_runner=False, cudagraph_mode="NONE") == {}


def test_every_obstacle_says_what_to_do() -> None:
    every = config(data_parallel_size=2, pipeline_parallel_size=2, use_v2_model_runner=False)
    found = (*facts.obstacles(every), *facts.obstacles(config(method="draft_model")))
    assert len(found) == 4
    assert all(obstacle.reason.endswith(".") and obstacle.remedy.endswith(".") for obstacle in found)


# Drafters


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model", "dflash"])
def test_drafters_that_are_models_draft_alike(method: str) -> None:
    assert facts.drafts_are_uniform(config(method=method))


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix"])
def test_drafters_that_look_up_do_not(method: str) -> None:
    assert not facts.drafts_are_uniform(config(method=method))
