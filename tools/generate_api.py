"""Writes what is made from the Kubernetes API's models: the CRD and its reference page.

`make generate` calls it, and a test calls :func:`pages` to compare: a CRD that is older than the models would
refuse, or worse prune, what the operator reads.

    python tools/generate_api.py           # write
    python tools/generate_api.py --check   # write nothing; end with 1 where a file differs
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import describing
import generating
from tabletune.api import crds, drafttables, names, reasons

ROOT = Path(__file__).parents[1]
DEFINITION = "tabletune.dev_drafttables.yaml"


def pages() -> dict[Path, str]:
    """Return the content of every generated file."""
    manifest = crds.manifest()
    return {
        ROOT / "crds" / DEFINITION: manifest,
        ROOT / "config" / "crd" / DEFINITION: manifest,
        ROOT / "charts" / "tabletune" / "files" / DEFINITION: manifest,
        ROOT / "docs" / "reference" / "draft-table.md": reference(),
    }


def reference() -> str:
    """Return the page of the DraftTable: fields, phases, conditions, reasons, labels and annotations."""
    phases = describing.table(
        ("phase", "meaning"),
        ((f"`{phase}`", describing.prose(text)) for phase, text in reasons.PHASES.items()),
    )
    conditions = describing.table(
        ("condition", "when it is True"),
        ((f"`{name}`", describing.prose(text)) for name, text in reasons.CONDITIONS.items()),
    )
    return f"""<!-- Made by tools/generate_api.py; change tabletune/api, not this page. -->

# The DraftTable

`{names.API_VERSION}`, kind `{names.KIND}`, namespaced, short name `dt`. A [first
one](../guide/draft-table.md) is shown step by step. `kubectl explain dt.spec` shows the fields below too.
The API server refuses unknown fields and values out of bounds, and names them.

## Phases

{phases}

## Conditions

{conditions}

## Reasons, and what to do

{_reasons()}

## Labels, annotations and keys

{_names()}

{_fields("spec", drafttables.Spec)}

{_fields("status", drafttables.Status)}

## Versions

`v1alpha1` is the only version, served and stored. Fields are only ever added to it, each with a default
that does what was done before. A version that changes a field will be served beside this one with
conversion, and the operator writes no field that `v1alpha1` does not have until then, so that going back
one release is possible.
"""


def _reasons() -> str:
    parts = []
    for condition in reasons.Condition:
        rows = (
            (f"`{reason.name}`", describing.prose(reason.meaning), describing.prose(reason.remedy))
            for reason in reasons.REASONS
            if reason.condition is condition
        )
        parts.append(f"### `{condition}`\n\n{describing.table(('reason', 'meaning', 'what to do'), rows)}")
    return "\n\n".join(parts)


def _names() -> str:
    wanted = ("_LABEL", "_ANNOTATION", "_KEY")
    rows = (
        (f"`{found.value}`", found.meaning)
        for found in describing.constants(names)
        if found.name.endswith(wanted)
    )
    return describing.table(("name", "what it is"), rows)


def _fields(path: str, model: type[drafttables.ApiModel]) -> str:
    """Return a section per object below ``path``, outermost first."""
    sections: list[str] = []
    waiting: list[tuple[str, dict[str, Any]]] = [(path, crds.structural(model))]
    while waiting:
        where, schema = waiting.pop(0)
        rows = []
        for name, field in schema.get("properties", {}).items():
            inner = field.get("items", field)
            own = f"{where}.{name}" + ("[]" if "items" in field else "")
            if inner.get("properties"):
                waiting.append((own, inner))
            default = "required" if name in schema.get("required", ()) else _default(field)
            rows.append((f"`{name}`", _type(field), default, describing.prose(field.get("description", ""))))
        rules = [
            f"- {rule.get('fieldPath', '').lstrip('.') or where.rpartition('.')[2]}: {rule['message']}."
            for rule in [
                *schema.get("x-kubernetes-validations", ()),
                *(
                    inner | {"fieldPath": name}
                    for name, field in schema.get("properties", {}).items()
                    if "items" in field
                    for inner in field.get("x-kubernetes-validations", ())
                ),
            ]
        ]
        body = describing.table(("field", "type", "default", "meaning"), rows)
        told = describing.prose(schema.get("description", ""))
        sections.append("\n\n".join(filter(None, (f"## `{where}`", told, body, "\n".join(rules)))))
    return "\n\n".join(sections)


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return (
        "" if default in (None, {}) else f"`{str(default).lower() if default in (True, False) else default}`"
    )


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field["type"] == "array":
        bounds = _bounds(field.get("minItems"), field.get("maxItems"), " entries")
        return f"list of {_type(field['items'])}{bounds}"
    if field["type"] == "object":
        inner = field.get("additionalProperties")
        return f"map of {_type(inner)}" if isinstance(inner, dict) else "object"
    if field["type"] == "string":
        return "string"
    return str(field["type"]) + _bounds(field.get("minimum"), field.get("maximum"), "")


def _bounds(least: float | None, most: float | None, unit: str) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f", at least {least:g}{unit}"
    return f", {least:g} to {most:g}{unit}" if least is not None else f", at most {most:g}{unit}"


if __name__ == "__main__":
    generating.run(pages())
