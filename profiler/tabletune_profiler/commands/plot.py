"""``tabletune plot``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tabletune_profiler import consoles, files
from tabletune_profiler.commands.parameters import DocumentArgument


class Format(StrEnum):
    """Picture formats."""

    PNG = "png"
    SVG = "svg"


def plot(
    source: DocumentArgument,
    output_dir: Annotated[Path, typer.Option(help="Folder to write to; it must exist.")] = Path(),
    formats: Annotated[
        list[Format] | None,
        typer.Option("--format", help="Picture format; may be repeated. Unset: both.", show_default=False),
    ] = None,
) -> None:
    """Draw a table document as a picture.

    Step times with the capture limit, goodput of each length with the table over it, and survival. The
    picture is named after the document, and its path is printed.

    Example:

    ```
    tabletune plot table.json --output-dir pictures --format svg
    ```
    """
    document = files.read_document(source)
    # Imported here because it takes a second, which every other command would pay for.
    from tabletune_profiler import plotting

    draw = {Format.PNG: plotting.png, Format.SVG: plotting.svg}
    stem = "table" if source == files.STANDARD else source.stem
    for picture_format in formats or list(Format):
        path = output_dir / f"{stem}.{picture_format}"
        files.write(path, draw[picture_format](document))
        consoles.write(f"{path}\n".encode())
