"""What a scenario does more than once: tell what it sees, follow a DraftTable, keep what a failure needs."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import commands, manifests
from e2e.clients import PATIENCE_SECONDS, Client, Object
from e2e.settings import REPOSITORY, Settings

HOME = "tabletune-system"
RELEASE = "tabletune"
CHART = REPOSITORY / "charts" / "tabletune"
OPERATOR = "app.kubernetes.io/name=tabletune,app.kubernetes.io/component!=test"
PROFILE_SECONDS = 480.0
"""Time for a profile on two cores that others use too; alone it takes a minute."""
SERVER_SECONDS = 420.0
"""Time for two servers to start at once on two cores; a minute and a half where nothing else runs."""
INSTALL_SECONDS = 240.0
MOST_RESTARTS = 2
SHOWN_LINES = 25
STEPS = ("start", "acceptance", "sweep", "repeat", "mixed")
"""Steps of a profile, in order, as the status tells its progress."""
SETTLED = ("Ready", "Degraded", "Failed")


def install(client: Client) -> None:
    """Install the chart as its users do."""
    client.apply(manifests.namespace(HOME))
    limit = client.limit(INSTALL_SECONDS)
    client.helm("upgrade", "--install", RELEASE, str(CHART), "--namespace", HOME, "--wait", limit)
    # An image that was built anew has the same tag, and would not be taken.
    client.kubectl("rollout", "restart", "deployment", "--namespace", HOME)
    client.kubectl("rollout", "status", "deployment", "--namespace", HOME, limit)


@dataclass
class Story:
    """One scenario as it goes: says what it sees, with the time since it began."""

    settings: Settings
    client: Client
    name: str
    began: float = field(default_factory=time.monotonic)
    namespaces: set[str] = field(default_factory=set)
    """Namespaces that it works in; their objects are kept where it fails."""

    def say(self, text: str) -> None:
        """Print a line."""
        for line in text.splitlines():
            print(f"{time.monotonic() - self.began:7.1f} s  {line}", flush=True)  # noqa: T201

    def show(self, *arguments: str) -> str:
        """Print what kubectl shows, as a user sees it; return it."""
        shown = self.client.kubectl(*arguments)
        self.say(f"$ kubectl {' '.join(arguments)}\n{shown}")
        return shown

    # --- DraftTables ---------------------------------------------------------------------------------

    def status(self, where: str, name: str) -> Object:
        """Return a DraftTable's status, empty while there is none."""
        table = self.client.find("drafttable", where, name) or {}
        status: Object = table.get("status") or {}
        return status

    def condition(self, where: str, name: str, kind: str) -> Object:
        """Return a condition of a DraftTable, empty where there is none."""
        conditions = self.status(where, name).get("conditions") or []
        return next((one for one in conditions if one["type"] == kind), {})

    def follow(
        self, where: str, name: str, generation: int, seconds: float = PROFILE_SECONDS
    ) -> list[tuple[str, str]]:
        """Wait until a DraftTable has ``generation``, or failed; say each step.

        Return the phases that were seen, each with what it measured at the time.
        """
        seen: list[tuple[str, str]] = []

        def settled() -> bool:
            status = self.status(where, name)
            progress = str((status.get("profile") or {}).get("progress") or "")
            now = (str(status.get("phase", "")), progress.partition(" ")[0])
            if now != (seen[-1] if seen else None) and now[0]:
                seen.append(now)
                self.say(f"{where}/{name}: {' '.join(filter(None, now))}")
            if now[0] == "Failed":
                raise AssertionError(json.dumps(status.get("conditions"), indent=1))
            return int(status.get("generation") or 0) >= generation and now[0] in SETTLED

        self.client.wait(f"{where}/{name} to have generation {generation}", settled, seconds)
        return seen

    def reason(self, where: str, name: str, kind: str, wanted: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until a condition has a reason; say and return its message."""

        def found() -> str:
            condition = self.condition(where, name, kind)
            return str(condition.get("message")) if condition.get("reason") == wanted else ""

        message = self.client.wait(f"{kind} of {where}/{name} to have the reason {wanted}", found, seconds)
        self.say(f"{where}/{name}: {kind} {wanted}: {message[:300]}")
        return message

    def document(self, where: str, name: str) -> Object:
        """Return the document in a DraftTable's ConfigMap."""
        data = self.client.get("configmap", where, name)["data"]
        document: Object = json.loads(data["table.json"])
        return document

    def jobs(self, where: str, name: str) -> list[Object]:
        """Return a DraftTable's Jobs."""
        return self.client.objects("jobs", where, f"tabletune.dev/draft-table={name}")

    def pods(self, where: str, selector: str) -> list[Object]:
        """Return the pods of a selector that are not on their way out."""
        found = self.client.objects("pods", where, selector)
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    # --- the operator --------------------------------------------------------------------------------

    def kill_operator(self) -> None:
        """Kill the operator's pod, as a node's crash would, and wait for the next one to be ready."""
        for pod in self.pods(HOME, OPERATOR):
            name = pod["metadata"]["name"]
            self.say(f"killing {name}")
            self.client.delete("pod", HOME, name, "--force", "--grace-period=0")
        self.await_operator()

    def await_operator(self) -> None:
        """Wait until the operator is ready."""
        self.client.wait("the operator to be ready", self._operator_is_ready)

    def _operator_is_ready(self) -> bool:
        with suppress(commands.CommandError):
            pods = self.pods(HOME, OPERATOR)
            return bool(pods) and all(is_ready(pod) for pod in pods)
        return False

    # --- servers -------------------------------------------------------------------------------------

    def metrics(self, where: str, pod: str) -> dict[str, float]:
        """Return the plugin's metrics of a pod, by name with labels; empty while it serves none."""
        with suppress(commands.CommandError):
            return samples(self.client.page(where, pod, manifests.METRICS_PORT, "/metrics"))
        return {}

    def generations(self, where: str) -> dict[str, float]:
        """Return the generation that each serving pod follows, 0 where it does not say."""
        found = {}
        for pod in self.pods(where, "app=decode"):
            name = pod["metadata"]["name"]
            found[name] = self.metrics(where, name).get("tabletune_table_generation", 0.0)
        return found

    def serve(self, table: Object, overlay: Path) -> None:
        """Serve with a table: two replicas, by the component of config/llm-d; wait until both follow it."""
        where = table["metadata"]["namespace"]
        manifests.servers(self.settings, table, overlay)
        self.client.apply(*self.client.kustomize(overlay))
        told = ""

        def follow() -> bool:
            nonlocal told
            pods = self.pods(where, "app=decode")
            for pod in pods:
                for container in pod["status"].get("containerStatuses") or ():
                    assert container["restartCount"] < MOST_RESTARTS, container
            ready = len(list(filter(is_ready, pods)))
            # Read once they are ready: each question takes from engines that start.
            following = sum(map(bool, self.generations(where).values())) if ready == 2 else 0
            now = f"{len(pods)} servers, {ready} ready, {following} follow the table"
            if now != told:
                self.say(now)
            told = now
            return (len(pods), ready, following) == (2, 2, 2)

        self.say("two vLLM servers start (a minute or two)")
        self.client.wait("two servers that follow the table", follow, SERVER_SECONDS)

    # --- failures ------------------------------------------------------------------------------------

    def keep(self) -> Path:
        """Write what explains a failure into a folder; return it."""
        folder = self.settings.logs / "scenarios" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for where in sorted(self.namespaces | {HOME}):
            self._write(
                folder / f"{where}.yaml",
                *("get", "drafttables,jobs,pods,configmaps,events", "--namespace", where, "--output=yaml"),
            )
            self._write(folder / f"{where}.txt", "describe", "drafttables,pods", "--namespace", where)
            with suppress(commands.CommandError):
                for pod in self.client.objects("pods", where):
                    name = pod["metadata"]["name"]
                    options = ("--namespace", where, "--all-containers", "--prefix", "--tail=2000")
                    self._write(folder / f"{where}-{name}.log", "logs", name, *options)
        return folder

    def explain(self) -> None:
        """Say what explains a failure, for who sees no more than this output, and keep the whole."""
        for where in sorted(self.namespaces):
            for arguments in (
                ("get", "drafttables,jobs,pods", "--namespace", where, "--output=wide"),
                ("events", "--namespace", where),
            ):
                with suppress(commands.CommandError):
                    shown = self.client.kubectl(*arguments).splitlines()
                    self.say("\n".join([f"$ kubectl {' '.join(arguments)}", *shown[-SHOWN_LINES:]]))
        with suppress(commands.CommandError):
            log = self.client.kubectl("logs", f"--selector={OPERATOR}", "--namespace", HOME, "--tail=-1")
            self.say("\n".join(["The operator's last words:", *log.splitlines()[-SHOWN_LINES:]]))
        self.say(f"Kept: {self.keep()}")

    def _write(self, path: Path, *arguments: str) -> None:
        try:
            path.write_text(self.client.kubectl(*arguments))
        except commands.CommandError as error:
            path.write_text(str(error))


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def samples(page: str) -> dict[str, float]:
    """Return the samples of a page of metrics, by name with labels."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        match = re.fullmatch(r"([^#\s][^{\s]*(?:\{.*\})?)\s+(\S+)(?:\s+\d+)?", line)
        if match:
            found[match.group(1)] = float(match.group(2))
    return found


def total(metrics: dict[str, float], prefix: str) -> float:
    """Return the sum of the samples whose name starts with ``prefix``."""
    return sum(value for name, value in metrics.items() if name.startswith(prefix))


def lookup(document: dict[str, Any]) -> dict[int, int]:
    """Return a document's table as the draft length of each batch size."""
    return {size: length for first, last, length in document["table"] for size in range(first, last + 1)}
