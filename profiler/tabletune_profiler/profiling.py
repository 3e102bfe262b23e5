"""Takes a profile: asks the engine process for one measurement after the other, and survives its deaths.

``commands.profile`` calls :func:`take`. All that was measured is in a :class:`~states.State` at any time,
which goes to disk after every batch size, so that an interrupt or a kill costs at most that one. While
the disk is full, the profile goes on in memory.

Rules for an engine that dies, hangs or fails:

1. It is started again, and the cell it died in is tried once more.
2. A cell that it dies in twice is left out, with the engine's last words as the reason, also where another
   visit to it went well: a table that uses it would end a serving engine. Dying twice with speculation off,
   which no table uses, ends that measurement only.
3. After ``MAX_RESTARTS`` restarts the profile stops; what was measured stays on disk.
4. The acceptance run is tried twice, and without it there is no table.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from tabletune import acceptance, assembling, graphs
from tabletune.documents import (
    Acceptance,
    Control,
    Document,
    Profile,
)
from tabletune_plugin.engine.facts import Severity
from tabletune_profiler import cells, checking, messages, partials, planning, results, states, verifying
from tabletune_profiler.exit_codes import EngineError, InputError, NotServableError, OutputError
from tabletune_profiler.partials import CellRecord, MixedRecord, Partial
from tabletune_profiler.planning import Column, MixedCell, Options, Plan
from tabletune_profiler.progress import Reporter
from tabletune_profiler.prompts import Prompt
from tabletune_profiler.states import State
from tabletune_profiler.supervising import EngineLostError, EngineProcess, RefusedError
from tabletune_profiler.verifying import VerifiedCell

MAX_RESTARTS = 8
"""Each costs an engine start, minutes on a GPU; an engine that dies more often cannot be profiled."""
MIXED_REPEATS = 5
"""Prompts timed per mixed cell."""
WIDE_ERROR = 0.01
"""Relative standard error of a cell's median above which it is timed again: the tie tolerance's size."""
NO_TOKENIZER_PROMPT_TOKENS = 128
"""Length of the random prompts of an engine without a tokenizer."""
LEAST_VERIFY_SECONDS = 2.0
"""Seconds of pure steps that any batch size is verified for."""
CONFIGURE_TIMEOUT = 600.0
"""Seconds to import vLLM and to read a model's configuration."""
LAST_WORDS_IN_DOCUMENT = 800
"""Characters of an engine's last words that go into a document's reason."""


@dataclass(frozen=True)
class Request:
    """What to profile, and within which bounds."""

    arguments: tuple[str, ...]
    """Arguments of ``vllm serve``."""
    prompts: tuple[Prompt, ...]
    options: Options
    control: Control
    output: Path
    time_budget: float | None = None
    """Seconds for the sweep; ``None`` for as long as it takes."""
    start_timeout: float = 1_800.0
    """Seconds for the engine to start: loading weights and capturing graphs takes minutes."""
    answer_timeout: float = 120.0
    """Seconds without a sign of life after which the engine counts as hung."""
    verify_seconds: float | None = None
    """Seconds to serve each constant length for at one request, to compare with the prediction; larger
    batches take less. ``None``: do not."""
    verify_all_prompts: bool = False
    """Whether each verification also completes every prompt, so that its text is the acceptance run's."""


@dataclass(frozen=True)
class Outcome:
    """A finished profile, and how the time was spent."""

    document: Document
    seconds_start: float
    """Engine starts."""
    seconds_sweep: float
    """The step-time sweep, wall clock."""
    seconds_counted: float
    """Of these, spent in steps that count."""
    verified: tuple[VerifiedCell, ...] = ()
    """Predictions against measurements, where the request asks for it."""


class Answering(Protocol):
    """Answers commands about one engine, as :class:`~supervising.EngineProcess` does."""

    def ask(self, command: messages.Command, timeout: float) -> Iterator[messages.Message]:
        """Yield the answers to ``command``."""

    def close(self) -> None:
        """End it."""


