"""config/recipes wires other servers as config/llm-d wires llm-d's, and the API server takes their pods.

The charts and KServe's definitions are not to be had here, so a recipe is read as its chart or controller
reads it: the parts of a pod are put together and checked as a pod. Whether the chart passes each of them on
was read in its templates (docs/guide/other-servers.md names the versions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tabletune.api import names
from tests.config.builds import CONFIG, dry_run, named
from tests.controlplane.clients import Api, Object
from tests.controlplane.fixtures import make_namespace
from tests.controlplane.planes import Plane

RECIPES = CONFIG / "recipes"
PLUGIN_VARIABLES = {"PYTHONPATH", "TABLETUNE_TABLE", "TABLETUNE_METRICS_PORT", "TABLETUNE_MODE"}
CHART_KEYS = {"modelCommand", "mountModelVolume"}
"""What llm-d-modelservice has in a container beside Kubernetes' own fields."""


def deployment(body: Object) -> Object:
    template: Object = body["spec"]["template"]
    return {"annotations": template["metadata"]["annotations"], **template["spec"]}


def modelservice(body: Object) -> Object:
    decode = body["decode"]
    containers = [
        {key: value for key, value in container.items() if key not in CHART_KEYS}
        for container in decode["containers"]
    ]
    return {
        "annotations": decode["podAnnotations"],
        "initContainers": decode["initContainers"],
        "containers": containers,
        "volumes": decode["volumes"],
    }


def production_stack(body: Object) -> Object:
    (model,) = body["servingEngineSpec"]["modelSpec"]
    copier = dict(model["initContainer"])
    copier["volumeMounts"] = copier.pop("extraVolumeMounts")
    container = {
        "name": "vllm",
        "image": f"{model['repository']}:{model['tag']}",
        "command": ["vllm", "serve", model["modelURL"], *model["vllmConfig"]["extraArgs"]],
        "env": model["env"],
        "volumeMounts": model["extraVolumeMounts"],
    }
    return {
        "annotations": model["podAnnotations"],
        "initContainers": [copier],
        "containers": [container],
        "volumes": model["extraVolumes"],
    }


def llm_inference_service(body: Object) -> Object:
    return {"annotations": body["spec"]["annotations"], **body["spec"]["template"]}


def inference_service(body: Object) -> Object:
    predictor: Object = body["spec"]["predictor"]
    return {key: value for key, value in predictor.items() if key != "minReplicas"}


READERS: dict[str, Callable[[Object], Object]] = {
    "deployment.yaml": deployment,
    "llm-d-modelservice.values.yaml": modelservice,
    "production-stack.values.yaml": production_stack,
    "kserve-llminferenceservice.yaml": llm_inference_service,
    "kserve-inferenceservice.yaml": inference_service,
}


def read(recipe: str) -> Object:
    found: Object = yaml.safe_load((RECIPES / recipe).read_text())
    return found


def pod(recipe: str) -> Object:
    """Return the pod that the recipe makes."""
    spec = dict(READERS[recipe](read(recipe)))
    annotations = spec.pop("annotations")
    metadata = {"name": "served", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def wiring(spec: Object) -> dict[str, Any]:
    """Return what the plugin needs of a pod."""
    copier = named(spec["initContainers"], "tabletune-plugin")
    (server,) = spec["containers"]
    environment = {entry["name"]: entry.get("value") for entry in server["env"]}
    table = dict(named(spec["volumes"], "tabletune-table")["configMap"])
    table.pop("name")
    return {
        "image": copier["image"].split(":")[0],
        "copied to": copier["args"],
        "copier's mounts": copier["volumeMounts"],
        "server's mounts": [one for one in server["volumeMounts"] if one["name"].startswith("tabletune-")],
        "environment": {name: environment[name] for name in sorted(environment) if name in PLUGIN_VARIABLES},
        "plugin": named(spec["volumes"], "tabletune-plugin"),
        "table": table,
    }


def test_every_recipe_is_read_here() -> None:
    assert {path.name for path in RECIPES.iterdir()} == set(READERS)


@pytest.mark.parametrize("recipe", READERS)
def test_it_is_wired_as_the_llm_d_component_is(recipe: str) -> None:
    component = yaml.safe_load((CONFIG / "llm-d" / "modelserver.yaml").read_text())
    assert wiring(pod(recipe)["spec"]) == wiring(component["spec"]["template"]["spec"])


def test_the_plain_deployment_carries_the_tables_name() -> None:
    template = read("deployment.yaml")["spec"]["template"]
    name = template["metadata"]["labels"][names.DRAFT_TABLE_LABEL]
    assert named(template["spec"]["volumes"], "tabletune-table")["configMap"]["name"] == name


@pytest.mark.cluster
def test_the_api_server_takes_the_plain_deployment(plane: Plane, namespace: str) -> None:
    assert "deployment.apps/qwen3-8b" in dry_run(plane, namespace, [read("deployment.yaml")])


@pytest.mark.cluster
@pytest.mark.parametrize("recipe", READERS)
def test_the_api_server_takes_its_pod(recipe: str, plane: Plane, namespace: str) -> None:
    assert "pod/served" in dry_run(plane, namespace, [pod(recipe)])


@pytest.mark.cluster
def test_the_plain_deployment_meets_the_restricted_standard(plane: Plane, api: Api) -> None:
    namespace = "restricted-recipe"
    make_namespace(api, namespace, {"pod-security.kubernetes.io/enforce": "restricted"})
    assert "pod/served" in dry_run(plane, namespace, [pod("deployment.yaml")])
