"""Writes what is made from the chart: the tables of its values, and the Grafana dashboard.

`make generate` calls it, and `make lint` compares: a table of values that is kept by hand names some that are
no more. The comment above a value in values.yaml is its documentation; the pages' other text is their own.

    python tools/generate_chart.py           # write
    python tools/generate_chart.py --check   # write nothing; end with 1 where a file differs
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

import dashboards
import describing
import generating

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "tabletune"
PAGES = (ROOT / "docs" / "reference" / "chart.md", CHART / "README.md")
BEGIN = "<!-- Values: made by tools/generate_chart.py from charts/tabletune/values.yaml -->"
END = "<!-- End of the values -->"


@dataclass(frozen=True)
class Value:
    """A value that a user may set."""

    path: str
    default: object
    meaning: str


def pages() -> dict[Path, str]:
    """Return the content of every generated file."""
    written = {path: with_values(path.read_text()) for path in PAGES}
    return written | {CHART / "dashboards" / "tabletune.json": dashboards.render()}


def with_values(page: str) -> str:
    """Return ``page`` with the table of all values between its marks; raises ``ValueError`` without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"The page has no marks for the values. Put {BEGIN} and {END} into it.")
    return f"{before}{begin}\n\n{_table()}\n\n{end}{after}"


def values(text: str) -> list[Value]:
    """Return the values of a values.yaml, outermost first, each with the comment above it.

    An object is one value where it is empty, or where a comment stands above it: then users replace or extend
    it as a whole. Raises ``ValueError`` for a value without a comment.
    """
    return list(_values(yaml.compose(text), text.splitlines(), ""))


def _values(node: yaml.Node | None, lines: list[str], prefix: str) -> Iterator[Value]:
    assert isinstance(node, yaml.MappingNode)
    for key, value in node.value:
        path, comment = prefix + key.value, _comment(lines, key.start_mark.line)
        default = yaml.safe_load(yaml.serialize(value))
        if comment:
            yield Value(path, default, comment)
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, lines, f"{path}.")
        else:
            raise ValueError(f"{path} has no comment above it in values.yaml. Say there what it does.")


def _comment(lines: list[str], line: int) -> str:
    """Return the comment that ends right above ``line``."""
    found: list[str] = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(found)


def _table() -> str:
    rows = (
        (f"`{value.path}`", f"`{json.dumps(value.default)}`", value.meaning.replace("|", "\\|"))
        for value in values((CHART / "values.yaml").read_text())
    )
    return describing.table(("value", "default", "meaning"), rows)


if __name__ == "__main__":
    generating.run(pages())
