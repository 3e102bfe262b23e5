"""The operator as a real process, under its own service account and the roles of `config/rbac`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.controlplane.clients import PATIENCE_SECONDS, Api, ApiError, Object, wait
from tests.controlplane.planes import Plane, free_port

ROOT = Path(__file__).parents[2]
RBAC = ROOT / "config" / "rbac"
HOME = "tabletune-system"


def grant(api: Api, namespaces: tuple[str, ...] = ()) -> str:
    """Apply the roles for ``namespaces`` (all of the cluster, if empty) and return the operator's token."""
    try:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    except ApiError as error:
        if error.status != 409:
            raise
    for body in _manifests("service-account.yaml"):
        api.apply(body)
    if not namespaces:
        for body in _manifests("cluster-wide.yaml"):
            api.apply(body)
    for namespace in namespaces:
        for body in _manifests("namespaced.yaml"):
            body["metadata"]["namespace"] = namespace
            api.apply(body)
    return api.token_of(HOME, "tabletune-operator")


def _manifests(name: str) -> list[Object]:
    return list(yaml.safe_load_all((RBAC / name).read_text()))


class Process:
    """One operator process; a context manager that ends it by SIGTERM and wants it to end well."""

    def __init__(
        self, plane: Plane, token: str, folder: Path, name: str = "operator", **settings: Any
    ) -> None:
        self.port = free_port()
        self._log = folder / f"{name}.log"
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TABLETUNE_")},
            "KUBECONFIG": str(plane.kubeconfig(token, name)),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}",
            "TABLETUNE_OPERATOR_PORT": str(self.port),
            "TABLETUNE_OPERATOR_LEASE_NAMESPACE": HOME,
            "TABLETUNE_OPERATOR_IDENTITY": name,
            **{f"TABLETUNE_OPERATOR_{key.upper()}": str(value) for key, value in settings.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from tabletune_operator.main import run; run()"],
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        return self

    def wait_until_ready(self) -> Self:
        wait("the operator to be ready", lambda: self.get("/readyz")[0] == 200)
        return self

    def get(self, path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def count(self, metric: str) -> float:
        """The sum of a metric over its labels, or of those samples whose text begins with ``metric``."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
