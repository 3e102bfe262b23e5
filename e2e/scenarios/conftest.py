"""What scenarios share: the cluster, the release, and a table that is profiled once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import clusters, manifests, settings
from e2e.clients import Client, Object
from e2e.scenarios.stories import Story, install
from e2e.settings import Settings

SCENARIO_SECONDS = 1_800
"""Time limit of one that hangs; what it waits for has limits of its own."""
NAMESPACES = ("pool-one", "gitops", "faults")
"""Namespaces that scenarios make; what an earlier run left of them is removed first."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "e2e: needs a cluster, which `make cluster-up` brings up")
    config.addinivalue_line("markers", "ci: part of `make e2e-ci`, which takes a few minutes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every scenario, and give it a time limit."""
    for item in items:
        item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SCENARIO_SECONDS * settings.read().seconds))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Let fixtures know whether the scenario failed."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        item.stash[FAILED] = True


FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def chosen() -> Settings:
    """Return the settings of the run."""
    return settings.read()


@pytest.fixture(scope="session")
def provider(chosen: Settings) -> clusters.Provider:
    """Return what made the cluster."""
    found = clusters.provider(chosen, lambda _: None)
    if not found.is_up():
        pytest.exit("The cluster is not up: run `make cluster-up` first.", returncode=2)
    return found


@pytest.fixture(scope="session")
def client(chosen: Settings, provider: clusters.Provider) -> Client:
    """Return kubectl and Helm, the leftovers of an earlier run removed."""
    found = Client(chosen, provider)
    for name in NAMESPACES:
        found.delete("namespace", "", name)
        found.delete("persistentvolume", "", f"{name}-engine")
    return found


@pytest.fixture(scope="session")
def release(client: Client) -> Client:
    """Install the chart as its users do; return the client."""
    install(client)
    return client


@pytest.fixture
def story(request: pytest.FixtureRequest, chosen: Settings, release: Client) -> Iterator[Story]:
    """Yield the scenario's story; what explains a failure is kept."""
    story = Story(chosen, release, request.node.name)
    print(f"\n== {request.node.name}: {(request.node.function.__doc__ or '').splitlines()[0]}")  # noqa: T201
    yield story
    if request.node.stash.get(FAILED, False):
        with contextlib.suppress(Exception):
            story.explain()


@dataclass(frozen=True)
class Profiled:
    """A table that was profiled on pool 1, and what was seen meanwhile."""

    table: Object
    phases: tuple[tuple[str, str], ...]
    nodes: frozenset[str]

    @property
    def where(self) -> str:
        """Return its namespace."""
        return str(self.table["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.table["metadata"]["name"])


@pytest.fixture(scope="session")
def profiled(chosen: Settings, release: Client) -> Profiled:
    """Profile a table on pool 1, once for all scenarios that need one."""
    client, where, name = release, NAMESPACES[0], "smollm2"
    table = manifests.draft_table(chosen, name, where, settings.POOLS[0])
    story = Story(chosen, client, "profiled", namespaces={where})
    client.apply(*manifests.surroundings(chosen, where))
    client.apply(table)
    try:
        phases = story.follow(where, name, 1)
    except AssertionError:
        story.explain()
        raise
    pods = client.objects("pods", where, f"tabletune.dev/draft-table={name}")
    return Profiled(table, tuple(phases), frozenset(pod["spec"].get("nodeName", "") for pod in pods))


@pytest.fixture(scope="session")
def serving(
    chosen: Settings, release: Client, profiled: Profiled, tmp_path_factory: pytest.TempPathFactory
) -> Profiled:
    """Serve with that table: two replicas, by the component of config/llm-d, until the run ends."""
    story = Story(chosen, release, "serving", namespaces={profiled.where})
    try:
        story.serve(profiled.table, tmp_path_factory.mktemp("servers"))
    except AssertionError:
        story.explain()
        raise
    return profiled
