"""The engine of the scenarios: vLLM's CPU build out of ``.venv`` and the bundled small model, as volumes.

An image with them would be 6 GB, built and loaded for each node. Here the files are linked into the state
folder and come to pods by PersistentVolumes, since Pod Security forbids pods to name folders of a node.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e import commands
from e2e.settings import REPOSITORY, Settings

PACKAGES = "/opt/vllm"
"""Where the vLLM of pods is mounted; the base image's Python looks there."""
MODELS = "/models"
"""Where models are mounted."""
MODEL = "SmolLM2-135M-Instruct"
"""The bundled model."""
CLAIM = "engine"
VOLUME = "engine"
_OWN = ("tabletune-*.dist-info", "_tabletune.pth")
"""What an installation of TableTune itself leaves there: in pods it comes from the images."""

_IMPORTS = "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker"
"""What the processes of a server import."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # GiB; without it vLLM takes nearly all memory.
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
"""Environment of every engine in a pod."""


def ensure(settings: Settings, tell: Callable[[str], None]) -> None:
    """Link the engine's files into the state folder, unless they are there as ``.venv`` has them now."""
    folder = settings.state / "engine"
    wanted = hashlib.sha256((REPOSITORY / "requirements" / "engine.txt").read_bytes()).hexdigest()
    stamp = folder / "complete"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    tell("The engine's files (vLLM out of .venv, and the model)")
    if not (REPOSITORY / ".cache" / "models" / MODEL).exists():
        commands.run(["make", "--no-print-directory", "model"], folder=REPOSITORY, timeout=1_800)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    # Pods read it only, so that each process of theirs would compile vLLM again: 4 s of it, nine times over.
    commands.run([REPOSITORY / ".venv/bin/python", "-c", _IMPORTS], env={"PYTHONDONTWRITEBYTECODE": ""})
    _link(REPOSITORY / ".venv" / "lib" / "python3.11" / "site-packages", folder / "packages")
    for pattern in _OWN:
        for path in (folder / "packages").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _name_vllm(folder / "packages")
    commands.run(["cp", "--archive", REPOSITORY / ".cache" / "models" / MODEL, folder / "models"])
    # Pods read as any user, and a copy's rights are not those of the original.
    commands.run(["chmod", "--recursive", "a+rX", folder / "models"])
    stamp.write_text(wanted)


def _name_vllm(packages: Path) -> None:
    """Let vLLM's CPU build be found as `vllm` with a version that ends in +cpu, as in vLLM's own CPU image.

    The package `vllm-cpu` is that build under another name, which the command `vllm` does not know.
    """
    for found in packages.glob("vllm_cpu-*.dist-info"):
        version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        named = packages / f"vllm-{version}+cpu.dist-info"
        named.mkdir()
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _link(source: Path, target: Path) -> None:
    try:
        commands.run(["cp", "--archive", "--link", source, target])
    except commands.CommandError:
        # Another file system: a copy then.
        shutil.rmtree(target, ignore_errors=True)
        commands.run(["cp", "--archive", source, target])


def objects(settings: Settings, namespace: str) -> list[dict[str, Any]]:
    """Return the volume of the engine's files and a namespace's claim on it."""
    name = f"{namespace}-{VOLUME}"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": {"storage": "10Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"name": CLAIM, "namespace": namespace},
            "hostPath": {"path": str(settings.state / "engine"), "type": "Directory"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "10Gi"}}},
    }
    return [volume, claim]


def volumes() -> list[dict[str, Any]]:
    """Return the volumes of a pod with an engine."""
    return [{"name": VOLUME, "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}]


def mounts() -> list[dict[str, Any]]:
    """Return where its container mounts them."""
    return [
        {"name": VOLUME, "mountPath": PACKAGES, "subPath": "packages", "readOnly": True},
        {"name": VOLUME, "mountPath": MODELS, "subPath": "models", "readOnly": True},
    ]
