"""Brings a local cluster up and down as one.

Up may be called on a cluster that runs, runs in part, or crashed; down leaves no process, mount, cgroup or
namespace. What takes long to make stays for the next time: programs, images, the engine's files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cached_property

from e2e import engines, settings
from e2e.images import building, pausing
from e2e.local import cgroups, machines, mounts, networks, programs
from e2e.local.controlplane import ControlPlane
from e2e.local.daemons import Daemon
from e2e.local.nodes import PAUSE_IMAGE, Node
from e2e.settings import Settings


class LocalCluster:
    """The cluster on this machine."""

    can_fail = True

    def __init__(self, chosen: Settings, tell: Callable[[str], None]) -> None:
        self._settings, self._tell = chosen, tell

    def up(self) -> None:
        """Start what does not run."""
        machines.prepare(self._settings)
        self._tell("Programs of Kubernetes (10 minutes on two cores, the first time)")
        self._plane.programs.update(programs.build(*programs.NAMES, *programs.CLIENTS))
        if not any(daemon.process for daemon in self._daemons()):
            # What a crash or a reboot left would be taken for pods that run.
            self._clear()
            shutil.rmtree(self._settings.logs, ignore_errors=True)
        cgroups.make(cgroups.DAEMONS)
        networks.make()
        self._tell("Control plane")
        self._plane.start()
        self._plane.write_kubeconfig(self._settings.kubeconfig)
        for node in self._nodes.values():
            self._tell(f"Node {node.name}")
            node.start_runtime()
            node.ensure(pausing.build(self._settings, PAUSE_IMAGE))
            node.start_kubelet()
        self._plane.start_proxy()

    def down(self) -> None:
        """End it all."""
        # All nodes' at once, since engines take their time to end; kubelets first, or they start them again.
        for node in self._nodes.values():
            node.stop_kubelet()
        for node in self._nodes.values():
            cgroups.kill(cgroups.pods(node.name))
        for node in self._nodes.values():
            self._tell(f"Node {node.name} ends")
            node.stop()
        self._tell("Control plane ends")
        self._plane.stop()
        self._clear()

    def is_up(self) -> bool:
        """Whether it runs whole."""
        return networks.exists() and all(daemon.process for daemon in self._daemons())

    def inside(self) -> list[str]:
        """Return the words in front of a command that is to reach the cluster."""
        return networks.inside()

    def build(self) -> None:
        """Build the images and bring those to every node that it does not have; link the engine's files."""
        engines.ensure(self._settings, self._tell)
        for archive in building.build(self._settings, self._tell):
            for node in self._nodes.values():
                node.ensure(archive)

    def stop_kubelet(self, node: str) -> None:
        """End a node's kubelet, as if the node were cut off."""
        self._nodes[node].stop_kubelet()

    def start_kubelet(self, node: str) -> None:
        """Start it again."""
        self._nodes[node].start_kubelet()

    def stop_api_server(self) -> None:
        """End the API server."""
        self._plane.stop_api_server()

    def start_api_server(self) -> None:
        """Start it again."""
        self._plane.start_api_server()

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {name: Node(name, self._plane) for name in settings.POOLS}

    @cached_property
    def _plane(self) -> ControlPlane:
        found = {name: programs.FOLDER / name for name in (*programs.NAMES, *programs.CLIENTS)}
        return ControlPlane(self._settings.state, self._settings.logs, found)

    def _daemons(self) -> list[Daemon]:
        plane = [self._plane.daemon(name) for name in programs.NAMES if name != "kubelet"]
        return plane + [one for node in self._nodes.values() for one in (node.containerd, node.kubelet)]

    def _clear(self) -> None:
        """Remove what processes leave, and all state but images and the engine's files."""
        cgroups.end()
        cgroups.remove()
        for node in self._nodes.values():
            mounts.remove(node.folder)
            node.forget()
        networks.remove()
        self._plane.forget()
        self._settings.kubeconfig.unlink(missing_ok=True)
