"""Where each kind of object stands in the API, once: for requests, watches and roles."""

from __future__ import annotations

from dataclasses import dataclass

from tabletune.api import names


@dataclass(frozen=True)
class Kind:
    """A namespaced kind of object."""

    group: str
    version: str
    plural: str

    @property
    def prefix(self) -> str:
        """Path in front of ``/namespaces``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


KINDS = {
    names.KIND: Kind(names.GROUP, names.VERSION, names.PLURAL),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "Pod": Kind("", "v1", "pods"),
    "Event": Kind("", "v1", "events"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
    "Job": Kind("batch", "v1", "jobs"),
    "Role": Kind("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
}


def path(kind: str, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the path of an object, or of the collection; ``None`` is every namespace.

    >>> path("Job", "ml", "qwen3")
    '/apis/batch/v1/namespaces/ml/jobs/qwen3'
    """
    found = KINDS[kind]
    where = f"/namespaces/{namespace}" if namespace is not None else ""
    return "/".join(filter(None, (f"{found.prefix}{where}/{found.plural}", name, subresource)))
