"""A lease's calls: what they carry, end and bring back. Processes of a line each stand in for engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.gpu import made

from gpu.analysis.runs import Run  # isort: skip

ROOT = made.ROOT
SCRIPT = ROOT / "benchmarks" / "gpu" / "lease.sh"

LANE = """
echo $$ >lane-0.pid
bash -c 'trap "echo written >obeying.json; exit" TERM; touch obeying.ready; while :; do sleep 0.1; done' &
echo $! >obeying.pid
bash -c 'trap "" TERM; touch deaf.ready; while :; do sleep 0.1; done' &
echo $! >deaf.pid
wait
"""


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path


def call(lease: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"LEASE": str(lease), "OUT": str(lease / "out"), "ENDING_SECONDS": "2"}
    return subprocess.run(
        ["bash", SCRIPT, *arguments], env=env, capture_output=True, text=True, check=True, timeout=300
    )


def unpacked(lease: Path) -> dict[str, bytes]:
    call(lease, "unpack", lease / "out", lease / "home")
    return {path.name: path.read_bytes() for path in (lease / "home").iterdir()}


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_parts_are_kept_in_the_order_in_which_they_come(lease: Path) -> None:
    for word in ("one ", "two ", "three"):
        (lease / "part").write_text(word)
        call(lease, "take", lease / "part")
    assert "".join(path.read_text() for path in sorted((lease / "parts").iterdir())) == "one two three"


def test_results_come_home_in_files_that_are_small_enough(lease: Path) -> None:
    large = os.urandom(20_000_000)
    (lease / "results" / "steps.npz").write_bytes(large)
    (lease / "results" / "picture.svg").write_text("none asked for it")
    call(lease, "poll", "0")
    sizes = [path.stat().st_size for path in (lease / "out").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 16 << 20
    assert unpacked(lease) == {"steps.npz": large}


def test_waits_no_longer_than_lanes_run(lease: Path) -> None:
    for file in ("lane-0.pid", "lane-0.ended"):
        (lease / "results" / file).touch()
    began = time.monotonic()
    call(lease, "poll", "30")
    assert time.monotonic() - began < 10


def test_engines_are_told_to_write_and_those_that_do_not_listen_are_ended(lease: Path) -> None:
    results = lease / "results"
    lane = subprocess.Popen(["bash", "-c", LANE], cwd=results, start_new_session=True)
    deadline = time.monotonic() + 20
    while len(list(results.glob("*.ready"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int((results / f"{name}.pid").read_text()) for name in ("obeying", "deaf")]
    assert all(alive(pid) for pid in pids)
    call(lease, "finish", "0")
    lane.wait(timeout=5)
    assert not any(alive(pid) for pid in pids)
    assert unpacked(lease)["obeying.json"] == b"written\n"


def test_what_it_can_do_is_told() -> None:
    ran = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert all(
        f"lease.sh {name}" in ran.stderr for name in ("pack", "take", "start", "poll", "finish", "unpack")
    )


LISTENER = """#!/bin/bash
case $1 in
*/serve.py)
  printf '%s\\0' "$@" >"$(mktemp -p "$CALLS")"
  ;;
*/real.py) ;;
*) exec PYTHON "$@" ;;
esac
"""


def commands(folder: Path, lane: str) -> list[list[str]]:
    """The commands of a lane's engines, from a lane whose Python writes them down."""
    calls, python = folder / "calls", folder / "python"
    calls.mkdir()
    python.write_text(LISTENER.replace("PYTHON", sys.executable))
    python.chmod(0o755)
    env = os.environ | {"PYTHON": str(python), "CALLS": str(calls)}
    script = ROOT / "benchmarks" / "gpu" / "session.sh"
    subprocess.run(["bash", script, lane, folder / "results"], env=env, check=True, timeout=300)
    return [path.read_text().rstrip("\0").split("\0") for path in calls.iterdir()]


@pytest.mark.parametrize(("lane", "engines"), [("0", 5), ("1", 3)])
def test_engines_of_a_lane_get_what_there_is(lease: Path, lane: str, engines: int) -> None:
    found = commands(lease, lane)
    assert len(found) == engines
    for command in found:
        own, serve = command[: command.index("--")], command[command.index("--") + 1 :]
        assert Path(own[own.index("--plan") + 1]).is_file()
        document = Path(own[own.index("--document") + 1])
        assert document.is_file() or document.name == "other-times.json"
        speculation = json.loads(serve[serve.index("--speculative-config") + 1])
        assert speculation["num_speculative_tokens"] == (7 if speculation["method"] == "dflash" else 3)
        assert serve[0].startswith("/root/")
        assert int(serve[serve.index("--kv-cache-memory-bytes") + 1]) >= 8 << 30
    ended = {path.name for path in (lease / "results").glob("*.ended")}
    assert len(ended) == engines + 1


def test_second_day_has_the_arguments_of_the_first(lease: Path) -> None:
    first = json.loads((ROOT / "benchmarks/results/gpu/serving/eagle3-advised.json").read_text())
    named = {command[command.index("--name") + 1]: command for command in commands(lease, "0")}
    again = named["eagle3-advised"]
    assert Run("again", {"serve": again[again.index("--") + 1 :]}).setting == Run("first", first).setting
