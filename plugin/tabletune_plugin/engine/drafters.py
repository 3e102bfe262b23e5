"""Leaving the drafter out of steps that draft nothing, to time what an engine without one would take.

At draft length 0 vLLM still runs one pass of a drafter that is a model, so that its KV cache keeps up
(``SpecDecodeBaseProposer.propose`` of the V1 runner, ``Speculator.propose`` of V2). An engine without a
speculative config does not, so gains over length 0 would flatter every table. Timing a second engine
costs minutes of GPU time; leaving out the one call costs none.

Only the profiler does this: while the drafter is left out its KV cache gets holes, and what it drafts for
these requests later is worse. Workers call these functions by ``collective_rpc``.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from tabletune_plugin.engine import spans

_WRAPPED = "_tabletune_propose"


def skip_in_worker(worker: Any, skip: bool) -> bool:
    """Leave the drafter out of this worker's steps of draft length 0, or take it in again.

    Returns whether this runner has a drafter whose pass can be left out. Nothing else changes: a step that
    drafts any token runs as ever.
    """
    drafter = _drafter(spans.runner_of(worker))
    if drafter is None:
        return False
    original = getattr(drafter, _WRAPPED, None)
    if skip and original is None:
        setattr(drafter, _WRAPPED, drafter.propose)
        drafter.propose = _without_pass(drafter, drafter.propose)
    elif not skip and original is not None:
        drafter.propose = original
        delattr(drafter, _WRAPPED)
    return True


def _drafter(runner: Any) -> Any:
    """Return what proposes drafts in ``runner``; ``None`` where it does not take its length as we know."""
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    propose = getattr(drafter, "propose", None)
    if propose is None:
        return None
    parameters = inspect.signature(propose).parameters
    if "num_speculative_tokens" not in parameters or not {"input_batch", "next_token_ids"} & set(parameters):
        return None
    return drafter


def _without_pass(drafter: Any, propose: Any) -> Any:
    signature = inspect.signature(propose)

    @functools.wraps(propose)
    def skipping(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("num_speculative_tokens") != 0:
            return propose(*args, **kwargs)
        if "next_token_ids" in given:  # the V1 runner wants a column per draft token: none
            import torch

            ids = given["next_token_ids"]
            return torch.empty(len(ids), 0, device=ids.device, dtype=torch.int64)
        # The V2 runner overwrites every column that was not asked for.
        return drafter.draft_tokens[: given["input_batch"].num_reqs]

    return skipping
