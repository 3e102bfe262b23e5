"""Finds the Pythons of this machine that TableTune runs on.

`bootstrapping.py` and `.ci/run` ask it, before anything is installed: standard library only, and no
syntax newer than Python 3.7, so that an old `python3` can still name the better one beside it.

A name on the PATH proves nothing (a pyenv shim answers only for the versions that are switched on), so
every candidate is run once and says itself what it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SUPPORTED = ((3, 11), (3, 12), (3, 13))
"""The same versions as `requires-python` in pyproject.toml (a test compares them)."""


class Python(NamedTuple):
    """An interpreter that answered."""

    path: str
    """What to run."""
    version: tuple[int, ...]
    """Major and minor version."""

    @property
    def is_supported(self) -> bool:
        """Whether TableTune runs on it."""
        return self.version in SUPPORTED

    def __str__(self) -> str:
        return f"Python {spelled(self.version)} ({self.path})"


def spelled(version: tuple[int, ...]) -> str:
    """Return `version` as people write it: `(3, 11)` is "3.11"."""
    return ".".join(str(number) for number in version)


def inspect(path: str) -> Python | None:
    """Return what the interpreter at `path` is, or `None` where it does not run."""
    question = "import sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([path, "-I", "-c", question], capture_output=True, timeout=30, check=True)
        major, minor = answer.stdout.split()
        return Python(path, (int(major), int(minor)))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def candidates() -> list[str]:
    """Return the interpreters worth asking: the default one, the PATH's newest first, then pyenv's."""
    newest_first = [spelled(version) for version in reversed(SUPPORTED)]
    on_path = [shutil.which(name) for name in ["python3", *("python" + version for version in newest_first)]]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    of_pyenv = [
        str(path)
        for version in newest_first
        for path in sorted(pyenv.glob(f"{version}.*/bin/python3"), reverse=True)
    ]
    return [path for path in on_path if path] + of_pyenv


def main(arguments: list[str]) -> int:
    """Print the path of the newest supported Python among the versions asked for; exit 1 for none."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="such as 3.12; default: all supported")
    wanted = parser.parse_args(arguments).versions or [spelled(version) for version in SUPPORTED]
    found = [python for python in map(inspect, candidates()) if python and spelled(python.version) in wanted]
    if not found:
        return 1
    print(max(found, key=lambda python: python.version).path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
