"""Kopf's handlers, which only route: an object was seen, so its DraftTable is to be looked at.

Kopf lists and watches (with reconnects, time-outs and 410 Gone), and tells of each object twice. Indexing
comes first, and Kopf waits with all else until every kind was listed: there the cache is filled, so the first
look already knows everything. Then come the events, which put the DraftTable into the queue.

No handler here changes an object, so Kopf needs no finalizer and keeps no progress or diff of its own in
ours: a DraftTable can be deleted while no operator runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import kopf

from tabletune.api import names
from tabletune_operator import credentials, kinds
from tabletune_operator.caching import WATCHED, Cache
from tabletune_operator.queueing import Queue

SERVER_TIMEOUT_SECONDS = 300
"""Time after which the API server ends a watch, which is then taken up where it was."""
REQUEST_TIMEOUT_SECONDS = 60
"""Longest that one list may take."""
CONNECT_TIMEOUT_SECONDS = 10
CHUNK = 100
"""Objects in one answer of a list; ConfigMaps hold whole documents."""


class Backoffs:
    """Seconds between Kopf's tries to list and watch: more each time, never many, and no last one.

    Kopf's own end after a minute or so, and the operator with them; and they grow, so that the watches would
    stay away long after the API server is back.
    """

    def __iter__(self) -> Iterator[float]:
        """Yield the delays after one failure after the other."""
        return itertools.chain((0.5, 1.0, 2.0), itertools.repeat(4.0))


def registry(cache: Cache, queue: Queue, seen: Callable[[], None]) -> kopf.OperatorRegistry:
    """Return the handlers; ``seen`` is called once, when everything was listed and the first event came."""
    handlers = kopf.OperatorRegistry()
    for kind in WATCHED:
        _route(handlers, kind, cache, queue, seen)

    @kopf.on.login(registry=handlers)
    def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo:
        return credentials.find(settings)

    return handlers


def _route(
    handlers: kopf.OperatorRegistry, kind: str, cache: Cache, queue: Queue, seen: Callable[[], None]
) -> None:
    where = _place(kind)

    @kopf.index(*where, id=f"{kind}-cache", registry=handlers)
    async def remember(body: kopf.Body, **_: Any) -> None:
        # A coroutine, since Kopf runs plain functions in threads. Into our own cache: Kopf's index would
        # hold whole bodies, and cannot be asked by two keys.
        cache.put(kind, dict(body))

    @kopf.on.event(*where, id=f"{kind}-event", registry=handlers)
    async def route(type: str | None, body: kopf.Body, **_: Any) -> None:
        seen()
        note = cache.remove if type == "DELETED" else cache.put
        key = note(kind, dict(body))
        if key is not None:
            queue.add(key)
        if key is not None and kind == names.KIND and type == "DELETED":
            # One that waits for its ConfigMap, or its pods, may have its turn now.
            for other in cache.tables(key[0]):
                queue.add(other.key)


def _place(kind: str) -> tuple[str, str] | tuple[str, str, str]:
    """Return where ``kind`` stands in the API, as Kopf wants it."""
    found = kinds.KINDS[kind]
    return (found.group, found.version, found.plural) if found.group else (found.version, found.plural)


def operator_settings() -> kopf.OperatorSettings:
    """Return how Kopf is to watch: only what carries our label, and never for ever."""
    chosen = kopf.OperatorSettings()
    chosen.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    chosen.watching.client_timeout = SERVER_TIMEOUT_SECONDS + 10
    chosen.watching.connect_timeout = chosen.networking.connect_timeout = CONNECT_TIMEOUT_SECONDS
    chosen.networking.request_timeout = REQUEST_TIMEOUT_SECONDS
    chosen.networking.error_backoffs = Backoffs()
    chosen.watching.chunk_size = CHUNK
    for kind, label in WATCHED.items():
        if label:
            chosen.watching.label_selectors[_place(kind)] = label
    # Nothing of Kopf's is written into our objects; were a handler to need it, it would be in the status.
    chosen.persistence.progress_storage = kopf.StatusProgressStorage(field="status.kopf")
    chosen.persistence.diffbase_storage = kopf.StatusDiffBaseStorage(field="status.kopf.seen")
    chosen.persistence.finalizer = f"{names.GROUP}/kopf"
    chosen.posting.enabled = False
    # The kinds are known, and watching for new ones would take rights to CRDs and namespaces.
    chosen.scanning.disabled = True
    chosen.peering.standalone = True
    return chosen
