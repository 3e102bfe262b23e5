"""The whole loop on a real API server: pods' HTTP pages in, a corrected table out, a bad one taken back."""

from __future__ import annotations

import asyncio
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tabletune.api.drafttables import PodSelector
from tabletune_operator import surveying
from tabletune_operator.expositions import Reading
from tabletune_operator.scraping import Failure, Scraper
from tests.controlplane.clients import Api, Object, wait
from tests.controlplane.planes import Plane, free_port
from tests.operator import fleets, objects, processes
from tests.operator.fleets import Page
from tests.operator.harness import condition
from tests.operator.objects import status_until
from tests.operator.processes import Process

cluster = pytest.mark.cluster
SURVIVAL = objects.example().acceptance.survival


def serving(port: int, **changes: object) -> Object:
    chosen = {
        "selector": {"matchLabels": {"app": "qwen"}},
        "mode": "Correct",
        "metricsPort": port,
        "intervalSeconds": 5,
        "minDrafts": 1000,
        "guard": {"minSteps": 500, "windowSeconds": 30},
    }
    return chosen | changes


def profiled(api: Api, namespace: str, **spec: Any) -> None:
    api.apply(objects.draft_table(namespace, **spec))
    objects.finish(api, namespace)


@cluster
def test_a_profiling_pod_is_no_serving_pod_where_both_have_the_label_of_the_draft_table(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    label = {"tabletune.dev/draft-table": "qwen"}
    with (
        fleets.served([Page()], port) as (address,),
        Process(plane, processes.grant(api), tmp_path, lease="") as operator,
    ):
        operator.wait_until_ready()
        fleets.make_pod(api, namespace, "serves", address, label)
        managed = {"app.kubernetes.io/managed-by": "tabletune-operator"}
        fleets.make_pod(api, namespace, "profiles", "127.0.1.9", label | managed)
        profiled(api, namespace, serving=serving(port, selector={"matchLabels": label}))
        found = status_until(api, namespace, lambda status: status.get("serving", {}).get("pods"))
        assert found["serving"]["ready"] == "1/1"
        wait("it to lead", lambda: "tabletune_operator_leading 1.0" in operator.get("/metrics")[1])


@cluster
def test_live_traffic_corrects_the_table_and_the_guard_takes_it_back(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    pages = [Page(), Page()]
    token = processes.grant(api)
    with fleets.served(pages, port) as addresses, Process(plane, token, tmp_path, lease="") as operator:
        operator.wait_until_ready()
        profiled(api, namespace, serving=serving(port))
        for number, address in enumerate(addresses):
            fleets.make_pod(api, namespace, f"pod-{number}", address, {"app": "qwen"})
        found = status_until(api, namespace, lambda status: status.get("serving", {}).get("ready") == "2/2")
        assert condition(found, "Serving")["reason"] == "PodsUpToDate"

        # Another workload: hardly anything is accepted.
        def serve_until_corrected() -> bool:
            for page in pages:
                page.serve((0.02,) * len(SURVIVAL), 3_000)
            return bool(api.get("DraftTable", namespace, "qwen")["status"]["generation"] == 2)

        wait("the correction", serve_until_corrected, 180, 1.0)
        found = api.get("DraftTable", namespace, "qwen")["status"]
        assert found["source"] == "correction"
        before = api.find("ConfigMap", namespace, "qwen-g1")
        assert before is not None
        touched = wait(
            "the pods to be touched",
            lambda: [
                pod
                for pod in api.list("Pod", namespace, "app=qwen")
                if pod["metadata"].get("annotations", {}).get("tabletune.dev/refreshed-generation") == "2"
            ],
        )
        assert touched

        # The pods follow, and keep far fewer tokens: the guard goes back.
        for page in pages:
            page.generation = 2

        def serve_until_rolled_back() -> bool:
            for page in pages:
                page.serve((0.02,) * len(SURVIVAL), 3_000, tokens_per_second=300)
            return bool(api.get("DraftTable", namespace, "qwen")["status"]["generation"] == 3)

        wait("the rollback", serve_until_rolled_back, 180, 1.0)
        found = status_until(
            api, namespace, lambda status: condition(status, "Degraded")["reason"] == "RolledBack"
        )
        assert found["restoredFrom"] == 1
        assert "fewer tokens per second" in condition(found, "Degraded")["message"]
        events = {event["reason"] for event in api.list("Event", namespace)}
        assert "RolledBack" in events
        # It stays so, also for another operator.
        operator.kill()
    with Process(plane, token, tmp_path, "later", lease="") as operator:
        operator.wait_until_ready()
        seen = found["serving"]["lastSeen"]
        found = status_until(api, namespace, lambda status: status["serving"]["lastSeen"] != seen)
        assert (found["generation"], condition(found, "Degraded")["reason"]) == (3, "RolledBack")
        assert 'code="403"' not in operator.get("/metrics")[1]


@cluster
def test_drift_is_reported_and_by_policy_profiled_once(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    page = Page()
    page.extra = 'tabletune_fingerprint_differs{field="gpu",minor="no"} 1.0\n'
    token = processes.grant(api)
    with fleets.served([page], port) as addresses, Process(plane, token, tmp_path, lease="") as operator:
        operator.wait_until_ready()
        profiled(api, namespace, serving=serving(port, mode="Observe"))
        fleets.make_pod(api, namespace, "pod", addresses[0], {"app": "qwen"})
        found = status_until(
            api, namespace, lambda status: condition(status, "Degraded").get("reason") == "FingerprintDrift"
        )
        assert "gpu" in condition(found, "Degraded")["message"]
        api.merge("DraftTable", namespace, "qwen", {"spec": {"serving": {"driftPolicy": "Reprofile"}}})
        objects.finish(api, namespace)
        status_until(api, namespace, lambda status: status.get("generation") == 2)
        looks = operator.count("tabletune_operator_scrapes_total")
        wait("more looks", lambda: operator.count("tabletune_operator_scrapes_total") >= looks + 2)
        assert objects.job_of(api, namespace) is None


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"tabletune_active 1\n" * 1_000)
    except OSError:
        return


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.recv(1)  # until the operator gives up


def binary(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(bytes(range(256)) * 100)


def broken(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\x01 no http\r\n\r\n")


def redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://169.254.169.254/")
    handler.end_headers()


def failing(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(500)
    handler.end_headers()


HOSTILE = {
    "endless": (endless, "more than"),
    "binary": (binary, "no metrics of TableTune"),
    "broken": (broken, "cannot be reached"),
    "redirect": (redirect, "answers 302"),
    "failing": (failing, "answers 500"),
}


def test_hostile_pods_are_told_and_hold_nobody_up() -> None:
    port = free_port()
    pages = [Page() for _ in range(len(HOSTILE) + 2)]
    for page, (hostile, _) in zip(pages, HOSTILE.values(), strict=False):
        page.hostile = hostile
    pages[-1].hostile = silent

    async def read(addresses: list[str]) -> list[Reading | Failure]:
        *others, hanging = addresses
        async with surveying.session() as session:
            scraper = Scraper(session, at_once=8, seconds=60.0)
            hung = asyncio.create_task(scraper.pod(hanging, port))
            found = await asyncio.gather(
                *(scraper.pod(address, port) for address in [*others, "127.0.1.200"])
            )
            assert not hung.done()
            hung.cancel()
            return found

    with fleets.served(pages, port) as addresses:
        *found, good, absent = asyncio.run(read(addresses))
    for result, (_, words) in zip(found, HOSTILE.values(), strict=True):
        assert isinstance(result, Failure)
        assert words in result.message
    assert isinstance(good, Reading)
    assert isinstance(absent, Failure)


def test_silent_pod_is_given_up() -> None:
    port = free_port()
    page = Page()
    page.hostile = silent

    async def read(address: str) -> Reading | Failure:
        async with surveying.session() as session:
            return await Scraper(session, at_once=1, seconds=0.5).pod(address, port)

    with fleets.served([page], port) as (address,):
        found = asyncio.run(read(address))
    assert isinstance(found, Failure)
    assert "does not answer within 0.5 s" in found.message


def test_a_selector_is_written_as_the_api_server_reads_it() -> None:
    selector = PodSelector.model_validate(
        {
            "matchLabels": {"app": "qwen"},
            "matchExpressions": [
                {"key": "pool", "operator": "In", "values": ["a", "b"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }
    )
    assert surveying.text_of(selector) == "app=qwen,pool in (a,b),!old"


@cluster
def test_of_two_that_select_the_same_pods_the_younger_stands_back(
    plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    token = processes.grant(api)
    with fleets.served([Page()], port) as addresses, Process(plane, token, tmp_path, lease="") as operator:
        operator.wait_until_ready()
        profiled(api, namespace, serving=serving(port, mode="Observe"))
        fleets.make_pod(api, namespace, "pod", addresses[0], {"app": "qwen"})
        status_until(api, namespace, lambda status: status.get("serving", {}).get("ready") == "1/1")
        objects.outlive_second(api, namespace, "qwen")
        api.apply(objects.draft_table(namespace, "a-younger", serving=serving(port, mode="Observe")))
        objects.finish(api, namespace, "a-younger")
        found = status_until(
            api,
            namespace,
            lambda status: condition(status, "Degraded").get("reason") == "PodsConflict",
            "a-younger",
        )
        assert "DraftTable qwen, which is older" in condition(found, "Degraded")["message"]
        found = api.get("DraftTable", namespace, "qwen")["status"]
        assert condition(found, "Degraded")["status"] == "False"

        # The older one lets go of them, as the message asks: the younger one takes over.
        selector = {"matchLabels": {"app": "other"}}
        api.merge("DraftTable", namespace, "qwen", {"spec": {"serving": {"selector": selector}}})
        found = status_until(api, namespace, lambda status: status["serving"]["ready"] == "1/1", "a-younger")
        assert condition(found, "Degraded")["status"] == "False"
