"""Reports a profile from inside its Job: progress and the document into one ConfigMap of the cluster.

``tabletune report`` runs it around the profiler. The pod's service account may get and patch that one
ConfigMap and nothing else; the operator reads it, checks what is in it and puts it in force. Only the
standard library speaks to the API server here, since this runs in the user's vLLM image.

A progress that cannot be sent is no reason to end a measurement: it is told once, and the next one tries
again. The document is what the Job is for: it is tried until it is there, or for :data:`PATIENCE_SECONDS`.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tabletune import documents, rendering
from tabletune.api import names
from tabletune_profiler.exit_codes import InputError, OutputError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS_BETWEEN = 5.0
"""Least time between two reports of progress: each is a write to etcd."""
REQUEST_SECONDS = 10.0
PATIENCE_SECONDS = 600.0
"""Longest that the document is tried to be sent; an API server may be away for minutes."""
RETRY_SECONDS = 5.0

PROGRESS_EVENTS = frozenset({"phase", "progress"})
"""Events of the profiler that are progress (docs/reference/cli.md)."""


class Cluster:
    """The one ConfigMap, by the pod's service account."""

    def __init__(
        self,
        config_map: str,
        environment: Mapping[str, str] = os.environ,
        folder: Path = SERVICE_ACCOUNT,
    ) -> None:
        """Raises :class:`~exit_codes.InputError` where this is no pod."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host or not (folder / "token").exists():
            raise InputError(
                "`tabletune report` reports to the cluster that it runs in, and this is no pod with a service"
                f" account (KUBERNETES_SERVICE_HOST, {folder}). Use `tabletune profile` here."
            )
        self._host, self._port = host, int(environment.get("KUBERNETES_SERVICE_PORT", "443"))
        self._folder = folder
        namespace = (folder / "namespace").read_text().strip()
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{config_map}"
        self._context = ssl.create_default_context(cafile=str(folder / "ca.crt"))

    def patch(self, data: Mapping[str, str]) -> None:
        """Set keys of the ConfigMap; raises ``OSError`` where that failed, with the API server's words."""
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=REQUEST_SECONDS, context=self._context
        )
        try:
            # Read anew each time: the kubelet rotates it.
            token = (self._folder / "token").read_text().strip()
            headers = {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
                "Accept": "application/json",
            }
            connection.request("PATCH", self._path, json.dumps({"data": dict(data)}).encode(), headers)
            answer = connection.getresponse()
            body = answer.read(4_096)
        except http.client.HTTPException as error:
            raise OSError(f"the API server's answer is none: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise OSError(f"{answer.status} {answer.reason}: {_message(body)}")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError):
        return body[:200].decode(errors="replace")


class Reporter:
    """Sends what the profiler says, as it says it."""

    def __init__(
        self,
        patch: Callable[[Mapping[str, str]], None],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patch, self._warn, self._clock, self._sleep = patch, warn, clock, sleep
        self._sent = -SECONDS_BETWEEN
        self._complained = False

    def line(self, line: str) -> None:
        """Take a line of the profiler's standard error; what is no progress is passed over."""
        progress = progress_of(line)
        now = self._clock()
        begins = progress.get("event") == "phase"
        if not progress or (now - self._sent < SECONDS_BETWEEN and not begins):
            return
        self._sent = now
        try:
            self._patch({names.PROGRESS_KEY: json.dumps(progress)})
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._warn(f"Progress cannot be reported: {error}. The profile goes on.")
            self._complained = True

    def document(self, path: Path) -> None:
        """Send the document at ``path``.

        Raises :class:`~exit_codes.InputError` where it is none, and :class:`~exit_codes.OutputError` where it
        could not be sent.
        """
        try:
            data = path.read_bytes()
            documents.parse(data)
        except (OSError, documents.DocumentError) as error:
            raise InputError(f"{path} holds no table document: {error}") from error
        deadline = self._clock() + PATIENCE_SECONDS
        while True:
            try:
                self._patch({rendering.DOCUMENT_FILE: data.decode()})
            except OSError as error:
                if self._clock() >= deadline:
                    raise OutputError(f"The document could not be reported: {error}") from error
                self._warn(f"The document cannot be reported yet: {error}. It is tried again.")
                self._sleep(RETRY_SECONDS)
            else:
                return


def progress_of(line: str) -> dict[str, Any]:
    """Return the progress in a line of the profiler; empty for any other line."""
    if not line.startswith("{"):
        return {}
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    told = isinstance(content, dict) and str(content.get("event")) in PROGRESS_EVENTS
    return content if told else {}
