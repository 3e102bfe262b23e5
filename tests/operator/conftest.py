"""The control plane, and the operator's parts on it."""

import pytest

from tests.controlplane.clients import Api
from tests.controlplane.fixtures import api, namespace, plane, programs
from tests.controlplane.planes import Plane
from tests.operator.harness import Harness

__all__ = ["api", "harness", "namespace", "plane", "programs"]


@pytest.fixture
def harness(plane: Plane, api: Api) -> Harness:
    """An operator that looks when the test says so."""
    return Harness(plane, api)
