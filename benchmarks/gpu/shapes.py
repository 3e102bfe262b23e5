"""Writes configurations of real architectures, for engines with dummy weights.

Step times depend on shapes, not on what the weights hold, so `--load-format dummy` with such a folder
gives real times where no weights can be fetched. Acceptance is then set by vLLM's synthetic rejection
sampling, and a mixture's routing by its `VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random` (dummy weights
would send every token to the same experts). Shapes are those that the models' published configurations
state; heads for EAGLE-3 are one layer of the target's width.

    python benchmarks/gpu/shapes.py FOLDER [LAYERS]

LAYERS cuts the targets down, to see on a small machine whether an engine starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Config = dict[str, Any]

QWEN3: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}

QWEN3_4B: Config = QWEN3 | {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
}

QWEN3_0_6B: Config = QWEN3 | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
}

QWEN3_30B_A3B: Config = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}

MIMO_7B: Config = QWEN3 | {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 640000,
    "tie_word_embeddings": False,
    "vocab_size": 151680,
}
"""A dense model with one layer that predicts further tokens; of the type of the model it is built on, since
its own is no part of transformers."""


def eagle3(target: Config) -> Config:
    """Return an EAGLE-3 head for ``target``."""
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return (
        QWEN3
        | {name: target[name] for name in kept}
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "draft_vocab_size": 32000,
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
        }
    )


def dflash(target: Config, layers: int = 5) -> Config:
    """Return a DFlash drafter of ``layers`` for ``target``.

    Layers are as wide as the target's; embedding and head are the target's own (vLLM drops the drafter's).
    For Qwen3-4B this is what users of z-lab/Qwen3-4B-DFlash-b16 state of it: 5 layers, blocks of 16, mask
    token 151669, reading from the target's layers 1, 9, 17, 25 and 33. All is full attention, hence not
    causal. vLLM does not read the blocks' size: they are `num_speculative_tokens` and one more.
    """
    last = target["num_hidden_layers"] - 3
    return target | {
        "architectures": ["DFlashDraftModel"],
        "block_size": 16,
        "dflash_config": {
            "mask_token_id": 151669,
            "target_layer_ids": [1 + (last - 1) * place // (layers - 1) for place in range(layers)],
        },
        "num_hidden_layers": layers,
        "num_target_layers": target["num_hidden_layers"],
    }


SHAPES = {
    "qwen3-4b": QWEN3_4B,
    "qwen3-4b-eagle3": eagle3(QWEN3_4B),
    "qwen3-4b-dflash": dflash(QWEN3_4B),
    "qwen3-0.6b": QWEN3_0_6B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-30b-a3b-eagle3": eagle3(QWEN3_30B_A3B),
    "mimo-7b": MIMO_7B,
}


def cut(config: Config, layers: int) -> Config:
    """Return ``config`` with at most ``layers`` layers, and reading from no target's layer beyond them."""
    own: Config = {"num_hidden_layers": min(layers, config["num_hidden_layers"])}
    if "dflash_config" in config:
        read = [layer for layer in config["dflash_config"]["target_layer_ids"] if layer < layers]
        own["dflash_config"] = config["dflash_config"] | {"target_layer_ids": read}
        own["num_target_layers"] = min(layers, config["num_target_layers"])
    return config | own


def main(folder: Path, layers: int = 1_000) -> None:
    """Write one folder per shape into ``folder``."""
    for name, config in SHAPES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(cut(config, layers), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
