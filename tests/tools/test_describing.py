"""The pages of fields: what a reader must find in them."""

from __future__ import annotations

from typing import Any

import describing


def schema_of(field: dict[str, Any], **definitions: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {"field": field}, "required": ["field"], "$defs": definitions}


def row(field: dict[str, Any], **definitions: dict[str, Any]) -> str:
    lines = describing.sections(schema_of(field, **definitions), "Root").splitlines()
    return next(line for line in lines if line.startswith("| `field`"))


def test_bounds_stand_beside_the_type() -> None:
    assert "| integer (1 to 64) |" in row({"type": "integer", "minimum": 1, "maximum": 64})


def test_an_open_lower_bound_is_told_apart_from_a_closed_one() -> None:
    assert "| number (above 0, up to 9) |" in row({"type": "number", "exclusiveMinimum": 0, "maximum": 9})


def test_a_bound_that_only_keeps_numbers_sane_is_left_out() -> None:
    assert "| integer (0 or more) |" in row({"type": "integer", "minimum": 0, "maximum": 2**53})


def test_rows_of_values_or_null_are_told_as_such() -> None:
    cell = {"anyOf": [{"type": "number"}, {"type": "null"}]}
    grid = {"type": "array", "items": {"type": "array", "items": cell}}
    assert "| array of array of (number or null) |" in row(grid)


def test_a_field_with_a_default_says_it_and_one_without_is_required() -> None:
    schema = schema_of({"type": "number"}) | {
        "properties": {"a": {"type": "number"}, "b": {"type": "number", "default": 0.5}},
        "required": ["a"],
    }
    page = describing.sections(schema, "Root")
    assert "| `a` | number | required |" in page
    assert "| `b` | number | `0.5` |" in page


def test_every_definition_that_is_mentioned_has_one_section_after_its_first_mention() -> None:
    inner = {"type": "object", "properties": {"kind": {"$ref": "#/$defs/Kind"}}, "description": "Inside."}
    kind = {"type": "string", "enum": ["one", "two"]}
    page = describing.sections(schema_of({"$ref": "#/$defs/Inner"}, Kind=kind, Inner=inner), "Root")
    assert [line for line in page.splitlines() if line.startswith("##")] == ["## Root", "## Inner", "## Kind"]
    assert "[Inner](#inner)" in page
    assert "One of `one`, `two`." in page


def test_a_docstring_of_several_lines_stays_in_its_cell() -> None:
    told = row({"type": "string", "description": "Says ``this``\nor a | bar."})
    assert told.endswith(r"| Says `this` or a \| bar. |")


def test_values_of_an_enumeration_are_spelled_out_in_a_list_of_fields() -> None:
    schema = schema_of({"$ref": "#/$defs/Mode", "default": "on"}, Mode={"enum": ["on", "off"]})
    (found,) = describing.fields(schema | {"required": []})
    assert (found.name, found.type, found.default) == ("field", "one of `on`, `off`", '`"on"`')


def test_references_to_code_are_told_by_their_last_name() -> None:
    assert (
        describing.prose(":func:`tabletune.tables.compute` in ``adapt``,\n a|b")
        == "`compute` in `adapt`, a\\|b"
    )
