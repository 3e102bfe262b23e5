"""The control plane, and the operator's parts on it."""

from tests.controlplane.fixtures import api, namespace, plane, programs

__all__ = ["api", "namespace", "plane", "programs"]
