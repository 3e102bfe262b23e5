"""Makes load on an engine core from another process: requests as token ids, sent over vLLM's own sockets.

No front end lies between: at 256 requests an ``AsyncLLM`` in the loading process would be what is measured.
One thread receives results, counts them and sends what is due; the caller sets how much is due, and reads
what was counted between two moments.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPTS = 64
"""Different prompts of a length; a serial number before them keeps requests from sharing KV blocks."""


@dataclass
class Request:
    """One request on its way."""

    due_at: float
    """When it was to be sent by the schedule, so that an engine that keeps it waiting is not spared that."""
    first_at: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Done:
    """One finished request; times in seconds of ``time.perf_counter``."""

    due_at: float
    first_at: float
    last_at: float
    tokens: int


@dataclass(frozen=True)
class Shape:
    """What requests are like."""

    prompt_tokens: int = 256
    output_tokens: tuple[int, int] = (300, 700)
    """Lengths of the outputs are uniform between these."""


class Load:
    """Sends requests to one engine core and counts its tokens."""

    def __init__(self, client: Any, vocabulary: int, prompts: list[list[int]] | None = None) -> None:
        """``client`` is vLLM's ``SyncMPClient``; ``prompts`` are real ones, else they are made at random."""
        self._client, self._vocabulary, self._given = client, vocabulary, prompts
        self._random = np.random.default_rng(1)
        self._made: dict[int, list[list[int]]] = {}
        self._shape = Shape()
        self._wanted = 0
        self._first = 0
        self._arrivals: Iterator[float] | None = None
        self._next: float | None = None
        self._open: dict[str, Request] = {}
        self._serial = 0
        self._received: deque[tuple[float, int]] = deque()
        self._done: deque[Done] = deque()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._sending = threading.Lock()
        plain = client._send_input

        def send(*arguments: Any) -> None:
            with self._sending:
                plain(*arguments)

        # ZeroMQ's sockets are not for several threads, and calls into the engine come from the caller's.
        client._send_input = send
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    # What the caller does

    def keep_open(self, count: int, shape: Shape) -> None:
        """Hold ``count`` requests open from now on, each followed by another (a closed loop).

        Those that begin it have any part of an output still to come, as if the loop had always run: begun
        together, requests of like lengths would end together for many generations.
        """
        self._require_alive()
        self._first = max(0, count - len(self._open))
        self._shape = shape
        self._arrivals, self._next = None, None
        self._wanted = count

    def arrive(self, per_second: float, shape: Shape, seed: int = 1) -> None:
        """Send requests at random moments, ``per_second`` on average (an open loop, Poisson)."""
        self._require_alive()
        self._shape = shape
        gaps = np.random.default_rng([seed, 9])
        start = time.perf_counter()

        def arrivals() -> Iterator[float]:
            at = start
            while True:
                at += gaps.exponential(1 / per_second)
                yield at

        self._wanted = 0
        self._arrivals = arrivals()
        self._next = next(self._arrivals)

    def end(self) -> None:
        """Send nothing more and abort what is open: draining has killed engines (ENGINE.md 3)."""
        self.keep_open(0, self._shape)
        for _ in range(100):
            left = list(self._open)
            if not left:
                break
            self._client.abort_requests(left)
            for name in left:
                self._open.pop(name, None)
            time.sleep(0.1)

    def wait_until_drained(self, seconds: float) -> bool:
        """Wait until nothing is open; returns whether that came within ``seconds``."""
        until = time.perf_counter() + seconds
        while self._open and time.perf_counter() < until:
            self._require_alive()
            time.sleep(0.005)
        return not self._open

    def burst(self, count: int, shape: Shape) -> None:
        """Send ``count`` requests at once; of an output of one length they end together."""
        self._require_alive()
        self._shape = shape
        for _ in range(count):
            self._send(time.perf_counter(), *shape.output_tokens)

    def sleep(self, seconds: float) -> tuple[float, float]:
        """Let it run for ``seconds``; returns beginning and end. Raises what ended the load, if it has."""
        began = time.perf_counter()
        while (left := began + seconds - time.perf_counter()) > 0:
            self._require_alive()
            time.sleep(min(left, 0.2))
        return began, time.perf_counter()

    def tokens(self, began: float, ended: float) -> int:
        """Return the output tokens received between two moments."""
        return sum(count for at, count in list(self._received) if began <= at < ended)

    def done(self, began: float, ended: float) -> list[Done]:
        """Return the requests that finished between two moments."""
        return [done for done in list(self._done) if began <= done.last_at < ended]

    def forget(self, before: float) -> None:
        """Drop what was counted before a moment."""
        while self._received and self._received[0][0] < before:
            self._received.popleft()
        while self._done and self._done[0].last_at < before:
            self._done.popleft()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    # What the thread does

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._send_due()
                self._receive()
        except Exception as error:
            self._failure = error

    def _send_due(self) -> None:
        now = time.perf_counter()
        while len(self._open) < self._wanted:
            shortest, longest = self._shape.output_tokens
            if self._first > 0:
                self._first, shortest = self._first - 1, 1
            self._send(now, shortest, longest)
        while self._next is not None and self._next <= now:
            due, arrivals = self._next, self._arrivals
            self._send(due, *self._shape.output_tokens)
            self._next = next(arrivals) if arrivals is not None else None

    def _receive(self) -> None:
        wait = 0.05 if self._next is None else min(0.05, max(self._next - time.perf_counter(), 0.0005))
        try:
            outputs = self._client.outputs_queue.get(timeout=wait)
        except queue.Empty:
            return
        if isinstance(outputs, Exception):
            raise outputs
        now = time.perf_counter()
        kept = 0
        for output in outputs.outputs:
            tokens = len(output.new_token_ids)
            kept += tokens
            request = self._open.get(output.request_id)
            if request is None:
                continue
            if tokens and not request.tokens:
                request.first_at = now
            request.tokens += tokens
            if output.finish_reason is not None:
                del self._open[output.request_id]
                self._done.append(Done(request.due_at, request.first_at, now, request.tokens))
        if kept:
            self._received.append((now, kept))

    def _send(self, due: float, shortest: int, longest: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        self._serial += 1
        name = f"load-{self._serial}"
        self._open[name] = Request(due)
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=int(self._random.integers(shortest, longest, endpoint=True)),
            ignore_eos=True,
            detokenize=False,
        )
        self._client.add_request(
            EngineCoreRequest(
                request_id=name,
                external_req_id=name,
                prompt_token_ids=self._prompt(),
                mm_features=None,
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )

    def _prompt(self) -> list[int]:
        if self._given is not None:
            return self._given[self._serial % len(self._given)]
        length = self._shape.prompt_tokens
        if length not in self._made:
            shape = (PROMPTS, length)
            self._made[length] = self._random.integers(100, self._vocabulary, shape).tolist()
        own = [100 + self._serial % 9_000, 100 + self._serial // 9_000]
        return own + self._made[length][self._serial % PROMPTS][2:]
