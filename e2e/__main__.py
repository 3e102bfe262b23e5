"""``python -m e2e``: the cluster, the images and the scenarios from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from e2e import clusters, commands, settings
from e2e.images import bases, building
from e2e.local import daemons, locks, machines, programs

SCENARIOS = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "e2e/scenarios"]
"""What runs them. `e2e` is a package beside `tests`, whose conftest forbids what a cluster needs."""
UNFIT = 3
"""Exit code where this machine cannot host a cluster or get what one needs: no fault of what is tested."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
_ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _cluster() -> clusters.Provider:
    """Return the cluster, which no other command works on until this one ends."""
    chosen = settings.read()
    if chosen.cluster == "local":
        locks.hold(_tell)
    return _found()


def _found() -> clusters.Provider:
    """Return the cluster to look at."""
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
    # Here, since matplotlib takes a second, which every other command would wait.
    from e2e import demonstration

    cluster = _cluster()
    cluster.up()
    cluster.build()
    try:
        demonstration.run(settings.read(), cluster)
    except AssertionError as error:
        sys.exit(str(error))


@app.command()
def picture(record: Path, target: Path) -> None:
    """Draw a demonstration's picture again from its timeline.json; TARGET is without an ending."""
    from e2e import pictures

    for path in pictures.draw(json.loads(record.read_text()), target):
        typer.echo(path)


@app.command()
def down() -> None:
    """End the cluster and leave nothing behind but what takes long to make."""
    _cluster().down()


@app.command()
def status() -> None:
    """Say whether the cluster runs; ends with 1 where it does not."""
    is_up = _found().is_up()
    typer.echo("up" if is_up else "down")
    raise typer.Exit(0 if is_up else 1)


@app.command()
def possible() -> None:
    """Say why this machine cannot host a cluster; ends with 3 where it cannot."""
    reason = machines.why_not(settings.read())
    typer.echo(reason or "possible")
    raise typer.Exit(UNFIT if reason else 0)


@app.command()
def prepare() -> None:
    """Get what a cluster needs of this machine, Debian's packages; ends with 3 where that cannot be."""
    chosen = settings.read()
    locks.hold(_tell)
    machines.prepare(chosen)
    bases.system(chosen, _tell)


@app.command()
def images() -> None:
    """Build the images alone."""
    chosen = settings.read()
    locks.hold(_tell)
    machines.prepare(chosen)
    for archive in building.build(chosen, _tell):
        typer.echo(archive)


@app.command()
def ci() -> None:
    """Run the quick scenarios on a cluster of their own: nothing of one is left before it, nor after it."""
    cluster = _cluster()
    cluster.down()
    try:
        cluster.up()
        cluster.build()
        code = subprocess.run([*SCENARIOS, "-m", "ci"], cwd=settings.REPOSITORY, check=False).returncode
    finally:
        cluster.down()
    raise typer.Exit(code)


@app.command(context_settings=_ANY)
def run(context: typer.Context) -> None:
    """Run the scenarios on the cluster that is up; pytest gets what follows, as `-k quota`."""
    _cluster()
    os.chdir(settings.REPOSITORY)
    os.execv(sys.executable, [*SCENARIOS, *context.args])  # noqa: S606


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
    command = [*_found().inside(), str(programs.build(name)[name]), *arguments]
    os.execvp(command[0], command)  # noqa: S606


def main() -> None:
    """Run the command line; failures are told without a traceback, and a signal lets it clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        app()
    except machines.MachineError as error:
        typer.echo(error)
        sys.exit(UNFIT)
    except (commands.CommandError, daemons.DaemonError, settings.SettingsError) as error:
        sys.exit(str(error))


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
