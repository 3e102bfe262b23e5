"""The nodes of a local cluster: for each a containerd of its own, a kubelet, and a GPU that is none.

Two nodes of one machine share its network namespace, so their kubelets have ports of their own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e import commands, settings
from e2e.local import cgroups, mounts, networks
from e2e.local.controlplane import ControlPlane
from e2e.local.daemons import Daemon

PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
"""Image of the process that holds a pod's namespaces; built here (``e2e/images/pause``)."""
NAMESPACE = "k8s.io"
"""containerd's namespace for Kubernetes."""


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    plane: ControlPlane

    @property
    def number(self) -> int:
        """Return its number, from 1."""
        return settings.POOLS.index(self.name) + 1

    @property
    def folder(self) -> Path:
        """Return the folder of all that it keeps."""
        return self.plane.state / "nodes" / self.name

    @property
    def containerd(self) -> Daemon:
        """Return its container runtime."""
        return Daemon(f"containerd-{self.name}", self.folder, self.plane.logs)

    @property
    def kubelet(self) -> Daemon:
        """Return its kubelet."""
        return Daemon(f"kubelet-{self.name}", self.folder, self.plane.logs)

    @property
    def socket(self) -> Path:
        """Return its container runtime's socket."""
        return self.folder / "containerd.sock"

    def start_runtime(self) -> None:
        """Start containerd, unless it runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        networks.write_cni(self.number, self.folder)
        configuration = self.folder / "containerd.toml"
        configuration.write_text(self._containerd_configuration())
        self.containerd.start(["containerd", "--config", configuration], self._runtime_is_ready)

    def ensure(self, archive: Path) -> None:
        """Bring an image's archive to the node, unless this archive was brought before."""
        loaded = self.folder / "containerd" / f"{archive.stem}.loaded"
        if not loaded.exists():
            image = archive.stem.rpartition("-")[0]
            for old in loaded.parent.glob(f"{image}-*.loaded"):
                old.unlink()
            self._forget(image)
            commands.run([*self._ctr(), "images", "import", archive])
            loaded.touch()

    def _forget(self, image: str) -> None:
        """Take away an image, and those that are known by their digests alone since another has their name.

        At once and before its next version comes: while that one was put on layers of the old one, containerd
        took them away, since nothing had a name for them any more.
        """
        old = outdated(commands.run([*self._ctr(), "images", "list"]), image)
        if old:
            commands.run([*self._ctr(), "images", "remove", "--sync", *old])

    def start_kubelet(self) -> None:
        """Start the kubelet, unless it runs, and wait until the node is ready and has its GPU."""
        cgroups.make(cgroups.pods(self.name))
        config = self.plane.write_kubeconfig(self.folder / "kubelet.kubeconfig", self.name)
        configuration = self.folder / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(self._kubelet_configuration()))
        (self.folder / "resolv.conf").touch()
        self.kubelet.start(
            [
                self.plane.programs["kubelet"],
                f"--kubeconfig={config}",
                f"--config={configuration}",
                f"--hostname-override={self.name}",
                f"--node-ip={networks.API_ADDRESS}",
                f"--node-labels={settings.POOL_LABEL}={self.name}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'certificates'}",
            ],
            self._node_is_ready,
        )
        self._add_gpu()

    def stop_kubelet(self) -> None:
        """End the kubelet; the node's containers run on."""
        self.kubelet.stop(at_once=True)

    def stop(self) -> None:
        """End the kubelet, all containers and the runtime, and unmount what they had."""
        self.stop_kubelet()
        if self.containerd.process is not None:
            with contextlib.suppress(commands.CommandError):
                # Deleted by containerd, a task's shim ends in order and takes its sockets along.
                for task in commands.run([*self._ctr(), "tasks", "list", "--quiet"]).split():
                    self._try_ctr("tasks", "delete", "--force", task)
                for container in commands.run([*self._ctr(), "containers", "list", "--quiet"]).split():
                    self._try_ctr("containers", "delete", container)
        cgroups.end(cgroups.pods(self.name))
        self.containerd.stop()
        mounts.remove(self.folder)

    def forget(self) -> None:
        """Remove all that it keeps but its images."""
        kept = self.folder / "containerd"
        # A shim that was killed leaves its socket, which lies where containerd's code says.
        for address in kept.glob("state/io.containerd.runtime.v2.task/*/*/address"):
            Path(address.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path != kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(kept / "state", ignore_errors=True)

    def _ctr(self) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", NAMESPACE]

    def _try_ctr(self, *arguments: str) -> None:
        with contextlib.suppress(commands.CommandError):
            commands.run([*self._ctr(), *arguments], timeout=20)

    def _runtime_is_ready(self) -> bool:
        with contextlib.suppress(commands.CommandError):
            commands.run([*self._ctr(), "version"], timeout=5)
            return True
        return False

    def _kubectl(self, *arguments: str) -> str:
        kubectl = self.plane.programs["kubectl"]
        config = self.plane.state / "kubeconfig"
        return commands.run([*networks.inside(), kubectl, "--kubeconfig", config, *arguments])

    def _node_is_ready(self) -> bool:
        with contextlib.suppress(commands.CommandError, ValueError):
            node = json.loads(self._kubectl("get", "node", self.name, "--output=json"))
            ready = [one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"]
            return ready == ["True"] and not node["spec"].get("taints")
        return False

    def _add_gpu(self) -> None:
        """Say that the node has a GPU, as a device plugin would: the scheduler and the kubelet count it."""
        resource = settings.GPU.replace("/", "~1")
        patch = [
            {"op": "add", "path": f"/status/{part}/{resource}", "value": "1"}
            for part in ("capacity", "allocatable")
        ]
        self._kubectl(
            *("patch", "node", self.name, "--subresource=status", "--type=json", "--patch", json.dumps(patch))
        )

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": networks.API_ADDRESS,
            "port": 10250 + 10 * self.number,
            "healthzPort": 10248 + 10 * self.number,
            # Nobody outside the namespace reaches it.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "clusterDNS": [networks.DNS_ADDRESS],
            "clusterDomain": networks.DOMAIN,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.pods(self.name)}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "resolvConf": str(self.folder / "resolv.conf"),
            "evictionHard": {
                "memory.available": "200Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            # Images cannot be pulled again.
            "imageMinimumGCAge": "1000h",
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 10,
            "podLogsDir": str(self.folder / "pod-logs"),
        }

    def _containerd_configuration(self) -> str:
        folder = self.folder
        return textwrap.dedent(
            f"""\
            version = 2
            root = "{folder}/containerd/root"
            state = "{folder}/containerd/state"
            [grpc]
              address = "{self.socket}"
            [ttrpc]
              address = "{self.socket}.ttrpc"
            [plugins."io.containerd.internal.v1.opt"]
              path = "{folder}/containerd/opt"
            [plugins."io.containerd.grpc.v1.cri"]
              sandbox_image = "{PAUSE_IMAGE}"
              restrict_oom_score_adj = true
              netns_mounts_under_state_dir = true
              disable_apparmor = true
            [plugins."io.containerd.grpc.v1.cri".cni]
              bin_dir = "{networks.plugins()}"
              conf_dir = "{folder}/cni"
            """
        )


def outdated(listed: str, image: str) -> list[str]:
    """Return the names, in what `ctr images list` wrote, of what goes before another ``image`` comes.

    That is the image (``operator-0.1.0``) under all its names, and what has no name but its digest.
    """
    digests = {name: digest for name, _, digest, *_ in map(str.split, listed.splitlines()[1:])}
    kept = {
        digest
        for name, digest in digests.items()
        if not name.startswith("sha256:") and name.rpartition("/")[2].replace(":", "-") != image
    }
    return [name for name, digest in digests.items() if digest not in kept]
