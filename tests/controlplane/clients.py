"""A small client of the real API server for tests: what a person does with kubectl, as calls.

Not the operator's own client, so that a fault of that one is seen and not shared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

Object = dict[str, Any]

PATHS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "DraftTable": ("/apis/tabletune.dev/v1alpha1", "drafttables"),
}
CLUSTER_SCOPED = {"Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


class ApiError(Exception):
    """The API server refused; ``status`` and its message."""

    def __init__(self, status: int, message: str, reason: str) -> None:
        self.status, self.message, self.reason = status, message, reason
        super().__init__(f"{status} {reason}: {message}")


class Api:
    """One identity's view of one API server."""

    def __init__(self, server: str, token: str, certificate: Path) -> None:
        self._server = server
        self._token = token
        # The server's own certificate names "localhost" in no way that a client could check by address.
        self._pool = urllib3.PoolManager(
            ca_certs=str(certificate), assert_hostname=False, maxsize=4, retries=False
        )

    def close(self) -> None:
        self._pool.clear()

    def raw(
        self, method: str, path: str, body: bytes | None = None, content: str = "", seconds: float = 60
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if content:
            headers["Content-Type"] = content
        answer = self._pool.request(
            method, self._server + path, body=body, headers=headers, timeout=urllib3.Timeout(seconds)
        )
        return answer.status, answer.data

    def call(
        self,
        method: str,
        path: str,
        body: Object | list[Any] | None = None,
        content: str = "application/json",
        **query: str,
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        target = path + (f"?{urlencode(query)}" if query else "")
        status, answer = self.raw(method, target, data, content if data is not None else "")
        found: Object = (
            json.loads(answer) if answer[:1] == b"{" else {"message": answer.decode(errors="replace")}
        )
        if status >= 400:
            raise ApiError(status, found.get("message", ""), found.get("reason", ""))
        return found

    def path(self, kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
        prefix, plural = PATHS[kind]
        where = "" if kind in CLUSTER_SCOPED or not namespace else f"/namespaces/{namespace}"
        return "/".join(filter(None, (f"{prefix}{where}/{plural}", name, subresource)))

    def create(self, body: Object, **query: str) -> Object:
        return self.call(
            "POST", self.path(body["kind"], body["metadata"].get("namespace", "")), body, **query
        )

    def apply(self, body: Object, manager: str = "tester", **query: str) -> Object:
        metadata = body["metadata"]
        path = self.path(body["kind"], metadata.get("namespace", ""), metadata["name"])
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"} | query
        return self.call("PATCH", path, body, "application/apply-patch+yaml", **query)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.call("GET", self.path(kind, namespace, name))

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        try:
            return self.get(kind, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str = "", selector: str = "") -> list[Object]:
        path = self.path(kind, namespace) + (f"?{urlencode({'labelSelector': selector})}" if selector else "")
        found: list[Object] = self.call("GET", path)["items"]
        return found

    def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        path = self.path(kind, namespace, name, subresource)
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str, policy: str = "Background") -> None:
        try:
            self.call("DELETE", self.path(kind, namespace, name), {"propagationPolicy": policy})
        except ApiError as error:
            if error.status != 404:
                raise

    def token_of(self, namespace: str, service_account: str, seconds: int = 3_600) -> str:
        body = {"spec": {"expirationSeconds": seconds}}
        path = self.path("ServiceAccount", namespace, service_account, "token")
        token: str = self.call("POST", path, body)["status"]["token"]
        return token


PATIENCE_SECONDS = 60.0
"""Most that anything is waited for, unless a test says so; a machine may pause for a while."""


def wait(
    what: str, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS, pause: float = 0.05
) -> Any:
    """Return the first true value of ``condition``; fail with its last one after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {seconds:.0f} s: {what} (last: {found!r})")
        time.sleep(pause)
