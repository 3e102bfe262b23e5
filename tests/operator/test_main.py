"""The operator's process: under exactly its roles, through outages, beside another one, to its end."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from tabletune import documents
from tests.controlplane import fixtures
from tests.controlplane.clients import Api, ApiError, Object, wait
from tests.controlplane.planes import Plane
from tests.operator import objects, processes
from tests.operator.harness import condition
from tests.operator.processes import Process

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("scope", ["namespaced", "cluster-wide"])
def test_its_roles_are_enough_and_no_call_is_forbidden(
    plane: Plane, api: Api, namespace: str, tmp_path: Path, scope: str
) -> None:
    namespaces = (namespace,) if scope == "namespaced" else ()
    token = processes.grant(api, namespaces)
    with Process(plane, token, tmp_path, namespaces=",".join(namespaces)) as operator:
        operator.wait_until_ready()
        api.apply(objects.draft_table(namespace))
        objects.finish(api, namespace)
        objects.status_until(api, namespace, lambda status: status.get("phase") == "Ready")
        api.merge("DraftTable", namespace, "qwen", {"spec": {"engine": {"args": ["--max-num-seqs", "8"]}}})
        wait("another Job", lambda: objects.job_of(api, namespace))
        table = {"pinned": [{"first": 1, "last": 8, "draftLength": 3}], "historyLimit": 1}
        api.merge("DraftTable", namespace, "qwen", {"spec": {"table": table}})
        objects.status_until(api, namespace, lambda status: status.get("history") == [2])
        metrics = operator.get("/metrics")[1]
        assert operator.get("/healthz")[0] == 200
        assert 'code="403"' not in metrics
        assert 'tabletune_operator_generations_total{source="profile"}' in metrics
        whose = f'condition="Ready",draft_table="qwen",namespace="{namespace}"'
        shown = f'{{{whose},reason="TableInForce",status="True"}} 1.0'
        wait("its condition", lambda: shown in operator.get("/metrics")[1])
        wait("it to lead", lambda: "tabletune_operator_leading 1.0" in operator.get("/metrics")[1])
        code = operator.stop()
    assert "orbidden" not in operator.log
    assert "Traceback" not in operator.log
    assert code == 0
    found = api.get("DraftTable", namespace, "qwen")
    assert not found["metadata"].get("finalizers")
    assert not [key for key in found["metadata"].get("annotations", {}) if "kopf" in key]
    assert "kopf" not in found["status"]


def test_namespaced_roles_reach_no_other_namespace(plane: Plane, api: Api, namespace: str) -> None:
    token = processes.grant(api, (namespace,))
    api.delete("ClusterRoleBinding", "", "tabletune-operator")
    operator = plane.as_token(token)
    with pytest.raises(ApiError, match="403"):
        operator.list("ConfigMap", "default")
    assert operator.list("ConfigMap", namespace)
    operator.close()


def test_killed_it_goes_on_where_it_was(plane: Plane, api: Api, namespace: str, tmp_path: Path) -> None:
    token = processes.grant(api)
    operator = Process(plane, token, tmp_path, lease="")
    operator.start().wait_until_ready()
    api.apply(objects.draft_table(namespace))
    wait("the Job", lambda: objects.job_of(api, namespace))
    operator.kill()
    objects.finish(api, namespace)
    with operator:
        objects.status_until(api, namespace, lambda status: status.get("phase") == "Ready")


def test_of_two_one_leads_and_the_other_takes_over(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    token = processes.grant(api)
    with Process(plane, token, tmp_path, "first") as first:
        first.wait_until_ready()
        wait("it to lead", lambda: "Leading" in first.log)
        with Process(plane, token, tmp_path, "second") as second:
            second.wait_until_ready()
            wait("it to wait", lambda: "Another operator leads" in second.log)
            first.stop()
            wait("it to take over", lambda: "Leading" in second.log)
            api.apply(objects.draft_table(namespace))
            wait("the Job", lambda: objects.job_of(api, namespace))


def follows(generation: int, status: Object) -> bool:
    """Whether a generation after ``generation`` is in force."""
    return bool((status.get("generation") or 0) > generation)


def test_two_that_both_act_make_nothing_twice_and_come_to_rest(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    token = processes.grant(api)
    with (
        Process(plane, token, tmp_path, "first", lease="", namespaces=namespace) as first,
        Process(plane, token, tmp_path, "second", lease="", namespaces=namespace) as second,
    ):
        both = (first, second)
        for operator in both:
            operator.wait_until_ready()
        api.apply(objects.draft_table(namespace))

        def is_at_rest() -> bool:
            before = api.get("DraftTable", namespace, "qwen")["metadata"]["resourceVersion"]
            time.sleep(3)
            return bool(before == api.get("DraftTable", namespace, "qwen")["metadata"]["resourceVersion"])

        # A Job lasts minutes. One that ended at once could be made again by whoever had just missed it.
        wait("the Job", lambda: objects.job_of(api, namespace))
        wait("both to have seen it", is_at_rest)
        objects.finish(api, namespace)
        objects.status_until(api, namespace, lambda status: status.get("generation") == 1)
        for number in (1, 2, 3):
            table = {"pinned": [{"first": 1, "last": 8, "draftLength": number}]}
            api.merge("DraftTable", namespace, "qwen", {"spec": {"table": table}})
            made = partial(follows, number)
            objects.status_until(api, namespace, made)
        found = objects.status_until(api, namespace, lambda status: status.get("phase") == "Ready")
        assert found["history"] == [1, 2, 3, 4]
        assert sum(one.count('tabletune_operator_jobs_total{result="started"}') for one in both) == 1
        assert sum(one.count("tabletune_operator_generations_total") for one in both) == 4
        wait("neither to write any more", is_at_rest)
    assert "Traceback" not in first.log + second.log


def test_through_outages_and_lost_watches_it_keeps_working(programs: dict[str, Path], tmp_path: Path) -> None:
    with Plane(programs) as plane:
        api = plane.admin
        fixtures.install_crds(api)
        token = processes.grant(api)
        fixtures.make_namespace(api, "ml")
        with Process(plane, token, tmp_path, lease="", resync_seconds=3) as operator:
            operator.wait_until_ready()
            api.apply(objects.draft_table("ml"))
            job = wait("the Job", lambda: objects.job_of(api, "ml"))["metadata"]["name"]

            # Away, and back with a past that watches cannot resume from; a Job vanishes unseen meanwhile.
            plane.stop_api_server(crash=True)
            unanswered = 'tabletune_operator_api_requests_total{code="0"'
            wait("it to get no answer", lambda: operator.count(unanswered) >= 2)
            assert operator.get("/healthz")[0] == 200
            plane.start_api_server()
            plane.compact()
            plane.restart_api_server()
            objects.report(api, "ml", job, documents.dump(objects.example()))
            api.delete("Job", "ml", job)
            objects.status_until(api, "ml", lambda status: status.get("phase") == "Ready")

            # Frozen: connections stay open and nothing answers.
            with plane.frozen_api_server():
                time.sleep(5)
            api.merge("DraftTable", "ml", "qwen", {"spec": {"serving": {"pluginMode": "Adapt"}}})
            wait(
                "the setting in the ConfigMap",
                lambda: '"mode": "adapt"' in api.get("ConfigMap", "ml", "qwen")["data"]["table.json"],
            )

            # A storm of edits by others ends with the operator's content.
            for number in range(30):
                api.merge("ConfigMap", "ml", "qwen", {"data": {"table.json": f"edit {number}"}})
            wait(
                "the table to be back",
                lambda: api.get("ConfigMap", "ml", "qwen")["data"]["table.json"].startswith("{"),
            )
            # One bad DraftTable stops no other.
            bad = objects.draft_table("ml", "bad", drafter={"method": "ngram", "config": {"model": "x"}})
            api.apply(bad)
            found = objects.status_until(api, "ml", lambda status: status.get("phase") == "Failed", "bad")
            assert condition(found, "Degraded")["reason"] == "InvalidSpec"
            assert operator.process is not None
            assert operator.process.poll() is None
        api.close()
