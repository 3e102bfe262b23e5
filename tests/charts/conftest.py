"""The control plane and Helm, for this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.charts.helms import helm
from tests.controlplane.clients import Api
from tests.controlplane.fixtures import api, namespace, plane, programs
from tests.controlplane.planes import Plane

__all__ = ["api", "helm", "namespace", "plane", "programs"]


@pytest.fixture
def bare(programs: dict[str, Path]) -> Iterator[Plane]:
    """A control plane of the test's own that knows nothing of TableTune."""
    with Plane(programs) as plane:
        yield plane


@pytest.fixture
def bare_api(bare: Plane) -> Iterator[Api]:
    """The administrator of the bare one."""
    api = bare.admin
    yield api
    api.close()
