"""config/llm-d, added to a model-server overlay as llm-d's guides make it, gives decode pods the table.

The guide here is a small one of our own with what theirs have: Deployments `decode` and `prefill`, container
`modelserver`, a prefix, a routing sidecar that is an init container (llm-d/llm-d, guides/recipes/modelserver
and guides/optimized-baseline, read on 2026-11-30).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tabletune import rendering
from tabletune.api import names
from tabletune_plugin import settings
from tests.config.builds import CONFIG, BuildError, dry_run, named, one, overlay
from tests.controlplane.clients import Api, Object
from tests.controlplane.fixtures import make_namespace
from tests.controlplane.planes import Plane

pytestmark = pytest.mark.cluster

COMPONENT = CONFIG / "llm-d"
NAME = "qwen3-8b-h200"
DECODE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: decode}
spec:
  replicas: 2
  selector:
    matchLabels: {llm-d.ai/role: decode}
  template:
    metadata:
      labels: {llm-d.ai/role: decode}
    spec:
      initContainers:
        - name: routing-proxy
          image: example/routing-sidecar
          restartPolicy: Always
          ports: [{name: sidecar, containerPort: 8000}]
      containers:
        - name: modelserver
          image: docker.io/vllm/vllm-openai:v0.33.0
          command: [vllm, serve]
          args: [Qwen/Qwen3-8B, --max-num-seqs=256]
          env:
            - {name: PYTHONPATH, value: /opt/modelexpress}
            - name: HF_TOKEN
              valueFrom: {secretKeyRef: {name: llm-d-hf-token, key: HF_TOKEN}}
          ports: [{name: modelserver, containerPort: 8200}]
          volumeMounts: [{name: shm, mountPath: /dev/shm}]
      volumes:
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: 20Gi}
"""
PREFILL = DECODE.replace("name: decode", "name: prefill").replace("role: decode", "role: prefill")
DRAFT_TABLE: Object = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": NAME},
    "spec": {
        "model": {"name": "Qwen/Qwen3-8B"},
        "drafter": {"method": "ngram"},
        "engine": {"image": "tabletune/profiler:0.1.0"},
        "serving": {"mode": "Correct", "selector": {"matchLabels": {names.DRAFT_TABLE_LABEL: NAME}}},
    },
}


def serving(folder: Path, tables: list[Object], **kustomization: Any) -> list[Object]:
    """Return what an overlay of a guide makes with ``tables`` and the component."""
    overlay(
        folder / "guide",
        {"namePrefix": "optimized-baseline-", "resources": ["decode.yaml", "prefill.yaml"]},
        {"decode.yaml": yaml.safe_load(DECODE), "prefill.yaml": yaml.safe_load(PREFILL)},
    )
    files = {f"table-{number}.yaml": body for number, body in enumerate(tables)}
    place = folder / "overlay"
    # Kustomize takes components by relative paths only.
    component = os.path.relpath(COMPONENT, place)
    chosen = {"resources": ["../guide", *files], "components": [component]} | kustomization
    return overlay(place, chosen, dict(files))


def deployment(bodies: list[Object], role: str) -> Object:
    (found,) = (
        body for body in bodies if body["kind"] == "Deployment" and f"-{role}" in body["metadata"]["name"]
    )
    return found


def pod(bodies: list[Object]) -> Object:
    found: Object = deployment(bodies, "decode")["spec"]["template"]
    return found


def container(bodies: list[Object]) -> Object:
    return named(pod(bodies)["spec"]["containers"], "modelserver")


def environment(bodies: list[Object]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(bodies)["env"] if "value" in one}


def test_the_overlay_names_the_table_once(tmp_path: Path) -> None:
    found = pod(serving(tmp_path, [DRAFT_TABLE]))
    assert found["metadata"]["labels"][names.DRAFT_TABLE_LABEL] == NAME
    assert named(found["spec"]["volumes"], "tabletune-table")["configMap"] == {"name": NAME, "optional": True}


@pytest.mark.parametrize("change", [{"namePrefix": "canary-"}, {"nameSuffix": "-canary"}], ids=str)
def test_a_prefix_or_suffix_reaches_all_that_names_the_table(tmp_path: Path, change: dict[str, str]) -> None:
    bodies = serving(tmp_path, [DRAFT_TABLE], namespace="serving", **change)
    table, found = one(bodies, names.KIND), pod(bodies)
    name = table["metadata"]["name"]
    assert name == change.get("namePrefix", "") + NAME + change.get("nameSuffix", "")
    assert found["metadata"]["labels"][names.DRAFT_TABLE_LABEL] == name
    assert named(found["spec"]["volumes"], "tabletune-table")["configMap"]["name"] == name
    assert table["spec"]["serving"]["selector"]["matchLabels"] == {names.DRAFT_TABLE_LABEL: name}


def test_a_table_that_is_applied_elsewhere_is_named_by_a_local_one(tmp_path: Path) -> None:
    annotations = {"config.kubernetes.io/local-config": "true"}
    local = DRAFT_TABLE | {"metadata": {"name": NAME, "annotations": annotations}}
    del local["spec"]
    bodies = serving(tmp_path, [local])
    assert {body["kind"] for body in bodies} == {"Deployment"}
    assert pod(bodies)["metadata"]["labels"][names.DRAFT_TABLE_LABEL] == NAME


