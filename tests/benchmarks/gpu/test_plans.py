"""What a lease is to measure fits into it, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.benchmarks.gpu import made

from gpu import comparisons, policies  # isort: skip

GPU = made.ROOT / "benchmarks" / "gpu"
PLANS = sorted((GPU / "plans").glob("*.yaml"))
LANE_SECONDS = 1440.0
"""Of a lease of half an hour what carrying vLLM, engine starts and bringing results home leave."""


def entries(plan: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = yaml.safe_load((GPU / "plans" / f"{plan}.yaml").read_text())
    return found


def lane(number: int) -> str:
    script = (GPU / "session.sh").read_text()
    return script.partition(f"\n  {number})\n")[2].partition("\n    ;;\n")[0]


@pytest.mark.parametrize("number", [0, 1])
def test_lane_fits_a_lease(number: int) -> None:
    served = re.findall(r"^ +serving (\S+) (\S+) ", lane(number), re.MULTILINE)
    assert len(served) >= 3
    seconds = {
        name: sum(comparisons.expected_seconds(entry) for entry in entries(plan)) for name, plan in served
    }
    assert sum(seconds.values()) < LANE_SECONDS, seconds
    # Nobody's own limit cuts into its plan, but for the comparison that is the last.
    limits = dict(re.findall(r"serving (\S+) [^\n]*--seconds (\d+)", lane(number)))
    for name, limit in limits.items():
        assert seconds[name] < float(limit) + 60, name


@pytest.mark.parametrize("number", [0, 1])
def test_turns_follow_each_other(number: int) -> None:
    served = re.findall(r"^ +serving (\S+) ", lane(number), re.MULTILINE)
    after = dict(re.findall(r"serving (\S+) (?:[^\n]|\\\n)*?--after (\S+)", lane(number)))
    assert list(after) == served[1:]
    assert list(after.values()) == served[:-1]


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_plan_names_policies_that_there_are(plan: Path) -> None:
    document = made.document()
    for entry in yaml.safe_load(plan.read_text()):
        assert comparisons.expected_seconds(entry) > 0
        for name in comparisons._expand(entry.get("policies", ()), document):
            assert policies.named(name, document)
        for kind in entry.get("start", ()):
            assert comparisons.wrong(kind, document)


def test_engines_that_start_together_are_counted() -> None:
    script = (GPU / "session.sh").read_text()
    served = [
        name for number in (0, 1) for name in re.findall(r"^ +serving (\S+) ", lane(number), re.MULTILINE)
    ]
    assert f"ENGINES:-{len(served)}" in script
    assert len(set(served)) == len(served)


def test_length_of_a_plan_is_told() -> None:
    loads = {"compare": "loads", "open": [60, 60], "policies": ["tuned"], "rounds": 10, "seconds": 4.15}
    # 20 windows of 5 s, and twice a ramp of 3 s with 60 prompts of 256 tokens.
    assert comparisons.expected_seconds(loads) == pytest.approx(100 + 2 * 3.256)
    with pytest.raises(ValueError, match="no comparison"):
        comparisons.expected_seconds({"compare": "nothing"})
