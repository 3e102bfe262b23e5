"""Metrics over HTTP: answered, bounded, and no port is worth an exception."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tabletune_plugin import serving, settings, states
from tabletune_plugin.metrics import Snapshot
from tabletune_plugin.serving import Server
from tests import ports

SETTINGS, _ = settings.read({"TABLETUNE_TABLE": "/t.json"})


def snapshot(reason: str = states.NO_DOCUMENT) -> Snapshot:
    return Snapshot(states.Report(active=False, reason=reason, message=""), None, SETTINGS, None, 0)


@contextmanager
def running(port: int, reason: str = states.NO_DOCUMENT) -> Iterator[None]:
    server = Server(port, lambda: snapshot(reason))
    server.start()
    try:
        wait_for(port)
        yield
    finally:
        server.stop()


PATIENCE_SECONDS = 60.0
"""Most that anything is waited for here; a machine may pause for a while."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def wait_for(port: int) -> None:
    """Wait until the port is open, and what was asked to find out is answered."""

    def is_open() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(is_open)
    wait_until(lambda: handled() == 0)


def handled() -> int:
    """Return how many requests have a thread, and with it a slot."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


@pytest.fixture
def port() -> int:
    return ports.free_port()


def test_metrics_are_what_prometheus_parses(port: int) -> None:
    with running(port):
        status, kind, body = get(port, "/metrics")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        families = {family.name for family in text_string_to_metric_families(body.decode())}
        assert "tabletune_active" in families
        status, kind, body = get(port, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
        assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
        parse = cast(Callable[[str], Iterable[Metric]], openmetrics.text_string_to_metric_families)
        assert {family.name for family in parse(body.decode())} == families


def test_health_says_the_reason_and_fails_only_with_the_controller(port: int) -> None:
    with running(port):
        status, _, body = get(port, "/healthz")
        assert (status, json.loads(body)) == (
            200,
            {"healthy": True, "active": False, "reason": "NoDocument"},
        )
    with running(port, states.CONTROLLER_FAILED):
        assert get(port, "/healthz")[0] == 503


def test_table_is_described_as_json(port: int) -> None:
    with running(port):
        status, kind, body = get(port, "/debug/table")
        assert (status, kind) == (200, "application/json")
        assert json.loads(body)["reason"] == "NoDocument"


def test_other_paths_and_methods_are_refused(port: int) -> None:
    with running(port):
        assert get(port, "/")[0] == 404
        assert get(port, "/metrics/../../etc/passwd")[0] == 404
        assert get(port, "/metrics", "POST")[0] == 501
        status, _, body = get(port, "/metrics", "HEAD")
        assert (status, body) == (200, b"")


def test_snapshot_that_raises_is_a_500_and_the_next_is_answered(port: int) -> None:
    reports = iter([snapshot()])

    server = Server(port, lambda: next(reports))
    server.start()
    try:
        wait_for(port)
        assert get(port, "/healthz")[0] == 200
        assert get(port, "/healthz")[0] == 500
        assert get(port, "/nothing")[0] == 404
    finally:
        server.stop()


def test_rubbish_and_silence_do_not_stop_the_server(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(port):
        with monkeypatch.context() as impatient:
            impatient.setattr(serving._Handler, "timeout", 0.5)
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(serving.MOST_REQUESTS)]
            for rubbish in (b"\x00\xff" * 50_000, b"GET /metrics HTTP/9.9\r\n\r\n", b"GET " + b"x" * 70_000):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    try:
                        client.sendall(rubbish)
                        client.recv(100)
                    except OSError:
                        pass  # turned away: all slots are taken
            wait_until(lambda: handled() == 0)  # the silent ones are given up
        assert get(port, "/healthz")[0] == 200
        for client in silent:
            client.close()


def test_only_so_many_requests_are_handled_at_a_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # None of the silent ones is given up meanwhile.
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 600.0)
    monkeypatch.setattr(serving._Handler, "timeout", 600.0)
    with running(port):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(serving.MOST_REQUESTS)]
        wait_until(lambda: handled() == serving.MOST_REQUESTS)
        with pytest.raises((http.client.HTTPException, OSError)):
            get(port, "/healthz")
        for client in silent:
            client.close()
        wait_until(lambda: handled() == 0)
        assert get(port, "/healthz")[0] == 200


def test_busy_port_is_told_once_and_taken_when_it_is_free(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []
    complain = Server._complain

    def count(self: Server, message: str) -> None:
        complain(self, message)
        tries.append(message)

    monkeypatch.setattr(Server, "_complain", count)
    monkeypatch.setattr(serving, "RETRY_SECONDS", 0.05)
    with ports.listening(port):
        server = Server(port, snapshot)
        server.start()
        wait_until(lambda: len(tries) > 3)
    try:
        wait_for(port)
        assert get(port, "/healthz")[0] == 200
    finally:
        server.stop()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"port {port}" in warnings[0]


def test_client_that_sends_a_byte_now_and_then_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(port), monkeypatch.context() as patched:
        patched.setattr(serving, "REQUEST_SECONDS", 0.5)
        # Not for being silent.
        patched.setattr(serving._Handler, "timeout", 600.0)
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                while time.monotonic() - began < PATIENCE_SECONDS:
                    client.sendall(b"x")
                    time.sleep(0.1)
                pytest.fail("it was never cut off")
        assert time.monotonic() - began > 0.5
        wait_until(lambda: handled() == 0)
        patched.undo()
        assert get(port, "/healthz")[0] == 200


# The process may open so many files and no more; a client of another process connects. How long some tries to
# accept it take is seen, which grows where the machine is slow; one that spins makes them in no time.
WITHOUT_FILES = """
import os, resource, subprocess, sys, time
from tabletune_plugin.serving import _HttpServer
from tests.plugin.test_serving import Server, get, snapshot, wait_for, wait_until
port, tries = int(sys.argv[1]), int(sys.argv[2])
accept, tried = _HttpServer.get_request, []
def count(self):
    tried.append(time.monotonic())
    return accept(self)
_HttpServer.get_request = count
server = Server(port, snapshot)
server.start()
wait_for(port)
connect = "import socket, sys, time; port = int(sys.argv[1]);"
# More than the server may have closed of earlier ones since the files were taken: those leave it a file each.
connect += "s = [socket.create_connection(('127.0.0.1', port)) for _ in range(4)];"
connect += "print('connected', flush=True); time.sleep(60)"
client = subprocess.Popen([sys.executable, "-c", connect, sys.argv[1]], stdout=subprocess.PIPE)
taken = []
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
try:
    while True:
        taken.append(os.dup(1))
except OSError:
    pass
assert client.stdout.readline() == b"connected\\n"
del tried[:]
wait_until(lambda: len(tried) > tries)
spent = tried[tries] - tried[0]
for one in taken:
    os.close(one)
client.kill()
print(spent, get(port, "/healthz")[0])
server.stop()
"""


def test_process_without_files_to_open_does_not_spin_and_recovers(port: int) -> None:
    tries = 4
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES, str(port), str(tries)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spent, status = done.stdout.split()
    assert float(spent) >= tries * serving.LOOK_UP_SECONDS
    assert status == "200"


def test_port_is_free_after_stop(port: int) -> None:
    for _ in range(3):
        with running(port):
            pass
        ports.wait_until_free(port)


def test_server_that_waits_for_a_port_ends_without_trying_again(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "RETRY_SECONDS", 600.0)
    with ports.listening(port):
        server = Server(port, snapshot)
        server.start()
        wait_until(lambda: f"port {port}" in caplog.text)
        server.stop()
        wait_until(lambda: not server._thread.is_alive())