def test_a_build_without_a_table_says_so(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="nothing selected by DraftTable"):
        serving(tmp_path, [])


def test_a_build_with_two_tables_says_so(tmp_path: Path) -> None:
    other = DRAFT_TABLE | {"metadata": {"name": "other"}}
    with pytest.raises(BuildError, match="multiple matches for selector DraftTable"):
        serving(tmp_path, [DRAFT_TABLE, other])


def test_all_else_of_the_guide_stays(tmp_path: Path) -> None:
    bodies = serving(tmp_path, [DRAFT_TABLE])
    before = yaml.safe_load(DECODE)["spec"]
    after = deployment(bodies, "decode")["spec"]
    assert after["selector"] == before["selector"]
    assert after["replicas"] == before["replicas"]
    old, new = before["template"]["spec"], after["template"]["spec"]
    assert old["initContainers"][0] in new["initContainers"]
    assert old["volumes"][0] in new["volumes"]
    (theirs,), (ours,) = old["containers"], new["containers"]
    for field in ("image", "command", "args"):
        assert ours[field] == theirs[field]
    for field in ("ports", "volumeMounts"):
        assert theirs[field][0] in ours[field]
    assert named(theirs["env"], "HF_TOKEN") in ours["env"]
    # Prefill pods draft nothing.
    assert deployment(bodies, "prefill")["spec"] == yaml.safe_load(PREFILL)["spec"]


def test_the_plugin_reads_the_mounted_table_and_shows_its_port(tmp_path: Path) -> None:
    bodies = serving(tmp_path, [DRAFT_TABLE])
    given = {name: value for name, value in environment(bodies).items() if name.startswith("TABLETUNE_")}
    read, complaints = settings.read(given)
    assert complaints == ()
    mount = named(container(bodies)["volumeMounts"], "tabletune-table")
    assert read.table == Path(mount["mountPath"], rendering.DOCUMENT_FILE)
    assert "subPath" not in mount
    port = named(container(bodies)["ports"], "tabletune")
    assert port["containerPort"] == read.metrics_port
    assert pod(bodies)["metadata"]["annotations"]["prometheus.io/port"] == str(read.metrics_port)
    # The document has the mode: spec.serving.pluginMode would do nothing beside a variable.
    assert read.control == {}


def test_the_plugin_is_copied_to_where_python_looks(tmp_path: Path) -> None:
    bodies = serving(tmp_path, [DRAFT_TABLE])
    copier = named(pod(bodies)["spec"]["initContainers"], "tabletune-plugin")
    (copied_to,) = copier["args"]
    assert environment(bodies)["PYTHONPATH"] == copied_to
    for one_container in (copier, container(bodies)):
        assert named(one_container["volumeMounts"], "tabletune-plugin")["mountPath"] == copied_to
    assert named(pod(bodies)["spec"]["volumes"], "tabletune-plugin").keys() == {"name", "emptyDir"}


def test_a_second_folder_for_python_is_named_in_the_overlay(tmp_path: Path) -> None:
    both = "/opt/tabletune/plugin:/opt/modelexpress"
    patch = {
        "target": {"kind": "Deployment", "name": "decode"},
        "patch": yaml.safe_dump(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "decode"},
                "spec": {
                    "template": {
                        "spec": {
                            "containers": [
                                {"name": "modelserver", "env": [{"name": "PYTHONPATH", "value": both}]}
                            ]
                        }
                    }
                },
            }
        ),
    }
    assert environment(serving(tmp_path, [DRAFT_TABLE], patches=[patch]))["PYTHONPATH"] == both


def test_another_registry_is_one_entry_of_the_overlay(tmp_path: Path) -> None:
    images = [{"name": "tabletune/plugin", "newName": "registry.example/tabletune/plugin", "newTag": "0.2.0"}]
    bodies = serving(tmp_path, [DRAFT_TABLE], images=images)
    copier = named(pod(bodies)["spec"]["initContainers"], "tabletune-plugin")
    assert copier["image"] == "registry.example/tabletune/plugin:0.2.0"


def test_the_api_server_takes_it(tmp_path: Path, plane: Plane, namespace: str) -> None:
    bodies = serving(tmp_path, [DRAFT_TABLE])
    told = dry_run(plane, namespace, bodies)
    assert "deployment.apps/optimized-baseline-decode serverside-applied (server dry run)" in told
    assert f"drafttable.tabletune.dev/{NAME} serverside-applied (server dry run)" in told


def test_what_it_adds_meets_the_restricted_standard(tmp_path: Path, plane: Plane, api: Api) -> None:
    namespace = "restricted-llmd"
    make_namespace(api, namespace, {"pod-security.kubernetes.io/enforce": "restricted"})
    found = pod(serving(tmp_path, [DRAFT_TABLE]))
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "decode"}, "spec": found["spec"]}
    with pytest.raises(BuildError) as caught:
        dry_run(plane, namespace, [body])
    # The guide's own containers say nothing of their rights, so the standard refuses these, by name.
    assert 'containers "routing-proxy", "modelserver"' in str(caught.value)
    assert "tabletune" not in str(caught.value).replace(namespace, "")
