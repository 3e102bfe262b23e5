"""The operator's process through outages of the API server: alive, honest about it, and right afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tabletune import documents
from tests.controlplane import fixtures
from tests.controlplane.clients import Api, Object, wait
from tests.controlplane.planes import Plane, free_port
from tests.operator import fleets, objects, processes
from tests.operator.fleets import Page
from tests.operator.processes import Process

pytestmark = pytest.mark.cluster

SURVIVAL = objects.example().acceptance.survival
HARDLY_ANY = (0.02,) * len(SURVIVAL)
AWAY_SECONDS = 60.0
MOST_LINES_A_SECOND = 100 / 60


@pytest.fixture
def own_plane(programs: dict[str, Path]) -> Iterator[Plane]:
    """A control plane of the test's own, to be taken down."""
    with Plane(programs) as plane:
        api = plane.admin
        fixtures.install_crds(api)
        fixtures.make_namespace(api, "ml")
        api.close()
        yield plane


def history(api: Api, name: str) -> list[str]:
    """Names of a DraftTable's generations."""
    found = api.list("ConfigMap", "ml", f"tabletune.dev/role=history,tabletune.dev/draft-table={name}")
    return sorted(one["metadata"]["name"] for one in found)


def serving(port: int) -> Object:
    selector = {"matchLabels": {"app": "qwen"}}
    return {
        "selector": selector,
        "mode": "Correct",
        "metricsPort": port,
        "intervalSeconds": 5,
        "minDrafts": 50_000,
    }


def make_half_profiled(api: Api) -> tuple[Object, Object]:
    """Make a DraftTable whose profile is half done; return its Job and pod."""
    fixtures.make_node(api, "node")
    api.apply(objects.draft_table("ml", "profiling"))
    job = wait("the Job", lambda: objects.job_of(api, "ml", "profiling"))
    pod = wait("its pod", lambda: objects.pod_of(api, "ml", job["metadata"]["name"]))
    objects.run_pod(api, pod)
    objects.report(api, "ml", job["metadata"]["name"], phase="sweep", done=21, total=50)
    objects.status_until(api, "ml", lambda status: status.get("phase") == "Profiling", "profiling")
    return job, pod


def test_a_minute_without_the_api_server_changes_nothing_but_the_time(
    own_plane: Plane, tmp_path: Path
) -> None:
    api = own_plane.admin
    token = processes.grant(api)
    port = free_port()
    pages = [Page(), Page()]
    with fleets.served(pages, port) as addresses, Process(own_plane, token, tmp_path) as operator:
        operator.wait_until_ready()
        # One is corrected from live traffic, of which half is there; another is profiled, which is half done.
        api.apply(objects.draft_table("ml", serving=serving(port)))
        objects.finish(api, "ml")
        for number, address in enumerate(addresses):
            fleets.make_pod(api, "ml", f"pod-{number}", address, {"app": "qwen"})
        job, pod = make_half_profiled(api)
        for _ in range(2):
            seen = operator.count("tabletune_operator_scrapes_total")
            wait("a look", lambda: operator.count("tabletune_operator_scrapes_total") >= seen + 2)  # noqa: B023
            for page in pages:
                page.serve(HARDLY_ANY, 10_000)
        found = objects.status_until(api, "ml", lambda status: status["serving"].get("decision"))
        assert (found["generation"], found["serving"]["decision"]) == (1, "TooFewDrafts")
        lines = operator.log.count("\n")

        own_plane.stop_api_server(crash=True)
        began = time.monotonic()
        told = wait("readyz to tell", lambda: _unready(operator), pause=0.5)
        assert "the API server has not answered for" in told
        while time.monotonic() < began + AWAY_SECONDS:
            for page in pages:
                page.serve(HARDLY_ANY, 2_000)
            assert operator.get("/healthz") == (200, "ok\n")
            assert _unready(operator)
            time.sleep(1)
        assert operator.count("tabletune_operator_leading") == 0
        # Kopf's four watches tell of each try; nothing else does.
        assert operator.log.count("\n") - lines < MOST_LINES_A_SECOND * (time.monotonic() - began)

        own_plane.start_api_server()
        wait("it to be ready", lambda: operator.get("/readyz")[0] == 200)
        found = objects.status_until(api, "ml", lambda status: status.get("generation") == 2)
        assert found["source"] == "correction"
        own_plane.restart_controllers()
        objects.report(api, "ml", job["metadata"]["name"], documents.dump(objects.example()))
        objects.end_pod(api, pod, 0)
        found = objects.status_until(api, "ml", lambda status: status.get("phase") == "Ready", "profiling")

        # No Job and no generation twice, in the cluster and by the operator's own count.
        assert (history(api, "qwen"), history(api, "profiling")) == (["qwen-g1", "qwen-g2"], ["profiling-g1"])
        assert operator.count('tabletune_operator_jobs_total{result="started"}') == 2
        assert operator.count("tabletune_operator_generations_total") == 3
        assert operator.process is not None
        assert operator.process.poll() is None
    assert "Traceback" not in operator.log
    api.close()


