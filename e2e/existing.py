"""A cluster that is there already: ``KUBECONFIG`` names it, and its owner brought the images to it.

Nothing is started or ended; scenarios that stop kubelets or the API server are skipped.
"""

from __future__ import annotations

from collections.abc import Callable

from e2e import commands
from e2e.settings import Settings


class NotPossibleError(RuntimeError):
    """This cannot be done to the cluster."""


class ExistingCluster:
    """The cluster of the current context."""

    can_fail = False

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings, self._tell = settings, tell

    def up(self) -> None:
        """See that it answers."""
        commands.run(["kubectl", "--kubeconfig", self._settings.kubeconfig, "get", "nodes"])

    def down(self) -> None:
        """Do nothing: it is not ours."""
        self._tell("The cluster is left as it is: it was there before.")

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            self.up()
        except commands.CommandError:
            return False
        return True

    def inside(self) -> list[str]:
        """Return nothing: it is reached from here."""
        return []

    def build(self) -> None:
        """Say what its owner has to do."""
        images = ", ".join(self._settings.image(target) for target in ("operator", "profiler", "plugin"))
        self._tell(f"The nodes must be able to pull {images}.")

    def stop_kubelet(self, node: str) -> None:
        """Refuse."""
        raise NotPossibleError(f"The kubelet of {node} is not ours to stop.")

    def start_kubelet(self, node: str) -> None:
        """Refuse."""
        raise NotPossibleError(f"The kubelet of {node} is not ours to start.")

    def stop_api_server(self) -> None:
        """Refuse."""
        raise NotPossibleError("The API server is not ours to stop.")

    def start_api_server(self) -> None:
        """Refuse."""
        raise NotPossibleError("The API server is not ours to start.")
