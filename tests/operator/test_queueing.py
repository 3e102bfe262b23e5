"""Each DraftTable is looked at once at a time, soon after a change, and again after a failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tabletune_operator import caching, errors, leading, queueing, settings
from tabletune_operator.observations import Key
from tabletune_operator.queueing import Queue

A, B = ("ml", "a"), ("ml", "b")


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_ten_changes_make_one_look() -> None:
    async def work() -> None:
        queue = Queue()
        for _ in range(10):
            queue.add(A)
        assert await queue.take() == A
        queue.done(A)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.take(), 0.05)

    run(work)


def test_a_change_during_a_look_makes_another_after_it() -> None:
    async def work() -> None:
        queue = Queue()
        queue.add(A)
        await queue.take()
        queue.add(A)
        queue.add(B)
        assert await queue.take() == B
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.take(), 0.05)
        queue.done(A)
        assert await queue.take() == A

    run(work)


def test_failures_wait_longer_each_time_up_to_a_bound() -> None:
    async def work() -> None:
        queue = Queue(random.Random(1))
        delays = []
        for _ in range(12):
            queue._busy.add(A)
            delays.append(queue.failed(A))
        assert delays[0] <= queueing.FIRST_DELAY_SECONDS
        assert delays[-1] > delays[2]
        assert max(delays) <= queueing.LONGEST_DELAY_SECONDS

    run(work)


def test_a_fault_in_one_look_stops_no_other() -> None:
    looked: list[Key] = []

    async def look(key: Key) -> float | None:
        looked.append(key)
        if key == A and looked.count(A) < 3:
            raise [ValueError("fault"), errors.ConflictError(409, "", "old")][looked.count(A) - 1]
        return None

    async def work() -> None:
        queue = Queue(random.Random(1))
        queue.add(A)
        queue.add(B)
        task = asyncio.create_task(queueing.work(queue, look))
        while looked.count(A) < 3:
            await asyncio.sleep(0.02)
        task.cancel()
        assert B in looked

    run(work)


def body(name: str, version: int, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": name, "uid": uid, "resourceVersion": str(version)}}


def test_the_cache_takes_no_older_news() -> None:
    cache = caching.Cache()
    cache.put("DraftTable", body("a", 5) | {"spec": {"paused": True}})
    cache.put("DraftTable", body("a", 4))
    found = cache.table(A)
    assert found is not None
    assert found.spec == {"paused": True}
    cache.put("DraftTable", body("a", 1, "another"))
    assert cache.table(A) is not None
    cache.remove("DraftTable", body("a", 6, "another"))
    assert cache.table(A) is None
    assert list(cache.tables()) == []


def test_what_is_gone_does_not_come_back_by_a_late_answer() -> None:
    cache = caching.Cache()
    cache.put("DraftTable", body("a", 5))
    cache.remove("DraftTable", body("a", 6))
    cache.put("DraftTable", body("a", 5))
    assert cache.table(A) is None
    cache.put("DraftTable", body("a", 7, "another"))
    assert cache.table(A) is not None


def test_the_cache_forgets_what_vanished_and_says_whose_it_was() -> None:
    cache = caching.Cache()
    job = body("a-1", 3)
    job["metadata"]["labels"] = {"tabletune.dev/draft-table": "a"}
    cache.put("Job", job)
    assert cache.known("Job") == {("ml", "a-1", "u")}
    assert cache.forget("Job", {("ml", "a-1", "other")}) == set()
    assert cache.forget("Job", {("ml", "a-1", "u")}) == {A}
    assert cache.of("Job", A) == []


NOW = datetime(2026, 11, 30, tzinfo=UTC)


def lease(holder: str, ahead_seconds: float = 0) -> dict[str, Any]:
    renewed = (NOW + timedelta(seconds=ahead_seconds)).isoformat().replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    return {"metadata": {"resourceVersion": "7"}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "unchanged_seconds", "mine"),
    [
        (None, 0, True),
        (lease(""), 0, True),
        (lease("me"), 0, True),
        (lease("other"), 5, False),
        (lease("other"), 16, True),
        # The other's clock is an hour behind, or ahead: it says nothing.
        (lease("other", -3_600), 5, False),
        (lease("other", 3_600), 16, True),
        ({"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": "x", "renewTime": "?"}}, 5, False),
    ],
)
def test_a_lease_is_taken_only_from_who_has_not_renewed(
    found: Any, unchanged_seconds: float, mine: bool
) -> None:
    taken = leading.turn(found, "ns", "name", "me", NOW, unchanged_seconds)
    assert (taken is not None) is mine
    if taken is not None and found is not None:
        # Of two that try, the API server lets one.
        assert taken["metadata"]["resourceVersion"] == "7"


def test_settings_are_checked_and_named() -> None:
    good = settings.read(
        {"TABLETUNE_OPERATOR_NAMESPACES": "b, a", "TABLETUNE_OPERATOR_PORT": "0", "HOME": "x"}
    )
    assert (good.namespaces, good.port) == (("a", "b"), 0)
    bad = {
        "TABLETUNE_OPERATOR_PORT": "http",
        "TABLETUNE_OPERATOR_NAMESPACES": "A",
        "TABLETUNE_OPERATOR_X": "1",
    }
    with pytest.raises(settings.SettingsError) as caught:
        settings.read(bad)
    for part in ("PORT is 'http', must be a number", "'A' is no name", "OPERATOR_X is no setting"):
        assert part in str(caught.value)
