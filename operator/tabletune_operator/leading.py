"""Which of several operators acts: the one that holds a Lease, as other controllers of Kubernetes do it.

Kopf's own peering would pause Kopf's watches and nothing else: a look under way, and the correction loop,
would go on beside another operator's. So ``main`` lets workers run only while this says so, and stops them
when the Lease is lost, also when an API server that does not answer might have given it to another. Watches
go on meanwhile, so the next turn begins with a memory that is up to date.

No two clocks are compared. Whether a holder still renews is seen by the Lease's changes, timed by this
process' own clock: were its ``renewTime`` believed, an operator whose clock is ahead would take the Lease
from one that is alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tabletune_operator import errors, metrics, times
from tabletune_operator.requesting import Client

LEASE_SECONDS = 15
"""Time without renewal after which another operator may take over."""
RENEW_SECONDS = 5.0

logger = logging.getLogger("tabletune.operator")


class LostError(RuntimeError):
    """Another operator leads now, or the Lease could not be renewed in time."""


def turn(
    lease: Mapping[str, Any] | None,
    namespace: str,
    name: str,
    identity: str,
    now: datetime,
    unchanged_seconds: float,
) -> Mapping[str, Any] | None:
    """Return the Lease to write so that ``identity`` holds it at ``now``; ``None`` where it may not.

    It may where nobody does, where it does already, and where the holder has not renewed in time. ``lease``
    is what there is, ``None`` for no Lease yet; ``unchanged_seconds`` is how long it has been seen as it is.
    """
    spec = dict((lease or {}).get("spec") or {})
    holder = spec.get("holderIdentity") or ""
    seconds = float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
    if holder not in ("", identity) and unchanged_seconds < seconds:
        return None
    moment = times.text_of(now, "microseconds")
    taken = {
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": moment,
        "acquireTime": spec.get("acquireTime", moment) if holder == identity else moment,
        "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if holder == identity else 1),
    }
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if lease is not None:
        metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": taken}


class Leader:
    """Holds on to one Lease."""

    def __init__(
        self, client: Client, namespace: str, name: str, identity: str, now: Callable[[], datetime]
    ) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._identity, self._now = identity, now
        self._version = ""
        self._changed = 0.0
        """When the Lease was first seen as it is, by the loop's clock."""

    async def acquire(self) -> None:
        """Return once this operator leads, however long that takes."""
        told = False
        while not (held := await self._try()):
            if held is False and not told:
                logger.info("Another operator leads; waiting for Lease %s/%s.", self._namespace, self._name)
                told = True
            await asyncio.sleep(RENEW_SECONDS / 2)
        logger.info("Leading, by Lease %s/%s.", self._namespace, self._name)

    async def hold(self) -> None:
        """Renew for ever; raises :class:`LostError` when it is lost."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            began = loop.time()
            try:
                async with asyncio.timeout(max(0.1, LEASE_SECONDS - RENEW_SECONDS / 2 - (began - last))):
                    held = await self._try()
            except TimeoutError:
                held = None
            if held:
                last = began
            elif held is False or loop.time() - last > LEASE_SECONDS - RENEW_SECONDS:
                metrics.LEADING.set(0)
                why = "is another operator's now" if held is False else "could not be renewed in time"
                raise LostError(f"The Lease {self._namespace}/{self._name} {why}.")

    async def release(self) -> None:
        """Give it up, so that another one need not wait; best effort."""
        try:
            async with asyncio.timeout(3):
                found = await self._client.get("Lease", self._namespace, self._name)
                if found and (found.get("spec") or {}).get("holderIdentity") == self._identity:
                    spec = {**found["spec"], "holderIdentity": ""}
                    await self._client.replace({**found, "spec": spec})
        except (errors.ApiError, TimeoutError) as error:
            logger.info("The Lease could not be given up: %s", error)

    async def _try(self) -> bool | None:
        """Return whether the Lease is held now; ``None`` where the API server did not say."""
        try:
            found = await self._client.get("Lease", self._namespace, self._name)
            unchanged = self._unchanged_seconds(found)
            mine = turn(found, self._namespace, self._name, self._identity, self._now(), unchanged)
            if mine is None:
                return False
            await (self._client.create(mine) if found is None else self._client.replace(mine))
        except (errors.ConflictError, errors.UnavailableError):
            return None
        except errors.ApiError as error:
            logger.warning("The Lease cannot be renewed: %s", error)
            return None
        return True

    def _unchanged_seconds(self, lease: Mapping[str, Any] | None) -> float:
        """Return how long the Lease has been seen as it is."""
        now = asyncio.get_running_loop().time()
        version = "" if lease is None else str(lease["metadata"]["resourceVersion"])
        if version != self._version or not version:
            self._version, self._changed = version, now
        return now - self._changed
