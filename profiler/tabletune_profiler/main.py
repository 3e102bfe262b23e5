"""The ``tabletune`` command.

Registers the commands, and turns their errors into a message on standard error and an exit code.
Importing it must stay cheap, since every ``--help`` and every Job pays for it: a command that needs
vLLM or matplotlib imports it when it runs.
"""

from __future__ import annotations

import sys
import traceback
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tabletune_profiler import consoles
from tabletune_profiler.commands.check import check
from tabletune_profiler.commands.diff import diff
from tabletune_profiler.commands.plot import plot
from tabletune_profiler.commands.profile import profile
from tabletune_profiler.commands.render import render
from tabletune_profiler.commands.schema import schema
from tabletune_profiler.commands.show import show
from tabletune_profiler.commands.table import table
from tabletune_profiler.commands.validate import validate
from tabletune_profiler.exit_codes import CommandError, ExitCode

COMMANDS = (profile, check, table, show, plot, diff, render, validate, schema)
"""In the order of the help. A command is a function: its name, parameters and docstring are the help."""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            consoles.fail(str(error))
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(
    name="tabletune",
    cls=_Group,
    help="Measures the draft-length table of a vLLM server that decodes speculatively, and shows, compares"
    " and renders it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        consoles.write(f"tabletune {metadata.version('tabletune')}\n".encode())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for _command in COMMANDS:
    app.command()(_command)


def run() -> None:
    """Run the command line and exit; the entry point of the ``tabletune`` script."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        consoles.fail("This is a fault in TableTune. Please report it with the lines above.")
        sys.exit(ExitCode.INTERNAL)
