"""``python -m e2e``: the cluster, the images and the scenarios from the command line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from e2e import clusters, commands, demonstration, settings
from e2e.images import building
from e2e.local import daemons, packages, programs

ORDER = "abdce"
"""Scenarios, the ones that need least first."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
_ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _cluster() -> clusters.Provider:
    return clusters.provider(settings.read(), _tell)


@app.command()
def up() -> None:
    """Bring the cluster up with TableTune's images; what is there already is kept."""
    cluster = _cluster()
    cluster.up()
    cluster.build()
    _tell("The cluster is up. `python -m e2e kubectl get nodes` speaks to it.")


@app.command()
def demo() -> None:
    """Show the whole, from nothing to a table that servers follow and live traffic corrects."""
    cluster = _cluster()
    cluster.up()
    cluster.build()
    try:
        demonstration.run(settings.read(), cluster)
    except AssertionError as error:
        sys.exit(str(error))


@app.command()
def down() -> None:
    """End the cluster and leave nothing behind but what takes long to make."""
    _cluster().down()


@app.command()
def status() -> None:
    """Say whether the cluster runs; ends with 1 where it does not."""
    is_up = _cluster().is_up()
    typer.echo("up" if is_up else "down")
    raise typer.Exit(0 if is_up else 1)


@app.command()
def possible() -> None:
    """Say why this machine cannot run a cluster of its own; ends with 1 where it cannot."""
    reason = packages.why_not()
    typer.echo(reason or "possible")
    raise typer.Exit(1 if reason else 0)


@app.command()
def images() -> None:
    """Build the images alone."""
    for archive in building.build(settings.read(), _tell):
        typer.echo(archive)


@app.command()
def run(
    scenarios: Annotated[
        list[str] | None, typer.Argument(help="Letters of scenarios, in order. Unset: all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only what CI runs.")] = False,
) -> None:
    """Run the scenarios on the cluster that is up."""
    folder = settings.REPOSITORY / "e2e" / "scenarios"
    files = []
    for letter in scenarios or ORDER:
        found = sorted(folder.glob(f"test_{letter}_*.py"))
        if not found:
            raise typer.BadParameter(
                f"There is no scenario {letter!r}; there are {', '.join(sorted(ORDER))}."
            )
        files += [str(path) for path in found]
    chosen = ["-m", "ci"] if quick else []
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", *chosen, *files]
    os.chdir(settings.REPOSITORY)
    os.execv(command[0], command)  # noqa: S606


@app.command()
def logs(lines: Annotated[int, typer.Option(help="Lines of each.")] = 30) -> None:
    """Show the ends of the logs of the cluster's programs."""
    for log in sorted(settings.read().logs.glob("*.log")):
        typer.echo(f"== {log}")
        typer.echo("\n".join(log.read_text(errors="replace").splitlines()[-lines:]))


@app.command(context_settings=_ANY)
def kubectl(context: typer.Context) -> None:
    """Run kubectl against the cluster."""
    _become("kubectl", "--kubeconfig", str(settings.read().kubeconfig), *context.args)


@app.command(context_settings=_ANY)
def helm(context: typer.Context) -> None:
    """Run Helm against the cluster."""
    _become("helm", "--kubeconfig", str(settings.read().kubeconfig), *context.args)


def _become(name: str, *arguments: str) -> NoReturn:
    command = [*_cluster().inside(), str(programs.build(name)[name]), *arguments]
    os.execvp(command[0], command)  # noqa: S606


def main() -> None:
    """Run the command line; failures are told without a traceback."""
    try:
        app()
    except (
        commands.CommandError,
        daemons.DaemonError,
        packages.MachineError,
        settings.SettingsError,
    ) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
