"""The environment, well and badly written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tabletune.documents import Control, Mode
from tabletune_plugin import settings
from tabletune_plugin.settings import Policy, Settings


def read(**variables: str) -> tuple[Settings, tuple[str, ...]]:
    return settings.read({"TABLETUNE_TABLE": "/t.json", "PATH": "/bin"} | variables)


def test_without_more_than_the_table_all_is_at_its_default() -> None:
    found, complaints = read()
    assert complaints == ()
    assert found == Settings(table=Path("/t.json"))
    assert found.metrics_port == 9410
    assert found.fingerprint_policy is Policy.WARN
    assert found.control_of(Control(half_life=7.0)) == Control(half_life=7.0)


def test_plugins_own_settings_are_read() -> None:
    found, complaints = read(
        TABLETUNE_METRICS_PORT="0",
        TABLETUNE_FINGERPRINT_POLICY="Refuse",
        TABLETUNE_REPLACE_TABLE="1",
        TABLETUNE_ALLOW_OLDER_GENERATION="true",
        TABLETUNE_POLL_SECONDS="2",
    )
    assert found.poll_seconds == 2.0
    assert complaints == ()
    assert found.metrics_port == 0
    assert found.fingerprint_policy is Policy.REFUSE
    assert found.replace_table is True
    assert found.allow_older_generation is True


def test_every_field_of_the_control_section_has_a_variable() -> None:
    assert {name.removeprefix("TABLETUNE_").lower() for name in settings.CONTROL_VARIABLES} == set(
        Control.model_fields
    )


def test_environment_wins_over_the_document() -> None:
    found, complaints = read(
        TABLETUNE_MODE="adapt",
        TABLETUNE_HALF_LIFE="30",
        TABLETUNE_HYSTERESIS="0.05",
        TABLETUNE_MIN_DRAFTS="100",
        TABLETUNE_ALLOWED_LENGTHS="0, 2",
        TABLETUNE_PINNED="[[1, 4, 0]]",
    )
    assert complaints == ()
    control = found.control_of(Control(half_life=7.0, prior_drafts=5.0))
    assert control.mode is Mode.ADAPT
    assert (control.half_life, control.prior_drafts) == (30.0, 5.0)
    assert (control.hysteresis, control.min_drafts) == (0.05, 100)
    assert control.allowed_lengths == (0, 2)
    assert control.pinned == ((1, 4, 0),)


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("TABLETUNE_METRICS_PORT", "94100", "a port from 1 to 65535"),
        ("TABLETUNE_METRICS_PORT", "-1", "a port from 1 to 65535"),
        ("TABLETUNE_METRICS_PORT", "tcp://10.0.0.1:9410", "Kubernetes sets for a Service named"),
        ("TABLETUNE_FINGERPRINT_POLICY", "ignore", "must be warn or refuse"),
        ("TABLETUNE_REPLACE_TABLE", "maybe", "must be 1 or 0"),
        ("TABLETUNE_POLL_SECONDS", "0", "from 0.01 to 60"),
        ("TABLETUNE_POLL_SECONDS", "nan", "from 0.01 to 60"),
        ("TABLETUNE_POLL_SECONDS", "often", "from 0.01 to 60"),
        ("TABLETUNE_MODE", "adept", "'observe', 'follow' or 'adapt'"),
        ("TABLETUNE_HALF_LIFE", "0", "greater than 0"),
        ("TABLETUNE_HALF_LIFE", "NaN", "valid number"),
        ("TABLETUNE_MIN_DRAFTS", "1.5", "valid integer"),
        ("TABLETUNE_MIN_DRAFTS", "true", "valid integer"),
        ("TABLETUNE_ALLOWED_LENGTHS", "2,1", "ascending"),
        ("TABLETUNE_PINNED", "1-4", "valid tuple"),
    ],
)
def test_bad_value_is_told_with_what_is_right_and_alone_falls_back(name: str, text: str, right: str) -> None:
    others = {"TABLETUNE_PRIOR_DRAFTS": "9"}
    found, (complaint,) = read(**{name: text} | others)
    assert complaint.startswith(f"{name} is {text!r}, ")
    assert right in complaint
    assert found == read(**others)[0]
    assert found.control == {"prior_drafts": 9.0}


def test_unknown_variable_is_told_and_one_of_kubernetes_is_not() -> None:
    _, (complaint,) = read(
        TABLETUNE_HALFLIFE="3",
        TABLETUNE_SERVICE_HOST="10.0.0.1",
        TABLETUNE_OPERATOR_PORT_9410_TCP_ADDR="10.0.0.1",
        TABLETUNE_PORT="tcp://10.0.0.1:80",
    )
    assert complaint.startswith("TABLETUNE_HALFLIFE is no setting")
    assert "TABLETUNE_HALF_LIFE" in complaint


def test_long_value_is_cut_in_the_complaint() -> None:
    _, (complaint,) = read(TABLETUNE_MODE="x" * 10_000)
    assert len(complaint) < 400


def test_settings_are_shown_as_plain_values() -> None:
    found, _ = read(TABLETUNE_MODE="adapt", TABLETUNE_PINNED="[[1,2,0]]")
    assert settings.shown(found)["control"] == {"mode": "adapt", "pinned": [[1, 2, 0]]}
    assert settings.shown(found)["table"] == "/t.json"
