"""A whole profile on the real engine, by each method that runs on a CPU."""

import itertools
import json
from pathlib import Path

import pytest

from tabletune.documents import RecommendationKind
from tests.engine import profiles

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def ngram(
    few_prompts: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> profiles.Finished:
    """A profile with n-gram drafting on a compiled model, with a picture: all as by default but the size."""
    output = tmp_path_factory.mktemp("ngram") / "table.json"
    serve = (model_folder, *profiles.SERVE, "--speculative-config", profiles.NGRAM)
    return profiles.run(output, (*profiles.QUICK, "--plot", "--prompts", few_prompts), serve)


@pytest.fixture(scope="module")
def draft_model(
    few_prompts: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> profiles.Finished:
    """A profile with the model as its own drafter, which it should nearly always agree with."""
    output = tmp_path_factory.mktemp("draft-model") / "table.json"
    config = {"method": "draft_model", "model": str(model_folder), "num_speculative_tokens": 2}
    serve = (*profiles.SERVE, profiles.EAGER, "--speculative-config", json.dumps(config))
    options = (*profiles.QUICK, "--batch-sizes", "1,4", "--prompts", few_prompts)
    return profiles.run(output, options, (model_folder, *serve))


def test_ngram_profile_is_complete(ngram: profiles.Finished) -> None:
    assert ngram.exit_code == 0, "".join(ngram.lines)
    profile = ngram.document.profile
    assert profile.batch_sizes == (1, 2, 3, 4)
    assert profile.draft_lengths == (0, 1, 2)
    assert profile.excluded == ()
    assert all(time is not None and time > 0 for row in profile.step_time_ms for time in row)
    assert {(cell.batch_size, cell.draft_length, cell.prompt_tokens) for cell in profile.mixed} == set(
        itertools.product((1, 2, 3), (0, 2), (64,))
    )


def test_table_covers_every_batch_size_once(ngram: profiles.Finished) -> None:
    table = ngram.document.table
    assert [size for first, last, _ in table for size in range(first, last + 1)] == [1, 2, 3, 4]


def test_recommendation_has_a_reason(ngram: profiles.Finished) -> None:
    recommendation = ngram.document.recommendation
    assert recommendation.kind in RecommendationKind
    assert recommendation.reason


def test_ngram_drafts_for_some_requests_only(ngram: profiles.Finished) -> None:
    acceptance = ngram.document.acceptance
    assert 0 < acceptance.proposal_rate < 1
    assert acceptance.drafted[0] > 0


def test_every_line_of_progress_is_json(ngram: profiles.Finished) -> None:
    assert len(ngram.events) == len(ngram.lines), "".join(ngram.lines)
    assert {told["event"] for told in ngram.events} <= {"phase", "progress", "note", "warning"}


def test_phases_come_in_their_order(ngram: profiles.Finished) -> None:
    assert ngram.phases == ["start", "acceptance", "sweep", "mixed"]


def test_progress_ends_with_all_done_and_never_goes_back(ngram: profiles.Finished) -> None:
    told = [event for event in ngram.events if event["event"] == "progress"]
    for phase, events in itertools.groupby(told, key=lambda event: event["phase"]):
        done = [(event["done"], event["total"]) for event in events]
        assert done == sorted(done), phase
        assert done[-1][0] == done[-1][1], phase


def test_standard_output_is_one_line_for_programs(ngram: profiles.Finished) -> None:
    summary = json.loads(ngram.stdout)
    assert summary["event"] == "finished"
    assert summary["output"] == str(ngram.output)
    assert summary["table"] == [list(entry) for entry in ngram.document.table]
    assert summary["excluded"] == 0
    assert 0 < summary["secondsCounted"] < summary["secondsSweep"]


def test_pictures_and_log_are_left_and_nothing_else(ngram: profiles.Finished) -> None:
    left = {path.name for path in ngram.output.parent.iterdir() if path.stat().st_size > 0}
    assert left == {"table.json", "table.png", "table.svg", "table.json.engine.log"}
    assert {path.name for path in ngram.output.parent.iterdir()} == left


def test_model_agrees_with_itself_as_drafter(draft_model: profiles.Finished) -> None:
    assert draft_model.exit_code == 0, "".join(draft_model.lines)
    acceptance = draft_model.document.acceptance
    assert acceptance.survival[0] > 0.95
    assert acceptance.proposal_rate == 1
    assert len(acceptance.survival) == 2


def test_longer_drafts_of_a_model_take_longer_steps(draft_model: profiles.Finished) -> None:
    profile = draft_model.document.profile
    zero, one, two = (row[profile.batch_sizes.index(4)] or 0.0 for row in profile.step_time_ms)
    # At lengths 0 and 1 vLLM runs the drafter once (at 0 to keep its KV cache), at 2 twice: with the model
    # as its own drafter, three passes instead of two.
    assert 0 < zero < two
    assert 0 < one < two


def test_speculation_off_leaves_out_the_pass_that_length_0_has(draft_model: profiles.Finished) -> None:
    # One pass instead of two of the same model: about half the time, whatever the machine's speed.
    profile = draft_model.document.profile
    assert len(profile.off_ms) == 2
    for off, zero in zip(profile.off_ms, profile.step_time_ms[0], strict=True):
        assert off is not None
        assert zero is not None
        assert off < 0.8 * zero
    tokens = [1e3 * size / (off or 0) for size, off in zip(profile.batch_sizes, profile.off_ms, strict=True)]
    assert draft_model.document.prediction.off == pytest.approx(tokens)


def test_ngram_drafting_has_no_pass_to_leave_out(ngram: profiles.Finished) -> None:
    assert ngram.document.profile.off_ms == ()


def test_grid_of_the_users_batch_sizes_still_gives_a_whole_table(draft_model: profiles.Finished) -> None:
    document = draft_model.document
    assert document.profile.batch_sizes == (1, 4)
    assert document.profile.excluded == ()
    assert {(cell.batch_size, cell.draft_length) for cell in document.profile.mixed} == {(1, 0), (1, 2)}
    assert document.max_batch_size == profiles.MAX_NUM_SEQS


def test_batch_size_that_the_kv_cache_does_not_hold_is_left_out_with_the_reason(
    few_prompts: Path, model_folder: Path, tmp_path: Path
) -> None:
    # Four usable blocks of 128 tokens; a request with 200 tokens of context takes two of them.
    cache = ("--max-model-len", "512", "--num-gpu-blocks-override", "5", "--block-size", "128")
    serve = (model_folder, "--max-num-seqs", "4", *cache, profiles.EAGER)
    options = (*profiles.QUICK, "--context-length", "200", "--no-mixed", "--prompts", few_prompts)
    finished = profiles.run(
        tmp_path / "table.json", options, (*serve, "--speculative-config", profiles.NGRAM)
    )
    assert finished.exit_code == 0, "".join(finished.lines)
    profile = finished.document.profile
    excluded = {(cell.batch_size, cell.draft_length): cell for cell in profile.excluded}
    assert set(excluded) == set(itertools.product((3, 4), (0, 1, 2)))
    assert all("of 4 requests ran together: the KV cache" in excluded[4, k].reason for k in (0, 1, 2))
    assert not any(cell.fatal for cell in profile.excluded)
    assert finished.document.max_batch_size == profiles.MAX_NUM_SEQS
    assert any("B=4 K=0 is left out" in warning for warning in finished.messages("warning"))


def test_context_follows_from_the_usual_lengths_and_long_prompts_fill_in_many_steps(
    few_prompts: Path, model_folder: Path, tmp_path: Path
) -> None:
    # 4 prompts of about 1,500 tokens, 64 a step: some 90 steps until all decode.
    lengths = ("--max-model-len", "2048", "--max-num-batched-tokens", "64", "--max-num-seqs", "4")
    serve = (model_folder, *lengths, profiles.EAGER, "--speculative-config", profiles.NGRAM)
    options = ("--steps", "8", "--repeats", "0", "--acceptance-tokens", "24", "--no-mixed")
    usual = ("--batch-sizes", "4", "--prompt-tokens", "1500", "--output-tokens", "100")
    finished = profiles.run(tmp_path / "table.json", (*options, *usual, "--prompts", few_prompts), serve)
    assert finished.exit_code == 0, "".join(finished.lines)
    assert finished.document.profile.context_length == 1_550
    assert finished.document.profile.excluded == ()


def test_model_shorter_than_the_usual_requests_is_profiled_at_the_context_that_fits(
    few_prompts: Path, model_folder: Path, tmp_path: Path
) -> None:
    serve = (model_folder, *profiles.SERVE, profiles.EAGER, "--speculative-config", profiles.NGRAM)
    # Requests grow by 2 · (20 + 6) · (1 + 1 + 2) = 208 tokens, from prompts of 8: 216 of the 256 that fit.
    options = ("--acceptance-tokens", "24", "--repeats", "0", "--no-mixed", "--batch-sizes", "1,4")
    finished = profiles.run(tmp_path / "table.json", (*options, "--prompts", few_prompts), serve)
    assert finished.exit_code == 0, "".join(finished.lines)
    assert finished.document.profile.context_length == 8 + 208 // 2
    assert finished.document.profile.excluded == ()
    assert any(
        "around 112 tokens of context per request instead of 384" in n for n in finished.messages("note")
    )
