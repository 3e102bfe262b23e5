"""The operator's reconciler on a real API server, without its watches: a test says when it looks.

So a test can stop it at any request, look between two steps, and start it anew with nothing but what the
API server holds, as after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import kopf

from tabletune_operator import live
from tabletune_operator.caching import WATCHED, Cache
from tabletune_operator.observations import Key
from tabletune_operator.reconciling import Reconciler
from tabletune_operator.requesting import Client
from tests.controlplane.clients import PATIENCE_SECONDS, Api, Object, wait
from tests.controlplane.planes import Plane


class Killed(BaseException):
    """The operator died here."""


class MortalClient(Client):
    """A client that dies at its n-th request, before or after the API server has got it."""

    def __init__(self, find: Callable[[], kopf.ConnectionInfo]) -> None:
        super().__init__(find)
        self.lives = -1
        self.after = False
        self.requests = 0

    async def _call(self, *arguments: Any, **options: Any) -> Mapping[str, Any]:
        self.requests += 1
        dies = self.lives == self.requests
        if dies and not self.after:
            raise Killed
        answer = await super()._call(*arguments, **options)
        if dies:
            raise Killed
        return answer


class Harness:
    """One operator, restarted at will."""

    def __init__(self, plane: Plane, api: Api, token: str | None = None) -> None:
        self._info = kopf.ConnectionInfo(
            server=plane.server, ca_path=str(plane.certificate), token=token or plane.token
        )
        self.api = api
        self.lives: dict[Key, live.Seen] = {}
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.requests = 0

    def look(
        self, namespace: str, name: str = "qwen", *, dies_at: int = -1, after: bool = False
    ) -> float | None:
        """Start, list everything, look once at one DraftTable, and stop."""

        async def once(client: MortalClient) -> float | None:
            cache = await self._listed(client, namespace)
            client.requests, client.lives, client.after = 0, dies_at, after
            reconciler = Reconciler(client, cache, self.now, self.lives)
            try:
                return await reconciler.reconcile((namespace, name))
            finally:
                self.requests = client.requests

        return self._with_client(once)

    def settle(self, namespace: str, name: str = "qwen", rounds: int = 8) -> Object:
        """Look, as freshly started each time, until the DraftTable stays as it is; return it."""
        version = ""
        for _ in range(rounds):
            self.look(namespace, name)
            found = self.api.get("DraftTable", namespace, name)
            if found["metadata"]["resourceVersion"] == version:
                return found
            version = found["metadata"]["resourceVersion"]
        raise AssertionError(f"Not settled after {rounds} looks: {found['status']}")

    def until(
        self,
        namespace: str,
        condition: Callable[[Object], Any],
        name: str = "qwen",
        seconds: float = PATIENCE_SECONDS,
    ) -> Object:
        """Look until ``condition`` holds for the DraftTable's status; return it."""

        def attempt() -> Object | None:
            self.look(namespace, name)
            found = self.api.get("DraftTable", namespace, name)
            return found if condition(found.get("status", {})) else None

        found: Object = wait(f"the status of {name}", attempt, seconds)
        return found

    def _with_client(self, work: Callable[[MortalClient], Awaitable[float | None]]) -> float | None:
        async def run() -> float | None:
            async with MortalClient(lambda: self._info) as client:
                return await work(client)

        return asyncio.run(run())

    @staticmethod
    async def _listed(client: Client, namespace: str) -> Cache:
        cache = Cache()
        for kind, label in WATCHED.items():
            async for body in client.list(kind, namespace, labels=label):
                cache.put(kind, body)
        return cache


def condition(found: Object, kind: str) -> Object:
    """One condition of a DraftTable."""
    conditions = found.get("status", found).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})
