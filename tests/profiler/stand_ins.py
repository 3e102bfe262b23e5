"""What runs in place of an engine in the process tests: obeys the words of ``Configure.arguments``.

In a module of its own, which a spawned process imports quickly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tabletune_plugin.engine.arguments import ArgumentsError
from tabletune_plugin.engine.driving import EngineStartError
from tabletune_plugin.engine.versions import UnsupportedEngineError
from tabletune_profiler import messages
from tabletune_profiler.supervising import EngineProcess

REFUSALS: dict[str, Callable[[str], Exception]] = {
    "arguments": ArgumentsError,
    "start": EngineStartError,
    "unsupported": lambda message: UnsupportedEngineError(message, "Install another."),
}


class StandIn:
    """Lives and dies as it is told."""

    def __init__(self, tell: Callable[[messages.Message], None]) -> None:
        """Keep ``tell`` for the words that use it."""
        self._tell = tell

    def carry_out(self, command: messages.Command) -> Iterator[messages.Message]:
        """Do what the first word says, with the others."""
        assert isinstance(command, messages.Configure)
        match command.arguments:
            case ("count", number):
                yield from (messages.AcceptanceProgress(done, int(number)) for done in range(int(number)))
            case ("tick", number, seconds):
                for done in range(int(number)):
                    time.sleep(float(seconds))
                    yield messages.AcceptanceProgress(done, int(number))
            case ("live", times, seconds):
                for _ in range(int(times)):
                    time.sleep(float(seconds))
                    self._tell(messages.Alive())
                yield messages.AcceptanceProgress(1, 1)
            case ("pid",):
                yield messages.AcceptanceProgress(os.getpid(), os.getpgid(0))
            case ("print", text, times):
                sys.stdout.writelines(f"{text} {index}\n" for index in range(int(times)))
                sys.stdout.flush()
                sys.stderr.write("to standard error\n")
                sys.stderr.flush()
            case ("exit", code):
                sys.stderr.write("the reason\n")
                sys.stderr.flush()
                os._exit(int(code))
            case ("signal", name):
                yield messages.CellStarted(1, 0)
                os.kill(os.getpid(), signal.Signals[name])
            case ("sleep", seconds):
                yield messages.CellStarted(1, 0)
                time.sleep(float(seconds))
            case ("close the pipe",):
                for descriptor in range(3, 64):
                    with contextlib.suppress(OSError):
                        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                            os.close(descriptor)
                time.sleep(60)
            case ("raise", text):
                raise RuntimeError(text)
            case ("refuse", kind, text):
                raise REFUSALS[kind](text)
            case ("start a worker",):
                worker = subprocess.Popen(["sleep", "60"])
                yield messages.AcceptanceProgress(worker.pid, 0)
            case _:
                raise AssertionError(command)

    def shutdown(self) -> None:
        """Leave a trace, so that a test sees that the end was an orderly one."""
        sys.stdout.write("shut down in order\n")


def be_killed(log_path: Path) -> None:
    """Start an engine process, tell its id, and wait to be killed."""
    process = EngineProcess(log_path, StandIn)
    # Busy, so that it does not notice that its pipe is closed.
    next(process.ask(messages.Configure(("sleep", "60"), None), 60))
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.flush()
    time.sleep(60)


if __name__ == "__main__":
    be_killed(Path(sys.argv[1]))
