"""A file system that hangs, as a network's does whose server is gone: every access to it waits.

It is a real mount, by the kernel's FUSE, whose server never answers. Nothing else stands in for it well: a
pipe is told by its kind, and a patched ``open`` is not what threads of the plugin wait in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount one at ``folder``; whoever waits for it gets an error at the end. Skips where that cannot be."""
    folder.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"FUSE is not there: {error}")
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"hanging", os.fsencode(folder), b"fuse", 0, options) != 0:
            pytest.skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        try:
            yield folder
        finally:
            _libc.umount2(os.fsencode(folder), MNT_DETACH)
    finally:
        os.close(server)
