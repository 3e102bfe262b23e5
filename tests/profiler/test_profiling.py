"""Taking a profile through everything that can go wrong, with an engine that fails as the test says."""

from __future__ import annotations

import errno
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabletune import documents, tables
from tabletune.documents import Document, Graph, Measure
from tabletune_plugin.engine.facts import Obstacle, Severity
from tabletune_profiler import exit_codes, files, messages, partials, profiling, states
from tabletune_profiler.exit_codes import CommandError, EngineError, InputError, NotServableError, OutputError
from tabletune_profiler.messages import Sample
from tabletune_profiler.partials import CellRecord, Partial
from tabletune_profiler.planning import Column, MixedCell
from tabletune_profiler.profiling import Outcome
from tabletune_profiler.prompts import Prompt
from tabletune_profiler.supervising import RefusedError
from tests.core import strategies
from tests.profiler import engines
from tests.profiler.engines import Reports, ScriptedEngine

CELLS = tuple(itertools.product((1, 2, 4), (0, 1, 2)))
"""Of :func:`engines.request`, each visited twice for two steps."""


@pytest.fixture
def reports() -> Reports:
    return Reports()


def take(engine: ScriptedEngine, folder: Path, reports: Reports | None = None, **changes: Any) -> Outcome:
    """Profile ``engine``; whatever comes of it, no process is left."""
    request = engines.request(folder, **changes)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(profiling, "EngineProcess", engine.start_process)
            return profiling.take(request, reports or Reports(), lambda: strategies.CREATED_AT)
    finally:
        assert all(process.closed for process in engine.processes)


def untroubled(folder: Path, **changes: Any) -> Document:
    """The document of the same profile where nothing goes wrong."""
    (folder / "untroubled").mkdir()
    return take(ScriptedEngine(), folder / "untroubled", **changes).document


def kept(folder: Path) -> Partial:
    found = partials.read(folder / "table.json.partial")
    assert found is not None
    return found


def times(document: Document) -> dict[tuple[int, int], float | None]:
    profile = document.profile
    return {
        (batch_size, length): profile.step_time_ms[row][column]
        for row, length in enumerate(profile.draft_lengths)
        for column, batch_size in enumerate(profile.batch_sizes)
    }


def reasons(document: Document) -> dict[tuple[int, int], str]:
    return {(cell.batch_size, cell.draft_length): cell.reason for cell in document.profile.excluded}


# A profile without trouble


