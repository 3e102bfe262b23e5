"""Writes the reference pages that are made from the code, or says which of them are out of date.

`make generate` calls it, and a test calls :func:`pages` to compare: a reference that is written by hand
names options that no longer exist.

    python tools/generate_reference.py           # write
    python tools/generate_reference.py --check   # write nothing; end with 1 where a page differs
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import typer
import typer.cli

import describing
import generating
import plugin_examples
from tabletune import controlling, correcting, estimating, schemas, traffic
from tabletune.documents import Control
from tabletune_plugin import (
    controller,
    following,
    runtime,
    serving,
    settings,
    states,
    steering,
    tallying,
    telling,
)
from tabletune_plugin.engine import steps
from tabletune_plugin.settings import Settings
from tabletune_profiler import main, progress
from tabletune_profiler.commands import schema
from tabletune_profiler.exit_codes import ExitCode
from tabletune_profiler.prompts import Prompt

FOLDER = Path(__file__).parents[1] / "docs" / "reference"

CONSTANTS = {
    "Acceptance and when to explore": (estimating,),
    "Cost": (correcting,),
    "Steps that follow": (traffic,),
    "The loop": (controlling, controller, steps, tallying, steering),
    "Threads, HTTP and the log": (runtime, serving, telling),
}
"""Modules whose constants the plugin's page lists, by what they are about."""


def pages() -> dict[Path, str]:
    """Return the content of every generated page."""
    return {
        FOLDER / "cli.md": command_line(),
        FOLDER / "document.md": document(),
        FOLDER / "plugin.md": plugin(),
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
`remainingSeconds` is what is left of the phase at its pace so far, or null. Every event has `seconds`, those
since the command began: a log says where the time went.

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


def plugin() -> str:
    """Return the page of the plugin's environment variables, reasons, metrics and constants."""
    return f"""<!-- Made by tools/generate_reference.py; change tabletune_plugin, not this page. -->

# The plugin: settings, reasons, metrics

How to use them: [Serve with the plugin](../guide/serving.md),
[Operating the plugin](../operations/plugin.md).

## Environment variables

Read once, when the engine starts. A bad value is told in the log with what is right, and only that setting
falls back. Flags are `1` or `0`.

{_variables()}

### Fields of the document

Each field of the document's [`control`](document.md#control) section has a variable, which wins over the
document. A value is written as in JSON; words need no quotes, and lengths no brackets:
`TABLETUNE_MODE=adapt`, `TABLETUNE_ALLOWED_LENGTHS=0,1,3`, `TABLETUNE_PINNED=[[1,8,2]]`. Where the variable is
unset, the document's value holds; the default is that of a document which has none.

{_control_variables()}

## Paths

On the metrics port, for GET and HEAD.

| path | answers |
| --- | --- |
| `/metrics` | the metrics below, for Prometheus |
| `/healthz` | JSON with `healthy`, `active`, `reason`; status 503 for `ControllerFailed` alone, else 200 |
| `/debug/table` | JSON: the table in force and why ([how to read it](../operations/plugin.md#debugtable)) |

## Reasons

The label of `tabletune_active`, and `reason` in `/debug/table`.

{_reasons()}

## Results of a reload

The label of `tabletune_reloads_total`, and `lastReload` in `/debug/table`.

{_reload_results()}

## Metrics

A metric that has nothing to say is left out: there is no `tabletune_survival` before drafts were looked at,
and none at all in mode `follow`. `batch` is a range of batch sizes, `length` a draft length.

{_metrics()}

## Constants

What is no setting. They are documented in the code, beside what uses them.

{_constants()}
"""


def _variables() -> str:
    rows = []
    for field in describing.fields(Settings.model_json_schema()):
        if field.name != "control":
            rows.append(
                (f"`{settings.PREFIX}{field.name.upper()}`", field.type, field.default, field.meaning)
            )
    return describing.table(("variable", "type", "default", "meaning"), rows)


def _control_variables() -> str:
    fields = {field.name: field for field in describing.fields(Control.model_json_schema(by_alias=False))}
    rows = []
    for variable, name in settings.CONTROL_VARIABLES.items():
        field, alias = fields[name], Control.model_fields[name].alias or name
        rows.append((f"`{variable}`", f"`{alias}`", field.type, field.default, field.meaning))
    return describing.table(("variable", "field", "type", "default", "meaning"), rows)


def _reasons() -> str:
    rows = [(f"`{found.value}`", found.meaning) for found in describing.constants(states)]
    return describing.table(("reason", "meaning"), rows)


def _reload_results() -> str:
    not_taken = (states.DOCUMENT_UNUSABLE, states.FINGERPRINT_REFUSED)
    rows = [
        (f"`{found.value}`", found.meaning)
        for module in (following, states)
        for found in describing.constants(module)
        if isinstance(found.value, str) and (module is following or found.value in not_taken)
    ]
    return describing.table(("result", "meaning"), rows)


def _metrics() -> str:
    rows = []
    for family in plugin_examples.families():
        name = f"`{family.name}_total`" if family.type == "counter" else f"`{family.name}`"
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels)
        rows.append((name, family.type, labels, describing.prose(family.documentation)))
    return describing.table(("metric", "type", "labels", "meaning"), rows)


def _constants() -> str:
    return "\n\n".join(f"### {title}\n\n{_numbers(modules)}" for title, modules in CONSTANTS.items())


def _numbers(modules: tuple[ModuleType, ...]) -> str:
    rows = [
        (f"`{found.name}`", f"{found.value:,}", f"`{module.__name__}`", found.meaning)
        for module in modules
        for found in describing.constants(module)
        if isinstance(found.value, int | float)
    ]
    return describing.table(("constant", "value", "module", "meaning"), rows)


if __name__ == "__main__":
    generating.run(pages())
