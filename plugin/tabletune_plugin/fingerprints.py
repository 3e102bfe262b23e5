"""Whether the serving engine is the one that was profiled.

A table is right for the GPU, model, drafter and settings that it was measured on. On others it may lose more
than it gains, and nothing in the numbers would show it, so the controller compares the document's fingerprint
with the engine's at each load, and tells what differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tabletune.documents import Fingerprint

MINOR = frozenset({"driver", "torch", "max_num_batched_tokens", "cudagraph_capture_sizes"})
"""Fields that may differ without making the table another's: told, and no reason to refuse. What other
capture sizes mean is computed (:mod:`tabletune.graphs`)."""

_SHOWN = 200


@dataclass(frozen=True)
class Difference:
    """A field with another value in the engine than in the profile."""

    field: str
    """Name in the document."""
    profiled: str
    """Value in the document."""
    serving: str
    """Value in the engine."""
    minor: bool
    """Whether the table is as good all the same."""

    def __str__(self) -> str:
        return f"{self.field} is {self.serving!r}, profiled was {self.profiled!r}"


def differences(profiled: Fingerprint, serving: Fingerprint) -> tuple[Difference, ...]:
    """Return what differs, the important first. A local build of the same release is the same vLLM."""
    found = []
    for name, field in Fingerprint.model_fields.items():
        before, now = getattr(profiled, name), getattr(serving, name)
        if name in ("vllm", "torch"):
            before, now = before.partition("+")[0], now.partition("+")[0]
        if before != now:
            found.append(
                Difference(field.alias or name, str(before)[:_SHOWN], str(now)[:_SHOWN], name in MINOR)
            )
    return tuple(sorted(found, key=lambda difference: difference.minor))
