"""Every value is documented, bounded by the schema, and nothing else is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

import generate_chart
from tests.charts.helms import CHART
from tests.charts.samples import SETS

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FOR_PARENTS = {"enabled", "global"}
"""What a parent chart hands down; no value of this chart."""


def paths(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths that the schema knows by name, innermost."""
    for name, inner in schema.get("properties", {}).items():
        resolved = SCHEMA["definitions"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
        if "properties" in resolved and "$ref" not in inner and name not in ("resources",):
            yield from paths(resolved, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_schema_names_every_value_and_no_other() -> None:
    documented = {value.path for value in generate_chart.values((CHART / "values.yaml").read_text())}
    assert set(paths(SCHEMA)) - FOR_PARENTS == documented


@pytest.mark.parametrize("name", SETS)
def test_the_schema_takes_what_users_have(name: str) -> None:
    jsonschema.validate(VALUES, SCHEMA)
    jsonschema.validate(SETS[name], SCHEMA)


def test_every_level_refuses_what_it_does_not_know() -> None:
    open_ended = {"podSecurityContext", "securityContext", "affinity", "global"}
    lax = [
        name
        for name, inner in SCHEMA["properties"].items()
        if inner.get("type") == "object" and inner.get("additionalProperties") is not False
    ]
    assert set(lax) == open_ended


def test_a_value_without_a_comment_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"operator\.workers has no comment above it"):
        generate_chart.values("operator:\n  workers: 8\n")


def test_a_comment_of_several_lines_is_one_text_and_ends_at_an_empty_line() -> None:
    text = "# Not this.\n\n# How many\n# there are.\nworkers: 8\n"
    (found,) = generate_chart.values(text)
    assert (found.path, found.default, found.meaning) == ("workers", 8, "How many there are.")


@pytest.mark.parametrize("path", generate_chart.pages(), ids=lambda path: path.name)
def test_what_is_checked_in_is_what_the_values_make(path: Any) -> None:
    assert path.read_text() == generate_chart.pages()[path], "run `make generate`"


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no marks for the values"):
        generate_chart.with_values("# Nothing here\n")
