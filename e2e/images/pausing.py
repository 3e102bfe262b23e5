"""The pause image: a static program of a few lines in one layer."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from e2e import commands
from e2e.images.buildah import Buildah
from e2e.settings import Settings

SOURCE = Path(__file__).parent / "pause"


def build(settings: Settings, image: str) -> Path:
    """Return an archive with the pause image under the name ``image``."""
    buildah = Buildah(settings)
    if not buildah.identity(image):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "pause"
            flags = ["-trimpath", "-ldflags=-s -w", "-o", str(program)]
            commands.run(
                ["go", "build", *flags, "main.go"],
                folder=SOURCE,
                env={"CGO_ENABLED": "0", "GO111MODULE": "off"},
            )
            shutil.copy(SOURCE / "Dockerfile", folder)
            buildah.build(image, Path(folder))
    return buildah.save(image)
