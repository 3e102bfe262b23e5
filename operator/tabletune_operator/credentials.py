"""How the operator reaches the API server: from its pod's service account, or a kubeconfig outside a cluster.

Kopf's watches and the operator's own requests use the same. Kopf's own login asks for
``kubernetes.default.svc`` by name; the address in the pod's environment also serves clusters without DNS,
and while DNS is down.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from pathlib import Path

import kopf

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class CredentialsError(RuntimeError):
    """There is no way to the API server."""


def find(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    """Return how to connect now; a service account's token is read anew each time, since it is rotated.

    Raises :class:`CredentialsError` with what was looked for.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = SERVICE_ACCOUNT / "token"
    if host and token.exists() and not os.environ.get("KUBECONFIG"):
        return kopf.ConnectionInfo(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
            token=token.read_text().strip(),
            default_namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        )
    found = kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise CredentialsError(
            f"There is neither a service account in {SERVICE_ACCOUNT} nor a kubeconfig (KUBECONFIG, or"
            " ~/.kube/config)."
        )
    return found


def tls(info: kopf.ConnectionInfo) -> ssl.SSLContext | bool:
    """Return the TLS settings of ``info``; ``False`` where the user gave up checking certificates."""
    if info.insecure:
        return False
    data = _text(info.ca_data)
    context = ssl.create_default_context(
        cafile=None if info.ca_path is None else os.fspath(info.ca_path), cadata=data
    )
    if info.certificate_path is not None:
        key = None if info.private_key_path is None else os.fspath(info.private_key_path)
        context.load_cert_chain(os.fspath(info.certificate_path), key)
    elif info.certificate_data is not None and info.private_key_data is not None:
        # Python takes a client's certificate from a file alone.
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{_text(info.certificate_data)}\n{_text(info.private_key_data)}\n")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def headers(info: kopf.ConnectionInfo) -> dict[str, str]:
    """Return the headers that identify the operator."""
    return {"Authorization": f"Bearer {info.token}"} if info.token else dict(info.as_http_headers())


def _text(data: str | bytes | None) -> str | None:
    if data is None:
        return None
    return base64.b64decode(data).decode()
