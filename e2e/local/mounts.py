"""What is mounted below a folder."""

from __future__ import annotations

import time
from pathlib import Path

from e2e import commands

_TABLE = Path("/proc/self/mountinfo")
_TRIES = 5


def below(folder: Path) -> list[Path]:
    """Return the mounts below ``folder``, the innermost first."""
    found = []
    for line in _TABLE.read_text().splitlines():
        path = Path(line.split()[4].encode().decode("unicode_escape"))
        if path.is_relative_to(folder):
            found.append(path)
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove(folder: Path) -> None:
    """Unmount everything below ``folder``."""
    for last in range(_TRIES):
        for path in below(folder):
            try:
                commands.run(["umount", path])
            except commands.CommandError:
                # Something may still be closing a file there; in the end it goes when that is done.
                if last == _TRIES - 1:
                    commands.run(["umount", "--lazy", path])
        if not below(folder):
            return
        time.sleep(0.3)
