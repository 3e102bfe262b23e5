"""What the parts of the plugin tell each other: the engine it runs in, and what it does there at present.

All of it is frozen: the controller's thread makes a new :class:`Report` and puts one reference in place, and
the threads that serve metrics read whichever is there, without a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tabletune import controlling
from tabletune.documents import Document, Fingerprint, Mode
from tabletune_plugin.fingerprints import Difference

# Reasons while active.
FOLLOWING = "Following"
"""The document's table is in force (mode follow)."""
ADAPTING = "Adapting"
"""The table in force is corrected from live traffic (mode adapt)."""
OBSERVING = "Observing"
"""The engine's own table stays in force; what adapting would do is shown (mode observe)."""
FINGERPRINT_DIFFERS = "FingerprintDiffers"
"""As by the mode, but the engine is not the one that was profiled (policy warn)."""
STATISTICS_OFF = "StatisticsOff"
"""The engine counts no drafts (``--disable-log-stats``), so the table is followed instead of corrected."""

# Reasons while not.
UNSUPPORTED_VERSION = "UnsupportedVersion"
"""A vLLM that TableTune does not know."""
HOOKS_DIFFER = "HooksDiffer"
"""A known version whose functions are not as expected: patched, or a development build."""
NO_SPECULATIVE_CONFIG = "NoSpeculativeConfig"
"""vLLM was started without a speculative config."""
DATA_PARALLEL = "DataParallel"
"""Several data parallel ranks; vLLM ignores a table then. This and further reasons of the configuration are
the names of obstacles (:mod:`tabletune_plugin.engine.facts`): PipelineParallel, MethodWithoutTable."""
NO_LOOKUP = "NoLookup"
"""The scheduler was started without a table, for a reason that is not known."""
UNKNOWN_SCHEDULER = "UnknownScheduler"
"""The engine uses a scheduler class that is not vLLM's own."""
USER_TABLE = "UserTable"
"""The user's own table is in force and stays (``TABLETUNE_REPLACE_TABLE`` replaces it)."""
START_FAILED = "StartFailed"
"""The plugin could not start in this engine; the log says how."""
NO_DOCUMENT = "NoDocument"
"""There was no valid document yet."""
DOCUMENT_UNUSABLE = "DocumentUnusable"
"""The document is valid, but does not fit this engine or these settings."""
FINGERPRINT_REFUSED = "FingerprintRefused"
"""The engine is not the one that was profiled, and by policy that is refused."""
CONTROLLER_FAILED = "ControllerFailed"
"""The controller failed too often; the table of then stays in force."""


@dataclass(frozen=True)
class Engine:
    """The engine core, as far as the plugin needs it, in plain values."""

    fingerprint: Fingerprint
    """What a profile of it would be taken on."""
    max_num_seqs: int
    """Most requests in a step."""
    longest: int
    """``num_speculative_tokens``: no draft is longer."""
    lengths: tuple[int, ...]
    """Draft lengths that it can run as it was started: those that graphs were captured for."""
    own_lookup: tuple[int, ...]
    """What it would serve with if TableTune were not there: the user's table, or one constant length."""
    users_table: bool
    """Whether the user's own table is to stay."""
    asynchronous: bool
    """Whether it schedules a step while the one before runs."""
    uniform_drafts: bool
    """Whether every request gets a draft of the full length."""
    statistics: bool
    """Whether it counts drafts."""
    warnings: tuple[str, ...] = ()
    """What a table costs or risks in it."""


@dataclass(frozen=True)
class Reload:
    """The last thing that was new about the file."""

    result: str
    """A result of :mod:`tabletune_plugin.following`, or a reason why a valid document is not used."""
    message: str
    """For a person."""
    at: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Report:
    """What the plugin does at present, and why."""

    active: bool
    """Whether it does what its mode says."""
    reason: str
    """One of this module's constants."""
    message: str
    """For a person; empty where there is nothing to add."""
    also: tuple[str, ...] = ()
    """Further reasons that hold at the same time."""
    mode: Mode | None = None
    """Mode in force; ``None`` without a document."""
    document: Document | None = None
    """The document in force."""
    digest: str = ""
    """SHA-256 of its bytes."""
    lookup: tuple[int, ...] = ()
    """The lookup in force, entry 0 unused; empty where there is none."""
    document_lookup: tuple[int, ...] = ()
    """The document's lookup, hazards kept off."""
    outcome: controlling.Outcome | None = None
    """What the last window led to."""
    differences: tuple[Difference, ...] = ()
    """Where the engine is not the one that was profiled."""
    reload: Reload | None = None
    """The last reload."""
    reloads: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Reloads by result."""
    corrections: int = 0
    """Windows after which the lookup was another."""
    shifts: int = 0
    """Switches of the workload that were noticed."""
    failures: int = 0
    """Exceptions of the controller's own, after each of which the table in force stayed."""
    comparable: bool = False
    """Whether live step times are of the profile's measure."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons, the main one first."""
        return self.reason, *self.also
