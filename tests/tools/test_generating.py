"""Generated files are written where they differ, and only compared where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import generating


def test_what_differs_is_written_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tools/generate_all.py"])
    same, other, new = tmp_path / "same.md", tmp_path / "other.md", tmp_path / "folder" / "new.md"
    same.write_text("same")
    other.write_text("old")
    generating.run({same: "same", other: "other", new: "new"})
    assert (other.read_text(), new.read_text()) == ("other", "new")
    assert capsys.readouterr().out.splitlines() == [f"Written: {other}", f"Written: {new}"]


def test_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tools/generate_all.py", "--check"])
    same, other = tmp_path / "same.md", tmp_path / "other.md"
    same.write_text("same")
    with pytest.raises(SystemExit) as ended:
        generating.run({same: "same", other: "other"})
    assert ended.value.code == 1
    assert not other.exists()
    assert capsys.readouterr().err == f"{other} is out of date. Run tools/generate_all.py.\n"
    with pytest.raises(SystemExit) as ended:
        generating.run({same: "same"})
    assert ended.value.code == 0
