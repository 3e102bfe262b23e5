"""What every test gets: a strict suite, a clean environment, and the small model for those that need it.

A test that leaves a thread behind, warns, or hangs fails by itself, so that it cannot spoil another one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Another test's engine, or another user of the machine, may make any example slow; the time limits below find
# what hangs.
hypothesis.settings.register_profile(
    "busy-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy-machine")

# Set before any test module is imported, since libraries read these on import. What a developer or an image
# set for itself goes: TableTune's own variables, and an unbuffered output, which hides a lost last write.
for name in [name for name in os.environ if name.startswith("TABLETUNE_") or name == "PYTHONUNBUFFERED"]:
    del os.environ[name]
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", MPLBACKEND="Agg")

MODEL_FOLDER = Path(__file__).parents[1] / ".cache" / "models" / "SmolLM2-135M-Instruct"

# These find what hangs; no test fails for being slow. Helpers that wait for something give up before, and say
# what it was.
FAST_TEST_SECONDS = 180
CLUSTER_TEST_SECONDS = 600
ENGINE_TEST_SECONDS = 1_200
THREAD_GRACE_SECONDS = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that need a cluster or the real engine last, and give every test a time limit."""
    seconds = {"engine": ENGINE_TEST_SECONDS, "cluster": CLUSTER_TEST_SECONDS}

    def order(item: pytest.Item) -> int:
        return 2 if item.get_closest_marker("engine") else 1 if item.get_closest_marker("cluster") else 0

    items.sort(key=order)
    for item in items:
        if item.get_closest_marker("timeout") is None:
            limits = [limit for name, limit in seconds.items() if item.get_closest_marker(name)]
            item.add_marker(pytest.mark.timeout(max(limits, default=FAST_TEST_SECONDS)))


@pytest.fixture(autouse=True)
def no_leftover_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a fast test that leaves a thread running; an engine in this process keeps its own."""
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker("engine"):
        return
    deadline = time.monotonic() + THREAD_GRACE_SECONDS
    while leftover := set(threading.enumerate()) - before:
        if time.monotonic() > deadline:
            pytest.fail(f"The test left threads running: {sorted(thread.name for thread in leftover)}")
        time.sleep(0.01)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The bundled small model, as a folder that vLLM loads."""
    if not (MODEL_FOLDER / "config.json").exists():
        pytest.fail(f"The model is not in {MODEL_FOLDER}. Run `make model`; `make test` does it itself.")
    return MODEL_FOLDER
