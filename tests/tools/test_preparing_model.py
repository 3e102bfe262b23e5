"""`tools/preparing_model.py` without the unpacking, which the engine tests see the result of."""

from pathlib import Path

import pytest

import preparing_model
from preparing_model import ModelError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(preparing_model, "find_gguf", lambda: tmp_path / "model.gguf")
    return tmp_path / "models" / "small"


def write_weights(_: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_text("weights")


def fail_half_way(gguf: Path, folder: Path) -> None:
    write_weights(gguf, folder)
    raise OSError(28, "No space left on device")


def test_the_model_appears_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing_model, "unpack", write_weights)
    assert preparing_model.main([str(folder)]) == 0
    assert [path.relative_to(folder.parent).as_posix() for path in sorted(folder.parent.rglob("*"))] == [
        "small",
        "small/model.safetensors",
    ]


def test_an_unpacking_that_fails_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparing_model, "unpack", fail_half_way)
    assert preparing_model.main([str(folder)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert list(folder.parent.iterdir()) == []


def test_a_finished_model_is_not_unpacked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing_model, "unpack", fail_half_way)
    folder.mkdir(parents=True)
    assert preparing_model.main([str(folder)]) == 0


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing_model, "PACKAGE", "tabletune_no_such_package")
    with pytest.raises(ModelError, match=r"tabletune_no_such_package is not installed.*make setup"):
        preparing_model.find_gguf()


def test_the_bundled_model_is_found_without_importing_its_package() -> None:
    assert preparing_model.find_gguf().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
