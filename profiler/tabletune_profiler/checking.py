"""What an engine's configuration says about serving a table, before anything is measured. Pure functions.

``commands.check`` shows it, and ``profiling`` refuses what is refused here. Without it, a user would
learn after minutes of GPU time that vLLM ignores the table, or serve one for months on an engine whose
graphs do not fit it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tabletune import graphs, hazards
from tabletune.graphs import GraphSettings
from tabletune_plugin.engine.facts import Obstacle, Severity
from tabletune_profiler.messages import Configured

MOST_SIZES_TOLD = 12
"""Batch sizes named in a message; the rest are counted."""


def obstacles(configured: Configured) -> tuple[Obstacle, ...]:
    """Return all that stands in a table's way, what refuses it first."""
    found = [*configured.obstacles, *_graph_obstacles(configured)]
    return tuple(sorted(found, key=lambda obstacle: obstacle.severity is not Severity.REFUSED))


def _graph_obstacles(configured: Configured) -> Iterator[Obstacle]:
    """Yield what the CUDA graphs that the engine captures leave out (ENGINE.md 1 to 3)."""
    fingerprint = configured.fingerprint
    settings = GraphSettings.from_fingerprint(fingerprint, configured.draft_lengths)
    if settings.mode_with_table == "NONE" or not settings.capture_sizes:
        return
    needed = fingerprint.max_num_seqs * (max(configured.draft_lengths) + 1)
    if needed > settings.largest_capture_size:
        yield Obstacle(
            "StepsBeyondCaptureLimit",
            Severity.WARNING,
            f"steps of more than {settings.largest_capture_size} tokens run without a CUDA graph, which made"
            f" them 30 to 50 ms long on an H200; {fingerprint.max_num_seqs} requests with"
            f" {max(configured.draft_lengths)} draft tokens are {needed} tokens.",
            f"Set --max-cudagraph-capture-size {needed}; profile to see what it is worth.",
        )
    gap = graphs.gap(settings)
    if gap:
        yield Obstacle(
            "BatchSizesWithoutFullGraph",
            Severity.WARNING,
            f"these batch sizes find no full CUDA graph and cost 11 ms more on an H200: {_told(gap)}.",
            "Serve with the capture sizes of the document's engine advice (vllm-args.yaml of `tabletune"
            f" render`): multiples of {graphs.alignment(configured.draft_lengths)} with --max-num-seqs"
            f" {graphs.aligned_max_num_seqs(configured.draft_lengths, fingerprint.max_num_seqs)}.",
        )
    mismatched = {
        length: tuple(sorted(sizes))
        for length, sizes in hazards.mismatched(fingerprint, configured.draft_lengths).items()
        if sizes
    }
    if mismatched:
        yield Obstacle(
            "TargetAndDrafterGraphsDiffer",
            Severity.WARNING,
            "at these batch sizes the drafter replays a full graph captured for more requests than the"
            f" step has, which very likely is what has killed engines: {_told(mismatched)}.",
            "The same capture sizes close this gap too.",
        )


def _told(sizes_by_length: Mapping[int, tuple[int, ...]]) -> str:
    told = []
    for length, sizes in sorted(sizes_by_length.items()):
        more = f" and {len(sizes) - MOST_SIZES_TOLD} more" if len(sizes) > MOST_SIZES_TOLD else ""
        told.append(f"K={length}: {', '.join(map(str, sizes[:MOST_SIZES_TOLD]))}{more}")
    return "; ".join(told)
