"""The CRD is made from the models, and is a structural schema that reads well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
import yaml

import generate_api
from tabletune.api import crds, drafttables


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


SCHEMA = dict(nodes(crds.schema()))


@pytest.mark.parametrize("path", generate_api.pages(), ids=lambda path: path.parent.name)
def test_what_is_checked_in_is_what_the_models_make(path: Any) -> None:
    assert path.read_text() == generate_api.pages()[path], "run `make generate`"


def test_every_field_has_a_description() -> None:
    bare = [
        path
        for path, schema in SCHEMA.items()
        if not schema.get("description") and not path.endswith("[]") and path != ".metadata"
    ]
    assert not bare


def test_every_node_has_a_type_and_nothing_that_kubernetes_refuses() -> None:
    for path, schema in SCHEMA.items():
        assert "type" in schema or "x-kubernetes-int-or-string" in schema, path
        assert not schema.keys() & {"$ref", "title", "oneOf", "prefixItems", "const", "propertyNames"}, path


def test_every_list_and_map_that_a_rule_may_walk_is_bounded() -> None:
    spec = {path: schema for path, schema in SCHEMA.items() if path.startswith(".spec")}
    lists = [
        path for path, schema in spec.items() if schema.get("type") == "array" and "maxItems" not in schema
    ]
    maps = [
        path
        for path, schema in spec.items()
        if "additionalProperties" in schema and "maxProperties" not in schema
    ]
    assert (lists, maps) == ([], [])


def test_a_field_keeps_its_own_description_over_that_of_its_type() -> None:
    assert SCHEMA[".spec.profile.gpu"]["description"] == "GPUs of the pod."


def test_an_empty_default_is_left_out_and_an_objects_stays_for_its_fields() -> None:
    assert "default" not in SCHEMA[".spec.engine.args"]
    assert SCHEMA[".spec.table"]["default"] == {}
    assert SCHEMA[".spec.table.historyLimit"]["default"] == 10


def test_columns_are_those_of_the_design() -> None:
    (version,) = crds.definition()["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column]
    assert columns == ["Phase", "Progress", "Generation", "Gain", "Pods", "Age"]


def test_the_manifest_is_the_definition() -> None:
    assert yaml.safe_load(crds.manifest()) == crds.definition()


def test_a_choice_of_types_cannot_become_structural() -> None:
    class Choice(drafttables.ApiModel):
        """Two types in one field."""

        field: int | str
        """Either."""

    with pytest.raises(TypeError, match="no choice of types"):
        crds.structural(Choice)
    assert issubclass(Choice, pydantic.BaseModel)
