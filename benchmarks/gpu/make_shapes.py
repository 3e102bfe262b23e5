"""Writes configurations of real architectures, for engines with dummy weights.

Step times depend on shapes, not on what the weights hold, so `--load-format dummy` with such a folder
gives real times where no weights can be fetched. Acceptance is then set by vLLM's synthetic rejection
sampling. Shapes are those that the models' published configurations state.

    python benchmarks/gpu/make_shapes.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}

QWEN3_4B_EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 151643,
    "draft_vocab_size": 32000,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}

SHAPES = {"qwen3-4b": QWEN3_4B, "qwen3-4b-eagle3": QWEN3_4B_EAGLE3}


def main(folder: Path) -> None:
    """Write one folder per shape into ``folder``."""
    for name, config in SHAPES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
