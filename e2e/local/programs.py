"""Kubernetes' programs and Helm, built once by ``tools/controlplane/building.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e import commands, settings

NAMES = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "coredns",
    "kubelet",
)
CLIENTS = ("kubectl", "helm")
FOLDER = settings.REPOSITORY / ".cache" / "controlplane"
"""Where the programs lie."""
BUILDING = settings.REPOSITORY / "tools" / "controlplane" / "building.py"
BUILD_SECONDS = 3_600.0


def build(*names: str) -> dict[str, Path]:
    """Return the paths of the programs ``names``, built first where that is needed."""
    done = commands.run([sys.executable, BUILDING, *names], timeout=BUILD_SECONDS, shown=True)
    return {Path(line).name: Path(line) for line in done.split()}
