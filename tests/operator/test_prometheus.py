"""Counters by way of Prometheus: its own engine answers from real pages, or something goes wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tabletune.api.drafttables import Prometheus
from tabletune_operator import scraping, surveying
from tabletune_operator.expositions import Reading
from tabletune_operator.scraping import Failure, Scraper
from tests.controlplane.clients import Api, wait
from tests.controlplane.planes import Plane, free_port
from tests.operator import fleets, objects, processes, prometheuses
from tests.operator.fleets import Page
from tests.operator.harness import condition
from tests.operator.objects import status_until
from tests.operator.processes import Process
from tests.operator.prometheuses import Server, Target

pytestmark = pytest.mark.cluster

SURVIVAL = objects.example().acceptance.survival
HARDLY_ANY = (0.02,) * len(SURVIVAL)


def ask(url: str, pods: Sequence[str], seconds: float = 60.0) -> Mapping[str, Reading | Failure]:
    """Read ``pods`` of the namespace ml once."""

    async def read() -> Mapping[str, Reading | Failure]:
        async with surveying.session() as session:
            return await Scraper(session, 4, seconds).prometheus(Prometheus(url=url), "ml", pods)

    return asyncio.run(read())


def test_a_table_is_corrected_by_way_of_prometheus(
    programs: dict[str, Path], plane: Plane, api: Api, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    pages = [Page(), Page()]
    server = Server(programs["promql"])
    token = processes.grant(api)
    with (
        fleets.served(pages, port) as addresses,
        prometheuses.serving(server) as url,
        Process(plane, token, tmp_path, lease="") as operator,
    ):
        server.targets = [
            Target(f"http://{address}:{port}/metrics", {"namespace": namespace, "pod": pod, "job": job})
            # Two jobs scrape the same pods.
            for job in ("podmonitor", "annotations")
            for pod, address in zip(("pod-0", "pod-1"), addresses, strict=True)
        ]
        operator.wait_until_ready()
        serving = {
            "selector": {"matchLabels": {"app": "qwen"}},
            "mode": "Correct",
            "source": "Prometheus",
            "prometheus": {"url": url},
            "intervalSeconds": 5,
            "minDrafts": 1000,
        }
        api.apply(objects.draft_table(namespace, serving=serving))
        objects.finish(api, namespace)
        for number in range(2):
            # Nothing is there at the pod's own address.
            fleets.make_pod(api, namespace, f"pod-{number}", "127.0.9.9", {"app": "qwen"})
        found = status_until(api, namespace, lambda status: status.get("serving", {}).get("ready") == "2/2")
        assert condition(found, "Serving")["reason"] == "PodsUpToDate"

        served = 0

        def serve_until_corrected() -> bool:
            nonlocal served
            served += 3_000 * len(pages)
            for page in pages:
                page.serve(HARDLY_ANY, 3_000)
            return bool(api.get("DraftTable", namespace, "qwen")["status"]["generation"] == 2)

        wait("the correction", serve_until_corrected, 180, 1.0)
        found = api.get("DraftTable", namespace, "qwen")["status"]
        assert found["source"] == "correction"
        # What two jobs scraped is counted once.
        assert 0 < found["serving"]["drafts"] <= served

        # Prometheus goes; that is told for what it is, and the table stays.
        server.answer = lambda handler: prometheuses.send(
            handler, {"status": "error", "error": "query timed out in expression evaluation"}, 503
        )
        found = status_until(
            api, namespace, lambda status: condition(status, "Serving")["reason"] == "PodsUnreachable"
        )
        assert "query timed out" in condition(found, "Serving")["message"]
        assert found["generation"] == 2
    assert "Traceback" not in operator.log


def test_what_two_scraped_at_two_moments_is_one_and_always_the_same(programs: dict[str, Path]) -> None:
    port = free_port()
    pages = [Page(), Page(), Page()]
    for number, page in enumerate(pages, start=1):
        page.serve(SURVIVAL, 100 * number)
    server = Server(programs["promql"])
    with fleets.served(pages, port) as addresses, prometheuses.serving(server) as url:
        fresh, old, other = (f"http://{address}:{port}/metrics" for address in addresses)
        labels = {"namespace": "ml", "pod": "a.b"}
        server.targets = [
            Target(fresh, labels | {"replica": "b"}),
            Target(old, labels | {"replica": "a"}),
            # As the regular expression a.b it would be this one too; and another namespace's is nobody's.
            Target(other, labels | {"pod": "axb"}),
            Target(other, labels | {"namespace": "other"}),
        ]
        found = [ask(url, ["a.b"])["a.b"] for _ in range(3)]
    assert {one.drafted[1] for one in found if isinstance(one, Reading)} == {200.0}


def test_many_pods_are_asked_for_in_groups(programs: dict[str, Path]) -> None:
    count = 2 * scraping.PODS_A_QUERY + 20
    port = free_port()
    server = Server(programs["promql"])
    with fleets.served([Page(generation=7)], port) as addresses, prometheuses.serving(server) as url:
        page = f"http://{addresses[0]}:{port}/metrics"
        pods = [f"pod-{number}" for number in range(count)]
        server.targets = [Target(page, {"namespace": "ml", "pod": pod}) for pod in pods]
        found = dict(ask(url, [*pods, "pod-that-is-not-scraped"]))
    assert len(server.asked) == 3
    assert isinstance(missing := found.pop("pod-that-is-not-scraped"), Failure)
    assert "no metrics" in missing.message
    assert {one.generation for one in found.values() if isinstance(one, Reading)} == {7}
    assert len(found) == count


def wrong_query(handler: BaseHTTPRequestHandler) -> None:
    prometheuses.send(handler, {"status": "error", "errorType": "bad_data", "error": "parse error"}, 400)


def error_in_an_answer(handler: BaseHTTPRequestHandler) -> None:
    prometheuses.send(handler, {"status": "error", "error": "no store is there", "data": {"result": []}})


def scalar(handler: BaseHTTPRequestHandler) -> None:
    prometheuses.send(handler, {"status": "success", "data": {"resultType": "scalar", "result": "1"}})


def other_types(handler: BaseHTTPRequestHandler) -> None:
    prometheuses.send(handler, {"status": "success", "data": [{"result": 3}]})


def page_of_a_login(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"<html>Sign in</html>" * 1_000)


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        handler.wfile.write(b'{"status": "success", "data": {"result": [')
        while True:
            handler.wfile.write(b'{"metric": {}, "value": [0, "1"]},' * 1_000)
    except OSError:
        return


def endless_failure(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(500)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"x" * 10_000)
    except OSError:
        return


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.recv(1)  # until the operator gives up


def deep(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"[" * 200_000)


def elsewhere(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://169.254.169.254/")
    handler.end_headers()


def odd_samples(handler: BaseHTTPRequestHandler) -> None:
    good = {"__name__": "tabletune_table_generation", "pod": "a"}
    samples = [
        {"metric": {}},
        3,
        None,
        {"metric": good | {"pod": "b"}, "value": ["x"]},
        {"metric": {"__name__": "tabletune_drafted_total", "pod": "a", "position": "1"}, "value": [0, "NaN"]},
        {"metric": {"__name__": "tabletune_drafted_total", "pod": "a", "position": []}, "value": [0, "1"]},
        {"metric": good, "value": [0, "7"]},
    ]
    prometheuses.send(handler, {"status": "success", "data": {"result": samples}})


WRONG = {
    "wrong query": (wrong_query, "answers 400: parse error"),
    "error in an answer": (error_in_an_answer, "does not answer as Prometheus does: no store is there"),
    "scalar": (scalar, "does not answer as Prometheus does"),
    "other types": (other_types, "does not answer as Prometheus does"),
    "login": (page_of_a_login, "does not answer as Prometheus does"),
    "endless": (endless, "answers with more than"),
    "endless failure": (endless_failure, "answers 500"),
    "silent": (silent, "does not answer within 1 s"),
    "deep": (deep, "does not answer as Prometheus does"),
    "redirect": (elsewhere, "answers 302"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_prometheus_is_told(programs: dict[str, Path], case: str) -> None:
    answer, words = WRONG[case]
    with prometheuses.serving(Server(programs["promql"], answer=answer)) as url:
        # Long enough for all but the silent one, which is never waited for to its end.
        found = ask(url, ["a"], 1.0 if case == "silent" else 60.0)["a"]
    assert isinstance(found, Failure)
    assert words in found.message


def test_samples_that_are_none_hide_no_others(programs: dict[str, Path]) -> None:
    with prometheuses.serving(Server(programs["promql"], answer=odd_samples)) as url:
        found = ask(url, ["a", "b"])
    assert isinstance(found["a"], Reading)
    assert (found["a"].generation, found["a"].drafted) == (7, {})
    assert isinstance(found["b"], Failure)


def test_no_server_at_all_is_told(programs: dict[str, Path]) -> None:
    found = ask(f"http://127.0.0.1:{free_port()}", ["a"])["a"]
    assert isinstance(found, Failure)
    assert "cannot be reached" in found.message
