"""``tabletune render``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from tabletune import rendering
from tabletune.documents import Document, RecommendationKind
from tabletune.rendering import RenderingError
from tabletune_profiler import consoles, files
from tabletune_profiler.commands import parameters
from tabletune_profiler.commands.parameters import DocumentArgument
from tabletune_profiler.exit_codes import ExitCode, InputError


class Form(StrEnum):
    """What a document can be rendered to."""

    SPECULATIVE_CONFIG = "speculative-config"
    VLLM_ARGS = "vllm-args"
    CONFIG_MAP = "configmap"


FILE_NAMES = {
    Form.SPECULATIVE_CONFIG: rendering.SPECULATIVE_CONFIG_FILE,
    Form.VLLM_ARGS: rendering.VLLM_ARGS_FILE,
    Form.CONFIG_MAP: "configmap.yaml",
}
"""The file that a folder given to --output or --check stands for."""

DEFAULT_NAME = "draft-table"
LABELS = {"app.kubernetes.io/managed-by": "tabletune"}


def render(
    source: DocumentArgument,
    form: Annotated[
        Form,
        typer.Option(
            "--to",
            help="`speculative-config`: the value of vLLM's `--speculative-config`. `vllm-args`: a file for"
            " vLLM's `--config`, with the engine settings advised. `configmap`: a manifest of both and the"
            " document.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the ConfigMap.", show_default=DEFAULT_NAME)
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the ConfigMap; unset: that of whoever applies it.")
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Speculative config to put the table into; unset: the one that was profiled.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            parser=parameters.output,
            metavar="PATH",
            help="File, or folder for a file of the usual name; `-` is standard output.",
        ),
    ] = files.STANDARD,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE-OR-DIR",
            help="Write nothing; compare with this file and end with 1 and a diff where it differs.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Put a table into vLLM's or Kubernetes' form.

    The files are complete: they hold the speculative config that was profiled, with the table. In a pull
    request, `--check` says whether a rendered file still belongs to its document.

    Examples:

    ```
    tabletune render table.json --to vllm-args --output vllm-args.yaml
    vllm serve MODEL --config vllm-args.yaml

    tabletune render table.json --to configmap --name qwen3-h200 | kubectl apply -f -
    tabletune render table.json --to configmap --name qwen3-h200 --check deploy/
    ```
    """
    if check is not None and output != files.STANDARD:
        raise InputError("--check writes nothing, so --output cannot be given with it. Give one of them.")
    if form is not Form.CONFIG_MAP and not (name is None and namespace is None):
        raise InputError(f"--name and --namespace are a ConfigMap's: give them with --to {Form.CONFIG_MAP}.")
    files.keep_input(source, _file(output, form))
    document = files.read_document(source)
    base = parameters.speculative_config(speculative_config)
    try:
        text = render_text(document, form, base, DEFAULT_NAME if name is None else name, namespace)
    except RenderingError as error:
        raise InputError(f"{files.name(source)}: {error}") from error
    if document.recommendation.kind is RecommendationKind.OFF:
        consoles.warn(
            "Speculation off serves best on the profiled engine, so there is no speculative config."
        )
    _warn_of_another_length(document, base)
    if check is None:
        files.write(_file(output, form), text.encode())
    else:
        compare(_file(check, form), text)


def _warn_of_another_length(document: Document, base: Mapping[str, JsonValue] | None) -> None:
    rendered = rendering.speculative_config(document, base)
    if base is None or rendered is None or rendering.LENGTH_KEY not in base:
        return
    given, used = base[rendering.LENGTH_KEY], rendered[rendering.LENGTH_KEY]
    if given != used:
        consoles.warn(f"{rendering.LENGTH_KEY} is {used}, the longest length in use, in place of {given}.")


def render_text(
    document: Document, form: Form, base: Mapping[str, JsonValue] | None, name: str, namespace: str | None
) -> str:
    """Return ``document`` in ``form``; raises :class:`RenderingError`."""
    match form:
        case Form.SPECULATIVE_CONFIG:
            return rendering.speculative_config_json(document, base)
        case Form.VLLM_ARGS:
            return rendering.vllm_args_yaml(document, base)
        case Form.CONFIG_MAP:
            return rendering.manifest(
                rendering.config_map(document, base, name=name, namespace=namespace, labels=LABELS)
            )


def compare(path: Path, expected: str) -> None:
    """Print how the file at ``path`` differs from ``expected``, and end with 1 where it does."""
    found = files.read(path, 2 * rendering.MAX_CONFIG_MAP_BYTES).decode("utf-8", "replace")
    difference = "".join(
        difflib.unified_diff(
            found.splitlines(keepends=True), expected.splitlines(keepends=True), str(path), "rendered"
        )
    )
    if found == expected:
        consoles.note(f"{path} is up to date.")
        return
    consoles.write(difference.encode("utf-8", "surrogateescape"))
    consoles.note(f"{path} differs from what the document renders to. Render it again to update it.")
    raise typer.Exit(ExitCode.DIFFERENT)


def _file(path: Path, form: Form) -> Path:
    return path / FILE_NAMES[form] if path.is_dir() else path
