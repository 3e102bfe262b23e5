"""The cluster that the scenarios run on: one of this machine, one that kind makes, or one that is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from e2e.existing import ExistingCluster
from e2e.kind import KindCluster
from e2e.local.clusters import LocalCluster
from e2e.settings import Settings


class Provider(Protocol):
    """What makes a cluster."""

    can_fail: bool
    """Whether kubelets and the API server can be stopped."""

    def up(self) -> None:
        """Make it, or start what does not run of it."""

    def down(self) -> None:
        """End it and leave nothing behind."""

    def is_up(self) -> bool:
        """Whether it runs whole."""

    def inside(self) -> list[str]:
        """Return the words in front of a command that is to reach it."""

    def build(self) -> None:
        """Build the images and bring them to every node."""

    def stop_kubelet(self, node: str) -> None:
        """End a node's kubelet."""

    def start_kubelet(self, node: str) -> None:
        """Start it again."""

    def stop_api_server(self) -> None:
        """End the API server."""

    def start_api_server(self) -> None:
        """Start it again."""


def provider(settings: Settings, tell: Callable[[str], None]) -> Provider:
    """Return the provider that the settings ask for."""
    kinds: dict[str, Callable[[Settings, Callable[[str], None]], Provider]] = {
        "local": LocalCluster,
        "kind": KindCluster,
        "existing": ExistingCluster,
    }
    return kinds[settings.cluster](settings, tell)
