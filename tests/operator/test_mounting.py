"""The control section of a served document is what the spec asks for."""

from __future__ import annotations

import pytest

from tabletune import tables
from tabletune.api import drafttables
from tabletune_operator import mounting
from tests.operator import objects


@pytest.mark.parametrize(
    ("drafter", "allowed", "used"),
    [
        ([0, 1, 3], [], {0, 1, 3}),
        ([1, 3], [], {1, 3}),  # timed with 0 all the same, and not to be turned off
        ([1, 3], [3], {3}),
        ([0, 1, 3], [1, 3], {1, 3}),
    ],
)
def test_a_table_uses_no_length_that_was_not_asked_for(
    drafter: list[int], allowed: list[int], used: set[int]
) -> None:
    spec = objects.draft_table("ml", table={"allowedLengths": allowed})["spec"]
    spec["drafter"]["draftLengths"] = drafter
    control = mounting.control(drafttables.parse(spec))
    measured = sorted({0, *drafter})
    assert set(tables.allowed_lengths(measured, control.allowed_lengths)) == used
