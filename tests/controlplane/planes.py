"""A real etcd and Kubernetes control plane, on loopback, in seconds.

The tests marked `cluster` share one for the whole run; those that restart or freeze the API server start
their own. No kubelet runs: pods are scheduled for real, and the test plays the node that would run them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.clients import Api

BUILDING = Path(__file__).parents[2] / "tools" / "controlplane" / "building.py"
START_SECONDS = 180.0
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
COMMON = ("etcd", "kube-apiserver")


class PlaneError(RuntimeError):
    """A program did not start; its last lines are in the message."""


def build() -> dict[str, Path]:
    """Return the programs' paths, built first where they are missing."""
    done = subprocess.run([sys.executable, BUILDING], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlaneError(done.stderr[-4_000:])
    return {Path(line).name: Path(line) for line in done.stdout.split()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Plane:
    """One control plane with its own folder; a context manager."""

    def __init__(
        self,
        programs: dict[str, Path],
        controllers: Sequence[str] = CONTROLLERS,
        options: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """``options`` are further arguments by program."""
        self._programs, self._controllers, self._options = programs, controllers, options or {}
        self.folder = Path(tempfile.mkdtemp(prefix="tabletune-plane-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: free_port() for name in ("etcd", "peer", "api", "manager", "scheduler")}
        self.token = secrets.token_hex(16)

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    @property
    def admin(self) -> Api:
        return Api(self.server, self.token, self.certificate)

    def as_token(self, token: str) -> Api:
        return Api(self.server, token, self.certificate)

    def kubeconfig(self, token: str | None = None, name: str = "admin") -> Path:
        """Write a kubeconfig for ``token`` (the administrator's by default), and return its path."""
        path = self.folder / f"{name}.kubeconfig"
        user = {"token": token or self.token}
        cluster = {"server": self.server, "certificate-authority": str(self.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": cluster}],
            "users": [{"name": "plane", "user": user}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "plane"}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def __enter__(self) -> Plane:
        try:
            self._prepare()
            self._start_etcd()
            self.start_api_server()
            for name in self._controllers:
                self._start_controller(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything, the controllers first, and remove the folder."""
        for name in reversed(list(self._processes)):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_api_server(self) -> None:
        key = self.folder / "service-account.key"
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--cert-dir={self.folder / 'certs'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--allow-privileged=true",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--v=0",
        )
        self._wait("kube-apiserver", self._api_is_ready)

    def stop_api_server(self, *, crash: bool = False) -> None:
        """End the API server: watches are cut, requests refused."""
        self._end("kube-apiserver", crash=crash)

    def restart_api_server(self) -> None:
        self.stop_api_server()
        self.start_api_server()

    def restart_controllers(self) -> None:
        """Have the controllers begin anew: after an outage they would take minutes to."""
        for name in self._controllers:
            self._end(name)
            self._start_controller(name)

    @contextlib.contextmanager
    def frozen_api_server(self) -> Iterator[None]:
        """Stop the API server from running: connections stay open and nothing answers."""
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def compact(self) -> None:
        """Throw away etcd's past, so that a watch from an older version gets 410 Gone."""
        revision = self._etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def erase(self, kind: str, namespace: str, name: str) -> None:
        """Take an object out of etcd behind the API server's back: no watch ever tells of it."""
        key = base64.b64encode(f"/registry/{kind}/{namespace}/{name}".encode()).decode()
        if self._etcd("/v3/kv/deleterange", {"key": key}).get("deleted") != "1":
            raise PlaneError(f"There is no {kind} {namespace}/{name} in etcd.")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _prepare(self) -> None:
        (self.folder / "certs").mkdir()
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "service-account.key"), "2048"],
            check=True,
            capture_output=True,
        )

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._ports['etcd']}", f"http://127.0.0.1:{self._ports['peer']}"
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=error",
            "--quota-backend-bytes=4294967296",
        )
        self._wait("etcd", self._etcd_is_ready)

    def _start_controller(self, name: str) -> None:
        extra: tuple[str, ...] = ()
        if name == "kube-controller-manager":
            extra = (
                "--use-service-account-credentials",
                f"--service-account-private-key-file={self.folder / 'service-account.key'}",
                f"--root-ca-file={self.certificate}",
                f"--secure-port={self._ports['manager']}",
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
                "--concurrent-gc-syncs=20",
            )
        else:
            extra = (
                f"--secure-port={self._ports['scheduler']}",
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
            )
        config = str(self.kubeconfig())
        self._run(
            name,
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / name}",
            *extra,
        )

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._programs[name], *arguments, *self._options.get(name, ())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "GOMAXPROCS": "2"},
                cwd=self.folder,
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._processes[name].poll() is not None:
                break
            if ready():
                return
            time.sleep(0.05)
        raise PlaneError(f"{name} did not start:\n{self.log(name)[-3_000:]}")

    def _end(self, name: str, *, crash: bool = False) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        # The API server would take its time for open watches; nothing here needs that.
        process.send_signal(signal.SIGKILL if crash or name != "etcd" else signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def _api_is_ready(self) -> bool:
        if not self.certificate.exists():
            return False
        with contextlib.suppress(Exception):
            return self.admin.raw("GET", "/readyz") == (200, b"ok")
        return False

    def _etcd_is_ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(self._etcd("/v3/maintenance/status", {}))
        return False

    def _etcd(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports['etcd']}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content
