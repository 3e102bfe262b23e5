"""Speaks to the cluster as its users do, with kubectl and Helm."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from e2e import clusters, commands
from e2e.local import programs
from e2e.settings import Settings

Object = dict[str, Any]
FoundT = TypeVar("FoundT")
PAUSE_SECONDS, LONG_PAUSE_SECONDS = 0.5, 2.0
"""Times between two questions, in the first ten seconds and then: each is a process of kubectl, which takes
from the engine that is waited for."""

PATIENCE_SECONDS = 180.0
"""Most that anything is waited for that takes seconds as a rule; no scenario fails for being slow."""


class Client:
    """kubectl and Helm of one cluster."""

    def __init__(self, settings: Settings, provider: clusters.Provider) -> None:
        self._settings, self._provider = settings, provider
        self._programs = programs.build(*programs.CLIENTS)

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 300.0) -> str:
        """Run kubectl; raises :class:`commands.CommandError` with its words."""
        return commands.run([*self._command("kubectl"), *arguments], input=input, timeout=timeout)

    def helm(self, *arguments: str, timeout: float = 300.0) -> str:
        """Run Helm; raises :class:`commands.CommandError` with its words."""
        return commands.run([*self._command("helm"), *arguments], timeout=timeout * self._settings.seconds)

    def limit(self, seconds: float) -> str:
        """Return the option of kubectl and Helm for a time limit, by the machine's factor."""
        return f"--timeout={seconds * self._settings.seconds:.0f}s"

    def apply(self, *objects: Object) -> None:
        """Apply objects, as GitOps does: on the server, and ours is what counts."""
        self.kubectl(
            *("apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "--filename=-"),
            input=yaml.safe_dump_all(objects, sort_keys=False),
        )

    def kustomize(self, folder: Path) -> list[Object]:
        """Return what a folder builds to."""
        built = yaml.safe_load_all(self.kubectl("kustomize", str(folder)))
        return [one for one in built if one]

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, ``None`` where there is none or the API server is away."""
        with suppress(commands.CommandError):
            return self.get(kind, namespace, name)
        return None

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """Return an object."""
        where = ["--namespace", namespace] if namespace else []
        found: Object = json.loads(self.kubectl("get", kind, name, *where, "--output=json"))
        return found

    def objects(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """Return the objects of a kind in a namespace."""
        chosen = [f"--selector={selector}"] if selector else []
        answer = self.kubectl("get", kind, "--namespace", namespace, *chosen, "--output=json")
        found: list[Object] = json.loads(answer)["items"]
        return found

    def delete(self, kind: str, namespace: str, name: str, *options: str) -> None:
        """Delete an object; one that is gone is well."""
        where = ["--namespace", namespace] if namespace else []
        self.kubectl("delete", kind, name, *where, "--ignore-not-found", *options)

    def page(self, namespace: str, pod: str, port: int, path: str) -> str:
        """Return a page that a pod serves, through the API server."""
        return self.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}")

    def wait(self, what: str, condition: Callable[[], FoundT], seconds: float = PATIENCE_SECONDS) -> FoundT:
        """Return the first true value of ``condition``; fail with its last one after ``seconds``."""
        began = time.monotonic()
        limit = seconds * self._settings.seconds
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > began + limit:
                raise AssertionError(f"Not within {limit:.0f} s: {what} (last: {found!r})")
            time.sleep(PAUSE_SECONDS if time.monotonic() < began + 10 else LONG_PAUSE_SECONDS)

    def _command(self, name: str) -> list[str | Path]:
        program = self._programs[name]
        return [*self._provider.inside(), program, "--kubeconfig", self._settings.kubeconfig]
