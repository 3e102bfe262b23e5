"""What runs in a process of its own; apart, so that a spawned process imports little."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

from tabletune_plugin.engine.spans import Spans


def write_spans(name: str, spans: dict[int, float], own_seconds: float) -> None:
    """Write ``spans`` (milliseconds by step) to the memory called ``name``, as a recorder does."""
    table = Spans(SharedMemory(name=name))
    for step, milliseconds in spans.items():
        table.write(step, milliseconds)
    table.write_own_seconds(own_seconds)
    table.close()