def test_profile_holds_what_the_engine_took(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    outcome = take(engine, tmp_path)
    document = outcome.document
    # Two visits of two steps, at 1.0000 and 1.0001 times the cell's time: the median is 1.00005 times.
    assert times(document) == {cell: round(engines.step_ms(*cell) * 1.00005, 4) for cell in CELLS}
    assert document.profile.samples == ((4,) * 3,) * 3
    assert document.profile.measure is Measure.QUIET_INTERVAL
    assert document.profile.graph == ((Graph.NONE,) * 3,) * 3
    assert document.profile.context_length == 256 + 256 // 2
    assert document.fingerprint == engine.configured.fingerprint
    assert document.speculative_config == engine.configured.speculative_config
    assert document.acceptance.survival == (0.8, 0.5)
    assert document.acceptance.prompts == 2
    assert len(engine.processes) == 1
    assert outcome.seconds_start == 2.0
    # 4 steps in each cell of 10 + B + 2K ms: 9 · 10, then each batch size and each length thrice.
    assert outcome.seconds_counted == pytest.approx(4 * (9 * 10 + 3 * 7 + 2 * 3 * 3) / 1e3, rel=1e-3)


def test_each_cell_is_visited_there_and_back(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    take(engine, tmp_path)
    assert Counter(engine.visits) == dict.fromkeys(CELLS, 2)
    for batch_size in (1, 2, 4):
        lengths = [length for size, length in engine.visits if size == batch_size]
        assert lengths == lengths[::-1]


def test_drafter_that_is_a_model_proposes_always(tmp_path: Path) -> None:
    # 600 of 640 requests and steps had a draft: the others were first steps, which belong to their prompts.
    assert take(ScriptedEngine(), tmp_path).document.acceptance.proposal_rate == 1.0


def test_drafter_that_looks_up_proposes_as_often_as_counted(tmp_path: Path) -> None:
    engine = ScriptedEngine(configured=engines.configured(uniform_drafts=False, drafter_method="ngram"))
    acceptance = take(engine, tmp_path).document.acceptance
    assert acceptance.proposal_rate == 600 / 640
    # Both positions are over all 600 drafts, also those that the drafter cut short.
    assert acceptance.drafted == (600, 600)


def test_varying_drafts_are_timed_at_the_share_that_was_drafted(tmp_path: Path) -> None:
    # Per request and step the acceptance run drafted 320/640 = 0.5 tokens at length 1, and 480/640 = 0.75 at
    # length 2. At one request a step takes 20 ms without a draft and 10 ms more per token of it.
    def looked_up(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        return tuple(
            engines.sample(20.0 + 10.0 * length * (index % 2), length * (index % 2)) for index in range(steps)
        )

    engine = ScriptedEngine(
        configured=engines.configured(uniform_drafts=False, drafter_method="ngram"),
        counted=messages.AcceptanceCounted((320, 160), (160, 80), 320, 640),
        samples=looked_up,
    )
    document = take(engine, tmp_path, batch_sizes=(1,)).document
    assert times(document) == {(1, 0): 20.0, (1, 1): 25.0, (1, 2): 27.5}


def test_gpu_spans_are_the_measure_where_there_are_any(tmp_path: Path) -> None:
    def spans(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        return tuple(engines.sample(20.0, batch_size * length, gpu_span_ms=5.0) for _ in range(steps))

    document = take(ScriptedEngine(samples=spans), tmp_path).document
    assert document.profile.measure is Measure.GPU_SPAN
    assert set(times(document).values()) == {5.0}


def test_cell_without_the_measure_of_the_others_is_left_out_with_that_reason(tmp_path: Path) -> None:
    def spans(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        span = None if (batch_size, length) == (4, 2) else 5.0
        return tuple(engines.sample(20.0, batch_size * length, gpu_span_ms=span) for _ in range(steps))

    # 1 of 12 cells has no spans: with 92% the others' measure stands.
    document = take(ScriptedEngine(samples=spans), tmp_path, batch_sizes=(1, 2, 3, 4)).document
    assert reasons(document) == {(4, 2): "none of its steps has a GPU span"}


def test_wide_cells_are_timed_again_and_no_others(tmp_path: Path, reports: Reports) -> None:
    # Quartiles of 10 and 20 ms: 1.2533 · (10 / 1.349) / sqrt(n) / 15 is 31% at 4 samples, 25% at 6.
    def noisy(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        if (batch_size, length) != (2, 1):
            return engines.steady(batch_size, length, steps)
        return tuple(engines.sample(10.0 if index % 2 else 20.0, 2) for index in range(steps))

    engine = ScriptedEngine(samples=noisy)
    document = take(engine, tmp_path, reports, repeats=3).document
    assert engine.visits[18:] == [(2, 1)] * 3
    assert document.profile.samples[1][1] == 4 + 3 * 2
    assert any(
        warning.startswith("1 cells are known to no better than 1% (batch sizes 2)")
        for warning in reports.warnings
    )


def test_mixed_steps_cost_the_pure_step_and_what_the_prompt_added(tmp_path: Path) -> None:
    document = take(ScriptedEngine(), tmp_path, mixed=True, mixed_prompt_tokens=(64,)).document
    # Added 3, 5 and 4 ms: 4 in the median. A small, a middle and the largest batch, at length 0 and 2.
    found: dict[tuple[int, int, int], object] = {
        (step.batch_size, step.draft_length, step.prompt_tokens): (step.step_time_ms, step.samples)
        for step in document.profile.mixed
    }
    pure = times(document)
    assert found == {
        (size, length, 64): (pytest.approx((pure[size, length] or 0) + 4.0), 3)
        for size in (1, 2, 4)
        for length in (0, 2)
    }


def test_prompt_that_noise_makes_free_costs_the_pure_step(tmp_path: Path) -> None:
    document = take(ScriptedEngine(added_ms=(-1.0, -3.0, 2.0)), tmp_path, mixed=True).document
    pure = times(document)
    assert all(
        step.step_time_ms == pure[step.batch_size, step.draft_length] for step in document.profile.mixed
    )


def test_prompt_that_never_joins_is_told_and_left_out(tmp_path: Path, reports: Reports) -> None:
    document = take(ScriptedEngine(added_ms=()), tmp_path, reports, mixed=True).document
    assert document.profile.mixed == ()
    assert "A prompt of 64 tokens never joined 1 requests; that step is left out." in reports.warnings


def test_few_drafts_are_told_with_the_number_needed(tmp_path: Path, reports: Reports) -> None:
    take(ScriptedEngine(), tmp_path, reports)
    assert any(warning.startswith("Only 600 drafts were seen,") for warning in reports.warnings)


def test_acceptance_runs_at_the_longest_length_within_max_num_seqs(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    take(engine, tmp_path, acceptance_tokens=50)
    (command,) = engine.asked_for(messages.CountAcceptance)
    assert (command.draft_length, command.max_tokens, command.concurrency) == (2, (50, 50), 8)
    assert command.prompts == (engine.tokens,) * 2


def test_table_of_the_users_own_is_set_aside_and_told(tmp_path: Path, reports: Reports) -> None:
    take(ScriptedEngine(configured=engines.configured(had_table=True)), tmp_path, reports)
    assert reports.notes == ["The table in --speculative-config is set aside while the profile is taken."]


def test_progress_counts_the_visits_of_each_phase(tmp_path: Path, reports: Reports) -> None:
    take(ScriptedEngine(), tmp_path, reports)
    assert reports.phases == [("start", 1, 0), ("acceptance", 2, 0), ("sweep", 18, 0), ("mixed", 0, 0)]
    assert [done for phase, done in reports.advances if phase == "sweep"][-1] == 18


# Prompts and their context


def test_prompts_of_the_sweep_have_the_length_of_the_plan_and_differ(tmp_path: Path) -> None:
    # Requests grow by 2 · (2 + 6) · (1 + 1 + 2 + 1) = 80 tokens.
    engine = ScriptedEngine()
    take(engine, tmp_path, prompt_tokens=500, output_tokens=200)
    commands = engine.asked_for(messages.TimeCells)
    assert {len(prompt) for command in commands for prompt in command.prompts} == {600 - 80 // 2}
    assert all(len(set(command.prompts)) == command.batch_size for command in commands)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt_tokens": 8_192}, "around 944 tokens of context per request instead of 8320:"),
        ({"context_length": 16}, "around 48 tokens of context per request instead of 16:"),
    ],
)
def test_other_context_than_wanted_is_told(
    tmp_path: Path, reports: Reports, options: dict[str, Any], told: str
) -> None:
    document = take(ScriptedEngine(), tmp_path, reports, **options).document
    (note,) = reports.notes
    assert note.startswith(f"Steps are timed {told}")
    assert f"around {document.profile.context_length} " in note


def test_engine_without_a_tokenizer_gets_random_prompts_and_says_so(tmp_path: Path, reports: Reports) -> None:
    engine = ScriptedEngine(tokens=())
    take(engine, tmp_path, reports)
    (command,) = engine.asked_for(messages.CountAcceptance)
    assert [len(prompt) for prompt in command.prompts] == [profiling.NO_TOKENIZER_PROMPT_TOKENS] * 2
    assert command.prompts[0] != command.prompts[1]
    assert "The engine has no tokenizer, so random tokens stand in for the prompts." in reports.warnings


def test_prompts_that_do_not_fit_are_left_out_and_told(tmp_path: Path, reports: Reports) -> None:
    # 1,024 tokens of context less 96 of output leave 928.
    engine = ScriptedEngine(tokens=(7,) * 929)
    with pytest.raises(InputError, match=r"No prompt fits: with 96 output tokens it may have 928 tokens"):
        take(engine, tmp_path)
    take(ScriptedEngine(tokens=(7,) * 928), tmp_path, reports)
    assert not any("left out" in warning for warning in reports.warnings)


@pytest.mark.parametrize("tokens", [(), (7, 8)])
def test_outputs_longer_than_the_models_length_are_bad_input(tmp_path: Path, tokens: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="No prompt fits: with 2000 output tokens"):
        take(ScriptedEngine(tokens=tokens), tmp_path, acceptance_tokens=2_000)


# What is refused


@pytest.mark.parametrize(
    ("kind", "error"), [("arguments", InputError), ("unsupported", NotServableError), ("start", EngineError)]
)
def test_refusal_ends_with_its_own_error(tmp_path: Path, kind: str, error: type[CommandError]) -> None:
    place = "start" if kind == "start" else "configure"
    engine = ScriptedEngine(faults={place: [RefusedError(kind, "so it is.")]})
    with pytest.raises(error, match=r"so it is\."):
        take(engine, tmp_path)


def test_obstacle_that_refuses_a_table_ends_before_the_engine_starts(
    tmp_path: Path, reports: Reports
) -> None:
    refusal = Obstacle("DataParallel", Severity.REFUSED, "data_parallel_size is 2.", "Serve replicas.")
    engine = ScriptedEngine(configured=engines.configured(obstacles=(refusal,)))
    with pytest.raises(NotServableError, match=r"DataParallel: data_parallel_size is 2\. Serve replicas\."):
        take(engine, tmp_path, reports)
    assert not engine.asked_for(messages.Start)
    assert not list(tmp_path.iterdir())


def test_obstacle_that_only_costs_is_a_warning(tmp_path: Path, reports: Reports) -> None:
    warning = Obstacle("RunnerWithoutFullGraphs", Severity.WARNING, "Only piecewise.", "Set V2.")
    take(ScriptedEngine(configured=engines.configured(obstacles=(warning,))), tmp_path, reports)
    assert "RunnerWithoutFullGraphs: Only piecewise. Set V2." in reports.warnings


def test_option_that_does_not_fit_the_engine_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--batch-sizes has 9, above --max-num-seqs 8"):
        take(ScriptedEngine(), tmp_path, batch_sizes=(1, 9))


@pytest.mark.parametrize("place", ["configure", "tokenize", "start"])
def test_engine_that_dies_before_the_first_measurement_is_an_engine_error(tmp_path: Path, place: str) -> None:
    engine = ScriptedEngine()
    engine.dies(place)
    with pytest.raises(EngineError, match=r"(?s)the engine died: by SIGSEGV.*illegal memory access"):
        take(engine, tmp_path)
    assert len(engine.processes) == 1


# Rules 1 to 4: an engine that dies


def test_cell_that_the_engine_dies_in_once_is_tried_again(tmp_path: Path, reports: Reports) -> None:
    engine = ScriptedEngine()
    engine.dies((2, 1))
    document = take(engine, tmp_path, reports).document
    assert documents.dump(document) == documents.dump(untroubled(tmp_path))
    assert len(engine.processes) == 2
    assert Counter(engine.visits) == dict.fromkeys(CELLS, 2)
    assert (
        f"The engine died: by SIGSEGV at B=2 K=1. See {tmp_path / 'table.json.engine.log'}."
        in reports.warnings
    )


def test_progress_after_a_restart_is_still_that_of_the_sweep(tmp_path: Path, reports: Reports) -> None:
    engine = ScriptedEngine()
    engine.dies((2, 1))
    take(engine, tmp_path, reports)
    assert [name for name, _, _ in reports.phases] == ["start", "acceptance", "sweep", "mixed"]
    done = [done for phase, done in reports.advances if phase == "sweep"]
    assert done == sorted(done)
    assert done[-1] == 18
    assert "Starting the engine again." in reports.notes


def test_cell_that_the_engine_dies_in_twice_is_left_out_with_its_last_words(
    tmp_path: Path, reports: Reports
) -> None:
    engine = ScriptedEngine()
    engine.dies((2, 1), times=2)
    document = take(engine, tmp_path, reports).document
    (left_out,) = document.profile.excluded
    assert (left_out.batch_size, left_out.draft_length, left_out.fatal) == (2, 1, True)
    assert left_out.reason == (
        "the engine died: by SIGSEGV, twice in this cell. CUDA error: an illegal memory access"
    )
    assert {cell for cell, time in times(document).items() if time is not None} == set(CELLS) - {(2, 1)}
    assert "B=2 K=1 is left out: the engine died: by SIGSEGV, twice." in reports.warnings
    # Nothing is known of the batch sizes on to the next measured ones, 1 and 4, either.
    assert 1 not in {tables.length_at(document.table, size) for size in (2, 3)}


def test_two_deaths_leave_a_cell_out_also_where_a_visit_between_went_well(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    alive = iter([False, True, False])

    def samples(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        if (batch_size, length) == (2, 1) and not next(alive):
            engine.processes[-1].lost = True
            raise engines.DEATH
        return engines.steady(batch_size, length, steps)

    engine.samples = samples
    document = take(engine, tmp_path).document
    assert [(cell.batch_size, cell.draft_length) for cell in document.profile.excluded] == [(2, 1)]
    record = next(cell for cell in kept(tmp_path).cells if cell.excluded)
    assert len(record.samples) == 2  # of the good visit; measured is measured
    assert record.fatal


def test_deaths_in_turn_in_two_cells_leave_out_both(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.dies((4, 0), times=2)
    engine.dies((4, 1), times=2)
    document = take(engine, tmp_path).document
    assert set(reasons(document)) == {(4, 0), (4, 1)}
    assert len(engine.processes) == 1 + 4


def test_engine_that_keeps_dying_ends_the_profile_and_keeps_what_was_measured(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    for cell in CELLS[1:]:
        engine.dies(cell, times=2)
    with pytest.raises(EngineError, match=r"The engine died 9 times; see .*\.engine\.log") as caught:
        take(engine, tmp_path)
    assert caught.value.exit_code is exit_codes.ExitCode.ENGINE_FAILED
    assert len(engine.processes) == 1 + profiling.MAX_RESTARTS
    assert samples_kept(tmp_path) == engine.reported
    assert kept(tmp_path).acceptance is not None
    # Four cells were given up before; a rerun leaves them out and goes on with the others.
    given_up = {(cell.batch_size, cell.draft_length) for cell in kept(tmp_path).cells if cell.fatal}
    assert len(given_up) == 4
    again = ScriptedEngine()
    assert set(reasons(take(again, tmp_path).document)) == given_up
    assert not given_up & set(again.visits)


def test_acceptance_run_is_tried_again(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.dies("acceptance")
    assert take(engine, tmp_path).document.acceptance.survival == (0.8, 0.5)
    assert len(engine.processes) == 2


def test_acceptance_run_that_fails_twice_ends_the_profile(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.dies("acceptance", times=2)
    with pytest.raises(
        EngineError, match=r"(?s)acceptance run failed twice: the engine died.*illegal memory"
    ):
        take(engine, tmp_path)
    assert engine.visits == []


def test_mixed_cell_that_the_engine_dies_in_twice_is_left_out(tmp_path: Path, reports: Reports) -> None:
    engine = ScriptedEngine()
    engine.dies(MixedCell(1, 0, 64))
    engine.dies(MixedCell(4, 2, 64), times=2)
    profile = take(engine, tmp_path, reports, mixed=True, mixed_prompt_tokens=(64,)).document.profile
    found = {(step.batch_size, step.draft_length) for step in profile.mixed}
    assert found == set(itertools.product((1, 2, 4), (0, 2))) - {(4, 2)}
    assert any(
        warning.startswith("Steps with a prompt of 64 tokens at B=4 K=2 are left out: the engine died")
        for warning in reports.warnings
    )


def test_no_prompt_is_timed_in_a_cell_that_is_left_out(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.dies((4, 2), times=2)
    take(engine, tmp_path, mixed=True)
    commands = engine.asked_for(messages.TimePrompts)
    assert (4, 0) in {(command.batch_size, command.draft_length) for command in commands}
    assert (4, 2) not in {(command.batch_size, command.draft_length) for command in commands}


def test_batch_that_cannot_be_filled_is_left_out_and_not_fatal(tmp_path: Path, reports: Reports) -> None:
    engine = ScriptedEngine(unreachable={(4, 0), (4, 1), (4, 2)})
    document = take(engine, tmp_path, reports).document
    assert reasons(document) == {(4, k): "at most 3 requests ran together" for k in (0, 1, 2)}
    assert not any(cell.fatal for cell in document.profile.excluded)
    assert len(engine.processes) == 1
    assert "B=4 K=0 is left out: at most 3 requests ran together" in reports.warnings


def test_profile_without_any_cell_is_an_engine_error(tmp_path: Path) -> None:
    engine = ScriptedEngine(unreachable=set(CELLS))
    with pytest.raises(
        EngineError, match=r"No cell could be timed: at most 3 requests ran together\. Remove"
    ):
        take(engine, tmp_path)


def test_profile_without_speculation_off_is_an_engine_error(tmp_path: Path) -> None:
    # Gains are told against length 0, so without a single time at it there is no document.
    engine = ScriptedEngine()
    for batch_size in (1, 2, 4):
        engine.dies((batch_size, 0), times=2)
    with pytest.raises(EngineError, match=r"makes no table: .* 3 cells were left out\. Remove .*\.partial"):
        take(engine, tmp_path)
    assert samples_kept(tmp_path) == engine.reported


# Hazards: engines have died there


def hazardous_engine() -> ScriptedEngine:
    """An engine whose target and drafter run different graphs at 5 requests without drafts.

    Sizes 1, 2, 4 and 8 make full graphs of 1, 2, 4 and 8 tokens for K=0, of 2, 4 and 8 for K=1, of 3 and 6
    for K=2 (9 is above 8). So 5 tokens are filed under 6, which only K=2 has: 5 requests at K=0 run
    piecewise, padded to 8 tokens, for which the drafter has a full graph.
    """
    fingerprint = {
        "runner": "V2",
        "drafter_method": "eagle3",
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": (1, 2, 4, 8),
    }
    return ScriptedEngine(configured=engines.configured(**fingerprint))


def test_hazardous_cells_are_not_timed_and_kept_out_of_the_table(tmp_path: Path) -> None:
    engine = hazardous_engine()
    document = take(engine, tmp_path, batch_sizes=(1, 2, 5), mixed=True).document
    assert (5, 0) not in engine.visits
    assert not [c for c in engine.asked_for(messages.TimePrompts) if c.batch_size == 5]
    (left_out,) = [cell for cell in document.profile.excluded if cell.draft_length == 0]
    assert (left_out.batch_size, left_out.fatal) == (5, True)
    assert "target and drafter would run different CUDA graphs" in left_out.reason
    assert tables.length_at(document.table, 5) != 0


# Interrupted and gone on with


@pytest.mark.parametrize("place", ["acceptance", (1, 1), (2, 0), (4, 2), MixedCell(2, 2, 64)], ids=str)
def test_interrupted_profile_goes_on_and_ends_as_an_uninterrupted_one(
    tmp_path: Path, reports: Reports, place: engines.Place
) -> None:
    options: dict[str, Any] = {"mixed": True, "mixed_prompt_tokens": (64,)}
    first = ScriptedEngine(faults={place: [KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        take(first, tmp_path, **options)
    assert samples_kept(tmp_path) == first.reported

    second = ScriptedEngine()
    document = take(second, tmp_path, reports, **options).document
    # Only what was missing was asked for.
    assert Counter(first.visits) + Counter(second.visits) == Counter(dict.fromkeys(CELLS, 2))
    assert len(second.asked_for(messages.CountAcceptance)) == (place == "acceptance")
    in_mixed = isinstance(place, MixedCell)
    timed = first.asked_for(messages.TimePrompts)[:-1] if in_mixed else []
    assert len(timed) + len(second.asked_for(messages.TimePrompts)) == 6
    assert any(note.startswith("Going on from ") for note in reports.notes)

    assert documents.dump(document) == documents.dump(untroubled(tmp_path, **options))


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ({}, (1, 0, 2, 2, 0, 1)),
        ({1: 1}, (0, 2, 2, 0, 1)),
        ({1: 1, 0: 1, 2: 1}, (2, 0, 1)),
        ({1: 1, 0: 2, 2: 2}, (1,)),
        ({1: 2, 0: 2, 2: 2}, ()),
        ({1: 5, 0: 2, 2: 2}, ()),
    ],
)
def test_visits_left_are_those_not_made_yet_in_their_order(
    made: dict[int, int], left: tuple[int, ...]
) -> None:
    state = states.State(
        cells={
            (4, length): CellRecord(batch_size=4, draft_length=length, visits=visits)
            for length, visits in made.items()
        }
    )
    state.cells[8, 1] = CellRecord(batch_size=8, draft_length=1, visits=1)  # another batch size's
    assert state.visits_left(Column(4, (1, 0, 2, 2, 0, 1))) == left


def test_no_visit_is_left_to_a_cell_that_is_left_out() -> None:
    state = states.State(
        cells={(4, 1): CellRecord(batch_size=4, draft_length=1, visits=1, excluded="it died", fatal=True)}
    )
    assert state.visits_left(Column(4, (1, 0, 0, 1))) == (0, 0)


def test_finished_partial_makes_the_document_without_starting_an_engine(tmp_path: Path) -> None:
    document = take(ScriptedEngine(), tmp_path).document
    again = ScriptedEngine()
    assert take(again, tmp_path).document == document
    assert [type(command) for command in again.asked] == [messages.Configure]


def test_wide_cells_of_a_finished_partial_are_timed_again_from_the_prompts(tmp_path: Path) -> None:
    def noisy(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        return tuple(
            engines.sample(10.0 if index % 2 else 20.0, batch_size * length) for index in range(steps)
        )

    first = ScriptedEngine(samples=noisy)
    take(first, tmp_path, repeats=1, batch_sizes=(1,))
    second = ScriptedEngine(samples=noisy)
    take(second, tmp_path, repeats=1, batch_sizes=(1,))
    before, again = first.asked_for(messages.TimeCells), second.asked_for(messages.TimeCells)
    assert [command.visits for command in again] == [before[-1].visits]
    assert again[0].prompts == before[0].prompts


@pytest.mark.parametrize(
    "changed",
    [
        {"engine": engines.configured(vllm="0.34.0")},
        {"engine": engines.configured(cudagraph_mode="PIECEWISE", cudagraph_capture_sizes=(1, 2))},
        {"context_length": 300},
        {"steps": 8},
        {"prompts": (Prompt(prompt="Three"),)},
        {"batch_sizes": (1, 2)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_partial_of_another_engine_or_other_options_is_set_aside(
    tmp_path: Path, reports: Reports, changed: dict[str, Any]
) -> None:
    take(ScriptedEngine(), tmp_path)
    before = (tmp_path / "table.json.partial").read_bytes()
    changes = dict(changed)
    engine = ScriptedEngine(configured=changes.pop("engine", engines.configured()))
    take(engine, tmp_path, reports, **changes)
    assert (tmp_path / "table.json.partial.old").read_bytes() == before
    assert engine.visits
    assert any("is kept as table.json.partial.old" in warning for warning in reports.warnings)


def test_lengths_of_the_users_requests_keep_the_partial_where_the_context_is_given(tmp_path: Path) -> None:
    # They are for the advice then, which is computed after measuring.
    take(ScriptedEngine(), tmp_path, context_length=384)
    engine = ScriptedEngine()
    document = take(engine, tmp_path, context_length=384, prompt_tokens=900, output_tokens=10).document
    assert engine.visits == []
    assert document.engine.prompt_tokens == 900
    assert document.profile.context_length == 384


def test_lengths_of_the_users_requests_that_change_the_context_set_the_partial_aside(
    tmp_path: Path, reports: Reports
) -> None:
    take(ScriptedEngine(), tmp_path)
    engine = ScriptedEngine()
    document = take(engine, tmp_path, reports, prompt_tokens=700, output_tokens=10).document
    assert Counter(engine.visits) == dict.fromkeys(CELLS, 2)
    assert document.profile.context_length == 705
    assert any("is kept as table.json.partial.old" in warning for warning in reports.warnings)


def test_context_that_is_the_same_keeps_the_partial_whether_it_was_given_or_not(tmp_path: Path) -> None:
    take(ScriptedEngine(), tmp_path)
    engine = ScriptedEngine()
    assert take(engine, tmp_path, context_length=384).document.profile.context_length == 384
    # Longer prompts with shorter outputs have as much context.
    assert take(engine, tmp_path, prompt_tokens=374, output_tokens=20).document.engine.prompt_tokens == 374
    assert engine.visits == []


def test_damaged_partial_is_bad_input_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "table.json.partial").write_text('{"formatVersion": 1')
    engine = ScriptedEngine()
    with pytest.raises(InputError, match=r"Remove it to start anew"):
        take(engine, tmp_path)
    assert not engine.asked_for(messages.Start)
    assert (tmp_path / "table.json.partial").read_text() == '{"formatVersion": 1'


# Verification


def test_verification_compares_every_timed_cell_with_what_it_kept(tmp_path: Path, reports: Reports) -> None:
    engine = ScriptedEngine()
    outcome = take(engine, tmp_path, reports, verify_seconds=8.0)
    assert [(cell.batch_size, cell.draft_length) for cell in outcome.verified] == sorted(CELLS)
    for cell in outcome.verified:
        assert cell.error == pytest.approx(1 / 1.1 - 1, abs=1e-3)  # the engine keeps a tenth more
    # 8 s at one request, half and a quarter of that at 2 and 4, but never less than 2.
    seconds = {command.batch_size: command.seconds for command in engine.asked_for(messages.MeasureGoodput)}
    assert seconds == {1: 8.0, 2: 4.0, 4: 2.0}
    assert ("verify", 9, 0) in reports.phases


def test_nothing_is_verified_unless_asked_for(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    assert take(engine, tmp_path).verified == ()
    assert not engine.asked_for(messages.MeasureGoodput)


def test_finished_partial_is_verified_without_timing_anything(tmp_path: Path) -> None:
    take(ScriptedEngine(), tmp_path)
    engine = ScriptedEngine()
    assert len(take(engine, tmp_path, verify_seconds=1.0).verified) == len(CELLS)
    assert engine.visits == []


def test_cell_that_kills_engines_is_not_served(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.dies((2, 1), times=2)
    verified = take(engine, tmp_path, verify_seconds=1.0).verified
    assert {(cell.batch_size, cell.draft_length) for cell in verified} == set(CELLS) - {(2, 1)}


@pytest.mark.parametrize("place", ["verify 2 1", "verify 1 0"])
def test_engine_that_dies_while_verifying_leaves_the_document(
    tmp_path: Path, reports: Reports, place: str
) -> None:
    engine = ScriptedEngine()
    engine.dies(place)
    outcome = take(engine, tmp_path, reports, verify_seconds=1.0)
    assert documents.dump(outcome.document) == documents.dump(untroubled(tmp_path))
    count = 4 if place == "verify 2 1" else 0
    assert len(outcome.verified) == count
    told = f"The verification ends after {count} of 9 cells: the engine died: by SIGSEGV."
    assert told in reports.warnings


# Time budget


class Clock:
    """A clock that the engine's steps move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def samples(self, batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        found = engines.steady(batch_size, length, steps)
        self.now += sum(sample.interval_ms for sample in found) / 1e3
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(profiling, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_time_budget_shortens_visits_before_it_leaves_cells_out(tmp_path: Path, clock: Clock) -> None:
    # 18 visits of 12 steps of 11 to 18 ms would take 3.2 s; half of that allows fewer steps each.
    engine = ScriptedEngine(samples=clock.samples)
    outcome = take(engine, tmp_path, steps=24, time_budget=1.6)
    commands = engine.asked_for(messages.TimeCells)
    assert commands[0].steps == 12
    assert 3 <= commands[-1].steps < 12
    assert outcome.document.profile.excluded == ()


def test_cells_beyond_the_time_budget_are_left_out_with_that_reason(tmp_path: Path, clock: Clock) -> None:
    # The first batch size takes 6 visits · 12 steps · 11 to 18 ms, more than 0.5 s.
    engine = ScriptedEngine(samples=clock.samples)
    document = take(engine, tmp_path, steps=24, time_budget=0.5, repeats=2).document
    (first,) = {size for size, _ in engine.visits}
    assert set(reasons(document)) == {cell for cell in CELLS if cell[0] != first}
    assert set(reasons(document).values()) == {"--time-budget 0.5 s was used up"}
    assert not any(cell.fatal for cell in document.profile.excluded)


def test_batch_that_does_not_fill_within_the_time_budget_is_left_out_with_that_reason(
    tmp_path: Path, clock: Clock
) -> None:
    engine = ScriptedEngine(samples=clock.samples, never_full={4})
    document = take(engine, tmp_path, time_budget=100.0).document
    assert reasons(document) == {(4, length): "--time-budget 100 s was used up" for length in (0, 1, 2)}
    assert not any(cell.fatal for cell in document.profile.excluded)
    # Each batch size is given the time that is left, and the next run tries again.
    given = [command.seconds for command in engine.asked_for(messages.TimeCells)]
    assert given == sorted(given, reverse=True)
    assert 99.0 < given[-1] < given[0] == 100.0
    assert take(ScriptedEngine(), tmp_path).document.profile.excluded == ()


def test_cells_that_there_was_no_time_for_are_timed_by_the_next_run(tmp_path: Path, clock: Clock) -> None:
    take(ScriptedEngine(samples=clock.samples), tmp_path, steps=24, time_budget=0.5)
    again = ScriptedEngine(samples=clock.samples)
    document = take(again, tmp_path, steps=24).document
    assert document.profile.excluded == ()
    assert len(again.visits) == 12


def test_time_budget_in_which_no_batch_fills_is_refused_and_a_longer_one_goes_on(
    tmp_path: Path, clock: Clock
) -> None:
    engine = ScriptedEngine(samples=clock.samples, never_full={1, 2, 4})
    with pytest.raises(InputError, match=r"--time-budget 100 s was used up\. Give more; .*\.partial"):
        take(engine, tmp_path, time_budget=100.0)
    again = ScriptedEngine(samples=clock.samples)
    assert take(again, tmp_path, time_budget=200.0).document.profile.excluded == ()
    assert again.asked_for(messages.CountAcceptance) == []


def test_time_budget_of_an_engine_that_died_is_no_fault_of_the_options(tmp_path: Path, clock: Clock) -> None:
    # Starting again may have taken the time, and the next run may have enough.
    engine = ScriptedEngine(samples=clock.samples, never_full={1, 2, 4})
    engine.dies("acceptance")
    with pytest.raises(EngineError, match="--time-budget 100 s was used up"):
        take(engine, tmp_path, time_budget=100.0)


def test_time_budget_never_throws_away_a_visit(tmp_path: Path, clock: Clock) -> None:
    # Stopped before the very last of 18 visits: that cell is known from one visit, the others from two.
    visits = itertools.count()

    def stopping(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        if next(visits) == 17:
            raise KeyboardInterrupt
        return clock.samples(batch_size, length, steps)

    with pytest.raises(KeyboardInterrupt):
        take(ScriptedEngine(samples=stopping), tmp_path, steps=24)
    second = ScriptedEngine(samples=clock.samples)
    profile = take(second, tmp_path, steps=24, time_budget=0.0).document.profile
    assert second.visits == []
    assert profile.excluded == ()
    assert sorted(count for row in profile.samples for count in row) == [12, *[24] * 8]


# A full disk


class Disk:
    """Fails writes as a full disk does, while ``full``."""

    def __init__(self) -> None:
        self.full = False
        self.failed = 0

    def write(self, path: Path, data: bytes) -> None:
        if self.full:
            self.failed += 1
            raise OutputError(f"{path} could not be written: {errno.errorcode[errno.ENOSPC]}.")
        files._replace(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(files, "write_atomically", disk.write)
    return disk


def test_full_disk_in_the_middle_loses_nothing_and_is_told_once(
    tmp_path: Path, reports: Reports, disk: Disk
) -> None:
    disk.full = True
    document = take(ScriptedEngine(), tmp_path, reports).document
    assert disk.failed > 1
    (told,) = [warning for warning in reports.warnings if "ENOSPC" in warning]
    assert told.endswith(
        "table.json.partial could not be written: ENOSPC. The profile goes on; stopped now, it"
        " would lose what is new."
    )
    disk.full = False
    assert documents.dump(document) == documents.dump(untroubled(tmp_path))


def test_disk_with_room_again_gets_everything(tmp_path: Path, disk: Disk) -> None:
    engine = ScriptedEngine()

    def samples(batch_size: int, length: int, steps: int) -> tuple[Sample, ...]:
        disk.full = len(engine.visits) < 10
        return engines.steady(batch_size, length, steps)

    engine.samples = samples
    take(engine, tmp_path)
    assert disk.failed > 0
    assert samples_kept(tmp_path) == engine.reported


def test_profile_that_ends_on_a_full_disk_tells_both(tmp_path: Path, disk: Disk) -> None:
    disk.full = True
    engine = ScriptedEngine()
    engine.dies("acceptance", times=2)
    with pytest.raises(OutputError, match=r"(?s)ENOSPC.*is lost.*The acceptance run failed twice") as caught:
        take(engine, tmp_path)
    assert caught.value.exit_code == exit_codes.ExitCode.OUTPUT_FAILED
    with pytest.raises(OutputError, match="ENOSPC"):
        take(ScriptedEngine(faults={(2, 0): [KeyboardInterrupt()]}), tmp_path)


# Whatever happens


def samples_kept(folder: Path) -> Counter[tuple[int, int]]:
    return Counter(
        {
            (cell.batch_size, cell.draft_length): len(cell.samples)
            for cell in kept(folder).cells
            if cell.samples
        }
    )


places = st.sampled_from([*CELLS, "acceptance", "start", MixedCell(1, 0, 64), MixedCell(4, 2, 64)])


@settings(max_examples=40)
@given(st.dictionaries(places, st.integers(1, 3), max_size=6))
def test_dying_engine_ends_in_a_document_or_an_engine_error_and_loses_nothing(
    deaths: dict[engines.Place, int],
) -> None:
    engine = ScriptedEngine()
    for place, times_over in deaths.items():
        engine.dies(place, times_over)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document = None
        try:
            document = take(engine, folder, mixed=True, mixed_prompt_tokens=(64,)).document
        except EngineError:
            assert deaths
        assert len(engine.processes) <= 1 + profiling.MAX_RESTARTS
        assert samples_kept(folder) == engine.reported
        given_up = {(cell.batch_size, cell.draft_length) for cell in kept(folder).cells if cell.fatal}
        assert given_up == {cell for cell in CELLS if deaths.get(cell, 0) > 1} or document is None
        if document is not None:
            assert set(reasons(document)) == given_up
            assert documents.parse(documents.dump(document)) == document


@settings(max_examples=15)
@given(st.lists(places, max_size=4))
def test_however_often_it_is_stopped_the_profile_ends_the_same(stops: list[engines.Place]) -> None:
    engine = ScriptedEngine()
    for place in stops:
        engine.faults.setdefault(place, []).append(KeyboardInterrupt())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in stops:
            with pytest.raises(KeyboardInterrupt):
                take(engine, folder, mixed=True, mixed_prompt_tokens=(64,))
        document = take(engine, folder, mixed=True, mixed_prompt_tokens=(64,)).document
        assert engine.visits.count((1, 0)) == 2
        assert len(engine.visits) == 18
        assert document == untroubled(folder, mixed=True, mixed_prompt_tokens=(64,))


# Speculation off


def test_speculation_off_is_timed_at_every_batch_size_and_is_what_gains_are_told_against(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(off_ms=4.0)
    document = take(engine, tmp_path).document
    times = [engines.step_ms(size, 0) - 4.0 for size in document.profile.batch_sizes]
    assert document.profile.off_ms == pytest.approx(times)
    off = [1e3 * size / time for size, time in zip(document.profile.batch_sizes, times, strict=True)]
    assert document.prediction.off == pytest.approx(off)
    # Draft length 0, with the drafter's pass, stays a length like the others.
    assert document.profile.step_time_ms[0] == pytest.approx(
        [engines.step_ms(size, 0) for size in document.profile.batch_sizes], rel=1e-3
    )


@pytest.mark.parametrize("fault", [engines.DEATH, KeyboardInterrupt()])
@pytest.mark.parametrize("place", [(2, 0), "after off 2"])
def test_speculation_off_is_timed_once_whatever_happens_before_and_after(
    tmp_path: Path, fault: BaseException, place: engines.Place
) -> None:
    engine = ScriptedEngine(faults={place: [fault]})
    if isinstance(fault, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            take(engine, tmp_path)
    document = take(engine, tmp_path).document
    assert not engine.faults[place]
    assert None not in document.profile.off_ms
    assert sorted(engine.off_timed) == list(document.profile.batch_sizes)
    asked = engine.asked_for(messages.TimeCells)
    assert {command.batch_size for command in asked if command.off_steps} == set(document.profile.batch_sizes)


def test_engine_that_dies_with_speculation_off_once_is_tried_again(tmp_path: Path) -> None:
    engine = ScriptedEngine(faults={"off 2": [engines.DEATH]})
    document = take(engine, tmp_path).document
    assert document == untroubled(tmp_path)


def test_engine_that_always_dies_with_speculation_off_loses_that_and_no_cell(
    tmp_path: Path, reports: Reports
) -> None:
    sizes = engines.request(tmp_path).options.batch_sizes
    assert sizes is not None
    engine = ScriptedEngine(faults={f"off {size}": [engines.DEATH] * 99 for size in sizes})
    document = take(engine, tmp_path, reports).document
    assert document.profile.excluded == ()
    assert document.profile.off_ms == ()
    assert document.profile.step_time_ms == untroubled(tmp_path).profile.step_time_ms
    assert any("Speculation off is timed no further" in warning for warning in reports.warnings)
    assert any("with speculation off" in warning for warning in reports.warnings)


def test_drafter_that_varies_has_no_speculation_off_of_its_own(tmp_path: Path) -> None:
    engine = ScriptedEngine(configured=engines.configured(uniform_drafts=False))
    document = take(engine, tmp_path).document
    assert document.profile.off_ms == ()
    assert {command.off_steps for command in engine.asked_for(messages.TimeCells)} == {0}


def test_drafter_that_cannot_be_left_out_makes_length_0_stand_in_and_says_so(tmp_path: Path) -> None:
    engine = ScriptedEngine(off_ms=None)
    reports = Reports()
    document = take(engine, tmp_path, reports=reports).document
    assert document.profile.off_ms == ()
    assert document.prediction.off == pytest.approx(
        [1e3 * size / engines.step_ms(size, 0) for size in document.prediction.batch_sizes], rel=1e-3
    )
    assert any("without its pass" in told for told in reports.warnings)
