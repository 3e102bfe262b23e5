"""A cluster that kind makes, for machines with Docker. Untested: no machine of the project has Docker."""

from __future__ import annotations

import json
from collections.abc import Callable

import yaml

from e2e import commands
from e2e.images import building
from e2e.settings import GPU, POOL_LABEL, POOLS, TARGETS, Settings

NAME = "tabletune-e2e"


class KindCluster:
    """Two workers, a pool each."""

    can_fail = True

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings, self._tell = settings, tell

    def up(self) -> None:
        """Make it, unless it is there."""
        if self.is_up():
            return
        self._tell("Cluster by kind")
        workers = [{"role": "worker", "labels": {POOL_LABEL: pool}} for pool in POOLS]
        content = {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [{"role": "control-plane"}, *workers],
        }
        self._settings.state.mkdir(parents=True, exist_ok=True)
        kubeconfig = str(self._settings.kubeconfig)
        make = ["kind", "create", "cluster", "--name", NAME, "--kubeconfig", kubeconfig, "--wait=3m"]
        commands.run([*make, "--config=-"], input=yaml.safe_dump(content))
        for pool in POOLS:
            patch = [{"op": "add", "path": f"/status/capacity/{GPU.replace('/', '~1')}", "value": "1"}]
            self._kubectl(
                *("patch", "node", self._node(pool), "--subresource=status", "--type=json"),
                f"--patch={json.dumps(patch)}",
            )

    def down(self) -> None:
        """Delete it."""
        commands.run(["kind", "delete", "cluster", "--name", NAME])

    def is_up(self) -> bool:
        """Whether kind knows it."""
        return NAME in commands.run(["kind", "get", "clusters"]).split()

    def inside(self) -> list[str]:
        """Return nothing: it is reached from here."""
        return []

    def build(self) -> None:
        """Build the images with Docker and bring them to the nodes."""
        building.build_with_docker(self._settings, self._tell)
        images = [self._settings.image(target) for target in TARGETS]
        commands.run(["kind", "load", "docker-image", "--name", NAME, *images])

    def stop_kubelet(self, node: str) -> None:
        """End a node's kubelet."""
        commands.run(["docker", "exec", self._node(node), "systemctl", "stop", "kubelet"])

    def start_kubelet(self, node: str) -> None:
        """Start it again."""
        commands.run(["docker", "exec", self._node(node), "systemctl", "start", "kubelet"])

    def stop_api_server(self) -> None:
        """Stop the control plane's container."""
        commands.run(["docker", "stop", f"{NAME}-control-plane"])

    def start_api_server(self) -> None:
        """Start it again."""
        commands.run(["docker", "start", f"{NAME}-control-plane"])

    def _node(self, pool: str) -> str:
        found = self._kubectl("get", "nodes", f"--selector={POOL_LABEL}={pool}", "--output=name")
        return found.strip().removeprefix("node/")

    def _kubectl(self, *arguments: str) -> str:
        return commands.run(["kubectl", "--kubeconfig", self._settings.kubeconfig, *arguments])
