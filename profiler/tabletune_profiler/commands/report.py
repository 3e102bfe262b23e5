"""``tabletune report``: what the operator's Job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from tabletune_profiler import profiling, reporting
from tabletune_profiler.exit_codes import ExitCode, InputError

LAST_LINES = 20
"""Lines of the engine's log that are repeated at the end of a failure, for the pod's termination message."""
LOG_TAIL_BYTES = 8_000


def report(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="What to run: `tabletune profile …`.", show_default=False),
    ],
    config_map: Annotated[
        str, typer.Option(help="ConfigMap of the pod's namespace to report to.", show_default=False)
    ],
    document: Annotated[Path, typer.Option(help="Document that the command writes.", show_default=False)],
) -> None:
    """Run a profile in a Kubernetes Job and report it to the operator.

    Puts progress, and in the end the document, into a ConfigMap that the pod's service account may patch.
    Ends with the exit code of the command, so that the Job knows whether trying again is of use. The
    operator makes Jobs that run this; there is no need to run it by hand.

    Example:

    ```
    tabletune report --config-map qwen3-8b-4f1c2d --document /tmp/table.json -- \\
      tabletune profile --output /tmp/table.json -- Qwen/Qwen3-8B
    ```
    """
    reporter = reporting.Reporter(reporting.Cluster(config_map).patch, _say)
    code = _run(command, reporter)
    if code == ExitCode.OK:
        reporter.document(document)
        _say(f"Reported to ConfigMap {config_map}.")
        return
    _repeat_log(document)
    raise typer.Exit(code)


def _run(command: list[str], reporter: reporting.Reporter) -> int:
    """Run ``command``, its standard error passed on and read on the way; return its exit code."""
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise InputError(f"{command[0]} cannot be run: {error.strerror}.") from error

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # The kubelet ends a pod by SIGTERM to this process; the profiler then keeps what it has measured.
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with process:
            for line in process.stderr or ():
                sys.stderr.write(line)
                sys.stderr.flush()
                reporter.line(line)
        code = process.returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _repeat_log(document: Path) -> None:
    """Print the end of the engine's log: of a pod that failed, only the end of its output is kept."""
    try:
        with profiling.log_path(document).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return
    errors = [line for line in lines if "ERROR" in line or "Error" in line] or lines
    for line in errors[-LAST_LINES:]:
        _say(line)


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
