"""Turns models and constants into pages; `generate_reference.py` writes them to docs/reference.

The code's own docstrings, bounds and defaults become the reference, so a field that is added or bounded
otherwise is in it at once, and none stays there that no longer exists.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Schema = Mapping[str, Any]

_REFERENCE = "#/$defs/"
_HUGE = 2**31


def sections(schema: Schema, root: str) -> str:
    """Return a section for each object and enumeration of ``schema``, in the order of their first mention.

    ``root`` is the title of the schema's own section. An object is a table of its fields, an enumeration
    the list of its values.
    """
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    told = [_section(root, schema)]
    for name in dict.fromkeys(_mentioned(schema, definitions)):
        if definitions[name].keys() & {"properties", "enum"}:
            told.append(_section(name, definitions[name]))
    return "\n\n".join(told)


def _mentioned(schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    """Yield the names of the definitions that ``schema`` refers to, each followed by those of its own."""
    for name in re.findall(rf'"{re.escape(_REFERENCE)}(\w+)"', json.dumps(_without_definitions(schema))):
        yield name
        yield from _mentioned(
            definitions[name], {key: definitions[key] for key in definitions if key != name}
        )


def _without_definitions(schema: Schema) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$defs"}


def _section(name: str, schema: Schema) -> str:
    parts = [f"## {name}", prose(schema.get("description", ""))]
    if "properties" in schema:
        rows = [
            (f"`{field.name}`", field.type, field.default, field.meaning)
            for field in _fields(schema, schema["properties"])
        ]
        parts.append(table(("field", "type", "default", "meaning"), rows))
    else:
        parts.append(f"One of {_values(schema['enum'])}.")
    return "\n\n".join(part for part in parts if part)


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return "optional"
    value = schema["default"]
    if isinstance(value, dict):
        return "each field's own"
    return "unset" if value is None else "empty" if value in ("", []) else f"`{json.dumps(value)}`"


def _type(schema: Schema) -> str:
    """Return the type with its bounds, in JSON's words: ``array of integer (1 to 65536)``."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_REFERENCE)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return f"one of {_values(schema['enum'])}"
    if "prefixItems" in schema:
        return f"array of {len(schema['prefixItems'])} integers"
    if schema["type"] == "array":
        item = _type(schema["items"])
        return f"array of ({item})" if "anyOf" in schema["items"] else f"array of {item}"
    if schema.get("format") == "date-time":
        return "string (RFC 3339 time)"
    return f"{schema['type']}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    """Return the bounds that say something about the field; huge ones only keep a number a number."""
    least, most = schema.get("minimum"), schema.get("maximum", _HUGE)
    first = f"above {schema['exclusiveMinimum']}, up" if least is None and most < _HUGE else f"{least}"
    if most < _HUGE:
        return f" ({first} to {most:.0f})"
    return "" if least is None else f" ({first} or more)"


def _values(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def prose(description: str) -> str:
    """Return a docstring as one line of Markdown, what it refers to by the last part of its name."""
    named = re.sub(r":\w+:`(?:[\w.]+\.)?(\w+)`", r"`\1`", description)
    return " ".join(named.replace("``", "`").replace("|", "\\|").split())


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    names = list(columns)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Field:
    """One field of a schema, in words."""

    name: str
    type: str
    """With its bounds."""
    default: str
    meaning: str


def fields(schema: Schema) -> list[Field]:
    """Return the fields of ``schema``'s own object, the values of an enumeration spelled out."""
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    spelled = {}
    for name, own in schema["properties"].items():
        named = definitions.get(str(own.get("$ref", "")).removeprefix(_REFERENCE), {})
        spelled[name] = {key: value for key, value in {**named, **own}.items() if key != "$ref" or not named}
    return _fields(schema, spelled)


def _fields(schema: Schema, properties: Mapping[str, Schema]) -> list[Field]:
    required = schema.get("required", ())
    return [
        Field(
            name,
            _type(own),
            "required" if name in required else _default(own),
            prose(own.get("description", "")),
        )
        for name, own in properties.items()
    ]


@dataclass(frozen=True)
class Constant:
    """A documented constant of a module."""

    name: str
    value: object
    meaning: str


def constants(module: ModuleType) -> list[Constant]:
    """Return the constants of ``module`` that have a docstring, in its order."""
    body = ast.parse(inspect.getsource(module)).body
    found = []
    for statement, after in itertools.pairwise(body):
        match statement, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if name.isupper() and not name.startswith("_"):
                found.append(Constant(name, getattr(module, name), prose(text)))
    return found
