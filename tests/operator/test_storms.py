"""Another writer fights the operator for the same objects: in the end all is right, and requests were few."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tabletune_operator import queueing
from tests.controlplane.clients import Api, ApiError, Object, wait
from tests.controlplane.planes import Plane
from tests.operator import objects, processes
from tests.operator.harness import Harness, condition
from tests.operator.processes import Process

pytestmark = pytest.mark.cluster

STORM_SECONDS = 10.0
MOST_STORM_SECONDS = 60.0
MOST_A_LOOK = 6
"""Requests of one look that undoes somebody's work: read the history, write table, status and Event."""


@contextmanager
def storm(plane: Plane, write: Callable[[Api, int], object]) -> Iterator[list[int]]:
    """Write as fast as one can while the block runs; yield how often."""
    stop, written = threading.Event(), [0]

    def run() -> None:
        api = plane.admin
        for number in itertools.count():
            if stop.is_set():
                break
            try:
                write(api, number)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
            written[0] += 1
        api.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def edit_data(api: Api, namespace: str, number: int) -> None:
    api.merge("ConfigMap", namespace, "qwen", {"data": {"table.json": f"edit {number}"}})


def edit_status(api: Api, namespace: str, number: int) -> None:
    # A phase that is not so, a field that is not there, and a condition of somebody else's.
    lie = {
        "phase": "Paused",
        "restoredFrom": number + 1,
        "conditions": [],
        "profile": {"attempt": 7, "digest": "x"},
    }
    api.merge("DraftTable", namespace, "qwen", {"status": lie}, "status")


def edit_labels(api: Api, namespace: str, number: int) -> None:
    # Without its label an object vanishes from the operator's watch.
    label = None if number % 2 else "qwen"
    for name in ("qwen", "qwen-g1"):
        api.merge(
            "ConfigMap",
            namespace,
            name,
            {"metadata": {"labels": {"tabletune.dev/draft-table": label}}},
        )


def edit_table(api: Api, namespace: str, number: int) -> None:
    metadata = {"annotations": {"example.com/counter": str(number)}, "labels": {"team": f"team-{number}"}}
    api.merge("DraftTable", namespace, "qwen", {"metadata": metadata})


def edit_everything(api: Api, namespace: str, number: int) -> None:
    edits = (edit_data, edit_status, edit_labels, edit_table)
    edits[number % len(edits)](api, namespace, number // len(edits))


def delete_table(api: Api, namespace: str, number: int) -> None:
    api.delete("ConfigMap", namespace, "qwen")


STORMS = {
    "status": edit_status,
    "labels": edit_labels,
    "the DraftTable": edit_table,
    "everything": edit_everything,
    "deletion": delete_table,
}


def said(status: Object) -> Object:
    """A status without the times of its conditions."""
    conditions = [
        {key: one[key] for key in one if key != "lastTransitionTime"} for one in status["conditions"]
    ]
    return {**status, "conditions": conditions}


@pytest.mark.parametrize("case", STORMS)
def test_after_a_storm_all_is_as_it_was_and_requests_were_few(
    plane: Plane, api: Api, namespace: str, tmp_path: Path, case: str
) -> None:
    def requests() -> float:
        return operator.count("tabletune_operator_api_requests_total")

    def allowed() -> float:
        """Return how many looks there may have been since the storm began."""
        return queueing.BURST + (time.monotonic() - began) / queueing.PACE_SECONDS

    def is_quiet() -> bool:
        before = requests()
        time.sleep(2)
        return requests() == before

    token = processes.grant(api)
    with Process(plane, token, tmp_path, lease="") as operator:
        operator.wait_until_ready()
        api.apply(objects.draft_table(namespace))
        objects.finish(api, namespace)
        before = objects.status_until(api, namespace, lambda status: status.get("phase") == "Ready")
        wait("it to be quiet", is_quiet)
        before = api.get("DraftTable", namespace, "qwen")["status"]
        data = api.get("ConfigMap", namespace, "qwen")["data"]

        made, began = requests(), time.monotonic()
        with storm(plane, lambda api, number: STORMS[case](api, namespace, number)) as written:
            time.sleep(STORM_SECONDS)
            # Where the machine is slow, so is its writer: on until there is much more to do than may be done.
            while written[0] <= 2 * allowed() and time.monotonic() - began < MOST_STORM_SECONDS:
                time.sleep(1)
            if written[0] <= 2 * allowed():
                pytest.skip("this machine is too slow for a storm")
        wait("it to be quiet again", is_quiet)
        assert requests() - made < allowed() * MOST_A_LOOK

        found = api.get("ConfigMap", namespace, "qwen")
        assert found["data"] == data
        assert found["metadata"]["labels"]["tabletune.dev/draft-table"] == "qwen"
        assert said(api.get("DraftTable", namespace, "qwen")["status"]) == said(before)
        assert operator.count('tabletune_operator_reconciles_total{result="failed"}') == 0
        # It still acts on what is asked for.
        pinned = [{"first": 1, "last": 8, "draftLength": 3}]
        api.merge("DraftTable", namespace, "qwen", {"spec": {"table": {"pinned": pinned}}})
        status = objects.status_until(api, namespace, lambda status: status.get("generation") == 2)
        assert condition(status, "Degraded")["status"] == "False"
    assert "Traceback" not in operator.log


def test_a_newest_generation_that_was_taken_out_of_the_history_comes_back(
    harness: Harness, api: Api, namespace: str
) -> None:
    api.apply(objects.draft_table(namespace))
    harness.settle(namespace)
    objects.finish(api, namespace)
    harness.settle(namespace)
    pinned = [{"first": 1, "last": 8, "draftLength": 3}]
    api.merge("DraftTable", namespace, "qwen", {"spec": {"table": {"pinned": pinned}}})
    before = harness.settle(namespace)["status"]
    data = api.get("ConfigMap", namespace, "qwen")["data"]
    assert (before["generation"], before["history"]) == (2, [1, 2])

    # Hidden from the operator, and then gone: pods that follow 2 would take no 1.
    for change in ("hide", "delete"):
        if change == "hide":
            label = {"metadata": {"labels": {"tabletune.dev/draft-table": None}}}
            api.merge("ConfigMap", namespace, "qwen-g2", label)
        else:
            api.delete("ConfigMap", namespace, "qwen-g2")
        found = harness.settle(namespace)["status"]
        assert (found["generation"], found["history"]) == (2, [1, 2])
        assert condition(found, "Profiled")["status"] == "True"
        assert api.get("ConfigMap", namespace, "qwen")["data"] == data
    assert api.get("ConfigMap", namespace, "qwen-g2")["metadata"]["labels"]["tabletune.dev/draft-table"]
