"""Whatever becomes of the file, the last good document stays."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tabletune import documents
from tabletune_plugin import following
from tabletune_plugin.following import Follower, Reading
from tests.mounts import Mount
from tests.plugin import engines


class Clock:
    """Polls every half second, as the controller does, in no time."""

    def __init__(self, path: Path, *, allow_older_generation: bool = False) -> None:
        self.follower = Follower(path, allow_older_generation=allow_older_generation)
        self.now = 100.0

    def poll(self) -> Reading | None:
        self.now += 0.5
        reading = self.follower.poll(self.now)
        if reading is not None and reading.document is not None:
            self.follower.took(reading.document)
        return reading

    def settle(self, polls: int = 6) -> list[str]:
        """Return the results of some polls."""
        return [reading.result for reading in (self.poll() for _ in range(polls)) if reading is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


@pytest.fixture
def clock(path: Path) -> Clock:
    return Clock(path)


def data(generation: int = 1) -> bytes:
    return documents.dump(engines.document(generation=generation))


def swap(path: Path, content: bytes) -> None:
    """Rename another file over ``path``."""
    other = path.with_suffix(".new")
    other.write_bytes(content)
    other.rename(path)


def test_document_is_loaded_once(path: Path, clock: Clock) -> None:
    path.write_bytes(data())
    reading = clock.poll()
    assert reading is not None
    assert reading.document == engines.document()
    assert clock.settle() == []


def test_file_that_appears_late_is_loaded(path: Path, clock: Clock) -> None:
    assert clock.settle() == [following.MISSING]
    path.write_bytes(data())
    assert clock.settle() == [following.LOADED]


def test_symlink_swap_of_a_configmap_volume_is_loaded(tmp_path: Path) -> None:
    # As kubelet does: table.json -> ..data/table.json, ..data -> ..2026_1, swapped by one rename.
    for generation in (1, 2):
        (tmp_path / f"..2026_{generation}").mkdir()
        (tmp_path / f"..2026_{generation}" / "table.json").write_bytes(data(generation))
    (tmp_path / "..data").symlink_to("..2026_1")
    (tmp_path / "table.json").symlink_to("..data/table.json")
    clock = Clock(tmp_path / "table.json")
    assert clock.settle() == [following.LOADED]
    (tmp_path / "..data_tmp").symlink_to("..2026_2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    reading = clock.poll()
    assert reading is not None
    assert reading.document is not None
    assert reading.document.generation == 2


def test_rename_and_write_in_place_are_loaded(path: Path, clock: Clock) -> None:
    path.write_bytes(data(1))
    assert clock.settle() == [following.LOADED]
    swap(path, data(2))
    assert clock.settle() == [following.LOADED]
    with path.open("r+b") as file:
        file.write(data(3))
        file.truncate()
    assert clock.settle() == [following.LOADED]


def test_equal_bytes_are_no_reload(path: Path, clock: Clock) -> None:
    path.write_bytes(data())
    assert clock.settle() == [following.LOADED]
    swap(path, data())
    assert clock.settle() == []


def test_write_in_the_same_instant_and_of_the_same_size_is_seen(path: Path, clock: Clock) -> None:
    path.write_bytes(data(1))
    before = path.stat()
    assert clock.poll() is not None
    with path.open("r+b") as file:
        file.write(data(2))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert clock.settle() == [following.LOADED]


def test_change_that_the_files_identity_does_not_show_is_seen(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two writes within one tick of the file system's clock.
    path.write_bytes(data(1))
    identity = following._identity(path)
    monkeypatch.setattr(following, "_identity", lambda path: identity)
    assert clock.poll() is not None
    path.write_bytes(data(2))
    assert clock.settle() == [following.LOADED]


def test_change_in_the_same_instant_is_seen_though_the_process_paused_while_it_read(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(data(1))
    identity, read = following._identity(path), following._read
    monkeypatch.setattr(following, "_identity", lambda path: identity)

    def pause(path: Path) -> bytes:
        content = read(path)
        path.write_bytes(data(2))
        # The file is old by now, and was not when it was read.
        later = time.time() + 2 * following.RACY_SECONDS
        monkeypatch.setattr(time, "time", lambda: later)
        monkeypatch.setattr(following, "_read", read)
        return content

    monkeypatch.setattr(following, "_read", pause)
    assert clock.poll() is not None
    assert clock.settle() == [following.LOADED]


def swap_all(mount: Mount, contents: list[bytes]) -> None:
    for content in contents:
        mount.swap(content)


def test_last_of_many_swaps_is_seen_at_the_next_look_whenever_they_were_made(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    follower = Follower(mount.path, allow_older_generation=False)
    generation = 0
    for _ in range(20):
        contents = [data(generation + number) for number in range(1, 11)]
        generation += len(contents)
        swapping = threading.Thread(target=swap_all, args=(mount, contents))
        swapping.start()
        seen = []
        while swapping.is_alive():
            seen.append(follower.poll(0.0))
        swapping.join()
        seen.append(follower.poll(0.0))
        found = [reading.document for reading in seen if reading is not None and reading.document is not None]
        assert found[-1].generation == generation


def test_deleted_file_is_told_once_and_told_again_when_it_is_back(path: Path, clock: Clock) -> None:
    path.write_bytes(data())
    clock.settle()
    path.unlink()
    assert clock.settle() == [following.MISSING]
    path.write_bytes(data())
    assert clock.settle() == [following.RESTORED]


def test_half_written_file_is_not_told_as_broken(path: Path, clock: Clock) -> None:
    path.write_bytes(data(1))
    clock.settle()
    path.write_bytes(data(2)[:1_000])
    assert clock.poll() is None
    path.write_bytes(data(2)[:2_000])
    assert clock.poll() is None
    assert clock.poll() is None
    path.write_bytes(data(2))
    assert clock.settle() == [following.LOADED]


def test_file_that_stays_broken_is_told_once(path: Path, clock: Clock) -> None:
    path.write_bytes(data(1))
    clock.settle()
    path.write_bytes(b"{}")
    assert clock.settle(20) == [following.INVALID]
    path.write_bytes(data(1))
    assert clock.settle() == [following.RESTORED]


def test_file_that_is_broken_otherwise_each_time_is_told_after_a_while(path: Path, clock: Clock) -> None:
    found = []
    for number in range(20):
        path.write_text("{" * number)
        found += clock.settle(1)
    assert following.INVALID in found
    assert not found[: int(following.PATIENCE_SECONDS / 0.5) - 10]


def test_older_generation_is_refused_and_taken_where_that_is_allowed(path: Path, clock: Clock) -> None:
    path.write_bytes(data(5))
    clock.settle()
    swap(path, data(4))
    assert clock.settle() == [following.OLDER_GENERATION]
    allowing = Clock(path, allow_older_generation=True)
    path.write_bytes(data(5))
    allowing.settle()
    swap(path, data(4))
    assert allowing.settle() == [following.LOADED]


def test_document_that_was_not_taken_bars_no_older_one(path: Path) -> None:
    follower = Follower(path, allow_older_generation=False)
    path.write_bytes(data(7))
    assert follower.poll(0.0) is not None  # and not taken: another GPU's, say
    swap(path, data(5))
    reading = follower.poll(1.0)
    assert reading is not None
    assert reading.result == following.LOADED


def test_pipe_is_refused_without_waiting_for_its_other_end(path: Path, clock: Clock) -> None:
    os.mkfifo(path)
    # There never is another end: what waited would wait for ever.
    assert clock.settle() == [following.UNREADABLE]


def test_what_is_no_file_is_not_even_opened(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A writer that waits for the pipe's other end would be woken up, and then killed by SIGPIPE; a watchdog
    # device restarts the machine.
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *given: opened.append(given))
    os.mkfifo(path)
    assert clock.settle() == [following.UNREADABLE]
    assert following.read(path, 60.0) is None
    assert Clock(Path("/dev/zero")).settle() == [following.UNREADABLE]
    assert opened == []


def test_folder_device_link_loop_and_odd_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"")
    for name, result in {
        "folder": following.UNREADABLE,
        "loop": following.UNREADABLE,
        "file/table.json": following.MISSING,
        "null\0byte": following.UNREADABLE,
        "x" * 300: following.UNREADABLE,
    }.items():
        assert Clock(tmp_path / name).settle() == [result], name
    assert Clock(Path("/dev/zero")).settle() == [following.UNREADABLE]


def test_file_without_permission_is_refused_and_taken_when_it_is_given(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path.write_bytes(data(1))
    clock.settle()
    swap(path, data(2))
    # What the kernel answers to anybody but root, who is refused nothing.
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert clock.settle() == [following.UNREADABLE]
    assert clock.settle() == [following.LOADED]


def test_document_is_read_once_or_is_none(path: Path, tmp_path: Path) -> None:
    assert following.read(path, 60.0) is None
    assert following.read(tmp_path, 60.0) is None
    path.write_bytes(b"{}")
    assert following.read(path, 60.0) is None
    path.write_bytes(data(3))
    assert following.read(path, 60.0) == engines.document(generation=3)


def test_huge_file_is_not_read(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse
    read: list[object] = []
    monkeypatch.setattr(os, "fdopen", lambda *given, **_: read.append(given))
    assert clock.settle() == [following.TOO_LARGE]
    assert read == []


def test_no_truncation_or_flipped_byte_raises(path: Path, clock: Clock) -> None:
    whole = data(2)
    path.write_bytes(data(1))
    clock.settle()
    chance = random.Random(1)
    told = set()
    for _ in range(300):
        broken = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.5 else whole)
        for _ in range(chance.randrange(4)):
            if broken:
                broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(broken)
        told |= set(clock.settle(2))
    assert told <= {following.INVALID, following.LOADED, following.OLDER_GENERATION, following.RESTORED}


def test_message_is_short_whatever_the_file_says(path: Path, clock: Clock) -> None:
    path.write_text('{"' + "x" * 100_000 + '": 1}')
    readings = [reading for reading in (clock.poll() for _ in range(5)) if reading is not None]
    assert len(readings) == 1
    assert len(readings[0].message) <= 500


def test_no_file_stays_open_whatever_is_there(path: Path, clock: Clock) -> None:
    def leave(make: Callable[[], object]) -> None:
        path.unlink(missing_ok=True)
        make()

    kinds: list[Callable[[], object]] = [
        lambda: path.write_bytes(data(2)),
        lambda: path.write_bytes(b"broken"),
        lambda: path.write_bytes(b"x" * (documents.MAX_DOCUMENT_BYTES + 1)),
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("/proc/self/mem"),
        lambda: path.symlink_to("/proc"),
    ]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for make in kinds * 5:
        leave(make)
        clock.settle()
        following.read(path, 60.0)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
