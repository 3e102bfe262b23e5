"""The control plane and Helm, for this folder's tests."""

from tests.charts.helms import helm
from tests.controlplane.fixtures import api, namespace, plane, programs

__all__ = ["api", "helm", "namespace", "plane", "programs"]
