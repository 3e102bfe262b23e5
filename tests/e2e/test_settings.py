"""The end-to-end runs' settings: what is wrong is named, what follows from them is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import settings
from e2e.settings import Settings, SettingsError


def test_nothing_set_is_the_cluster_of_this_machine() -> None:
    assert settings.read({}) == Settings()


def test_variables_are_read() -> None:
    found = settings.read(
        {"E2E_CLUSTER": "kind", "E2E_STATE": "/srv/e2e", "E2E_SECONDS": "2.5", "PATH": "/bin"}
    )
    assert found == Settings(cluster="kind", state=Path("/srv/e2e"), seconds=2.5)
    assert found.kubeconfig == Path("/srv/e2e/kubeconfig")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("E2E_CLUSTER", "minikube", "must be one of local, kind, existing"),
        ("E2E_ENGINE", "gpu", "must be one of cpu, image"),
        ("E2E_SECONDS", "0", "must be a number above 0"),
        ("E2E_SECONDS", "fast", "must be a number above 0"),
        ("E2E_STATE", "here", "must be an absolute path"),
        ("E2E_STATE", "/" + "a" * 60, "of 48 characters at most"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(variable: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        settings.read({variable: value})
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)
