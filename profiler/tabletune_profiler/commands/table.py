"""``tabletune table``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tabletune import assembling, documents
from tabletune.documents import Control, Document, DocumentError
from tabletune_profiler import consoles, files
from tabletune_profiler.commands import parameters
from tabletune_profiler.commands.parameters import DocumentArgument
from tabletune_profiler.exit_codes import InputError


def table(
    source: DocumentArgument,
    tie_tolerance: Annotated[
        float | None,
        typer.Option(help="Keep the neighbour's length where another gains less; 0.01 is 1%."),
    ] = None,
    narrow_range: Annotated[
        float | None,
        typer.Option(help="Merge ranges narrower than this share of their first batch size."),
    ] = None,
    merge_tolerance: Annotated[
        float | None,
        typer.Option(help="Let a range extend while it loses less than this against the best length."),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Draft lengths that the table may use, as in `0,1,3`, or `all`.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIRST-LAST=K",
            help="Give these batch sizes this length, as in `1-8=2`; may be repeated. `none`: unpin all.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            parser=parameters.output,
            metavar="PATH",
            help="File to write, possibly DOC itself; `-` is standard output.",
        ),
    ] = files.STANDARD,
) -> None:
    """Compute the table again from its profile.

    With other tolerances, lengths or pinned ranges. Measures nothing, so no engine is needed. What is not
    given stays as the document has it, and the settings used become part of the new document.

    Examples:

    ```
    tabletune table table.json --tie-tolerance 0.02 --lengths 0,1,3 --output smoother.json
    tabletune table table.json --pin 1-8=2 --pin 200-256=0 | tabletune show -
    ```
    """
    document = files.read_document(source)
    changes: dict[str, Any] = {
        "tieTolerance": tie_tolerance,
        "narrowRange": narrow_range,
        "mergeTolerance": merge_tolerance,
        "allowedLengths": None if lengths is None else parameters.lengths(lengths),
        "pinned": None if not pin else _pinned(pin),
    }
    control = change_control(document.control, changes)
    if pin and control.pinned and (last := control.pinned[-1][1]) > document.max_batch_size:
        raise InputError(
            f"--pin: {last} is beyond the table's last batch size, {document.max_batch_size}."
            " Pin up to that one."
        )
    try:
        computed = assembling.recompute(document, control, datetime.now(UTC))
    except assembling.NOT_COMPUTABLE as error:
        raise InputError(f"{files.name(source)}: {error}") from error
    files.write(output, documents.dump(computed))
    consoles.note(f"Table: {_told(computed)}" + ("" if computed.table != document.table else " (unchanged)"))


def change_control(control: Control, changes: dict[str, Any]) -> Control:
    """Return ``control`` with ``changes`` by their names in JSON; raises :class:`InputError`.

    A change of ``None`` is an option that was not given: the setting stays as it is.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    content = control.model_dump(by_alias=True, mode="json") | given
    try:
        return documents.validate_as(Control, content)
    except DocumentError as error:
        raise InputError(f"These settings cannot be used.\n{files.listing(error)}") from error


def _pinned(texts: list[str]) -> tuple[tuple[int, int, int], ...]:
    if texts == ["none"]:
        return ()
    return tuple(sorted(parameters.pinned_range(text) for text in texts))


def _told(document: Document) -> str:
    return ", ".join(f"{first}-{last} K={length}" for first, last, length in document.table)
