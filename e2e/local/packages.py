"""The Debian packages that the nodes and the images are made with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e import commands

PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "curl": "curl",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
"""Programs, and the package that each comes with."""
PLUGINS = Path("/usr/lib/cni")
PLUGINS_PACKAGE = "containernetworking-plugins"


class MachineError(RuntimeError):
    """This machine cannot run a cluster; says what is missing."""


def missing() -> list[str]:
    """Return the packages that are not installed, in order."""
    found = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if not (PLUGINS / "bridge").exists():
        found.add(PLUGINS_PACKAGE)
    return sorted(found)


def why_not() -> str:
    """Return why this machine cannot run a cluster of its own, empty where it can."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces, mounts and containers"
    if shutil.which("go") is None:
        return "Go is not on the PATH, which builds Kubernetes' programs"
    packages = missing()
    if packages and shutil.which("apt-get") is None:
        return f"these packages are missing, and there is no apt-get: {' '.join(packages)}"
    return ""


def ensure() -> None:
    """Install what is missing; raises :class:`MachineError` where this machine cannot."""
    reason = why_not()
    if reason:
        raise MachineError(f"This machine cannot run a cluster of its own: {reason}.")
    packages = missing()
    if not packages:
        return
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    commands.run(["apt-get", "update", "--quiet=2"], env=quiet)
    install = ["apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends"]
    commands.run([*install, *packages], env=quiet)
