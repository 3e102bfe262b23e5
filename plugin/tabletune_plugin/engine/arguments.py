"""The arguments of ``vllm serve``, parsed by vLLM's own parser and made into its configuration.

Profiling and serving must not differ, so nothing here knows a single vLLM argument by name except the
speculative config, whose table is replaced: while a profile is taken, the engine starts with one that
names every length (:func:`startup_table`), because vLLM captures CUDA graphs only for the lengths that it
finds in the table at start-up. The plugin starts a serving engine with the same table.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabletune.documents import TABLE_KEY

_SHORTCUTS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""vLLM's options for single keys of the speculative config (``EngineArgs.create_speculative_config``)."""

_PARSER_MODULES = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")
"""Where ``make_arg_parser`` is: vLLM 0.33, vLLM 0.32."""


class ArgumentsError(ValueError):
    """vLLM does not take these arguments; the message is vLLM's own or names argument and value."""


@dataclass(frozen=True)
class ServeArguments:
    """Arguments of ``vllm serve`` after vLLM's parser."""

    namespace: argparse.Namespace
    model: str
    """The model as given."""
    speculative_config: dict[str, Any]
    """What ``--speculative-config`` holds, without a table."""
    longest_draft: int
    """``num_speculative_tokens`` of the speculative config."""
    had_table: bool
    """Whether the user's own config holds a table, which is set aside for the profile."""


def parse(arguments: Sequence[str]) -> ServeArguments:
    """Parse ``arguments`` (what follows ``vllm serve``); imports vLLM.

    Raises :class:`ArgumentsError` for an argument that vLLM does not know or refuses, for the path of a
    model that is not there, and where there is no speculative config to find lengths for.
    """
    namespace = _parse_as_vllm_serve(list(arguments))
    model = getattr(namespace, "model_tag", None) or namespace.model
    namespace.model = model
    if _is_path(model) and not Path(model).exists():
        raise ArgumentsError(f"There is no model at {model}.")
    config = _speculative_config(namespace)
    if not config:
        raise ArgumentsError(
            "--speculative-config is missing: without a drafter there is no draft length to choose. Give"
            ' the one that you serve with, such as \'{"method": "ngram", "num_speculative_tokens": 3}\'.'
        )
    longest = config.get("num_speculative_tokens")
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
        raise ArgumentsError(
            f"num_speculative_tokens in --speculative-config is {longest!r}, must be the longest draft"
            " length to consider, 1 or more."
        )
    return ServeArguments(
        namespace=namespace,
        model=model,
        speculative_config={key: value for key, value in config.items() if key != TABLE_KEY},
        longest_draft=longest,
        had_table=config.get(TABLE_KEY) is not None,
    )


