"""The harness that compares policies on a GPU, on the engine that every machine can run.

What it measures here means nothing; that it starts, swaps documents, lets a rival steer, keeps steps and
writes a report from them is what a lease of a GPU must not be spent on finding out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tabletune import documents
from tests.engine import profiles

pytestmark = pytest.mark.engine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DOCUMENT = BENCHMARKS / "results" / "profile-draft_model-document.json"
SHORT = {"prompt_tokens": 20, "output_tokens": [20, 40]}
PLAN = [
    {
        "compare": "profile",
        "batch_sizes": [1, 3],
        "steps": 6,
        "repeats": 0,
        "acceptance_tokens": 8,
        "mixed": False,
    },
    {
        "compare": "loads",
        "open": [3],
        "policies": ["constant 2", "tuned", "turbo", "nightjar"],
        "rounds": 1,
        "seconds": 2.0,
        **SHORT,
    },
    {"compare": "recovery", "open": 3, "start": ["all 0"], "seconds": 6, "policies": ["tuned"]},
]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=profiles.environment(), capture_output=True, text=True, check=False
    )


def test_plan_is_carried_out_and_reported(model_folder: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    plan.write_text(yaml.safe_dump(PLAN))
    drafter = {"method": "draft_model", "model": str(model_folder), "num_speculative_tokens": 3}
    serve = (model_folder, "--max-num-seqs", "16", "--max-model-len", "1024", profiles.EAGER)
    ran = run(
        BENCHMARKS / "gpu" / "serve.py",
        *("--plan", plan, "--document", DOCUMENT, "--output", out, "--name", "small", "--together", "1"),
        "--",
        *serve,
        *("--speculative-config", json.dumps(drafter)),
    )
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-4_000:]
    result = json.loads((out / "small.json").read_text())
    assert result["failures"] == []
    (profiled,) = [record for record in result["records"] if record["comparison"] == "profile"]
    document = documents.parse((out / "small-document.json").read_bytes())
    assert result["document"] == "small-document.json"
    assert document.profile.batch_sizes == (1, 3)
    assert [list(own) for own in document.table] == profiled["table"]
    windows = [record for record in result["records"] if record["comparison"] == "loads"]
    assert {record["policy"] for record in windows} == {"constant 2", "tuned", "turbo", "nightjar"}
    assert all(record["tokensPerSecond"] > 0 for record in windows)
    (timeline,) = [record for record in result["records"] if record.get("when") == "timeline"]
    assert timeline["reports"][0]["active"]
    assert timeline["reports"][-1]["corrections"] > 0
    with np.load(out / "small-steps.npz") as steps:
        assert len(steps["result_at"]) == result["steps"] > 50
        assert {1, 2, 3} <= set(steps["batch_size"].tolist())

    reported = run(BENCHMARKS / "gpu" / "report.py", out)
    assert reported.returncode == 0, reported.stderr[-4_000:]
    assert "small" in (out / "report.md").read_text()
