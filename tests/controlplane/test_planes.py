"""The control plane does what failure tests ask of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import urllib3

from tests.controlplane import fixtures
from tests.controlplane.clients import Api, ApiError, wait
from tests.controlplane.planes import Plane, PlaneError

pytestmark = pytest.mark.cluster


def test_objects_survive_a_restart_of_the_api_server(programs: dict[str, Path]) -> None:
    with Plane(programs, controllers=()) as plane:
        api = plane.admin
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}})
        plane.stop_api_server(crash=True)
        with pytest.raises(urllib3.exceptions.HTTPError):
            api.list("Namespace")
        plane.start_api_server()
        assert api.get("Namespace", "", "kept")["status"]["phase"] == "Active"
        api.close()


def test_an_old_version_is_gone_after_a_compaction(programs: dict[str, Path]) -> None:
    with Plane(programs, controllers=()) as plane:
        api = plane.admin
        plane.compact()
        # The API server answers from its own memory until it starts anew.
        plane.restart_api_server()
        path = "/api/v1/namespaces?watch=true&resourceVersion=1&timeoutSeconds=5"
        status, answer = api.raw("GET", path)
        assert (status, b'"code":410' in answer) in {(200, True), (410, True)}
        api.close()


def test_a_frozen_api_server_answers_again_later(programs: dict[str, Path]) -> None:
    with Plane(programs, controllers=()) as plane:
        api = plane.admin
        with plane.frozen_api_server(), pytest.raises(urllib3.exceptions.TimeoutError):
            api.raw("GET", "/readyz", seconds=1)
        assert api.raw("GET", "/readyz")[0] == 200
        api.close()


def test_a_program_that_does_not_start_is_told_with_its_last_words(programs: dict[str, Path]) -> None:
    with (
        pytest.raises(PlaneError, match="etcd did not start"),
        Plane(programs | {"etcd": Path("/bin/false")}, controllers=()),
    ):
        pass


def test_pods_of_jobs_are_made_and_scheduled_for_real(api: Api, namespace: str) -> None:
    fixtures.make_node(api, f"node-{namespace}", labels={"pool": namespace}, gpus=1)
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], "restartPolicy": "Never", "nodeSelector": {"pool": namespace}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": namespace},
        "spec": {"template": {"spec": spec}},
    }
    api.create(job)
    wait(
        "the pod on its node",
        lambda: [pod for pod in api.list("Pod", namespace) if pod["spec"].get("nodeName")],
    )


def test_rights_are_those_of_the_roles(plane: Plane, api: Api, namespace: str) -> None:
    stranger = plane.as_token(api.token_of(namespace, "default"))
    with pytest.raises(ApiError, match="cannot list resource"):
        stranger.list("ConfigMap", namespace)
    stranger.close()
