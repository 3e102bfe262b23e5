"""Whose an object is: the metadata that everything made for one DraftTable shares.

Owner references are what deletes it all: the operator has no finalizer, so a DraftTable can be deleted
while it does not run, and nothing hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.api import names


@dataclass(frozen=True)
class Owner:
    """A DraftTable, as far as what it owns needs to know of it."""

    namespace: str
    name: str
    uid: str

    @property
    def reference(self) -> dict[str, Any]:
        """The owner reference; the one controller of the object."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    def metadata(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the metadata of an object called ``name``; TableTune's labels win over ``labels``."""
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": self.namespace,
            "labels": {**(labels or {}), **self.labels},
            "ownerReferences": [self.reference],
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        return metadata

    @property
    def again(self) -> str:
        """How a person asks for another profile, in a sentence."""
        return (
            f"To try again, change the spec or run: kubectl annotate dt {self.name} -n {self.namespace}"
            f' --overwrite {names.REPROFILE_ANNOTATION}="$(date -Is)"'
        )

    @property
    def labels(self) -> dict[str, str]:
        """Labels by which the operator finds the object again."""
        return {names.MANAGED_BY_LABEL: names.MANAGER, names.DRAFT_TABLE_LABEL: self.name}


def controller_of(body: Mapping[str, Any]) -> str | None:
    """Return the uid of the object's controller; ``None`` where it has none."""
    for reference in body["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return None
