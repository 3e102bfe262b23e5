"""Makes ``example-document.json``, the document that tests of rendering, commands and plots read.

Derived, not profiled: the step times are measured (``h200-qwen3-4b-eagle3-steps.json``, an H200 with
vLLM 0.33), and the rest is put together around them. The weights were random and acceptance synthetic, so
survival is what vLLM was told, as if 5,000 drafts had been counted; every size up to 512 is captured, so
that no batch size falls into the gap of vLLM's dispatch; spread, driver and names are made up. Run it
again after a change of the computation:

    python tests/data/make_example_document.py
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from tabletune import assembling, documents
from tabletune.documents import Acceptance, Control, Document, Fingerprint, Graph, Measure, Profile

FOLDER = Path(__file__).parent
DRAFTS = 5_000


def make() -> Document:
    """Return the document from the measured step times."""
    steps = json.loads((FOLDER / "h200-qwen3-4b-eagle3-steps.json").read_text())
    batch_sizes, draft_lengths = steps["batch_sizes"], steps["draft_lengths"]
    measured = steps["measured"]
    largest = measured["max_cudagraph_capture_size"]
    survival = steps["synthetic_acceptance_rates"]
    return assembling.assemble(
        fingerprint=Fingerprint(
            gpu="NVIDIA H200",
            gpu_count=1,
            driver="580.95.05",
            vllm=measured["vllm"],
            torch=measured["torch"],
            runner=measured["runner"],
            model="Qwen3-4B architecture, random weights",
            drafter_method="eagle3",
            drafter="/models/qwen3-4b-eagle3",
            dtype=measured["dtype"],
            max_num_seqs=measured["max_num_seqs"],
            max_num_batched_tokens=8_192,
            async_scheduling=measured["async_scheduling"],
            cudagraph_mode=measured["cudagraph_mode"],
            cudagraph_capture_sizes=tuple(range(1, largest + 1)),
        ),
        profile=Profile(
            batch_sizes=batch_sizes,
            draft_lengths=draft_lengths,
            measure=Measure.QUIET_INTERVAL,
            step_time_ms=steps["step_time_ms"],
            spread_ms=tuple(tuple(round(0.03 * time, 3) for time in row) for row in steps["step_time_ms"]),
            samples=((30,) * len(batch_sizes),) * len(draft_lengths),
            graph=tuple(
                tuple(Graph.FULL if size * (length + 1) <= largest else Graph.NONE for size in batch_sizes)
                for length in draft_lengths
            ),
            context_length=128,
        ),
        acceptance=Acceptance(
            survival=survival,
            drafted=(DRAFTS,) * len(survival),
            accepted=tuple(round(DRAFTS * rate) for rate in survival),
            proposal_rate=1.0,
            prompts=160,
        ),
        control=Control(),
        created_at=datetime(2026, 11, 29, 12, tzinfo=UTC),
        prompt_tokens=256,
        output_tokens=500,
        speculative_config={
            "method": "eagle3",
            "model": "/models/qwen3-4b-eagle3",
            "num_speculative_tokens": max(draft_lengths),
        },
    )


if __name__ == "__main__":
    (FOLDER / "example-document.json").write_bytes(documents.dump(make()))
