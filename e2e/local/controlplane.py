"""etcd, the API server, its controllers, the scheduler, kube-proxy and CoreDNS of a local cluster."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e import commands, settings
from e2e.local import networks
from e2e.local.daemons import Daemon

SERVER = f"https://{networks.API_ADDRESS}:443"
ETCD = "http://127.0.0.1:2379"
ADMIN = "admin"
MONITOR_SECONDS = 16
"""Time without a word from a kubelet after which its node is not ready: 50 s by default, which is long in a
scenario."""
TOLERATION_SECONDS = 15
"""Time after which pods of such a node are evicted: 300 s by default."""
_USERS = {
    ADMIN: (ADMIN, "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", "system:masters"),
    **{node: (f"system:node:{node}", "system:nodes") for node in settings.POOLS},
}
"""User and group of each program, which Kubernetes' own roles name, and of the administrator."""


@dataclass(frozen=True)
class ControlPlane:
    """The control plane in a state folder; starting what runs already does nothing."""

    state: Path
    logs: Path
    programs: dict[str, Path]

    def start(self) -> None:
        """Start what does not run, in order, and wait for each to be ready."""
        self._prepare()
        self._start_etcd()
        self.start_api_server()
        for name, port, arguments in (
            ("kube-controller-manager", 10257, self._controller_arguments()),
            ("kube-scheduler", 10259, ()),
        ):
            self._start_controller(name, port, arguments)
        self._start_dns()

    def stop(self) -> None:
        """End everything, the API server's clients first."""
        for name in (
            "coredns",
            "kube-proxy",
            "kube-scheduler",
            "kube-controller-manager",
            "kube-apiserver",
            "etcd",
        ):
            self.daemon(name).stop(at_once=name != "etcd")

    def forget(self) -> None:
        """Remove all that it keeps."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def daemon(self, name: str) -> Daemon:
        """Return one of the programs."""
        return Daemon(name, self._folder, self.logs)

    def start_api_server(self) -> None:
        """Start the API server and wait until it answers."""
        key = self._folder / "service-account.key"
        seconds = TOLERATION_SECONDS
        self.daemon("kube-apiserver").start(
            [
                self.programs["kube-apiserver"],
                f"--etcd-servers={ETCD}",
                f"--bind-address={networks.API_ADDRESS}",
                f"--advertise-address={networks.API_ADDRESS}",
                "--secure-port=443",
                f"--cert-dir={self._folder / 'certificates'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                f"--token-auth-file={self._folder / 'tokens.csv'}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                f"--service-cluster-ip-range={networks.SERVICE_RANGE}",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                f"--default-not-ready-toleration-seconds={seconds}",
                f"--default-unreachable-toleration-seconds={seconds}",
            ],
            self._api_is_ready,
        )

    def start_proxy(self) -> None:
        """Start kube-proxy, which waits for its node, and wait until services have their rules."""
        config = self.write_kubeconfig(self._folder / "kube-proxy.kubeconfig", "kube-proxy")
        self.daemon("kube-proxy").start(
            [
                self.programs["kube-proxy"],
                f"--kubeconfig={config}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={networks.POD_RANGE}",
                # One proxy for all nodes, since they share the namespace.
                f"--hostname-override={settings.POOLS[0]}",
                "--bind-address=127.0.0.1",
                # Limits of connection tracking are the machine's and not a namespace's.
                "--conntrack-max-per-core=0",
                "--conntrack-min=0",
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
            ],
            lambda: _answers("http://127.0.0.1:10249/healthz"),
        )

    def stop_api_server(self) -> None:
        """End the API server: watches are cut, requests refused."""
        self.daemon("kube-apiserver").stop(at_once=True)

    def write_kubeconfig(self, path: Path, user: str = ADMIN) -> Path:
        """Write the kubeconfig of ``user`` to ``path``, readable by root only."""
        cluster = {"server": SERVER, "certificate-authority": str(self._certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tabletune-e2e",
            "clusters": [{"name": "tabletune-e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._token(user)}}],
            "contexts": [{"name": "tabletune-e2e", "context": {"cluster": "tabletune-e2e", "user": user}}],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content))
        return path

    @property
    def _folder(self) -> Path:
        return self.state / "controlplane"

    @property
    def _certificate(self) -> Path:
        return self._folder / "certificates" / "apiserver.crt"

    def _prepare(self) -> None:
        (self._folder / "certificates").mkdir(parents=True, exist_ok=True)
        tokens = self._folder / "tokens.csv"
        if not tokens.exists():
            lines = [
                f'{secrets.token_hex(16)},{user},{name},"{group}"' for name, (user, group) in _USERS.items()
            ]
            fresh = tokens.with_suffix(".new")
            fresh.touch(mode=0o600)
            fresh.write_text("\n".join(lines) + "\n")
            fresh.rename(tokens)
        key = self._folder / "service-account.key"
        if not key.exists():
            fresh = key.with_suffix(".new")
            commands.run(["openssl", "genrsa", "-out", fresh, "2048"])
            fresh.rename(key)

    def _token(self, name: str) -> str:
        lines = (self._folder / "tokens.csv").read_text().splitlines()
        return next(token for token, _, uid, _ in (line.split(",") for line in lines) if uid == name)

    def _start_etcd(self) -> None:
        peer = "http://127.0.0.1:2380"
        self.daemon("etcd").start(
            [
                self.programs["etcd"],
                f"--data-dir={self._folder / 'etcd'}",
                "--unsafe-no-fsync",
                f"--listen-client-urls={ETCD}",
                f"--advertise-client-urls={ETCD}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--log-level=error",
            ],
            lambda: _answers(f"{ETCD}/health"),
        )

    def _controller_arguments(self) -> Sequence[str]:
        return (
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._folder / 'service-account.key'}",
            f"--root-ca-file={self._certificate}",
            f"--node-monitor-grace-period={MONITOR_SECONDS}s",
            "--node-monitor-period=2s",
        )

    def _start_controller(self, name: str, port: int, arguments: Sequence[str]) -> None:
        config = self.write_kubeconfig(self._folder / f"{name}.kubeconfig", name)
        self.daemon(name).start(
            [
                self.programs[name],
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self._folder / 'certificates' / name}",
                *arguments,
            ],
            lambda: _answers(f"https://127.0.0.1:{port}/healthz"),
        )

    def _start_dns(self) -> None:
        config = self.write_kubeconfig(self._folder / "coredns.kubeconfig", "coredns")
        corefile = self._folder / "Corefile"
        corefile.write_text(
            f".:53 {{\n  bind {networks.DNS_ADDRESS}\n  errors\n  ready 127.0.0.1:8181\n"
            f"  kubernetes {networks.DOMAIN} {{\n    kubeconfig {config}\n  }}\n}}\n"
        )
        self.daemon("coredns").start(
            [self.programs["coredns"], "-conf", corefile], lambda: _answers("http://127.0.0.1:8181/ready")
        )

    def _api_is_ready(self) -> bool:
        return self._certificate.exists() and _answers(f"{SERVER}/readyz", self._token(ADMIN))


def _answers(url: str, token: str = "") -> bool:
    """Whether ``url`` answers well, asked from within the cluster's network namespace."""
    header = f'header = "Authorization: Bearer {token}"'
    with contextlib.suppress(commands.CommandError):
        # The token goes by standard input, since arguments are for all to see.
        commands.run(
            [*networks.inside(), "curl", "-sfk", "--max-time", "3", "--config", "-", url], input=header
        )
        return True
    return False
