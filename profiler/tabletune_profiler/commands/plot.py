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
    stem = "table" if source == files.STANDARD else source.stem
    paths = {form: output_dir / f"{stem}.{form}" for form in formats or list(Format)}
    for path in paths.values():
        files.keep_input(source, path)
    document = files.read_document(source)
    # Imported here because it takes a second, which every other command would pay for.
    from tabletune_profiler import plotting

    draw = {Format.PNG: plotting.png, Format.SVG: plotting.svg}
    # All are drawn before any is written: a picture that cannot be drawn leaves no half of the pair.
    pictures = {path: draw[form](document) for form, path in paths.items()}
    for path, picture in pictures.items():
        files.write(path, picture)
        consoles.write_line(str(path))
