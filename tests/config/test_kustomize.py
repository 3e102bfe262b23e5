"""config/default installs what the chart installs, and the API server takes it and the samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tabletune.api import drafttables, names
from tabletune_operator import settings
from tests.charts.helms import Helm, environment_of
from tests.config.builds import CONFIG, build, dry_run, kubectl, one, overlay
from tests.controlplane.clients import Api, Object
from tests.controlplane.planes import Plane

pytestmark = pytest.mark.cluster

SAMPLES = sorted(
    path.name for path in (CONFIG / "samples").glob("*.yaml") if path.name != "kustomization.yaml"
)
KIND_OF_CHART = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"}
KIND_OF_CHART |= {"app.kubernetes.io/version", "helm.sh/chart"}
"""Labels that only Helm's objects have."""


def by_name(bodies: list[Object]) -> dict[tuple[str, str], Object]:
    return {(body["kind"], body["metadata"]["name"]): body for body in bodies}


def test_default_makes_what_the_chart_makes(helm: Helm) -> None:
    ours, charts = by_name(build(CONFIG / "default")), by_name(helm.template())
    assert ours.keys() - charts.keys() == {("Namespace", "tabletune-system")}
    assert not charts.keys() - ours.keys()
    for key, body in charts.items():
        for part in ("rules", "roleRef", "subjects"):
            assert ours[key].get(part) == body.get(part), key
    crd = ("CustomResourceDefinition", "drafttables.tabletune.dev")
    assert ours[crd]["spec"] == charts[crd]["spec"]
    service = ("Service", "tabletune-operator")
    assert ours[service]["spec"]["ports"] == charts[service]["spec"]["ports"]


def test_the_operator_runs_as_the_chart_runs_it(helm: Helm) -> None:
    key = ("Deployment", "tabletune-operator")
    ours, chart = by_name(build(CONFIG / "default"))[key], by_name(helm.template())[key]
    assert read(ours) == read(chart)
    for body in (ours, chart):
        for labels in (
            body["spec"]["selector"]["matchLabels"],
            body["spec"]["template"]["metadata"]["labels"],
        ):
            for label in KIND_OF_CHART:
                labels.pop(label, None)
        body["spec"]["template"]["spec"]["containers"][0].pop("env")
    assert ours["spec"] == chart["spec"]


def read(deployment: Object) -> settings.Settings:
    """Return the operator's settings, with the names of the pod's fields where it reads one."""
    return settings.read(environment_of(deployment))


def test_default_is_taken_by_the_api_server(plane: Plane, api: Api) -> None:
    bodies = build(CONFIG / "default")
    # A dry run makes no namespace, in which the rest would be.
    home = [body for body in bodies if body["kind"] == "Namespace"]
    kubectl("apply", "--server-side", "-f", "-", "--kubeconfig", str(plane.kubeconfig()), given=dump(home))
    assert dry_run(plane, "tabletune-system", bodies).count("serverside-applied") == len(bodies)


def test_the_operator_s_pod_passes_the_standard_that_its_namespace_enforces(plane: Plane, api: Api) -> None:
    bodies = build(CONFIG / "default")
    home = one(bodies, "Namespace")
    assert home["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    api.apply(home)
    pod = one(bodies, "Deployment")["spec"]["template"]
    metadata = {"name": "checked", "namespace": "tabletune-system"}
    spec = pod["spec"] | {"serviceAccountName": "default"}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, dryRun="All")


def test_an_overlay_moves_everything_to_another_namespace(tmp_path: Path) -> None:
    base = kustomize_path(tmp_path, CONFIG / "default")
    bodies = overlay(tmp_path, {"resources": [base], "namespace": "tuning"}, {})
    assert one(bodies, "Deployment")["metadata"]["namespace"] == "tuning"
    for body in bodies:
        for subject in body.get("subjects") or ():
            assert subject["namespace"] == "tuning", body["metadata"]["name"]


def kustomize_path(start: Path, target: Path) -> str:
    """Return ``target`` as seen from ``start``: kustomize takes no absolute paths."""
    ups = [".."] * len(start.resolve().relative_to("/").parts)
    return "/".join([*ups, *target.resolve().relative_to("/").parts])


def dump(bodies: list[Object]) -> str:
    return yaml.safe_dump_all(bodies)


def test_every_sample_is_in_the_kustomization() -> None:
    listed = yaml.safe_load((CONFIG / "samples" / "kustomization.yaml").read_text())["resources"]
    assert listed == SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_taken_by_the_api_server_and_the_operator(
    plane: Plane, namespace: str, name: str
) -> None:
    body = yaml.safe_load((CONFIG / "samples" / name).read_text())
    assert "serverside-applied" in dry_run(plane, namespace, [body])
    spec = drafttables.parse(body["spec"])
    assert spec.serving.selector is not None
    assert spec.serving.selector.match_labels == {names.DRAFT_TABLE_LABEL: body["metadata"]["name"]}


def test_samples_name_the_images_of_this_version() -> None:
    versions = {value for body in build(CONFIG / "samples") for value in images(body)}
    assert versions == {"tabletune/profiler:0.1.0"}


def images(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "image":
                yield value
            else:
                yield from images(value)
