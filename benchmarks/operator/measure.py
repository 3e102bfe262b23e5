"""What the operator takes with hundreds of DraftTables and their serving pods, on a real API server.

    python benchmarks/operator/measure.py                     # 50, 150 and 500 tables, four pods each
    python benchmarks/operator/measure.py 50 --seconds 30

Starts etcd and kube-apiserver (``tools/controlplane``), the operator as a process of its own, and a server
whose addresses are the pods' (loopback, real HTTP, pages as the plugin's). Every table has a profile that is
done. Measured are, while all pods serve and counters grow: CPU seconds per minute, resident memory, API
requests per minute, and how long it takes from a change of a table's settings to the ConfigMap that says so.
Results go to ``benchmarks/results/operator``.

Goals (DESIGN 7): 500 tables and 2,000 pods on one core, 512 MiB, 10 s at the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator"), str(ROOT / "benchmarks")]

import machines  # noqa: E402

from tests.controlplane import fixtures, planes  # noqa: E402
from tests.controlplane.clients import Api, wait  # noqa: E402
from tests.operator import fleets, objects, processes  # noqa: E402
from tests.operator.fleets import Page  # noqa: E402
from tests.operator.processes import Process  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "operator"
NAMESPACES = 10
PODS = 4
INTERVAL_SECONDS = 30
CHANGES = 40
TICKS = 100
"""Clock ticks a second in /proc."""


class Fleet:
    """One server for all pods: every address of 127.0.0.0/8 is this machine's, and the port is one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.page = Page()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.scraped = 0

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._answer, "0.0.0.0", self._port))  # noqa: S104
        self._loop.run_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.scraped += 1
                body = self.page.text().encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def serve(self) -> None:
        """Let every pod's counters grow."""
        self.page.serve(objects.example().acceptance.survival, 500)


def run() -> None:
    """Measure at each size and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[50, 150, 500])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="Time of the steady state that is measured."
    )
    options = parser.parse_args()
    found = [measure(size, options.seconds) for size in options.sizes]
    goal = {"cores": 1, "mebibytes": 512, "p99Seconds": 10}
    result = machines.conditions("kopf", "aiohttp", "pydantic") | {"goal": goal, "sizes": found}
    machines.write(RESULTS / "scale.json", result)
    print(json.dumps(found, indent=1))  # noqa: T201


def measure(tables: int, seconds: float) -> dict[str, Any]:
    """Return what ``tables`` DraftTables with their pods take."""
    programs = planes.build()
    with planes.Plane(programs, controllers=()) as plane, tempfile.TemporaryDirectory() as folder:
        api = plane.admin
        fixtures.install_crds(api)
        token = processes.grant(api)
        fleet = Fleet(planes.free_port())
        fleet.start()
        names = _fill(plane, tables, fleet)
        operator = Process(plane, token, Path(folder), lease="", resync_seconds=300)
        began = time.monotonic()
        with operator:
            operator.wait_until_ready()
            _profile(plane, names)
            _await("all to be Ready", api, tables, lambda status: status.get("phase") == "Ready", 600)
            ready = time.monotonic() - began
            all_pods = f"{PODS}/{PODS}"
            _await(
                "all pods to be seen",
                api,
                tables,
                lambda status: status.get("serving", {}).get("ready") == all_pods,
                300,
            )
            steady = _steady(operator, fleet, seconds)
            delays = _changes(plane, names)
            memory = _memory(operator)
        api.close()
    delays.sort()
    return {
        "tables": tables,
        "pods": tables * PODS,
        "secondsFromNothingToAllReady": round(ready, 1),
        **steady,
        "residentMebibytes": round(memory, 1),
        "changeToConfigMapSeconds": {
            "median": round(statistics.median(delays), 2),
            "p99": round(delays[min(len(delays) - 1, int(0.99 * len(delays)))], 2),
            "samples": len(delays),
        },
    }


def _fill(plane: planes.Plane, tables: int, fleet: Fleet) -> list[tuple[str, str]]:
    """Make namespaces, DraftTables and ready pods."""
    api = plane.admin
    for number in range(NAMESPACES):
        metadata = {"name": f"ml-{number}"}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # The controller manager's work, which does not run here.
        account = {"name": "default", "namespace": metadata["name"]}
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    names = [(f"ml-{number % NAMESPACES}", f"table-{number}") for number in range(tables)]

    def make(one: tuple[int, tuple[str, str]]) -> None:
        number, (namespace, name) = one
        serving = {
            "selector": {"matchLabels": {"serves": name}},
            "mode": "Correct",
            "metricsPort": fleet._port,
            "intervalSeconds": INTERVAL_SECONDS,
        }
        own = plane.admin
        own.apply(objects.draft_table(namespace, name, serving=serving))
        for pod in range(PODS):
            index = number * PODS + pod
            address = f"127.{1 + index // 62_500}.{index // 250 % 250}.{1 + index % 250}"
            fleets.make_pod(own, namespace, f"{name}-{pod}", address, {"serves": name})
        own.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, enumerate(names)))
    return names


def _profile(plane: planes.Plane, names: list[tuple[str, str]]) -> None:
    """Play every profile: its report is there, and its Job is gone."""

    def finish(one: tuple[str, str]) -> None:
        api = plane.admin
        objects.finish(api, *one, seconds=120)
        api.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(finish, names))


def _await(what: str, api: Api, tables: int, holds: Callable[[dict[str, Any]], bool], seconds: float) -> None:
    def all_of_them() -> bool:
        return sum(holds(one.get("status", {})) for one in api.list("DraftTable")) == tables

    wait(what, all_of_them, seconds, 0.5)


def _steady(operator: Process, fleet: Fleet, seconds: float) -> dict[str, Any]:
    """Return what a minute of serving takes, when nothing but counters changes."""
    before, requests, scraped = _cpu(operator), _requests(operator), fleet.scraped
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        fleet.serve()
        time.sleep(1)
    minutes = (time.monotonic() - began) / 60
    return {
        "cpuSecondsPerMinute": round((_cpu(operator) - before) / minutes, 2),
        "apiRequestsPerMinute": round((_requests(operator) - requests) / minutes),
        "scrapesPerMinute": round((fleet.scraped - scraped) / minutes),
    }


def _changes(plane: planes.Plane, names: list[tuple[str, str]]) -> list[float]:
    """Return the seconds from a change of a setting to the ConfigMap that has it, of tables all over."""
    step = max(1, len(names) // CHANGES)

    def change(one: tuple[str, str]) -> float:
        namespace, name = one
        api = plane.admin
        began = time.monotonic()
        api.merge("DraftTable", namespace, name, {"spec": {"serving": {"pluginMode": "Adapt"}}})
        wait(
            "the ConfigMap",
            lambda: '"mode": "adapt"' in api.get("ConfigMap", namespace, name)["data"]["table.json"],
            60,
            0.02,
        )
        api.close()
        return time.monotonic() - began

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(change, names[::step]))


def _stat(operator: Process) -> list[str]:
    assert operator.process is not None
    return Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()


def _cpu(operator: Process) -> float:
    fields = _stat(operator)
    return (int(fields[11]) + int(fields[12])) / TICKS


def _memory(operator: Process) -> float:
    return int(_stat(operator)[21]) * 4_096 / 2**20


def _requests(operator: Process) -> float:
    return operator.count("tabletune_operator_api_requests_total")


if __name__ == "__main__":
    run()