def take(
    request: Request,
    reporter: Reporter,
    now: Callable[[], datetime],
    start_process: Callable[[Path], Answering] | None = None,
) -> Outcome:
    """Take the profile that ``request`` describes and return its document.

    ``start_process`` makes what answers for the engine, of the path of its log; by default a new
    :class:`~supervising.EngineProcess`, after each death again.

    Raises :class:`~exit_codes.InputError`, :class:`~exit_codes.NotServableError` or
    :class:`~exit_codes.EngineError`. Whatever ends it, the partial file holds all that was measured.
    """
    with ExitStack() as stack:
        run = stack.enter_context(_Run(request, reporter, start_process or EngineProcess))
        run.configure()
        run.resume()
        try:
            run.measure()
        except BaseException as ended:
            run.save_after(ended)
            raise
        run.keep()
        document = run.document(now())
        verified = run.verify(document)
    return Outcome(document, run.seconds_start, run.seconds_sweep, run.seconds_counted, verified)


def configure(
    process: Answering, arguments: tuple[str, ...], draft_lengths: tuple[int, ...] | None
) -> messages.Configured:
    """Return what ``arguments`` of ``vllm serve`` mean, from a new engine process.

    Raises :class:`~exit_codes.InputError`, :class:`~exit_codes.NotServableError` or
    :class:`~exit_codes.EngineError`.
    """
    try:
        (answer,) = process.ask(messages.Configure(arguments, draft_lengths), CONFIGURE_TIMEOUT)
    except RefusedError as error:
        raise (NotServableError if error.kind == "unsupported" else InputError)(str(error)) from error
    except EngineLostError as error:
        raise EngineError(f"{error.what}\n{error.last_words}") from error
    assert isinstance(answer, messages.Configured)
    return answer


def log_path(output: Path) -> Path:
    """Return where the engine's log of ``output`` lies."""
    return output.with_name(output.name + ".engine.log")


