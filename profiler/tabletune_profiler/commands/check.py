"""``tabletune check``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tabletune_plugin.engine.facts import Obstacle, Severity
from tabletune_profiler import checking, consoles, profiling, supervising
from tabletune_profiler.commands import parameters
from tabletune_profiler.commands.parameters import JsonOption, ServeArguments
from tabletune_profiler.exit_codes import ExitCode
from tabletune_profiler.messages import Configured


def check(
    arguments: ServeArguments,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Draft lengths to check for, as in `0,1,3`. Unset: 0 to num_speculative_tokens.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether an engine can serve a table, without starting it.

    Reads the arguments as vLLM does and says what stands in a table's way, why, and what to change:
    version, runner, data parallelism, method, and the CUDA graphs that batch sizes would not find. Needs
    no weights in memory and takes some ten seconds. Ends with 3 where a table cannot be served.

    Example:

    ```
    tabletune check -- ./model --max-num-seqs 256 --speculative-config \\
      '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
    ```
    """
    consoles.outlive_pipes()
    configured = _configure(tuple(arguments), parameters.lengths(lengths) or None if lengths else None)
    found = checking.obstacles(configured)
    refused = any(obstacle.severity is Severity.REFUSED for obstacle in found)
    if as_json:
        consoles.write((json.dumps(_report(configured, found), indent=1) + "\n").encode())
    else:
        consoles.show(*_lines(configured, found))
    if refused:
        raise typer.Exit(ExitCode.NOT_SERVABLE)


def _configure(arguments: tuple[str, ...], lengths: tuple[int, ...] | None) -> Configured:
    with tempfile.TemporaryDirectory(prefix="tabletune-check-") as folder:
        log = Path(folder) / "engine.log"
        with supervising.EngineProcess(log) as process:
            return profiling.configure(process, arguments, lengths)


def _report(configured: Configured, found: tuple[Obstacle, ...]) -> dict[str, Any]:
    return {
        "servable": all(obstacle.severity is not Severity.REFUSED for obstacle in found),
        "fingerprint": configured.fingerprint.model_dump(mode="json", by_alias=True),
        "draftLengths": list(configured.draft_lengths),
        "obstacles": [vars(obstacle) for obstacle in found],
    }


def _lines(configured: Configured, found: tuple[Obstacle, ...]) -> list[Text]:
    fingerprint = configured.fingerprint
    lines = [
        Text(
            f"{consoles.plain(fingerprint.model)} with {fingerprint.drafter_method}, draft lengths"
            f" {', '.join(map(str, configured.draft_lengths))}, up to {fingerprint.max_num_seqs} requests"
        ),
        Text(
            f"vLLM {fingerprint.vllm}, {fingerprint.runner} runner on {fingerprint.gpu},"
            f" CUDA graphs {fingerprint.cudagraph_mode}",
            style="dim",
        ),
    ]
    for obstacle in found:
        style = "bold red" if obstacle.severity is Severity.REFUSED else "yellow"
        lines += [
            Text.assemble((f"{obstacle.severity}: ", style), (obstacle.name, "bold")),
            Text(f"  {consoles.plain(obstacle.reason)}"),
            Text(f"  {consoles.plain(obstacle.remedy)}"),
        ]
    refused = any(obstacle.severity is Severity.REFUSED for obstacle in found)
    lines.append(
        Text("A table cannot be served.", style="bold red")
        if refused
        else Text("A table can be served.", style="bold green")
    )
    return lines
