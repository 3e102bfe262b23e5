"""What kubectl makes of the manifests in `config/`, and what the real API server says to it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.clients import Object
from tests.controlplane.planes import Plane

CONFIG = Path(__file__).parents[2] / "config"


class BuildError(Exception):
    """kubectl refused; its own words."""


def kubectl(*arguments: str, given: str = "") -> str:
    done = subprocess.run(
        ["kubectl", *arguments], input=given, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise BuildError(done.stderr.strip())
    return done.stdout


def build(folder: Path) -> list[Object]:
    """Return the objects that a kustomization makes."""
    return [body for body in yaml.safe_load_all(kubectl("kustomize", str(folder))) if body]


def overlay(folder: Path, kustomization: dict[str, Any], files: dict[str, object]) -> list[Object]:
    """Write a kustomization with its files into ``folder``, and return what it makes."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    for name, content in (files | {"kustomization.yaml": head | kustomization}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    return build(folder)


def dry_run(plane: Plane, namespace: str | None, bodies: list[Object]) -> str:
    """Have the API server check ``bodies`` as if they were applied; unknown fields are refused too.

    ``namespace`` is that of objects that name none; ``None`` where each names its own.
    """
    return kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
        *("--kubeconfig", str(plane.kubeconfig())),
        *(() if namespace is None else ("--namespace", namespace)),
        given=yaml.safe_dump_all(bodies),
    )


def one(bodies: list[Object], kind: str) -> Object:
    """Return the one object of ``kind``."""
    (found,) = (body for body in bodies if body["kind"] == kind)
    return found


def named(entries: list[Object], name: str) -> Object:
    """Return the one entry of a list with this name."""
    (found,) = (entry for entry in entries if entry["name"] == name)
    return found
