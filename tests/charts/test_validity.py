"""Whatever the chart renders, the real API server takes, unknown fields refused."""

from __future__ import annotations

import pytest
import yaml

from tests.charts.helms import Helm, of_kind, one
from tests.charts.samples import SETS
from tests.config import definitions
from tests.config.builds import BuildError, dry_run
from tests.controlplane.clients import Api
from tests.controlplane.planes import Plane

pytestmark = pytest.mark.cluster

PROMETHEUS_OPERATOR = (
    "github.com/prometheus-operator/prometheus-operator@v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    tuple(
        f"example/prometheus-operator-crd/monitoring.coreos.com_{plural}.yaml"
        for plural in ("servicemonitors", "podmonitors", "prometheusrules")
    ),
)
"""The newest release that the module proxy gave."""


@pytest.fixture(scope="module")
def monitored_plane(plane: Plane) -> Plane:
    """The control plane, with the Prometheus operator's definitions."""
    definitions.install(plane.admin, PROMETHEUS_OPERATOR)
    return plane


@pytest.mark.parametrize("name", SETS)
def test_the_api_server_takes_every_object(
    monitored_plane: Plane, helm: Helm, namespace: str, name: str
) -> None:
    bodies = helm.template(SETS[name], namespace=namespace)
    answer = dry_run(monitored_plane, None, bodies)
    assert answer.count("serverside-applied") == len(bodies)


@pytest.mark.parametrize("name", SETS)
def test_operator_and_test_pod_pass_the_restricted_standard(
    plane: Plane, api: Api, helm: Helm, namespace: str, name: str
) -> None:
    api.merge(
        "Namespace",
        "",
        namespace,
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    template = one(helm.template(SETS[name]), "Deployment")["spec"]["template"]
    shown = helm.run(
        *("template", "tabletune", "charts/tabletune", "--show-only", "templates/tests/operator.yaml"),
        values=SETS[name],
    )
    (test,) = of_kind(list(yaml.safe_load_all(shown)), "Pod")
    for pod in (template, test):
        # The account and the class need not be there for this.
        spec = pod["spec"] | {"serviceAccountName": "default", "priorityClassName": ""}
        metadata = {"name": "checked", "namespace": namespace, "labels": pod["metadata"]["labels"]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, dryRun="All")


def test_a_namespace_that_is_not_there_is_named(plane: Plane, helm: Helm, namespace: str) -> None:
    values = {"scope": {"namespaces": ["missing"]}, "crds": {"install": False}}
    with pytest.raises(BuildError, match='namespaces "missing" not found'):
        dry_run(plane, None, helm.template(values, namespace=namespace))
