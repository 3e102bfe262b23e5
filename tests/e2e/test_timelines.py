"""The demonstration's record, and the picture that is drawn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e import pictures, timelines
from tabletune_profiler import plotting


def counters(drafts: float, drafted: float, accepted: float) -> dict[str, float]:
    return {"generation": 1.0, "drafts": drafts, "drafted": drafted, "accepted": accepted}


def record() -> dict[str, Any]:
    on = ("command", "date", "machine", "model", "drafter", "vllm", "kubernetes")
    return {
        "conditions": {name: name.upper() for name in on},
        "requests": {"copying": {"answered": 40, "failed": 0}, "sampling": {"answered": 2, "failed": 1}},
        "marks": [{"seconds": 2.5, "what": "other requests come"}],
        "samples": [
            {"seconds": 0.0, "pods": {"a": counters(10, 70, 60), "b": counters(0, 0, 0)}},
            {"seconds": 2.0, "pods": {"a": counters(20, 140, 125), "b": counters(0, 0, 0)}},
            # A page that could not be read is no sample, and spoils none.
            {"seconds": 3.0, "pods": {"b": counters(5, 35, 35)}},
            {"seconds": 4.0, "pods": {"a": counters(24, 144, 126), "b": counters(9, 39, 36)}},
        ],
    }


def test_rates_are_of_the_drafts_between_two_samples() -> None:
    assert timelines.rates(record(), "a") == ([1.0, 3.0], [7.0, 1.0], [6.5, 0.25])


def test_where_nothing_was_drafted_there_is_no_rate() -> None:
    assert timelines.rates(record(), "b") == ([2.5, 3.5], [7.0, 1.0], [7.0, 0.25])


def test_generations_are_marked_as_they_are_seen() -> None:
    def sample(seconds: float, generation: int, *followed: float) -> dict[str, Any]:
        pods = {str(pod): counters(0, 0, 0) | {"generation": one} for pod, one in enumerate(followed)}
        return {"seconds": seconds, "generation": generation, "pods": pods}

    # A question that the API server did not answer, 0, is no change.
    samples = [
        sample(0, 1, 1, 1),
        sample(1, 0, 1, 1),
        sample(2, 0, 1, 1),
        sample(3, 2, 2, 1),
        sample(4, 2, 2, 2),
    ]
    samples.append(sample(5, 3, 2, 3))
    assert timelines.changes(samples) == [
        {"seconds": 3, "what": "the operator writes generation 2"},
        {"seconds": 5, "what": "generation 3"},
        {"seconds": 4, "what": "both servers follow it"},
    ]
    at_once = [sample(0, 1, 1, 1), sample(1, 2, 2, 2)]
    assert timelines.changes(at_once) == [
        {"seconds": 1, "what": "the operator writes generation 2, and both servers follow it"}
    ]


def test_picture_tells_what_happened_and_what_it_was_taken_on(tmp_path: Path) -> None:
    png, svg = pictures.draw(record(), tmp_path / "timeline")
    assert png.read_bytes().startswith(b"\x89PNG")
    with pytest.MonkeyPatch.context() as patch:
        # Text as text, so that it can be read back.
        patch.setitem(plotting.STYLE, "svg.fonttype", "none")
        pictures.draw(record(), tmp_path / "timeline")
    text = svg.read_text()
    assert "other requests come" in text
    assert "42 requests answered, 1 failed" in text
    for name in record()["conditions"].values():
        assert name in text
