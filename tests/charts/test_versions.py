"""The oldest Kubernetes that the chart asks for, and the newest, know all that chart and bases make.

The API server of the other tests is of one version; the schemas of these say whether a field was there.
"""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.charts.helms import CHART, Helm, HelmError
from tests.charts.samples import SETS
from tests.config.builds import CONFIG, build
from tests.controlplane.clients import Object

pytestmark = pytest.mark.cluster

OLDEST = 29
"""Minor version that Chart.yaml asks for."""
NEWEST = int(kubernetes_validate.latest_version().split(".")[1])
VERSIONS = [f"1.{minor}" for minor in (OLDEST, NEWEST)]
"""A field that both know, those between them know."""
FOREIGN = ("tabletune.dev", "monitoring.coreos.com")
"""Groups that are no part of Kubernetes."""


def check(bodies: list[Object], version: str) -> int:
    """Check all objects of Kubernetes' own kinds, and return how many there were."""
    own = [body for body in bodies if not body["apiVersion"].startswith(FOREIGN)]
    for body in own:
        kubernetes_validate.validate(body, version, strict=True)
    return len(own)


@pytest.mark.parametrize("version", VERSIONS)
def test_oldest_and_newest_version_know_every_field_of_the_chart(helm: Helm, version: str) -> None:
    for values in SETS.values():
        assert check(helm.template(values, "--kube-version", f"{version}.0"), version) >= 3


@pytest.mark.parametrize("version", VERSIONS)
def test_oldest_and_newest_version_know_every_field_of_the_bases(version: str) -> None:
    assert check(build(CONFIG / "default"), version) > 8


def test_a_field_that_a_version_does_not_know_is_seen(helm: Helm) -> None:
    (deployment,) = (body for body in helm.template() if body["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["hostUser"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        check([deployment], VERSIONS[0])


def test_an_older_kubernetes_is_refused_by_its_number(helm: Helm) -> None:
    asked = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert asked == f">=1.{OLDEST}.0-0"
    with pytest.raises(HelmError, match=r"which is incompatible with Kubernetes v1\.28"):
        helm.template({}, "--kube-version", "1.28.9")


def test_the_oldest_version_is_told_in_the_documentation() -> None:
    page = Path(CHART, "../../docs/reference/chart.md").read_text()
    assert f"Kubernetes 1.{OLDEST}" in page
