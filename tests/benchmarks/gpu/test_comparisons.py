"""Comparisons on a load that only notes what it is asked for; real engines run `plans/dry.yaml`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks.gpu import made  # noqa: F401  # makes the benchmarks importable

from gpu import comparisons  # isort: skip
from gpu.loads import Shape  # isort: skip


class Load:
    """A load of which one burst does not end well."""

    def __init__(self, fails_at: int, failure: BaseException) -> None:
        self.shapes: list[Shape] = []
        self._fails_at, self._failure = fails_at, failure

    def burst(self, count: int, shape: Shape) -> None:
        """Note what the burst's requests are like."""
        assert 100 <= count <= 230
        self.shapes.append(shape)

    def wait_until_drained(self, seconds: float) -> bool:
        """Drain at once, but for one."""
        assert seconds > 0
        if len(self.shapes) == self._fails_at:
            raise self._failure
        return True


@pytest.mark.parametrize(("failure", "died"), [(RuntimeError("dead"), True), (SystemExit(1), False)])
def test_bursts_have_prompts_of_their_own_and_tell_a_death_from_an_end(
    failure: BaseException, died: bool
) -> None:
    kept: list[dict[str, Any]] = []
    load = Load(3, failure)
    bench: Any = SimpleNamespace(
        engine=SimpleNamespace(serve=lambda *_: 0.0),
        load=load,
        keep=kept.append,
        policy=lambda name: SimpleNamespace(name=name),
    )
    with pytest.raises(type(failure)):
        comparisons.bursts(bench, 10, [100, 230], tokens=40, length=1)
    assert load.shapes == [Shape(256, (40, 40))] * 3
    assert (kept[0]["survived"], kept[0]["died"], kept[0]["promptTokens"]) == (2, died, 256)
