"""The operator's requests to the API server; the one module that makes any, beside Kopf's watches.

A handful of verbs over one aiohttp session. The official client would bring 70 MB of generated models and
blocking calls; five hundred tables on one core leave no room for either.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import kopf

from tabletune.api import names
from tabletune_operator import credentials, errors, kinds, metrics

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
TIMEOUT_SECONDS = 30.0
"""Longest that one request may take; an API server that hangs must not hold a worker for ever."""
CHUNK = 200
"""Objects in one answer of a list."""
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

Body = Mapping[str, Any]

logger = logging.getLogger("tabletune.operator")


class Client:
    """A connection to one API server; an asynchronous context manager."""

    outages = 0
    """Times that the API server answered again after it had not."""

    def __init__(self, find: Callable[[], kopf.ConnectionInfo], timeout: float = TIMEOUT_SECONDS) -> None:
        self._find = find
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=min(10.0, timeout))
        self._info = find()
        self._tls: ssl.SSLContext | bool = credentials.tls(self._info)
        self._session: aiohttp.ClientSession | None = None
        self._silent_since: float | None = None

    @property
    def silent_seconds(self) -> float:
        """Time for which the API server has given no answer of worth; 0 while it does."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    async def __aenter__(self) -> Self:
        """Open the session."""
        connector = aiohttp.TCPConnector(limit=32, ssl=self._tls)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        if self._session is not None:
            await self._session.close()
            # aiohttp closes TLS connections in the background; a moment lets it.
            await asyncio.sleep(0)

    async def get(self, kind: str, namespace: str, name: str) -> Body | None:
        """Return an object; ``None`` where there is none."""
        try:
            return await self._call("GET", kind, namespace, name)
        except errors.NotFoundError:
            return None

    async def list(
        self,
        kind: str,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Body]:
        """Yield the objects of one namespace, or of all, chunk by chunk."""
        query = {"limit": str(CHUNK), "labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in query.items() if value}
        accept = METADATA_ONLY if metadata_only else "application/json"
        while True:
            found = await self._call("GET", kind, namespace, query=query, accept=accept)
            for item in found.get("items") or ():
                yield item
            more = (found.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    async def create(self, body: Body) -> Body:
        """Make an object; raises :class:`errors.ConflictError` where it is there already."""
        query = {"fieldManager": names.MANAGER, "fieldValidation": "Strict"}
        return await self._call("POST", body["kind"], body["metadata"]["namespace"], query=query, body=body)

    async def apply(self, body: Body, subresource: str = "") -> Body:
        """Server-side apply of ``body``; what others have set in its fields is overruled."""
        metadata = body["metadata"]
        query = {"fieldManager": names.MANAGER, "force": "true", "fieldValidation": "Strict"}
        return await self._call(
            "PATCH",
            body["kind"],
            metadata["namespace"],
            metadata["name"],
            subresource=subresource,
            query=query,
            body=body,
            content=APPLY,
        )

    async def merge(self, kind: str, namespace: str, name: str, patch: Body, subresource: str = "") -> Body:
        """Merge ``patch`` into an object."""
        query = {"fieldManager": names.MANAGER}
        return await self._call(
            "PATCH", kind, namespace, name, subresource=subresource, query=query, body=patch, content=MERGE
        )

    async def replace(self, body: Body) -> Body:
        """Write an object as it was read; raises :class:`errors.ConflictError` where it changed since."""
        metadata = body["metadata"]
        return await self._call("PUT", body["kind"], metadata["namespace"], metadata["name"], body=body)

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object, and what it owns in the background; one that is gone is no fault."""
        try:
            await self._call("DELETE", kind, namespace, name, body={"propagationPolicy": "Background"})
        except errors.NotFoundError:
            return

    async def _call(
        self,
        verb: str,
        kind: str,
        namespace: str | None,
        name: str = "",
        *,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Body:
        """Return the answer; raises an :class:`errors.ApiError` for every other end.

        An answer 401 may be a token that was rotated: it is read again, once.
        """
        path = kinds.path(kind, namespace, name, subresource)
        try:
            answer = await self._answer(verb, kind, path, query, body, content, accept)
        except errors.UnavailableError as error:
            self._note_silence(error)
            raise
        except errors.ApiError:
            self._note_answer()
            raise
        self._note_answer()
        return answer

    async def _answer(
        self,
        verb: str,
        kind: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Body | None,
        content: str,
        accept: str,
    ) -> Body:
        status, answer = await self._send(verb, path, query, body, content, accept)
        if status == 401:
            self._info = await asyncio.to_thread(self._find)
            status, answer = await self._send(verb, path, query, body, content, accept)
        metrics.REQUESTS.labels(verb=verb, kind=kind, code=str(status)).inc()
        try:
            found = json.loads(answer)
        except ValueError:
            found = {"message": answer[:500].decode(errors="replace")}
        if not isinstance(found, dict):
            raise errors.UnavailableError(status, "NoObject", "the API server's answer is no object")
        if status >= 300:
            causes = (found.get("details") or {}).get("causes") or ()
            raise errors.of(
                status,
                str(found.get("reason", "")),
                str(found.get("message", "")),
                [str(cause.get("reason", "")) for cause in causes],
            )
        return found

    def _note_silence(self, error: errors.UnavailableError) -> None:
        """An outage is told once, not by each of the hundreds of requests that meet it."""
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            logger.warning("The API server does not answer: %s", error)

    def _note_answer(self) -> None:
        if self._silent_since is not None:
            logger.info("The API server answers again, after %.0f s.", self.silent_seconds)
            self._silent_since = None
            self.outages += 1

    async def _send(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Body | None,
        content: str,
        accept: str,
    ) -> tuple[int, bytes]:
        if self._session is None:
            raise RuntimeError("The client is not open. Use it with `async with`.")
        headers = {"Accept": accept, "Content-Type": content} | credentials.headers(self._info)
        data = None if body is None else json.dumps(body).encode()
        url = self._info.server.rstrip("/") + path
        try:
            async with self._session.request(verb, url, params=query, data=data, headers=headers) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            metrics.REQUESTS.labels(verb=verb, kind="", code="0").inc()
            told = str(error) or type(error).__name__
            raise errors.UnavailableError(0, "NoAnswer", f"the API server does not answer: {told}") from error
