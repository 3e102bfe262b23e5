import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tabletune import documents, schemas

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "data" / "example-document.json"
PUBLISHED = ROOT / "docs" / "reference" / "table-document.schema.json"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schemas.table_schema())


@pytest.fixture
def content() -> dict[str, Any]:
    return dict(json.loads(EXAMPLE.read_bytes()))


def test_schema_is_one_of_the_dialect_it_names() -> None:
    schema = schemas.table_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_published_schema_is_the_one_of_the_models() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == schemas.table_schema(), "run tools/generate_reference.py"


def test_good_document_passes(validator: jsonschema.Draft202012Validator, content: dict[str, Any]) -> None:
    assert list(validator.iter_errors(content)) == []


def test_what_the_models_write_passes(validator: jsonschema.Draft202012Validator) -> None:
    document = documents.parse(EXAMPLE.read_bytes())
    assert list(validator.iter_errors(json.loads(documents.dump(document)))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schemaVersion"], 2),
        (["unknown"], 1),
        (["profile", "stepTimeMs", 0, 0], -1.0),
        (["profile", "stepTimeMs", 0, 0], "fast"),
        (["profile", "graph", 0, 0], "partial"),
        (["acceptance", "survival", 0], 1.5),
        (["table", 0], [1, 4]),
        (["table"], []),
        (["fingerprint", "maxNumSeqs"], 0),
        (["speculativeConfig"], [1]),
        (["control", "tieTolerance"], None),
    ],
)
def test_bad_document_is_refused_at_its_place(
    validator: jsonschema.Draft202012Validator, content: dict[str, Any], path: list[Any], value: object
) -> None:
    place: Any = content
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    errors = list(validator.iter_errors(content))
    assert errors
    # An unknown field is told of the object that holds it.
    assert list(errors[0].absolute_path) in (path, path[:-1])
    with pytest.raises(documents.DocumentError):
        documents.validate_as(documents.Document, content)


def test_missing_part_is_refused(validator: jsonschema.Draft202012Validator, content: dict[str, Any]) -> None:
    del content["fingerprint"]
    assert [error.message for error in validator.iter_errors(content)] == [
        "'fingerprint' is a required property"
    ]


def test_every_field_says_what_it_is() -> None:
    schema = schemas.table_schema()
    models = {"Document": schema} | {
        name: model for name, model in schema["$defs"].items() if "properties" in model
    }
    silent = [
        f"{name}.{field}"
        for name, model in models.items()
        for field, content in model["properties"].items()
        if not content.get("description")
    ]
    assert silent == []
