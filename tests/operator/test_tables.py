"""Generations of a table on a real API server: settings, rollback, history, adoption, edits by hand,
conflicts."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune import documents, rendering
from tests.controlplane.clients import Api, Object, wait
from tests.operator import objects
from tests.operator.harness import Harness, condition

pytestmark = pytest.mark.cluster


def profiled(harness: Harness, api: Api, namespace: str, name: str = "qwen", **spec: Any) -> Object:
    """Make a DraftTable whose profile is done: the Job's report is there, and the Job was cleaned up."""
    api.apply(objects.draft_table(namespace, name, **spec))
    harness.settle(namespace, name)
    objects.finish(api, namespace, name)
    return harness.settle(namespace, name)


def served(api: Api, namespace: str, name: str = "qwen") -> documents.Document:
    return documents.parse(api.get("ConfigMap", namespace, name)["data"]["table.json"])


def entries(api: Api, namespace: str) -> list[str]:
    return sorted(
        one["metadata"]["name"] for one in api.list("ConfigMap", namespace, "tabletune.dev/role=history")
    )


def change(api: Api, namespace: str, **table: Any) -> None:
    api.merge("DraftTable", namespace, "qwen", {"spec": {"table": table}})


def test_a_result_is_taken_although_its_job_was_cleaned_up(
    harness: Harness, api: Api, namespace: str
) -> None:
    found = profiled(harness, api, namespace)
    assert (found["status"]["phase"], found["status"]["generation"]) == ("Ready", 1)
    assert entries(api, namespace) == ["qwen-g1"]
    assert api.list("ConfigMap", namespace, "tabletune.dev/role=report") == []


def test_another_table_setting_makes_a_generation_and_no_profile(
    harness: Harness, api: Api, namespace: str
) -> None:
    profiled(harness, api, namespace)
    change(api, namespace, pinned=[{"first": 1, "last": 8, "draftLength": 3}])
    found = harness.settle(namespace)
    assert (found["status"]["generation"], condition(found, "Profiled")["status"]) == (2, "True")
    assert api.list("Job", namespace) == []
    document = served(api, namespace)
    assert document.generation == 2
    assert document.table[0][2] == 3


def test_a_setting_that_moves_no_range_keeps_the_generation(
    harness: Harness, api: Api, namespace: str
) -> None:
    profiled(harness, api, namespace)
    api.merge("DraftTable", namespace, "qwen", {"spec": {"serving": {"pluginMode": "Adapt"}}})
    assert harness.settle(namespace)["status"]["generation"] == 1
    assert served(api, namespace).control.mode == "adapt"


def test_settings_that_do_not_fit_are_told_and_the_last_table_stays(
    harness: Harness, api: Api, namespace: str
) -> None:
    lengths = {"method": "eagle3", "model": "/models/eagle", "draftLengths": [0, 1, 2, 3, 9]}
    profiled(harness, api, namespace, drafter=lengths)
    before = served(api, namespace)
    change(api, namespace, allowedLengths=[9])
    for _ in range(2):
        found = harness.settle(namespace)
        assert condition(found, "Degraded")["reason"] == "TableNotComputable"
        assert condition(found, "Ready")["status"] == "True"
    assert served(api, namespace).table == before.table


def test_going_back_is_a_new_generation_that_is_held(harness: Harness, api: Api, namespace: str) -> None:
    profiled(harness, api, namespace)
    first = served(api, namespace)
    change(api, namespace, pinned=[{"first": 1, "last": 8, "draftLength": 3}])
    harness.settle(namespace)
    change(api, namespace, rollbackTo=1)
    found = harness.settle(namespace)
    assert (found["status"]["generation"], found["status"]["restoredFrom"]) == (3, 1)
    assert served(api, namespace).table == first.table
    change(api, namespace, pinned=[{"first": 1, "last": 4, "draftLength": 2}])
    assert harness.settle(namespace)["status"]["generation"] == 3
    change(api, namespace, rollbackTo=None)
    assert harness.settle(namespace)["status"]["generation"] == 4


def test_going_back_to_what_is_not_kept_is_told_with_what_is(
    harness: Harness, api: Api, namespace: str
) -> None:
    profiled(harness, api, namespace)
    change(api, namespace, rollbackTo=9)
    found = harness.settle(namespace)
    assert condition(found, "Degraded")["reason"] == "RollbackUnknown"
    assert "kept are 1" in condition(found, "Degraded")["message"]


def test_the_history_is_kept_to_its_limit(harness: Harness, api: Api, namespace: str) -> None:
    profiled(harness, api, namespace, table={"historyLimit": 2})
    for length in (1, 2, 3):
        change(api, namespace, pinned=[{"first": 1, "last": 8, "draftLength": length}])
        found = harness.settle(namespace)
    kept = found["status"]["history"]
    assert len(kept) == 2
    assert entries(api, namespace) == [f"qwen-g{number}" for number in kept]


