"""Fetches serving pods' metrics: many at once, none for long, and none too much.

A pod that hangs, sends for ever or sends garbage costs one slot for some seconds; the others are read
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from tabletune.api.drafttables import Prometheus
from tabletune_operator import expositions, metrics
from tabletune_operator.expositions import Reading, Sample

PODS_A_QUERY = 50
"""Pods that one query to Prometheus is for: an answer of 3 MB is parsed before anybody notices."""
MAX_PROMETHEUS_BYTES = 16_000_000
"""Most that is read of Prometheus' answer to it."""
MAX_ERROR_BYTES = 4_000
"""Most that is read of an answer that is a failure."""


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
                data = await self._fetch(f"http://{host}:{port}/metrics", expositions.MAX_BYTES)
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

    async def prometheus(
        self, source: Prometheus, namespace: str, pods: Sequence[str]
    ) -> Mapping[str, Reading | Failure]:
        """Return what a Prometheus knows of each of ``pods``, by name, or why nothing. Raises nothing."""
        groups = [pods[start : start + PODS_A_QUERY] for start in range(0, len(pods), PODS_A_QUERY)]
        found = await asyncio.gather(*(self._query(source, namespace, group) for group in groups))
        return {pod: one for answer in found for pod, one in answer.items()}

    async def _query(
        self, source: Prometheus, namespace: str, pods: Sequence[str]
    ) -> Mapping[str, Reading | Failure]:
        url = f"{source.url.rstrip('/')}/api/v1/query"
        async with self._slots:
            began = time.monotonic()
            try:
                data = await self._fetch(url, MAX_PROMETHEUS_BYTES, {"query": query(source, namespace, pods)})
                samples = _results(data, source.pod_label)
            except _FetchError as error:
                metrics.SCRAPES.labels(result=error.kind).inc()
                return dict.fromkeys(pods, Failure(f"{source.url} {error}"))
            finally:
                metrics.SCRAPE_SECONDS.observe(time.monotonic() - began)
        metrics.SCRAPES.labels(result="ok").inc()
        missing = Failure(f"{source.url} has no metrics of TableTune's plugin for it")
        return {pod: expositions.read(samples[pod]) if pod in samples else missing for pod in pods}

    async def _fetch(self, url: str, limit: int, form: Mapping[str, str] | None = None) -> bytes:
        """Return the answer to GET, or to POST where there is a ``form``: queries are long."""
        verb = "GET" if form is None else "POST"
        try:
            async with self._session.request(
                verb, url, data=form, timeout=self._timeout, allow_redirects=False
            ) as answer:
                data = bytearray()
                async for chunk in answer.content.iter_any():
                    data += chunk
                    if len(data) > limit or (answer.status != 200 and len(data) > MAX_ERROR_BYTES):
                        break
                if answer.status != 200:
                    raise _FetchError("refused", f"answers {answer.status}{_told(bytes(data))}")
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


def query(source: Prometheus, namespace: str, pods: Sequence[str]) -> str:
    """Return the query for the newest samples of all that is read, of ``pods`` alone.

    >>> query(Prometheus(url="http://p"), "ml", ["a", "b.c"])[-42:]
    'namespace="ml",pod=~"a|b[.]c"}'
    """
    metric_names = "|".join(expositions.NAMES)
    pod_names = "|".join(pod.replace(".", "[.]") for pod in pods)
    return (
        f'{{__name__=~"{metric_names}",{source.namespace_label}="{namespace}",'
        f'{source.pod_label}=~"{pod_names}"}}'
    )


def _results(data: bytes, pod_label: str) -> dict[str, list[Sample]]:
    """Return the samples in Prometheus' answer by pod; a sample that is none is passed over.

    A pod that is scraped by two jobs, or by two replicas, is there twice, at two moments. One of them counts,
    the same at each look, since a counter that jumps between the two would look like a restart.
    """
    try:
        answer = json.loads(data)
        results = answer["data"]["result"]
        if answer.get("status") != "success" or not isinstance(results, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _FetchError("foreign", f"does not answer as Prometheus does{_told(data)}") from None
    found: dict[str, dict[tuple[tuple[str, str], ...], list[Sample]]] = {}
    for result in results[: expositions.MAX_SAMPLES * 10]:
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):
            labels = {str(key): str(value) for key, value in result["metric"].items()}
            sample = labels["__name__"], labels, float(result["value"][1])
            origin = tuple(sorted(one for one in labels.items() if one[0] not in expositions.LABELS))
            found.setdefault(labels[pod_label], {}).setdefault(origin, []).append(sample)
    return {
        pod: min(origins.items(), key=lambda one: (-len(one[1]), one[0]))[1] for pod, origins in found.items()
    }


def _told(data: bytes) -> str:
    """Return what a server says of its own failure; empty where it says nothing that we read."""
    try:
        error = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {str(error)[:300]}"
