"""What a benchmark ran on, and its result file."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any


def conditions(*distributions: str) -> dict[str, Any]:
    """Return machine, versions, date and command of this run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.orig_argv),
        "machine": {
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg()[0],
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in distributions},
    }


def stolen_seconds() -> float:
    """Return seconds of all CPUs that the host gave to others since the start (proc_stat(5), ``steal``).

    On a host that does not tell it is 0.
    """
    with open("/proc/stat") as file:  # noqa: PTH123
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def write(path: Path, result: object) -> None:
    """Write ``result`` as JSON; the folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from a folder on the PYTHONPATH, as on the GPU machine
        return "not installed"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
