"""Times as Kubernetes writes them: in the status, in annotations, in Leases.

The one place that writes and reads them: one that is written otherwise than it is read would never be due,
or for ever.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def text_of(moment: datetime, precision: Literal["seconds", "microseconds"] = "seconds") -> str:
    """Return ``moment`` as Kubernetes writes it; a Lease's times have microseconds.

    >>> text_of(datetime(2026, 11, 30, tzinfo=UTC))
    '2026-11-30T00:00:00Z'
    """
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def parse(text: str) -> datetime | None:
    """Return the time that Kubernetes writes as ``text``; ``None`` for what is none."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
