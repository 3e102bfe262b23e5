"""Digests of what a profile depends on: whether one is due, and which Job is the right one.

``planning`` compares them. Two questions are asked of one spec. A *profile* is due when what is measured
changes, and only then: a new tolerance of the table must not cost GPU minutes. A *Job* that has not
finished is replaced when anything about it changes: one that waits for a toleration must be able to get it.

Only what differs from a default counts, so that a later version's new fields leave the digests as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tabletune.api.drafttables import Spec

LENGTH = 10
"""Characters of a digest: a Job is named after it."""

_NOT_MEASURED = (
    "tolerations",
    "resources",
    "priority_class_name",
    "scheduler_name",
    "queue_name",
    "labels",
    "annotations",
    "backoff_limit",
    "active_deadline_seconds",
    "ttl_seconds_after_finished",
)
"""Fields of ``spec.profile`` that decide whether and when a pod runs, not what it measures."""
_NOT_MEASURED_OF_ENGINE = ("image_pull_policy", "image_pull_secrets")


def digest(content: object) -> str:
    """Return the digest of ``content``, what JSON can say."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]


def profile(spec: Spec, requested_at: str) -> str:
    """Return the digest of what is measured; ``requested_at`` is the annotation's value, or empty."""
    return _inputs(spec, requested_at, _NOT_MEASURED_OF_ENGINE, _NOT_MEASURED)


def job(spec: Spec, requested_at: str) -> str:
    """Return the digest of all that the Job is made from."""
    return _inputs(spec, requested_at)


def content(data: Mapping[str, str]) -> str:
    """Return the digest of a ConfigMap's ``data``."""
    return digest(dict(data))


def _inputs(
    spec: Spec, requested_at: str, but_of_engine: tuple[str, ...] = (), but_of_profile: tuple[str, ...] = ()
) -> str:
    return digest(
        {
            "model": _plain(spec.model),
            "drafter": _plain(spec.drafter),
            "engine": _plain(spec.engine, but_of_engine),
            "profile": _plain(spec.profile, but_of_profile),
            "requestedAt": requested_at,
        }
    )


def _plain(model: Any, excluded: tuple[str, ...] = ()) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(excluded))
