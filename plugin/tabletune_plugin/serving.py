"""Serves metrics, health and the table's reasons over HTTP, from threads of its own.

vLLM's HTTP server is in another process, which knows nothing of the scheduler. This one shares the engine
core's process, so whatever comes over the network must cost it little: a handful of requests at a time, each
with a time limit, everything else turned away. A port that is taken, or a server that breaks, is told once
and tried again later; a process that has no file left to accept a connection with waits, and does not spin.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, exposition

from tabletune_plugin import debugging, metrics, states

logger = logging.getLogger("tabletune")

RETRY_SECONDS = 5.0
"""Time between two tries to get the port."""
REQUEST_SECONDS = 5.0
"""Longest that a client may keep a request's thread, however often it sends or takes a byte."""
LOOK_UP_SECONDS = 0.25
"""Longest that it takes to notice the end."""
MOST_REQUESTS = 8
"""Requests at a time; further ones are closed unanswered."""

Snapshot = Callable[[], metrics.Snapshot]


class Server:
    """Holds on to one port, from :meth:`start` to :meth:`stop`."""

    def __init__(self, port: int, snapshot: Snapshot) -> None:
        self._port = port
        self._snapshot = snapshot
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(metrics.PluginCollector(snapshot))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tabletune-metrics", daemon=True)
        self._complained = False

    def start(self) -> None:
        """Start serving, as soon as the port is free."""
        self._thread.start()

    def stop(self) -> None:
        """Give the port back; waits a moment for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=4 * LOOK_UP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._serve()
            except OSError as error:
                self._complain(f"TableTune cannot serve metrics on port {self._port}: {error.strerror}")
            except Exception as error:
                self._complain(f"TableTune's metrics failed: {type(error).__name__}: {error}")
            self._stopping.wait(RETRY_SECONDS)

    def _serve(self) -> None:
        with _HttpServer(self._port, self._answer) as server:
            logger.info("TableTune serves metrics on port %d", self._port)
            self._complained = False
            # Not serve_forever: whoever stops that too early waits for ever, and here it would be an engine.
            while not self._stopping.is_set():
                server.handle_request()
                server.end_overdue()

    def _complain(self, message: str) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("%s; it is tried again every %.0f s. Serving goes on.", message, RETRY_SECONDS)

    def _answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        if path == "/metrics":
            encode, content_type = exposition.choose_encoder(accept)
            return 200, content_type, encode(self._registry)
        if path == "/healthz":
            report = self._snapshot().report
            healthy = report.reason != states.CONTROLLER_FAILED
            body = {"healthy": healthy, "active": report.active, "reason": report.reason}
            return 200 if healthy else 503, "application/json", _json(body)
        if path == "/debug/table":
            return 200, "application/json", _json(debugging.describe(self._snapshot()))
        return 404, "text/plain; charset=utf-8", b"There are /metrics, /healthz and /debug/table.\n"


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


class _HttpServer(http.server.ThreadingHTTPServer):
    """A server whose threads are few, and never keep the process alive."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16
    timeout = LOOK_UP_SECONDS
    allow_reuse_port = False

    def __init__(self, port: int, answer: Callable[[str, str], tuple[int, str, bytes]]) -> None:
        self.answer = answer
        self._slots = threading.BoundedSemaphore(MOST_REQUESTS)
        self._since: dict[socket.socket, float] = {}
        if socket.has_dualstack_ipv6():
            self.address_family = socket.AF_INET6
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            # One socket for both, as clusters are of either kind.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not http.server's own, which asks a name server who we are.
        super(http.server.HTTPServer, self).server_bind()
        self.server_name, self.server_port = "", self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            # The connection goes on waiting to be accepted, and asking again at once would take a whole core.
            time.sleep(LOOK_UP_SECONDS)
            raise

    def end_overdue(self) -> None:
        """Cut the connections whose time is over; their threads find out and end."""
        for request, since in list(self._since.items()):
            if time.monotonic() - since > REQUEST_SECONDS:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._since[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except Exception:
            self._since.pop(request, None)
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._since.pop(request, None)
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        logger.debug("a metrics request failed", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: _HttpServer
    timeout = REQUEST_SECONDS
    server_version = "tabletune"
    sys_version = ""

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        try:
            status, content_type, body = self.server.answer(path, self.headers.get("Accept", ""))
        except Exception as error:
            logger.debug("TableTune could not answer %s", path, exc_info=True)
            status, content_type = 500, "text/plain; charset=utf-8"
            body = f"{type(error).__name__}: {error}\n".encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep scrapes out of the engine's log."""
