"""The operator's process: ``tabletune-operator``.

Puts the parts together and keeps them going: Kopf watches, workers look, the Lease says whether they may.
An API server that is away is waited for, however long. Any part that ends by a fault ends the process,
because Kubernetes restarts it better than it could mend itself; SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

import kopf

from tabletune.api.reasons import Phase
from tabletune_operator import (
    credentials,
    errors,
    handlers,
    live,
    metrics,
    queueing,
    resyncing,
    serving,
    surveying,
)
from tabletune_operator.caching import Cache
from tabletune_operator.leading import Leader, LostError
from tabletune_operator.observations import DraftTable, Key
from tabletune_operator.queueing import Queue
from tabletune_operator.reconciling import Reconciler
from tabletune_operator.requesting import Client
from tabletune_operator.scraping import Scraper
from tabletune_operator.settings import Settings, SettingsError, read
from tabletune_operator.surveying import Surveyor

CRD_SECONDS = 2.0
"""Time between two looks for the CRD."""
COUNT_SECONDS = 5.0
"""Time between two counts of the DraftTables by phase, and of their serving pods by state."""
GRACE_SECONDS = 10.0
"""Time that a look under way gets at the end."""
SILENT_SECONDS = 10.0
"""Time without an answer of the API server after which the operator is not ready."""

logger = logging.getLogger("tabletune.operator")


def run() -> None:
    """Run until SIGTERM; the entry point of the ``tabletune-operator`` script."""
    try:
        settings = read(os.environ)
    except SettingsError as error:
        sys.exit(str(error))
    kopf.configure(
        log_format=kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.FULL,
        debug=settings.log_level == "debug",
    )
    if settings.log_level != "debug":
        logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(operate(settings))
    except credentials.CredentialsError as error:
        sys.exit(str(error))


async def operate(settings: Settings) -> None:
    """Run the operator until it is told to stop."""
    kopf_settings = handlers.operator_settings()
    async with Client(lambda: credentials.find(kopf_settings)) as client:
        await Operator(settings, client).run(kopf_settings)


class Operator:
    """All parts of one operator."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings, self._client = settings, client
        self._cache, self._queue = Cache(), Queue()
        self._lives: dict[Key, live.Seen] = {}
        self._reconciler = Reconciler(client, self._cache, _now, self._lives)
        self._leader = Leader(
            client,
            settings.lease_namespace,
            settings.lease,
            settings.identity or socket.gethostname(),
            _now,
        )
        self._seen = asyncio.Event()
        self._awaited = "the API server has not answered yet"
        """What the start waits for; empty once it is over."""

    async def run(self, kopf_settings: kopf.OperatorSettings) -> None:
        """Watch and work until Kopf is told to stop, or a part fails."""
        settings = self._settings
        stop = asyncio.Event()
        # First, since a process that waits for the API server is alive.
        runner = await serving.start(settings.port, self._missing) if settings.port else None
        await self._await_kinds()
        watching = asyncio.create_task(
            kopf.operator(
                registry=handlers.registry(self._cache, self._queue, self._seen.set),
                settings=kopf_settings,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=stop,
                standalone=True,
            ),
            name="watching",
        )
        working = asyncio.create_task(self._work(), name="working")
        try:
            done, _ = await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            working.cancel()
            stop.set()
            await asyncio.wait({working, watching}, timeout=GRACE_SECONDS)
            if settings.lease:
                await self._leader.release()
            if runner is not None:
                await runner.cleanup()
            logger.info("Stopped.")

    def _missing(self) -> str:
        """Return what this process waits for; an operator that is not its turn is ready to be."""
        if self._client.silent_seconds > SILENT_SECONDS:
            return f"the API server has not answered for {self._client.silent_seconds:.0f} s"
        return self._awaited

    async def _work(self) -> None:
        """Look at what is due while it is this operator's turn, and wait for the next where it is lost."""
        await self._list_first()
        async with surveying.session() as session:
            scraper = Scraper(session, self._settings.scrapes, self._settings.scrape_seconds)
            surveyor = Surveyor(self._client, self._cache, self._queue, self._lives, scraper, _now)
            while True:
                try:
                    await self._lead(surveyor)
                except* LostError as lost:
                    logger.warning("%s Nothing is done until the next turn.", lost.exceptions[0])

    async def _lead(self, surveyor: Surveyor) -> None:
        """Wait for the turn and work until it is lost, which raises :class:`LostError` in a group."""
        if self._settings.lease:
            await self._leader.acquire()
        metrics.LEADING.set(1)
        for table in self._cache.tables():
            self._queue.add(table.key)
        async with asyncio.TaskGroup() as group:
            group.create_task(surveyor.run())
            group.create_task(self._count())
            if self._settings.lease:
                group.create_task(self._leader.hold())
            for _ in range(self._settings.workers):
                group.create_task(queueing.work(self._queue, self._reconciler.reconcile))
            group.create_task(
                resyncing.repeat(
                    self._client,
                    self._cache,
                    self._queue,
                    self._settings.namespaces,
                    self._settings.resync_seconds,
                )
            )

    async def _await_kinds(self) -> None:
        """Wait until DraftTables are served: Kopf looks once which kinds there are."""
        while await self._is_empty() is None:
            await asyncio.sleep(CRD_SECONDS)

    async def _list_first(self) -> None:
        """Wait until Kopf has listed everything; with no object at all, until the API server says so."""
        self._awaited = "the watches have not shown everything yet"
        while not self._seen.is_set():
            try:
                async with asyncio.timeout(1):
                    await self._seen.wait()
            except TimeoutError:
                if await self._is_empty():
                    self._seen.set()
        self._awaited = ""

    async def _is_empty(self) -> bool | None:
        """Return whether there is nothing to watch; ``None`` where the API server does not say."""
        try:
            return await resyncing.is_empty(self._client, self._settings.namespaces)
        except errors.UnavailableError:
            # The client has told.
            return None
        except errors.ApiError as error:
            said = "TableTune's CRD, or the right to read what is watched, is not there yet"
            if self._awaited != said:
                logger.warning("%s: %s", said, error)
                self._awaited = said
            return None

    async def _count(self) -> None:
        """Count DraftTables by phase and their serving pods by state, until the turn is over."""
        try:
            while True:
                phases = [str(table.status.get("phase") or Phase.PENDING) for table in self._cache.tables()]
                for phase in Phase:
                    metrics.TABLES.labels(phase=phase.value).set(phases.count(phase.value))
                _count_conditions(self._cache.tables())
                seen = self._lives.values()
                metrics.PODS.labels(state="upToDate").set(sum(one.up_to_date for one in seen))
                metrics.PODS.labels(state="unreachable").set(sum(one.unreachable for one in seen))
                metrics.PODS.labels(state="inactive").set(sum(one.inactive for one in seen))
                metrics.PODS.labels(state="all").set(sum(one.pods for one in seen))
                await asyncio.sleep(COUNT_SECONDS)
        finally:
            # Whoever leads counts; two that do would be summed up.
            metrics.TABLES.clear()
            metrics.CONDITIONS.clear()
            metrics.PODS.clear()


def _count_conditions(tables: Iterable[DraftTable]) -> None:
    """Show what each DraftTable's status says, and nothing of those that are gone or reasons that passed."""
    metrics.CONDITIONS.clear()
    for table in tables:
        for one in table.status.get("conditions") or ():
            metrics.CONDITIONS.labels(
                namespace=table.namespace,
                draft_table=table.name,
                condition=one.get("type", ""),
                status=one.get("status", ""),
                reason=one.get("reason", ""),
            ).set(1)


def _now() -> datetime:
    return datetime.now(UTC)
