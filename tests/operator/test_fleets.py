"""What is said of serving pods as time goes by: each look starts from the status that the last one left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tabletune.api import drafttables
from tabletune_operator import fleets, live, observations, statuses, times
from tabletune_operator.looks import Look
from tabletune_operator.observations import Entry
from tabletune_operator.plans import Observed
from tests.operator import objects

START = datetime(2026, 11, 30, tzinfo=UTC)


class Operator:
    """Looks at two pods of one DraftTable, and remembers nothing but the status."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.created = START
        self.events: list[tuple[str, bool]] = []

    def look(self, seconds: float, up_to_date: int, pods: int = 2, looked: float | None = None) -> str:
        """Look ``seconds`` after the start, at pods as they were at ``looked``; return the reason."""
        body = objects.draft_table("ml", serving={"selector": {"matchLabels": {"app": "qwen"}}})
        body["metadata"] |= {"uid": "u", "creationTimestamp": times.text_of(START), "generation": 1}
        table = observations.draft_table(body | {"status": self.status})
        moment = times.text_of(START + timedelta(seconds=seconds if looked is None else looked))
        newest = Entry("qwen-g2", "u", 2, "profile", "", "", None, "", times.text_of(self.created))
        seen = live.Seen(pods=pods, up_to_date=up_to_date, last_seen=moment, generation=2)
        now = START + timedelta(seconds=seconds)
        look = Look(Observed(table, entries=(newest,), live=seen), {}, {}, now)
        look.spec = drafttables.parse(table.spec)
        fleets.judge(look)
        self.status, happened = statuses.tell(look.story, self.status, times.text_of(now))
        self.events += [(one.reason, one.warning) for one in happened if one.reason.startswith("Pods")]
        return look.story.serving.reason


def test_pods_that_follow_within_a_kubelets_time_are_no_event() -> None:
    operator = Operator()
    assert operator.look(1, 0) == "PodsRefreshing"
    assert operator.look(61, 1) == "PodsRefreshing"
    assert operator.look(100, 2) == "PodsUpToDate"
    assert operator.events == [("PodsUpToDate", False)]


def test_pods_that_stay_behind_are_told_once_and_as_a_warning() -> None:
    operator = Operator()
    found = [operator.look(seconds, 1) for seconds in range(0, 400, 5)]
    first = found.index("PodsBehind")
    assert first * 5 == fleets.REFRESH_SECONDS
    assert set(found[:first]) == {"PodsRefreshing"}
    assert set(found[first:]) == {"PodsBehind"}
    assert operator.events == [("PodsBehind", True)]
    assert operator.look(405, 2) == "PodsUpToDate"


def test_each_generation_has_its_time_as_long_as_pods_followed_the_one_before() -> None:
    operator = Operator()
    for number in range(1, 6):
        began = 200 * number
        assert operator.look(began - 10, 2) == "PodsUpToDate"
        operator.created = START + timedelta(seconds=began)
        assert operator.look(began + 5, 0) == "PodsRefreshing"
        assert operator.look(began + 100, 1) == "PodsRefreshing"
    assert {reason for reason, _ in operator.events} == {"PodsUpToDate"}


def test_a_new_generation_is_no_excuse_for_pods_that_were_behind_before() -> None:
    operator = Operator()
    operator.look(0, 1)
    assert operator.look(130, 1) == "PodsBehind"
    operator.created = START + timedelta(seconds=140)
    assert operator.look(145, 1) == "PodsBehind"


def test_generations_in_quick_succession_are_not_held_against_the_pods() -> None:
    operator = Operator()
    assert operator.look(5, 0) == "PodsRefreshing"
    operator.created = START + timedelta(seconds=100)
    assert operator.look(140, 0) == "PodsRefreshing"
    assert operator.look(225, 0) == "PodsBehind"


def test_a_pod_that_starts_long_after_the_generation_has_its_time() -> None:
    operator = Operator()
    assert operator.look(3_600, 2) == "PodsUpToDate"
    assert operator.look(3_605, 2, pods=3) == "PodsRefreshing"
    assert operator.look(3_700, 2, pods=3) == "PodsRefreshing"
    assert operator.look(3_730, 2, pods=3) == "PodsBehind"
    assert operator.look(7_200, 0, pods=0) == "NoPods"
    assert operator.look(7_300, 0, pods=1) == "PodsRefreshing"
    assert operator.look(7_400, 0, pods=1) == "PodsRefreshing"


def test_what_was_not_looked_at_again_is_not_told_as_behind() -> None:
    operator = Operator()
    assert operator.look(5, 1) == "PodsRefreshing"
    assert operator.look(300, 1, looked=5) == "PodsRefreshing"
    assert operator.look(305, 1) == "PodsBehind"
