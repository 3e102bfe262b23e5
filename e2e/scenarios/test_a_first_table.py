"""From nothing to a table: the chart, a DraftTable, a real engine on the pool's node, a ConfigMap."""

from __future__ import annotations

import json
import re

import pytest

from e2e import settings
from e2e.scenarios.conftest import Profiled
from e2e.scenarios.stories import HOME, INSTALL_SECONDS, RELEASE, STEPS, Story


@pytest.mark.ci
def test_release_passes_its_own_test(story: Story) -> None:
    """`helm test` finds the operator ready, through its Service's name."""
    limit = story.client.limit(INSTALL_SECONDS)
    story.say(story.client.helm("test", RELEASE, "--namespace", HOME, "--logs", limit))


@pytest.mark.ci
def test_draft_table_is_profiled_on_its_pool(story: Story, profiled: Profiled) -> None:
    """The Job runs real vLLM on the pool's node and nowhere else, and the table is in the ConfigMap."""
    where, name = profiled.where, profiled.name
    story.namespaces.add(where)
    assert profiled.nodes == {settings.POOLS[0]}
    assert [phase for phase, _ in profiled.phases][-1] == "Ready"
    # Not one step of them: of several within a second only the last is told.
    assert any(phase == "Profiling" and step in STEPS for phase, step in profiled.phases)

    data = story.client.get("configmap", where, name)["data"]
    assert set(data) == {"table.json", "speculative-config.json", "vllm-args.yaml"}
    document = json.loads(data["table.json"])
    story.say(f"table {document['table']} by {document['fingerprint']['vllm']}")
    assert document["generation"] == 1
    assert document["source"] == "profile"
    assert document["table"][0][0] == 1
    assert document["fingerprint"]["model"] == profiled.table["spec"]["model"]["name"]

    (job,) = story.jobs(where, name)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"][settings.GPU] == "1"

    columns = story.show("get", "dt", "--namespace", where).splitlines()
    assert columns[0].split() == ["NAME", "PHASE", "PROGRESS", "GENERATION", "GAIN", "PODS", "AGE"]
    assert re.match(rf"{name} +Ready +1 +[+-]\d+\.\d%", columns[1])
    events = story.show("events", "--for", f"drafttable/{name}", "--namespace", where)
    assert "ProfileRunning" in events
