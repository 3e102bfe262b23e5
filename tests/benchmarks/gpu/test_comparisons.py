"""Comparisons on a load that only notes what it is asked for; real engines run `plans/dry.yaml`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks.gpu import made

from gpu import comparisons, inside, policies  # isort: skip
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


class Serving:
    """An engine and its load by a clock of their own: the plugin slows it, GPU spans most of all."""

    def __init__(self) -> None:
        self.now = 50.0
        self.out = ""
        self.own = {"scheduler": 1.0, "spans": 2.0, "control": 3.0}
        self.served: list[policies.Policy] = []

    def serve(self, policy: policies.Policy, _load: Any) -> float:
        self.served.append(policy)
        return 0.0

    def call(self, function: Any, *arguments: Any) -> Any:
        if function is inside.bypass:
            (self.out,) = arguments
            return None
        assert function is inside.own_seconds
        return dict(self.own)

    def keep_open(self, count: int, shape: Shape) -> None:
        assert (count, shape) == (240, Shape())

    def sleep(self, seconds: float) -> tuple[float, float]:
        began, self.now = self.now, self.now + seconds
        if self.out != "plugin":
            self.own["scheduler"] += 0.001 * seconds
            self.own["spans"] += 0.002 * seconds * (self.out == "")
        return began, self.now

    def tokens(self, began: float, ended: float) -> float:
        return (ended - began) * {"": 900.0, "spans": 990.0, "plugin": 1_000.0}[self.out]

    def forget(self, before: float) -> None: ...

    def end(self) -> None: ...


def test_cost_is_measured_with_all_of_the_plugin_without_spans_and_without_it() -> None:
    kept: list[dict[str, Any]] = []
    document, serving = made.document(), Serving()
    bench: Any = SimpleNamespace(
        engine=serving,
        load=serving,
        document=document,
        keep=kept.append,
        policy=lambda name: policies.named(name, document),
    )
    comparisons.cost(bench, 240, rounds=2, seconds=4.0)
    assert serving.out == ""
    (served,) = serving.served
    assert served.document.control.allowed_lengths == (served.document.table[0][2],)
    rates = {"plugin adapting": 900.0, "without spans": 990.0, "without plugin": 1_000.0}
    for number in (0, 1):
        own = [record for record in kept if record["round"] == number]
        assert {record["policy"]: record["tokensPerSecond"] for record in own} == pytest.approx(rates)
    for record in kept:
        assert record["began"] + record["seconds"] <= serving.now
        # Of the window alone, not of settling before it.
        assert (
            record.get("ownSeconds")
            == {
                "plugin adapting": {"scheduler": 0.004, "spans": 0.008, "control": 0.0},
                "without spans": {"scheduler": 0.004, "spans": 0.0, "control": 0.0},
                "without plugin": None,
            }[record["policy"]]
        )
