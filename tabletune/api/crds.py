"""Makes the CustomResourceDefinition from the models.

``make generate`` writes it to ``crds/``, and a test compares. Kubernetes wants a *structural* schema (OpenAPI
3.0 with rules of its own): no references, no titles, no null as a type, no tuples, every object typed.
Written by hand it would drift from what the operator reads; made by pydantic alone it would be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tabletune.api import drafttables, names

DROPPED = frozenset({"title", "additionalProperties", "propertyNames", "$defs"})
"""Keywords that go. ``additionalProperties`` stays where it is a map's schema: see :func:`_convert`."""

COLUMNS = (
    ("Phase", "string", ".status.phase", "Pending, Profiling, Ready, Degraded, Failed or Paused"),
    ("Progress", "string", ".status.profile.progress", "How far the profile is"),
    ("Generation", "integer", ".status.generation", "Generation of the table in force"),
    ("Gain", "string", ".status.gain", "Predicted gain over speculation off"),
    ("Pods", "string", ".status.serving.ready", "Serving pods that follow the generation, of all"),
    ("Age", "date", ".metadata.creationTimestamp", "Time since it was created"),
)
"""Columns of ``kubectl get dt``."""
WIDE_COLUMNS = (
    ("ConfigMap", "string", ".status.configMap", "ConfigMap that serving pods mount"),
    ("Profile", "string", '.status.conditions[?(@.type=="Profiled")].reason', "How the profile stands"),
    ("Problem", "string", '.status.conditions[?(@.type=="Degraded")].reason', "What needs a person"),
)
"""Those of ``kubectl get dt -o wide`` beside them."""

HEAD = "# Made from tabletune/api/drafttables.py by `make generate`; change the models, not this file.\n"


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": list(names.SHORT_NAMES),
                "categories": ["all", "vllm"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in COLUMNS]
                    + [_column(*column, priority=1) for column in WIDE_COLUMNS],
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def manifest() -> str:
    """Return the definition as YAML, as it lies in ``crds/``."""
    return HEAD + str(yaml.safe_dump(definition(), sort_keys=False, allow_unicode=True, width=110))


def schema() -> dict[str, Any]:
    """Return the structural schema of a DraftTable."""
    return {
        "type": "object",
        "description": "The draft-length table of one node pool, model and drafter: measured by a Job, kept"
        " in a ConfigMap that vLLM pods mount, and corrected from live traffic.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{names.API_VERSION}."},
            "kind": {"type": "string", "description": f"{names.KIND}."},
            "metadata": {"type": "object"},
            "spec": structural(drafttables.Spec),
            "status": structural(drafttables.Status),
        },
        "x-kubernetes-validations": [
            drafttables.rule(
                f"self.metadata.name.size() <= {drafttables.MAX_NAME} && !self.metadata.name.contains('.')",
                f"metadata.name must be at most {drafttables.MAX_NAME} characters without dots: Jobs and"
                " labels are named after it",
            )
        ],
    }


def structural(model: type[drafttables.ApiModel]) -> dict[str, Any]:
    """Return the structural schema of ``model``, its description that of its docstring."""
    found = model.model_json_schema(by_alias=True, mode="validation")
    converted: dict[str, Any] = _convert(found, found.get("$defs", {}))
    return converted


def _column(name: str, kind: str, path: str, description: str, priority: int = 0) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": priority} if priority else {})


def _convert(node: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``node`` of pydantic's schema as a structural one."""
    node = _resolved(node, models)
    left: dict[str, Any] = {}
    for key, value in node.items():
        match key:
            case "properties":
                left[key] = {name: _convert(child, models) for name, child in value.items()}
            case "items":
                left[key] = _convert(value, models)
            case "additionalProperties" if isinstance(value, dict) and value:
                left[key] = _convert(value, models)
            case "const":
                left["enum"] = [value]
            case "description":
                left[key] = " ".join(str(value).split())
            case "default":
                if (default := _default(value, node)) is not None:
                    left[key] = default
            case _ if key not in DROPPED:
                left[key] = value
    first = [key for key in ("type", "description", "default", "required") if key in left]
    return {key: left[key] for key in [*first, *(key for key in left if key not in first)]}


def _default(value: Any, node: Mapping[str, Any]) -> Any:
    """Return the default to write; ``None`` for none.

    An object's fields have defaults of their own, which the server fills in only where there is an object.
    What is empty by default is left out, so that ``kubectl get -o yaml`` shows what somebody chose.
    """
    if isinstance(value, dict) and node.get("properties"):
        return {}
    return None if value in ({}, []) else value


def _resolved(node: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``node`` without references and without null, whose absence means the same in Kubernetes.

    What stands at the field (its description, its default) wins over what stands at the model.
    """
    own = dict(node)
    while True:
        if "$ref" in own:
            name = own.pop("$ref").rpartition("/")[2]
            own = dict(models[name]) | own
        elif "anyOf" in own and not own.get("x-kubernetes-int-or-string"):
            choices = [choice for choice in own.pop("anyOf") if choice.get("type") != "null"]
            if len(choices) != 1:
                raise TypeError(f"A structural schema has no choice of types: {choices}")
            own = dict(choices[0]) | own
        else:
            return own
