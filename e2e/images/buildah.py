"""buildah, with a storage of its own below the state folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from e2e import commands
from e2e.settings import Settings

BUILD_SECONDS = 1_800.0


class Buildah:
    """The images in one storage."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.state / "images"
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self, *arguments: str | Path, timeout: float = BUILD_SECONDS) -> str:
        """Run a command of buildah."""
        storage: list[str | Path] = ["--root", self._folder / "storage", "--runroot", self._folder / "run"]
        return commands.run(["buildah", *storage, *arguments], timeout=timeout)

    def identity(self, image: str) -> str:
        """Return the identity of an image, empty where there is none of that name."""
        with suppress(commands.CommandError):
            return self.run("inspect", "--type=image", "--format={{.FromImageID}}", image).strip()
        return ""

    def build(
        self,
        image: str,
        folder: Path,
        *,
        target: str = "",
        arguments: Mapping[str, str] | None = None,
        volumes: Mapping[Path, str] | None = None,
    ) -> None:
        """Build the Dockerfile in ``folder`` and name the result; nothing is pulled."""
        options = [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
        options += [f"--volume={path}:{where}:ro" for path, where in (volumes or {}).items()]
        options += [f"--target={target}"] if target else []
        self.run(
            *("build-using-dockerfile", "--isolation=chroot", "--pull-never", "--layers", "--format=oci"),
            *(*options, f"--tag={image}", str(folder)),
        )

    def commit_folder(self, image: str, folder: Path, *config: str) -> None:
        """Make an image of one layer, the content of ``folder``."""
        container = self.run("from", "scratch").strip()
        try:
            self.run("copy", "--quiet", container, folder, "/")
            if config:
                self.run("config", *config, container)
            self.run("commit", "--quiet", container, image)
        finally:
            self.run("rm", container)

    def tidy(self) -> None:
        """Remove the containers that a build leaves which was killed, with their mounts."""
        self.run("rm", "--all")

    def prune(self) -> None:
        """Remove the layers that no named image is made of; they are gigabytes after some builds."""
        self.run("rmi", "--prune")

    def save(self, image: str) -> Path:
        """Write an image to an archive for a node, unless it is there; return it."""
        name = image.rpartition("/")[2].replace(":", "-")
        archive = self._folder / "archives" / f"{name}-{self.identity(image)[:12]}.tar"
        if not archive.exists():
            archive.parent.mkdir(exist_ok=True)
            for old in archive.parent.glob(f"{name}-*"):
                old.unlink()
            fresh = archive.with_suffix(".new")
            self.run("push", "--quiet", image, f"docker-archive:{fresh}:{image}")
            fresh.rename(archive)
        return archive
