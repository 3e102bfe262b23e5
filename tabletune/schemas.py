"""The published JSON Schema of the table document.

``tabletune schema`` prints it and ``docs/reference/table-document.schema.json`` holds it, for those who
write or check documents without Python: editors, CI of a GitOps repository, other tools. It is made
from the models, so that it cannot fall behind them.

A schema says less than :func:`tabletune.documents.parse` checks: that ranges follow each other, that
grids have a row per length, that a cell has a time or a reason, are relations which it cannot state. So
a document that the schema takes may still be bad, and ``tabletune validate`` has the last word.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from tabletune.documents import SCHEMA_VERSION, Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = f"urn:tabletune:table-document:{SCHEMA_VERSION}"


def table_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of :class:`tabletune.documents.Document`, with descriptions."""
    return Document.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)


class _Generator(GenerateJsonSchema):
    schema_dialect = DIALECT

    def generate(self, *args: Any, **kwargs: Any) -> JsonSchemaValue:
        """Name the dialect and the schema, which pydantic leaves to the caller."""
        schema = super().generate(*args, **kwargs)
        return {"$schema": self.schema_dialect, "$id": IDENTIFIER} | schema

    def field_title_should_be_set(self, *_: Any) -> bool:
        """Leave out titles: made from names, they would say ``halfLife`` again as "Halflife"."""
        return False
