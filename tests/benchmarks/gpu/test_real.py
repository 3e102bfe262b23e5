"""The drafter out of a model's own layers."""

from __future__ import annotations

from tests.benchmarks.gpu import made  # noqa: F401

from gpu import real  # isort: skip


def test_layers_that_are_kept_are_counted_anew() -> None:
    weights = {"model.embed_tokens.weight": "tokens", "lm_head.weight": "head"}
    weights |= {f"model.layers.{layer}.mlp.up_proj.weight": f"up {layer}" for layer in range(12)}
    found = real.renumbered(weights, [0, 3, 11])
    assert found == {
        "model.embed_tokens.weight": "tokens",
        "lm_head.weight": "head",
        "model.layers.0.mlp.up_proj.weight": "up 0",
        "model.layers.1.mlp.up_proj.weight": "up 3",
        "model.layers.2.mlp.up_proj.weight": "up 11",
    }
