"""Programs that go on running after the command that started them.

Each has a file with its process and that process' start time, since a number alone may be somebody else's by
now. They run in the cluster's network namespace and its cgroup.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.local import cgroups, networks

PAUSE_SECONDS = 0.1
START_SECONDS = 240.0
"""Time for a program to be ready, some seconds as a rule. One that ends is told at once, whatever this is."""
STOP_SECONDS = 15.0


class DaemonError(RuntimeError):
    """A program did not start; its last lines are in the message."""


@dataclass(frozen=True)
class Daemon:
    """One program of the cluster."""

    name: str
    folder: Path
    """Of its process file."""
    logs: Path

    @property
    def log(self) -> Path:
        """Return the file that its output is appended to."""
        return self.logs / f"{self.name}.log"

    @property
    def process(self) -> int | None:
        """Return the number of the running process, ``None`` where it does not run."""
        with contextlib.suppress(OSError, ValueError):
            number, began = self._file.read_text().split()
            if _start_time(int(number)) == began:
                return int(number)
        return None

    def start(
        self,
        command: Sequence[str | Path],
        ready: Callable[[], bool],
        seconds: float = START_SECONDS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``command`` unless it runs, and wait until it is ready; raises :class:`DaemonError`."""
        if self.process is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                started = subprocess.Popen(
                    [*networks.inside(), *(str(part) for part in command)],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=self._enter,
                    env={**os.environ, **(env or {})},
                    cwd="/",
                )
            # It is not waited for: it outlives this command.
            started.returncode = 0
        deadline = time.monotonic() + seconds
        while not ready():
            if self.process is None or time.monotonic() > deadline:
                raise DaemonError(f"{self.name} did not start. The end of {self.log}:\n{self.tail()}")
            time.sleep(PAUSE_SECONDS)

    def stop(self, *, at_once: bool = False) -> None:
        """End it, if it runs; ``at_once`` as a crash would."""
        process = self.process
        if process is not None:
            os.kill(process, signal.SIGKILL if at_once else signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while self.process is not None:
                if time.monotonic() > deadline:
                    os.kill(process, signal.SIGKILL)
                    deadline += STOP_SECONDS
                time.sleep(PAUSE_SECONDS)
        self._file.unlink(missing_ok=True)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _enter(self) -> None:
        """Run in the new process before its program: whoever is killed meanwhile, the process is known."""
        cgroups.add(cgroups.DAEMONS, os.getpid())
        self._file.write_text(f"{os.getpid()} {_start_time(os.getpid())}")

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.name}.process"


def _start_time(process: int) -> str | None:
    """Return when a process started, in the kernel's ticks; ``None`` where there is none, or it has ended."""
    with contextlib.suppress(OSError):
        # The program's name may have spaces; it stands in parentheses.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        with contextlib.suppress(ChildProcessError):
            if fields[0] == "Z":
                os.waitpid(process, os.WNOHANG)
        return None if fields[0] in "ZX" else fields[19]
    return None
