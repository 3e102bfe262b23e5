"""Arguments that several commands share, and the values that a command line writes its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from tabletune import documents
from tabletune.documents import DocumentError
from tabletune_profiler.exit_codes import InputError

DocumentArgument = Annotated[
    Path, typer.Argument(metavar="DOC", help="Table document; `-` is standard input.", show_default=False)
]
ServeArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="-- MODEL [VLLM ARGUMENTS]",
        help="What you would give `vllm serve`, after `--`.",
        show_default=False,
    ),
]


def output(text: str) -> Path:
    """Return the path of an output; an empty one (a variable that is not set) is no folder."""
    if not str(text):
        raise InputError("--output is empty. Name a file.")
    return Path(text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program.")]


def lengths(text: str) -> tuple[int, ...]:
    """Return the draft lengths in ``"0,1,3"``, ascending; ``"all"`` is no restriction, hence empty."""
    if text == "all":
        return ()
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InputError(f"--lengths {text}: expected draft lengths as in 0,1,3, or all.") from None


def pinned_range(text: str) -> tuple[int, int, int]:
    """Return the range ``[first, last, K]`` in ``"1-8=2"``; ``"4=2"`` pins one batch size."""
    sizes, _, length = text.partition("=")
    first, _, last = sizes.partition("-")
    try:
        return int(first), int(last or first), int(length)
    except ValueError:
        raise InputError(
            f"--pin {text}: expected first-last=K, as in 1-8=2 (two tokens up to 8 requests), or none."
        ) from None


def speculative_config(text: str | None) -> dict[str, JsonValue] | None:
    """Return the value of vLLM's ``--speculative-config``; ``None`` where the option was not given."""
    if text is None:
        return None
    try:
        value = documents.parse_json(text)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except DocumentError as error:
        problem = error.problems[0]
        raise InputError(f"--speculative-config is no JSON: {problem.found or problem.expected}.") from error
    except ValueError as error:
        raise InputError("--speculative-config must have finite numbers and valid text.") from error
    if not isinstance(value, dict):
        raise InputError(f"--speculative-config: expected a JSON object, found {text[:80]}.")
    return value
