"""Looks at the serving pods of every DraftTable in turn, and tells the reconciler what it saw.

Runs beside the workers: ``main`` starts it. Pods are listed by the DraftTable's selector when their turn
comes, instead of watched, since a watch of all pods of a cluster would cost more than all else. One
DraftTable whose pods hang waits for itself; the others have their turns.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import datetime

import aiohttp

from tabletune.api import drafttables, names
from tabletune.api.drafttables import MetricsSource, PodSelector, Serving, ServingMode, SpecError
from tabletune.documents import Document, DocumentError
from tabletune_operator import configmaps, errors, live, surveys
from tabletune_operator.caching import Cache
from tabletune_operator.expositions import Reading
from tabletune_operator.observations import DraftTable, Key
from tabletune_operator.queueing import Queue
from tabletune_operator.requesting import Client
from tabletune_operator.scraping import Failure, Scraper
from tabletune_operator.surveys import Memory, ServingPod

TICK_SECONDS = 1.0
TELL_SECONDS = 300.0
"""Time after which numbers that moved a little are written into the status; news are written at once."""
MAX_PODS = 2_000
"""Pods of one DraftTable that are looked at."""

logger = logging.getLogger("tabletune.operator")


class Surveyor:
    """Takes turns over all DraftTables. For one event loop."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        queue: Queue,
        lives: dict[Key, live.Seen],
        scraper: Scraper,
        now: Callable[[], datetime],
    ) -> None:
        self._client, self._cache, self._queue = client, cache, queue
        self._lives, self._scraper, self._now = lives, scraper, now
        self._memories: dict[Key, Memory] = {}
        self._documents: dict[Key, Document] = {}
        self._looked: dict[Key, float] = {}
        """When each one's pods were last looked for."""
        self._surveyed: dict[Key, float] = {}
        """When they were last seen: what they have served since is of this time, however long an outage."""
        self._told: dict[Key, float] = {}
        self._claims: dict[Key, frozenset[str]] = {}
        """Pods that each DraftTable looks after, by uid."""
        self._busy: set[Key] = set()
        self._dice = random.Random()  # noqa: S311

    async def run(self) -> None:
        """Look at pods as they become due, for ever."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                known = set()
                for table in list(self._cache.tables()):
                    known.add(table.key)
                    if table.key not in self._busy and self._is_due(table, loop.time()):
                        self._busy.add(table.key)
                        group.create_task(self._take_turn(table.key))
                self._forget(known)
                await asyncio.sleep(TICK_SECONDS)

    def _is_due(self, table: DraftTable, now: float) -> bool:
        """Whether a DraftTable's pods are to be looked at: its interval is over, or its generation is new."""
        serving = table.spec.get("serving") or {}
        if table.deleting or not serving.get("selector") or serving.get("mode") == ServingMode.OFF.value:
            self._lives.pop(table.key, None)
            self._claims.pop(table.key, None)
            return False
        if not table.status.get("generation"):
            return False
        interval = float(serving.get("intervalSeconds") or 30)
        # The first turns are spread over an interval, so that a restart does not ask all pods at once.
        last = self._looked.setdefault(table.key, now - interval * self._dice.random())
        memory = self._memories.get(table.key)
        changed = memory is not None and memory.generation != table.status["generation"]
        return changed or now - last >= interval

    async def _take_turn(self, key: Key) -> None:
        try:
            await self.look(key)
        except errors.UnavailableError as error:
            logger.debug("%s/%s: its pods could not be looked at: %s", *key, error)
        except errors.ApiError as error:
            logger.warning("%s/%s: its pods could not be looked at: %s", *key, error)
        except Exception:
            logger.exception("%s/%s: a fault while looking at its pods", *key)
        finally:
            self._busy.discard(key)

    async def look(self, key: Key) -> live.Seen | None:
        """Look at the pods of one DraftTable now; return what was seen, ``None`` where there is no table yet.

        Raises :class:`errors.ApiError` where the API server did not tell the pods.
        """
        loop = asyncio.get_running_loop()
        began = self._looked[key] = loop.time()
        table = self._cache.table(key)
        document = None if table is None else await self._document(table)
        if table is None or document is None:
            return None
        try:
            serving = drafttables.parse(table.spec).serving
        except SpecError:
            return None
        if serving.selector is None:
            return None
        pods, conflicts = self._unclaimed(table, await self._pods(table, serving.selector))
        found = await self._read(table, serving, pods)
        memory, seen = surveys.survey(
            self._memories.get(key, Memory()),
            document,
            serving,
            pods,
            found,
            conflicts,
            (table.status.get("serving") or {}).get("guard"),
            began - self._surveyed.get(key, began),
            self._now(),
        )
        self._memories[key], self._surveyed[key] = memory, began
        self._tell(key, seen, began)
        if serving.refresh_pods:
            await self._refresh(table, document.generation, pods, found)
        return seen

    async def _document(self, table: DraftTable) -> Document | None:
        """Return the document in force; read once per generation."""
        generation = int(table.status.get("generation") or 0)
        known = self._documents.get(table.key)
        if known is not None and known.generation == generation:
            return known
        name = configmaps.history_name(table.owner, generation)
        body = await self._client.get("ConfigMap", table.namespace, name)
        try:
            found = None if body is None else configmaps.read_history(body)
        except DocumentError:
            found = None
        if found is not None:
            self._documents[table.key] = found
        return found

    async def _pods(self, table: DraftTable, selector: PodSelector) -> list[ServingPod]:
        """Return the ready pods that match."""
        pods = []
        fields = "status.phase=Running"
        listed = self._client.list("Pod", table.namespace, labels=text_of(selector), fields=fields)
        async for body in listed:
            metadata, status = body["metadata"], body.get("status") or {}
            if (metadata.get("labels") or {}).get(names.MANAGED_BY_LABEL) == names.MANAGER:
                # The profiling pod, where the selector goes by the DraftTable's label.
                continue
            ready = any(
                one.get("type") == "Ready" and one.get("status") == "True"
                for one in status.get("conditions") or ()
            )
            if "deletionTimestamp" in metadata or not ready or not status.get("podIP"):
                continue
            refreshed = (metadata.get("annotations") or {}).get(names.REFRESHED_ANNOTATION, "")
            pods.append(ServingPod(metadata["uid"], metadata["name"], status["podIP"], refreshed))
            if len(pods) == MAX_PODS:
                break
        return pods

    def _unclaimed(self, table: DraftTable, pods: list[ServingPod]) -> tuple[list[ServingPod], list[str]]:
        """Return the pods that no older DraftTable selects, and the names of those that do."""
        older = [
            (other.name, self._claims.get(other.key, frozenset()))
            for other in self._cache.tables(table.namespace)
            if other.seniority < table.seniority
        ]
        left = [pod for pod in pods if not any(pod.uid in claimed for _, claimed in older)]
        self._claims[table.key] = frozenset(pod.uid for pod in left)
        selected = {pod.uid for pod in pods}
        return left, [name for name, claimed in older if selected & claimed]

    async def _read(
        self, table: DraftTable, serving: Serving, pods: list[ServingPod]
    ) -> Mapping[str, Reading | Failure]:
        if serving.source is MetricsSource.PROMETHEUS and serving.prometheus is not None:
            names_of_pods = [pod.name for pod in pods]
            answer = await self._scraper.prometheus(serving.prometheus, table.namespace, names_of_pods)
            return {pod.uid: answer[pod.name] for pod in pods}
        found = await asyncio.gather(*(self._scraper.pod(pod.address, serving.metrics_port) for pod in pods))
        return {pod.uid: one for pod, one in zip(pods, found, strict=True)}

    def _tell(self, key: Key, seen: live.Seen, now: float) -> None:
        """Hand over what was seen; the status is written where there is news, or after a while."""
        before = self._lives.get(key)
        self._lives[key] = seen
        if before is None or _news(before) != _news(seen) or now - self._told.get(key, 0) >= TELL_SECONDS:
            self._told[key] = now
            self._queue.add(key)

    async def _refresh(
        self,
        table: DraftTable,
        generation: int,
        pods: list[ServingPod],
        found: Mapping[str, Reading | Failure],
    ) -> None:
        """Touch pods that follow an older generation, once for each, so that their volume is refreshed."""
        for pod in pods:
            reading = found.get(pod.uid)
            behind = isinstance(reading, Reading) and (reading.generation or 0) < generation
            if not behind or pod.refreshed == str(generation):
                continue
            patch = {"metadata": {"annotations": {names.REFRESHED_ANNOTATION: str(generation)}}}
            try:
                await self._client.merge("Pod", table.namespace, pod.name, patch)
            except errors.NotFoundError:
                continue
            except errors.ApiError as error:
                logger.warning("%s/%s: pod %s could not be touched: %s", *table.key, pod.name, error)
                return

    def _forget(self, known: set[Key]) -> None:
        """Forget DraftTables that are gone."""
        kept = (
            self._memories,
            self._documents,
            self._looked,
            self._surveyed,
            self._told,
            self._lives,
            self._claims,
        )
        for key in set().union(*kept) - known:
            for memory in kept:
                memory.pop(key, None)


def text_of(selector: PodSelector) -> str:
    """Return a label selector as the API server reads it.

    >>> text_of(PodSelector(match_labels={"app": "qwen"}))
    'app=qwen'
    """
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for one in selector.match_expressions:
        values = ",".join(one.values)
        match one.operator:
            case "In":
                parts.append(f"{one.key} in ({values})")
            case "NotIn":
                parts.append(f"{one.key} notin ({values})")
            case "Exists":
                parts.append(one.key)
            case "DoesNotExist":
                parts.append(f"!{one.key}")
    return ",".join(parts)


def _news(seen: live.Seen) -> object:
    """Return what a reader of the status wants to know at once."""
    verdict = (seen.guard or {}).get("verdict")
    return (
        seen.pods,
        seen.up_to_date,
        seen.unreachable,
        seen.inactive,
        seen.decision,
        seen.drifted,
        seen.conflicts,
        seen.generation,
        verdict,
        seen.followed,
        seen.rollback,
        seen.correction is not None,
    )


def session() -> aiohttp.ClientSession:
    """Return a session for pods: no cookies, no proxy, few idle connections."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
