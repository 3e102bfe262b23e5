"""What the watches have shown, by DraftTable: the cluster as far as the operator knows it.

Kopf's watches fill it and :class:`reconciling.Reconciler` reads it, so that a look at a DraftTable costs no
request. It may lag behind the cluster by a moment: every write is made so that old news cannot do harm (a
generation is created under a name of its own, a Job under that of its inputs).

What vanished while a watch was down leaves no event; ``resyncing`` takes it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tabletune.api import names
from tabletune_operator import observations
from tabletune_operator.observations import DraftTable, Entry, Job, Key, Pod, Report, Served

Body = Mapping[str, Any]
Place = tuple[str, str, str]
"""Namespace, name and uid."""
View = DraftTable | Entry | Served | Report | Job | Pod

_VIEWS: Mapping[str, Callable[[Body], View | None]] = {
    names.KIND: observations.draft_table,
    "ConfigMap": observations.config_map,
    "Job": observations.job,
    "Pod": observations.pod,
}
MOST_GONE = 10_000
"""Objects that are gone of which the cache knows."""
WATCHED: Mapping[str, str] = {kind: "" if kind == names.KIND else names.DRAFT_TABLE_LABEL for kind in _VIEWS}
"""Kinds that are watched, each with the label that its objects must have; empty for none."""


@dataclass(frozen=True)
class _Held:
    version: int
    uid: str
    key: Key | None
    """The DraftTable that it belongs to."""
    view: View


class Cache:
    """Views of all watched objects, found by kind and DraftTable. Only for one thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], _Held] = {}
        self._by_key: dict[tuple[str, Key], set[tuple[str, str, str]]] = defaultdict(set)
        self._tables: dict[str, set[str]] = defaultdict(set)
        self._gone: dict[str, int] = {}
        """Resource versions at which objects went, by uid."""

    def put(self, kind: str, body: Body) -> Key | None:
        """Take note of an object; return the DraftTable that it belongs to.

        Older news than what is known is passed over, and so is the same again: Kopf tells of each object
        twice, and the answer to our own request comes once more as an event.
        """
        metadata = body["metadata"]
        uid, place = metadata["uid"], (kind, metadata["namespace"], metadata["name"])
        key = key_of(kind, body)
        version = _version(metadata.get("resourceVersion"))
        known = self._held.get(place)
        if known is not None and known.uid == uid and known.version >= max(version, 1):
            return key
        if version <= self._gone.get(uid, -1):
            # The answer to our own request may come after the event of the object's end. What is newer is
            # back: a watch also tells of the end of what only lost its label.
            return key
        view = _VIEWS[kind](body)
        self._drop(place)
        if view is None:
            return key
        self._held[place] = _Held(version, uid, key, view)
        if key is not None:
            self._by_key[kind, key].add(place)
        if kind == names.KIND:
            self._tables[metadata["namespace"]].add(metadata["name"])
        return key

    def remove(self, kind: str, body: Body) -> Key | None:
        """Forget an object; one of the same name that was made since stays."""
        metadata = body["metadata"]
        place = (kind, metadata["namespace"], metadata["name"])
        known = self._held.get(place)
        self._bury(metadata["uid"], _version(metadata.get("resourceVersion")))
        if known is not None and known.uid == metadata["uid"]:
            self._drop(place)
        return key_of(kind, body)

    def known(self, kind: str) -> set[Place]:
        """Return what is known of ``kind`` now: namespace, name and uid of each object."""
        return {(*place[1:], held.uid) for place, held in self._held.items() if place[0] == kind}

    def forget(self, kind: str, gone: Iterable[Place]) -> set[Key]:
        """Forget objects that are not there any more; return whose they were."""
        keys = set()
        for namespace, name, uid in gone:
            held = self._held.get((kind, namespace, name))
            if held is None or held.uid != uid:
                continue
            if held.key is not None:
                keys.add(held.key)
            self._bury(uid, held.version)
            self._drop((kind, namespace, name))
        return keys

    def table(self, key: Key) -> DraftTable | None:
        """Return a DraftTable."""
        held = self._held.get((names.KIND, *key))
        return held.view if held is not None and isinstance(held.view, DraftTable) else None

    def tables(self, namespace: str | None = None) -> Iterator[DraftTable]:
        """Yield the DraftTables of a namespace, or all."""
        for one in list(self._tables) if namespace is None else [namespace]:
            for name in sorted(self._tables.get(one, ())):
                if (found := self.table((one, name))) is not None:
                    yield found

    def of(self, kind: str, key: Key) -> list[View]:
        """Return the objects of ``kind`` that belong to a DraftTable."""
        return [self._held[place].view for place in sorted(self._by_key.get((kind, key), ()))]

    def config_map(self, namespace: str, name: str) -> View | None:
        """Return a ConfigMap by its name, whomever it belongs to."""
        held = self._held.get(("ConfigMap", namespace, name))
        return held.view if held is not None else None

    def _bury(self, uid: str, version: int) -> None:
        """Remember that an object is gone; one of the same name has another uid."""
        self._gone[uid] = version
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _drop(self, place: tuple[str, str, str]) -> None:
        held = self._held.pop(place, None)
        if held is None:
            return
        if held.key is not None:
            places = self._by_key[place[0], held.key]
            places.discard(place)
            if not places:
                del self._by_key[place[0], held.key]
        if place[0] == names.KIND:
            self._tables[place[1]].discard(place[2])


def key_of(kind: str, body: Body) -> Key | None:
    """Return the DraftTable that an object belongs to by its label; ``None`` for a stranger's."""
    metadata = body["metadata"]
    if kind == names.KIND:
        return metadata["namespace"], metadata["name"]
    name = (metadata.get("labels") or {}).get(names.DRAFT_TABLE_LABEL)
    return (metadata["namespace"], name) if name else None


def _version(text: object) -> int:
    """Return a resource version as a number, by which newer is larger (Kubernetes 1.35 and etcd behind
    it)."""
    return int(text) if isinstance(text, str) and text.isdigit() else 0
