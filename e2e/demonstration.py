"""`make demo-cluster`: a table from nothing, followed by two servers and corrected by live traffic.

It does what docs/guide/llm-d.md tells a user to do, on the cluster of this machine, with the scenarios' own
manifests: a demonstration of its own would drift from what is tested.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e import clusters, commands, manifests, pictures, settings
from e2e.clients import Client
from e2e.scenarios import stories
from e2e.scenarios.loads import Load
from e2e.scenarios.stories import Story
from e2e.settings import REPOSITORY, Settings
from e2e.timelines import Timeline

NAMESPACE, NAME = "demo", "smollm2"
FOLDER = REPOSITORY / "demo" / "cluster"
"""Where the documents and their pictures lie afterwards."""
COMMAND = Path(sys.executable).with_name("tabletune")
CORRECTION_SECONDS = 300.0
WARM_UP_SECONDS = 300.0
WARM_UP = 40
"""Answers after which the workload becomes another."""
SHOWN_SECONDS = 25.0
"""Time before and after the change that the picture shows at least."""


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
    _change_the_requests(story, profiled)
    story.show("get", "dt", "--namespace", NAMESPACE)
    _page(FOLDER / "profiled.json")


def _change_the_requests(story: Story, profiled: dict[str, Any]) -> None:
    """Send one workload, then another, until both servers follow a corrected table; record it."""
    wait = story.client.wait
    copying, sampling = (Load(story, NAMESPACE, workload) for workload in ("copying", "sampling"))
    timeline = Timeline(story, NAMESPACE, NAME)

    def watch(condition: Callable[[], Any]) -> Callable[[], Any]:
        def sampled() -> Any:
            timeline.sample()
            return condition()

        return sampled

    def pause(seconds: float) -> None:
        end = time.monotonic() + seconds
        wait("a while", watch(lambda: time.monotonic() > end), 10 * seconds)

    copying.start(watch)
    wait(f"{WARM_UP} answers", watch(lambda: copying.seen().get("answered", 0) >= WARM_UP), WARM_UP_SECONDS)
    pause(SHOWN_SECONDS)
    sampling.start(watch)
    timeline.mark("other requests come", ago=sampling.seen().get("seconds", 0))
    requests = {"copying": copying.stop(watch)}
    generation = wait("a corrected table", watch(lambda: _newer(story, profiled)), CORRECTION_SECONDS)
    wait("both servers to follow", watch(lambda: _followed(story, generation)))
    pause(SHOWN_SECONDS)
    requests["sampling"] = sampling.stop(watch)
    corrected = story.document(NAMESPACE, NAME)
    _keep("corrected", corrected)
    story.say(f"The operator made {profiled['table']} into {corrected['table']}, and both servers follow it.")
    record = timeline.record(corrected, requests)
    (FOLDER / "timeline.json").write_text(json.dumps(record))
    pictures.draw(record, FOLDER / "timeline")


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
    shown = FOLDER.relative_to(REPOSITORY)
    print(  # noqa: T201
        f"\n{commands.run([COMMAND, 'show', document])}"
        f"\nWhat the servers did meanwhile:  {shown}/timeline.png"
        f"\nDocuments and their pictures:    {shown}/profiled.*, corrected.*"
        "\nThe cluster goes on. Speak to it:  .venv/bin/python -m e2e kubectl describe dt -n demo"
        "\nEnd it:                            make cluster-down"
    )
