"""``tabletune profile``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from tabletune import documents
from tabletune.documents import Control, Document
from tabletune_profiler import (
    consoles,
    files,
    pages,
    partials,
    planning,
    profiling,
    progress,
    prompts,
    verifying,
)
from tabletune_profiler.commands import parameters
from tabletune_profiler.commands.parameters import ServeArguments
from tabletune_profiler.commands.table import change_control
from tabletune_profiler.exit_codes import InputError, NotServableError, OutputError, StoppedError
from tabletune_profiler.planning import Options

PICTURES = (".png", ".svg")
MIN_FREE_BYTES = 16_000_000
"""Free space wanted beside the output before anything starts: partial file, engine log and document."""


def profile(
    arguments: ServeArguments,
    output: Annotated[
        Path, typer.Option(parser=parameters.output, metavar="PATH", help="Document to write.")
    ] = Path("table.json"),
    plot: Annotated[bool, typer.Option(help="Also draw the document, as PNG and SVG beside it.")] = False,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Batch sizes to time, as in `1,2,4,8`. Unset: powers and half-powers of two up to"
            " max_num_seqs, and some without a full CUDA graph.",
            show_default=False,
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Draft lengths to time, as in `0,1,3`. Unset: 0 to num_speculative_tokens.",
            show_default=False,
        ),
    ] = None,
    context_length: Annotated[
        int | None,
        typer.Option(
            min=planning.LEAST_CONTEXT,
            help="Tokens of context per request around which steps are timed. Unset: what your requests have"
            " on average while they decode, `--prompt-tokens` and half of `--output-tokens`, or less where"
            " that does not fit into the model's length.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=4, help="Steps that count, per cell.")] = Options.steps,
    repeats: Annotated[
        int, typer.Option(min=0, help="Most times that a cell with a wide spread is timed again.")
    ] = Options.repeats,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="JSONL file of your own prompts for the acceptance run. Unset: the bundled 160.",
            show_default=False,
        ),
    ] = None,
    acceptance_tokens: Annotated[
        int, typer.Option(min=1, help="Most output tokens per prompt of the acceptance run.")
    ] = Options.acceptance_tokens,
    mixed: Annotated[bool, typer.Option(help="Also time steps that share a prompt.")] = True,
    prompt_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Your usual prompt length, for the context, the table and the engine advice."
        ),
    ] = Options.prompt_tokens,
    output_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Your usual output length, for the context, the table and the engine advice."
        ),
    ] = Options.output_tokens,
    tie_tolerance: Annotated[
        float | None, typer.Option(help="Keep the neighbour's length where another gains less; 0.01 is 1%.")
    ] = None,
    narrow_range: Annotated[
        float | None, typer.Option(help="Merge ranges narrower than this share of their first batch size.")
    ] = None,
    merge_tolerance: Annotated[
        float | None, typer.Option(help="Let a range extend while it loses less than this.")
    ] = None,
    time_budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds for the step-time sweep; cells that do not fit are left out, with that reason.",
            show_default=False,
        ),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for the engine to start.")
    ] = profiling.Request.start_timeout,
    answer_timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds without a sign of life after which an engine counts as hung."),
    ] = profiling.Request.answer_timeout,
    verify: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            help="Then serve each constant length at each batch size, for so many seconds at one request and"
            " fewer at more, and compare with the predictions.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure the table of a model, drafter and machine with vLLM itself.

    Starts vLLM once, with the arguments that you serve with, times decode steps at each batch size and
    draft length, counts which guesses the model accepts, and writes one document with the measurements,
    the table and what to make of it.

    Stopped by Ctrl-C or SIGTERM it keeps what it has in `OUTPUT.partial`; the same command goes on from
    there. The engine's own log is `OUTPUT.engine.log`. Progress goes to standard error: bars on a
    terminal, one JSON object per line elsewhere.

    Examples:

    ```
    tabletune profile -- Qwen/Qwen3-8B --max-num-seqs 256 --speculative-config \\
      '{"method": "eagle3", "model": "AngelSlim/Qwen3-8B_eagle3", "num_speculative_tokens": 5}'
    tabletune profile --lengths 0,1,3 --prompts my.jsonl --plot -- ./model --speculative-config \\
      '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
    ```
    """
    consoles.outlive_pipes()
    if prompts_file is not None:
        files.keep_input(prompts_file, output)
    if plot and output.suffix in PICTURES:
        raise InputError(f"--plot would draw over the document. Name it otherwise than *{output.suffix}.")
    request = profiling.Request(
        arguments=tuple(arguments),
        prompts=prompts.bundled() if prompts_file is None else prompts.read(prompts_file),
        options=Options(
            batch_sizes=None if batch_sizes is None else _batch_sizes(batch_sizes),
            draft_lengths=None if lengths is None else parameters.lengths(lengths) or None,
            context_length=context_length,
            steps=steps,
            repeats=repeats,
            acceptance_tokens=acceptance_tokens,
            mixed=mixed,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        ),
        control=change_control(
            Control(),
            {
                "tieTolerance": tie_tolerance,
                "narrowRange": narrow_range,
                "mergeTolerance": merge_tolerance,
            },
        ),
        output=output,
        time_budget=time_budget,
        start_timeout=start_timeout,
        answer_timeout=answer_timeout,
        verify_seconds=verify,
    )
    with _alone(output), _signals_stop(), progress.reporter() as reporter:
        try:
            outcome = profiling.take(request, reporter, lambda: datetime.now(UTC))
            files.write(output, documents.dump(outcome.document))
            if plot:
                for picture in _plot(output, outcome.document):
                    reporter.note(f"Drawn: {picture}")
            # Last, so that a stop until then leaves what the same command goes on from.
            partials.path_of(output).unlink(missing_ok=True)
        except KeyboardInterrupt:
            kept = partials.path_of(output)
            raise StoppedError(
                f"Stopped. What was measured is in {kept}; the same command goes on from it."
                if kept.exists()
                else "Stopped before anything was measured."
            ) from None
        except (InputError, NotServableError):
            _remove_empty(profiling.log_path(output))
            raise
        reporter.note(f"Written: {output}")
    if sys.stdout.isatty():
        consoles.show(*_verification(outcome))
    else:
        consoles.write((json.dumps(_summary(output, outcome)) + "\n").encode())