def _unready(operator: Process) -> str:
    code, told = operator.get("/readyz")
    return told if code == 503 else ""


def test_frozen_for_long_the_api_server_is_waited_for(own_plane: Plane, tmp_path: Path) -> None:
    api = own_plane.admin
    token = processes.grant(api)
    with Process(own_plane, token, tmp_path) as operator:
        operator.wait_until_ready()
        job, pod = make_half_profiled(api)
        with own_plane.frozen_api_server():
            # Connections stay open: no answer is all that is seen.
            wait("it to step down", lambda: operator.count("tabletune_operator_leading") == 0, pause=0.5)
            wait("readyz to tell", lambda: _unready(operator), pause=0.5)
            assert operator.get("/healthz")[0] == 200
        objects.report(api, "ml", job["metadata"]["name"], documents.dump(objects.example()))
        objects.end_pod(api, pod, 0)
        objects.status_until(api, "ml", lambda status: status.get("phase") == "Ready", "profiling")
        assert history(api, "profiling") == ["profiling-g1"]
        assert operator.get("/readyz")[0] == 200
    api.close()


def test_what_vanished_unseen_is_found_out_right_after_the_outage(own_plane: Plane, tmp_path: Path) -> None:
    api = own_plane.admin
    token = processes.grant(api)
    # Without the outage it would be compared with the cluster in an hour.
    with Process(own_plane, token, tmp_path, resync_seconds=3_600, log_level="debug") as operator:
        operator.wait_until_ready()
        api.apply(objects.draft_table("ml"))
        job = wait("the Job", lambda: objects.job_of(api, "ml"))["metadata"]["name"]
        objects.status_until(api, "ml", lambda status: status.get("phase"))
        objects.report(api, "ml", job, documents.dump(objects.example()))
        # Something else moves on, so that no watch can be taken up where it was: 410 Gone.
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "ml"}})
        assert api.get("DraftTable", "ml", "qwen")["status"].get("generation") is None
        own_plane.stop_api_server(crash=True)
        own_plane.erase("jobs", "ml", job)
        own_plane.compact()
        wait("it to notice", lambda: "does not answer" in operator.log)
        own_plane.start_api_server()
        objects.status_until(api, "ml", lambda status: status.get("phase") == "Ready")
        # Another kind's watch may have begun anew before this one.
        again = "Restarting the watch-stream for drafttables.v1alpha1.tabletune.dev"
        wait("the watch to begin anew", lambda: again in operator.log)
        assert history(api, "qwen") == ["qwen-g1"]
    api.close()


def test_one_that_starts_without_an_api_server_is_alive_and_begins_when_there_is_one(
    own_plane: Plane, tmp_path: Path
) -> None:
    api = own_plane.admin
    token = processes.grant(api)
    api.apply(objects.draft_table("ml"))
    own_plane.stop_api_server(crash=True)
    with Process(own_plane, token, tmp_path) as operator:
        wait("it to be alive", lambda: operator.get("/healthz")[0] == 200)
        assert "the API server has not answered yet" in _unready(operator)
        wait("it to say for how long", lambda: "has not answered for" in _unready(operator))
        own_plane.start_api_server()
        operator.wait_until_ready()
        wait("the Job", lambda: objects.job_of(api, "ml"))
    api.close()