@pytest.mark.parametrize("edit", [{"data": {"table.json": "garbage"}}, {"data": None}, "delete"])
def test_what_somebody_did_to_the_config_map_is_undone(
    harness: Harness, api: Api, namespace: str, edit: Any
) -> None:
    profiled(harness, api, namespace)
    before = api.get("ConfigMap", namespace, "qwen")["data"]
    if edit == "delete":
        api.delete("ConfigMap", namespace, "qwen")
    else:
        api.merge("ConfigMap", namespace, "qwen", edit)
    found = harness.settle(namespace)
    assert api.get("ConfigMap", namespace, "qwen")["data"] == before
    assert found["status"]["generation"] == 1


def test_a_history_that_was_deleted_comes_back_from_what_is_served(
    harness: Harness, api: Api, namespace: str
) -> None:
    profiled(harness, api, namespace)
    api.delete("ConfigMap", namespace, "qwen-g1")
    found = harness.settle(namespace)
    assert entries(api, namespace) == ["qwen-g1"]
    assert (condition(found, "Profiled")["status"], found["status"]["generation"]) == ("True", 1)


def test_after_all_was_deleted_generations_go_on_counting(harness: Harness, api: Api, namespace: str) -> None:
    profiled(harness, api, namespace)
    for name in ("qwen", "qwen-g1"):
        api.delete("ConfigMap", namespace, name)
    found = profiled(harness, api, namespace)
    assert found["status"]["generation"] == 2


def foreign(namespace: str, **labels: str) -> Object:
    body = rendering.config_map(objects.example(), name="qwen", namespace=namespace, labels=labels)
    return dict(body)


def test_a_strangers_config_map_is_left_alone(harness: Harness, api: Api, namespace: str) -> None:
    api.create(foreign(namespace))
    api.apply(objects.draft_table(namespace))
    found = harness.settle(namespace)
    assert condition(found, "Degraded")["reason"] == "ConfigMapNotOwned"
    assert condition(found, "Ready")["status"] == "False"
    assert api.list("Job", namespace) == []
    assert "ownerReferences" not in api.get("ConfigMap", namespace, "qwen")["metadata"]


def test_an_adopted_one_stays_in_force_until_a_profile_is_done(
    harness: Harness, api: Api, namespace: str
) -> None:
    api.create(foreign(namespace))
    api.apply(objects.draft_table(namespace, table={"adopt": True}))
    found = harness.settle(namespace)
    assert condition(found, "Ready")["status"] == "True"
    assert condition(found, "Profiled")["status"] == "False"
    assert len(api.list("Job", namespace)) == 1
    assert api.get("ConfigMap", namespace, "qwen")["metadata"]["ownerReferences"][0]["kind"] == "DraftTable"


def test_an_adopted_one_without_a_table_is_overwritten_by_the_profile(
    harness: Harness, api: Api, namespace: str
) -> None:
    body = foreign(namespace)
    body["data"] = {"table.json": "\x00 not json", "other": "x" * 100_000}
    api.create(body)
    api.apply(objects.draft_table(namespace, table={"adopt": True}))
    found = profiled(harness, api, namespace, table={"adopt": True})
    assert found["status"]["phase"] == "Ready"
    assert served(api, namespace).generation == found["status"]["generation"]


def test_of_two_for_one_config_map_the_younger_stands_back(
    harness: Harness, api: Api, namespace: str
) -> None:
    # Age decides, so their names are in the other order.
    profiled(harness, api, namespace, "second-name", table={"configMapName": "shared"})
    objects.outlive_second(api, namespace, "second-name")
    api.apply(objects.draft_table(namespace, "first-name", table={"configMapName": "shared"}))
    for _ in range(2):
        younger = harness.settle(namespace, "first-name")
        older = harness.settle(namespace, "second-name")
        assert (older["status"]["phase"], younger["status"]["phase"]) == ("Ready", "Failed")
    assert condition(younger, "Degraded")["reason"] == "ConfigMapConflict"
    assert "DraftTable second-name, which is older" in condition(younger, "Degraded")["message"]
    api.delete("DraftTable", namespace, "second-name")
    wait("the ConfigMap to go with its owner", lambda: api.find("ConfigMap", namespace, "shared") is None)
    found = harness.settle(namespace, "first-name")
    assert condition(found, "Profiled")["reason"] in ("ProfileStarting", "ProfileRunning", "Unschedulable")


@pytest.mark.parametrize("config", [{"method": "x"}, {"num_speculative_tokens": 3}])
def test_a_key_that_another_field_sets_is_told(
    harness: Harness, api: Api, namespace: str, config: Any
) -> None:
    drafter = {"method": "ngram", "config": config}
    api.apply(objects.draft_table(namespace, drafter=drafter))
    found = harness.settle(namespace)
    assert condition(found, "Degraded")["reason"] == "InvalidSpec"
    assert next(iter(config)) in condition(found, "Degraded")["message"]
    assert found["status"]["phase"] == "Failed"
