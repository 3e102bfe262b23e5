"""Where text goes: data to standard output, messages to standard error.

Every command prints through here, so that ``tabletune table DOC | kubectl ...`` never finds a message
in its data, and a full disk behind standard output ends the command as what it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from tabletune_profiler.exit_codes import OutputError

_output = Console(highlight=False)
_messages = Console(stderr=True, highlight=False)


def show(*renderables: RenderableType) -> None:
    """Print for a person, on standard output; plain text where that is no terminal."""
    with _output_errors():
        for renderable in renderables:
            _output.print(renderable)
        sys.stdout.flush()


def plain(text: str) -> str:
    """Return ``text`` without characters that steer a terminal: it may come from a stranger's document."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\ufffd" for character in text
    )


def write(data: bytes) -> None:
    """Write data on standard output as it is; raises :class:`OutputError` where it does not get there."""
    with _output_errors():
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
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:  # `| head` has seen enough; the command's framework ends quietly
            raise
        # What is still buffered would fail again at exit, with an exit code of Python's own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"Standard output could not be written: {error.strerror}.") from error
