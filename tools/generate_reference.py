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

import describing
from tabletune import schemas
from tabletune_profiler import main, progress
from tabletune_profiler.commands import schema
from tabletune_profiler.exit_codes import ExitCode
from tabletune_profiler.prompts import Prompt

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Return the content of every generated page."""
    return {
        FOLDER / "cli.md": command_line(),
        FOLDER / "document.md": document(),
        FOLDER / "prompts.md": prompts(),
        FOLDER / "table-document.schema.json": schema.render(),
    }


def command_line() -> str:
    """Return the page of the commands, from their help, of the exit codes and of the progress events."""
    group = typer.main.get_command(main.app)
    commands = typer.cli.get_docs_for_click(obj=group, ctx=typer.Context(group), name="tabletune")
    codes = "\n".join(f"| {code} | `{code.name}` | {code.when} |" for code in ExitCode)
    phases = ", ".join(f"`{phase}`" for phase in progress.PHASES)
    return f"""<!-- Made by tools/generate_reference.py; change the commands, not this page. -->

{commands.strip()}

## Exit codes

Messages go to standard error, data to standard output.

| code | name | when |
| --- | --- | --- |
{codes}

## Progress of `profile`

Where standard error is no terminal, progress is one JSON object per line on it. A line that is no object is
text for a person, such as the error that ends the command.

| `event` | other fields | when |
| --- | --- | --- |
| `phase` | `phase`, `done`, `total` | A phase begins; `done` is what an earlier run measured of it. |
| `progress` | those, `remainingSeconds`, and in a cell `batchSize`, `draftLength` | About once a second. |
| `note` | `message` | Something worth knowing. |
| `warning` | `message` | Something that may surprise: [what each means](../guide/profiling.md#warnings). |

The phases are {phases}, in this order.
One that has nothing to do may be missing. `done` and `total` count the phase's own units, and
`remainingSeconds` is what is left of the phase at its pace so far, or null.

Where standard output is no terminal, a finished profile puts one more object there, with `event` `finished`:
`output` (the document's path), `table`, `recommendation`, `excluded` (how many cells have no time),
`secondsStart` (engine starts), `secondsSweep` (the step-time sweep), `secondsCounted` (of these, in steps
that count) and `verified` (with `--verify`: per cell `batchSize`, `draftLength`, `predicted` and `measured`
kept tokens per second, and the measured one's relative `standardError`).

## Serving with a rendered file

- vLLM reads `--config FILE`; it takes `--config=FILE` too, and ignores it.
- An argument on vLLM's command line wins over the file. Leave out there what the file sets, above all
  `--speculative-config`.
- A ConfigMap above 256 KiB needs `kubectl apply --server-side`, since plain `kubectl apply` copies it into an
  annotation.
"""


def document() -> str:
    """Return the page of the table document's fields."""
    return f"""<!-- Made by tools/generate_reference.py; change tabletune/documents.py, not this page. -->

# The table document

One JSON object, which `tabletune profile` writes and all other commands read. Names are in camelCase. Unknown
fields are refused, and so are NaN and infinity. Equal content is equal bytes: keys are sorted, and a document
that is read and written again does not change.

A [JSON Schema](table-document.schema.json) says the same for programs. Both say less than what is checked:
that ranges follow each other, that every grid has a row per draft length and a column per batch size, that
each cell has a time or a reason. `tabletune validate` has the last word.

{describing.sections(schemas.table_schema(), "Document")}
"""


def prompts() -> str:
    """Return the page of the format of prompts files."""
    return f"""<!-- Made by tools/generate_reference.py; change the models in prompts.py, not this page. -->

# The prompts file

What `tabletune profile --prompts FILE` reads: UTF-8 text, one JSON object on each line (JSONL), blank lines
skipped. The first fault ends the command with exit code 2 and names line and field. Unknown fields are a
fault. Exactly one of `messages`, `prompt` and `prompt_token_ids` is given.

```json
{{"messages": [{{"role": "user", "content": "Write a haiku about queues."}}], "category": "chat"}}
{{"prompt": "def fibonacci(n):"}}
{{"prompt_token_ids": [151644, 872, 198]}}
```

{describing.sections(Prompt.model_json_schema(), "Prompt")}
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
