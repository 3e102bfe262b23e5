"""The API server is reached from a pod and from a kubeconfig, by token and by certificate."""

from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path

import kopf
import pytest
import yaml

from tabletune_operator import credentials
from tabletune_operator.handlers import operator_settings


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """A certificate and its key, base64 as in a kubeconfig."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=me"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return base64.b64encode(certificate.read_bytes()).decode(), base64.b64encode(key.read_bytes()).decode()


def test_a_kubeconfig_with_certificates_in_it_is_enough(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = pair
    user = {"client-certificate-data": certificate, "client-key-data": key}
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": certificate}
    config = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": user}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    found = credentials.find(operator_settings())
    assert found.server == "https://127.0.0.1:6443"
    assert isinstance(credentials.tls(found), ssl.SSLContext)
    assert credentials.headers(found) == {}


def test_in_a_pod_the_address_is_the_environments_and_the_token_the_latest(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("token", "one"), ("namespace", "ns"), ("ca.crt", base64.b64decode(pair[0]).decode())):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    found = credentials.find(operator_settings())
    assert found.server == "https://[fd00::1]:443"
    assert isinstance(credentials.tls(found), ssl.SSLContext)
    (tmp_path / "token").write_text("two\n")
    again = credentials.find(operator_settings())
    assert credentials.headers(again) == {"Authorization": "Bearer two"}


def test_without_either_it_says_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(credentials.CredentialsError, match="neither a service account"):
        credentials.find(operator_settings())


def test_whoever_gave_up_checking_gets_no_check() -> None:
    assert credentials.tls(kopf.ConnectionInfo(server="https://x", insecure=True)) is False
