"""Writes the reference pages that are made from the code, or says which of them are out of date.

`make generate` calls it, and a test calls :func:`pages` to compare: a reference that is written by hand
names options that no longer exist.

    python tools/generate_reference.py           # write
    python tools/generate_reference.py --check   # write nothing; end with 1 where a page differs
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer
import typer.cli

from tabletune_profiler import main
from tabletune_profiler.commands import schema
from tabletune_profiler.exit_codes import ExitCode

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Return the content of every generated page."""
    return {
        FOLDER / "cli.md": command_line(),
        FOLDER / "table-document.schema.json": schema.render(),
    }


def command_line() -> str:
    """Return the page of the commands, from their help, and of the exit codes."""
    group = typer.main.get_command(main.app)
    commands = typer.cli.get_docs_for_click(obj=group, ctx=typer.Context(group), name="tabletune")
    codes = "\n".join(f"| {code} | `{code.name}` | {code.when} |" for code in ExitCode)
    return f"""<!-- Made by tools/generate_reference.py; change the commands, not this page. -->

{commands.strip()}

## Exit codes

Messages go to standard error, data to standard output.

| code | name | when |
| --- | --- | --- |
{codes}

## Serving with a rendered file

- vLLM reads `--config FILE`; it takes `--config=FILE` too, and ignores it.
- An argument on vLLM's command line wins over the file. Leave out there what the file sets, above all
  `--speculative-config`.
- A ConfigMap above 256 KiB needs `kubectl apply --server-side`, since plain `kubectl apply` copies it into an
  annotation.
"""


def run() -> None:
    """Write or check the pages, as the arguments say."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is out of date. Run tools/generate_reference.py.", file=sys.stderr)
        sys.exit(1 if stale else 0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(pages()[path])
        print(f"Written: {path}")


if __name__ == "__main__":
    run()
