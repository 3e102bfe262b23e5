"""Where text goes: data to standard output, messages to standard error.

Every command prints through here, so that ``tabletune table DOC | kubectl ...`` never finds a message
in its data, and a full disk behind standard output ends the command as what it is.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from tabletune_profiler.exit_codes import ExitCode, OutputError

MIN_WIDTH = 80
"""Columns that every page is made for. Fewer would cut numbers, and a terminal wraps a longer line."""


class _Console(Console):
    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False)
        if self.width < MIN_WIDTH:
            self.width = MIN_WIDTH

    def on_broken_pipe(self) -> None:
        """End as the system would have ended the command; rich's own code would mean "different"."""
        _drop_output()
        raise SystemExit(ExitCode.BROKEN_PIPE)


_output = _Console()
_messages = _Console(stderr=True)


def prepare() -> None:
    """Make what the command was started with fit to print on; called once, before anything is printed.

    * A closed standard stream becomes one that fails (input, output) or drops what it gets (messages), so
      that no file opened later takes its number.
    * A character that the terminal's encoding lacks becomes ``?``.
    * ``COLUMNS`` too small for any page counts as unset, also for the help.
    * A reader that has gone ends the command with SIGPIPE, as it ends ``cat``.
    """
    for number, (stream, mode, flags) in enumerate(
        (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    ):
        if getattr(sys, stream) is None:
            descriptor = os.open(os.devnull, flags)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, stream, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")
    for variable in ("COLUMNS", "TERMINAL_WIDTH"):
        if (columns := os.environ.get(variable, "")).isdigit() and int(columns) < MIN_WIDTH:
            os.environ[variable] = str(MIN_WIDTH)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def outlive_pipes() -> None:
    """Have a broken pipe raise again: that to an engine breaks when the engine dies, which is no end."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def show(*renderables: RenderableType) -> None:
    """Print for a person, on standard output; plain text where that is no terminal."""
    with output_errors():
        for renderable in renderables:
            _output.print(renderable)
        sys.stdout.flush()


def plain(text: str) -> str:
    """Return ``text`` without characters that steer a terminal: it may come from a stranger's document."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\ufffd" for character in text
    )


def write_line(text: str) -> None:
    """Write a line of data; names of files that are no UTF-8 keep their bytes."""
    write(f"{text}\n".encode("utf-8", "surrogateescape"))


def write(data: bytes) -> None:
    """Write data on standard output as it is; raises :class:`OutputError` where it does not get there."""
    with output_errors():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def note(message: str) -> None:
    """Tell on standard error what was done. Not wrapped, so that a log keeps one message a line."""
    _messages.print(Text(plain(message)), soft_wrap=True)


def warn(message: str) -> None:
    """Tell on standard error what may surprise."""
    _messages.print(Text.assemble(("Warning: ", "yellow"), plain(message)), soft_wrap=True)


def fail(message: str) -> None:
    """Tell on standard error why the command ends."""
    _messages.print(Text.assemble(("Error: ", "bold red"), plain(message)), soft_wrap=True)


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """Turn what goes wrong with standard output inside of the block into how the command ends."""
    try:
        yield
    except OSError as error:
        _drop_output()
        if error.errno == errno.EPIPE:
            raise SystemExit(ExitCode.BROKEN_PIPE) from error
        raise OutputError(f"Standard output could not be written: {error.strerror}.") from error


def _drop_output() -> None:
    """What is still buffered would fail again at exit, with an exit code of Python's own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
