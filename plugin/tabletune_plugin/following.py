"""Follows the mounted table document: whatever becomes of the file, the last good document stays.

The controller's thread polls it about twice a second. A ConfigMap volume swaps a symbolic link of a folder;
people copy files over, edit in place, delete, and mount what is not there yet. Watching by inotify would
miss some of these (a link swapped two folders up), so the file's identity is looked at instead, which costs
one ``stat``. What is found may be anything: half of a file, a gigabyte, a pipe that never ends, somebody
else's JSON. None of it may block the thread for long, fill the memory or replace the table in force.

Rules:

1. Only a regular file of at most :data:`tabletune.documents.MAX_DOCUMENT_BYTES` is read. Nothing else is even
   opened: opening a pipe wakes its writer up, opening a device may do anything.
2. Equal bytes are no reload.
3. What does not parse is read again until it has been the same for :data:`RETRY_SECONDS`, or kept failing
   for :data:`PATIENCE_SECONDS`, and only then told as invalid: it may have been half written.
4. A document of an older generation than the one in force is refused unless that is allowed.
5. A file changed within the last :data:`RACY_SECONDS` is read again at the next poll: a second write in
   the same instant may leave size and time as they are.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tabletune import documents
from tabletune.documents import Document

RETRY_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
RACY_SECONDS = 2.0

LOADED = "Loaded"
"""Another valid document was read."""
MISSING = "Missing"
"""There is no file at the path."""
UNREADABLE = "Unreadable"
"""There is something, but it cannot be read: no permission, a loop of links, a folder, a pipe."""
TOO_LARGE = "TooLarge"
"""The file is larger than a document may be."""
INVALID = "Invalid"
"""The file is no valid document."""
RESTORED = "Restored"
"""The file is the last good document again, after something else was told."""
OLDER_GENERATION = "OlderGeneration"
"""The document is of an older generation than the one in force."""

_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True)
class Reading:
    """What a poll found that is new."""

    result: str
    """One of the constants of this module."""
    message: str
    """For a person: what was found and what is accepted."""
    document: Document | None = None
    """The document where ``result`` is ``LOADED``."""
    digest: str = ""
    """SHA-256 of the document's bytes, hexadecimal."""


class _RefusedError(Exception):
    """The file is not read; ``result`` says why in one word."""

    def __init__(self, result: str, message: str) -> None:
        self.result = result
        super().__init__(message)


_Identity = tuple[int, int, int, int, int]


class Follower:
    """One path, and what was last read from it. Not for several threads."""

    def __init__(self, path: Path, *, allow_older_generation: bool) -> None:
        self._path = path
        self._allow_older = allow_older_generation
        self._seen: _Identity | None = None
        self._look_again = True
        self._digest = ""
        self._generation = 0
        self._told = ""
        self._failing_digest = ""
        self._failing_since = 0.0
        self._same_since = 0.0

    def poll(self, now: float) -> Reading | None:
        """Look at the file at ``now`` (seconds, monotonic); ``None`` where there is nothing new to tell.

        A failure is told once, until something else is found.
        """
        # Taken first: where the process pauses in the middle, what was read is as old as when it was read.
        looked_at = time.time()
        try:
            identity = _identity(self._path)
            if identity == self._seen and not self._look_again:
                return None
            data = _read(self._path)
        except _RefusedError as refused:
            self._seen, self._look_again = None, True
            return self._tell(Reading(refused.result, str(refused)))
        changed_ago = looked_at - identity[3] / 1e9
        self._seen, self._look_again = identity, -RACY_SECONDS < changed_ago < RACY_SECONDS
        return self._take(data, now)

    def took(self, document: Document) -> None:
        """Note that ``document`` is in force; older generations are refused from now on."""
        self._generation = document.generation

    def _take(self, data: bytes, now: float) -> Reading | None:
        digest = hashlib.sha256(data).hexdigest()
        if digest == self._digest:
            told, self._told, self._failing_digest = self._told, "", ""
            return Reading(RESTORED, "the last document is there again") if told else None
        try:
            document = documents.parse(data)
        except documents.DocumentError as error:
            return self._wait_or_tell(digest, str(error), now)
        self._failing_digest = ""
        if document.generation < self._generation and not self._allow_older:
            return self._tell(
                Reading(
                    OLDER_GENERATION,
                    f"generation {document.generation} is older than {self._generation}, which stays in"
                    " force; TABLETUNE_ALLOW_OLDER_GENERATION=1 takes it",
                )
            )
        self._digest, self._told = digest, ""
        return Reading(LOADED, f"generation {document.generation}", document, digest)

    def _wait_or_tell(self, digest: str, problem: str, now: float) -> Reading | None:
        if not self._failing_digest:
            self._failing_since = now
        if digest != self._failing_digest:
            self._failing_digest, self._same_since = digest, now
        if now - self._same_since < RETRY_SECONDS and now - self._failing_since < PATIENCE_SECONDS:
            self._look_again = True
            return None
        return self._tell(Reading(INVALID, problem))

    def _tell(self, reading: Reading) -> Reading | None:
        message = reading.message[:_MESSAGE_CHARACTERS]
        told = f"{reading.result} {message}"
        if told == self._told:
            return None
        self._told = told
        return Reading(reading.result, message)


def read(path: Path, seconds: float) -> Document | None:
    """Return the valid document at ``path``, whatever its generation; ``None`` where there is none (yet).

    Raises ``TimeoutError`` where the file system does not answer within ``seconds``. A thread that waits for
    it is left behind then; it holds nothing and keeps no process alive.
    """
    found: list[Document | None] = []

    def take() -> None:
        try:
            found.append(documents.parse(_read(path)))
        except (_RefusedError, documents.DocumentError):
            found.append(None)

    thread = threading.Thread(target=take, name="tabletune-read", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    return found[0] if found else None


def _identity(path: Path) -> _Identity:
    """Return what changes when another file, or another content, is at ``path``, links followed."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise _refused(path, error) from error
    except ValueError as error:  # a null byte in the path
        raise _RefusedError(UNREADABLE, f"{str(path)!r} is no path") from error
    _require_regular(path, found)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(path: Path) -> bytes:
    """Return the bytes of the regular file at ``path``; never waits for anybody to write."""
    _identity(path)
    try:
        # Without O_NONBLOCK opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        found = os.fstat(descriptor)
        _require_regular(path, found)
        limit = documents.MAX_DOCUMENT_BYTES
        if found.st_size > limit:
            raise _too_large(path, found.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise _too_large(path, len(data))
        return data
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        os.close(descriptor)


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _RefusedError(UNREADABLE, f"{path} is no regular file")


def _too_large(path: Path, size: int) -> _RefusedError:
    return _RefusedError(
        TOO_LARGE, f"{path} has {size} bytes, must be at most {documents.MAX_DOCUMENT_BYTES} bytes"
    )


def _refused(path: Path, error: OSError) -> _RefusedError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _RefusedError(MISSING, f"there is no file at {path}")
    return _RefusedError(UNREADABLE, f"{path} cannot be read: {error.strerror}")
