"""What looks at serving pods lead to: corrections, rollbacks, and nothing where there is no reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tabletune.api.drafttables import Serving
from tabletune.documents import Document, Source
from tabletune_operator import live, surveys
from tabletune_operator.expositions import Reading
from tabletune_operator.scraping import Failure
from tabletune_operator.surveys import Memory, ServingPod
from tests.operator import objects

NOW = datetime(2026, 11, 30, tzinfo=UTC)


class Fleet:
    """Pods that serve with a given acceptance and speed, looked at every 30 seconds."""

    def __init__(self, document: Document, pods: int = 3, **serving: Any) -> None:
        self.document = document
        self.pods = [ServingPod(f"uid-{number}", f"pod-{number}", "127.0.0.1") for number in range(pods)]
        settings = {"selector": {"matchLabels": {"a": "b"}}, "mode": "Correct", **serving}
        self.serving = Serving.model_validate(settings)
        self.memory = Memory()
        self.now = NOW
        self.counters = dict.fromkeys((pod.uid for pod in self.pods), Reading(generation=1, active=True))
        self.status_guard: Any = None

    def serve(
        self, survival: tuple[float, ...], drafts: float = 2_000, tokens_per_second: float = 1_000
    ) -> None:
        """Let every pod serve for a while."""
        for uid, before in self.counters.items():
            drafted = {place: before.drafted.get(place, 0) + drafts for place in range(1, len(survival) + 1)}
            accepted = {
                place: before.accepted.get(place, 0) + drafts * rate
                for place, rate in enumerate(survival, start=1)
            }
            self.counters[uid] = Reading(
                generation=self.document.generation,
                active=True,
                drafted=drafted,
                accepted=accepted,
                proposed=before.proposed + drafts,
                steps={"8": before.steps.get("8", 0) + 300},
                seconds={"8": before.seconds.get("8", 0) + 3.0},
                tokens={"8": before.tokens.get("8", 0) + 3.0 * tokens_per_second},
            )

    def look(self, found: dict[str, Reading | Failure] | None = None) -> live.Seen:
        self.now += timedelta(seconds=30)
        self.memory, seen = surveys.survey(
            self.memory,
            self.document,
            self.serving,
            self.pods,
            self.counters if found is None else found,
            (),
            self.status_guard,
            30.0,
            self.now,
        )
        return seen

    def put_in_force(self, document: Document) -> None:
        self.document = document.model_copy(update={"generation": self.document.generation + 1})


def as_profiled() -> tuple[float, ...]:
    return objects.example().acceptance.survival


def test_traffic_as_profiled_changes_nothing() -> None:
    fleet = Fleet(objects.example())
    for _ in range(20):
        fleet.serve(as_profiled())
        seen = fleet.look()
        assert seen.correction is None
    assert seen.decision == "WithinHysteresis"
    assert (seen.pods, seen.up_to_date) == (3, 3)


def test_traffic_that_accepts_nothing_turns_drafting_off_with_the_numbers() -> None:
    fleet = Fleet(objects.example())
    seen = fleet.look()
    for _ in range(20):
        fleet.serve((0.02,) * len(as_profiled()))
        seen = fleet.look()
        if seen.correction:
            break
    correction = seen.correction
    assert correction is not None
    assert (correction.base, correction.document.source) == (1, Source.CORRECTION)
    assert max(length for _, _, length in correction.document.table) < max(
        length for _, _, length in objects.example().table
    )
    assert "live drafts" in correction.message


def test_a_correction_is_tried_before_the_next_one() -> None:
    fleet = Fleet(objects.example(), minDrafts=5_000, guard={"minSteps": 10**9})
    nothing = (0.02,) * len(as_profiled())
    correction = None
    while correction is None:
        fleet.serve(nothing)
        correction = fleet.look().correction
    fleet.document = correction.document

    # All is accepted now, but the pods still follow the generation before.
    before = dict(fleet.counters)
    for number in range(1, 10):
        fleet.serve((0.99,) * len(as_profiled()), drafts=3_000)
        behind: dict[str, Reading | Failure] = {
            uid: replace(reading, generation=before[uid].generation)
            for uid, reading in fleet.counters.items()
        }
        assert fleet.look(behind).correction is None, number

    for _ in range(3):  # the first look has no beginning
        fleet.serve((0.99,) * len(as_profiled()), drafts=3_000)
        seen = fleet.look()
    assert seen.correction is not None


def test_a_correction_that_the_guard_held_up_comes_once_it_is_done() -> None:
    fleet = Fleet(objects.example(), guard={"minSteps": 100})
    for _ in range(3):
        fleet.serve(as_profiled())
        fleet.look()
    fleet.put_in_force(objects.example())
    held_up = 0
    for _ in range(40):
        fleet.serve((0.02,) * len(as_profiled()))
        seen = fleet.look()
        assert seen.guard is not None
        if seen.guard["verdict"] != "Watching":
            break
        assert seen.correction is None
        held_up += 1
    assert held_up > 10
    assert seen.correction is not None


def test_too_few_drafts_correct_nothing() -> None:
    fleet = Fleet(objects.example(), minDrafts=10**6)
    for _ in range(10):
        fleet.serve((0.0,) * len(as_profiled()), drafts=10)
        seen = fleet.look()
        assert seen.correction is None


@pytest.mark.parametrize("mode", ["Observe", "Off"])
def test_only_the_mode_correct_corrects(mode: str) -> None:
    fleet = Fleet(objects.example(), mode=mode)
    for _ in range(20):
        fleet.serve((0.0,) * len(as_profiled()))
        assert fleet.look().correction is None


def test_a_pod_that_restarted_counts_from_zero() -> None:
    fleet = Fleet(objects.example())
    fleet.serve(as_profiled())
    fleet.look()
    fleet.serve(as_profiled())
    assert fleet.look().drafts == 6_000
    fleet.counters["uid-0"] = Reading(generation=1, active=True)
    fleet.serve(as_profiled())
    assert fleet.look().drafts == 12_000


def test_a_first_look_has_no_beginning() -> None:
    fleet = Fleet(objects.example())
    fleet.serve(as_profiled(), drafts=10**9)
    assert fleet.look().drafts == 0


def test_pods_are_told_by_what_is_wrong_with_them() -> None:
    fleet = Fleet(objects.example(), pods=4)
    found: dict[str, Reading | Failure] = {
        "uid-0": Reading(generation=1, active=True),
        "uid-1": Reading(generation=3, active=True),
        "uid-2": Reading(active=False, reason="UnsupportedVersion"),
        "uid-3": Failure("port 9410: cannot be reached"),
    }
    seen = fleet.look(found)
    assert (seen.pods, seen.up_to_date, seen.unreachable, seen.inactive) == (4, 1, 1, 1)
    assert [pod["state"] for pod in seen.attention] == ["Behind", "Inactive", "Unreachable"]
    assert "follows generation 3 instead of 1" in seen.attention[0]["message"]


def test_pods_of_another_kind_are_told_and_do_not_count() -> None:
    fleet = Fleet(objects.example())
    fleet.look()
    fleet.serve((0.0,) * len(as_profiled()))
    other = {
        uid: Reading(generation=1, active=True, differs=("gpu", "vllm"), drafted=one.drafted)
        for uid, one in fleet.counters.items()
    }
    seen = fleet.look(dict(other))
    assert seen.drifted == ("gpu", "vllm")
    assert seen.drafts == 0


def guarded(now_rate: float, **guard: Any) -> tuple[Fleet, live.Seen]:
    """Serve at 1000 tokens a second, put another generation in force, and serve at ``now_rate``."""
    fleet = Fleet(objects.example(), guard=guard or {"minSteps": 100})
    for _ in range(3):
        fleet.serve(as_profiled())
        fleet.look()
    fleet.put_in_force(objects.example())
    fleet.serve(as_profiled())
    seen = fleet.look()
    for _ in range(30):
        fleet.serve(as_profiled(), tokens_per_second=now_rate)
        seen = fleet.look()
        if seen.rollback:
            break
    return fleet, seen


def test_a_worse_generation_is_to_be_rolled_back_with_the_numbers() -> None:
    _, seen = guarded(800)
    assert seen.rollback is not None
    assert (seen.rollback.generation, seen.rollback.to) == (2, 1)
    assert "fewer tokens per second than generation 1" in seen.rollback.message
    assert seen.guard is not None
    assert seen.guard["verdict"] == "RolledBack"


def test_an_equal_generation_is_kept_once_it_was_watched() -> None:
    _, seen = guarded(995)
    assert seen.rollback is None
    assert seen.guard is not None
    assert seen.guard["verdict"] == "Kept"


def test_a_guard_that_is_off_rolls_nothing_back() -> None:
    _, seen = guarded(100, enabled=False, minSteps=100)
    assert seen.rollback is None


def test_after_a_restart_the_guard_goes_on_with_the_status_baseline() -> None:
    fleet, _ = guarded(1_000)
    fleet.memory = Memory()
    fleet.status_guard = {
        "generation": 2,
        "before": 1,
        "since": "2026-11-30T00:00:00Z",
        "verdict": "Watching",
        "baseline": {"8": 1_000.0},
    }
    fleet.now = NOW
    fleet.look()
    for _ in range(5):
        fleet.serve(as_profiled(), tokens_per_second=500)
        seen = fleet.look()
        if seen.rollback:
            return
    pytest.fail("not rolled back")
