"""TCP ports for tests: free ones, taken ones, and those that a process has just left.

A port is not free at the moment in which its process was killed: the kernel gives it back when the last
thread has ended. So nothing here that binds a port of somebody else's fails at the first try.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

FREE_SECONDS = 60.0
"""Most that the one who held a port before is waited for."""


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """Hold a port, for IPv4 and IPv6, as soon as it is free; ``OSError`` after :data:`FREE_SECONDS`."""
    with _bound(port) as taken:
        taken.listen()
        yield


def wait_until_free(*ports: int) -> None:
    """Wait until nobody listens on any of ``ports``; ``OSError`` after :data:`FREE_SECONDS`."""
    for port in ports:
        _bound(port).close()


def _bound(port: int) -> socket.socket:
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        found = socket.socket(socket.AF_INET6)
        try:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            # Connections of before may linger for a minute; those who listen are in the way all the same.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("", port))
        except OSError:
            found.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return found
