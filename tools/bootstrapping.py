"""Sets up .venv on a bare machine: `make setup`, and through it every other command, calls this.

A stranger has Python and make, nothing else. What is missing then shows up minutes later, as a linker's
or a compiler's error from deep inside the engine. So this looks first, names every missing system
package at once, and installs them where it may (as root on Debian and Ubuntu). Then it makes the virtual
environment and fills it with exactly the pinned packages, all checked by hash.

Standard library only, and no syntax newer than Python 3.7: it runs before anything is installed, perhaps
by a Python too old for the rest, which it then says.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pythons

VENV = Path(".venv")
VENV_PYTHON = VENV / "bin" / "python"
VENV_UV = VENV / "bin" / "uv"
UV_REQUIREMENTS = "requirements/uv.txt"
REQUIREMENTS = "requirements/engine.txt"


class SetupError(Exception):
    """The machine lacks something that only its owner can add; the message says what and how."""


class SystemPackage(NamedTuple):
    """Something that pip cannot install."""

    name: str
    """Debian's and Ubuntu's name of it."""
    purpose: str
    """What it is and what it is needed for."""
    is_present: Callable[[], bool]
    """Whether the machine has it, from this package or from elsewhere."""


def system_packages(python: pythons.Python) -> list[SystemPackage]:
    """Return what `python` and the engine need from the system."""
    debian_python = "python" + pythons.spelled(python.version)
    return [
        SystemPackage(
            debian_python + "-venv",
            "Python's venv and ensurepip modules, to make the virtual environment",
            lambda: _succeeds([python.path, "-c", "import ensurepip, venv"]),
        ),
        SystemPackage(
            debian_python + "-dev",
            "Python.h, for the kernels that the engine compiles at start-up",
            lambda: _succeeds([python.path, "-c", _LOOK_FOR_PYTHON_H]),
        ),
        SystemPackage(
            "g++",
            "a C and C++ compiler, for the same kernels",
            lambda: bool(shutil.which("gcc") and shutil.which(os.environ.get("CXX", "g++"))),
        ),
        SystemPackage(
            "libnuma1",
            "libnuma.so.1, which vLLM's CPU build links to",
            lambda: _loads("libnuma.so.1"),
        ),
    ]


_LOOK_FOR_PYTHON_H = (
    "import os, sys, sysconfig;"
    "sys.exit(not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
)


def choose_python(requested: str) -> pythons.Python:
    """Return the Python of .venv: the `requested` one, else the one it has, else the machine's best.

    Raises :class:`SetupError`, which names those found, where none is supported.
    """
    if requested:
        paths = [shutil.which(requested) or requested]
    else:
        paths = [str(VENV_PYTHON)] if VENV_UV.exists() else []
        paths += pythons.candidates()
    answering = [python for python in map(pythons.inspect, paths) if python]
    for python in answering:
        if python.is_supported:
            return python
    found = ", ".join(map(str, answering)) or (f"{requested}, which does not run" if requested else "none")
    accepted = ", ".join(map(pythons.spelled, pythons.SUPPORTED))
    raise SetupError(
        f"No usable Python. Found: {found}. TableTune runs on Python {accepted}.\n"
        "Install one of them, or name it: make demo PYTHON=/path/to/python3.12"
    )


def provide_system_packages(python: pythons.Python) -> None:
    """Install what the system lacks, or raise :class:`SetupError` that names all of it."""
    missing = [package for package in system_packages(python) if not package.is_present()]
    if not missing:
        return
    _say("This machine lacks:")
    for package in missing:
        _say(f"  {package.name:18} {package.purpose}")
    names = [package.name for package in missing]
    if shutil.which("apt-get") is None:
        raise SetupError("Install them (the names are Debian's), then run the same command again.")
    if os.geteuid() != 0:
        command = "sudo apt-get update && sudo apt-get install " + " ".join(names)
        raise SetupError(f"Install them, then run the same command again:\n  {command}")
    _say("Installing them with apt-get ...")
    _apt_get_install(names)
    still_missing = [package.name for package in missing if not package.is_present()]
    if still_missing:
        raise SetupError(
            f"Still missing after the installation: {', '.join(still_missing)}. Debian's packages serve"
            f" Debian's own Python, and {python} is another one.\n"
            "Reinstall it complete, or name Debian's: make demo PYTHON=/usr/bin/python3"
        )


def make_environment(python: pythons.Python) -> None:
    """Make .venv hold the pinned packages and TableTune itself, and nothing else."""
    existing = pythons.inspect(str(VENV_PYTHON))
    if existing is None or existing.version != python.version or not VENV_UV.exists():
        _say(f"Making {VENV} with {python} ...")
        _run([python.path, "-m", "venv", "--clear", str(VENV)])
        pip = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--root-user-action=ignore", "--no-deps", "--require-hashes", "-r", UV_REQUIREMENTS])
    _say("Installing the pinned packages ...")
    uv = [str(VENV_UV), "pip"]
    target = ["--quiet", "--python", str(VENV_PYTHON)]
    _run([*uv, "sync", *target, "--require-hashes", REQUIREMENTS])
    # The build backend comes from the environment just filled: from a registry it would be unpinned.
    _run([*uv, "install", *target, "--no-deps", "--no-build-isolation", "--editable", "."])


def main() -> int:
    """Set up .venv in the current folder, the repository's root; $PYTHON names the Python to use."""
    try:
        python = choose_python(os.environ.get("PYTHON", ""))
        provide_system_packages(python)
        make_environment(python)
    except SetupError as error:
        _say(str(error))
        return 1
    except subprocess.CalledProcessError as error:
        _say(f"Set-up stopped: `{' '.join(error.cmd)}` ended with exit code {error.returncode}.")
        return 1
    return 0


def _apt_get_install(names: list[str]) -> None:
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", "--quiet=2", *names]
    # A fresh image has no package lists, and old lists name files that are gone: an update cures both.
    if subprocess.run(install, env=environment, capture_output=True, check=False).returncode != 0:
        _run(["apt-get", "update", "--quiet=2"], environment)
        subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, check=True)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, env=environment, check=True)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
