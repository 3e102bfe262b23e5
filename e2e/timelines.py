"""What two servers drafted and kept while the demonstration's workload changed, and when the operator acted.

The demonstration samples the plugins' metrics as it waits; the record is what its picture is drawn from
(``e2e/pictures.py``), so that a picture can be drawn again without the run.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.scenarios.stories import Story, total

EVERY_SECONDS = 1.5
"""Time between two samples, of which each takes two requests through the API server."""

Record = dict[str, Any]


class Timeline:
    """A record under way."""

    def __init__(self, story: Story, where: str, name: str) -> None:
        self._story, self._where, self._name = story, where, name
        self._began = time.monotonic()
        self._last = -EVERY_SECONDS
        self.samples: list[Record] = []
        self.marks: list[Record] = []

    @property
    def seconds(self) -> float:
        """Return the time since the record began."""
        return round(time.monotonic() - self._began, 2)

    def mark(self, what: str, ago: float = 0.0) -> None:
        """Note that something happens now, or happened ``ago`` seconds before."""
        self.marks.append({"seconds": round(self.seconds - ago, 2), "what": what})

    def sample(self) -> None:
        """Read the table's generation and every server's counters, unless that was done just now."""
        if self.seconds - self._last < EVERY_SECONDS:
            return
        self._last = self.seconds
        pods = {}
        for pod in self._story.pods(self._where, "app=decode"):
            name = pod["metadata"]["name"]
            metrics = self._story.metrics(self._where, name)
            if metrics:
                pods[name] = {
                    "generation": metrics.get("tabletune_table_generation", 0.0),
                    "drafts": metrics.get('tabletune_drafted_total{position="1"}', 0.0),
                    "drafted": total(metrics, "tabletune_drafted_total"),
                    "accepted": total(metrics, "tabletune_accepted_total"),
                }
        generation = self._story.status(self._where, self._name).get("generation") or 0
        self.samples.append({"seconds": self.seconds, "generation": generation, "pods": pods})

    def record(self, document: Record, requests: Record) -> Record:
        """Return all of it, with what it was taken on; ``requests`` is what the loads counted."""
        fingerprint = document["fingerprint"]
        return {
            "conditions": {
                "command": "make demo-cluster",
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "machine": f"{os.cpu_count()} cores, {_processor()}; all nodes and servers on it",
                "model": Path(fingerprint["model"]).name,
                "drafter": fingerprint["drafterMethod"],
                "vllm": fingerprint["vllm"],
                "kubernetes": _server(self._story),
            },
            "requests": requests,
            "marks": sorted([*self.marks, *changes(self.samples)], key=lambda mark: float(mark["seconds"])),
            "samples": self.samples,
        }


def changes(samples: list[Record]) -> list[Record]:
    """Return marks for each generation that came, and for when all servers followed the first of them."""
    found: list[Record] = []
    # 0 is a question that was not answered.
    known = [one for one in samples if one["generation"]]
    first = known[0]["generation"]
    for before, now in pairwise(known):
        if now["generation"] > before["generation"]:
            words = "generation {}" if found else "the operator writes generation {}"
            found.append({"seconds": now["seconds"], "what": words.format(now["generation"])})
    followed = [
        one["seconds"]
        for one in samples
        if one["pods"] and min(pod["generation"] for pod in one["pods"].values()) > first
    ]
    if found and followed:
        if followed[0] <= found[0]["seconds"]:
            found[0]["what"] += ", and both servers follow it"
        else:
            found.append({"seconds": followed[0], "what": "both servers follow it"})
    return found


def rates(record: Record, pod: str) -> tuple[list[float], list[float], list[float]]:
    """Return times, and the tokens drafted and accepted per draft of ``pod`` between each two samples.

    A time is the middle between its samples; where nothing was drafted between them, there is none.
    """
    known = [(one["seconds"], one["pods"][pod]) for one in record["samples"] if pod in one["pods"]]
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    for (start, before), (end, after) in pairwise(known):
        drafts = after["drafts"] - before["drafts"]
        if drafts > 0:
            found[0].append((start + end) / 2)
            found[1].append((after["drafted"] - before["drafted"]) / drafts)
            found[2].append((after["accepted"] - before["accepted"]) / drafts)
    return found


def _server(story: Story) -> str:
    return str(json.loads(story.client.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unnamed processor"
