"""One command at a time works on this machine's cluster.

There is one network namespace and one cgroup for it, whatever the state folder: two that bring it up, or one
that takes it away under the other's scenarios, would each see faults that are none.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from e2e.local.machines import MachineError

FILE = Path("/run/tabletune-e2e.lock")


def hold(tell: Callable[[str], None], file: Path = FILE) -> int:
    """Return a file descriptor that holds the cluster until it is closed, as it is when this process ends.

    Waits where another command holds it, and says so. It is inherited by what this process becomes, and not
    by what it starts. Raises :class:`MachineError` for who is not root.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError as error:
        raise MachineError(f"This machine cannot host a cluster: it needs root ({error}).") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell(f"Another command works on the cluster (process {os.read(descriptor, 20).decode()}): waiting.")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    os.set_inheritable(descriptor, True)
    return descriptor
