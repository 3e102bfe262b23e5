"""The cgroups of a local cluster: all its processes are below one name, so that all can be ended by it.

The daemons are in one leaf, each node's pods in another, for cgroup v1 (a hierarchy for each controller) as
for v2 (one for all). Ending by cgroup hits exactly what this cluster started, also after a crash that left
no list of processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NAME = "tabletune-e2e"
DAEMONS = f"{NAME}/daemons"
END_SECONDS = 300.0
"""Time for killed processes to be gone: giving back an engine's memory took a virtual machine's kernel more
than half a minute."""


def pods(node: str) -> str:
    """Return the cgroup below which a node's kubelet puts its pods."""
    return f"{NAME}/{node}"


def is_unified() -> bool:
    """Whether the machine has cgroup v2."""
    return (ROOT / "cgroup.controllers").exists()


def make(cgroup: str) -> None:
    """Make a cgroup under every controller."""
    for hierarchy in _hierarchies():
        folder = hierarchy
        for part in Path(cgroup).parts:
            if is_unified():
                controllers = (folder / "cgroup.controllers").read_text().split()
                wanted = " ".join(f"+{controller}" for controller in controllers)
                (folder / "cgroup.subtree_control").write_text(wanted)
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            # A v1 cpuset takes no process before it has processors and memory nodes.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not is_unified() and (folder / file).exists() and not (folder / file).read_text().strip():
                    (folder / file).write_text((parent / file).read_text())


def add(cgroup: str, process: int) -> None:
    """Move a process into a cgroup."""
    for hierarchy in _hierarchies():
        (hierarchy / cgroup / "cgroup.procs").write_text(str(process))


def processes(cgroup: str = NAME) -> set[int]:
    """Return the processes in a cgroup and below it."""
    found: set[int] = set()
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / cgroup):
            with contextlib.suppress(OSError):
                found.update(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
    return found


def kill(cgroup: str = NAME) -> set[int]:
    """Kill every process in a cgroup and below it; return those that were there still."""
    found = processes(cgroup)
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return found


def end(cgroup: str = NAME) -> None:
    """Kill every process in a cgroup and below it, and wait until they are gone."""
    deadline = time.monotonic() + END_SECONDS
    while remaining := kill(cgroup):
        if time.monotonic() > deadline:
            raise RuntimeError(f"These processes of {cgroup} did not end: {sorted(remaining)}")
        time.sleep(0.1)


def remove(cgroup: str = NAME) -> None:
    """Remove a cgroup and all below it; its processes must have ended."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / cgroup, topdown=False):
            with contextlib.suppress(FileNotFoundError):
                Path(folder).rmdir()


def _hierarchies() -> Iterator[Path]:
    if is_unified():
        yield ROOT
        return
    seen = set()
    for folder in sorted(ROOT.iterdir()):
        # Names like cpu,cpuacct are one hierarchy with links to it.
        if folder.resolve() not in seen and (folder / "cgroup.procs").exists():
            seen.add(folder.resolve())
            yield folder.resolve()
