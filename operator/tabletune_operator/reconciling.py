"""One look at one DraftTable: gather what is seen, plan, do it, say it.

The queue calls :meth:`Reconciler.reconcile` whenever anything that belongs to a DraftTable changed. It
remembers nothing that matters: killed at any point, the next look in another process comes to the same end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tabletune.api import reasons
from tabletune.api.reasons import Condition
from tabletune.documents import DocumentError
from tabletune_operator import (
    applying,
    configmaps,
    errors,
    live,
    metrics,
    observations,
    planning,
    profiling,
    times,
)
from tabletune_operator.caching import Cache
from tabletune_operator.observations import Entry, Job, Key, Pod, Report, Served
from tabletune_operator.plans import Need, Observed, Plan
from tabletune_operator.requesting import Client

MOST_ROUNDS = 8
"""Times that one look may ask for more; a plan asks for at most a handful of documents."""

PROFILE_ENDS = frozenset(
    reason.name
    for reason in reasons.REASONS
    if reason.condition is Condition.PROFILED and (reason.warning or reason.name == reasons.PROFILE_SUCCEEDED)
)
"""Reasons that end a profile, or hold it up: counted."""

logger = logging.getLogger("tabletune.operator")


class Reconciler:
    """Looks at DraftTables, one at a time each."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        now: Callable[[], datetime],
        lives: Mapping[Key, live.Seen] | None = None,
    ) -> None:
        self._client, self._cache, self._now = client, cache, now
        self._lives = lives if lives is not None else {}
        self._refused: dict[str, tuple[float, str]] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Bring one DraftTable to where it should be; return seconds until another look, ``None`` for none.

        Raises :class:`errors.ApiError` where a request failed; the queue tries again.
        """
        began = time.monotonic()
        table = self._cache.table(key)
        if table is None or table.deleting:
            return None
        try:
            plan = await self._plan_and_act(self._observe(key))
        except errors.ConflictError:
            metrics.RECONCILES.labels(result="conflict").inc()
            raise
        except errors.UnavailableError:
            metrics.RECONCILES.labels(result="unavailable").inc()
            raise
        except errors.NotFoundError:
            # The DraftTable, or its namespace, went while we looked.
            metrics.RECONCILES.labels(result="gone").inc()
            return None
        except errors.ApiError:
            metrics.RECONCILES.labels(result="failed").inc()
            raise
        finally:
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - began)
        metrics.RECONCILES.labels(result="done").inc()
        return plan.again_seconds

    async def _plan_and_act(self, seen: Observed) -> Plan:
        """Plan and act; where a Job is refused, plan once more with what the API server said."""
        table = seen.table
        plan = await self._plan(seen)
        for action in plan.actions:
            try:
                await applying.act(self._client, self._cache, table, action)
            except applying.RefusedError as refused:
                name = str((plan.status or {}).get("profile", {}).get("job", ""))
                if name in self._refusals():
                    raise
                self._refused[name] = (time.monotonic(), refused.message)
                metrics.RECONCILES.labels(result="refused").inc()
                return await self._plan_and_act(self._observe(table.key))
        now = times.text_of(self._now())
        for happened in plan.events:
            level = logging.WARNING if happened.warning else logging.INFO
            logger.log(level, "%s/%s: %s: %s", *table.key, happened.reason, happened.message)
            await applying.post(self._client, table, happened, now)
            if happened.reason in PROFILE_ENDS:
                metrics.JOBS.labels(result=happened.reason).inc()
        if plan.status is not None:
            await applying.say(self._client, self._cache, table, plan.status)
        return plan

    async def _plan(self, seen: Observed) -> Plan:
        fetched: dict[Need, Any] = {}
        for _ in range(MOST_ROUNDS):
            plan = planning.plan(seen, fetched, self._refusals(), self._now())
            if not plan.needs:
                return plan
            for need in plan.needs:
                fetched[need] = await self._read(seen, need)
        raise RuntimeError(f"A plan for {seen.table.key} asks for ever more: {plan.needs}")

    def _refusals(self) -> dict[str, str]:
        """Return what is refused, for as long as it is not to be tried again."""
        oldest = time.monotonic() - profiling.REFUSED_SECONDS
        self._refused = {name: told for name, told in self._refused.items() if told[0] > oldest}
        return {name: message for name, (_, message) in self._refused.items()}

    def _observe(self, key: Key) -> Observed:
        """Return what the cache knows of one DraftTable."""
        cache = self._cache
        table = cache.table(key)
        if table is None:
            raise errors.NotFoundError(404, "NotFound", "the DraftTable is gone")
        served = cache.config_map(table.namespace, table.config_map_name)
        maps = cache.of("ConfigMap", key)
        return Observed(
            table=table,
            siblings=tuple(other for other in cache.tables(table.namespace) if other.name != table.name),
            served=served if isinstance(served, Served) else None,
            entries=tuple(view for view in maps if isinstance(view, Entry)),
            reports=tuple(view for view in maps if isinstance(view, Report)),
            jobs=tuple(view for view in cache.of("Job", key) if isinstance(view, Job)),
            pods=tuple(view for view in cache.of("Pod", key) if isinstance(view, Pod)),
            live=self._lives.get(key),
        )

    async def _read(self, seen: Observed, need: Need) -> Any:
        """Return what a plan asked for."""
        namespace = seen.table.namespace
        if need.kind == "events":
            return await self._creation_failures(namespace, need.name)
        body = await self._client.get("ConfigMap", namespace, need.name)
        if body is None:
            return None
        if need.kind == "served":
            return observations.served(body)
        if need.kind == "entry":
            return observations.config_map(body)
        try:
            return configmaps.read_history(body) if need.kind == "history" else configmaps.read_document(body)
        except DocumentError as error:
            return error

    async def _creation_failures(self, namespace: str, job: str) -> list[str]:
        """Return why a Job's controller could not make its pod, newest first."""
        fields = f"involvedObject.kind=Job,involvedObject.name={job},reason=FailedCreate"
        found = [event async for event in self._client.list("Event", namespace, fields=fields)]
        found.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return [str(event.get("message", "")) for event in reversed(found)]
