"""The DraftTable's models agree with what the API server is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune.api import crds, drafttables, reasons


def minimal(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "drafter": {"method": "ngram"},
        "engine": {"image": "vllm:1"},
    }
    return spec | changes


def test_defaults_fill_in_what_a_minimal_spec_leaves_out() -> None:
    spec = drafttables.parse(minimal())
    assert (spec.drafter.draft_lengths, spec.profile.gpu.count, spec.table.history_limit) == (
        (0, 1, 2, 3),
        1,
        10,
    )
    assert spec.serving.mode is drafttables.ServingMode.OBSERVE
    assert not spec.paused


def test_a_field_of_a_newer_version_is_ignored() -> None:
    assert drafttables.parse(minimal(later={"x": 1})) == drafttables.parse(minimal())


def test_a_volume_keeps_its_source() -> None:
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
    spec = drafttables.parse(minimal(engine={"image": "vllm:1", "volumes": [volume]}))
    assert spec.engine.volumes[0].model_dump(by_alias=True) == volume


def test_what_does_not_fit_is_told_with_its_path() -> None:
    with pytest.raises(
        drafttables.SpecError, match=r"spec\.drafter\.draftLengths\.0: input should be a valid integer"
    ):
        drafttables.parse(minimal(drafter={"method": "ngram", "draftLengths": ["x"]}))


def test_the_models_own_defaults_are_the_definitions() -> None:
    def filled(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        found = dict(value)
        for name, child in schema["properties"].items():
            if name not in found and "default" in child:
                found[name] = child["default"]
            if name in found and child.get("properties"):
                found[name] = filled(child, found[name])
        return found

    by_server = filled(crds.structural(drafttables.Spec), minimal())
    assert drafttables.parse(by_server) == drafttables.parse(minimal())


def test_every_reason_has_one_meaning_and_a_name_for_machines() -> None:
    names = [reason.name for reason in reasons.REASONS]
    assert len(set(names)) == len(names)
    assert all(name.isalnum() and name[0].isupper() for name in names)
    assert all(reason.meaning.endswith(".") for reason in reasons.REASONS)


def test_every_warning_says_what_to_do() -> None:
    assert not [reason.name for reason in reasons.REASONS if reason.warning and not reason.remedy]
