"""What a killed process leaves behind: its port, until its last thread has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests import ports
from tests.engine import profiles

# The first thread ends by itself, as it often does in a killed engine, and another one holds the port.
HOLDER = """
import ctypes, os, socket, sys, threading, time
taken = socket.create_server(("", int(sys.argv[1])))
threading.Thread(target=time.sleep, args=(60,)).start()
print("taken", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""


def test_process_without_its_first_thread_is_there_and_so_is_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = ports.free_port()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(port)], stdout=subprocess.PIPE, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        time.sleep(0.1)
        monkeypatch.setattr(profiles, "GONE_SECONDS", 0.2)
        monkeypatch.setattr(ports, "FREE_SECONDS", 0.2)
        assert not profiles.group_is_gone(holder.pid)
        with pytest.raises(OSError, match="in use"):
            ports.wait_until_free(port)
        monkeypatch.undo()
        os.killpg(holder.pid, signal.SIGKILL)
        assert profiles.group_is_gone(holder.pid)
        ports.wait_until_free(port)


def test_port_is_held_as_soon_as_the_one_before_leaves_it() -> None:
    port = ports.free_port()
    leaving = (
        f"import socket, time; taken = socket.create_server(('', {port}));"
        " print('taken', flush=True); time.sleep(0.5)"
    )
    with subprocess.Popen([sys.executable, "-c", leaving], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        with ports.listening(port), pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
