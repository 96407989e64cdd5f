"""Make the files that `make bench-cpu` compares, all from one GGUF file: peer_files.py MODEL FILES PEERS.

`folder` has its weights dequantised to float32, in Hugging Face's layout; `f16.gguf`, `q8_0.gguf` and `q4_0.gguf` are
what llama-quantize makes of it.
"""

import argparse
import os
import subprocess
from pathlib import Path

from cpu_contenders import tools_of

from headrace.core.model_files.resolve import resolve_model

FORMATS = ("F16", "Q8_0", "Q4_0")


def write_folder(file: Path, folder: Path) -> None:
    """Read with transformers, write with transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)  # what was read counts as quantised
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def quantise(file: Path, files: Path, tools: Path) -> None:
    """Have llama.cpp write each format."""
    for name in FORMATS:
        command = [tools / "llama-quantize", "--allow-requantize", file, files / f"{name.lower()}.gguf", name]
        subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": str(tools)}, check=True)


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="GGUF file or catalogue name")
    parser.add_argument("files", type=Path, help="folder for what is made")
    parser.add_argument("peers", type=Path, help="folder of the peers' virtual environments")
    given = parser.parse_args()
    file = resolve_model(given.model)
    given.files.mkdir(parents=True, exist_ok=True)
    quantise(file, given.files, tools_of(given.peers))
    write_folder(file, given.files / "folder")


if __name__ == "__main__":
    main()
