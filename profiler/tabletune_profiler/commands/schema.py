"""``tabletune schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tabletune import schemas
from tabletune_profiler import files


def schema(
    output: Annotated[Path, typer.Option(help="File to write; `-` is standard output.")] = files.STANDARD,
) -> None:
    """Print the JSON Schema of the table document.

    In the 2020-12 dialect, for editors and checks that do without Python.

    Example:

    ```
    tabletune schema --output table-document.schema.json
    ```
    """
    files.write(output, render().encode())


def render() -> str:
    """Return the schema as the text that is published."""
    return json.dumps(schemas.table_schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
