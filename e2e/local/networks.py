"""The network namespace that a local cluster lives in, with the addresses of its services and pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e import commands
from e2e.local import packages

NAME = "tabletune"
FILE = Path("/run/netns") / NAME
API_ADDRESS = "10.96.0.1"
"""First address of the services' range, at which pods look for the API server. It is the namespace's own, so
the server listens right there."""
SERVICE_RANGE = "10.96.0.0/24"
DNS_ADDRESS = "10.96.1.10"
DOMAIN = "cluster.local"
POD_RANGE = "10.244.0.0/16"
GATEWAY = "10.244.0.1"
BRIDGE = "pods"
CNI_NAME = "tabletune-e2e"
CNI_RESULTS = Path("/var/lib/cni/results")


def inside() -> list[str]:
    """Return the words in front of a command that is to run in the namespace.

    Not ``ip netns exec``, which hides the machine's cgroups.
    """
    return ["nsenter", f"--net={FILE}"]


def exists() -> bool:
    """Whether the namespace is there."""
    return FILE.exists()


def make() -> None:
    """Make the namespace, unless it is there."""
    if not exists():
        commands.run(["ip", "netns", "add", NAME])
    commands.run(["ip", "-n", NAME, "link", "set", "lo", "up"])
    for address in (API_ADDRESS, DNS_ADDRESS):
        commands.run(["ip", "-n", NAME, "address", "replace", f"{address}/32", "dev", "lo"])
    # Forwarding for pods; and kube-proxy's rules for what goes from pod to pod over the bridge, or the answer
    # through a service would come from an address that nobody asked.
    for key in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        commands.run([*inside(), "sh", "-c", f"echo 1 > /proc/sys/{key}"])


def remove() -> None:
    """Remove the namespace and what the pods' network left outside it."""
    if exists():
        commands.run(["ip", "netns", "delete", NAME])
    for path in CNI_RESULTS.glob(f"{CNI_NAME}-*"):
        container = path.name.removeprefix(f"{CNI_NAME}-").rpartition("-")[0]
        for one in CNI_RESULTS.glob(f"*-{container}-*"):
            one.unlink(missing_ok=True)


def cni(node: int, folder: Path) -> dict[str, Any]:
    """Return the pods' network of a node: one bridge for all nodes, a range of addresses for each."""
    address_range = {
        "subnet": POD_RANGE,
        "rangeStart": f"10.244.{node}.2",
        "rangeEnd": f"10.244.{node}.254",
        "gateway": GATEWAY,
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "addresses"),
            "ranges": [[address_range]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": CNI_NAME, "plugins": [bridge]}


def write_cni(node: int, folder: Path) -> Path:
    """Write a node's network for containerd; return its folder."""
    configuration = folder / "cni"
    configuration.mkdir(parents=True, exist_ok=True)
    (configuration / "10-pods.conflist").write_text(json.dumps(cni(node, folder), indent=2))
    return configuration


def plugins() -> Path:
    """Return the folder of the network plugins' programs."""
    return packages.PLUGINS
