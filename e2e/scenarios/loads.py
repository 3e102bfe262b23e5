"""Load on the servers, from a pod in the cluster (`load.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import commands, manifests
from e2e.clients import Object
from e2e.scenarios.stories import Story

SCRIPT = Path(__file__).with_name("load.py")
STOP_SECONDS = 180.0
Condition = Callable[[], Any]
Watch = Callable[[Condition], Condition]
"""Makes a condition look at something else too each time that it is asked."""


def _unwatched(condition: Condition) -> Condition:
    return condition


@dataclass(frozen=True)
class Load:
    """One workload, sent through the servers' Service."""

    story: Story
    where: str
    workload: str

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return f"load-{self.workload}"

    def start(self, watch: Watch = _unwatched) -> None:
        """Start it, and wait until a request was answered."""
        server = f"http://decode.{self.where}.svc:{manifests.API_PORT}"
        self.story.client.delete("pod", self.where, self.name)
        # What the profile's prompts are: as long as they come, nothing is to be corrected.
        arguments = [server, self.workload, json.dumps(manifests.PROMPT_TEXTS)]
        self.story.client.apply(*manifests.script(self.name, self.where, SCRIPT.read_text(), arguments))
        self.story.client.wait(f"an answer to {self.workload}", watch(lambda: self.seen().get("answered")))
        self.story.say(f"load: {self.workload}")

    def seen(self) -> Object:
        """Return what it counted so far, empty before it counted."""
        with suppress(commands.CommandError, json.JSONDecodeError, IndexError):
            lines = self.story.client.kubectl("logs", self.name, "--namespace", self.where, "--tail=1")
            found: Object = json.loads(lines.splitlines()[-1])
            return found
        return {}

    def answered(self) -> int:
        """Return how many requests were answered so far."""
        return int(self.story.client.wait(f"word of {self.workload}", self.seen)["answered"])

    def stop(self, watch: Watch = _unwatched) -> Object:
        """Let its last requests finish; return what it counted."""
        code = "open('/tmp/stop', 'w').close()"
        self.story.client.kubectl("exec", self.name, "--namespace", self.where, "--", "python3", "-c", code)
        whole: Object = self.story.client.wait(
            f"the last answers to {self.workload}",
            watch(lambda: seen if (seen := self.seen()).get("whole") else {}),
            STOP_SECONDS,
        )
        self.story.say(
            f"load: {self.workload}: {whole['answered']} answered, {whole['failed']} failed,"
            f" {whole['tokens']} tokens in {whole['seconds']} s {whole['error']}"
        )
        self.story.client.delete("pod", self.where, self.name)
        return whole
