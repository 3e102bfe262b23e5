"""Which CUDA graph a vLLM step finds, from the engine's settings alone.

The cost model asks it for every batch size and draft length, engine advice asks what other settings would
find, and `tabletune check` what is wrong with the present ones. vLLM pads a step to a captured token count
and runs it as a full graph, as piecewise graphs or without any, and the three differ by 11 ms and more;
which one it is depends on the arithmetic of batch size and draft length. A profile on a coarse grid does
not show it, so a table computed without this module puts batch sizes on lengths that lose their graph.

This follows vLLM 0.32 and 0.33, whose dispatch is the same: `vllm/v1/worker/gpu/cudagraph_utils.py`
(`CudaGraphManager`) for the V2 runner, `vllm/v1/cudagraph_dispatcher.py` for V1. Left out, since a table
does not meet them: LoRA, microbatches, data parallel, and adaptive verification's graphs for any mix of
lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from tabletune.documents import Fingerprint, Graph

CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]

Integers = npt.NDArray[np.int64]

KINDS: tuple[Graph, ...] = (Graph.FULL, Graph.PIECEWISE, Graph.NONE)
"""A kind's place here is its code in arrays: 0 full, 1 piecewise, 2 none."""

FULL, PIECEWISE, NONE = range(3)

DECODE_AND_MIXED: dict[CudagraphMode, tuple[Graph, Graph]] = {
    "NONE": (Graph.NONE, Graph.NONE),
    "PIECEWISE": (Graph.PIECEWISE, Graph.PIECEWISE),
    "FULL": (Graph.FULL, Graph.FULL),
    "FULL_DECODE_ONLY": (Graph.FULL, Graph.NONE),
    "FULL_AND_PIECEWISE": (Graph.FULL, Graph.PIECEWISE),
}
"""What each mode captures for pure decode steps and for steps with a prompt (`CUDAGraphMode`)."""

UNIFORM_MODES: tuple[CudagraphMode, ...] = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""Modes with full graphs for one number of tokens per request only, hence with a gap."""

DRAFTERS_ON_THE_TARGETS_BATCH = frozenset({"eagle", "eagle3", "mtp"})
"""Methods for which :func:`mismatched_batch_sizes` says something. Others have no graphs of their own
(n-gram, suffix, draft model) or describe their own batch to each graph (DFlash)."""

PADDING_STEPS = 32
"""Aligned sizes lie at most 1/32 (3%) of a step's tokens apart where the alignment allows; vLLM's own
grid, 16 tokens apart, pads as much at 512 tokens."""


class GraphSettingsError(ValueError):
    """Settings that no vLLM engine has."""


@dataclass(frozen=True)
class GraphSettings:
    """The engine's settings that decide which graph a step finds."""

    runner: Literal["V1", "V2"]
    """vLLM's model runner."""
    mode: CudagraphMode
    """`cudagraph_mode` in force."""
    capture_sizes: tuple[int, ...]
    """`cudagraph_capture_sizes` in force: token counts, ascending. Empty without graphs."""
    max_num_seqs: int
    """Most requests in a step."""
    draft_lengths: tuple[int, ...]
    """Every length that the start-up table names, ascending: full graphs are captured for these only."""

    def __post_init__(self) -> None:
        for name, values, smallest in (
            ("capture_sizes", self.capture_sizes, 1),
            ("draft_lengths", self.draft_lengths, 0),
        ):
            if list(values) != sorted(set(values)) or any(value < smallest for value in values):
                raise GraphSettingsError(
                    f"{name} is {list(values)}. It must ascend, without repeats, from {smallest} or more."
                )
        if not self.draft_lengths:
            raise GraphSettingsError("draft_lengths is empty. Name every length of the start-up table.")
        if self.max_num_seqs < 1:
            raise GraphSettingsError(f"max_num_seqs is {self.max_num_seqs}. It must be 1 or more.")

    @classmethod
    def from_fingerprint(cls, fingerprint: Fingerprint, draft_lengths: Sequence[int]) -> Self:
        """Return the settings of a profiled engine whose start-up table names ``draft_lengths``."""
        return cls(
            runner=fingerprint.runner,
            mode=fingerprint.cudagraph_mode,
            capture_sizes=tuple(sorted(set(fingerprint.cudagraph_capture_sizes))),
            max_num_seqs=fingerprint.max_num_seqs,
            draft_lengths=tuple(sorted(set(draft_lengths))),
        )

    @property
    def mode_with_table(self) -> CudagraphMode:
        """The mode that a table leaves: V1 has only piecewise graphs then.

        (`VllmConfig._maybe_override_dynamic_sd_cudagraph_mode` in `vllm/config/vllm.py`.)
        """
        if self.runner == "V1" and DECODE_AND_MIXED[self.mode][0] is Graph.FULL:
            return "PIECEWISE"
        return self.mode

    @property
    def largest_capture_size(self) -> int:
        """Most tokens that any graph holds; 0 without graphs."""
        return self.capture_sizes[-1] if self.capture_sizes else 0


