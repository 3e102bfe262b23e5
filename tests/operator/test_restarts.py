"""The operator may die at any request, before the API server gets it or after: the end is the same."""

from __future__ import annotations

import random

import pytest

from tabletune import documents
from tests.controlplane import fixtures
from tests.controlplane.clients import Api, Object
from tests.controlplane.planes import Plane
from tests.operator import objects
from tests.operator.harness import Harness, Killed

pytestmark = pytest.mark.cluster

STORIES = 12
"""Lives of a DraftTable, in each of which the operator dies about ten times."""
deaths: list[int] = []


class Immortal(random.Random):
    """Dice by which nobody dies."""

    def randint(self, a: int, b: int) -> int:
        return 10**6


def look_mortally(harness: Harness, namespace: str, dice: random.Random) -> None:
    """Look until a look ends well, dying at random requests on the way."""
    for _ in range(40):
        try:
            harness.look(namespace, dies_at=dice.randint(1, 6), after=dice.random() < 0.5)
        except Killed:
            deaths.append(harness.requests)
            continue
        if harness.requests == 0:
            return
    harness.settle(namespace)


def end_state(api: Api, namespace: str) -> Object:
    """What there is in the end, without times and names that are anew in each namespace."""
    table = api.get("DraftTable", namespace, "qwen")["status"]
    conditions = [(one["type"], one["status"], one["reason"], one["message"]) for one in table["conditions"]]
    kept = {key: table[key] for key in ("phase", "generation", "history", "source", "table", "gain")}
    maps = api.list("ConfigMap", namespace, "tabletune.dev/draft-table=qwen")
    profile = {key: table["profile"].get(key) for key in ("digest", "acceptedDigest", "job", "failedJob")}
    return {
        "status": kept,
        "profile": profile,
        "conditions": conditions,
        "maps": sorted(
            (one["metadata"]["name"], one["metadata"]["labels"]["tabletune.dev/role"]) for one in maps
        ),
        "table": documents.parse(
            next(one for one in maps if one["metadata"]["name"] == "qwen")["data"]["table.json"]
        ).table,
        "jobs": sorted(one["metadata"]["name"] for one in api.list("Job", namespace)),
        "roles": sorted(one["metadata"]["name"] for one in api.list("Role", namespace)),
    }


def live_through(harness: Harness, api: Api, namespace: str, dice: random.Random) -> Object:
    """Profile, change a setting, change the inputs, go back; the operator dies all along."""

    def look() -> None:
        look_mortally(harness, namespace, dice)

    api.apply(objects.draft_table(namespace))
    look()
    objects.finish(api, namespace)
    look()
    table = {"pinned": [{"first": 1, "last": 8, "draftLength": 3}], "historyLimit": 2}
    api.merge("DraftTable", namespace, "qwen", {"spec": {"table": table}})
    look()
    api.merge("DraftTable", namespace, "qwen", {"spec": {"table": {"rollbackTo": 1}}})
    look()
    api.merge("DraftTable", namespace, "qwen", {"spec": {"table": {"rollbackTo": None, "pinned": []}}})
    look()
    return end_state(api, namespace)


def test_a_hundred_deaths_change_nothing(plane: Plane, api: Api) -> None:
    ends = []
    for story in range(STORIES):
        namespace = f"restarts-{story}"
        fixtures.make_namespace(api, namespace)
        # The first operator never dies; the others must end where it did.
        dice = Immortal() if story == 0 else random.Random(story)
        harness = Harness(plane, api)
        ends.append(live_through(harness, api, namespace, dice))
        api.delete("Namespace", "", namespace)
    assert len(deaths) >= 100
    assert all(end == ends[0] for end in ends[1:])
