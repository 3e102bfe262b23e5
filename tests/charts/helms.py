"""The real Helm, on this repository's chart."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.clients import Object
from tests.controlplane.planes import Plane

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "tabletune"
Values = Mapping[str, Any]


class HelmError(Exception):
    """Helm refused; its own words."""


class Helm:
    """Helm with a home of its own, so that nobody's settings are read or written."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder

    def run(self, *arguments: str, values: Values | None = None, plane: Plane | None = None) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HELM_")}
        environment |= {f"HELM_{name}_HOME": str(self._folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        environment["KUBECONFIG"] = str(plane.kubeconfig()) if plane else os.devnull
        given = [] if values is None else ["--values", "-"]
        done = subprocess.run(
            [self._program, *arguments, *given],
            input=json.dumps(values),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise HelmError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def template(
        self,
        values: Values | None = None,
        *arguments: str,
        name: str = "tabletune",
        namespace: str = "tabletune-system",
    ) -> list[Object]:
        """Return the objects of a release, its test's pod left out."""
        text = self.run(
            *("template", name, str(CHART), "--namespace", namespace, "--skip-tests", *arguments),
            values=values or {},
        )
        return [body for body in yaml.safe_load_all(text) if body]


@pytest.fixture(scope="session")
def helm(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster."""
    return Helm(programs["helm"], tmp_path_factory.mktemp("helm"))


def of_kind(bodies: list[Object], kind: str) -> list[Object]:
    return [body for body in bodies if body["kind"] == kind]


def one(bodies: list[Object], kind: str, name: str = "") -> Object:
    """Return the one object of ``kind``, or the one of ``name``."""
    (found,) = (body for body in of_kind(bodies, kind) if name in ("", body["metadata"]["name"]))
    return found


def environment_of(deployment: Object) -> dict[str, str]:
    """Return the operator's variables, fields of the pod as ``field:PATH``."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {
        entry["name"]: entry.get(
            "value", f"field:{entry.get('valueFrom', {}).get('fieldRef', {}).get('fieldPath')}"
        )
        for entry in container["env"]
    }
