"""What the operator is told by its environment; checked at start, each value named that is wrong.

Environment variables and not flags, since a chart writes them and a person reads them in the pod. All start
with ``TABLETUNE_OPERATOR_``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "TABLETUNE_OPERATOR_"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


class SettingsError(ValueError):
    """A setting cannot be used; names each with what was found and what is right."""


@dataclass(frozen=True)
class Settings:
    """The operator's settings; the variable is the field's name in capitals after the prefix."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to look after, with commas between; empty: all of the cluster."""
    workers: int = 8
    """DraftTables that are looked at at the same time."""
    resync_seconds: float = 300.0
    """Time between two comparisons of the memory with the cluster, for what vanished unseen."""
    port: int = 8080
    """Port of /metrics, /healthz and /readyz; 0: none."""
    lease: str = "tabletune-operator"
    """Name of the Lease by which one of several operators leads; empty: this is the only one."""
    lease_namespace: str = "default"
    """Its namespace; the operator's own."""
    identity: str = ""
    """Name in the Lease; empty: the host's, which is the pod's."""
    scrapes: int = 32
    """Serving pods that are read at the same time."""
    scrape_seconds: float = 5.0
    """Longest that reading one pod may take."""
    log_format: str = "text"
    """text, or json for one object a line."""
    log_level: str = "info"
    """info, or debug for every watch and every look that failed, too."""


def read(environment: Mapping[str, str]) -> Settings:
    """Return the settings in ``environment``; raises :class:`SettingsError`."""
    chosen: dict[str, Any] = {}
    problems = []
    readers: dict[str, Callable[[str], Any]] = {
        "namespaces": _namespaces,
        "workers": _number(int, 1, 64),
        "resync_seconds": _number(float, 1, 86_400),
        "port": _number(int, 0, 65_535),
        "scrapes": _number(int, 1, 512),
        "scrape_seconds": _number(float, 0.1, 60),
        "log_format": _one_of("text", "json"),
        "log_level": _one_of("info", "debug"),
    }
    known = {PREFIX + field.name.upper(): field.name for field in fields(Settings)}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        if variable not in known:
            problems.append(f"{variable} is no setting. There are {', '.join(sorted(known))}.")
            continue
        name = known[variable]
        try:
            chosen[name] = readers.get(name, str)(text.strip())
        except ValueError as error:
            problems.append(f"{variable} is {text[:80]!r}, {error}.")
    if problems:
        raise SettingsError("\n".join(problems))
    return Settings(**chosen)


def _namespaces(text: str) -> tuple[str, ...]:
    found = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    for name in found:
        if not _NAMESPACE.match(name):
            raise ValueError(f"and {name[:80]!r} is no name of a namespace")
    return found


def _number(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
    def reader(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            raise ValueError(f"must be a number from {least:g} to {most:g}") from None
        if not least <= number <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}")
        return number

    return reader


def _one_of(*words: str) -> Callable[[str], str]:
    def reader(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return reader