def _speculative_config(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the speculative config as vLLM puts it together, all in one place afterwards."""
    given = namespace.speculative_config or {}
    if not isinstance(given, dict):
        raise ArgumentsError(f"--speculative-config is {str(given)[:80]}, must be a JSON object.")
    config = {key.replace("-", "_"): value for key, value in given.items()}
    for option, key in _SHORTCUTS.items():
        value = getattr(namespace, option, None)
        if value is None:
            continue
        if key in config:
            raise ArgumentsError(
                f"--{option.replace('_', '-')} and {key} of --speculative-config are both given. Give one."
            )
        config[key] = value
        setattr(namespace, option, None)
    return config


def _is_path(model: str) -> bool:
    """Return whether ``model`` can only be a path. vLLM would take a missing one for a hub's repository."""
    return model.startswith(("/", "./", "../"))


def _parse_as_vllm_serve(arguments: list[str]) -> argparse.Namespace:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    make_arg_parser = _make_arg_parser()
    parser = FlexibleArgumentParser(prog="vllm")  # type: ignore[no-untyped-call]
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    make_arg_parser(serve)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            namespace: argparse.Namespace = parser.parse_args(["serve", *arguments])
    except SystemExit as error:
        lines = [line for line in complaint.getvalue().splitlines() if "error:" in line]
        message = lines[-1].partition("error:")[2].strip() if lines else "they ask for help, not for a server"
        raise ArgumentsError(f"vLLM does not take these arguments: {message}") from error
    except (ValueError, OSError) as error:
        raise ArgumentsError(f"vLLM does not take these arguments: {error}") from error
    except Exception as error:
        # A config file that is no mapping, for one, ends vLLM's parser with whatever Python says of it.
        raise ArgumentsError(
            f"vLLM does not take these arguments: {type(error).__name__}: {_first_lines(error)}"
        ) from error
    return namespace


def _make_arg_parser() -> Any:
    for module in _PARSER_MODULES:
        with contextlib.suppress(ImportError):
            return importlib.import_module(module).make_arg_parser
    raise ArgumentsError(f"vLLM's argument parser is in none of {', '.join(_PARSER_MODULES)}.")


MOST_STARTUP_SEQUENCES = 4_096
"""Batch sizes that a start-up table covers where ``max_num_seqs`` is not known yet; vLLM's defaults are 128
to 1,024."""


def startup_table(draft_lengths: Sequence[int], max_num_seqs: int | None) -> list[list[int]]:
    """Return a table that has vLLM capture graphs for each of ``draft_lengths`` as widely as it can.

    vLLM (``CudaGraphManager``) captures each of its capture sizes for every length that the table names, up
    to ``max_num_seqs`` requests. Its own choice of sizes (``VllmConfig._set_cudagraph_sizes``) has those that
    a length fills exactly only up to the largest batch size that the table gives to it. So every length gets
    one of the largest batch sizes to itself.

    Where ``max_num_seqs`` is ``None``, vLLM fills it in only after the speculative config was made; then the
    lengths take turns, so that it is true for any.

    Raises :class:`ArgumentsError` where there are more lengths than batch sizes.

    >>> startup_table([0, 1, 3], 256)
    [[1, 254, 0], [255, 255, 1], [256, 256, 3]]
    """
    lengths = sorted(set(draft_lengths))
    if max_num_seqs is None:
        return [[size, size, lengths[size % len(lengths)]] for size in range(1, MOST_STARTUP_SEQUENCES + 1)]
    if len(lengths) > max_num_seqs:
        raise ArgumentsError(
            f"{len(lengths)} draft lengths do not fit into a table of --max-num-seqs {max_num_seqs} batch"
            " sizes. Raise --max-num-seqs or profile fewer lengths."
        )
    first_alone = max_num_seqs - len(lengths) + 2
    table = [[1, first_alone - 1, lengths[0]]]
    table += [[first_alone + i, first_alone + i, length] for i, length in enumerate(lengths[1:])]
    return table


def vllm_config(arguments: ServeArguments, draft_lengths: Sequence[int]) -> Any:
    """Return vLLM's ``VllmConfig`` for serving with ``arguments`` and the start-up table.

    It is made as the API server makes it, whose defaults (``max_num_seqs`` for one) differ from those
    of vLLM's ``LLM`` class. Raises :class:`ArgumentsError` with vLLM's reason where it refuses.
    """
    # The largest batch size is known only after vLLM has filled in its default, so the first round has a
    # table that fits any.
    fitting_any = [[1, 1, max(draft_lengths)]]
    most = _vllm_config(arguments, fitting_any).scheduler_config.max_num_seqs
    return _vllm_config(arguments, startup_table(draft_lengths, most))


def _vllm_config(arguments: ServeArguments, table: list[list[int]]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    # vLLM fills in what it is given, and would take one round's defaults for the user's wishes in the next.
    namespace = copy.deepcopy(arguments.namespace)
    namespace.speculative_config = {**arguments.speculative_config, TABLE_KEY: table}
    try:
        return AsyncEngineArgs.from_cli_args(namespace).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (ValueError, OSError, TypeError, KeyError, NotImplementedError, ImportError) as error:
        raise ArgumentsError(f"vLLM refuses this configuration: {_first_lines(error)}") from error


def _first_lines(error: BaseException) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:6])[:1_000]
