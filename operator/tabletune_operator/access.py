"""What the profiling pod may do: read and patch one ConfigMap, its report. Nothing else.

A pod that runs model code from the internet gets as little as it needs: were its service account the
operator's, or the namespace's default one, whoever takes over the engine could write any table, or any
ConfigMap.
"""

from __future__ import annotations

from typing import Any

from tabletune_operator import jobs
from tabletune_operator.owners import Owner

RBAC = "rbac.authorization.k8s.io"


def objects(owner: Owner, report: str) -> list[dict[str, Any]]:
    """Return service account, role and binding; ``report`` is the ConfigMap that they are for."""
    name = jobs.service_account(owner)
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": owner.metadata(name),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": owner.metadata(name),
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": [report],
                    "verbs": ["get", "patch"],
                }
            ],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": owner.metadata(name),
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
        },
    ]
