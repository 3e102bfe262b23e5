"""Sends a plan to the API server: its actions in their order, then the Events, then the status.

Called by ``reconciling`` alone. The order is what makes a death in between harmless: what a later step
builds upon is there first, an Event may be posted twice but is never lost, and the status comes last, since
it says that the rest is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabletune.api import names
from tabletune_operator import digests, errors, metrics
from tabletune_operator.actions import Action, Apply, Create, Delete, Happened, Merge
from tabletune_operator.caching import WATCHED, Cache
from tabletune_operator.observations import DraftTable
from tabletune_operator.requesting import Client

PROFILE_KINDS = frozenset({"Job", "Role", "RoleBinding", "ServiceAccount"})
"""Kinds whose refusal is the user's to read."""


class RefusedError(Exception):
    """The API server does not take what a profile needs; ``message`` is its own."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


async def act(client: Client, cache: Cache, table: DraftTable, action: Action) -> None:
    """Do one action. What comes back goes into the cache, so that the next look does not repeat it.

    Raises :class:`RefusedError` where the user has to change something, and :class:`errors.ApiError`
    otherwise.
    """
    match action:
        case Create(body) | Apply(body):
            send = client.create if isinstance(action, Create) else client.apply
            try:
                made = await send(body)
            except (errors.ForbiddenError, errors.InvalidError) as error:
                if body["kind"] in PROFILE_KINDS:
                    raise RefusedError(error.message) from error
                raise
            if body["kind"] in WATCHED:
                cache.put(body["kind"], made)
            if body["kind"] == "Job":
                metrics.JOBS.labels(result="started").inc()
            _count_generation(body)
        case Delete(kind, name):
            await client.delete(kind, table.namespace, name)
        case Merge(kind, name, patch):
            cache.put(kind, await client.merge(kind, table.namespace, name, patch))


async def post(client: Client, table: DraftTable, happened: Happened, now: str) -> None:
    """Post an Event; named after what it says, so that saying it again is no second one."""
    text = digests.digest([table.uid, happened.reason, happened.message])
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{table.name}.{text}", "namespace": table.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": table.name,
            "namespace": table.namespace,
            "uid": table.uid,
        },
        "reason": happened.reason,
        "message": happened.message[:1_000],
        "type": "Warning" if happened.warning else "Normal",
        "source": {"component": names.MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await client.create(body)
    except errors.ConflictError:
        return


async def say(client: Client, cache: Cache, table: DraftTable, status: Mapping[str, Any]) -> None:
    """Write the status, if it says anything new."""
    if dict(status) == dict(table.status):
        return
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": table.name, "namespace": table.namespace, "uid": table.uid},
        "status": dict(status),
    }
    said = await client.apply(body, "status")
    if patch := _undo(said.get("status") or {}, status):
        # In the eyes of server-side apply what somebody else put in is theirs, and stays.
        said = await client.merge(names.KIND, table.namespace, table.name, {"status": patch}, "status")
    cache.put(names.KIND, said)


def _undo(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes ``wanted`` of ``found``; empty where it is that.

    >>> _undo({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2}})
    {'a': None, 'b': {'d': None}}
    """
    patch: dict[str, Any] = dict.fromkeys(found.keys() - wanted.keys())
    for key, value in wanted.items():
        there = found.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if inner := _undo(there, value):
                patch[key] = inner
        elif there != value:
            patch[key] = value
    return patch


def _count_generation(body: Mapping[str, Any]) -> None:
    metadata = body["metadata"]
    if metadata.get("labels", {}).get(names.ROLE_LABEL) == names.ROLE_HISTORY:
        annotations = metadata["annotations"]
        repeated = names.RESTORED_FROM_ANNOTATION in annotations
        source = "repeated" if repeated else annotations[names.SOURCE_ANNOTATION]
        metrics.GENERATIONS.labels(source=source).inc()