def _remove_empty(log: Path) -> None:
    """Leave no log where vLLM refused before it said anything."""
    with contextlib.suppress(OSError):
        if log.stat().st_size == 0:
            log.unlink()


def _summary(output: Path, outcome: profiling.Outcome) -> dict[str, Any]:
    """Return what a program wants to know of a finished profile."""
    document = outcome.document
    return {
        "event": "finished",
        "output": str(output),
        "table": [list(entry) for entry in document.table],
        "recommendation": document.recommendation.model_dump(mode="json", by_alias=True),
        "excluded": len(document.profile.excluded),
        "secondsStart": round(outcome.seconds_start, 1),
        "secondsSweep": round(outcome.seconds_sweep, 1),
        "secondsCounted": round(outcome.seconds_counted, 1),
        "verified": [
            {
                "batchSize": cell.batch_size,
                "draftLength": cell.draft_length,
                "predicted": round(cell.predicted, 2),
                "measured": round(cell.measured, 2),
                "standardError": round(cell.standard_error, 4),
            }
            for cell in outcome.verified
        ],
    }


def _verification(outcome: profiling.Outcome) -> Iterator[RenderableType]:
    """Yield what came of ``--verify``, for a person."""
    if not outcome.verified:
        return
    grid = pages.grid("batch size", "K", "predicted", "measured", "difference", "+/-")
    for cell in outcome.verified:
        grid.add_row(
            str(cell.batch_size),
            str(cell.draft_length),
            f"{cell.predicted:,.1f}",
            f"{cell.measured:,.1f}",
            pages.percent(cell.error),
            f"{cell.standard_error:.1%}",
        )
    yield pages.section("Kept tokens per second of constant lengths, predicted and measured", grid)
    losses = verifying.choices(outcome.document, outcome.verified)
    if losses:
        worst = max(losses, key=lambda choice: choice.loss)
        yield Text(
            f"By these measurements the table's length loses at most {worst.loss:.1%} against the best one"
            f" (at {worst.batch_size} requests: K={worst.table_length}, best K={worst.best_length})."
        )


def _batch_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise InputError(f"--batch-sizes {text}: expected batch sizes of 1 or more, as in 1,2,4,8.")
    return sizes


@contextlib.contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Make sure before hours of GPU time that the output can be written, and that nobody else does so."""
    if output == files.STANDARD:
        raise InputError("--output -: a profile needs a file, since its partial file lies beside it.")
    folder = output.parent
    if not folder.is_dir():
        raise OutputError(f"{folder} is no folder. Create it, or choose another --output.")
    if output.is_dir():
        raise OutputError(f"{output} is a folder. Name a file in it with --output.")
    try:
        target = files.resolve(output)
    except OSError as error:
        raise OutputError(f"{output} leads nowhere: {error.strerror}. Choose another --output.") from error
    if not target.parent.is_dir():
        raise OutputError(
            f"{output} leads to {target}, whose folder does not exist. Choose another --output."
        )
    if target.exists() and not target.is_file():
        raise OutputError(f"{output} is no regular file. Name a file with --output.")
    lock = output.with_name(f".{output.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(f"Nothing can be written beside {output}: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)  # and leave the file: it is the other's
        raise InputError(
            f"Another tabletune profile is writing {output}. Wait for it, or choose another."
        ) from error
    try:
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < MIN_FREE_BYTES:
            raise OutputError(
                f"{folder} has {free.f_bavail * free.f_frsize} bytes free, {MIN_FREE_BYTES} are wanted before"
                " starting."
            )
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def _signals_stop() -> Iterator[None]:
    """Have SIGTERM (a pod being deleted) stop the profile as Ctrl-C does."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _plot(output: Path, document: Document) -> Iterator[Path]:
    """Draw ``document`` beside ``output``, and yield each picture's path."""
    from tabletune_profiler import plotting

    drawn = [draw(document) for draw in (plotting.png, plotting.svg)]
    for suffix, picture in zip(PICTURES, drawn, strict=True):
        path = output.with_suffix(suffix)
        files.write(path, picture)
        yield path
