"""``tabletune profile`` as a user runs it: the process, what it tells, and the engine process below it.

The tests of this folder cut one off in all the ways that a machine, a cluster or a person does, so what
they need is its process id, its engine's, and the event at which to strike.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tabletune import documents
from tabletune.documents import Document

TABLETUNE = Path(sys.executable).with_name("tabletune")

QUICK = ("--steps", "8", "--repeats", "0", "--acceptance-tokens", "24", "--context-length", "64")
"""Eight steps a cell and none again: times as rough as can be, and the same number of them in each run."""

MAX_NUM_SEQS = 4
SERVE = ("--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", "256")
"""Too short for the longer of the two prompts that share steps by default, which take most of a profile."""
EAGER = "--enforce-eager"
"""Starts in 4 s. Compilation takes a minute when its cache is cold, and changes nothing but step times."""
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4})

GONE_SECONDS = 60.0


def environment() -> dict[str, str]:
    """What every engine of these tests starts with."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {
        # 1 GiB holds some 20,000 tokens of the small model; vLLM would take half of the machine's memory.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Threads that wait for each other in a loop take ten times as long beside any other busy process.
        "OMP_WAIT_POLICY": "passive",
    }


def tabletune(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [TABLETUNE, *arguments], env=environment(), capture_output=True, text=True, check=False
    )


@dataclass(frozen=True)
class Finished:
    """A profile that came to its end, well or not."""

    output: Path
    exit_code: int
    stdout: str
    lines: tuple[str, ...]
    """Lines of standard error."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines that are events."""
        return list(filter(None, map(_event, self.lines)))

    def messages(self, event: str) -> list[str]:
        """Return what the events of this kind (``note``, ``warning``) say."""
        return [told["message"] for told in self.events if told["event"] == event]

    @property
    def phases(self) -> list[str]:
        """The phases in their order; one that was begun again is named again."""
        return [told["phase"] for told in self.events if told["event"] == "phase"]

    @property
    def document(self) -> Document:
        """The document that was written."""
        return documents.parse(self.output.read_bytes())


class RunningProfile:
    """A profile that runs. Use as a context manager: nothing of it runs afterwards."""

    def __init__(self, output: Path, options: Sequence[str | Path], serve: Sequence[str | Path]) -> None:
        self.output = output
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [TABLETUNE, "profile", "--output", output, *options, "--", *serve],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            for pid in children(self._process.pid):
                send(pid, signal.SIGKILL)
            self._process.kill()
        self._process.communicate()

    @property
    def engine(self) -> int:
        """Process id of the engine process."""
        (found,) = (pid for pid in children(self._process.pid) if "spawn_main" in _command_line(pid))
        return found

    def send(self, number: signal.Signals) -> None:
        """Send the profiler a signal."""
        self._process.send_signal(number)

    def wait_for(self, event: str, **content: str) -> dict[str, Any]:
        """Read on until an event of this kind with this content is told, and return it."""
        for line in self._read():
            told = _event(line)
            if told and told["event"] == event and content.items() <= told.items():
                return told
        pytest.fail(f"No event {event} {content} came:\n{''.join(self._lines)}")

    def wait_for_warning(self, text: str) -> str:
        """Read on until a warning says ``text``, and return it."""
        while text not in (message := str(self.wait_for("warning")["message"])):
            pass
        return message

    def finish(self) -> Finished:
        """Read on to the end."""
        for _ in self._read():
            pass
        stdout, _ = self._process.communicate()
        return Finished(self.output, self._process.returncode, stdout, tuple(self._lines))

    def _read(self) -> Iterator[str]:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            yield line


def run(output: Path, options: Sequence[str | Path], serve: Sequence[str | Path]) -> Finished:
    """Take a profile to its end."""
    with RunningProfile(output, options, serve) as running:
        return running.finish()


def send(pid: int, number: signal.Signals) -> None:
    """Send a process a signal, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children(pid: int) -> list[int]:
    """Return the ids of the processes that ``pid`` has started and that are still there."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def group_is_gone(group: int) -> bool:
    """Return whether no process of the group runs any more, within :data:`GONE_SECONDS`."""
    deadline = time.monotonic() + GONE_SECONDS
    while _members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _members(group: int) -> list[int]:
    """Return the running processes of a process group; one that ended and nobody waited for is none.

    A killed process runs until its last thread has ended. Its first often ends before, while another one is
    still giving back gigabytes of memory, and with it files and ports.
    """
    members = []
    for process in Path("/proc").glob("[0-9]*"):
        if any(_runs_in(group, thread) for thread in process.glob("task/[0-9]*/stat")):
            members.append(int(process.name))
    return members


def _runs_in(group: int, stat: Path) -> bool:
    try:
        # Behind the name in parentheses, which may hold anything: state, parent, process group.
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(its_group) == group and state not in "ZX"


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _event(line: str) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None
