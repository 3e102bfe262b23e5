"""What the environment says about the plugin; it wins over the document.

Read when the engine starts: where its configuration is made, for the start-up table, and where its core
lives, which also tells what is wrong. A pod's environment is written by hand, in a chart or a patch, and a
typing error there must not take a server down: each bad value is told with its name, what was found and what
is right, and only that one setting falls back, to the document's value or the default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tabletune import documents
from tabletune.documents import Control

PREFIX = "TABLETUNE_"
TABLE = "TABLETUNE_TABLE"
METRICS_PORT = "TABLETUNE_METRICS_PORT"
FINGERPRINT_POLICY = "TABLETUNE_FINGERPRINT_POLICY"
REPLACE_TABLE = "TABLETUNE_REPLACE_TABLE"
ALLOW_OLDER_GENERATION = "TABLETUNE_ALLOW_OLDER_GENERATION"
POLL_SECONDS = "TABLETUNE_POLL_SECONDS"

CONTROL_VARIABLES = {PREFIX + name.upper(): name for name in Control.model_fields}
"""Variables that change a field of the document's ``control`` section: ``TABLETUNE_HALF_LIFE`` is
``halfLife``. Values are JSON; words and lists of numbers need no quotes or brackets."""

_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}

_OF_KUBERNETES = re.compile(r"TABLETUNE_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)$")
"""What Kubernetes sets for a Service whose name starts with ``tabletune``."""

_TEXT_SHOWN = 80


class Policy(StrEnum):
    """What to do where the engine is not the one that was profiled."""

    WARN = "warn"
    """Follow the table all the same, and say so."""
    REFUSE = "refuse"
    """Leave the engine as it would be without TableTune."""


class Settings(BaseModel):
    """The plugin's own settings, and what the environment changes of the document's control section."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    table: Path
    """Path of the table document; it may come later, change and go."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 9410
    """Port of metrics, health and debugging; 0: none."""
    fingerprint_policy: Policy = Policy.WARN
    """What to do where the engine is not the one that was profiled."""
    replace_table: bool = False
    """Whether the document replaces a table that the user gave vLLM; by default that one stays."""
    allow_older_generation: bool = False
    """Whether a document of an older generation than the last one is taken, to go back on purpose."""
    poll_seconds: Annotated[float, Field(ge=0.01, le=60)] = 0.5
    """Seconds between two looks at the file; at half a second a change is in force well within two."""
    control: dict[str, Any] = {}
    """Fields of the document's control section with another value, by their Python names."""

    def control_of(self, given: Control) -> Control:
        """Return the document's control section with the environment's changes."""
        return Control.model_validate(given.model_copy(update=self.control).model_dump(by_alias=False))


def read(environment: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and a complaint for each variable that is not as it should be.

    ``TABLETUNE_TABLE`` must be set.
    """
    complaints: list[str] = []
    chosen: dict[str, Any] = {"table": Path(environment[TABLE])}
    control: dict[str, Any] = {}
    readers = {
        METRICS_PORT: ("metrics_port", _port),
        FINGERPRINT_POLICY: ("fingerprint_policy", _policy),
        REPLACE_TABLE: ("replace_table", _flag),
        ALLOW_OLDER_GENERATION: ("allow_older_generation", _flag),
        POLL_SECONDS: ("poll_seconds", _seconds),
    }
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name == TABLE:
            continue
        try:
            if name in readers:
                field, reader = readers[name]
                chosen[field] = reader(text.strip())
            elif name in CONTROL_VARIABLES:
                field = CONTROL_VARIABLES[name]
                control[field] = _control_value(field, text.strip())
            elif not _OF_KUBERNETES.match(name):
                known = ", ".join(sorted([*readers, *CONTROL_VARIABLES]))
                complaints.append(f"{name} is no setting of TableTune and is ignored. There are {known}.")
        except ValueError as error:
            complaints.append(f"{name} is {text[:_TEXT_SHOWN]!r}, {error}. It counts as unset.")
    return Settings(**chosen, control=control), tuple(complaints)


def _port(text: str) -> int:
    if text.startswith("tcp://"):
        raise ValueError(
            "which Kubernetes sets for a Service named tabletune-metrics; set the variable in the pod, or"
            " enableServiceLinks: false"
        )
    if not text.isascii() or not text.isdigit() or int(text[:6]) > 65_535:
        raise ValueError("must be a port from 1 to 65535, or 0 for none")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.01 <= seconds <= 60:
        raise ValueError("must be a number of seconds from 0.01 to 60")
    return seconds


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError("must be 1 or 0")
    return _FLAGS[text.lower()]


def _policy(text: str) -> Policy:
    try:
        return Policy(text.lower())
    except ValueError as error:
        raise ValueError("must be warn or refuse") from error


def _control_value(field: str, text: str) -> object:
    """Return the value of one field of the control section; raises ``ValueError`` that says what is right."""
    try:
        control = documents.validate_as(Control, {field: _json_or_words(field, text)})
    except documents.DocumentError as error:
        raise ValueError(error.problems[0].expected) from error
    except pydantic.ValidationError as error:
        raise ValueError("must be a value of the document's control section") from error
    return getattr(control, field)


def _json_or_words(field: str, text: str) -> object:
    """Return what ``text`` says: JSON, ``0,1,3`` for a list of lengths, or else the text itself."""
    if field == "allowed_lengths" and not text.startswith("["):
        text = f"[{text}]"
    try:
        return documents.parse_json(text)
    except documents.DocumentError:
        return text.lower()


def shown(settings: Settings) -> dict[str, object]:
    """Return the settings as plain values, for ``/debug/table``: names as in a document."""
    content: dict[str, object] = json.loads(settings.model_dump_json(exclude={"control"}))
    changed = Control.model_validate(settings.control).model_dump(mode="json", by_alias=True)
    control = {to_camel(field): changed[to_camel(field)] for field in settings.control}
    return {to_camel(name): value for name, value in content.items()} | {"control": control}
