"""`make demo-cluster`: a table from nothing, followed by two servers and corrected by live traffic.

It does what docs/guide/llm-d.md tells a user to do, on the cluster of this machine, with the scenarios' own
manifests: a demonstration of its own would drift from what is tested.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from e2e import clusters, commands, manifests, settings
from e2e.clients import Client
from e2e.scenarios import stories
from e2e.scenarios.loads import Load
from e2e.scenarios.stories import Story
from e2e.settings import REPOSITORY, Settings

NAMESPACE, NAME = "demo", "smollm2"
FOLDER = REPOSITORY / "demo" / "cluster"
"""Where the documents and their pictures lie afterwards."""
COMMAND = Path(sys.executable).with_name("tabletune")
CORRECTION_SECONDS = 300.0
FOLLOW_SECONDS = 60.0
WARM_UP_SECONDS = 300.0
WARM_UP = 40
"""Answers after which the workload becomes another."""


def run(chosen: Settings, provider: clusters.Provider) -> None:
    """Run the demonstration; raises CommandError, or an AssertionError that says what did not come."""
    client = Client(chosen, provider)
    story = Story(chosen, client, "demo", namespaces={NAMESPACE})
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        _tell(story, chosen)
    except AssertionError:
        story.explain()
        raise


def _tell(story: Story, chosen: Settings) -> None:
    client = story.client
    client.delete("namespace", "", NAMESPACE)
    client.delete("persistentvolume", "", f"{NAMESPACE}-engine")
    story.say("1. The operator, by its chart")
    stories.install(client)

    story.say("2. A DraftTable: a Job profiles real vLLM on the node of pool-1")
    table = manifests.draft_table(chosen, NAME, NAMESPACE, settings.POOLS[0])
    client.apply(*manifests.surroundings(chosen, NAMESPACE))
    client.apply(table)
    story.follow(NAMESPACE, NAME, 1)
    story.show("get", "dt", "--namespace", NAMESPACE)
    profiled = story.document(NAMESPACE, NAME)
    _keep("profiled", profiled)

    story.say("3. Two servers with the component of config/llm-d follow it")
    story.serve(table, FOLDER / "servers")

    story.say("4. Requests whose text repeats itself, as in the profile; then others at random")
    copying, sampling = (Load(story, NAMESPACE, workload) for workload in ("copying", "sampling"))
    copying.start()
    client.wait(f"{WARM_UP} answers", lambda: copying.seen().get("answered", 0) >= WARM_UP, WARM_UP_SECONDS)
    sampling.start()
    copying.stop()
    generation = client.wait("a corrected table", lambda: _newer(story, profiled), CORRECTION_SECONDS)
    client.wait("both servers to follow", lambda: _followed(story, generation), FOLLOW_SECONDS)
    sampling.stop()
    corrected = story.document(NAMESPACE, NAME)
    _keep("corrected", corrected)
    story.say(f"The operator made {profiled['table']} into {corrected['table']}, and both servers follow it.")
    story.show("get", "dt", "--namespace", NAMESPACE)
    _page(FOLDER / "profiled.json")


def _newer(story: Story, profiled: dict[str, Any]) -> int:
    generation = int(story.status(NAMESPACE, NAME).get("generation") or 0)
    return generation if generation > profiled["generation"] else 0


def _followed(story: Story, generation: int) -> bool:
    followed = story.generations(NAMESPACE).values()
    return len(followed) == 2 and min(followed) >= generation


def _keep(name: str, document: dict[str, Any]) -> None:
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(document))
    commands.run([COMMAND, "plot", path, "--output-dir", FOLDER])


def _page(document: Path) -> None:
    print(  # noqa: T201
        f"\n{commands.run([COMMAND, 'show', document])}"
        f"\nDocuments and their pictures: {FOLDER.relative_to(REPOSITORY)}/profiled.*, corrected.*"
        "\nThe cluster goes on. Speak to it:  .venv/bin/python -m e2e kubectl describe dt -n demo"
        "\nEnd it:                            make cluster-down"
    )
