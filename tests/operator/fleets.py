"""Serving pods for tests: real HTTP servers on loopback, each at an address of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.controlplane.clients import Api


class Page:
    """One pod's metrics page; counters grow by :meth:`serve`."""

    def __init__(self, generation: int = 1) -> None:
        self.generation = generation
        self.drafted: list[float] = []
        self.accepted: list[float] = []
        self.steps = self.seconds = self.tokens = 0.0
        self.extra = ""
        self.hostile: Callable[[BaseHTTPRequestHandler], None] | None = None

    def serve(self, survival: tuple[float, ...], drafts: float, tokens_per_second: float = 1_000) -> None:
        places = range(len(survival))
        self.drafted = [(self.drafted[place] if self.drafted else 0) + drafts for place in places]
        self.accepted = [
            (self.accepted[place] if self.accepted else 0) + drafts * survival[place] for place in places
        ]
        self.steps += 600
        self.seconds += 6
        self.tokens += 6 * tokens_per_second

    def text(self) -> str:
        lines = [
            'tabletune_active{reason="Active"} 1.0',
            f"tabletune_table_generation {self.generation}.0",
            f'tabletune_requests_total{{proposed="yes"}} {self.drafted[0] if self.drafted else 0}',
            f'tabletune_steps_total{{batch="8",length="2",kind="decode"}} {self.steps}',
            f'tabletune_step_seconds_total{{batch="8",length="2",kind="decode"}} {self.seconds}',
            f'tabletune_kept_tokens_total{{batch="8",length="2",kind="decode"}} {self.tokens}',
        ]
        for place, (drafted, accepted) in enumerate(zip(self.drafted, self.accepted, strict=True), start=1):
            lines.append(f'tabletune_drafted_total{{position="{place}"}} {drafted}')
            lines.append(f'tabletune_accepted_total{{position="{place}"}} {accepted}')
        return "\n".join(lines) + "\n" + self.extra


@contextmanager
def served(pages: list[Page], port: int) -> Iterator[list[str]]:
    """Serve each page at an address of its own (127.0.1.x) on ``port``; yield the addresses."""
    servers = []
    addresses = [f"127.0.1.{number}" for number in range(1, len(pages) + 1)]
    for page, address in zip(pages, addresses, strict=True):
        servers.append(_server(page, address, port))
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield addresses
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def _server(page: Page, address: str, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if page.hostile is not None:
                page.hostile(self)
                return
            body = page.text().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    return server


def make_pod(api: Api, namespace: str, name: str, address: str, labels: dict[str, str]) -> None:
    """Make a pod that is ready at ``address``; the test plays its node.

    It is on no node, and no scheduler looks for one: a pod on a node that does not exist is collected by the
    controller manager within a minute.
    """
    container = {"name": "modelserver", "image": "vllm"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"containers": [container], "schedulerName": "nobody", "automountServiceAccountToken": False}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
    api.merge("Pod", namespace, name, {"status": status}, "status")
