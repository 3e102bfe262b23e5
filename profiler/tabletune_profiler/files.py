"""Reading documents and writing files, for every command.

The one place of the command line that touches files, so that each error of the system is told in the
same words, a stranger's file is never read beyond its bound, and a file that exists is a whole one:
written beside its place, flushed to the disk, and renamed. Without that, a full disk or a kill leaves
half a document where a good one was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from pathlib import Path

from tabletune import documents
from tabletune.documents import Document, DocumentError
from tabletune_profiler import consoles
from tabletune_profiler.exit_codes import InputError, OutputError

STANDARD = Path("-")
"""Standard input or output in place of a file."""

MAX_PROBLEMS_SHOWN = 20

_REMEDIES = {
    errno.ENOSPC: "Free some space or choose another place.",
    errno.EDQUOT: "Your quota is used up. Free some space or choose another place.",
    errno.EFBIG: "The file would be larger than this system or its limits allow.",
    errno.EROFS: "Choose a place that can be written.",
    errno.EACCES: "Choose a place that you may write.",
    errno.EPERM: "Choose a place that you may write.",
    errno.ENOENT: "The folder does not exist. Create it or choose another.",
    errno.ENOTDIR: "A part of the path is no folder. Choose another place.",
    errno.ELOOP: "Its links lead in a circle. Choose another place.",
    errno.EISDIR: "It is a folder. Name a file in it.",
}


def read_document(source: Path) -> Document:
    """Return the document in the file ``source``; raises :class:`InputError` that names each fault."""
    data = read(source, documents.MAX_DOCUMENT_BYTES)
    try:
        return documents.parse(data)
    except DocumentError as error:
        raise InputError(f"{name(source)} is not a usable table document.\n{listing(error)}") from error


def listing(error: DocumentError) -> str:
    """Return the faults of a document, one a line and only the first of many."""
    lines = [f"  {problem}" for problem in error.problems[:MAX_PROBLEMS_SHOWN]]
    if (more := len(error.problems) - MAX_PROBLEMS_SHOWN) > 0:
        at_least = "at least " if len(error.problems) >= documents.MAX_PROBLEMS else ""
        lines.append(f"  and {at_least}{more} more")
    return "\n".join(lines)


def read(source: Path, limit: int) -> bytes:
    """Return the content of ``source``; raises :class:`InputError` also for more than ``limit`` bytes."""
    try:
        if source == STANDARD:
            data = sys.stdin.buffer.read(limit + 1)
        else:
            with source.open("rb") as file:
                data = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"{name(source)} cannot be read: {error.strerror}.") from error
    if len(data) > limit:
        raise InputError(f"{name(source)} holds more than {limit} bytes, the most that is read.")
    return data


def name(path: Path) -> str:
    """Return what to call ``path`` in a message."""
    return "Standard input" if path == STANDARD else str(path)


def write(destination: Path, data: bytes) -> None:
    """Write ``data`` to the file ``destination``, whole or not at all; ``-`` is standard output."""
    if destination == STANDARD:
        consoles.write(data)
    else:
        write_atomically(destination, data)


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a reader finds the old file or the new one, at any time.

    A link keeps pointing where it does, and its target is replaced. What is no regular file (a pipe,
    ``/dev/full``) is written as it is, since it must not be replaced by one. Raises
    :class:`OutputError`, after which the old file is still there and nothing is left beside it.
    """
    try:
        target = resolve(path)
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                file.write(data)
        else:
            _replace(target, data)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        raise OutputError(f"{path} could not be written: {error.strerror}. {remedy}".rstrip()) from error


def resolve(path: Path) -> Path:
    """Return where the links of ``path`` lead; raises ``OSError`` where they lead in a circle."""
    try:
        target = path.resolve()
    except RuntimeError as error:  # Python's before 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def keep_input(source: Path, destination: Path) -> None:
    """Raise :class:`InputError` where writing ``destination`` would replace the file ``source`` itself."""
    if destination == STANDARD:
        return
    try:
        read_from = os.fstat(sys.stdin.fileno()) if source == STANDARD else source.stat()
        written_to = destination.stat()
    except (OSError, ValueError):  # no such file yet, or an input that is no file
        return
    if stat.S_ISREG(written_to.st_mode) and os.path.samestat(read_from, written_to):
        raise InputError(f"{destination} is the input itself and would be lost. Choose another output.")


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    # Opened exclusively, so that no file or link that lies there already is written through.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    """Make the rename outlast a power failure, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
