import io
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tabletune import documents
from tabletune_profiler import files
from tabletune_profiler.exit_codes import InputError, OutputError

EXAMPLE = Path(__file__).parents[1] / "data" / "example-document.json"


class Standard:
    """Stands in for ``sys.stdin`` or ``sys.stdout``."""

    def __init__(self, content: bytes = b"") -> None:
        self.buffer = io.BytesIO(content)

    def flush(self) -> None:
        pass


def test_document_is_read() -> None:
    assert files.read_document(EXAMPLE) == documents.parse(EXAMPLE.read_bytes())


def test_document_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Standard(EXAMPLE.read_bytes()))
    assert files.read_document(Path("-")) == documents.parse(EXAMPLE.read_bytes())


def test_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.json cannot be read: No such file or directory"):
        files.read_document(tmp_path / "nothing.json")


def test_folder_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        files.read_document(tmp_path)


def test_endless_file_is_read_to_the_bound_only() -> None:
    with pytest.raises(InputError, match="/dev/zero holds more than 900000 bytes"):
        files.read_document(Path("/dev/zero"))


def test_faults_are_listed_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"schemaVersion": 1, "generation": 0}')
    with pytest.raises(InputError) as caught:
        files.read_document(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path} is not a usable table document."
    assert "  fingerprint: field required" in lines
    assert any(line.startswith("  generation: ") and "found 0" in line for line in lines)


@pytest.mark.parametrize(
    ("unknown_fields", "last_line"),
    # Besides them 7 fields are missing (createdAt, fingerprint, profile, acceptance, table, recommendation,
    # prediction): 30 + 7 faults of which 20 are shown, and 100 + 7 of which the first 50 are looked at.
    [(30, "  and 17 more"), (100, "  and at least 30 more")],
)
def test_many_faults_are_cut(tmp_path: Path, unknown_fields: int, last_line: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{" + ", ".join(f'"x{number}": 0' for number in range(unknown_fields)) + "}")
    with pytest.raises(InputError) as caught:
        files.read_document(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + files.MAX_PROBLEMS_SHOWN + 1
    assert lines[-1] == last_line


def test_file_is_written_and_nothing_else(tmp_path: Path) -> None:
    files.write(tmp_path / "table.json", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"table.json": b"new"}


def test_new_file_is_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "table.json", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "table.json").stat().st_mode) == 0o640


def test_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    path.chmod(0o604)
    files.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_link_keeps_pointing_at_the_replaced_file(tmp_path: Path) -> None:
    target, link = tmp_path / "table.json", tmp_path / "current.json"
    target.write_bytes(b"old")
    link.symlink_to(target.name)
    files.write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        files.write(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_full_disk_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    # A limit on the size of files stops the write half way, as a full disk does. In a process of its
    # own, since the limit would hold for pytest too.
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    code = (
        "import sys; from pathlib import Path; from tabletune_profiler import files\n"
        "try: files.write(Path(sys.argv[1]), bytes(100_000))\n"
        "except files.OutputError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{path} could not be written: File too large." in run.stdout
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"table.json": b"old"}


def test_full_device_is_told_and_not_replaced() -> None:
    # 100,000 bytes are more than a buffer, so that writing itself fails and not only closing.
    for size in (10, 100_000):
        with pytest.raises(OutputError, match=r"/dev/full could not be written: No space left.*Free some"):
            files.write(Path("/dev/full"), bytes(size))
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="The folder does not exist"):
        files.write(tmp_path / "nowhere" / "table.json", b"new")


def test_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="no folder"):
        files.write(tmp_path / "file" / "table.json", b"new")


def test_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="It is a folder"):
        files.write(tmp_path, b"new")


def test_read_only_place_is_told() -> None:
    # /proc takes no new file from anyone, root included, unlike a folder without write permission.
    with pytest.raises(OutputError, match="could not be written"):
        files.write(Path("/proc/table.json"), b"new")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(OutputError, match="that you may write"):
        files.write(tmp_path / "table.json", b"new")


def test_standard_output_gets_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    standard = Standard()
    monkeypatch.setattr(sys, "stdout", standard)
    files.write(Path("-"), b"new\xff")
    assert standard.buffer.getvalue() == b"new\xff"


def test_full_disk_behind_standard_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputError, match="Standard output could not be written: No space left"):
            files.write(Path("-"), bytes(100_000))
        monkeypatch.undo()
        with Path(os.devnull).open("w") as nowhere:  # for what is left in the buffer
            os.dup2(nowhere.fileno(), full.fileno())


def test_links_in_a_circle_are_told_and_kept(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(second)
    second.symlink_to(first)
    with pytest.raises(OutputError, match="links lead in a circle"):
        files.write(first, b"new")
    with pytest.raises(InputError, match="cannot be read"):
        files.read(first, 10)
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second"}
    assert first.is_symlink()
