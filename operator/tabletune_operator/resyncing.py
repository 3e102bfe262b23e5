"""Compares the memory with the cluster now and then: what vanished while a watch was down left no event.

Only names are listed, without content, so hundreds of ConfigMaps cost little. And every DraftTable is
looked at once in a while, in case that something else went unseen. After an outage of the API server it is
done at once: it is then that things vanish unseen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from tabletune_operator import errors
from tabletune_operator.caching import WATCHED, Cache
from tabletune_operator.queueing import Queue
from tabletune_operator.requesting import Body, Client

RETRY_SECONDS = 5.0
"""Time between two tries while the API server does not answer, which also find out that it does again."""

logger = logging.getLogger("tabletune.operator")


async def repeat(
    client: Client, cache: Cache, queue: Queue, namespaces: Sequence[str], seconds: float
) -> None:
    """Resync every so many seconds, and after each outage, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        outages, due = client.outages, loop.time() + seconds
        while True:
            await asyncio.sleep(max(0.0, min(RETRY_SECONDS, due - loop.time())))
            if loop.time() >= due or client.silent_seconds or client.outages != outages:
                break
        try:
            await once(client, cache, queue, namespaces)
        except errors.UnavailableError:
            continue
        except errors.ApiError as error:
            logger.warning("The memory could not be compared with the cluster: %s", error)


async def once(client: Client, cache: Cache, queue: Queue, namespaces: Sequence[str]) -> None:
    """Forget what is not there any more, and have every DraftTable looked at."""
    for kind in WATCHED:
        # Taken first: what is known before the list and not in it is gone, whatever comes meanwhile.
        before = cache.known(kind)
        there = set()
        async for body in _listed(client, kind, namespaces):
            metadata = body["metadata"]
            there.add((metadata["namespace"], metadata["name"], metadata["uid"]))
        for key in cache.forget(kind, before - there):
            queue.add(key)
    for table in cache.tables():
        queue.add(table.key)


async def is_empty(client: Client, namespaces: Sequence[str]) -> bool:
    """Return whether there is nothing to watch, for which no event would ever come."""
    for kind in WATCHED:
        async for _ in _listed(client, kind, namespaces):
            return False
    return True


async def _listed(client: Client, kind: str, namespaces: Sequence[str]) -> AsyncIterator[Body]:
    """Yield what there is of a watched kind, without content."""
    for namespace in namespaces or (None,):
        async for body in client.list(kind, namespace, labels=WATCHED[kind], metadata_only=True):
            yield body
