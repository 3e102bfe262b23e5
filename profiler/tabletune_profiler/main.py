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
from typer._click.exceptions import NoSuchOption
from typer.core import TyperCommand, TyperGroup

from tabletune_profiler import consoles
from tabletune_profiler.commands.check import check
from tabletune_profiler.commands.diff import diff
from tabletune_profiler.commands.plot import plot
from tabletune_profiler.commands.profile import profile
from tabletune_profiler.commands.render import render
from tabletune_profiler.commands.report import report
from tabletune_profiler.commands.schema import schema
from tabletune_profiler.commands.show import show
from tabletune_profiler.commands.table import table
from tabletune_profiler.commands.validate import validate
from tabletune_profiler.exit_codes import CommandError, ExitCode

COMMANDS = (profile, check, table, show, plot, diff, render, validate, schema, report)
"""In the order of the help. A command is a function: its name, parameters and docstring are the help."""
ENGINE_COMMANDS = ("profile", "check")
"""Those that take vLLM's arguments."""


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            if self.name in ENGINE_COMMANDS:
                error.message += ". Put the model and vLLM's arguments after `--`."
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with consoles.output_errors():
            super().format_help(ctx, formatter)


class _Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        with consoles.output_errors():
            super().format_help(ctx, formatter)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except CommandError as error:
            consoles.fail(str(error))
            raise SystemExit(int(error.exit_code)) from error


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
    app.command(cls=_Command)(_command)


def run() -> None:
    """Run the command line and exit; the entry point of the ``tabletune`` script."""
    consoles.prepare()
    try:
        app()
    except Exception:
        traceback.print_exc()
        consoles.fail("This is a fault in TableTune. Please report it with the lines above.")
        sys.exit(ExitCode.INTERNAL)
