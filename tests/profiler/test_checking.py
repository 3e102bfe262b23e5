"""What a configuration says about serving a table, for engines whose graphs were worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tabletune import graphs
from tabletune_plugin.engine.facts import Obstacle, Severity
from tabletune_profiler import checking
from tabletune_profiler.messages import Configured
from tests.profiler import engines

GAP, LIMIT, MISMATCH = "BatchSizesWithoutFullGraph", "StepsBeyondCaptureLimit", "TargetAndDrafterGraphsDiffer"


def engine(**changes: Any) -> Configured:
    """An engine whose graphs fit all of its lengths: multiples of 6, up to 6 requests with 2 drafts."""
    fields: dict[str, Any] = {
        "runner": "V2",
        "drafter_method": "eagle3",
        "max_num_seqs": 6,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": graphs.aligned_capture_sizes((0, 1, 2), 6, 18),
    }
    return engines.configured(**fields | changes)


def names(configured: Configured) -> list[str]:
    return [obstacle.name for obstacle in checking.obstacles(configured)]


def found(configured: Configured, name: str) -> Obstacle:
    (obstacle,) = [obstacle for obstacle in checking.obstacles(configured) if obstacle.name == name]
    assert obstacle.severity is Severity.WARNING
    return obstacle


def test_engine_whose_graphs_fit_has_no_obstacle() -> None:
    assert names(engine()) == []


def test_engine_on_the_cpu_has_no_obstacle() -> None:
    assert names(engines.configured(max_num_seqs=256)) == []
    assert names(engine(cudagraph_mode="NONE")) == []
    assert names(engine(cudagraph_capture_sizes=())) == []


def test_what_refuses_a_table_comes_first() -> None:
    warning = Obstacle("RunnerWithoutFullGraphs", Severity.WARNING, "Slow.", "Set V2.")
    refusal = Obstacle("DataParallel", Severity.REFUSED, "Two ranks.", "Serve replicas.")
    configured = engine(obstacles=(warning, refusal), cudagraph_capture_sizes=(6, 12))
    assert names(configured)[:2] == ["DataParallel", "RunnerWithoutFullGraphs"]
    assert LIMIT in names(configured)


def test_capture_limit_is_told_with_the_size_to_set() -> None:
    # 6 requests with 2 drafts each are 18 tokens, 6 more than the largest graph.
    obstacle = found(engine(cudagraph_capture_sizes=(6, 12)), LIMIT)
    assert "steps of more than 12 tokens run without a CUDA graph" in obstacle.reason
    assert "6 requests with 2 draft tokens are 18 tokens" in obstacle.reason
    assert "--max-cudagraph-capture-size 18" in obstacle.remedy


def test_steps_beyond_the_limit_are_not_called_a_gap() -> None:
    # 5 and 6 requests with 2 drafts are 15 and 18 tokens, above 12: they have no graph, full or piecewise.
    assert names(engine(cudagraph_capture_sizes=(6, 12))) == [LIMIT]


def gap_engine(**changes: Any) -> Configured:
    """Full graphs of 1, 2, 4 and 8 tokens for K=0, of 2, 4 and 8 for K=1, of 3 and 6 for K=2.

    So 3 tokens are filed under a graph of K=2, 5 and 6 tokens under one of K=2: 3, 5 and 6 requests at K=0
    and 3 (6 tokens) at K=1 find none of their own; at K=2, 3 and more requests are above 8 tokens.
    """
    return engine(**{"max_num_seqs": 8, "cudagraph_capture_sizes": (1, 2, 4, 8)} | changes)


def test_gap_is_told_by_length_with_the_settings_that_close_it() -> None:
    obstacle = found(gap_engine(), GAP)
    assert "K=0: 3, 5, 6; K=1: 3." in obstacle.reason
    # lcm(1, 2, 3) = 6; each length ends on a multiple of 6 with 6 requests.
    assert "multiples of 6 with --max-num-seqs 6" in obstacle.remedy


def test_v1_has_no_gap_since_it_has_no_full_graphs_at_all() -> None:
    assert GAP not in names(gap_engine(runner="V1"))
    assert MISMATCH not in names(gap_engine(runner="V1"))


def test_mismatch_is_told_for_drafters_that_follow_the_targets_batch() -> None:
    # 3 requests at K=0 are padded to 4 tokens, 5 and 6 to 8, for which the drafter has full graphs; 3 at K=1
    # are 6 tokens, padded to 8 likewise.
    assert "K=0: 3, 5, 6; K=1: 3." in found(gap_engine(), MISMATCH).reason


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_mismatch_is_told_for_methods_that_have_it(method: str) -> None:
    assert names(gap_engine(drafter_method=method)) == [LIMIT, GAP, MISMATCH]


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "dflash"])
def test_mismatch_is_not_told_for_methods_without_it(method: str) -> None:
    assert names(gap_engine(drafter_method=method)) == [LIMIT, GAP]


def test_default_settings_of_an_h200_have_gap_and_mismatch() -> None:
    # ENGINE.md 2: 34, 17 and 136 batch sizes at K=0, 1 and 2. Twelve of each are named.
    configured = engine(
        max_num_seqs=256,
        draft_lengths=(0, 1, 2, 3),
        cudagraph_capture_sizes=graphs.default_capture_sizes(1_024),
    )
    assert names(configured) == [GAP, MISMATCH]
    told = found(configured, GAP).reason
    for length, count in ((0, 34), (1, 17), (2, 136)):
        assert f"K={length}: " in told
        assert f" and {count - checking.MOST_SIZES_TOLD} more" in told
    assert "K=3" not in told
    assert "multiples of 12 with --max-num-seqs 252" in found(configured, GAP).remedy


def test_every_obstacle_says_what_to_do() -> None:
    for obstacle in checking.obstacles(gap_engine()):
        assert obstacle.reason.endswith(".")
        assert obstacle.remedy.endswith(".")