@dataclass(frozen=True)
class StepGraph:
    """What one step runs as."""

    kind: Graph
    """Kind of graph."""
    padded_tokens: int
    """Tokens that the step computes, padding included."""


@dataclass(frozen=True)
class StepGraphs:
    """What pure decode steps of one draft length run as, an entry per batch size asked for."""

    kinds: npt.NDArray[np.int8]
    """Codes into :data:`KINDS`."""
    padded_tokens: Integers
    """Tokens that each step computes, padding included."""


@dataclass(frozen=True)
class _UniformGraphs:
    """Full graphs for steps in which every request has the same number of tokens (V2)."""

    tokens: Integers
    """Token counts that have any such graph, ascending."""
    holds: dict[int, npt.NDArray[np.bool_]]
    """By tokens per request: whether the graphs of each of ``tokens`` include one for it."""


@lru_cache(maxsize=64)
def _uniform_graphs(settings: GraphSettings) -> _UniformGraphs:
    """Return the full graphs that V2 captures for uniform steps (`CudaGraphManager._init_candidates`).

    - Each capture size is rounded up to a multiple of K+1, for each length K of the start-up table.
    - What comes out above the largest capture size, or with more than max_num_seqs requests, is dropped.
    """
    mode = settings.mode_with_table
    query_lengths = [draft_length + 1 for draft_length in settings.draft_lengths]
    if mode not in UNIFORM_MODES:
        return _UniformGraphs(np.array([], dtype=np.int64), {})
    sizes = np.array(settings.capture_sizes, dtype=np.int64)
    captured = {}
    for query_length in query_lengths:
        limit = min(settings.largest_capture_size, settings.max_num_seqs * query_length)
        rounded = -(-sizes // query_length) * query_length
        captured[query_length] = rounded[rounded <= limit]
    tokens = np.unique(np.concatenate(list(captured.values())))
    return _UniformGraphs(tokens, {length: np.isin(tokens, own) for length, own in captured.items()})


def dispatch(
    settings: GraphSettings, batch_size: int, draft_length: int, prompt_tokens: int = 0
) -> StepGraph:
    """Return what one step runs as: :func:`dispatch_batches` of a single batch size."""
    graphs = dispatch_batches(settings, np.array([batch_size]), draft_length, prompt_tokens)
    return StepGraph(KINDS[graphs.kinds[0]], int(graphs.padded_tokens[0]))


def dispatch_batches(
    settings: GraphSettings, batch_sizes: Integers, draft_length: int, prompt_tokens: int = 0
) -> StepGraphs:
    """Return what steps run as in which ``batch_sizes`` requests decode ``draft_length`` drafts each.

    With ``prompt_tokens`` the steps are mixed: a prompt's tokens come on top, as one more request, and
    the requests no longer have the same number of tokens.

    In vLLM's order (V2's `dispatch` and `_is_compatible`; V1 knows only the second):

    - A full graph for this number of tokens per request. The token count is filed under the next count
      that has *any* uniform graph, and only the graphs of that count are tried: this is the gap.
    - Else the graphs for any step: full ones in mode FULL, else piecewise ones, at the next capture size.
    - Else none, without padding.
    """
    query_length = draft_length + 1
    tokens = batch_sizes * query_length + prompt_tokens
    kinds, padded = _find_general_graphs(settings, batch_sizes, tokens)
    uniform = _uniform_graphs(settings)
    if query_length in uniform.holds and not prompt_tokens:
        place = np.searchsorted(uniform.tokens, tokens)
        found = np.append(uniform.holds[query_length], False)[place]
        kinds = np.where(found, np.int8(FULL), kinds)
        padded = np.where(found, np.append(uniform.tokens, 0)[place], padded)
    return StepGraphs(kinds, padded)


def _find_general_graphs(
    settings: GraphSettings, requests: Integers, tokens: Integers
) -> tuple[npt.NDArray[np.int8], Integers]:
    """Return kinds and padded tokens by the graphs that take any mix of requests.

    A prompt's own request is not in ``requests``: at max_num_seqs it takes the place of another.
    """
    kind = DECODE_AND_MIXED[settings.mode_with_table][1]
    if kind is Graph.NONE or not settings.capture_sizes:
        return np.full(tokens.shape, NONE, dtype=np.int8), tokens
    sizes = np.array(settings.capture_sizes, dtype=np.int64)
    place = np.searchsorted(sizes, tokens)
    found = place < len(sizes)
    if kind is Graph.FULL:  # captured for max_num_seqs requests at most, where piecewise ones have no limit
        found &= requests <= settings.max_num_seqs
    padded = np.where(found, sizes[np.minimum(place, len(sizes) - 1)], tokens)
    return np.where(found, np.int8(KINDS.index(kind)), np.int8(NONE)), padded


def captured_graphs(settings: GraphSettings) -> int:
    """Return how many graphs the target captures at start-up; each costs start-up time and GPU memory."""
    uniform = sum(int(own.sum()) for own in _uniform_graphs(settings).holds.values())
    general = (
        0 if DECODE_AND_MIXED[settings.mode_with_table][1] is Graph.NONE else len(settings.capture_sizes)
    )
    return uniform + general


def default_capture_sizes(largest: int) -> tuple[int, ...]:
    """Return vLLM's capture sizes for ``--max-cudagraph-capture-size largest``, ascending.

    1, 2, 4, then every 8 tokens below 256, then every 16 (`VllmConfig._set_cudagraph_sizes`). Where that
    option is not given, vLLM adds sizes for the start-up table's lengths: take the fingerprint's then.
    """
    sizes = [1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def batch_sizes_without_full_graph(settings: GraphSettings) -> dict[int, tuple[int, ...]]:
    """Return, by draft length, the batch sizes up to max_num_seqs whose pure steps find no full graph.

    Up to the largest capture size that is the gap (`ENGINE.md` 2): the step runs piecewise, about 11 ms
    slower. Beyond it a step has no graph at all. In a mode without full graphs it is every batch size.
    """
    batch_sizes = np.arange(1, settings.max_num_seqs + 1)
    return {
        draft_length: tuple(
            batch_sizes[dispatch_batches(settings, batch_sizes, draft_length).kinds != FULL].tolist()
        )
        for draft_length in settings.draft_lengths
    }


def gap(settings: GraphSettings) -> dict[int, tuple[int, ...]]:
    """Return, by draft length, the batch sizes that find no full graph although their tokens are captured.

    Only lengths that have such batch sizes are in it; none is in modes without full graphs for decode
    steps, or with graphs for any mix of requests.
    """
    if settings.mode_with_table not in UNIFORM_MODES:
        return {}
    within = {
        length: tuple(size for size in sizes if size * (length + 1) <= settings.largest_capture_size)
        for length, sizes in batch_sizes_without_full_graph(settings).items()
    }
    return {length: sizes for length, sizes in within.items() if sizes}


def batch_sizes_to_add(
    settings: GraphSettings, batch_sizes: Sequence[int], avoided: Mapping[int, Set[int]]
) -> tuple[int, ...]:
    """Return what a grid of ``batch_sizes`` lacks so that each kind is measured at each length, ascending.

    Powers of two can miss the gap of a length altogether; the cost model could then not price it. For
    each length and kind without a grid point it is the middle one of the batch sizes concerned. Those
    ``avoided`` at a length (by draft length) are not timed, so they neither count nor are added for it.
    """
    candidates = np.arange(1, settings.max_num_seqs + 1)
    measured = set(batch_sizes)
    for draft_length in settings.draft_lengths:
        kinds = dispatch_batches(settings, candidates, draft_length).kinds
        for kind in np.unique(kinds):
            of_kind = [
                size
                for size in candidates[kinds == kind].tolist()
                if size not in avoided.get(draft_length, ())
            ]
            if of_kind and measured.isdisjoint(of_kind):
                measured.add(of_kind[len(of_kind) // 2])
    return tuple(sorted(measured - set(batch_sizes)))


def mismatched_batch_sizes(settings: GraphSettings) -> dict[int, tuple[int, ...]]:
    """Return, by draft length, the batch sizes at which target and drafter run different graphs.

    Certain, from the source: V2's drafters that follow the target's batch
    (:data:`DRAFTERS_ON_THE_TARGETS_BATCH`; `spec_decode/target_dependent_ar/speculator.py`, `propose`)
    keep a graph manager of their own with the same sizes, and ask it for the token count *after* the
    target's padding. Where the target found no full graph and was padded to a piecewise one, that count
    may be filed under a full graph for this length. The drafter then replays it, captured for more
    requests than the step has, while the block tables and attention metadata were prepared for the
    step's own number of requests only.

    Inferred: that this is what ends in FlashAttention 3's illegal memory access. The engines that died
    (`ENGINE.md` 3) did so at K=0 and K=1 while the batch shrank, and these are the lengths and batch
    sizes found here; nobody has traced the fault itself.
    """
    batch_sizes = np.arange(1, settings.max_num_seqs + 1)
    uniform = _uniform_graphs(settings)
    mismatched: dict[int, tuple[int, ...]] = {}
    for draft_length in settings.draft_lengths:
        graphs = dispatch_batches(settings, batch_sizes, draft_length)
        holds = np.append(uniform.holds.get(draft_length + 1, False), False)
        drafter_is_full = holds[np.searchsorted(uniform.tokens, graphs.padded_tokens)]
        mismatched[draft_length] = tuple(batch_sizes[(graphs.kinds != FULL) & drafter_is_full].tolist())
    return mismatched


def alignment(draft_lengths: Sequence[int]) -> int:
    """Return the least common multiple of K+1 over ``draft_lengths``: 12 for 0 to 3, 60 for 0 to 5."""
    return math.lcm(*(draft_length + 1 for draft_length in draft_lengths))


def aligned_max_num_seqs(draft_lengths: Sequence[int], max_num_seqs: int) -> int:
    """Return the largest max_num_seqs up to the given one whose full batch is aligned at every length.

    Each length then ends on a multiple of the :func:`alignment`, and :func:`aligned_capture_sizes` needs
    no extra sizes there: 252 for 256 and the lengths 0 to 3. Where none is that small, ``max_num_seqs``.
    """
    whole = alignment(draft_lengths)
    unit = math.lcm(*(whole // (draft_length + 1) for draft_length in draft_lengths))
    return max_num_seqs // unit * unit or max_num_seqs


def aligned_capture_sizes(
    draft_lengths: Sequence[int], max_num_seqs: int, largest_tokens: int
) -> tuple[int, ...]:
    """Return capture sizes up to ``largest_tokens`` with which no batch size lacks a full graph.

    A token count is filed under the next size with any uniform graph, so that size must suit every length
    with a step in between. Two kinds of stretches do:

    - One multiple of the :func:`alignment` L to the next: every length divides it. Further up several L
      are taken at once, as long as a step is padded by no more than 1/32 of its tokens.
    - Every multiple of every K+1 (within max_num_seqs requests): each step finds its own size. It takes
      many sizes, so only where needed: up to the first L, since a batch of one request should not compute
      L tokens; and where a length reaches max_num_seqs, or the sizes end, between two multiples of L.

    ``largest_tokens`` itself, from 1, is always among them: steps with a prompt are padded to it too.
    The number of sizes is about L at least, which is of use for small L only: 12 for the lengths 0 to 3,
    8 for 0, 1, 3, 7, but 840 for 0 to 7. The caller decides whether that is worth capturing.
    """
    whole = alignment(draft_lengths)
    limits = {
        draft_length + 1: min((draft_length + 1) * max_num_seqs, largest_tokens)
        for draft_length in draft_lengths
    }
    sizes = {largest_tokens}
    for start in {0, *(limit // whole * whole for limit in limits.values() if limit % whole)}:
        for query_length, limit in limits.items():
            sizes.update(_multiples(query_length, start, min(start + whole, limit)))
    stops = {limit // whole * whole for limit in [*limits.values(), largest_tokens]}
    size = 0
    while size < largest_tokens // whole * whole:
        step = whole * max(1, size // (PADDING_STEPS * whole))
        size = min([size + step, *(stop for stop in stops if stop > size)])
        sizes.add(size)
    return tuple(sorted(sizes))


def _multiples(of: int, above: int, to: int) -> Iterator[int]:
    """Yield the multiples of ``of`` in the half-open stretch ``(above, to]``."""
    yield from range((above // of + 1) * of, to + 1, of)
