"""The control plane, for this folder's tests."""

from tests.controlplane.fixtures import api, namespace, plane, programs

__all__ = ["api", "namespace", "plane", "programs"]
