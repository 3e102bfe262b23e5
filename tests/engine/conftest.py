"""What the tests on the real engine share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tabletune_profiler import prompts

PROMPTS = 8
MOST_CHARACTERS = 400
"""So that they fit into the length that the engines of these tests are started with."""


@pytest.fixture(scope="session")
def few_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompts file with a few short ones of the bundled: all 160 take minutes on a CPU."""
    short = [
        line
        for prompt in prompts.bundled()
        if len(line := prompt.model_dump_json(exclude_none=True)) < MOST_CHARACTERS
    ]
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("\n".join(short[:PROMPTS]))
    return path
