"""config/pools: one DraftTable a node pool, told apart by small patches, and what Argo CD and Flux need."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tabletune.api import drafttables, names
from tests.config import definitions
from tests.config.builds import CONFIG, build, dry_run, one
from tests.controlplane.clients import Api, Object
from tests.controlplane.fixtures import make_namespace
from tests.controlplane.planes import Plane

pytestmark = pytest.mark.cluster

POOLS = CONFIG / "pools"
GPUS = {"h100": "NVIDIA-H100-80GB-HBM3", "h200": "NVIDIA-H200", "l40s": "NVIDIA-L40S"}


def table(pool: str) -> Object:
    return one(build(POOLS / pool), names.KIND)


def differences(old: Any, new: Any, path: str = "") -> set[str]:
    """Return the paths at which two specs differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {
            found
            for key in old.keys() | new.keys()
            for found in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        }
    return set() if old == new else {path}


def test_every_pool_has_a_folder() -> None:
    assert {path.parent.name for path in POOLS.glob("*/pool.yaml")} == set(GPUS)


@pytest.mark.parametrize("pool", GPUS)
def test_a_pool_profiles_on_its_own_gpu_and_selects_its_own_pods(pool: str) -> None:
    body = table(pool)
    spec = drafttables.parse(body["spec"])
    assert body["metadata"] == {"name": f"qwen3-8b-{pool}", "namespace": "serving"}
    assert spec.profile.node_selector == {"nvidia.com/gpu.product": GPUS[pool]}
    assert spec.serving.selector is not None
    assert spec.serving.selector.match_labels == {names.DRAFT_TABLE_LABEL: f"qwen3-8b-{pool}"}


@pytest.mark.parametrize(
    ("pool", "changed"),
    [
        ("h100", set()),
        ("h200", {"table"}),
        ("l40s", {"table", "engine.args"}),
    ],
)
def test_a_pool_changes_what_its_patch_says_and_no_more(pool: str, changed: set[str]) -> None:
    (base,) = build(POOLS / "base")
    own = {"profile.nodeSelector", f"serving.selector.matchLabels.{names.DRAFT_TABLE_LABEL}"}
    assert differences(base["spec"], table(pool)["spec"]) == changed | own


def test_the_api_server_takes_every_pools_table(plane: Plane, api: Api) -> None:
    if api.find("Namespace", "", "serving") is None:
        make_namespace(api, "serving")
    for pool in GPUS:
        told = dry_run(plane, "serving", build(POOLS / pool))
        assert f"drafttable.tabletune.dev/qwen3-8b-{pool} serverside-applied (server dry run)" in told


def test_argo_cds_definitions_take_the_application_set(plane: Plane, api: Api) -> None:
    definitions.install(api, definitions.ARGO_CD)
    make_namespace(api, "argocd")
    applications = yaml.safe_load((POOLS / "argo-cd" / "application-set.yaml").read_text())
    health = yaml.safe_load((POOLS / "argo-cd" / "health.yaml").read_text())
    told = dry_run(plane, "argocd", [applications, health])
    assert "applicationset.argoproj.io/draft-tables serverside-applied (server dry run)" in told
    (generator,) = applications["spec"]["generators"]
    assert {element["pool"] for element in generator["list"]["elements"]} == set(GPUS)
    # What the set makes of its template is an Application, which has a definition of its own.
    text = yaml.safe_dump(applications["spec"]["template"])
    for pool in GPUS:
        application = yaml.safe_load(text.replace("{{.pool}}", pool))
        application |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Application"}
        assert f"application.argoproj.io/draft-tables-{pool}" in dry_run(plane, "argocd", [application])


def test_fluxs_definitions_take_the_kustomizations(plane: Plane, api: Api) -> None:
    definitions.install(api, definitions.FLUX_SOURCE, definitions.FLUX_KUSTOMIZE)
    make_namespace(api, "flux-system")
    bodies = list(yaml.safe_load_all((POOLS / "flux" / "kustomizations.yaml").read_text()))
    told = dry_run(plane, "flux-system", bodies)
    source = one(bodies, "GitRepository")["metadata"]["name"]
    assert f"gitrepository.source.toolkit.fluxcd.io/{source} serverside-applied" in told
    pools = [body for body in bodies if body["kind"] == "Kustomization"]
    assert {body["spec"]["path"] for body in pools} == {f"./pools/{pool}" for pool in GPUS}
    for body in pools:
        assert (
            f"kustomization.kustomize.toolkit.fluxcd.io/{body['metadata']['name']} serverside-applied" in told
        )
        assert body["spec"]["sourceRef"] == {"kind": "GitRepository", "name": source}
