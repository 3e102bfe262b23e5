"""Turns a table document into what vLLM and Kubernetes read.

The command line (``tabletune render``) and the operator call it, so that a pod configured by hand and
one configured by the operator get the same bytes. Without one place for this, every reader would put
the speculative config together itself, and serve something else than what was profiled.

What vLLM reads, and how (``vllm/utils/argparse_utils.py``, the same in 0.32 and 0.33):

* a ``--config`` file is a mapping from an argument's name to its value; a list becomes several values,
  a mapping becomes JSON; an empty file is an error, an empty mapping is not;
* arguments on the command line win over the file, so one that is given in both places counts from the
  command line. Only ``--config FILE`` is read; ``--config=FILE`` is accepted and ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import JsonValue

from tabletune import documents
from tabletune.documents import TABLE_KEY, Document, RecommendationKind

LENGTH_KEY = "num_speculative_tokens"
"""The key of vLLM's speculative config for the longest draft."""
SYNTHETIC_RATES_KEY = "synthetic_acceptance_rates"
"""vLLM wants one rate per draft position, so that the list follows the length."""

DOCUMENT_FILE = "table.json"
"""The document; what the plugin follows."""
SPECULATIVE_CONFIG_FILE = "speculative-config.json"
"""Value of ``--speculative-config`` for pods without the plugin; ``null`` where speculation is off."""
VLLM_ARGS_FILE = "vllm-args.yaml"
"""File for ``--config``: the speculative config and the advised engine settings."""
FILES = (DOCUMENT_FILE, SPECULATIVE_CONFIG_FILE, VLLM_ARGS_FILE)
"""Keys of the ConfigMap."""

GENERATION_ANNOTATION = "tabletune.dev/generation"
"""Generation of the document in the ConfigMap."""

MAX_CONFIG_MAP_BYTES = 1024 * 1024
"""What the API server takes as the values of one ConfigMap, in all (Kubernetes API, ConfigMap)."""

_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")


class RenderingError(ValueError):
    """The document, or what was asked for beside it, cannot be put into the wanted form."""


def speculative_config(
    document: Document, base: Mapping[str, JsonValue] | None = None
) -> dict[str, JsonValue] | None:
    """Return the complete value for vLLM's ``--speculative-config``; ``None`` where speculation is off.

    ``base`` is the speculative config without a table (method, model, prompt_lookup_max, ...); unset, it
    is the one that the document was profiled with.

    * Recommendation ``table``: the table, and as ``num_speculative_tokens`` its longest length.
    * ``fixed``: no table, since a table alone costs something on some engines; that length.
    * ``off``, or no length above 0: ``None``, since vLLM takes no length 0 without a table.

    Raises :class:`RenderingError` where neither ``base`` nor the document says what the drafter is,
    and where ``base`` names another method than the one that was profiled.
    """
    length = _longest_length(document)
    if length == 0:
        return None
    config = dict(document.speculative_config if base is None else base)
    if not config.keys() & {"method", "model"}:
        raise RenderingError(
            "The drafter is not known: the speculative config names neither method nor model, and a document"
            f" from {document.fingerprint.drafter_method} drafting needs one. Pass the value of"
            " --speculative-config that was profiled."
        )
    _refuse_other_method(document, config)
    config.pop(TABLE_KEY, None)
    config[LENGTH_KEY] = length
    if isinstance(rates := config.get(SYNTHETIC_RATES_KEY), list):
        config[SYNTHETIC_RATES_KEY] = rates[:length]
    if document.recommendation.kind is RecommendationKind.TABLE:
        config[TABLE_KEY] = [list(entry) for entry in document.table]
    return config


def _refuse_other_method(document: Document, config: Mapping[str, JsonValue]) -> None:
    """A table made for one drafter says nothing about another."""
    # vLLM may put another name in force than the one it was given, so both are the profiled one.
    profiled = document.fingerprint.drafter_method
    method = config.get("method")
    if (
        method is not None
        and profiled
        and method not in (profiled, document.speculative_config.get("method"))
    ):
        raise RenderingError(
            f"The speculative config has the method {str(method)[:80]}, and the table was profiled with"
            f" {profiled}. Give that one, or profile the other."
        )


def _longest_length(document: Document) -> int:
    """The longest draft in use; 0 where none is."""
    recommendation = document.recommendation
    match recommendation.kind:
        case RecommendationKind.TABLE:
            return max(draft_length for _, _, draft_length in document.table)
        case RecommendationKind.FIXED:
            if recommendation.draft_length is None:
                raise RenderingError(
                    "recommendation.kind is fixed without recommendation.draftLength."
                    " Run `tabletune table` on the document to compute both again."
                )
            return recommendation.draft_length
        case RecommendationKind.OFF:
            return 0


