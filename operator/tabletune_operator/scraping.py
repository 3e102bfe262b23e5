"""Fetches serving pods' metrics: many at once, none for long, and none too much.

A pod that hangs, sends for ever or sends garbage costs one slot for some seconds; the others are read
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from tabletune.api.drafttables import Prometheus
from tabletune_operator import expositions, metrics
from tabletune_operator.expositions import Reading, Sample

MAX_PROMETHEUS_BYTES = 32_000_000
"""Most that is read of Prometheus' answer, which is for all pods of a namespace."""


@dataclass(frozen=True)
class Failure:
    """Why a pod could not be read, for a person."""

    message: str


class Scraper:
    """Reads pods; at most so many at the same time, over all DraftTables."""

    def __init__(self, session: aiohttp.ClientSession, at_once: int, seconds: float) -> None:
        self._session = session
        self._slots = asyncio.Semaphore(at_once)
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._seconds = seconds

    async def pod(self, address: str, port: int) -> Reading | Failure:
        """Return what the pod at ``address`` says, or why not. Raises nothing."""
        host = f"[{address}]" if ":" in address else address
        async with self._slots:
            began = time.monotonic()
            try:
                data = await self._fetch(f"http://{host}:{port}/metrics", {}, expositions.MAX_BYTES)
            except _FetchError as error:
                metrics.SCRAPES.labels(result=error.kind).inc()
                return Failure(f"port {port}: {error}")
            finally:
                metrics.SCRAPE_SECONDS.observe(time.monotonic() - began)
        reading = expositions.parse(data.decode("utf-8", "replace"))
        if reading.active is None:
            metrics.SCRAPES.labels(result="foreign").inc()
            return Failure(f"port {port} has no metrics of TableTune's plugin")
        metrics.SCRAPES.labels(result="ok").inc()
        return reading

    async def prometheus(self, source: Prometheus, namespace: str) -> Mapping[str, Reading] | Failure:
        """Return what a Prometheus knows of each pod of ``namespace``, or why nothing. Raises nothing."""
        query = f'{{__name__=~"tabletune_.+",{source.namespace_label}="{namespace}"}}'
        async with self._slots:
            try:
                url = f"{source.url.rstrip('/')}/api/v1/query"
                data = await self._fetch(url, {"query": query}, MAX_PROMETHEUS_BYTES)
            except _FetchError as error:
                metrics.SCRAPES.labels(result=error.kind).inc()
                return Failure(f"{source.url}: {error}")
        pods: dict[str, list[Sample]] = {}
        for pod, sample in _results(data, source.pod_label):
            pods.setdefault(pod, []).append(sample)
        metrics.SCRAPES.labels(result="ok").inc()
        return {pod: expositions.read(samples) for pod, samples in pods.items()}

    async def _fetch(self, url: str, query: Mapping[str, str], limit: int) -> bytes:
        try:
            async with self._session.get(
                url, params=query, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise _FetchError("refused", f"answers {answer.status}")
                data = bytearray()
                async for chunk in answer.content.iter_any():
                    data += chunk
                    if len(data) > limit:
                        raise _FetchError("tooLarge", f"answers with more than {limit} bytes")
                return bytes(data)
        except TimeoutError as error:
            raise _FetchError("timeout", f"does not answer within {self._seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            told = str(error) or type(error).__name__
            raise _FetchError("unreachable", f"cannot be reached: {told[:200]}") from error


class _FetchError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def _results(data: bytes, pod_label: str) -> list[tuple[str, Sample]]:
    """Return the samples in Prometheus' answer with their pods; what is none is passed over."""
    found: list[tuple[str, Sample]] = []
    try:
        results = json.loads(data)["data"]["result"][: expositions.MAX_SAMPLES * 10]
    except (ValueError, KeyError, TypeError, RecursionError):
        return found
    for result in results:
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):
            labels = {str(key): str(value) for key, value in result["metric"].items()}
            found.append((labels[pod_label], (labels["__name__"], labels, float(result["value"][1]))))
    return found