class _Run:
    """One profile being taken: the engine process of the moment, the plan and the state."""

    def __init__(
        self, request: Request, reporter: Reporter, start_process: Callable[[Path], Answering]
    ) -> None:
        self._request, self._reporter = request, reporter
        self._start_process = start_process
        self._log = log_path(request.output)
        self._partial_path = partials.path_of(request.output)
        self._process: Answering | None = None
        self._started = False
        self._restarts = 0
        self._deaths: Counter[tuple[int, int]] = Counter()
        self._deaths_off = 0
        self._unsaved = False
        self._state = State()
        self._configured: messages.Configured
        self._plan: Plan
        self._token_ids: tuple[tuple[int, ...], ...] = ()
        self._max_tokens: tuple[int, ...] = ()
        self._prompts: tuple[tuple[int, ...], ...] = ()
        self._has_text = True
        self.seconds_start = self.seconds_sweep = self.seconds_counted = 0.0

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.close()

    def configure(self) -> None:
        """Learn what the arguments mean, refuse what cannot be, and make the plan."""
        self._configured = self._new_process()
        for obstacle in checking.obstacles(self._configured):
            told = f"{obstacle.name}: {obstacle.reason} {obstacle.remedy}"
            if obstacle.severity is Severity.REFUSED:
                raise NotServableError(told)
            self._reporter.warn(told)
        if self._configured.had_table:
            self._reporter.note("The table in --speculative-config is set aside while the profile is taken.")
        options = self._request.options
        try:
            self._plan = planning.make(options, self._configured)
        except planning.PlanError as error:
            raise InputError(str(error)) from error
        if self._plan.context_length != options.wanted_context:
            self._reporter.note(
                f"Steps are timed around {self._plan.context_length} tokens of context per request instead of"
                f" {options.wanted_context}: so many fit, with what requests grow by while they are timed,"
                f" between prompts of {planning.LEAST_PROMPT} tokens and --max-model-len"
                f" {self._configured.max_model_len}."
            )

    def resume(self) -> None:
        """Go on from an earlier run's cells where they were measured on the same thing in the same way."""
        partial = partials.read(self._partial_path)
        if partial is None:
            return
        if partial.fingerprint != self._configured.fingerprint or partial.settings != self._settings():
            aside = partials.put_aside(self._partial_path)
            self._reporter.warn(
                f"{self._partial_path} is of another engine or other options. It is kept as {aside.name},"
                " and the profile starts anew."
            )
            return
        self._state = State.of(partial)
        self._reporter.note(
            f"Going on from {self._partial_path}: {len(self._state.cells)} cells are measured already."
        )

    def save(self) -> None:
        """Write what is known to the partial file."""
        partials.write(
            self._partial_path,
            Partial(
                fingerprint=self._configured.fingerprint,
                settings=self._settings(),
                acceptance=self._state.acceptance,
                cells=tuple(self._state.cells[key] for key in sorted(self._state.cells)),
                off=tuple(self._state.off[key] for key in sorted(self._state.off)),
                mixed=tuple(self._state.mixed.values()),
            ),
        )

    def keep(self) -> None:
        """Save, and go on where that fails: all is in memory still, and the disk may have room later."""
        try:
            self.save()
        except OutputError as error:
            if not self._unsaved:
                self._reporter.warn(f"{error} The profile goes on; stopped now, it would lose what is new.")
            self._unsaved = True
        else:
            self._unsaved = False

    def save_after(self, ended: BaseException) -> None:
        """Save what is known when ``ended`` ends the profile; where that fails, tell both."""
        try:
            self.save()
        except OutputError as error:
            why = f" The profile had ended: {ended}" if str(ended) else ""
            raise OutputError(f"{error} What was measured since it was last written is lost.{why}") from ended

    def measure(self) -> None:
        """Measure all that the plan asks for and that is not known yet."""
        self._leave_out_hazards()
        if self._anything_left():
            self._tokenize()
            self._start()
        if self._state.acceptance is None:
            self._count_acceptance()
            self.keep()
        self._sweep()
        self._time_mixed()

    def document(self, created_at: datetime) -> Document:
        """Return the document of what was measured.

        Raises :class:`EngineError` where that is too little, :class:`InputError` where the time for it was.
        """
        assert self._state.acceptance is not None
        profile = results.profile(self._plan, self._state, self._configured)
        if all(time is None for row in profile.step_time_ms for time in row):
            reasons = sorted({cell.reason for cell in profile.excluded})
            # Prompts that are long and many fill no batch in a short time, and would not the next time.
            if self._restarts == 0 and any(reason.startswith(states.OUT_OF_TIME) for reason in reasons):
                raise InputError(
                    f"No cell could be timed: {'; '.join(reasons[:3])}. Give more; the profile then goes on"
                    f" from {self._partial_path}."
                )
            raise EngineError(
                f"No cell could be timed: {'; '.join(reasons[:3])}. Remove {self._partial_path} to try all"
                " cells again."
            )
        counted = results.counted_acceptance(
            self._state.acceptance,
            len(self._request.prompts),
            uniform_drafts=self._configured.uniform_drafts,
        )
        options = self._request.options
        self._tell_evidence(counted)
        if wide := self._wide_columns():
            self._reporter.warn(
                f"{sum(len(column.visits) for column in wide)} cells are known to no better than"
                f" {WIDE_ERROR:.0%} (batch sizes {', '.join(str(c.batch_size) for c in wide)}): the machine"
                " was busy with something else, or its speed varies. Profile on a quiet one, or with more"
                " --steps."
            )
        self._tell_graphs(profile)
        if self._configured.uniform_drafts and not profile.off_ms:
            self._reporter.warn(
                "Draft length 0 still runs the drafter once a step, and without its pass no step could be"
                " timed: gains over speculation off are told against length 0, and are too high by that pass."
            )
        try:
            return assembling.assemble(
                fingerprint=self._configured.fingerprint,
                profile=profile,
                acceptance=counted,
                control=self._request.control,
                created_at=created_at,
                prompt_tokens=options.prompt_tokens,
                output_tokens=options.output_tokens,
                speculative_config=self._configured.speculative_config,
            )
        except assembling.NOT_COMPUTABLE as error:
            raise EngineError(
                f"What could be measured makes no table: {error} {len(profile.excluded)} cells were left out."
                f" Remove {self._partial_path} to try all cells again."
            ) from error

    def verify(self, document: Document) -> tuple[VerifiedCell, ...]:
        """Serve every timed cell's constant length for a while, and return predicted against measured.

        An engine that dies here ends the verification only: the document is there.
        """
        if self._request.verify_seconds is None:
            return ()
        if not self._token_ids:  # everything else was known from an earlier run
            self._tokenize()
        timed = [cell for cell in self._state.cells.values() if cell.samples and not cell.excluded]
        verified: list[VerifiedCell] = []
        try:
            self._start()
            self._reporter.phase("verify", len(timed))
            self._verify_cells(timed, document, verified)
        except (EngineLostError, EngineError) as error:
            self._reporter.warn(
                f"The verification ends after {len(verified)} of {len(timed)} cells: {error}."
            )
        return tuple(verified)

    def _verify_cells(
        self, timed: Sequence[CellRecord], document: Document, verified: list[VerifiedCell]
    ) -> None:
        assert self._request.verify_seconds is not None
        for done, cell in enumerate(sorted(timed, key=lambda c: (c.batch_size, c.draft_length)), start=1):
            command = messages.MeasureGoodput(
                cell.batch_size,
                cell.draft_length,
                self._token_ids,
                self._request.options.acceptance_tokens if self._has_text else planning.SPARE_TOKENS,
                # Larger batches keep more tokens a second, so they are as sure in less time.
                max(self._request.verify_seconds / cell.batch_size, LEAST_VERIFY_SECONDS),
                complete=len(self._token_ids) if self._request.verify_all_prompts else 0,
            )
            for answer in self._ask(command):
                if isinstance(answer, messages.GoodputMeasured):
                    found = verifying.compare(document, cell.batch_size, cell.draft_length, answer)
                    verified += [found] if found else []
            self._reporter.advance(done, batch_size=cell.batch_size, draft_length=cell.draft_length)

    def _settings(self) -> str:
        options = dataclasses.asdict(self._request.options)
        # Of the usual lengths only the context that follows from them is measured at; all else about them
        # is computed afterwards.
        for later in ("prompt_tokens", "output_tokens"):
            options.pop(later)
        options["context_length"] = self._plan.context_length
        prompts = [prompt.model_dump(mode="json") for prompt in self._request.prompts]
        return partials.settings_hash(options, prompts, self._plan.draft_lengths, self._plan.batch_sizes)

    def _new_process(self) -> messages.Configured:
        self._process = self._start_process(self._log)
        self._started = False
        return configure(self._process, self._request.arguments, self._request.options.draft_lengths)

    def _start(self) -> None:
        """Start the engine, in a new process where the last one was lost."""
        if self._started:
            return
        if self._process is None:
            self._restarts += 1
            if self._restarts > MAX_RESTARTS:
                raise EngineError(
                    f"The engine died {self._restarts} times; see {self._log}. What was measured is in"
                    f" {self._partial_path}."
                )
            self._new_process()
        assert self._process is not None
        again = self._restarts > 0
        if again:  # within a phase, whose progress goes on afterwards
            self._reporter.note("Starting the engine again.")
        else:
            self._reporter.phase("start", 1)
        try:
            (answer,) = self._process.ask(messages.Start(), self._request.start_timeout)
        except RefusedError as error:
            raise EngineError(f"{error} See {self._log}.") from error
        except EngineLostError as error:
            raise EngineError(f"While starting, {error.what}. Its last words:\n{error.last_words}") from error
        assert isinstance(answer, messages.Started)
        self.seconds_start += answer.seconds
        self._started = True
        if not again:
            self._reporter.advance(1)

    def _ask(self, command: messages.Command) -> Iterator[messages.Message]:
        """Ask the running engine, starting it where there is none; a lost one is cleared away."""
        self._start()
        assert self._process is not None
        where = ""
        try:
            for answer in self._process.ask(command, self._request.answer_timeout):
                if isinstance(answer, messages.CellStarted):
                    where = f" at B={answer.batch_size} K={answer.draft_length}"
                elif isinstance(answer, messages.OffStarted):
                    where = f" at B={answer.batch_size} with speculation off"
                yield answer
        except EngineLostError as error:
            self._process.close()
            self._process, self._started = None, False
            self._reporter.warn(f"{error.what[0].upper()}{error.what[1:]}{where}. See {self._log}.")
            raise

    def _tokenize(self) -> None:
        assert self._process is not None
        try:
            (answer,) = self._process.ask(messages.Tokenize(self._request.prompts), CONFIGURE_TIMEOUT)
        except EngineLostError as error:
            raise EngineError(f"{error.what}\n{error.last_words}") from error
        assert isinstance(answer, messages.Tokenized)
        tokens = self._request.options.acceptance_tokens
        max_tokens = [prompt.max_tokens or tokens for prompt in self._request.prompts]
        room = self._configured.max_model_len - tokens
        token_ids = answer.token_ids
        if not any(token_ids):
            self._has_text = False
            self._reporter.warn("The engine has no tokenizer, so random tokens stand in for the prompts.")
            length = max(0, min(NO_TOKENIZER_PROMPT_TOKENS, room))
            token_ids = planning.sweep_prompts((), length, self._configured.vocabulary, count=len(token_ids))
        fitting = [
            (ids, most)
            for ids, most in zip(token_ids, max_tokens, strict=True)
            if 0 < len(ids) <= self._configured.max_model_len - most
        ]
        if not fitting:
            raise InputError(
                f"No prompt fits: with {tokens} output tokens it may have {room} tokens (--max-model-len"
                f" {self._configured.max_model_len})."
            )
        if left_out := len(token_ids) - len(fitting):
            self._reporter.warn(
                f"{left_out} prompts are left out: with their output they are longer than --max-model-len"
                f" {self._configured.max_model_len}."
            )
        self._token_ids = tuple(ids for ids, _ in fitting)
        self._max_tokens = tuple(most for _, most in fitting)

    def _count_acceptance(self) -> None:
        options = self._request.options
        command = messages.CountAcceptance(
            draft_length=max(self._plan.draft_lengths),
            prompts=self._token_ids,
            max_tokens=self._max_tokens,
            concurrency=min(options.acceptance_concurrency, self._configured.fingerprint.max_num_seqs),
        )
        for attempt in (1, 2):
            self._start()
            self._reporter.phase("acceptance", len(self._token_ids))
            try:
                for answer in self._ask(command):
                    if isinstance(answer, messages.AcceptanceProgress):
                        self._reporter.advance(answer.done)
                    elif isinstance(answer, messages.AcceptanceCounted):
                        self._state.acceptance = partials.acceptance_record(answer)
                return
            except EngineLostError as error:
                if attempt == 2:
                    raise EngineError(
                        f"The acceptance run failed twice: {error.what}. Last words:\n{error.last_words}"
                    ) from error

    def _columns_left(self) -> list[Column]:
        """Return the columns of the plan with the visits that were not made yet."""
        left = [Column(c.batch_size, self._state.visits_left(c)) for c in self._plan.columns]
        return [column for column in left if column.visits]

    def _mixed_left(self) -> list[MixedCell]:
        """Return the mixed cells that are not known yet and whose pure steps do not kill the engine."""
        left_out = {key for key, record in self._state.cells.items() if record.excluded}
        return [
            cell
            for cell in self._plan.mixed
            if cell not in self._state.mixed and (cell.batch_size, cell.draft_length) not in left_out
        ]

    def _anything_left(self) -> bool:
        if self._state.acceptance is None or self._columns_left() or self._mixed_left():
            return True
        return self._request.options.repeats > 0 and bool(self._wide_columns())

    def _leave_out_hazards(self) -> None:
        for batch_size, length in self._plan.avoided:
            self._state.exclude(
                batch_size,
                length,
                "not timed: target and drafter would run different CUDA graphs, which has killed engines",
                fatal=True,
            )

    def _sweep(self) -> None:
        began = time.monotonic()
        deadline = math.inf if self._request.time_budget is None else began + self._request.time_budget
        columns = self._columns_left()
        total = sum(len(column.visits) for column in self._plan.columns)
        self._reporter.phase("sweep", total, total - sum(len(column.visits) for column in columns))
        done = total - sum(len(column.visits) for column in columns)
        for index, column in enumerate(columns):
            left = sum(len(later.visits) for later in columns[index:])
            steps = self._steps_within(deadline, left)
            if steps is None:
                for length in dict.fromkeys(column.visits):
                    self._leave_out_of_time(column.batch_size, length)
            else:
                self._time_column(column, steps, done, deadline)
            done += len(column.visits)
            self._reporter.advance(done)
            self.keep()
        for _ in range(self._request.options.repeats):
            wide = self._wide_columns()
            if not wide or time.monotonic() > deadline:
                break
            self._reporter.phase("repeat", sum(len(column.visits) for column in wide))
            done = 0
            for column in wide:
                if time.monotonic() <= deadline:
                    self._time_column(column, self._plan.steps_per_visit, done, deadline)
                done += len(column.visits)
            self.keep()
        self.seconds_sweep += time.monotonic() - began

    def _steps_within(self, deadline: float, visits_left: int) -> int | None:
        """Return the steps per visit that the time left allows; ``None`` where it allows none."""
        most = self._plan.steps_per_visit
        if math.isinf(deadline):
            return most
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        intervals = [row.interval_ms for cell in self._state.cells.values() for row in cell.samples]
        if not intervals:
            return most
        per_step = statistics.fmean(intervals) / 1e3
        # The steps that are dropped cost as much as those that count.
        affordable = int(left / (visits_left * per_step)) - 5
        return max(3, min(most, affordable))

    def _leave_out_of_time(self, batch_size: int, length: int) -> None:
        """Leave a cell out that there is no time for, unless something is known of it."""
        if (batch_size, length) not in self._state.cells:
            reason = f"{states.OUT_OF_TIME} {self._request.time_budget:g} s was used up"
            self._state.exclude(batch_size, length, reason)

    def _time_column(self, column: Column, steps: int, done: int, deadline: float) -> None:
        """Time the cells of one batch size, through deaths of the engine."""
        visits = list(column.visits)
        while visits:
            command = messages.TimeCells(
                column.batch_size,
                tuple(visits),
                steps,
                self._sweep_prompts(column.batch_size),
                self._off_steps(column.batch_size, steps),
                max(0.0, deadline - time.monotonic()),
            )
            current: int | None = visits[0]
            try:
                for answer in self._ask(command):
                    match answer:
                        case messages.CellStarted(_, length):
                            current = length
                        case messages.OffStarted():
                            current = None
                        case messages.CellTimed():
                            self._state.add_samples(answer)
                            self.seconds_counted += answer.seconds_counted
                            visits.pop(0)
                            done += 1
                            self._reporter.advance(
                                done, batch_size=column.batch_size, draft_length=answer.draft_length
                            )
                        case messages.OffTimed():
                            self._state.add_off(answer)
                            self.seconds_counted += answer.seconds_counted
                        case messages.CellUnreachable(batch_size, length, reason):
                            if (batch_size, length) not in self._state.cells:
                                self._state.exclude(batch_size, length, reason)
                                self._reporter.warn(f"B={batch_size} K={length} is left out: {reason}")
                            visits = [k for k in visits if k != length]
                        case messages.OutOfTime(batch_size):
                            for length in visits:
                                self._leave_out_of_time(batch_size, length)
                            visits = []
            except EngineLostError as error:
                if current is None:
                    self._lose_off(error)
                    continue
                self._deaths[column.batch_size, current] += 1
                if self._deaths[column.batch_size, current] > 1:
                    reason = f"{error.what}, twice in this cell. {error.last_words}"[:LAST_WORDS_IN_DOCUMENT]
                    self._state.exclude(column.batch_size, current, reason, fatal=True)
                    self._reporter.warn(
                        f"B={column.batch_size} K={current} is left out: {error.what}, twice."
                    )
                    visits = [k for k in visits if k != current]
                self.keep()

    def _off_steps(self, batch_size: int, steps: int) -> int:
        """Return how many steps to time with speculation off, as many as the visits of a length together.

        0 where that is known already, where engines died of it, and for drafters that look into text: they
        have no pass to leave out.
        """
        if not self._configured.uniform_drafts or batch_size in self._state.off or self._deaths_off > 1:
            return 0
        return planning.VISITS * steps

    def _lose_off(self, error: EngineLostError) -> None:
        """Note an engine that was lost with speculation off: no cell is to blame, and two are enough."""
        self._deaths_off += 1
        if self._deaths_off > 1:
            self._reporter.warn(
                f"Speculation off is timed no further: {error.what}, twice with the drafter left out."
            )

    def _wide_columns(self) -> list[Column]:
        """Return the cells whose time is not sure enough to tell lengths apart, by batch size."""
        profile_cells = results.timed_cells(self._state, self._configured)
        wide = []
        for column in self._plan.columns:
            visits = tuple(
                length
                for length in dict.fromkeys(column.visits)
                if (cell := profile_cells.get((column.batch_size, length))) is not None
                and cells.relative_error(cell) > WIDE_ERROR
            )
            if visits:
                wide.append(Column(column.batch_size, visits))
        return wide

    def _time_mixed(self) -> None:
        left = self._mixed_left()
        self._reporter.phase("mixed", len(self._plan.mixed), len(self._plan.mixed) - len(left))
        for index, cell in enumerate(left, start=len(self._plan.mixed) - len(left) + 1):
            command = messages.TimePrompts(
                cell.batch_size,
                cell.draft_length,
                cell.prompt_tokens,
                MIXED_REPEATS,
                self._sweep_prompts(cell.batch_size),
            )
            for attempt in (1, 2):
                try:
                    for answer in self._ask(command):
                        if isinstance(answer, messages.PromptsTimed):
                            self._state.mixed[cell] = MixedRecord(
                                **dataclasses.asdict(cell), added_ms=answer.added_ms
                            )
                            if not answer.added_ms:
                                self._reporter.warn(
                                    f"A prompt of {cell.prompt_tokens} tokens never joined {cell.batch_size}"
                                    " requests; that step is left out."
                                )
                    break
                except EngineLostError as error:
                    if attempt == 2:
                        self._reporter.warn(
                            f"Steps with a prompt of {cell.prompt_tokens} tokens at B={cell.batch_size}"
                            f" K={cell.draft_length} are left out: {error.what}, twice."
                        )
            self._reporter.advance(index, batch_size=cell.batch_size, draft_length=cell.draft_length)

    def _sweep_prompts(self, batch_size: int) -> tuple[tuple[int, ...], ...]:
        """Return a prompt for each request: equal ones would share KV cache blocks, which serving does not.

        They are the first of the same set for every batch size, so that the prefix cache spares prefills.
        """
        if not self._prompts:
            self._prompts = planning.sweep_prompts(
                self._token_ids,
                self._plan.prompt_length,
                self._configured.vocabulary,
                count=max(self._plan.batch_sizes),
            )
        return self._prompts[:batch_size]

    def _tell_evidence(self, counted: Acceptance) -> None:
        longest = max(self._plan.draft_lengths)
        evidence = acceptance.evidence(counted.drafted, counted.accepted, counted.proposal_rate, longest)
        if not evidence.enough:
            self._reporter.warn(
                f"Only {evidence.drafts} drafts were seen, {evidence.needed} are needed to know the expected"
                f" tokens to {evidence.precision:.0%}; they are known to {evidence.relative_error:.1%}."
                " Give more prompts or longer outputs."
            )

    def _tell_graphs(self, profile: Profile) -> None:
        """Warn where the engine ran another kind of graph than its settings let one expect."""
        settings = graphs.GraphSettings.from_fingerprint(self._configured.fingerprint, profile.draft_lengths)
        unexpected = [
            f"B={batch_size} K={length}: {kind}"
            for row, length in enumerate(profile.draft_lengths)
            for column, batch_size in enumerate(profile.batch_sizes)
            if (kind := profile.graph[row][column]) is not None
            and kind is not graphs.dispatch(settings, batch_size, length).kind
        ]
        if unexpected:
            self._reporter.warn(
                f"The engine ran other CUDA graphs than expected of its settings in {len(unexpected)} cells"
                f" ({', '.join(unexpected[:5])}…); times between measured batch sizes are less sure."
            )
