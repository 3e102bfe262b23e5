"""Whether this machine can host a cluster, found out before anything is made.

A machine that cannot is no fault of TableTune: CI tells the two apart by :class:`MachineError`. What only an
attempt can tell (a container's root may be forbidden to mount, or to make cgroups) is attempted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from e2e import commands
from e2e.local import cgroups, packages
from e2e.settings import Settings

PYTHON = (3, 11)
"""Python of the base images, which runs the packages of .venv in pods."""
MEMORY_GIB = 12
"""Two servers and the control plane took 8 GiB, and beside them a scenario starts a profile (4 GiB)."""
DISK_GIB = 16
"""Free disk that everything takes which is made once; less is needed when it is there."""
DISK_AGAIN_GIB = 4
PROBE = f"{cgroups.NAME}-probe"
"""A cgroup of its own, since a cluster may run in the other."""
BRIDGE = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""There while the kernel's module br_netfilter is."""


class MachineError(RuntimeError):
    """This machine lacks something that a cluster needs, or could not get it; says what."""


def why_not(settings: Settings) -> str:
    """Return why this machine cannot host a cluster, empty where it can; nothing is changed."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces, mounts and containers"
    if shutil.which("go") is None:
        return "Go is not on the PATH, which builds Kubernetes' programs"
    if settings.engine == "cpu" and sys.version_info[:2] != PYTHON:
        found = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f".venv is of Python {found}, and the images' Python, which runs its vLLM, is 3.11"
    missing = packages.missing()
    if missing and shutil.which("apt-get") is None:
        return f"these packages are missing, and there is no apt-get: {' '.join(missing)}"
    return _too_small(settings) or _forbidden(settings)


def prepare(settings: Settings) -> None:
    """Install the packages that are missing; raises :class:`MachineError` where this machine cannot."""
    reason = why_not(settings)
    if reason:
        raise MachineError(f"This machine cannot host a cluster: {reason}.")
    try:
        packages.install()
    except commands.CommandError as error:
        raise MachineError(f"The packages that a cluster needs could not be installed. {error}") from error


def _too_small(settings: Settings) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if memory < MEMORY_GIB:
        return f"it has {memory:.1f} GiB of memory, and three engines need {MEMORY_GIB}"
    wanted = DISK_AGAIN_GIB if settings.state.exists() else DISK_GIB
    place = next(folder for folder in (settings.state, *settings.state.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 2**30
    if free < wanted:
        return f"{place} has {free:.1f} GiB free, and {wanted} are needed"
    return ""


def _forbidden(settings: Settings) -> str:
    try:
        commands.run(["unshare", "--net", "true"])
    except commands.CommandError as error:
        return f"it may not make network namespaces ({error})"
    try:
        cgroups.make(PROBE)
        cgroups.remove(PROBE)
    except OSError as error:
        return f"it may not make cgroups ({error})"
    settings.state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=settings.state) as folder:
        parts = {name: Path(folder) / name for name in ("lowerdir", "upperdir", "workdir", "merged")}
        for part in parts.values():
            part.mkdir()
        merged = parts.pop("merged")
        options = ",".join(f"{name}={part}" for name, part in parts.items())
        try:
            # In a mount namespace of its own, with which it goes.
            mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
            commands.run(["unshare", "--mount", *mount])
        except commands.CommandError as error:
            return f"it cannot mount overlay file systems at {settings.state} ({error})"
    with contextlib.suppress(commands.CommandError):
        commands.run(["modprobe", "br_netfilter"])
    if not BRIDGE.exists():
        return "its kernel has no br_netfilter, without which Services do not reach pods of the same node"
    return ""