def vllm_arguments(document: Document, base: Mapping[str, JsonValue] | None = None) -> dict[str, JsonValue]:
    """Return the arguments to add to ``vllm serve``, by their names without the dashes in front.

    Sizes have arguments of their own instead of a place in ``compilation-config``, because a pod's own
    ``--compilation-config`` replaces that of the file as a whole, and the sizes would go with it unseen.
    """
    arguments: dict[str, JsonValue] = {}
    if (config := speculative_config(document, base)) is not None:
        arguments["speculative-config"] = config
    advice = document.engine
    if advice.max_num_seqs is not None:
        arguments["max-num-seqs"] = advice.max_num_seqs
    # vLLM drops sizes above max_num_batched_tokens, and then refuses to start if the largest is not the
    # one that was announced (_set_cudagraph_sizes in vllm/config/vllm.py).
    limit = document.fingerprint.max_num_batched_tokens
    wanted, largest = advice.cudagraph_capture_sizes, advice.max_cudagraph_capture_size
    if not wanted and largest is None and document.recommendation.kind is RecommendationKind.TABLE:
        # vLLM derives its default sizes from the table that it starts with, and the profile started with
        # another; pinned, the batch sizes find the graphs that were measured.
        wanted = document.fingerprint.cudagraph_capture_sizes
    sizes = sorted({size for size in wanted if size <= limit})
    if sizes:
        arguments["cudagraph-capture-sizes"] = list(sizes)
        arguments["max-cudagraph-capture-size"] = sizes[-1]
    elif largest is not None:
        arguments["max-cudagraph-capture-size"] = largest
    if advice.cudagraph_mode is not None:
        arguments["compilation-config"] = {"cudagraph_mode": advice.cudagraph_mode}
    return arguments


def speculative_config_json(document: Document, base: Mapping[str, JsonValue] | None = None) -> str:
    """Return :func:`speculative_config` as one line of JSON; ``null``, which vLLM takes for none, if off."""
    return json.dumps(speculative_config(document, base), allow_nan=False) + "\n"


def vllm_args_yaml(document: Document, base: Mapping[str, JsonValue] | None = None) -> str:
    """Return :func:`vllm_arguments` as a file for vLLM's ``--config``.

    Plain ASCII, because vLLM opens it in the encoding of the pod's locale. The head says what it is
    with numbers only: the document's own texts may come from a stranger, and could end the comment.
    """
    served = {
        RecommendationKind.TABLE: f"the table for up to {document.max_batch_size} requests",
        RecommendationKind.FIXED: f"the fixed draft length {document.recommendation.draft_length}",
        RecommendationKind.OFF: "no speculation, which serves best on the profiled engine",
    }[document.recommendation.kind]
    head = f"# TableTune, generation {document.generation}: {served}.\n"
    return head + _yaml(vllm_arguments(document, base), ascii_only=True)


def config_map(
    document: Document,
    base: Mapping[str, JsonValue] | None = None,
    *,
    name: str,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the ConfigMap that pods mount: the document and both forms for vLLM.

    Raises :class:`RenderingError` for a name that Kubernetes does not take and for more than 1 MiB.
    """
    if not _SUBDOMAIN.match(name):
        raise RenderingError(
            f"The ConfigMap's name {name[:80]!r} is not a DNS subdomain: lower-case letters, digits, '-' and"
            " '.', at most 253, starting and ending with a letter or digit."
        )
    if namespace is not None and not _LABEL.match(namespace):
        raise RenderingError(
            f"The namespace {namespace[:80]!r} is not a DNS label: lower-case letters, digits and '-', at"
            " most 63, starting and ending with a letter or digit."
        )
    data = {
        DOCUMENT_FILE: documents.dump(document).decode(),
        SPECULATIVE_CONFIG_FILE: speculative_config_json(document, base),
        VLLM_ARGS_FILE: vllm_args_yaml(document, base),
    }
    size = sum(len(value.encode()) for value in data.values())
    if size > MAX_CONFIG_MAP_BYTES:
        parts = ", ".join(f"{key} {len(value.encode())}" for key, value in data.items())
        raise RenderingError(
            f"The ConfigMap would hold {size} bytes ({parts}), and Kubernetes takes {MAX_CONFIG_MAP_BYTES}."
            " Profile fewer batch sizes or lengths."
        )
    metadata: dict[str, Any] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    metadata["annotations"] = {GENERATION_ANNOTATION: str(document.generation)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def manifest(content: Mapping[str, Any]) -> str:
    """Return a Kubernetes object as YAML; texts of several lines stay readable, and so do their diffs."""
    return _yaml(content, ascii_only=False)


class _Dumper(yaml.SafeDumper):
    """YAML as a person would write it: a table's ranges one a line, plain lists in a row, texts as blocks."""


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    nested = any(isinstance(value, list | dict) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=not nested)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)


def _yaml(content: Mapping[str, Any], *, ascii_only: bool) -> str:
    text = yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=not ascii_only, width=100)
    return str(text)
