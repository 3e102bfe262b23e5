"""What the chart renders: what must be there, what must not, and what Helm refuses to render."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from tabletune_operator import settings
from tests.charts.helms import CHART, ROOT, Helm, HelmError, environment_of, of_kind, one
from tests.charts.samples import SETS
from tests.controlplane.clients import Object

pytestmark = pytest.mark.cluster

RBAC = ROOT / "config" / "rbac"
LEASE = "tabletune-operator-lease"


def manifests(name: str) -> list[Object]:
    return list(yaml.safe_load_all((RBAC / name).read_text()))


def deployment(bodies: list[Object]) -> Object:
    return one(bodies, "Deployment")


@pytest.mark.parametrize("name", SETS)
def test_lint_has_nothing_to_say(helm: Helm, name: str) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm.run(
        "lint", "--strict", str(CHART), values=SETS[name]
    )


def test_cluster_wide_the_roles_are_those_of_config(helm: Helm) -> None:
    bodies = helm.template()
    ours = {body["metadata"]["name"]: body for body in manifests("cluster-wide.yaml") if "rules" in body}
    ours |= {body["metadata"]["name"]: body for body in manifests("aggregated.yaml")}
    found = {body["metadata"]["name"]: body for body in of_kind(bodies, "ClusterRole")}
    assert found.keys() == ours.keys()
    for name, body in ours.items():
        assert found[name]["rules"] == body["rules"], name
        assert (body["metadata"].get("labels") or {}).items() <= found[name]["metadata"]["labels"].items()
    (binding,) = of_kind(manifests("cluster-wide.yaml"), "ClusterRoleBinding")
    assert one(bodies, "ClusterRoleBinding")["subjects"] == binding["subjects"]
    assert one(bodies, "ClusterRoleBinding")["roleRef"] == binding["roleRef"]
    assert [body["metadata"]["name"] for body in of_kind(bodies, "Role")] == [LEASE]


def test_the_lease_s_role_is_that_of_config(helm: Helm) -> None:
    (role,) = of_kind(manifests("service-account.yaml"), "Role")
    assert one(helm.template(), "Role", LEASE)["rules"] == role["rules"]
    assert not of_kind(helm.template({"leaderElection": {"enabled": False}}), "Role")


def test_in_namespaces_there_is_a_role_in_each_and_nothing_cluster_wide(helm: Helm) -> None:
    # A ClusterRole would grant rights elsewhere, and whoever installs may have none to grant.
    bodies = helm.template({"scope": {"namespaces": ["ml", "chat", "ml"]}, "crds": {"install": False}})
    assert not [body for body in bodies if body["kind"].startswith("Cluster")]
    (ours,) = (body for body in manifests("namespaced.yaml") if body["kind"] == "Role")
    roles = [body for body in of_kind(bodies, "Role") if body["metadata"]["name"] != LEASE]
    assert [body["metadata"]["namespace"] for body in roles] == ["ml", "chat"]
    assert all(body["rules"] == ours["rules"] for body in roles)
    bindings = [body for body in of_kind(bodies, "RoleBinding") if body["metadata"]["name"] != LEASE]
    assert [body["metadata"]["namespace"] for body in bindings] == ["ml", "chat"]
    assert {subject["namespace"] for body in bindings for subject in body["subjects"]} == {"tabletune-system"}
    assert environment_of(deployment(bodies))["TABLETUNE_OPERATOR_NAMESPACES"] == "ml,chat"


def test_the_right_to_patch_pods_can_be_taken_away(helm: Helm) -> None:
    (verbs,) = (
        rule["verbs"]
        for rule in one(helm.template({"rbac": {"patchPods": False}}), "ClusterRole", "tabletune-operator")[
            "rules"
        ]
        if rule["resources"] == ["pods"]
    )
    assert verbs == ["get", "list", "watch"]


def test_the_crd_is_the_repository_s_and_kept(helm: Helm) -> None:
    found = one(helm.template(), "CustomResourceDefinition")
    ours = yaml.safe_load((ROOT / "crds" / "tabletune.dev_drafttables.yaml").read_text())
    assert found["spec"] == ours["spec"]
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    dropped = one(helm.template({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in dropped["metadata"]


@pytest.mark.parametrize("name", SETS)
def test_the_operator_understands_every_variable_that_it_is_given(helm: Helm, name: str) -> None:
    found = environment_of(deployment(helm.template(SETS[name])))
    own = {key: value for key, value in found.items() if key.startswith(settings.PREFIX)}
    read = settings.read(own)
    assert read.lease_namespace == "field:metadata.namespace"
    assert read.identity == "field:metadata.name"
    assert read.port == 8080


def test_every_setting_of_the_operator_can_be_set(helm: Helm) -> None:
    values = {"scope": {"namespaces": ["ml"]}, "crds": {"install": False}}
    found = environment_of(deployment(helm.template(values)))
    wanted = {settings.PREFIX + field.name.upper() for field in dataclasses.fields(settings.Settings)}
    assert wanted <= found.keys()


def test_what_the_chart_sets_by_default_is_the_operator_s_own_default(helm: Helm) -> None:
    found = settings.read(
        {
            key: value
            for key, value in environment_of(deployment(helm.template())).items()
            if not value.startswith("field:")
        }
    )
    assert found == settings.Settings()


def test_bounds_of_the_schema_are_those_of_the_operator() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]["operator"][
        "properties"
    ]
    variables = {name: settings.PREFIX + snake(name) for name in schema}
    for name, bounds in schema.items():
        for value in (bounds.get("minimum"), bounds.get("maximum"), *bounds.get("enum", ())):
            if value is not None:
                settings.read({variables[name]: str(value)})
        for beyond in (bounds.get("minimum", 1) - 1, bounds.get("maximum", 1) + 1):
            with pytest.raises(settings.SettingsError, match=variables[name]):
                settings.read({variables[name]: str(beyond)})


def snake(camel: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in camel).upper()


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ({}, "tabletune/operator:0.1.0"),
        ({"registry": "registry.example:5000"}, "registry.example:5000/tabletune/operator:0.1.0"),
        ({"tag": "1.2"}, "tabletune/operator:1.2"),
        ({"tag": "1.2", "digest": "sha256:" + "a" * 64}, "tabletune/operator@sha256:" + "a" * 64),
    ],
)
def test_the_image_is_named_as_users_mirror_it(helm: Helm, image: dict[str, str], name: str) -> None:
    (container,) = deployment(helm.template({"image": image}))["spec"]["template"]["spec"]["containers"]
    assert container["image"] == name


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("tabletune", "tabletune-operator"),
        ("prod", "prod-tabletune-operator"),
        ("x" * 53, "x" * 30 + "-tabletune-operator"),
    ],
)
def test_names_come_from_the_release_s_and_stay_short(helm: Helm, release: str, name: str) -> None:
    bodies = helm.template({"dashboard": {"enabled": True}, "replicas": 2}, name=release)
    assert deployment(bodies)["metadata"]["name"] == name
    assert all(len(body["metadata"]["name"]) <= 63 for body in bodies)


def test_two_replicas_are_kept_through_drains_and_one_does_not_block_them(helm: Helm) -> None:
    assert not of_kind(helm.template(), "PodDisruptionBudget")
    found = one(helm.template(SETS["available"]), "PodDisruptionBudget")
    assert found["spec"]["maxUnavailable"] == "50%"


def test_a_spread_without_selector_means_the_release_s_own_pods(helm: Helm) -> None:
    body = deployment(helm.template(SETS["available"]))
    (spread,) = body["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == body["spec"]["selector"]
    own = {"labelSelector": {"matchLabels": {"app": "other"}}}
    given = {"topologySpreadConstraints": [SETS["available"]["topologySpreadConstraints"][0] | own]}
    (spread,) = deployment(helm.template(given))["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": {"app": "other"}}


def test_without_leader_election_old_and_new_operator_never_run_together(helm: Helm) -> None:
    found = deployment(helm.template(SETS["alone"]))
    assert found["spec"]["strategy"] == {"type": "Recreate"}
    assert environment_of(found)["TABLETUNE_OPERATOR_LEASE"] == ""


def test_no_service_can_set_the_operator_s_variables(helm: Helm) -> None:
    # Kubernetes would put TABLETUNE_OPERATOR_PORT=tcp://… into the pod, from the chart's own Service.
    assert deployment(helm.template())["spec"]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", SETS)
def test_selectors_select_the_operator_s_pods_and_never_change(helm: Helm, name: str) -> None:
    bodies = helm.template(SETS[name])
    found = deployment(bodies)
    selector = found["spec"]["selector"]["matchLabels"]
    assert selector == {
        "app.kubernetes.io/name": "tabletune",
        "app.kubernetes.io/instance": "tabletune",
        "app.kubernetes.io/component": "operator",
    }
    assert selector.items() <= found["spec"]["template"]["metadata"]["labels"].items()
    assert one(bodies, "Service")["spec"]["selector"] == selector
    for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for body in of_kind(bodies, kind):
            assert body["spec"][path] == {"matchLabels": selector}


@pytest.mark.parametrize("name", SETS)
def test_every_object_says_whose_it_is(helm: Helm, name: str) -> None:
    wanted = {"app.kubernetes.io/name": "tabletune", "app.kubernetes.io/instance": "tabletune"}
    wanted |= SETS[name].get("commonLabels", {})
    for body in helm.template(SETS[name]):
        assert wanted.items() <= body["metadata"]["labels"].items(), body["metadata"]["name"]


def test_the_network_policy_lets_the_release_s_own_test_in(helm: Helm) -> None:
    (rule,) = one(helm.template(SETS["guarded"]), "NetworkPolicy")["spec"]["ingress"]
    labels = rule["from"][-1]["podSelector"]["matchLabels"]
    shown = helm.run(
        *("template", "tabletune", str(CHART), "--show-only", "templates/tests/operator.yaml"),
        values=SETS["guarded"],
    )
    assert labels.items() <= yaml.safe_load(shown)["metadata"]["labels"].items()
    # Where everybody may, nobody is named.
    (rule,) = one(helm.template({"networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]["ingress"]
    assert "from" not in rule


def test_nothing_of_the_prometheus_operator_is_made_unless_asked(helm: Helm) -> None:
    assert not [body for body in helm.template() if "monitoring" in body["apiVersion"]]
    kinds = {body["kind"] for body in helm.template(SETS["monitored"])}
    assert {"ServiceMonitor", "PodMonitor", "PrometheusRule"} <= kinds


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "additional properties 'replica' not allowed"),
    ({"operator": {"worker": 2}}, "at '/operator': additional properties 'worker' not allowed"),
    ({"operator": {"workers": 0}}, "at '/operator/workers': minimum: got 0, want 1"),
    ({"operator": {"logFormat": "yaml"}}, "at '/operator/logFormat': value must be one of 'text', 'json'"),
    ({"scope": {"namespaces": "ml"}}, "at '/scope/namespaces': got string, want array"),
    ({"scope": {"namespaces": ["Ml"]}}, "at '/scope/namespaces/0': 'Ml' does not match pattern"),
    ({"image": {"digest": "latest"}}, "at '/image/digest': 'latest' does not match pattern"),
    ({"podAnnotations": {"example.com/number": 1}}, "at '/podAnnotations/example.com~1number': got number"),
    ({"prometheusRule": {"enabled": True, "disabled": ["TableTuneX"]}}, "names TableTuneX, which is none of"),
    (
        {"replicas": 2, "leaderElection": {"enabled": False}},
        "Set replicas: 1 or leaderElection.enabled: true",
    ),
    ({"extraEnv": [{"name": "TABLETUNE_OPERATOR_PORT", "value": "1"}]}, "which the chart sets already"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_a_mistake_is_refused_with_what_is_wrong(helm: Helm, values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError) as refused:
        helm.template(values)
    assert message in str(refused.value)


def test_as_part_of_another_chart_it_takes_what_parents_hand_down(helm: Helm, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    dependency = {
        "name": "tabletune",
        "version": "0.1.0",
        "repository": f"file://{CHART}",
        "condition": "tabletune.enabled",
    }
    head = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(head))
    helm.run("dependency", "update", str(parent))
    values = {"tabletune": {"enabled": True, "replicas": 2}, "global": {"imageRegistry": "x"}}
    text = helm.run("template", "stack", str(parent), values=values)
    found = [body for body in yaml.safe_load_all(text) if body]
    assert deployment(found)["metadata"]["name"] == "stack-tabletune-operator"
    assert deployment(found)["spec"]["replicas"] == 2
