"""``make demo-cluster``: from nothing to a served and corrected table, on real nodes, in some minutes.

The same steps as scenarios a and b, told for a person who looks on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from e2e import clusters, commands, manifests, settings
from e2e.clients import Client
from e2e.scenarios.loads import Load
from e2e.scenarios.stories import CHART, HOME, RELEASE, Story
from e2e.settings import REPOSITORY, Settings

WHERE, NAME = "demo", "smollm2"
LENGTHS = (0, 1, 2, 3)
FOLDER = REPOSITORY / "demo" / "cluster"
CORRECTION_SECONDS = 300.0
ANSWERS = 60


def run(chosen: Settings, provider: clusters.Provider) -> None:
    """Run the demonstration on a cluster that is up."""
    client = Client(chosen, provider)
    story = Story(chosen, client, "demo", namespaces={WHERE})
    story.say("Installing the chart")
    client.apply(manifests.namespace(HOME))
    client.helm("upgrade", "--install", RELEASE, str(CHART), "--namespace", HOME, "--wait", "--timeout=2m")
    story.await_operator()

    story.say("A DraftTable for pool 1: its Job measures vLLM on that node")
    client.delete("drafttable", WHERE, NAME)
    table = manifests.draft_table(chosen, NAME, WHERE, settings.POOLS[0], LENGTHS)
    client.apply(*manifests.surroundings(chosen, WHERE))
    client.apply(table)
    story.follow(WHERE, NAME, 1)
    story.show("get", "drafttable", NAME, "--namespace", WHERE)
    _show(story, "profiled.json")

    story.say("Two servers with the component of config/llm-d; they start for a minute or two")
    story.serve(table, FOLDER / "overlay")
    story.show("get", "drafttable,pods", "--namespace", WHERE)

    story.say("Traffic as it was profiled, and then another kind: the operator corrects the table")
    generation = int(story.status(WHERE, NAME)["generation"])
    copying, sampling = Load(story, WHERE, "copying"), Load(story, WHERE, "sampling")
    copying.start()
    client.wait("answers", lambda: copying.seen().get("answered", 0) >= ANSWERS, 300)
    sampling.start()
    copying.stop()
    client.wait(
        "a corrected table",
        lambda: int(story.status(WHERE, NAME).get("generation") or 0) > generation,
        CORRECTION_SECONDS,
    )
    sampling.stop()
    story.show("get", "drafttable", NAME, "--namespace", WHERE)
    story.show("events", "--for", f"drafttable/{NAME}", "--namespace", WHERE)
    picture = _show(story, "corrected.json")
    story.say(
        f"\nThe document: {FOLDER / 'corrected.json'}\nThe picture:  {picture}\n"
        f"The overlay:  {FOLDER / 'overlay'}\n"
        "Go on:        .venv/bin/python -m e2e kubectl describe drafttable smollm2 --namespace demo\n"
        "At the end:   make cluster-down"
    )


def _show(story: Story, name: str) -> Path:
    """Write the document in force, print its table and draw its picture; return the picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / name
    file.write_text(json.dumps(story.document(WHERE, NAME)))
    command = str(Path(sys.executable).with_name("tabletune"))
    story.say(commands.run([command, "show", file]))
    commands.run([command, "plot", file, "--output-dir", FOLDER])
    return file.with_suffix(".png")
