"""Lines that come in floods are written a few times a minute, and the rest is counted."""

from __future__ import annotations

import logging

import pytest

from tabletune_plugin.telling import MOST_LINES, Telling

LOGGER = logging.getLogger("tabletune")


def test_of_a_flood_a_few_lines_a_minute_are_written_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telling = Telling(LOGGER)
    for second in range(600):
        telling.tell(float(second), "Invalid", logging.WARNING, "the file is %s", second)
    assert len(caplog.messages) == 10 * MOST_LINES
    assert caplog.messages[: MOST_LINES + 1] == [
        *(f"the file is {second}" for second in range(MOST_LINES)),
        "the file is 60 (55 more lines like it were left out)",
    ]
    assert caplog.messages[MOST_LINES + 1] == "the file is 61"


def test_a_flood_of_one_kind_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    telling = Telling(LOGGER)
    for _ in range(100):
        telling.tell(0.0, "Invalid", logging.WARNING, "invalid")
    telling.tell(0.0, "Loaded", logging.ERROR, "loaded")
    assert caplog.messages == ["invalid"] * MOST_LINES + ["loaded"]
    assert caplog.records[-1].levelno == logging.ERROR
