"""Decides, about twice a second, what the engine serves with: from the file, the settings and what was seen.

The runtime's thread calls :meth:`Controller.tick`. Everything the plugin may do wrong to a serving engine
comes together here, so the order is that of caution: a table that worked stays until another one has been
read, checked and planned for. Whatever raises is told and counted, and changes nothing but that a window is
lost. After :data:`MOST_FAILURES` times the table in force is left alone, until another document begins anew.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from tabletune import controlling
from tabletune.documents import Control, Document, Measure, Mode
from tabletune_plugin import fingerprints, following, states
from tabletune_plugin.following import Follower
from tabletune_plugin.settings import Policy, Settings
from tabletune_plugin.states import Engine, Reload, Report
from tabletune_plugin.steering import Steering
from tabletune_plugin.tallying import Tally
from tabletune_plugin.telling import Telling

logger = logging.getLogger("tabletune")

WINDOW_SECONDS = 1.0
"""Least time between two looks at what was counted."""
MOST_FAILURES = 5
"""Exceptions after which the control stops; the table of then stays."""

MOST_CONTROL_SHARE = 0.02
"""Most of one processor core's time that looking at what was counted may take; a document of many lengths for
an engine of many requests is looked at less often."""

_LOGGED_CHANGES = 4


class Controller:
    """The control of one engine core. Not for several threads, but for :attr:`report`."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        tally: Tally,
        steering: Steering,
        *,
        measures_spans: Callable[[], bool],
        wall_clock: Callable[[], float],
    ) -> None:
        """``measures_spans`` says whether GPU spans are recorded, which is known after the first step."""
        self._engine, self._settings = engine, settings
        self._tally, self._steering = tally, steering
        self._measures_spans, self._wall_clock = measures_spans, wall_clock
        self._follower = Follower(settings.table, allow_older_generation=settings.allow_older_generation)
        self._plan: controlling.Plan | None = None
        self._state: controlling.State | None = None
        self._control: Control | None = None
        self._telling = Telling(logger)
        self._now = 0.0
        self._window_at: float | None = None
        self._window_seconds = WINDOW_SECONDS
        self._attempts = 0
        self._reloads: Counter[str] = Counter()
        self.report = Report(active=False, reason=states.NO_DOCUMENT, message="", lookup=engine.own_lookup)
        """What the plugin does at present; replaced as a whole, for any thread to read."""
        if engine.users_table:
            self.report = replace(
                self.report,
                reason=states.USER_TABLE,
                message="the speculative config has a table of its own, which stays in force;"
                " TABLETUNE_REPLACE_TABLE=1 lets the document replace it",
            )

    def start(self) -> None:
        """Serve as the engine would without TableTune, until there is a document."""
        if not self._engine.users_table:
            self._steering.put_in_force(self._engine.own_lookup)

    def tick(self, now: float) -> None:
        """Look at the file, and at what was counted if it is time; ``now`` in seconds, monotonic."""
        self._now = now
        # The file is followed for ever: another document may be what mends it.
        self._try(self._follow, now)
        if self._attempts < MOST_FAILURES:
            self._try(self._advance, now)

    def _try(self, part: Callable[[float], None], now: float) -> None:
        try:
            part(now)
        except Exception:
            self._fail()

    def _fail(self) -> None:
        self._attempts += 1
        if self._attempts > MOST_FAILURES:
            return
        self.report = replace(self.report, failures=self.report.failures + 1)
        logger.exception(
            "TableTune's controller failed (%d of %d times); %s",
            self._attempts,
            MOST_FAILURES,
            "the table in force stays"
            if self._attempts < MOST_FAILURES
            else "the table in force stays for good",
        )
        if self._attempts == MOST_FAILURES:
            self.report = replace(
                self.report,
                active=False,
                reason=states.CONTROLLER_FAILED,
                also=(),
                message=f"the controller failed {MOST_FAILURES} times; the table of then stays in force",
            )
            logger.error("TableTune's control is off until there is another document; serving goes on")
            if self._steering.lookup is not None:
                self._steering.put_in_force(self._steering.lookup)

    # The file

    def _follow(self, now: float) -> None:
        reading = self._follower.poll(now)
        if reading is None:
            return
        result, message = reading.result, reading.message
        if reading.document is not None:
            result, message = self._load(reading.document, reading.digest)
        self._reloads[result] += 1
        self.report = replace(
            self.report,
            reload=Reload(result, message, self._wall_clock()),
            reloads=MappingProxyType(dict(self._reloads)),
        )
        good = result in (following.LOADED, following.RESTORED)
        level = logging.INFO if good else logging.WARNING
        line = "TableTune's document %s: %s: %s"
        self._telling.tell(now, result, level, line, self._settings.table, result, message)

    def _load(self, document: Document, digest: str) -> tuple[str, str]:
        """Put ``document`` in force if it can be; returns result and message."""
        engine = self._engine
        differences = fingerprints.differences(document.fingerprint, engine.fingerprint)
        serious = [str(difference) for difference in differences if not difference.minor]
        if serious and self._settings.fingerprint_policy is Policy.REFUSE:
            message = f"the engine is not the one that was profiled: {'; '.join(serious)}"
            self._refuse(states.FINGERPRINT_REFUSED, message, differences)
            return states.FINGERPRINT_REFUSED, message
        try:
            control = self._control_for(document)
            plan = controlling.plan(
                document, control, engine.max_num_seqs, engine.fingerprint, engine.lengths
            )
            state = controlling.begin(plan)
            fresh = state.lookup
            # What was learnt may be what raised.
            if self._state is not None and self._attempts < MOST_FAILURES:
                state = controlling.carry(plan, self._state)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:500]
            self._refuse(states.DOCUMENT_UNUSABLE, message, differences)
            return states.DOCUMENT_UNUSABLE, message
        mode = control.mode
        if mode is Mode.ADAPT and not engine.statistics:
            mode = Mode.FOLLOW
        lookup = state.lookup if mode is Mode.ADAPT else fresh
        if not engine.users_table:
            self._steering.put_in_force(engine.own_lookup if mode is Mode.OBSERVE else lookup)
        self._plan, self._state, self._control = plan, state, control
        self._attempts = 0
        self._follower.took(document)
        self.report = replace(
            self.report,
            mode=mode,
            document=document,
            digest=digest,
            document_lookup=fresh,
            lookup=self._in_force(),
            outcome=None,
            differences=differences,
        )
        if not engine.users_table:
            found = self._reasons(mode, control.mode, serious)
            reason, *also = found
            message = "; ".join(filter(None, found.values()))
            self.report = replace(self.report, active=True, reason=reason, also=tuple(also), message=message)
        if serious:
            line = "TableTune's table was profiled elsewhere: %s"
            self._telling.tell(self._now, "elsewhere", logging.WARNING, line, "; ".join(serious))
        return following.LOADED, f"generation {document.generation}, mode {mode}"

    def _control_for(self, document: Document) -> Control:
        """Return the settings in force, with the lengths only that the engine can run."""
        control = self._settings.control_of(document.control)
        cannot = sorted({length for _, _, length in control.pinned} - set(self._engine.lengths))
        if cannot:
            raise ValueError(
                f"lengths {cannot} are pinned, and the engine was started for {list(self._engine.lengths)}:"
                " restart the engine with the document"
            )
        allowed = control.allowed_lengths or document.profile.draft_lengths
        usable = tuple(length for length in allowed if length in self._engine.lengths)
        if not usable:
            raise ValueError(
                f"the document's lengths {list(allowed)} are none of the engine's,"
                f" {list(self._engine.lengths)}: restart the engine with it"
            )
        if usable == tuple(allowed):
            return control
        self._telling.tell(
            self._now,
            "lengths",
            logging.WARNING,
            "TableTune leaves out draft lengths %s: the engine was started for %s",
            sorted(set(allowed) - set(usable)),
            list(self._engine.lengths),
        )
        return control.model_copy(update={"allowed_lengths": usable})

    def _refuse(self, reason: str, message: str, differences: Sequence[fingerprints.Difference]) -> None:
        """Keep what is in force; where nothing was yet, say why."""
        if self._plan is None and not self._engine.users_table:
            self.report = replace(
                self.report, active=False, reason=reason, message=message, differences=tuple(differences)
            )

    @staticmethod
    def _reasons(mode: Mode, asked: Mode, serious: Sequence[str]) -> dict[str, str]:
        """Return the reasons of an active plugin, each with its message: what is amiss, else the mode."""
        found = {}
        if serious:
            found[states.FINGERPRINT_DIFFERS] = "; ".join(serious)
        if mode is not asked:
            found[states.STATISTICS_OFF] = (
                "the engine counts no drafts (--disable-log-stats): the table is followed, not corrected"
            )
        modes = {
            Mode.FOLLOW: states.FOLLOWING,
            Mode.ADAPT: states.ADAPTING,
            Mode.OBSERVE: states.OBSERVING,
        }
        return found or {modes[mode]: ""}

    # What was counted

    def _advance(self, now: float) -> None:
        if self._window_at is None:
            self._window_at = now
        seconds = now - self._window_at
        if seconds < self._window_seconds:
            return
        plan, state, control = self._plan, self._state, self._control
        comparable = self._compare(plan)
        if comparable != self.report.comparable:
            self.report = replace(self.report, comparable=comparable)
        window = self._tally.take(seconds)
        if window.steps == 0:
            return  # nothing to learn; the time counts towards the next window
        self._window_at = now
        if plan is None or state is None or control is None or self.report.mode is Mode.FOLLOW:
            return
        if not comparable:
            window = replace(window, step_times=(), changes=(), timed=False)
        began = time.thread_time()
        self._state, outcome = controlling.advance(plan, state, window)
        self._window_seconds = max(WINDOW_SECONDS, (time.thread_time() - began) / MOST_CONTROL_SHARE)
        changed = outcome.lookup != state.lookup
        self.report = replace(
            self.report,
            outcome=outcome,
            corrections=self.report.corrections + changed,
            shifts=self.report.shifts + outcome.shifted,
        )
        if changed:
            self._tell(outcome)
        if outcome.avoided_changes != state.avoided:
            logger.warning(
                "TableTune avoids changes of length after which steps stalled: %s",
                ", ".join(f"{before} to {after}" for before, after in outcome.avoided_changes),
            )
        if self.report.mode is Mode.ADAPT and not self._engine.users_table:
            self._steering.put_in_force(outcome.lookup, outcome.exploration, control.exploration_share)
            self.report = replace(self.report, lookup=self._in_force())

    def _compare(self, plan: controlling.Plan | None) -> bool:
        """Have steps timed as the profile's were; returns whether they can be."""
        document = self.report.document
        if plan is None or document is None:
            return False
        measure = document.profile.measure
        spans = self._measures_spans()
        comparable = measure is not Measure.GPU_SPAN or spans
        self._tally.measure_spans(measure is Measure.GPU_SPAN and spans)
        self._steering.measure = measure if comparable else None
        return comparable

    def _tell(self, outcome: controlling.Outcome) -> None:
        changes = [
            f"{change.first}-{change.last}: {change.before} to {change.after} ({change.predicted_gain:+.1%})"
            for change in outcome.decision.changes
        ]
        more = "" if len(changes) <= _LOGGED_CHANGES else f" and {len(changes) - _LOGGED_CHANGES} more"
        verb = "corrects" if self.report.mode is Mode.ADAPT else "would correct"
        line, told = "TableTune %s the table: %s%s", ", ".join(changes[:_LOGGED_CHANGES])
        self._telling.tell(self._now, "corrects", logging.INFO, line, verb, told, more)

    def _in_force(self) -> tuple[int, ...]:
        return self._steering.lookup or self._engine.own_lookup
