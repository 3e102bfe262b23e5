"""Definitions of other projects' objects, for an API server to check manifests for them by.

Their repositories are Go modules that hold the definitions beside the code. The newest release is taken whose
Go is no newer than that of tools/controlplane.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import yaml

from tests.controlplane.clients import Api, Object, wait

# Module and version, its checksum, and the definitions in it.
ARGO_CD = (
    "github.com/argoproj/argo-cd/v3@v3.5.7",
    "h1:Xm1BF+I5OgDKUG3SDK49vn2/Y5AMyaNVko+/JT08gj0=",
    ("manifests/crds/application-crd.yaml", "manifests/crds/applicationset-crd.yaml"),
)
FLUX_KUSTOMIZE = (
    "github.com/fluxcd/kustomize-controller@v1.9.6",
    "h1:XB+G3A0mky0j5uVHZWv4oSlS2RvZBoNIUhstIvY0JKE=",
    ("config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml",),
)
FLUX_SOURCE = (
    "github.com/fluxcd/source-controller@v1.9.6",
    "h1:nG534/bI6nVpyHra7ONAk6xDB3xPsVT+EOLHZHXPrrc=",
    ("config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",),
)
Module = tuple[str, str, tuple[str, ...]]


def fetch(module: Module) -> list[Object]:
    """Return the definitions in ``module``; Go keeps what it fetched."""
    version, checksum, paths = module
    done = subprocess.run(
        ["go", "mod", "download", "-json", version], capture_output=True, text=True, check=False, timeout=300
    )
    answer = json.loads(done.stdout or "{}")
    assert not done.returncode, answer.get("Error") or done.stderr
    assert answer["Sum"] == checksum
    return [yaml.safe_load(Path(answer["Dir"], path).read_text()) for path in paths]


def install(api: Api, *modules: Module) -> None:
    """Install the definitions in ``modules``, and wait until they are served."""
    for definition in (definition for module in modules for definition in fetch(module)):
        api.apply(definition)
        name = definition["metadata"]["name"]

        def established(name: str = name) -> bool:
            status = api.get("CustomResourceDefinition", "", name).get("status") or {}
            found = {one["type"]: one["status"] for one in status.get("conditions") or ()}
            return found.get("Established") == "True"

        wait(f"{name} to be established", established)
