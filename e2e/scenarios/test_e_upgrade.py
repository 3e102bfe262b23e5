"""The chart is upgraded while DraftTables live. No version was released before this one: the earlier chart is
an early state of this one (tests/charts/data), with this version's operator."""

from __future__ import annotations

import pytest

from e2e.scenarios.conftest import Profiled
from e2e.scenarios.stories import CHART, HOME, INSTALL_SECONDS, RELEASE, Story
from e2e.settings import REPOSITORY, VERSION

EARLIER = REPOSITORY / "tests" / "charts" / "data" / "tabletune-0.0.1.tgz"


@pytest.mark.ci
def test_upgrade_keeps_tables(story: Story, profiled: Profiled) -> None:
    """From the earlier chart to this one: same table, same Job, no profile, and the CRD is this one's."""
    where, name = profiled.where, profiled.name
    story.namespaces.add(where)

    def is_ready() -> bool:
        return bool(story.status(where, name).get("phase") in ("Ready", "Degraded"))

    story.client.helm("uninstall", RELEASE, "--namespace", HOME, "--wait")
    # Read by now: a correction may follow the last scenario's requests.
    document = story.document(where, name)
    jobs = [job["metadata"]["uid"] for job in story.jobs(where, name)]
    limit = story.client.limit(INSTALL_SECONDS)
    options = ["--namespace", HOME, "--wait", limit]
    story.client.helm("install", RELEASE, str(EARLIER), "--set", f"image.tag={VERSION}", *options)
    assert "refreshPods" not in _serving_fields(story)
    story.client.wait("the table to be ready", is_ready)
    story.say(f"earlier chart: {story.client.helm('list', '--namespace', HOME)}")
    story.client.helm("upgrade", RELEASE, str(CHART), *options)
    assert "refreshPods" in _serving_fields(story)
    story.client.wait("the table to be ready", is_ready)
    story.say(f"this chart: {story.client.helm('list', '--namespace', HOME)}")
    assert story.document(where, name) == document
    assert [job["metadata"]["uid"] for job in story.jobs(where, name)] == jobs
    story.say(story.client.helm("test", RELEASE, "--namespace", HOME, limit))


def _serving_fields(story: Story) -> set[str]:
    definition = story.client.get("customresourcedefinition", "", "drafttables.tabletune.dev")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"]["serving"]["properties"])
