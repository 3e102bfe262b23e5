"""Builds the Dockerfile's targets: with Docker where it is there, else with buildah from bases made here."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import commands
from e2e.images import bases
from e2e.images.buildah import Buildah
from e2e.settings import REPOSITORY, TARGETS, VERSION, Settings

CERTIFICATES = Path("/etc/ssl/certs")
_PIP_SETTINGS = ("cert", "extra-index-url", "index-url", "proxy", "timeout", "trusted-host")


def build(settings: Settings, tell: Callable[[str], None]) -> list[Path]:
    """Build every target; return an archive of each image, and of the vLLM that serves."""
    buildah = Buildah(settings)
    buildah.tidy()
    bases.ensure(settings, tell)
    archives = [buildah.save(bases.names()["VLLM_IMAGE"])]
    arguments = {"VERSION": VERSION, "REVISION": _revision()}
    with _machine_settings() as volumes:
        for target in TARGETS:
            image = settings.image(target)
            tell(f"Image {image}")
            buildah.build(image, REPOSITORY, target=target, arguments=arguments, volumes=volumes)
            archives.append(buildah.save(image))
        # Stages in between get names, or nothing would tell their layers, which the next build reads, from
        # those that nothing needs any more.
        for stage in stages():
            name = f"localhost/stage/{stage}"
            buildah.build(name, REPOSITORY, target=stage, arguments=arguments, volumes=volumes)
    buildah.prune()
    return archives


def stages() -> list[str]:
    """Return the Dockerfile's stages that are no target, in order."""
    text = (REPOSITORY / "Dockerfile").read_text()
    found = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    return [stage for stage in found if stage not in TARGETS]


def build_with_docker(settings: Settings, tell: Callable[[str], None]) -> None:
    """Build every target with Docker, from the bases that the Dockerfile names."""
    for target in TARGETS:
        image = settings.image(target)
        tell(f"Image {image}")
        arguments = [f"--build-arg=VERSION={VERSION}", f"--build-arg=REVISION={_revision()}"]
        commands.run(
            ["docker", "build", "--target", target, "--tag", image, *arguments, REPOSITORY], timeout=3_600
        )


def _revision() -> str:
    try:
        return commands.run(["git", "-C", REPOSITORY, "rev-parse", "HEAD"]).strip()
    except commands.CommandError:
        return "unknown"


@contextmanager
def _machine_settings() -> Iterator[dict[Path, str]]:
    """Yield what lets pip reach packages from within a build as it does on this machine.

    They are mounted and not copied, so that nothing of this machine is in the image.
    """
    chosen = {}
    for name in _PIP_SETTINGS:
        value = os.environ.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            chosen[name] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pip.conf"
        lines = [f"{name} = {value}" for name, value in chosen.items()]
        file.write_text("\n".join(["[global]", *lines, ""]))
        volumes = {file: "/etc/pip.conf"}
        yield volumes | ({CERTIFICATES: str(CERTIFICATES)} if CERTIFICATES.exists() else {})
