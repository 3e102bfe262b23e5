"""The pieces that pages for people are built of, so that ``show`` and ``diff`` look alike at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tabletune_profiler import consoles

LONGEST_VALUE = 50


def section(title: str, *parts: RenderableType) -> RenderableType:
    """Return ``parts`` under a title, with an empty line before it."""
    return Group("", Text(title, style="bold"), Padding(Group(*parts), (0, 0, 0, 2), expand=False))


def grid(*headers: str) -> Table:
    """Return a table of numbers without lines, to be filled row by row.

    A number that finds no room goes on in the next line: cut, it would be another number.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header, justify="right", overflow="fold")
    return table


def text(content: str) -> Text:
    """Return what a document says, wrapped and without what would steer a terminal."""
    return Text(consoles.plain(content))


def short(content: str) -> str:
    """Return a value of a document on at most part of a line."""
    content = consoles.plain(content)
    return content if len(content) <= LONGEST_VALUE else f"{content[: LONGEST_VALUE - 3]}..."


def percent(share: float) -> str:
    """Return a change with its sign: ``+12.3%``."""
    return f"{share:+.1%}"


def spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers with even steps put together: ``1, 2, 4, 8 to 256 by 8``."""
    told: list[str] = []
    start = 0
    while start < len(numbers):
        end = start + 1
        while (
            end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == numbers[start + 1] - numbers[start]
        ):
            end += 1
        if end - start < 3:
            told.append(str(numbers[start]))
            start += 1
            continue
        step = numbers[start + 1] - numbers[start]
        told.append(f"{numbers[start]} to {numbers[end]}" + (f" by {step}" if step > 1 else ""))
        start = end + 1
    return ", ".join(told) or "none"
