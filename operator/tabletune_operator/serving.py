"""Serves the operator's own metrics, liveness and readiness over HTTP.

Alive is a process whose event loop turns; ready is one that has seen everything and leads, or waits for its
turn. A server of its own, since Kopf's liveness page knows nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tabletune_operator import metrics


async def start(port: int, ready: Callable[[], str]) -> web.AppRunner:
    """Start serving on ``port``; ``ready`` says what is missing, empty for nothing. Return the runner."""
    application = web.Application()

    async def show(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def is_ready(_: web.Request) -> web.Response:
        missing = ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=503 if missing else 200)

    application.router.add_get("/metrics", show)
    application.router.add_get("/healthz", alive)
    application.router.add_get("/readyz", is_ready)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
