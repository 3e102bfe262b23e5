"""What a plan wants done: values that ``applying`` sends to the API server, in their order.

As values, so that a test reads what would be done without a cluster, and so that one module alone does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Create:
    """Make an object that must not be there yet; where it is, the plan was made on old news."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class Apply:
    """Server-side apply: make it so, whatever it was, in the fields that the body has."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class Delete:
    """Delete an object and what it owns; one that is gone is no fault."""

    kind: str
    name: str


@dataclass(frozen=True)
class Merge:
    """Set a few fields of an object that is there, the others untouched."""

    kind: str
    name: str
    patch: Mapping[str, Any]


Action = Create | Apply | Delete | Merge


@dataclass(frozen=True)
class Happened:
    """An Event to post about the DraftTable."""

    reason: str
    message: str
    warning: bool
