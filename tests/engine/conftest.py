"""What the tests on the real engine share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tabletune_profiler import prompts

PROMPTS = 8


@pytest.fixture(scope="session")
def few_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompts file with the first few of the bundled ones: all 160 take minutes on a CPU."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    chosen = [prompt.model_dump(mode="json", exclude_none=True) for prompt in prompts.bundled()[:PROMPTS]]
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in chosen))
    return path
