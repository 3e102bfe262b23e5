"""All parameters of an end-to-end run in one object; environment variables that start with ``E2E_`` set them.

What follows from them (paths, names of images) is here too, so that no module spells it again.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
VERSION = str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])
"""Version of TableTune, which is the tag of its images too."""

POOLS = ("pool-1", "pool-2")
"""Names of the nodes; each is a pool of its own."""
POOL_LABEL = "tabletune.dev/pool"
GPU = "nvidia.com/gpu"
TARGETS = ("operator", "profiler", "plugin")
"""Targets of the Dockerfile; an image each."""

_LONGEST_STATE = 48
"""Longest path of the state folder: a Unix socket's path below it may have 107 characters."""


class SettingsError(ValueError):
    """A setting cannot be used; says what was found and what is right."""


@dataclass(frozen=True)
class Settings:
    """The variable is the field's name in capitals after ``E2E_``."""

    cluster: str = "local"
    """local: nodes on this machine, as root; kind: Docker and kind; existing: whatever KUBECONFIG names."""
    state: Path = Path("/var/lib/tabletune-e2e")
    """Folder of everything that a cluster leaves between two commands."""
    engine: str = "cpu"
    """cpu: .venv's vLLM and the bundled model, mounted; image: what the profiler image holds."""
    seconds: float = 1.0
    """Factor on every time limit of the scenarios, for a slow machine."""

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        if self.cluster == "existing":
            return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        """Return the folder of the programs' logs and of what failed scenarios leave."""
        return self.state / "logs"

    def image(self, target: str) -> str:
        """Return the name of the image of a Dockerfile's target."""
        return f"docker.io/tabletune/{target}:{VERSION}"


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in ``environment``; raises :class:`SettingsError`."""
    chosen: dict[str, object] = {}
    for field in fields(Settings):
        text = environment.get(f"E2E_{field.name.upper()}")
        if text:
            chosen[field.name] = _parse(field.name, text)
    return Settings(**chosen)  # type: ignore[arg-type]


def _parse(name: str, text: str) -> object:
    choices = {"cluster": ("local", "kind", "existing"), "engine": ("cpu", "image")}
    variable = f"E2E_{name.upper()}"
    if name in choices:
        if text not in choices[name]:
            raise SettingsError(f"{variable} is {text!r}, and must be one of {', '.join(choices[name])}.")
        return text
    if name == "seconds":
        if not re.fullmatch(r"\d+(\.\d+)?", text) or not float(text):
            raise SettingsError(f"{variable} is {text!r}, and must be a number above 0.")
        return float(text)
    path = Path(text)
    if not path.is_absolute() or len(text) > _LONGEST_STATE:
        raise SettingsError(
            f"{variable} is {text!r}, and must be an absolute path of {_LONGEST_STATE} characters at most,"
            " since sockets lie below it."
        )
    return path
