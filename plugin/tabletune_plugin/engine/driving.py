"""An engine core run in this process, step by step: vLLM's serving path without its front end.

The profiler's engine process uses it. ``vllm serve`` runs the same ``EngineCore`` in a process of its own
and feeds it over sockets; here the caller adds requests as token ids and makes the steps, so that nothing
but the engine's own work lies between two results (no detokenizer, no HTTP).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from tabletune_plugin.engine import drafters, steps


class EngineStartError(RuntimeError):
    """vLLM could not start with this configuration; its own error is the cause."""


class DrivenEngine:
    """One engine core, its tap, and the requests in it."""

    def __init__(self, core: Any, tap: steps.Tap, *, measures_gpu_span: bool) -> None:
        """Drive ``core`` (vLLM's ``EngineCore``), whose steps ``tap`` reads; nothing else may be in it."""
        self._core = core
        self._scheduler: Any = core.scheduler
        self._serial = 0
        config = core.vllm_config
        # Read once: vLLM reads it from the model's folder each time.
        self._generation_config: dict[str, Any] = config.model_config.try_get_generation_config()
        self._eos_token_id = _eos_token_id(config)
        self.max_num_seqs: int = config.scheduler_config.max_num_seqs
        self.tap = tap
        self.asynchronous: bool = core.batch_queue is not None
        self.measures_gpu_span = measures_gpu_span

    @classmethod
    def start(cls, config: Any, on_step: Callable[[steps.Step], None]) -> Self:
        """Start the engine of ``config`` (vLLM's ``VllmConfig``): loads weights, captures graphs.

        Raises :class:`EngineStartError`. Must run in a process where
        ``VLLM_ENABLE_V1_MULTIPROCESSING=0`` was set before vLLM was imported.
        """
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        # Has every step say which CUDA graph it ran as.
        config.observability_config.cudagraph_metrics = True
        try:
            core: Any = EngineCore(config, Executor.get_class(config), log_stats=True)
        except Exception as error:
            raise EngineStartError(f"vLLM did not start: {type(error).__name__}: {error}") from error
        tap = steps.attach(core.scheduler, on_step)
        return cls(core, tap, measures_gpu_span=tap.record_spans(core.model_executor))

    def set_draft_length(self, length: int) -> None:
        """Have every batch size draft ``length`` tokens, from the next step on."""
        self.tap.set_lookup([length] * (self.max_num_seqs + 1))

    def skip_drafter(self, skip: bool) -> bool:
        """Leave the drafter's pass out of steps of draft length 0, or take it in again.

        Returns whether there is one to leave out.
        """
        rpc = self._core.model_executor.collective_rpc
        return all(rpc(drafters.skip_in_worker, args=(skip,)))

    def add(self, token_ids: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> str:
        """Queue a greedy request; returns its id. It starts with the next step that has room."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        self._serial += 1
        # Greedy: acceptance is then the agreement of two argmaxes, and a rerun gives the same tokens.
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos)
        if not ignore_eos:
            sampling.update_from_generation_config(self._generation_config, self._eos_token_id)
        request = EngineCoreRequest(
            request_id=f"tabletune-{self._serial}",
            prompt_token_ids=list(token_ids),
            mm_features=None,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))
        return request.request_id

    def step(self) -> None:
        """Make one step of the engine: schedule, run the model, take the result (of an earlier step, if
        scheduling is asynchronous)."""
        _, model_executed = self._core.step_fn()
        self._core.post_step(model_executed)

    @property
    def unfinished(self) -> int:
        """Requests that run or wait."""
        return int(self._scheduler.get_num_unfinished_requests())

    @property
    def preemptions(self) -> int:
        """How often the requests in it were sent back to wait, since the KV cache was full."""
        return sum(request.num_preemptions for request in self._scheduler.requests.values())

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: requests left, or results still to come."""
        return bool(self._scheduler.has_requests() or self._core.batch_queue)

    def abort_all(self) -> None:
        """End all requests at once and let what is in flight finish.

        Letting a batch drain instead, request by request, has killed engines (ENGINE.md 3).
        """
        ids = list(self._scheduler.requests)
        if ids:
            self._core.abort_requests(ids)
        for _ in range(64):
            if not self.busy:
                break
            self.step()

    def shutdown(self) -> None:
        """Give the GPU's memory and the workers back."""
        self.tap.detach()
        self._core.shutdown()


def _eos_token_id(config: Any) -> int | None:
    eos = getattr(config.model_config.hf_config, "eos_token_id", None)
    return eos[0] if isinstance(eos, list) else eos


def tokenizer(config: Any) -> Any:
    """Return the tokenizer that vLLM serves with; ``None`` where it was told to do without."""
    if config.model_config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    return cached_tokenizer_from_config(config.model_config)
