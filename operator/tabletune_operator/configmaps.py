"""The three ConfigMaps of a DraftTable: the report of a Job, the history, and the one that pods mount.

The history is the truth. Each generation is an immutable entry whose name holds its number, so creating it is
the one act that makes a generation, and only one of two operators can do it. The mounted ConfigMap is a
copy of the newest entry: deleted or edited by hand, it is written again.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tabletune import documents, rendering
from tabletune.api import names
from tabletune.documents import Document, DocumentError, Problem
from tabletune_operator import digests
from tabletune_operator.owners import Owner


@dataclass(frozen=True)
class Origin:
    """Where a generation comes from."""

    profile_digest: str
    """Inputs that its measurements were taken with; empty for an adopted table."""
    accepted_digest: str
    """Inputs of the last profile that was accepted; differs after a rollback."""
    restored_from: int | None = None
    """Generation that it repeats."""
    rollback_reason: str = ""
    """``spec`` or ``guard`` after a rollback."""


def report(owner: Owner, name: str, profile_digest: str) -> dict[str, Any]:
    """Return the empty report of the Job called ``name``.

    It has no ``data``: that is the pod's, and what the operator does not apply it does not own.
    """
    annotations = {names.PROFILE_DIGEST_ANNOTATION: profile_digest}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(name, {names.ROLE_LABEL: names.ROLE_REPORT}, annotations),
    }


def history_name(owner: Owner, generation: int) -> str:
    """Return the name of a generation's entry."""
    return f"{owner.name}-g{generation}"


def history(owner: Owner, document: Document, origin: Origin) -> dict[str, Any]:
    """Return the entry of one generation; compressed, since ten of each of hundreds of tables are kept."""
    data = documents.dump(document)
    annotations = {
        names.GENERATION_ANNOTATION: str(document.generation),
        names.SOURCE_ANNOTATION: document.source.value,
        names.PROFILE_DIGEST_ANNOTATION: origin.profile_digest,
        names.ACCEPTED_DIGEST_ANNOTATION: origin.accepted_digest,
    }
    if origin.restored_from is not None:
        annotations[names.RESTORED_FROM_ANNOTATION] = str(origin.restored_from)
    if origin.rollback_reason:
        annotations[names.ROLLBACK_REASON_ANNOTATION] = origin.rollback_reason
    name = history_name(owner, document.generation)
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(name, {names.ROLE_LABEL: names.ROLE_HISTORY}, annotations),
        "immutable": True,
        "binaryData": {names.HISTORY_KEY: packed},
    }


def served(owner: Owner, name: str, document: Document, control_digest: str) -> dict[str, Any]:
    """Return the ConfigMap that pods mount.

    Raises :class:`tabletune.rendering.RenderingError` for a document that has no form for vLLM or is too
    large.
    """
    body = rendering.config_map(document, name=name, namespace=owner.namespace)
    annotations = {
        **body["metadata"]["annotations"],
        names.CONTENT_DIGEST_ANNOTATION: digests.content(body["data"]),
        names.CONTROL_DIGEST_ANNOTATION: control_digest,
    }
    body["metadata"] = owner.metadata(name, {names.ROLE_LABEL: names.ROLE_TABLE}, annotations)
    return body


def read_history(body: Mapping[str, Any]) -> Document:
    """Return the document of a history entry.

    Raises :class:`tabletune.documents.DocumentError` for anything else, whatever somebody put there: what
    unpacks to more than a document may hold is not unpacked.
    """
    packed = (body.get("binaryData") or {}).get(names.HISTORY_KEY)
    if not isinstance(packed, str):
        raise DocumentError([Problem(names.HISTORY_KEY, "nothing", "must hold a document")])
    try:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        data = unpacker.decompress(base64.b64decode(packed, validate=True), documents.MAX_DOCUMENT_BYTES + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise DocumentError([Problem(names.HISTORY_KEY, str(error)[:200], "must be gzip")]) from error
    return documents.parse(data)


def read_document(body: Mapping[str, Any]) -> Document:
    """Return the document in a report or a mounted ConfigMap; raises as :func:`read_history` does."""
    text = (body.get("data") or {}).get(rendering.DOCUMENT_FILE)
    if not isinstance(text, str):
        raise DocumentError([Problem(rendering.DOCUMENT_FILE, "nothing", "must hold a document")])
    return documents.parse(text)
