"""The Debian packages that the nodes and the images are made with."""

from __future__ import annotations

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


def missing() -> list[str]:
    """Return the packages that are not installed, in order."""
    found = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if not (PLUGINS / "bridge").exists():
        found.add(PLUGINS_PACKAGE)
    return sorted(found)


def install() -> None:
    """Install what is missing; raises :class:`commands.CommandError` with apt-get's words."""
    packages = missing()
    if not packages:
        return
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    commands.run(["apt-get", "update", "--quiet=2"], env=quiet)
    options = ["install", "--quiet=2", "--yes", "--no-install-recommends"]
    commands.run(["apt-get", *options, *packages], env=quiet)
