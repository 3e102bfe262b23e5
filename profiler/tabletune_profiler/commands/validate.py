"""``tabletune validate``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tabletune import assembling, documents
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

    Judges every one and names each fault with its place. Ends with 2 where any document is bad. A good
    document whose table, prediction or recommendation is not what its own measurements make is named: it
    was edited, or computed by another version.

    Example:

    ```
    tabletune validate tables/*.json
    ```
    """
    verdicts = [judge(source) for source in sources]
    if as_json:
        consoles.write((json.dumps([verdict.told() for verdict in verdicts], indent=1) + "\n").encode())
    else:
        for verdict in verdicts:
            consoles.write_line("\n".join(verdict.lines()))
    if any(verdict.problems for verdict in verdicts):
        raise typer.Exit(ExitCode.BAD_INPUT)


@dataclass(frozen=True)
class Verdict:
    """What was found in one file."""

    source: Path
    problems: tuple[Problem, ...] = ()
    """Why it is no usable document; a file that cannot be read has one too."""
    disagreements: tuple[str, ...] = ()
    """Sections that are not what its own measurements make."""

    def told(self) -> dict[str, Any]:
        """Return it for a program."""
        return {
            "file": str(self.source),
            "valid": not self.problems,
            "problems": [vars(problem) for problem in self.problems],
            "disagreements": list(self.disagreements),
        }

    def lines(self) -> list[str]:
        """Return it for a reader."""
        count = len(self.problems)
        word = f"{count} faults" if count > 1 else "a fault" if count else "good"
        edited = [
            f"  {section}: not what its own measurements make. `tabletune table` computes it again."
            for section in self.disagreements
        ]
        return [f"{self.source}: {word}", *(f"  {problem}" for problem in self.problems), *edited]


def judge(source: Path) -> Verdict:
    """Return what is wrong with the document at ``source``."""
    try:
        document = documents.parse(files.read(source, documents.MAX_DOCUMENT_BYTES))
        return Verdict(source, disagreements=assembling.disagreements(document))
    except DocumentError as error:
        return Verdict(source, error.problems)
    except (InputError, *assembling.NOT_COMPUTABLE) as error:
        return Verdict(source, (Problem("", "", str(error)),))
