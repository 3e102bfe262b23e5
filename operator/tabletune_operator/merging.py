"""Strategic merge: an overlay on a pod template, as ``kubectl patch --type=strategic`` and Kustomize do it.

``jobs`` lays ``spec.profile.podTemplate`` over the template that it made. A plain merge would replace the
whole list of containers by an overlay that only wanted one more variable in one of them.

Rules:

1. An object merges key by key; null removes the key.
2. A list with a merge key (containers by ``name``, mounts by ``mountPath``, …) merges entry by entry: the
same
   key merges, a new one goes to the end. An entry with ``$patch: delete`` removes the one with its key.
3. Any other list, and any other value, is replaced.
4. ``$patch: replace`` in an object replaces it as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Merge keys of the lists in a pod template (``patchMergeKey`` in Kubernetes' core/v1 types)."""

DIRECTIVE = "$patch"


def merge(base: Any, overlay: Any) -> Any:
    """Return ``overlay`` laid over ``base``; neither is changed."""
    if not (isinstance(base, Mapping) and isinstance(overlay, Mapping)):
        return copy.deepcopy(overlay)
    if overlay.get(DIRECTIVE) == "replace":
        return copy.deepcopy({key: value for key, value in overlay.items() if key != DIRECTIVE})
    merged = {key: copy.deepcopy(value) for key, value in base.items() if overlay.get(key, "") is not None}
    for key, value in overlay.items():
        if value is None or key == DIRECTIVE:
            continue
        if key in MERGE_KEYS and isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = _merge_lists(merged[key], value, MERGE_KEYS[key])
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _merge_lists(base: list[Any], overlay: list[Any], merge_key: str) -> list[Any]:
    merged = list(base)
    for entry in overlay:
        if not isinstance(entry, Mapping):
            merged.append(copy.deepcopy(entry))
            continue
        deletes = entry.get(DIRECTIVE) == "delete"
        places = [place for place, own in enumerate(merged) if _key(own, merge_key) == entry.get(merge_key)]
        if not places and not deletes:
            merged.append(copy.deepcopy(entry))
        elif places and deletes:
            del merged[places[0]]
        elif places:
            merged[places[0]] = merge(merged[places[0]], entry)
    return merged


def _key(entry: Any, merge_key: str) -> Any:
    return entry.get(merge_key) if isinstance(entry, Mapping) else None
