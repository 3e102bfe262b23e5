"""A Prometheus for tests: its HTTP API, real pages behind it, and its own engine to answer with."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from tests.charts import queries


@dataclass(frozen=True)
class Target:
    """What is scraped: an address with a page, and the labels that relabelling gives it."""

    url: str
    labels: Mapping[str, str]


@dataclass
class Server:
    """What the HTTP API answers from; a test may put another answer in its place."""

    program: Path
    targets: Sequence[Target] = ()
    answer: Callable[[BaseHTTPRequestHandler], None] | None = None
    asked: list[str] = field(default_factory=list)
    """Queries so far."""

    def query(self, expression: str) -> list[dict[str, object]]:
        """Scrape the targets and return the result, as the HTTP API has it."""
        now = time.time()
        pages = []
        for target in self.targets:
            with urllib.request.urlopen(target.url, timeout=60) as answer:
                pages.append(queries.Page(answer.read().decode(), target.labels, now))
        (found,) = queries.Prometheus(self.program, pages).query(expression, seconds=now)
        return [{"metric": sample.labels, "value": [now, f"{sample.value!r}"]} for sample in found]


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Serve the HTTP API on loopback; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.path != "/api/v1/query":
                self.send_error(404)
                return
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            server.asked.append(form["query"][0])
            if server.answer is not None:
                server.answer(self)
                return
            result = server.query(form["query"][0])
            send(self, {"status": "success", "data": {"resultType": "vector", "result": result}})

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, content: object, status: int = 200) -> None:
    """Answer with JSON."""
    body = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
