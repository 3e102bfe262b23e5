"""What `helm test` runs, in the operator's image: is the operator ready, and may it read DraftTables?"""
# ruff: noqa: S310, T201

import json
import os
import pathlib
import ssl
import urllib.request

ACCOUNT = pathlib.Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))


def get(url: str, token: str = "") -> bytes:
    """Return what is at `url`; ends the test where it cannot be had."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")) if token else None
    try:
        with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
            body: bytes = answer.read()
            return body
    except OSError as error:
        raise SystemExit(f"FAILED: {url}: {error}") from error


get(os.environ["READY"])
print(f"ok: {os.environ['READY']}")

host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
token = (ACCOUNT / "token").read_text().strip()
for namespace in os.environ["NAMESPACES"].split(","):
    place = f"namespaces/{namespace}/" if namespace else ""
    path = f"/apis/tabletune.dev/v1alpha1/{place}drafttables?limit=1"
    json.loads(get(server + path, token))
    print(f"ok: DraftTables can be read in {namespace or 'the cluster'}")
