"""``tabletune validate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tabletune import documents
from tabletune.documents import DocumentError, Problem
from tabletune_profiler import consoles, files
from tabletune_profiler.commands.parameters import JsonOption
from tabletune_profiler.exit_codes import ExitCode, InputError


def validate(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="DOC", help="Table documents; `-` is standard input.", show_default=False),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check table documents.

    Judges every one and names each fault with its place. Ends with 2 where any document is bad.

    Example:

    ```
    tabletune validate tables/*.json
    ```
    """
    faults = {source: find_faults(source) for source in sources}
    if as_json:
        report = [
            {"file": str(source), "valid": not problems, "problems": [vars(problem) for problem in problems]}
            for source, problems in faults.items()
        ]
        consoles.write((json.dumps(report, indent=1) + "\n").encode())
    else:
        for source, problems in faults.items():
            verdict = f"{len(problems)} faults" if len(problems) > 1 else "a fault" if problems else "good"
            lines = [f"{source}: {verdict}", *(f"  {problem}" for problem in problems)]
            consoles.write_line("\n".join(lines))
    if any(faults.values()):
        raise typer.Exit(ExitCode.BAD_INPUT)


def find_faults(source: Path) -> tuple[Problem, ...]:
    """Return what is wrong with the document at ``source``; a file that cannot be read is a fault too."""
    try:
        documents.parse(files.read(source, documents.MAX_DOCUMENT_BYTES))
    except DocumentError as error:
        return error.problems
    except InputError as error:
        return (Problem("", "", str(error)),)
    return ()
