"""The folder that a pod has of a ConfigMap."""

from __future__ import annotations

from pathlib import Path

from tabletune import documents
from tabletune.documents import Document


class Mount:
    """A folder as kubelet mounts a ConfigMap: ``table.json`` → ``..data/table.json``, ``..data`` swapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "table.json"
        self._serial = 0
        folder.mkdir(parents=True, exist_ok=True)

    def swap(self, content: bytes) -> None:
        """Put ``content`` in place atomically, as a change of the ConfigMap."""
        self._serial += 1
        data, old = self.folder / f"..{self._serial}", self.folder / f"..{self._serial - 1}"
        data.mkdir()
        (data / "table.json").write_bytes(content)
        self.point(data.name)
        if old.exists():
            (old / "table.json").unlink(missing_ok=True)
            old.rmdir()

    def point(self, name: str) -> None:
        """Have ``..data`` be the folder ``name``."""
        link = self.folder / "..data_tmp"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link.rename(self.folder / "..data")
        if not self.path.is_symlink():
            self.remove()
            self.path.symlink_to("..data/table.json")

    def write(self, document: Document) -> None:
        """Put ``document`` in place."""
        self.swap(documents.dump(document))

    def remove(self) -> None:
        """Take away whatever is at the path."""
        if self.path.is_dir() and not self.path.is_symlink():
            self.path.rmdir()
        else:
            self.path.unlink(missing_ok=True)
