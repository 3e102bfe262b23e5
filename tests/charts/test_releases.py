"""A release's life on a real API server, with DraftTables alive: upgraded, rolled back, uninstalled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.charts.helms import CHART, Helm, HelmError, of_kind
from tests.charts.samples import SETS
from tests.charts.test_validity import PROMETHEUS_OPERATOR
from tests.config import definitions
from tests.controlplane import fixtures
from tests.controlplane.clients import Api, ApiError, Object, wait
from tests.controlplane.planes import Plane
from tests.operator import objects
from tests.operator.processes import Process

pytestmark = pytest.mark.cluster

HOME = "tabletune-system"
NAME = "tabletune-operator"
EARLIER = Path(__file__).parent / "data" / "tabletune-0.0.1.tgz"
"""Made by data/make_earlier_chart.py: no version was released before this one."""


class Release:
    """One release, as an administrator handles it."""

    def __init__(self, helm: Helm, plane: Plane, name: str = "tabletune") -> None:
        self._helm, self._plane, self.name = helm, plane, name

    def do(self, verb: str, *arguments: str, values: Object | None = None) -> str:
        return self._helm.run(
            verb, self.name, *arguments, "--namespace", HOME, values=values, plane=self._plane
        )

    def install(self, *arguments: str, chart: Path = CHART, values: Object | None = None) -> str:
        return self.do("install", str(chart), "--create-namespace", *arguments, values=values or {})


@pytest.fixture
def release(helm: Helm, bare: Plane) -> Release:
    return Release(helm, bare)


def crd(api: Api) -> Object | None:
    return api.find("CustomResourceDefinition", "", "drafttables.tabletune.dev")


def is_served(api: Api) -> None:
    wait("the CRD to be served", lambda: fixtures._served(api))


def live_table(api: Api, namespace: str = "ml") -> Object:
    """Make a DraftTable with a ConfigMap that it owns, as the operator does."""
    is_served(api)
    fixtures.make_namespace(api, namespace)
    table = api.apply(objects.draft_table(namespace))
    owner = {
        "apiVersion": table["apiVersion"],
        "kind": table["kind"],
        "name": "qwen",
        "uid": table["metadata"]["uid"],
    }
    metadata = {"name": "qwen", "namespace": namespace, "ownerReferences": [owner]}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"table.json": "{}"}})
    return table


def uid(api: Api, kind: str = "DraftTable") -> str | None:
    found = api.find(kind, "ml", "qwen")
    return None if found is None else found["metadata"]["uid"]


@pytest.mark.parametrize("scope", ["cluster-wide", "namespaced"])
def test_what_is_installed_is_enough_for_the_operator_and_the_release_s_test_passes(
    helm: Helm, bare: Plane, bare_api: Api, release: Release, tmp_path: Path, scope: str
) -> None:
    fixtures.make_namespace(bare_api, "ml")
    namespaces = ["ml"] if scope == "namespaced" else []
    values = {"scope": {"namespaces": namespaces}}
    release.install(values=values)
    token = bare_api.token_of(HOME, NAME)
    settings = {"namespaces": ",".join(namespaces), "lease": NAME, "lease_namespace": HOME}
    with Process(bare, token, tmp_path, **settings) as operator:
        operator.wait_until_ready()
        bare_api.apply(objects.draft_table("ml"))
        objects.finish(bare_api, "ml")
        objects.status_until(bare_api, "ml", lambda status: status.get("phase") == "Ready")
        assert 'code="403"' not in operator.get("/metrics")[1]
        assert bare_api.get("Lease", HOME, NAME)["spec"]["holderIdentity"] == "operator"

        passed = run_test(helm, bare, token, values, operator.port, tmp_path)
        assert passed.returncode == 0, passed.stderr
        assert f"DraftTables can be read in {'ml' if namespaces else 'the cluster'}" in passed.stdout
        # It fails where the rights are missing, and where no operator is ready.
        nobody = bare_api.token_of("ml", "default")
        refused = run_test(helm, bare, nobody, values, operator.port, tmp_path)
        assert refused.returncode == 1
        assert "403" in refused.stderr
        assert operator.stop() == 0
        assert run_test(helm, bare, token, values, operator.port, tmp_path).returncode == 1


def run_test(
    helm: Helm, plane: Plane, token: str, values: Object, port: int, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Play the kubelet: run the test pod's command with its variables, and with what a pod has besides."""
    only = ("--show-only", "templates/tests/operator.yaml")
    text = helm.run("template", "tabletune", str(CHART), *only, values=values)
    (pod,) = of_kind([yaml.safe_load(text)], "Pod")
    (container,) = pod["spec"]["containers"]
    account = folder / "account"
    account.mkdir(exist_ok=True)
    (account / "token").write_text(token)
    (account / "ca.crt").write_bytes(plane.certificate.read_bytes())
    server, _, api_port = plane.server.removeprefix("https://").rpartition(":")
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert given["READY"].endswith(".svc:8080/readyz")
    given |= {"READY": f"http://127.0.0.1:{port}/readyz", "ACCOUNT": str(account)}
    given |= {"KUBERNETES_SERVICE_HOST": server, "KUBERNETES_SERVICE_PORT": api_port}
    assert container["command"] == ["python3", "-c"]
    return subprocess.run(
        [sys.executable, "-c", *container["args"]],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_upgrading_from_the_chart_before_keeps_draft_tables_and_brings_the_new_crd(
    bare_api: Api, release: Release
) -> None:
    release.install(chart=EARLIER)
    before = live_table(bare_api)
    selector = deployment(bare_api)["spec"]["selector"]
    new = objects.draft_table(
        "ml", "new", serving={"selector": {"matchLabels": {"a": "b"}}, "refreshPods": False}
    )
    with pytest.raises(ApiError, match="refreshPods"):
        bare_api.apply(new)

    release.do("upgrade", str(CHART), values={})
    wait("the new CRD to be served", lambda: applied(bare_api, new))
    assert uid(bare_api) == before["metadata"]["uid"]
    assert deployment(bare_api)["spec"]["selector"] == selector
    image = deployment(bare_api)["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "tabletune/operator:0.1.0"

    release.do("rollback", "1")
    wait("the old CRD to be served", lambda: not applied(bare_api, new))
    assert uid(bare_api) == before["metadata"]["uid"]
    release.do("upgrade", str(CHART), values={})
    wait("the new CRD to be served", lambda: applied(bare_api, new))
    assert uid(bare_api) == before["metadata"]["uid"]


def applied(api: Api, body: Object) -> bool:
    """Whether the API server takes ``body`` now."""
    try:
        api.apply(body, dryRun="All")
    except ApiError:
        return False
    return True


def deployment(api: Api) -> Object:
    return api.call("GET", f"/apis/apps/v1/namespaces/{HOME}/deployments/{NAME}")


def test_uninstalled_and_installed_again_every_draft_table_and_table_is_still_there(
    bare_api: Api, release: Release
) -> None:
    release.install()
    table = live_table(bare_api)
    config_map = uid(bare_api, "ConfigMap")
    said = release.do("uninstall")
    assert "drafttables.tabletune.dev" in said
    assert crd(bare_api) is not None
    assert uid(bare_api) == table["metadata"]["uid"]
    assert uid(bare_api, "ConfigMap") == config_map
    assert bare_api.find("ServiceAccount", HOME, NAME) is None
    assert bare_api.find("ClusterRole", "", NAME) is None

    release.install()
    assert uid(bare_api) == table["metadata"]["uid"]
    assert uid(bare_api, "ConfigMap") == config_map


def test_a_release_of_another_name_takes_the_crd_only_when_told(
    helm: Helm, bare: Plane, bare_api: Api, release: Release
) -> None:
    fixtures.install_crds(bare_api)
    table = live_table(bare_api)
    with pytest.raises(HelmError, match="invalid ownership metadata"):
        release.install()
    release.install("--take-ownership", "--force-conflicts")
    assert uid(bare_api) == table["metadata"]["uid"]
    other = Release(helm, bare, "other")
    other.install(values={"crds": {"install": False}, "scope": {"namespaces": ["ml"]}})
    other.do("uninstall")
    assert uid(bare_api) == table["metadata"]["uid"]


def test_a_crd_that_the_release_gives_up_stays(bare_api: Api, release: Release) -> None:
    release.install()
    table = live_table(bare_api)
    release.do("upgrade", str(CHART), values={"crds": {"install": False}})
    release.do("uninstall")
    assert uid(bare_api) == table["metadata"]["uid"]


def test_without_keep_uninstalling_deletes_all_as_the_notes_warn(bare_api: Api, release: Release) -> None:
    notes = release.install(values={"crds": {"keep": False}})
    assert "WARNING: crds.keep is false" in notes
    live_table(bare_api, "gone")
    live_table(bare_api)
    # The garbage collector takes its time to know of a new kind; it does where it collects what is another's.
    bare_api.delete("DraftTable", "gone", "qwen")
    wait("the collector", lambda: bare_api.find("ConfigMap", "gone", "qwen") is None, 180)
    release.do("uninstall")
    wait("the CRD to be gone", lambda: crd(bare_api) is None)
    wait("the ConfigMap to be collected", lambda: uid(bare_api, "ConfigMap") is None)


def test_who_may_edit_a_namespace_may_make_draft_tables_and_who_may_view_it_may_read_them(
    bare: Plane, bare_api: Api, release: Release
) -> None:
    release.install()
    is_served(bare_api)
    fixtures.make_namespace(bare_api, "ml")
    accounts = {role: account_with(bare, bare_api, role) for role in ("view", "edit")}
    table = objects.draft_table("ml")
    # The controller manager aggregates roles in its own time.
    wait("the editor's right", lambda: applied(accounts["edit"], table))
    wait("the viewer's right", lambda: may_list(accounts["view"]))
    with pytest.raises(ApiError, match="403"):
        accounts["view"].apply(table)
    for account in accounts.values():
        account.close()


def account_with(plane: Plane, api: Api, role: str) -> Api:
    """Return a client of a service account that is bound to one of the cluster's own roles."""
    metadata = {"name": role, "namespace": "ml"}
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": "ml"}],
    }
    api.create(binding)
    return plane.as_token(api.token_of("ml", role))


def may_list(api: Api) -> bool:
    """Whether the API server shows DraftTables."""
    try:
        api.list("DraftTable", "ml")
    except ApiError:
        return False
    return True


def test_with_monitoring_the_prometheus_operator_s_objects_are_made(
    bare: Plane, bare_api: Api, release: Release
) -> None:
    with pytest.raises(HelmError, match="ensure CRDs are installed first"):
        release.install(values=SETS["monitored"])
    definitions.install(bare_api, PROMETHEUS_OPERATOR)
    release.install(values=SETS["monitored"])
    for plural, name in (
        ("servicemonitors", NAME),
        ("podmonitors", f"{NAME}-plugin"),
        ("prometheusrules", NAME),
    ):
        path = f"/apis/monitoring.coreos.com/v1/namespaces/{HOME}/{plural}/{name}"
        assert bare_api.call("GET", path)["metadata"]["labels"]["app.kubernetes.io/instance"] == "tabletune"
    dashboard = bare_api.get("ConfigMap", HOME, f"{NAME}-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_notes_say_what_was_installed(release: Release) -> None:
    notes = release.install(values={"crds": {"install": True}, "scope": {"namespaces": ["default"]}})
    assert "looks after the namespaces default." in notes
    assert f"kubectl -n {HOME} rollout status deployment/{NAME}" in notes
