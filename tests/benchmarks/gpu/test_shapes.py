"""Shapes that a lease serves, as they are written. Whether vLLM takes them is for engines to tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.gpu import made  # noqa: F401  # benchmarks on the path

from gpu import shapes  # isort: skip


def written(folder: Path, name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / name / "config.json").read_text())
    return config


def test_dflash_reads_the_layers_that_its_users_state(tmp_path: Path) -> None:
    shapes.main(tmp_path)
    assert written(tmp_path, "qwen3-4b-dflash")["dflash_config"]["target_layer_ids"] == [1, 9, 17, 25, 33]


@pytest.mark.parametrize("layers", [2, 4, 20, 36])
def test_cut_drafter_reads_layers_that_its_target_has(tmp_path: Path, layers: int) -> None:
    shapes.main(tmp_path, layers)
    target, drafter = written(tmp_path, "qwen3-4b"), written(tmp_path, "qwen3-4b-dflash")
    read = drafter["dflash_config"]["target_layer_ids"]
    assert read
    assert max(read) < target["num_hidden_layers"] == drafter["num_target_layers"] == layers


def test_drafters_share_vocabulary_and_width_with_their_target(tmp_path: Path) -> None:
    shapes.main(tmp_path)
    target = written(tmp_path, "qwen3-4b")
    for drafter in (written(tmp_path, "qwen3-4b-eagle3"), written(tmp_path, "qwen3-4b-dflash")):
        assert {name: drafter[name] for name in ("vocab_size", "hidden_size")} == {
            name: target[name] for name in ("vocab_size", "hidden_size")
        }
