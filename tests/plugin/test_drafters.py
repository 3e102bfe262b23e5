"""Leaving the drafter out, on stand-ins with the two runners' shapes; the real ones are in tests/engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tabletune_plugin.engine import drafters


class V1Drafter:
    """Has the parameters of ``SpecDecodeBaseProposer.propose`` that matter."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def propose(self, num_speculative_tokens: int, target_token_ids: Any, next_token_ids: Any) -> str:
        self.passes.append(num_speculative_tokens)
        return "drafts"


class V2Speculator:
    """Has the parameters of ``DraftModelSpeculator.propose`` that matter."""

    def __init__(self) -> None:
        self.passes: list[int | None] = []
        self.draft_tokens = list(range(8))

    def propose(self, input_batch: Any, num_speculative_tokens: int | None = None) -> object:
        self.passes.append(num_speculative_tokens)
        return "drafts"


class NgramProposer:
    """The V1 runner's n-gram drafter takes other arguments, and has no pass."""

    def propose(self, num_speculative_tokens: int, sampled_token_ids: Any) -> str:
        raise AssertionError("not called here")


def worker(**runner: Any) -> Any:
    return SimpleNamespace(model_runner=SimpleNamespace(**runner))


def test_v2_speculator_is_left_out_of_steps_of_length_0_only() -> None:
    speculator = V2Speculator()
    original = speculator.propose
    assert drafters.skip_in_worker(worker(speculator=speculator), True)
    batch = SimpleNamespace(num_reqs=3)
    assert speculator.propose(batch, num_speculative_tokens=0) == [0, 1, 2]
    assert speculator.propose(batch, num_speculative_tokens=2) == "drafts"
    assert speculator.propose(batch) == "drafts"
    assert speculator.passes == [2, None]
    assert drafters.skip_in_worker(worker(speculator=speculator), False)
    assert speculator.propose == original
    speculator.propose(batch, num_speculative_tokens=0)
    assert speculator.passes == [2, None, 0]


def test_v1_drafter_that_is_left_out_proposes_no_column() -> None:
    torch = pytest.importorskip("torch")
    drafter = V1Drafter()
    behind_a_wrapper = SimpleNamespace(worker=worker(drafter=drafter))  # as vLLM's executors have it
    assert drafters.skip_in_worker(behind_a_wrapper, True)
    ids = torch.zeros(5)
    proposed: Any = drafter.propose(num_speculative_tokens=0, target_token_ids=None, next_token_ids=ids)
    assert (tuple(proposed.shape), proposed.dtype) == ((5, 0), torch.int64)
    assert drafter.propose(1, None, ids) == "drafts"
    assert drafter.passes == [1]


@pytest.mark.parametrize("skip", [True, False])
def test_asking_twice_is_asking_once(skip: bool) -> None:
    speculator = V2Speculator()
    original = speculator.propose
    for asked in (True, skip, skip, False, False):
        assert drafters.skip_in_worker(worker(speculator=speculator), asked)
    assert speculator.propose == original


@pytest.mark.parametrize(
    "without",
    [
        worker(speculator=None, drafter=NgramProposer()),
        worker(speculator=None),
        worker(),
        SimpleNamespace(),
        SimpleNamespace(worker=SimpleNamespace()),
    ],
)
def test_runner_whose_drafter_is_not_known_is_left_alone(without: Any) -> None:
    assert drafters.skip_in_worker(without, True) is False
